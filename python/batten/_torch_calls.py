"""attention() on torch tensors, as they lie in memory, on torch's current stream."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from batten import _core, _views
from batten._errors import InvalidArgument, Unsupported
from batten._layers import MASK_NAMES, mask_code

FLOAT32 = _views.FLOAT32
_DTYPES = {getattr(torch, name): code for name, code in _views.DTYPE_CODES.items()}
_HALVES = (torch.float16, torch.bfloat16)
_INTEGERS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_is_compiling = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled
# torch.cuda.current_stream() builds an object, for microseconds; builds without CUDA lack this.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)

_cast_was_said = False


# Whether something wants to see operators, not addresses: a dispatch mode (a tracer, a counter of
# FLOPs), or a transform of torch.func, whose tensors have no memory of their own.
_modes = torch._C._len_torch_dispatch_stack
_is_transformed = torch._C._functorch.is_functorch_wrapped_tensor
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


def compute_dtype(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, backend: str | None
) -> torch.dtype | None:
    """What the inputs must be cast to; None if they are taken as they are. Under autocast, float32
    and mixed inputs become autocast's dtype; on CUDA bfloat16 (but backend="reference" takes
    float32)."""
    uniform = q.dtype == k.dtype and q.dtype == v.dtype
    if uniform and q.dtype in _HALVES:
        return None
    for tensor in (q, k, v):
        if tensor.dtype not in _HALVES and tensor.dtype != torch.float32:
            raise InvalidArgument(
                f"attention: tensor of {tensor.dtype}, expected float16, bfloat16 or float32"
            )
    device = q.device.type
    if device not in ("cpu", "cuda"):
        raise InvalidArgument(f"q: tensor on {q.device}, expected one on cpu or cuda")
    if torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) in _HALVES:
        return torch.get_autocast_dtype(device)
    if device != "cuda" or (uniform and backend is not None and backend.startswith("reference")):
        return None
    return torch.bfloat16


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
    if tensor.dtype not in _INTEGERS:
        raise InvalidArgument(f"{name}: tensor of {tensor.dtype}, expected integers")
    if tensor.device.type != "cpu" and tensor.device != q.device:
        tensor = tensor.to(q.device)
    if tensor.dtype != torch.int32:
        if tensor.dtype == torch.int64:
            tensor = _in_range(tensor, name)
        tensor = tensor.to(torch.int32)
    tensor = tensor.contiguous()
    return view(tensor), tensor


def _in_range(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """On the host values are checked; on a GPU they are clamped, as the kernels do."""
    limit = _views.INT32_MAX
    if tensor.is_cuda:
        return tensor.clamp(-limit, limit)
    if tensor.numel() and (int(tensor.max()) > limit or int(tensor.min()) < -limit):
        raise InvalidArgument(f"{name}: a value does not fit in int32")
    return tensor


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
        if q.is_contiguous():
            return torch.empty_like(q)
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    shape = (*q.shape[:-1], v.shape[-1])
    return q.new_empty(shape, dtype=torch.float32 if float32_output else q.dtype)


def forward_cast(
    q, k, v, mask, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    """forward() of tensors of any floating dtype, cast where they must be, without gradients."""
    if _is_grad_enabled():
        refuse_gradient(q, k, v)
    dtype = q.dtype
    halves = dtype in _HALVES and dtype == k.dtype and dtype == v.dtype
    compute = None if halves else compute_dtype(q, k, v, backend)
    if compute is None:
        return forward(
            q, k, v, mask, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv,
            return_lse, backend, out, padding_is_finite, float32_output,
        )  # fmt: skip
    say_cast(q.dtype, compute)
    result, lse = forward(
        q.to(compute), k.to(compute), v.to(compute), mask, scale, q_lengths, kv_lengths, offsets_q,
        offsets_kv, max_q, max_kv, return_lse, backend, None, padding_is_finite, float32_output,
    )  # fmt: skip
    if out is not None:
        return _copied_into(out, result, q), lse
    return result if float32_output else result.to(q.dtype), lse


def _copied_into(out: torch.Tensor, result: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    if out.shape != result.shape or out.device != result.device:
        raise InvalidArgument(
            f"out: {list(out.shape)} on {out.device}, expected {list(result.shape)} on {q.device}"
        )
    return out.copy_(result)


def run(
    q, k, v, causal, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    """batten.attention and attention_packed on torch tensors: straight to the library for plain
    tensors, through the torch ops where torch is tracing."""
    mask = mask_code(causal)
    if not (isinstance(k, torch.Tensor) and isinstance(v, torch.Tensor)):
        raise InvalidArgument("q, k and v: expected tensors of one framework, q is a torch tensor")
    if _is_compiling() or type(q) not in _PLAIN or _modes() or _is_transformed(q):
        return _traced(
            q, k, v, MASK_NAMES[mask], scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q,
            max_kv, return_lse, backend, out, padding_is_finite, float32_output,
        )  # fmt: skip
    out, lse = forward_cast(
        q, k, v, mask, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv,
        return_lse, backend, out, padding_is_finite, float32_output,
    )  # fmt: skip
    return (out, lse) if return_lse else out


def _traced(
    q, k, v, causal, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    from batten import torch as ops

    q_lengths, kv_lengths = _tensor(q_lengths), _tensor(kv_lengths)
    if offsets_q is None:
        result, lse = ops.call_op(
            q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, return_lse, q_lengths,
            float32_output,
        )  # fmt: skip
    else:
        result, lse = ops.call_packed_op(
            q, k, v, _tensor(offsets_q), _tensor(offsets_kv), max_q, max_kv, causal, scale,
            q_lengths, kv_lengths, backend, padding_is_finite, return_lse, float32_output,
        )  # fmt: skip
    if out is not None:
        result = _copied_into(out, result, q)
    return (result, lse) if return_lse else result


def _tensor(lengths: Any) -> torch.Tensor | None:
    if lengths is None or isinstance(lengths, torch.Tensor):
        return lengths
    return torch.as_tensor(lengths, dtype=torch.int32)


def merge(out: torch.Tensor, lse: torch.Tensor, out2: torch.Tensor, lse2: torch.Tensor) -> None:
    """batten.merge on torch tensors."""
    refuse_gradient(out, out2, lse)
    stream = _raw_stream(out.get_device()) if out.is_cuda else 0
    _core.merge(view(out), view(lse), view(out2), view(lse2), stream)
