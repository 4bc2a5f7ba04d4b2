"""batten as torch operators. Importing this module registers

    torch.ops.batten.attention(q, k, v, causal="none", scale=None, kv_lengths=None, backend=None,
                               padding_is_finite=False, q_lengths=None, float32_output=False) -> out
    torch.ops.batten.attention_lse(the same) -> (out, lse)
    torch.ops.batten.attention_packed(q, k, v, offsets_q, offsets_kv, max_q, max_kv, causal="none",
                               scale=None, q_lengths=None, kv_lengths=None, backend=None,
                               padding_is_finite=False, float32_output=False) -> out
    torch.ops.batten.attention_packed_lse(the same) -> (out, lse)

with kernels for CPU and CUDA and shape functions for torch.compile and torch.export. `causal` is
"none", "causal" (bottom-right) or "top_left". They have no gradient, and say so when one is asked
for. attention() below is the front for programs.
"""

from __future__ import annotations

from typing import Any

import torch

from batten import _core, _torch_calls
from batten._errors import InvalidArgument
from batten._layers import MASK_NAMES, mask_code

__all__ = ["attention"]

_is_compiling = torch.compiler.is_dynamo_compiling

_DENSE = (
    '(Tensor q, Tensor k, Tensor v, str causal="none", float? scale=None, '
    "Tensor? kv_lengths=None, str? backend=None, bool padding_is_finite=False, "
    "Tensor? q_lengths=None, bool float32_output=False) -> "
)
_PACKED = (
    "(Tensor q, Tensor k, Tensor v, Tensor offsets_q, Tensor offsets_kv, SymInt max_q=0, "
    'SymInt max_kv=0, str causal="none", float? scale=None, Tensor? q_lengths=None, '
    "Tensor? kv_lengths=None, str? backend=None, bool padding_is_finite=False, "
    "bool float32_output=False) -> "
)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    kv_lengths: Any = None,
    backend: str | None = None,
    padding_is_finite: bool = False,
    return_lse: bool = False,
) -> Any:
    """batten.attention through the torch op: the same in eager mode, and one node of the graph
    under torch.compile(fullgraph=True) and torch.export.

    q: [B, Sq, Hq, D]; k: [B, Skv, Hkv, D]; v: [B, Skv, Hkv, Dv], on one device. float16 or
       bfloat16; float32 on the CPU. Float32 and mixed inputs under autocast or on CUDA are cast
       (to autocast's dtype, else bfloat16), the output is cast back to q's dtype, and a warning
       says so once.
    kv_lengths: integers [B] of any dtype; keys past them are padding.
    The rest, and what is raised, is as in batten.attention. Unsupported if a gradient is asked for.

    Returns out [B, Sq, Hq, Dv], with return_lse (out, lse [B, Sq, Hq] float32).
    """
    kv_lengths = _torch_calls.integers_tensor(kv_lengths, "kv_lengths")
    causal = MASK_NAMES[mask_code(causal)]
    if not _is_compiling():
        _torch_calls.refuse_gradient(q, k, v)  # those of torch.func, which the kernel cannot see
        op = _attention_lse if return_lse else _attention
        try:
            return op(q, k, v, causal, scale, kv_lengths, backend, padding_is_finite)
        except Exception as error:
            named = (("q", q), ("k", k), ("v", v), ("kv_lengths", kv_lengths))
            _torch_calls.explain(error, named)
            raise
    out, lse = call_op(
        q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, return_lse, None, False
    )
    return (out, lse) if return_lse else out


def call_op(
    q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, return_lse, q_lengths,
    float32_output,
):  # fmt: skip
    """The dense op. A compiler sees the casts outside it, and may fuse them. Returns (out, lse)."""
    dtype = q.dtype
    q, k, v = _prepared(q, k, v, backend)
    op = _attention_lse if return_lse else _attention
    arguments = (
        q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, q_lengths, float32_output,
    )  # fmt: skip
    named = dict(q=q, k=k, v=v, q_lengths=q_lengths, kv_lengths=kv_lengths)
    result = _called(op, arguments, named)
    return _finished(result, return_lse, dtype, float32_output)


def call_packed_op(
    q, k, v, offsets_q, offsets_kv, max_q, max_kv, causal, scale, q_lengths, kv_lengths, backend,
    padding_is_finite, return_lse, float32_output,
):  # fmt: skip
    """The packed op, in the same way."""
    dtype = q.dtype
    q, k, v = _prepared(q, k, v, backend)
    op = _attention_packed_lse if return_lse else _attention_packed
    arguments = (
        q, k, v, offsets_q, offsets_kv, max_q, max_kv, causal, scale, q_lengths, kv_lengths,
        backend, padding_is_finite, float32_output,
    )  # fmt: skip
    named = dict(
        q=q, k=k, v=v, offsets_q=offsets_q, offsets_kv=offsets_kv, q_lengths=q_lengths,
        kv_lengths=kv_lengths,
    )  # fmt: skip
    result = _called(op, arguments, named)
    return _finished(result, return_lse, dtype, float32_output)


def _called(op, arguments, named):
    if _is_compiling():
        return op(*arguments)
    _torch_calls.refuse_unreadable(named.items())
    try:
        return op(*arguments)
    except Exception as error:
        _torch_calls.explain(error, named.items())
        raise


def _prepared(q, k, v, backend):
    _torch_calls.refuse_gradient(q, k, v)
    if not _is_compiling():
        return q, k, v  # the op's kernel casts
    compute = _torch_calls.compute_dtype(q, k, v, backend)
    if compute is None:
        return q, k, v
    _torch_calls.say_cast(q.dtype, compute)
    return q.to(compute), k.to(compute), v.to(compute)


def _finished(result, return_lse, dtype, float32_output):
    out, lse = result if return_lse else (result, None)
    if out.dtype != dtype and not float32_output:
        out = out.to(dtype)
    return out, lse


def _dense(
    q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, q_lengths, float32_output, lse
):
    return _torch_calls.forward_cast(
        q, k, v, mask_code(causal), scale, q_lengths, kv_lengths, None, None, 0, 0, lse, backend,
        None, padding_is_finite, float32_output,
    )  # fmt: skip


def _kernel(
    q, k, v, causal="none", scale=None, kv_lengths=None, backend=None, padding_is_finite=False,
    q_lengths=None, float32_output=False,
):  # fmt: skip
    return _dense(
        q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, q_lengths, float32_output,
        False,
    )[0]  # fmt: skip


def _kernel_lse(
    q, k, v, causal="none", scale=None, kv_lengths=None, backend=None, padding_is_finite=False,
    q_lengths=None, float32_output=False,
):  # fmt: skip
    return _dense(
        q, k, v, causal, scale, kv_lengths, backend, padding_is_finite, q_lengths, float32_output,
        True,
    )  # fmt: skip


def _packed(
    q, k, v, offsets_q, offsets_kv, max_q, max_kv, causal, scale, q_lengths, kv_lengths, backend,
    padding_is_finite, float32_output, lse,
):  # fmt: skip
    return _torch_calls.forward_cast(
        q, k, v, mask_code(causal), scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q,
        max_kv, lse, backend, None, padding_is_finite, float32_output,
    )  # fmt: skip


def _packed_kernel(
    q, k, v, offsets_q, offsets_kv, max_q=0, max_kv=0, causal="none", scale=None, q_lengths=None,
    kv_lengths=None, backend=None, padding_is_finite=False, float32_output=False,
):  # fmt: skip
    return _packed(
        q, k, v, offsets_q, offsets_kv, max_q, max_kv, causal, scale, q_lengths, kv_lengths,
        backend, padding_is_finite, float32_output, False,
    )[0]  # fmt: skip


def _packed_kernel_lse(
    q, k, v, offsets_q, offsets_kv, max_q=0, max_kv=0, causal="none", scale=None, q_lengths=None,
    kv_lengths=None, backend=None, padding_is_finite=False, float32_output=False,
):  # fmt: skip
    return _packed(
        q, k, v, offsets_q, offsets_kv, max_q, max_kv, causal, scale, q_lengths, kv_lengths,
        backend, padding_is_finite, float32_output, True,
    )  # fmt: skip


def _fake_out(q, k, v, integers, rank, float32_output):
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != rank:
            raise InvalidArgument(f"{name}: has {tensor.dim()} dimensions, expected {rank}")
    _torch_calls.check_dtypes(q, k, v)
    for name, tensor in integers.items():
        _torch_calls.check_integers(tensor, name)
    # One tensor of the meta device brings a call here, and the others may be real.
    _torch_calls.refuse_unreadable([("q", q), ("k", k), ("v", v), *integers.items()])
    _torch_calls.refuse_gradient(q, k, v)
    _core.forget_receipt()  # of an earlier call: this one runs nothing
    dtype = torch.float32 if float32_output else q.dtype
    return q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=dtype)


def _fake_lse(q):
    return q.new_empty(q.shape[:-1], dtype=torch.float32)


def _fake(
    q, k, v, causal="none", scale=None, kv_lengths=None, backend=None, padding_is_finite=False,
    q_lengths=None, float32_output=False,
):  # fmt: skip
    integers = dict(q_lengths=q_lengths, kv_lengths=kv_lengths)
    return _fake_out(q, k, v, integers, 4, float32_output)


def _fake_with_lse(q, *rest, **named):
    return _fake(q, *rest, **named), _fake_lse(q)


def _fake_packed(
    q, k, v, offsets_q, offsets_kv, max_q=0, max_kv=0, causal="none", scale=None, q_lengths=None,
    kv_lengths=None, backend=None, padding_is_finite=False, float32_output=False,
):  # fmt: skip
    integers = dict(
        offsets_q=offsets_q, offsets_kv=offsets_kv, q_lengths=q_lengths, kv_lengths=kv_lengths
    )
    return _fake_out(q, k, v, integers, 3, float32_output)


def _fake_packed_with_lse(q, *rest, **named):
    return _fake_packed(q, *rest, **named), _fake_lse(q)


def _refuse_layout(q, k, v, *rest, **named):
    _torch_calls.refuse_unreadable([("q", q), ("k", k), ("v", v)])
    raise InvalidArgument("attention: a tensor that is not dense, expected dense tensors")


_library = torch.library.Library("batten", "DEF")


def _register(name: str, schema: str, kernel: Any, fake: Any) -> Any:
    """Straight to the dispatcher: torch.library.custom_op wraps each call in Python, for several
    microseconds more."""
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in ("CPU", "CUDA"):
        _library.impl(name, kernel, key)
    for layout in ("Sparse", "SparseCsr", "NestedTensor", "Quantized"):
        for key in ("CPU", "CUDA"):
            _library.impl(name, _refuse_layout, layout + key)
    torch.library.register_fake(f"batten::{name}", fake, lib=_library)
    return getattr(torch.ops.batten, name).default


_attention = _register("attention", _DENSE + "Tensor", _kernel, _fake)
_attention_lse = _register(
    "attention_lse", _DENSE + "(Tensor, Tensor)", _kernel_lse, _fake_with_lse
)
_attention_packed = _register("attention_packed", _PACKED + "Tensor", _packed_kernel, _fake_packed)
_attention_packed_lse = _register(
    "attention_packed_lse", _PACKED + "(Tensor, Tensor)", _packed_kernel_lse, _fake_packed_with_lse
)
