"""Attention in float64 NumPy, and what an output may differ from it."""

import dataclasses

import numpy as np

# Relative error over the whole output; four times that for each row and head.
TOLERANCE = {"float32": 2e-6, "float16": 8e-4, "bfloat16": 4e-3}


@dataclasses.dataclass
class Expected:
    out: np.ndarray  # [B, Sq, Hq, Dv]
    lse: np.ndarray  # [B, Sq, Hq]
    bound: np.ndarray  # [B, Sq, Hq, Dv]: sum of p * |v|


def visible(mask, sq, skv, q_length, kv_length):
    """Which keys each query sees: [Sq, Skv]."""
    i, j = np.arange(sq)[:, None], np.arange(skv)[None, :]
    seen = (i < q_length) & (j < kv_length)
    if mask == "causal":
        seen &= j <= i + (kv_length - q_length)
    elif mask == "top_left":
        seen &= j <= i
    return seen


def attention(q, k, v, mask="none", scale=None, q_lengths=None, kv_lengths=None):
    """The expected result of BSHD inputs, of which padding is never read."""
    q, k, v = (np.asarray(t).astype(np.float64) for t in (q, k, v))
    batch, sq, heads, dim = q.shape
    skv, kv_heads = k.shape[1:3]
    scale = 1 / np.sqrt(dim) if scale is None else scale
    out = np.zeros((batch, sq, heads, v.shape[-1]))
    bound = np.zeros_like(out)
    lse = np.full((batch, sq, heads), -np.inf)
    for b in range(batch):
        nq = sq if q_lengths is None else q_lengths[b]
        nkv = skv if kv_lengths is None else kv_lengths[b]
        seen = visible(mask, sq, skv, nq, nkv)[:nq, :nkv]
        for h in range(heads):
            kv_head = h // (heads // kv_heads)
            keys, values = k[b, :nkv, kv_head], v[b, :nkv, kv_head]
            logits = np.where(seen, scale * q[b, :nq, h] @ keys.T, -np.inf)
            with np.errstate(divide="ignore"):
                peak = np.max(logits, axis=1, initial=-np.inf, keepdims=True)
                weights = np.exp(logits - np.where(np.isfinite(peak), peak, 0))
                total = weights.sum(axis=1, keepdims=True)
                lse[b, :nq, h] = (np.log(total) + np.where(np.isfinite(peak), peak, 0))[:, 0]
            weights = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
            out[b, :nq, h] = weights @ values
            bound[b, :nq, h] = weights @ np.abs(values)
    return Expected(out, lse, bound)


def assert_close(out, expected, dtype, lse=None):
    """The two bounds of every output: each row and head, and the whole."""
    out = np.asarray(out).astype(np.float64)
    assert out.shape == expected.out.shape
    error = out - expected.out
    rows = np.linalg.norm(error, axis=-1)
    allowed = 4 * TOLERANCE[dtype] * np.linalg.norm(expected.bound, axis=-1) + 1e-30
    worst = np.argmax(rows - allowed) if rows.size else 0
    assert np.all(rows <= allowed), (
        f"row {np.unravel_index(worst, rows.shape)}: error {rows.flat[worst]:.3g}, "
        f"allowed {allowed.flat[worst]:.3g}"
    )
    # The bound, not the output: single values that cancel say nothing of the kernel.
    assert np.linalg.norm(error) <= 2 * TOLERANCE[dtype] * np.linalg.norm(expected.bound) + 1e-30
    if lse is not None:
        lse = np.asarray(lse)
        assert lse.dtype == np.float32
        assert np.array_equal(np.isinf(lse), np.isinf(expected.lse))
        finite = np.isfinite(expected.lse)
        np.testing.assert_allclose(lse[finite], expected.lse[finite], rtol=1e-5, atol=1e-5)
