"""attention() on torch tensors, as they lie in memory, on torch's current stream."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.autograd import forward_ad as _forward_ad
from torch.autograd.graph import increment_version as _increment_version

from batten import _core, _views
from batten._errors import Error, InvalidArgument, Unsupported
from batten._layers import MASK_NAMES, mask_code

FLOAT32 = _views.FLOAT32
_DTYPES = {getattr(torch, name): code for name, code in _views.DTYPE_CODES.items()}
_HALVES = (torch.float16, torch.bfloat16)
_WIDE = (torch.int64, torch.uint32, torch.uint64)
_INTEGERS = (torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, *_WIDE)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
# torch.cuda.current_stream() builds an object, for microseconds; builds without CUDA lack this.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

_cast_was_said = False


# Whether something wants to see operators, not addresses: a dispatch mode (a tracer, a counter of
# FLOPs), or a transform of torch.func (None if there is none), whose tensors have no memory of
# their own.
_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
# Whether the native half takes torch tensors as they are (torch from 2.10 on).
_DIRECT = _core.takes(torch.empty(0))


def view(tensor: torch.Tensor) -> Any:
    """What the native half takes for a torch tensor, which must outlive the call."""
    if _DIRECT:
        return tensor
    index = tensor.get_device()
    dtype = _DTYPES.get(tensor.dtype, 0)
    if index < 0:
        return (tensor.data_ptr(), dtype, tensor.shape, tensor.stride(), 0, 0)
    return (tensor.data_ptr(), dtype, tensor.shape, tensor.stride(), 1, index)


def refuse_gradient(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """batten has no backward pass; a wrong gradient must not come of that in silence."""
    if _is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise Unsupported(
            "attention: an input requires a gradient, and batten is for inference only; call it "
            "under torch.no_grad() or torch.inference_mode(), or detach() the inputs"
        )
    if _is_compiling():
        # The compiler's tensors do not tell what a transform asks of them: refused while there is
        # one.
        if _forward_ad._current_level >= 0 or (_is_grad_enabled() and _is_differentiated()):
            raise Unsupported(_NO_TANGENT)
    elif _forward_ad._current_level >= 0 or _transform() is not None:
        for tensor in (q, k, v):
            _refuse_derivative(tensor)


@torch.compiler.assume_constant_result
def _is_differentiated() -> bool:
    """Whether a transform of torch.func that is being compiled takes derivatives."""
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(level.key().name in ("Grad", "Jvp") for level in stack)


@torch.compiler.disable
def _refuse_derivative(tensor: torch.Tensor) -> None:
    """The same of forward mode, and of a transform of torch.func outside the innermost one."""
    functorch = torch._C._functorch
    levels = {i.level(): i.key().name for i in functorch.get_interpreter_stack() or ()}
    while functorch.is_functorch_wrapped_tensor(tensor):
        kind = levels.get(functorch.maybe_get_level(tensor))
        if kind == "Jvp" and torch._C._is_fwd_grad_enabled():
            raise Unsupported(_NO_TANGENT)
        if kind == "Grad" and tensor.requires_grad and _is_grad_enabled():
            raise Unsupported(_NO_TANGENT)
        tensor = functorch.get_unwrapped(tensor)
    if not levels and _forward_ad.unpack_dual(tensor).tangent is not None:
        raise Unsupported(_NO_TANGENT)


_NO_TANGENT = (
    "attention: an input carries a derivative (torch.func or torch.autograd.forward_ad), and "
    "batten is for inference only; call it on detached inputs under torch.no_grad()"
)


def compute_dtype(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str | None
) -> torch.dtype | None:
    """What the inputs must be cast to; None if they are taken as they are. Under autocast, float32
    and mixed inputs become autocast's dtype; on CUDA bfloat16 (but backend="reference" takes
    float32)."""
    uniform = q.dtype == k.dtype and q.dtype == v.dtype
    if uniform and q.dtype in _HALVES:
        return None
    check_dtypes(q, k, v)
    device = q.device.type
    if device not in ("cpu", "cuda"):
        raise InvalidArgument(f"q: tensor on {q.device}, expected one on cpu or cuda")
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) in _HALVES:
        return torch.get_autocast_dtype(device)
    if device != "cuda" or (uniform and backend is not None and backend.startswith("reference")):
        return None
    return torch.bfloat16


def check_dtypes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Float64, integers and the rest are refused, and never cast."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dtype not in _HALVES and tensor.dtype != torch.float32:
            raise InvalidArgument(
                f"{name}: tensor of {tensor.dtype}, expected float16, bfloat16 or float32"
            )


def check_integers(tensor: torch.Tensor | None, name: str) -> None:
    """Refuses lengths and offsets of other dtypes than integers."""
    if tensor is not None and tensor.dtype not in _INTEGERS:
        raise InvalidArgument(f"{name}: tensor of {tensor.dtype}, expected integers")


@torch.compiler.assume_constant_result
def say_cast(dtype: torch.dtype, compute: torch.dtype) -> None:
    """Warns, once in a process, that inputs are cast."""
    global _cast_was_said
    if _cast_was_said:
        return
    _cast_was_said = True
    warnings.warn(
        f"batten: {dtype} inputs (or inputs of several dtypes) are cast to {compute}, and the "
        f"output back to q's dtype; cast them yourself to choose another dtype. Said once in a "
        "process.",
        stacklevel=2,
    )


def _integers(tensor: Any, q: torch.Tensor, name: str) -> tuple[_views.RawView | None, Any]:
    """The view of lengths or offsets as contiguous int32 on the host or on q's device, and what
    must be kept alive for it. Nothing on a GPU is read by the host, unless q is on the CPU."""
    if tensor is None:
        return None, None
    if not isinstance(tensor, torch.Tensor):
        return _views.lengths_view(tensor, name)
    check_integers(tensor, name)
    if tensor.device.type != "cpu" and tensor.device != q.device:
        tensor = tensor.to(q.device)
    if tensor.dtype != torch.int32:
        if tensor.dtype in _WIDE:
            tensor = _in_range(tensor.to(torch.int64), name)
        tensor = tensor.to(torch.int32)
    tensor = tensor.resolve_neg().contiguous()
    return view(tensor), tensor


def _in_range(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """On the host values are checked; on a GPU they are clamped, as the kernels do."""
    limit = _views.INT32_MAX
    if tensor.is_cuda:
        return tensor.clamp(-limit, limit)
    if tensor.numel() and (int(tensor.max()) > limit or int(tensor.min()) < -limit):
        raise InvalidArgument(f"{name}: a value does not fit in int32")
    return tensor


def host_integers(tensor: torch.Tensor) -> Any:
    """Lengths beside arrays of another framework on the CPU, as a NumPy array."""
    if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_meta:
        raise InvalidArgument(f"lengths: {_kind(tensor)}, expected a plain tensor")
    return tensor.detach().cpu().resolve_neg().numpy()


def integers_tensor(lengths: Any, name: str) -> torch.Tensor | None:
    """Lengths or offsets as a tensor for the ops: refuses what attention() refuses, also while it
    is traced by a compiler."""
    if lengths is None or isinstance(lengths, torch.Tensor):
        return lengths
    if isinstance(lengths, (list, tuple, range)):
        if not _is_compiling():
            return torch.tensor(list(_views.int32_values(lengths, name)), dtype=torch.int32)
        for value in lengths:
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidArgument(f"{name}: expected integers that fit in int32")
            if value > _views.INT32_MAX or value < -_views.INT32_MAX:
                raise InvalidArgument(f"{name}: expected integers that fit in int32")
        return torch.tensor(list(lengths), dtype=torch.int32)
    if not _is_compiling() and _views.is_numpy(lengths):
        return torch.as_tensor(_views.int32_array(lengths, name))
    if _views.is_numpy(lengths):
        return torch.as_tensor(lengths)  # its dtype and values are checked in the op
    if not hasattr(lengths, "__dlpack__"):
        raise InvalidArgument(
            f"{name}: {type(lengths).__name__}, expected integers: a list, an array or a tensor"
        )
    return torch.from_dlpack(lengths)


def forward(
    q, k, v, mask, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    """One call on plain tensors of dtypes that the C++ side takes. Returns (out, lse or None)."""
    if q.is_cuda:
        stream = _raw_stream(q.get_device())
    elif q.is_cpu:
        stream = 0
    else:
        raise InvalidArgument(f"q: tensor on {q.device}, expected one on cpu or cuda")
    if out is None:
        out = _new_output(q, v, float32_output)
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32) if return_lse else None
    integers = _NO_INTEGERS
    if not (q_lengths is None and kv_lengths is None and offsets_q is None):
        # Converted tensors must outlive the call, so both stay in this list.
        kept = [
            _integers(tensor, q, name)
            for tensor, name in (
                (q_lengths, "q_lengths"),
                (kv_lengths, "kv_lengths"),
                (offsets_q, "offsets_q"),
                (offsets_kv, "offsets_kv"),
            )
        ]
        integers = [raw for raw, _ in kept]
    if not _DIRECT:
        q, k, v, given_out, given_lse = (
            view(q),
            view(k),
            view(v),
            view(out),
            lse if lse is None else view(lse),
        )
    else:
        given_out, given_lse = out, lse
    _core.forward(
        q, k, v, given_out, given_lse, *integers, max_q, max_kv, mask, backend,
        FLOAT32 if float32_output else 0, scale, padding_is_finite, stream,
    )  # fmt: skip
    return out, lse


_NO_INTEGERS = (None, None, None, None)


def _new_output(q: torch.Tensor, v: torch.Tensor, float32_output: bool) -> torch.Tensor:
    # The forms of torch.empty differ in time: this one takes a third of the general one.
    if not float32_output and q.size(-1) == v.size(-1):
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    shape = (*q.shape[:-1], v.shape[-1])
    return q.new_empty(shape, dtype=torch.float32 if float32_output else q.dtype)


def forward_cast(
    q, k, v, mask, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    """forward() of tensors of any floating dtype, cast where they must be, without gradients."""
    if _is_grad_enabled() or _forward_ad._current_level >= 0:
        refuse_gradient(q, k, v)
    dtype = q.dtype
    halves = dtype in _HALVES and dtype == k.dtype and dtype == v.dtype
    compute = None if halves else compute_dtype(q, k, v, backend)
    if compute is None:
        result = forward(
            q, k, v, mask, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv,
            return_lse, backend, out, padding_is_finite, float32_output,
        )  # fmt: skip
        if out is not None:
            note_written(out)
        return result
    if out is not None:
        _check_copy(out, q, k, v, float32_output)
    say_cast(q.dtype, compute)
    result, lse = forward(
        q.to(compute), k.to(compute), v.to(compute), mask, scale, q_lengths, kv_lengths, offsets_q,
        offsets_kv, max_q, max_kv, return_lse, backend, None, padding_is_finite, float32_output,
    )  # fmt: skip
    if out is not None:
        return out.copy_(result), lse
    return result if float32_output else result.to(q.dtype), lse


def note_written(tensor: torch.Tensor) -> None:
    """Tells autograd, as torch's own in-place operations do: a backward pass that saved the tensor
    then raises. Tensors of inference mode have no such count."""
    if not tensor.is_inference():
        _increment_version(tensor)


def check_written(tensor: Any, name: str) -> None:
    """Refuses a tensor whose gradient a write would make wrong."""
    if not isinstance(tensor, torch.Tensor):
        raise InvalidArgument(f"{name}: {type(tensor).__name__}, expected a torch tensor as q is")
    if _is_grad_enabled() and tensor.requires_grad:
        raise Unsupported(
            f"{name}: requires a gradient, and batten is for inference only; write under "
            "torch.no_grad(), or into a detached tensor"
        )
    if not _is_compiling() and _forward_ad._current_level >= 0:
        _refuse_derivative(tensor)


def _check_copy(out: Any, q: Any, k: Any, v: Any, float32_output: bool) -> None:
    """The native half's rules for out, where a result is copied into it. What a compiler traces has
    no addresses: there, of what overlaps, only the same tensor is seen."""
    shape, dtype = [*q.shape[:-1], v.shape[-1]], torch.float32 if float32_output else q.dtype
    if list(out.shape) != shape or out.dtype != dtype or out.device != q.device:
        raise InvalidArgument(
            f"out: {list(out.shape)} of {out.dtype} on {out.device}, expected {shape} of {dtype} "
            f"on {q.device}"
        )
    if _overlaps_itself(out):
        raise InvalidArgument(
            "out: elements overlap each other, its strides must not repeat memory"
        )
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if out is tensor or (not _is_compiling() and _overlap(out, tensor)):
            raise InvalidArgument(f"out and {name} overlap in memory, give out memory of its own")


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    reach = 1
    for stride, count in sorted(zip(tensor.stride(), tensor.shape)):
        if count == 0:
            return False
        if count > 1:
            if stride < reach:
                return True
            reach += (count - 1) * stride
    return False


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two plain tensors share memory. Slices of one buffer with a common step, as of a
    fused row, are told apart."""
    if not (_has_memory(a) and _has_memory(b)):
        return False
    start_a, start_b = a.data_ptr(), b.data_ptr()
    if start_a + _reach(a) <= start_b or start_b + _reach(b) <= start_a:
        return False
    steps = [s * t.element_size() for t in (a, b) for s, n in zip(t.stride(), t.shape) if n > 1]
    for period in sorted(set(steps)):
        if period == 0:
            continue
        inner_a, inner_b = _reach(a, period), _reach(b, period)
        if any(s >= period and s % period for s in steps):
            continue
        gap = (start_b - start_a) % period
        if inner_a <= gap and gap + inner_b <= period:
            return False
    return True


def _has_memory(tensor: torch.Tensor) -> bool:
    return type(tensor) in _PLAIN and tensor.numel() > 0 and not _is_odd(tensor)


def _reach(tensor: torch.Tensor, below: int | None = None) -> int:
    """How many bytes the dimensions with a step below `below` bytes (all if None) cover."""
    size = tensor.element_size()
    return size + sum(
        (n - 1) * s * size
        for s, n in zip(tensor.stride(), tensor.shape)
        if below is None or s * size < below
    )


# Dispatch keys of tensors that are not what their address holds, or have none.
_ODD_KEYS = [
    getattr(torch._C.DispatchKey, name)
    for name in (
        "Negative", "Conjugate", "ZeroTensor", "Functionalize", "FuncTorchBatched",
        "FuncTorchGradWrapper", "Python", "NestedTensor", "Sparse", "SparseCsr", "Quantized",
    )
    if hasattr(torch._C.DispatchKey, name)
]  # fmt: skip


def _is_odd(tensor: Any) -> bool:
    """Whether a tensor is one for torch's dispatcher to look at. Slow: for calls that failed."""
    if not isinstance(tensor, torch.Tensor):
        return False
    keys = torch._C._dispatch_keys(tensor)
    return (
        type(tensor) not in _PLAIN
        or any(keys.has(key) for key in _ODD_KEYS)
        or tensor.layout != torch.strided
        or tensor.is_nested
        or tensor.is_meta
    )


def _kind(tensor: torch.Tensor) -> str:
    if tensor.is_nested:
        return "nested tensor"
    if tensor.layout != torch.strided:
        return f"tensor of layout {tensor.layout}"
    return f"{type(tensor).__name__} on {tensor.device}"


def refuse_unreadable(named: Any, error: Exception | None = None) -> None:
    """One line for tensors that the ops cannot take: `named` are pairs of name and argument. The
    error that an op raised on them is quoted where nothing else explains it."""
    tensors = [(name, t) for name, t in named if isinstance(t, torch.Tensor)]
    meta = all(t.is_meta for name, t in tensors if name in ("q", "k", "v"))
    for name, tensor in tensors:
        dense = tensor.layout == torch.strided and not tensor.is_nested
        if not dense or (tensor.is_meta and not meta):
            raise InvalidArgument(
                f"{name}: {_kind(tensor)}, expected a dense tensor on the device of the others"
            ) from None
    if error is not None:
        odd = ", ".join(f"{name} ({_kind(t)})" for name, t in tensors if _is_odd(t)) or "arguments"
        raise InvalidArgument(f"{odd}: {str(error).strip().partition(chr(10))[0]}") from None


def explain(error: Exception, named: Any) -> None:
    """In one line what torch's dispatcher had to say of tensors that an op cannot take. Returns
    where that was not the cause."""
    if isinstance(error, Error) or not isinstance(error, (RuntimeError, AssertionError)):
        return
    if _transform() is not None or any(_is_odd(tensor) for _, tensor in named):
        refuse_unreadable(named, error)


def run(
    q, k, v, causal, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    """batten.attention and attention_packed on torch tensors: straight to the library for plain
    tensors, through the torch ops where torch is tracing."""
    mask = mask_code(causal)
    if out is not None and (
        type(out) not in _PLAIN or out.requires_grad or _forward_ad._current_level >= 0
    ):
        check_written(out, "out")
    if not (
        _is_compiling()
        or type(q) not in _PLAIN
        or type(k) not in _PLAIN
        or type(v) not in _PLAIN
        or _modes()
        or _transform() is not None
        or q.is_neg()
        or k.is_neg()
        or v.is_neg()
        or (out is not None and (type(out) not in _PLAIN or out.is_neg()))
        or (
            (kv_lengths is not None or q_lengths is not None or offsets_q is not None)
            and _any_odd(q_lengths, kv_lengths, offsets_q, offsets_kv)
        )
    ):
        try:
            result, lse = forward_cast(
                q, k, v, mask, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv,
                return_lse, backend, out, padding_is_finite, float32_output,
            )  # fmt: skip
            return (result, lse) if return_lse else result
        except Exception:
            # Other odd tensors show by having no address.
            if not any(map(_is_odd, (q, k, v, out, q_lengths, kv_lengths, offsets_q, offsets_kv))):
                _refuse_without_memory(q=q, k=k, v=v, out=out)
                raise
    if not (isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        raise InvalidArgument("q, k and v: expected tensors of one framework, q is a torch tensor")
    return _traced(
        q, k, v, MASK_NAMES[mask], scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q,
        max_kv, return_lse, backend, out, padding_is_finite, float32_output,
    )  # fmt: skip


def _any_odd(q_lengths, kv_lengths, offsets_q, offsets_kv) -> bool:
    """Whether lengths or offsets are tensors without numbers of their own."""
    return any(
        isinstance(t, torch.Tensor) and (type(t) not in _PLAIN or t.is_meta)
        for t in (q_lengths, kv_lengths, offsets_q, offsets_kv)
    )


def _refuse_without_memory(**named: torch.Tensor | None) -> None:
    for name, tensor in named.items():
        if tensor is not None and tensor.numel() and not tensor.data_ptr():
            raise InvalidArgument(f"{name}: its storage was freed or resized") from None


def _traced(
    q, k, v, causal, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    from batten import torch as ops

    q_lengths = integers_tensor(q_lengths, "q_lengths")
    kv_lengths = integers_tensor(kv_lengths, "kv_lengths")
    if out is not None:
        _check_copy(out, q, k, v, float32_output)
    if offsets_q is None:
        result, lse = ops.call_op(
            q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, return_lse, q_lengths,
            float32_output,
        )  # fmt: skip
    else:
        result, lse = ops.call_packed_op(
            q, k, v, integers_tensor(offsets_q, "offsets_q"),
            integers_tensor(offsets_kv, "offsets_kv"), max_q, max_kv, causal, scale, q_lengths,
            kv_lengths, backend, padding_is_finite, return_lse, float32_output,
        )  # fmt: skip
    if out is not None:
        result = _copied(out, result)
    return (result, lse) if return_lse else result


def _copied(out: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if _is_compiling():
        return out.copy_(result)
    try:
        return out.copy_(result)
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        line = str(error).strip().partition("\n")[0]
        raise InvalidArgument(f"out: {_kind(out)} cannot take the result: {line}") from None


def merge(out: torch.Tensor, lse: torch.Tensor, out2: torch.Tensor, lse2: torch.Tensor) -> None:
    """batten.merge on torch tensors."""
    named = {"out": out, "lse": lse, "out2": out2, "lse2": lse2}
    for name, tensor in named.items():
        if not isinstance(tensor, torch.Tensor):
            raise InvalidArgument(f"{name}: {type(tensor).__name__}, expected a torch tensor")
        if type(tensor) not in _PLAIN or tensor.is_neg():
            raise Unsupported(f"merge: {name} is a {_kind(tensor)}, for which there is no operator")
    if _modes() or _transform() is not None:
        raise Unsupported("merge: it cannot be traced or transformed, there is no operator for it")
    refuse_gradient(out, out2, lse)
    refuse_gradient(lse2, lse2, lse2)
    stream = _raw_stream(out.get_device()) if out.is_cuda else 0
    try:
        _core.merge(view(out), view(lse), view(out2), view(lse2), stream)
    except Exception:
        refuse_unreadable(named.items())
        _refuse_without_memory(**named)
        raise
    note_written(out)
    note_written(lse)
