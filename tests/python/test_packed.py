"""batten.attention_packed on NumPy arrays, against float64."""

import batten
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

CAUSAL = {"none": False, "causal": True, "top_left": "top_left"}


def expected_of(q, k, v, oq, okv, nq, nkv, mask):
    """Sample by sample; tokens of gaps are NaN in out and lse."""
    out = np.full((*q.shape[:2], v.shape[2]), np.nan)
    lse, bound = np.full(q.shape[:2], np.nan), np.zeros_like(out)
    for b in range(len(oq) - 1):
        rows, keys = slice(oq[b], oq[b] + nq[b]), slice(okv[b], okv[b] + nkv[b])
        one = oracle.attention(q[None, rows], k[None, keys], v[None, keys], mask)
        out[rows], lse[rows], bound[rows] = one.out[0], one.lse[0], one.bound[0]
    return oracle.Expected(out, lse, bound)


@st.composite
def packed_problems(draw):
    batch = draw(st.integers(1, 4))
    rooms = [[draw(st.integers(0, 12)) for _ in range(batch)] for _ in "qk"]
    gaps = draw(st.booleans())
    lengths = [[draw(st.integers(0, n)) if gaps else n for n in room] for room in rooms]
    kv_heads = draw(st.integers(1, 2))
    return (
        draw(st.integers(0, 2**32 - 1)), rooms, lengths, gaps, kv_heads,
        kv_heads * draw(st.integers(1, 3)), draw(st.sampled_from([8, 16])),
        draw(st.sampled_from(sorted(CAUSAL))), draw(st.sampled_from(["float32", "float16"])),
    )  # fmt: skip


@settings(max_examples=80, deadline=None, derandomize=True)
@given(packed_problems())
def test_matches_float64(problem):
    seed, rooms, lengths, gaps, kv_heads, heads, dim, mask, dtype = problem
    oq, okv = (np.concatenate([[0], np.cumsum(room)]) for room in rooms)
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((oq[-1], heads, dim)).astype(dtype)
    k, v = (rng.standard_normal((okv[-1], kv_heads, dim)).astype(dtype) for _ in "kv")
    expected = expected_of(q, k, v, oq, okv, *lengths, mask)
    out = np.full(q.shape, np.nan, dtype)
    result, lse = batten.attention_packed(
        q, k, v, offsets_q=oq, offsets_kv=okv, causal=CAUSAL[mask], return_lse=True, out=out,
        backend="cpu", **(dict(q_lengths=lengths[0], kv_lengths=lengths[1]) if gaps else {}),
    )  # fmt: skip
    assert result is out
    served = ~np.isnan(expected.lse).any(axis=1)
    # What lies in a gap is not touched.
    assert np.isnan(out[~served]).all()
    part = oracle.Expected(expected.out[served], expected.lse[served], expected.bound[served])
    oracle.assert_close(out[served], part, dtype, lse[served])


def test_equals_bshd_of_equal_lengths():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, 6, 3, 8)).astype("float32") for _ in "qkv")
    dense = batten.attention(q, k, v, causal=True)
    packed = batten.attention_packed(
        *(t.reshape(12, 3, 8) for t in (q, k, v)), offsets_q=[0, 6, 12], offsets_kv=[0, 6, 12],
        causal=True,
    )  # fmt: skip
    np.testing.assert_allclose(packed.reshape(dense.shape), dense, rtol=1e-6, atol=1e-6)


T = np.zeros((4, 1, 8), np.float32)


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(offsets_q=[0, 5]), "offsets_q"),
        (dict(offsets_q=[0, 3, 2], offsets_kv=[0, 2, 4]), "offsets must not decrease"),
        (dict(offsets_q=[0, 2, 4]), "offsets_kv: has 2 entries"),
        (dict(offsets_q=[0, 4.0]), "offsets_q: expected integers"),
        (dict(offsets_kv=None), "offsets_kv must both be given"),
        (dict(q=T[None]), "packed"),
    ],
)
def test_wrong_input_is_one_line(change, text):
    arguments = {"q": T, "k": T, "v": T, "offsets_q": [0, 4], "offsets_kv": [0, 4], **change}
    with pytest.raises(batten.InvalidArgument) as caught:
        batten.attention_packed(**arguments)
    assert text in str(caught.value) and "\n" not in str(caught.value)
