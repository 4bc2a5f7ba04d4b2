"""attention() and attention_packed(): the package's two calls."""

import functools
import sys

from batten import _core, _errors, _views

_MASKS = {False: 0, None: 0, "none": 0, True: 1, "causal": 1, "causal_top_left": 2, "top_left": 2}


@functools.lru_cache(maxsize=256)
def _layer(dtype, out_dtype, num_heads, num_kv_heads, head_dim, head_dim_v, mask, batch_invariant, device_type,
           device_index, backend, environment):
    """The object that serves a problem. `environment` is part of the key: the choice is read when it is made."""
    del environment
    return _core.Attention(dtype, out_dtype, num_heads, num_kv_heads, head_dim, head_dim_v, mask, None,
                           batch_invariant, device_type, device_index, backend, 0)


def _environment():
    from os import environ

    return (environ.get("BATTEN_BACKEND"), environ.get("FASTVIDEO_ATTENTION_BACKEND"),
            environ.get("FASTVIDEO_FLASHINFER_PREFILL_BACKEND"), environ.get("BATTEN_CHECK"))


def layer_for(q, k, v, causal, backend, out_dtype=0, batch_invariant=False):
    """The cached layer that serves tensors with these views."""
    try:
        mask = _MASKS[causal]
    except (KeyError, TypeError):
        raise _errors.InvalidArgument(f"causal={causal!r}: expected True, False, 'causal' or 'top_left'") from None
    if len(q[2]) < 3 or len(k[2]) < 3 or len(v[2]) < 3:
        raise _errors.InvalidArgument("q, k and v: expected [B, S, H, D], or [T, H, D] in a packed call")
    return _layer(q[1], out_dtype, q[2][-2], k[2][-2], q[2][-1], v[2][-1], mask, batch_invariant, q[4], q[5],
                  backend, None if backend else _environment())


def _empty(like, shape, dtype_code):
    """An uninitialised tensor of the same framework and device."""
    if _views.is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, _views.DTYPE_NAMES[dtype_code]), device=like.device)
    module = sys.modules[type(like).__module__.split(".")[0]]
    if module.__name__ in ("jax", "jaxlib"):
        raise TypeError("JAX arrays cannot be written in place: call batten on DLPack views of another framework")
    return module.empty(shape, dtype=like.dtype if dtype_code == _views.view(like)[1] else "float32")


def _refuse_gradient(*tensors):
    torch = sys.modules.get("torch")
    if torch is not None and torch.is_grad_enabled():
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                raise _errors.Unsupported("batten is for inference: wrap the call in torch.no_grad(), or detach()")


def _run(q, k, v, *, causal, scale, backend, out, return_lse, q_lengths, kv_lengths, offsets, bounds,
         padding_is_finite, float32_output):
    _refuse_gradient(q, k, v)
    q_view, k_view, v_view = _views.view(q), _views.view(k), _views.view(v)
    out_code = _views.FLOAT32 if float32_output else 0
    layer = layer_for(q_view, k_view, v_view, causal, backend, out_code)
    if out is None:
        out = _empty(q, (*q_view[2][:-1], v_view[2][-1]), out_code or q_view[1])
    lse = _empty(q, tuple(q_view[2][:-1]), _views.FLOAT32) if return_lse else None
    offsets_q, offsets_kv = offsets
    layer.forward(q_view, k_view, v_view, _views.view(out), _views.optional_view(lse),
                  _views.optional_view(q_lengths), _views.optional_view(kv_lengths),
                  _views.optional_view(offsets_q), _views.optional_view(offsets_kv), *bounds,
                  scale, padding_is_finite, _views.current_stream(q))
    return (out, lse) if return_lse else out


def attention(q, k, v, *, causal=False, scale=None, q_lengths=None, kv_lengths=None, return_lse=False, backend=None,
              out=None, padding_is_finite=False, float32_output=False):
    """softmax(scale · q kᵀ + mask) v for a whole batch in one call.

    q: [B, Sq, Hq, D]; k: [B, Skv, Hkv, D]; v: [B, Skv, Hkv, Dv], all of one dtype (float16 or bfloat16; float32 on
       the CPU) on one device, Hq a multiple of Hkv. Any DLPack tensor; any strides with a contiguous last dimension.
    causal: False; True for bottom-right alignment (j <= i + Skv - Sq); "top_left" for j <= i.
    scale: 1/sqrt(D) if None.
    q_lengths, kv_lengths: int32 [B], on the host (checked) or the tensors' device; rows and keys past them are
       padding. Rows past q_lengths give 0 and lse -inf.
    return_lse: also return float32 [B, Sq, Hq], natural logarithm.
    backend: a name such as "cudnn", "cpu", "auto"; None reads the environment (BATTEN_BACKEND), then "auto".
    out: written instead of a new tensor [B, Sq, Hq, Dv].
    padding_is_finite: promises that no Inf or NaN lies in padding (some vendor kernels need it).
    float32_output: an unrounded float32 output, for merge().

    On a GPU the work is queued on the current stream of the tensors' framework. Raises InvalidArgument, Unsupported,
    Unavailable, OutOfMemory or Device, each with one line of text; nothing ever falls back in silence.
    """
    return _run(q, k, v, causal=causal, scale=scale, backend=backend, out=out, return_lse=return_lse,
                q_lengths=q_lengths, kv_lengths=kv_lengths, offsets=(None, None), bounds=(0, 0),
                padding_is_finite=padding_is_finite, float32_output=float32_output)


def attention_packed(q, k, v, *, offsets_q, offsets_kv, max_q=0, max_kv=0, causal=False, scale=None, q_lengths=None,
                     kv_lengths=None, return_lse=False, backend=None, out=None, padding_is_finite=False,
                     float32_output=False):
    """attention() of samples of different lengths, one after another without padding.

    q: [Tq, Hq, D]; k: [Tkv, Hkv, D]; v: [Tkv, Hkv, Dv]; lse: [Tq, Hq].
    offsets_q, offsets_kv: int32 [B + 1], exclusive prefix sums in tokens, on the host (checked) or the device
       (clamped; then max_q and max_kv, upper bounds of the lengths, must be given).
    q_lengths, kv_lengths: int32 [B], where samples are shorter than their room; the gaps are never touched.
    The rest is as in attention().
    """
    return _run(q, k, v, causal=causal, scale=scale, backend=backend, out=out, return_lse=return_lse,
                q_lengths=q_lengths, kv_lengths=kv_lengths, offsets=(offsets_q, offsets_kv), bounds=(max_q, max_kv),
                padding_is_finite=padding_is_finite, float32_output=float32_output)


def merge(out, lse, out2, lse2):
    """(out, lse) becomes the attention over both key sets, of which the pairs are the partial results.

    out, out2: [B, S, H, D] or [T, H, D], float32, float16 or bfloat16; lse, lse2: float32, the same without D.
    """
    _core.merge(_views.view(out), _views.view(lse), _views.view(out2), _views.view(lse2), _views.current_stream(out))
