"""attention(), attention_packed() and merge(): the package's calls, for any framework's tensors."""

from __future__ import annotations

import sys
from typing import Any

from batten import _core, _views
from batten._errors import InvalidArgument
from batten._layers import mask_code

_torch_calls: Any = None


def _calls_of_torch(first: Any, second: Any, third: Any, fourth: Any) -> Any:
    """The module that serves torch tensors if the first is one, else None. Does not import torch.
    Refuses torch tensors beside a first one that is none: torch's rules, of gradients for one,
    would not be kept for them."""
    global _torch_calls
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if not isinstance(first, torch.Tensor):
        if any(isinstance(other, torch.Tensor) for other in (second, third, fourth)):
            raise InvalidArgument(
                f"torch tensors beside {type(first).__name__}: expected tensors of one framework "
                "(lengths and offsets may be of any)"
            )
        return None
    if _torch_calls is None:
        from batten import _torch_calls as module

        _torch_calls = module
    return _torch_calls


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool | str = False,
    scale: float | None = None,
    q_lengths: Any = None,
    kv_lengths: Any = None,
    return_lse: bool = False,
    backend: str | None = None,
    out: Any = None,
    padding_is_finite: bool = False,
    float32_output: bool = False,
) -> Any:
    """softmax(scale * q k^T + mask) v for a whole batch in one call.

    q: [B, Sq, Hq, D]; k: [B, Skv, Hkv, D]; v: [B, Skv, Hkv, Dv], all of one dtype (float16 or
       bfloat16; float32 on the CPU) on one device, Hq a multiple of Hkv. Tensors of torch, NumPy,
       CuPy, or others with DLPack on the CPU; any strides with a contiguous last dimension.
    causal: False; True or "causal" for bottom-right alignment (j <= i + Skv - Sq); "top_left" for
       j <= i.
    scale: 1/sqrt(D) if None.
    q_lengths, kv_lengths: integers [B], a list or a tensor on the host (checked) or on the tensors'
       device (never read by the host, clamped). Rows and keys past them are padding; padded rows
       give out 0 and lse -inf.
    return_lse: also return float32 [B, Sq, Hq], the natural logarithm of the softmax's denominator.
    backend: a name such as "cudnn", "cpu" or "auto"; None asks the environment (BATTEN_BACKEND),
       then "auto".
    out: [B, Sq, Hq, Dv], written instead of a new tensor.
    padding_is_finite: promises that no Inf or NaN lies in padding (some vendor kernels need it).
    float32_output: an unrounded float32 output, for merge().

    Returns out, or (out, lse). On a GPU the work is queued on the current stream of the tensors'
    framework and device. Raises InvalidArgument, Unsupported, Unavailable, OutOfMemory or Device,
    each with one line of text; nothing falls back in silence.
    """
    calls = _calls_of_torch(q, k, v, out)
    run = _run if calls is None else calls.run
    return run(
        q, k, v, causal, scale, q_lengths, kv_lengths, None, None, 0, 0, return_lse, backend, out,
        padding_is_finite, float32_output,
    )  # fmt: skip


def attention_packed(
    q: Any,
    k: Any,
    v: Any,
    *,
    offsets_q: Any,
    offsets_kv: Any,
    max_q: int = 0,
    max_kv: int = 0,
    causal: bool | str = False,
    scale: float | None = None,
    q_lengths: Any = None,
    kv_lengths: Any = None,
    return_lse: bool = False,
    backend: str | None = None,
    out: Any = None,
    padding_is_finite: bool = False,
    float32_output: bool = False,
) -> Any:
    """attention() of samples of different lengths, one after another without padding.

    q: [Tq, Hq, D]; k: [Tkv, Hkv, D]; v: [Tkv, Hkv, Dv]; out: [Tq, Hq, Dv]; lse: [Tq, Hq].
    offsets_q, offsets_kv: integers [B + 1], exclusive prefix sums in tokens; a list or a tensor on
       the host (checked) or on the device (clamped; then max_q and max_kv, upper bounds of the
       lengths, must be given).
    q_lengths, kv_lengths: integers [B], where samples are shorter than their room; what lies in the
       gaps is neither read nor written: without `out`, rows that no sample covers hold anything.
    The rest is as in attention().
    """
    if offsets_q is None or offsets_kv is None:
        raise InvalidArgument("attention_packed: offsets_q and offsets_kv must both be given")
    calls = _calls_of_torch(q, k, v, out)
    run = _run if calls is None else calls.run
    return run(
        q, k, v, causal, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv,
        return_lse, backend, out, padding_is_finite, float32_output,
    )  # fmt: skip


def _run(
    q, k, v, causal, scale, q_lengths, kv_lengths, offsets_q, offsets_kv, max_q, max_kv, return_lse,
    backend, out, padding_is_finite, float32_output,
):  # fmt: skip
    """A call on tensors of other frameworks than torch."""
    q_view, k_view, v_view = _views.view(q, "q"), _views.view(k, "k"), _views.view(v, "v")
    out_code = _views.FLOAT32 if float32_output else 0
    mask = mask_code(causal)
    integers = [
        _views.lengths_view(tensor, name)
        for tensor, name in (
            (q_lengths, "q_lengths"),
            (kv_lengths, "kv_lengths"),
            (offsets_q, "offsets_q"),
            (offsets_kv, "offsets_kv"),
        )
    ]
    if out is None:
        out = _views.empty(q, (*q_view[2][:-1], v_view[2][-1]), out_code or q_view[1])
    lse = _views.empty(q, tuple(q_view[2][:-1]), _views.FLOAT32) if return_lse else None
    _core.forward(
        q_view, k_view, v_view, _views.writable_view(out, "out"),
        None if lse is None else _views.view(lse, "lse"), *(raw for raw, _ in integers), max_q,
        max_kv, mask, backend, out_code, scale, padding_is_finite, _views.current_stream(q),
    )  # fmt: skip
    return (out, lse) if return_lse else out


def merge(out: Any, lse: Any, out2: Any, lse2: Any) -> None:
    """(out, lse) becomes, in place, the attention over both key sets, of which the two pairs are
    the partial results.

    out, out2: [B, S, H, D] or [T, H, D], float32, float16 or bfloat16; lse, lse2: float32, the same
    without D. All on one device. Rows with lse = -inf contribute nothing.
    """
    calls = _calls_of_torch(out, lse, out2, lse2)
    if calls is not None:
        calls.merge(out, lse, out2, lse2)
        return
    _core.merge(
        _views.writable_view(out, "out"), _views.writable_view(lse, "lse"),
        _views.view(out2, "out2"), _views.view(lse2, "lse2"), _views.current_stream(out),
    )  # fmt: skip
