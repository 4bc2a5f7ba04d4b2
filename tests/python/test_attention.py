"""batten.attention on NumPy arrays, against float64."""

import ctypes
import functools
import gc
import threading

import batten
import numpy as np
import oracle
import pytest
from batten import _core
from hypothesis import given, settings
from hypothesis import strategies as st

CAUSAL = {"none": False, "causal": True, "top_left": "top_left"}
quick = settings(max_examples=60, deadline=None, derandomize=True)


def tensors(seed, batch, sq, skv, heads, kv_heads, dim, dtype="float32", dim_v=None):
    rng = np.random.default_rng(seed)
    shapes = [
        (batch, sq, heads, dim),
        (batch, skv, kv_heads, dim),
        (batch, skv, kv_heads, dim_v or dim),
    ]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


@st.composite
def problems(draw):
    kv_heads = draw(st.integers(1, 3))
    sizes = {
        "seed": draw(st.integers(0, 2**32 - 1)),
        "batch": draw(st.integers(1, 3)),
        "sq": draw(st.integers(1, 20)),
        "skv": draw(st.integers(1, 40)),
        "heads": kv_heads * draw(st.integers(1, 3)),
        "kv_heads": kv_heads,
        "dim": draw(st.sampled_from([8, 16, 40])),
        "dim_v": draw(st.sampled_from([None, 8, 16])),
        "dtype": draw(st.sampled_from(["float32", "float16"])),
    }
    return sizes, draw(st.sampled_from(sorted(CAUSAL))), draw(st.sampled_from([None, 0.3, -1.0]))


@st.composite
def ragged_problems(draw):
    sizes, mask, scale = draw(problems())
    lengths = [
        [draw(st.integers(0, sizes[name])) for _ in range(sizes["batch"])] for name in ("sq", "skv")
    ]
    return sizes, mask, scale, *lengths


@quick
@given(problems(), st.sampled_from(["cpu", "reference"]))
def test_matches_float64(problem, backend):
    sizes, mask, scale = problem
    q, k, v = tensors(**sizes)
    out, lse = batten.attention(
        q, k, v, causal=CAUSAL[mask], scale=scale, return_lse=True, backend=backend
    )
    assert out.dtype == q.dtype
    oracle.assert_close(out, oracle.attention(q, k, v, mask, scale), sizes["dtype"], lse)
    assert batten.last_receipt()["backend"] == backend


@quick
@given(ragged_problems())
def test_ragged_lengths_and_garbage_in_padding(problem):
    sizes, mask, scale, q_lengths, kv_lengths = problem
    q, k, v = tensors(**sizes)
    expected = oracle.attention(q, k, v, mask, scale, q_lengths, kv_lengths)
    for b, (nq, nkv) in enumerate(zip(q_lengths, kv_lengths)):
        q[b, nq:], k[b, nkv:], v[b, nkv:] = np.nan, np.inf, np.nan
    out, lse = batten.attention(
        q, k, v, causal=CAUSAL[mask], scale=scale, q_lengths=q_lengths, kv_lengths=kv_lengths,
        return_lse=True, backend="cpu",
    )  # fmt: skip
    oracle.assert_close(out, expected, sizes["dtype"], lse)


@quick
@given(problems(), st.permutations(range(3)), st.integers(0, 3))
def test_any_strides_with_a_contiguous_last_dimension(problem, order, extra):
    sizes, mask, scale = problem
    strided = []
    for tensor in tensors(**sizes):
        room = np.zeros([tensor.shape[i] + extra for i in order] + [tensor.shape[3]], tensor.dtype)
        view = room.transpose(*np.argsort(order), 3)
        view = view[tuple(slice(size) for size in tensor.shape)]
        view[...] = tensor
        strided.append(view)
    out = batten.attention(*strided, causal=CAUSAL[mask], scale=scale, backend="cpu")
    oracle.assert_close(out, oracle.attention(*strided, mask, scale), sizes["dtype"])


@pytest.mark.parametrize("dim, dim_v", [(1, 1), (3, 5), (33, 20)])
def test_odd_head_dims(dim, dim_v):
    q, k, v = tensors(9, 2, 5, 7, 4, 2, dim, "float32", dim_v)
    out = batten.attention(q, k, v, causal=True, backend="reference")
    oracle.assert_close(out, oracle.attention(q, k, v, "causal"), "float32")
    with pytest.raises(batten.Unsupported, match="head dim") as caught:
        batten.attention(q, k, v, backend="cpu")
    assert isinstance(caught.value, NotImplementedError) and "\n" not in str(caught.value)


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    q, k, v = tensors(1, 2, 5, 9, 2, 1, 16, ml_dtypes.bfloat16)
    out = batten.attention(q, k, v)
    assert out.dtype == ml_dtypes.bfloat16
    oracle.assert_close(out, oracle.attention(q, k, v), "bfloat16")


class Foreign:
    """A tensor of a framework that batten does not know."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__()

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_any_tensor_with_dlpack():
    q, k, v = tensors(10, 2, 4, 6, 2, 2, 8)
    out = Foreign(np.zeros_like(q))
    lengths = Foreign(np.array([6, 2], np.int32))
    assert batten.attention(*map(Foreign, (q, k, v)), out=out, kv_lengths=lengths) is out
    oracle.assert_close(out.array, oracle.attention(q, k, v, kv_lengths=[6, 2]), "float32")
    with pytest.raises(batten.Unsupported, match="pass out="):
        batten.attention(*map(Foreign, (q, k, v)))


class ManagedTensor(ctypes.Structure):
    """DLPack's DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.CFUNCTYPE(None, ctypes.c_void_p)),
    ]


class Temporary:
    """A tensor whose export has memory of its own, which is poisoned as soon as it is given up."""

    def __init__(self, array):
        self.array = array
        self.exports = []
        self.deleted = 0

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **options):
        made = self.array.copy()
        shape = (ctypes.c_int64 * made.ndim)(*made.shape)

        def delete(_):
            made.view(np.uint8)[...] = 0x7F
            self.deleted += 1

        code = 2 if made.dtype.kind == "f" else 0
        tensor = ManagedTensor(
            made.ctypes.data, 1, 0, made.ndim, code, 8 * made.itemsize, 1,
            ctypes.addressof(shape), None, 0, None, ManagedTensor._fields_[-1][1](delete),
        )  # fmt: skip
        self.exports.append((made, shape, tensor))
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(tensor), b"dltensor", None)


@pytest.mark.parametrize(
    "name", ["q", "k", "v", "out", "q_lengths", "kv_lengths", "offsets_q", "offsets_kv"]
)
def test_an_export_lives_as_long_as_the_call(name, monkeypatch):
    q, k, v = (t[0] for t in tensors(12, 1, 4, 6, 2, 2, 8))
    int32 = functools.partial(np.array, dtype=np.int32)
    arguments = dict(
        q=q, k=k, v=v, out=np.zeros_like(q), offsets_q=int32([0, 4]), offsets_kv=int32([0, 6]),
        q_lengths=int32([3]), kv_lengths=int32([5]),
    )  # fmt: skip
    temporary = Temporary(arguments[name])
    deleted_in_the_call = []
    native = _core.forward

    def forward(*given):
        native(*given)
        deleted_in_the_call.append(temporary.deleted)
        if name == "out":  # of which nobody else has the memory
            arguments["out"][...] = temporary.exports[0][0]

    monkeypatch.setattr(_core, "forward", forward)
    batten.attention_packed(**{**arguments, name: temporary})
    gc.collect()
    assert deleted_in_the_call == [0] and temporary.deleted == len(temporary.exports) == 1
    expected = oracle.attention(q[None], k[None], v[None], q_lengths=[3], kv_lengths=[5])
    np.testing.assert_allclose(arguments["out"][:3], expected.out[0, :3], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("which", range(4))
def test_an_export_lives_as_long_as_a_merge(which, monkeypatch):
    q, k, v = tensors(13, 2, 4, 30, 2, 1, 8)
    parts = [
        t
        for part in (slice(9), slice(9, None))
        for t in batten.attention(q, k[:, part], v[:, part], return_lse=True)
    ]
    temporary = Temporary(parts[which])
    deleted_in_the_call = []
    native = _core.merge

    def merge(*given):
        native(*given)
        deleted_in_the_call.append(temporary.deleted)
        if which == 0:
            parts[0][...] = temporary.exports[0][0]

    monkeypatch.setattr(_core, "merge", merge)
    batten.merge(*(temporary if i == which else part for i, part in enumerate(parts)))
    gc.collect()
    assert deleted_in_the_call == [0] and temporary.deleted == len(temporary.exports) == 1
    oracle.assert_close(parts[0], oracle.attention(q, k, v), "float32")


class Unwilling(Foreign):
    def __dlpack__(self, **options):
        raise BufferError("first line\nsecond line")


def test_an_export_that_fails_is_one_line():
    for name in ("q", "kv_lengths", "out"):
        with pytest.raises(batten.InvalidArgument, match=f"{name}: Unwilling") as caught:
            batten.attention(**{"q": Q, "k": K, "v": V, name: Unwilling(Q)})
        assert "\n" not in str(caught.value)


def test_jax_inputs_give_a_numpy_output():
    jnp = pytest.importorskip("jax.numpy")
    for dtype in ("float32", "bfloat16"):
        q, k, v = (jnp.asarray(t).astype(dtype) for t in tensors(11, 2, 4, 6, 2, 2, 8))
        out, lse = batten.attention(q, k, v, return_lse=True)
        assert isinstance(out, np.ndarray) and out.dtype.name == dtype
        oracle.assert_close(out, oracle.attention(q, k, v), dtype, lse)
    with pytest.raises(batten.InvalidArgument, match="read-only"):
        batten.attention(q, k, v, out=q)


def test_keys_of_stride_zero_are_shared():
    q, k, v = tensors(2, 3, 4, 6, 2, 2, 8)
    k, v = (np.broadcast_to(t[:1], t.shape) for t in (k, v))
    oracle.assert_close(batten.attention(q, k, v), oracle.attention(q, k, v), "float32")


def test_read_only_inputs_are_taken():
    q, k, v = tensors(3, 1, 4, 6, 2, 2, 8)
    for tensor in (q, k, v):
        tensor.flags.writeable = False
    oracle.assert_close(batten.attention(q, k, v), oracle.attention(q, k, v), "float32")


def test_out_is_written_and_returned():
    q, k, v = tensors(4, 2, 4, 6, 2, 2, 8)
    out = np.full_like(q, np.nan)
    assert batten.attention(q, k, v, out=out) is out
    oracle.assert_close(out, oracle.attention(q, k, v), "float32")


def test_float32_output_is_not_rounded():
    q, k, v = tensors(5, 2, 4, 6, 2, 2, 8, "float16")
    out = batten.attention(q, k, v, float32_output=True)
    assert out.dtype == np.float32
    oracle.assert_close(out, oracle.attention(q, k, v), "float16")
    assert np.any(out.astype(np.float16) != out)


@pytest.mark.parametrize("kind", [list, tuple, "int8", "int16", "int32", "int64", "uint32"])
def test_lengths_of_any_integers(kind):
    q, k, v = tensors(6, 3, 4, 6, 2, 2, 8)
    lengths = kind([6, 0, 2]) if callable(kind) else np.array([6, 0, 2], kind)
    out = batten.attention(q, k, v, kv_lengths=lengths)
    oracle.assert_close(out, oracle.attention(q, k, v, kv_lengths=[6, 0, 2]), "float32")


def test_lengths_with_a_stride():
    q, k, v = tensors(7, 2, 4, 6, 2, 2, 8)
    lengths = np.array([6, 9, 3, 9], np.int32)[::2]
    out = batten.attention(q, k, v, kv_lengths=lengths)
    oracle.assert_close(out, oracle.attention(q, k, v, kv_lengths=[6, 3]), "float32")


@quick
@given(st.integers(0, 30), st.integers(0, 2**32 - 1), st.sampled_from(["float32", "float16"]))
def test_merge_of_two_parts_is_the_whole(cut, seed, dtype):
    q, k, v = tensors(seed, 2, 4, 30, 2, 1, 8, dtype)
    parts = [
        batten.attention(q, k[:, part], v[:, part], return_lse=True, float32_output=True)
        for part in (slice(cut), slice(cut, None))
    ]
    batten.merge(*parts[0], *parts[1])
    oracle.assert_close(parts[0][0], oracle.attention(q, k, v), dtype, parts[0][1])


Q, K, V = tensors(8, 2, 4, 6, 2, 1, 8)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


WRONG = {
    "heads": (dict(k=np.concatenate([K] * 3, 2), v=np.concatenate([V] * 3, 2)), "heads"),
    "batch": (dict(k=K[:1]), "samples"),
    "head dim": (dict(k=K[..., :4].copy()), "k: head dim 4"),
    "no head dim": (dict(q=Q[..., :0], k=K[..., :0]), "head_dim is 0"),
    "no keys' heads": (dict(k=K[:, :, :0], v=V[:, :, :0]), "num_kv_heads is 0"),
    "rank": (dict(q=Q[0], k=K[0], v=V[0]), "dimensions"),
    "dtype": (dict(q=Q.astype(np.float64)), "float64"),
    "mixed dtypes": (dict(k=K.astype(np.float16)), "k: dtype"),
    "integers": (dict(q=Q.astype(np.int32), k=K.astype(np.int32), v=V.astype(np.int32)), "int32"),
    "long integers": (dict(q=Q.astype(np.int64)), "int64"),
    "masked array": (dict(q=np.ma.masked_greater(Q, 0)), "masked array"),
    "masked lengths": (dict(kv_lengths=np.ma.array([6, 2], mask=[0, 1])), "masked array"),
    "masked out": (dict(out=np.ma.zeros(Q.shape, np.float32)), "masked array"),
    "lengths' bools": (dict(kv_lengths=[True, 2]), "kv_lengths: expected integers"),
    "lengths in a set": (dict(kv_lengths={1, 2}), "kv_lengths: set"),
    "lengths in a string": (dict(kv_lengths="ab"), "kv_lengths: str"),
    "no backend": (dict(backend=""), "backend"),
    "byte order": (dict(q=Q.astype(">f4")), "expected float32"),
    "last stride": (dict(q=np.asfortranarray(Q)), "last dimension"),
    "causal": (dict(causal="left"), "causal='left'"),
    "backend": (dict(backend="fast"), "unknown backend 'fast'"),
    "backend's type": (dict(backend=3), "backend"),
    "scale": (dict(scale=float("nan")), "scale"),
    "no tensor": (dict(q=[1.0]), "q: list"),
    "length": (dict(kv_lengths=[7, 1]), "kv_lengths[0] is 7"),
    "negative length": (dict(q_lengths=[1, -1]), "q_lengths[1] is -1"),
    "lengths' dtype": (dict(kv_lengths=np.ones(2)), "kv_lengths: array of float64"),
    "lengths' numbers": (dict(kv_lengths=[1.5, 2]), "kv_lengths: expected integers"),
    "lengths' range": (dict(kv_lengths=np.array([2**32, 1])), "does not fit"),
    "lengths' count": (dict(kv_lengths=[1]), "kv_lengths"),
    "out's shape": (dict(out=np.zeros((2, 4, 2, 7), np.float32)), "out"),
    "out's dtype": (dict(out=np.zeros(Q.shape, np.float16)), "out: dtype"),
    "read-only out": (dict(out=read_only(Q)), "out: a read-only array"),
    "out over an input": (dict(out=Q), "overlap"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line(name):
    change, text = WRONG[name]
    before = Q.copy(), K.copy(), V.copy()
    with pytest.raises(batten.InvalidArgument) as caught:
        batten.attention(**{"q": Q, "k": K, "v": V, **change})
    message = str(caught.value)
    assert text in message and "\n" not in message
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, batten.Error)
    assert all(np.array_equal(a, b) for a, b in zip(before, (Q, K, V)))


@pytest.mark.parametrize("argument", ["scale", "max_q"])
def test_wrong_type_is_a_type_error(argument):
    with pytest.raises(TypeError, match="str") as caught:
        batten.attention_packed(
            Q[0], K[0], V[0], offsets_q=[0, 4], offsets_kv=[0, 6], **{argument: "x"}
        )
    assert "\n" not in str(caught.value)


def test_backend_that_cannot_run_here_never_falls_back():
    with pytest.raises(batten.Unavailable, match="single") as caught:
        batten.attention(Q, K, V, backend="single")
    assert "\n" not in str(caught.value) and isinstance(caught.value, RuntimeError)


def test_environment_chooses_the_backend(monkeypatch):
    batten.attention(Q, K, V)
    assert batten.last_receipt()["backend"] == "cpu"
    monkeypatch.setenv("BATTEN_BACKEND", "reference")
    batten.attention(Q, K, V)
    assert batten.last_receipt()["backend"] == "reference"
    batten.attention(Q, K, V, backend="cpu")
    assert batten.last_receipt()["backend"] == "cpu"
    monkeypatch.setenv("BATTEN_BACKEND", "nonsense")
    with pytest.raises(batten.InvalidArgument, match="nonsense"):
        batten.attention(Q, K, V)
    with pytest.raises(batten.InvalidArgument, match="nonsense"):
        batten.check(device="cpu", dtype="float32", num_heads=2, head_dim=8)
    monkeypatch.delenv("BATTEN_BACKEND")
    batten.attention(Q, K, V)
    assert batten.last_receipt()["backend"] == "cpu"


def test_receipt_is_of_the_thread():
    batten.attention(Q, K, V, backend="reference")
    seen = []

    def work():
        seen.append(batten.last_receipt())
        for _ in range(50):
            batten.attention(Q, K, V, backend="cpu", kv_lengths=[3, 2])
            seen.append(batten.last_receipt())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.count(None) == 4 and len(seen) == 204
    assert {(r["backend"], r["form"]) for r in seen if r} == {("cpu", "lengths")}
    receipt = batten.last_receipt()
    assert receipt["backend"] == "reference"
    assert set(receipt) == {
        "backend", "form", "kernel", "tile", "splits", "plan_reused", "workspace_size", "library",
        "reason",
    }  # fmt: skip


def test_threads_share_a_layer():
    expected = batten.attention(Q, K, V)
    wrong = []

    def work():
        for _ in range(100):
            if not np.array_equal(batten.attention(Q, K, V), expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_failed_call_keeps_the_receipt():
    batten.attention(Q, K, V, backend="reference")
    with pytest.raises(batten.InvalidArgument):
        batten.attention(Q, K[:1], V, backend="cpu")
    assert batten.last_receipt()["backend"] == "reference"
