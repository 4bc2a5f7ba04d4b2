"""The class that serves a FastVideo layer, without FastVideo: masks, strides, dtypes, refusals,
compile, receipts."""

import copy
import gc
import logging
import pickle
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
batten = pytest.importorskip("batten")

import batten.fastvideo  # noqa: E402, F811
from batten.fastvideo import backend as module  # noqa: E402
from batten.fastvideo.backend import BattenImpl  # noqa: E402

pytestmark = pytest.mark.torch

INF = float("inf")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (
        "BATTEN_FASTVIDEO",
        "FASTVIDEO_ATTENTION_BACKEND",
        "FASTVIDEO_FLASHINFER_PREFILL_BACKEND",
        "BATTEN_BACKEND",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def impl(heads=4, dim=64, backend="cpu", **more):
    return BattenImpl(num_heads=heads, head_size=dim, softmax_scale=None, backend=backend, **more)


def qkv(batch=2, sq=9, skv=9, heads=4, kv_heads=4, dim=64, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(batch, rows, h, dim, generator=generator).to(dtype)
        for rows, h in ((sq, heads), (skv, kv_heads), (skv, kv_heads))
    ]


def reference(q, k, v, keep=None, causal=False, scale=None):
    """float64 attention; keep: bool [B, Skv]; rows without a key give 0. Causal is bottom-right."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[3] ** -0.5 if scale is None else scale)
    if keep is not None:
        scores = scores.masked_fill(~keep[:, None, None], -INF)
    if causal:
        rows, keys = scores.shape[2:]
        seen = torch.arange(keys)[None] <= torch.arange(rows)[:, None] + keys - rows
        scores = scores.masked_fill(~seen, -INF)
    return (scores.softmax(-1).nan_to_num(0.0) @ v).transpose(1, 2)


def assert_close(out, expected, tolerance=1e-5):
    assert out.shape == expected.shape
    assert (out.double() - expected).norm() <= tolerance * expected.norm() + 1e-12


def metadata(mask, **more):
    return SimpleNamespace(current_timestep=0, attn_mask=mask, **more)


@pytest.mark.parametrize(
    "sq, skv, kv_heads, dim", [(9, 9, 4, 64), (9, 257, 4, 128), (33, 512, 2, 80), (5, 7, 1, 32)]
)
def test_dense(sq, skv, kv_heads, dim):
    q, k, v = qkv(sq=sq, skv=skv, kv_heads=kv_heads, dim=dim)
    assert_close(impl(dim=dim, num_kv_heads=kv_heads).forward(q, k, v, None), reference(q, k, v))


@pytest.mark.parametrize("scale", [0.3, 2.0])
def test_scale(scale):
    q, k, v = qkv()
    layer = BattenImpl(4, 64, scale, backend="cpu")
    assert_close(layer.forward(q, k, v, None), reference(q, k, v, scale=scale))


def test_causal_is_bottom_right():
    q, k, v = qkv(sq=5, skv=9)
    assert_close(impl(causal=True).forward(q, k, v, None), reference(q, k, v, causal=True))


def test_any_strides_without_a_copy(monkeypatch):
    packed = torch.randn(2, 9, 3, 4, 64)
    q, k, v = packed.unbind(2)
    assert not q.is_contiguous()
    seen = []
    original = module._attention
    monkeypatch.setattr(
        module, "_attention", lambda *a: seen.append([x.data_ptr() for x in a[:3]]) or original(*a)
    )
    out = impl().forward(q, k, v, None)
    assert seen == [[q.data_ptr(), k.data_ptr(), v.data_ptr()]]
    assert_close(out, reference(q, k, v))


def test_a_cache_slice_of_shared_keys():
    q, k, v = qkv(batch=1, sq=3, skv=20)
    cache = torch.randn(1, 64, 4, 64)
    cache[:, :20] = k
    assert_close(impl().forward(q, cache[:, :20], v, None), reference(q, k, v))


LENGTHS = [9, 4, 0, 1]
FORMS = {
    "2d bool": lambda keep: keep,
    "2d int64": lambda keep: keep.long(),
    "3d bool": lambda keep: keep[:, None],
    "4d bool": lambda keep: keep[:, None, None],
    "4d additive": lambda keep: torch.zeros(keep.shape).masked_fill(~keep, -INF)[:, None, None],
    "2d additive finfo.min": lambda keep: torch.zeros(keep.shape).masked_fill(
        ~keep, torch.finfo(torch.float32).min
    ),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("front", [0, 6])
def test_padding_masks(form, front):
    """A mask of 9 keys on 9 keys, and behind 6 keys that it does not speak of."""
    q, k, v = qkv(batch=4, sq=5, skv=9 + front)
    lengths = LENGTHS
    if "finfo.min" in form and not front:  # torch takes a row of one bias for no mask
        lengths = [max(1, length) for length in LENGTHS]
    keep = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    full = torch.cat([torch.ones(4, front, dtype=torch.bool), keep], 1)
    out = impl().forward(q, k, v, metadata(FORMS[form](keep)))
    assert_close(out, reference(q, k, v, full))


def test_query_rows_of_padded_keys_stay():
    q, k, v = qkv(batch=2, sq=9, skv=9)
    keep = torch.arange(9)[None] < torch.tensor([4, 9])[:, None]
    out = impl().forward(q, k, v, metadata(keep))
    assert_close(out, reference(q, k, v, keep))
    assert out[0, 5:].abs().sum() > 0


def test_a_causal_layer_with_padding_counts_positions_from_the_first_key():
    q, k, v = qkv(batch=2, sq=9, skv=9)
    keep = torch.arange(9)[None] < torch.tensor([4, 9])[:, None]
    assert_close(
        impl(causal=True).forward(q, k, v, metadata(keep)), reference(q, k, v, keep, causal=True)
    )


def test_a_mask_that_keeps_all_is_no_mask(monkeypatch):
    seen = []
    original = module._attention
    monkeypatch.setattr(module, "_attention", lambda *a: seen.append(a[5]) or original(*a))
    q, k, v = qkv()
    impl().forward(q, k, v, metadata(torch.ones(2, 9, dtype=torch.int64)))
    impl().forward(q, k, v, metadata(None))
    impl().forward(q, k, v, SimpleNamespace(current_timestep=1))  # no mask attribute at all
    assert seen == [None, None, None]


def test_lengths_of_a_mask_are_on_the_host_and_promise_finite_padding(monkeypatch):
    """Backends differ in both: some take lengths on the host only, some ask for the promise."""
    seen = []
    original = module._attention
    monkeypatch.setattr(module, "_attention", lambda *a: seen.append((a[5], a[7])) or original(*a))
    q, k, v = qkv()
    impl().forward(q, k, v, metadata(torch.arange(9)[None].expand(2, 9) < 4))
    impl().forward(q, k, v, None)
    (lengths, promised), dense = seen
    assert (lengths.tolist(), lengths.dtype, lengths.device.type) == ([4, 4], torch.int32, "cpu")
    assert promised is True and dense == (None, False)


def test_is_causal_of_the_metadata_stands_for_its_mask():
    q, k, v = qkv()
    mask = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
    out = impl().forward(q, k, v, metadata(mask, is_causal=True))
    assert_close(out, reference(q, k, v, causal=True))


@pytest.mark.parametrize(
    "mask, reason",
    [
        (
            torch.tensor([[1, 0, 1], [1, 1, 1]], dtype=torch.bool),
            "sample 0: a key is kept after a dropped one",
        ),
        (torch.ones(2, 1, 3, 3, dtype=torch.bool).tril(), "one row of keys for each query"),
        (
            torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]),
            "sample 0: a float mask that adds different biases",
        ),
    ],
)
def test_masks_that_are_no_lengths_are_refused(mask, reason):
    q, k, v = qkv(sq=3, skv=3)
    with pytest.raises(batten.Unsupported, match=reason):
        impl().forward(q, k, v, metadata(mask))


def test_sparse_attention_is_refused():
    q, k, v = qkv()
    layer = impl(prefix="blocks.0.attn1.impl")
    with pytest.raises(
        batten.Unsupported, match=r"blocks.0.attn1.impl: gate_compress belongs to sparse attention"
    ):
        layer.forward(q, k, v, torch.ones(2, 9, 4, 64), metadata(None))
    with pytest.raises(batten.Unsupported, match="gate_compress"):
        layer.forward(q, k, v, None, metadata(None))
    sparse = metadata(None, VSA_sparsity=0.9)
    with pytest.raises(batten.Unsupported, match="asks for sparsity 0.9"):
        layer.forward(q, k, v, sparse)
    cross_attention = (
        impl()
    )  # LocalAttention gives no prefix; in a sparse model it is dense all the same
    assert_close(cross_attention.forward(q, k, v, sparse), reference(q, k, v))


@pytest.mark.parametrize(
    "extra, reason",
    [
        ({"dropout_p": 0.1}, "dropout_p=0.1, batten has no dropout"),
        ({"dropout_rate": 0.5}, "dropout_rate=0.5"),
        ({"nvfp4_fa4": True}, "nvfp4_fa4 asks for FP4"),
    ],
)
def test_extras_that_would_be_ignored_are_refused(extra, reason):
    with pytest.raises(batten.Unsupported, match=reason):
        impl(**extra)


def test_extras_that_change_nothing_are_taken():
    impl(dropout_rate=0, dropout_p=0.0, nvfp4_fa4=False, fa4_packed_varlen=True, another_hint=3)


def test_what_cannot_be_served_fails_at_construction(monkeypatch):
    with pytest.raises(batten.Error, match=r"FastVideo layer blocks.1, backend single \(code\): "):
        impl(backend="single", prefix="blocks.1")
    monkeypatch.setenv("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "cudnn")
    with pytest.raises(
        batten.Error, match=r"backend cudnn \(FASTVIDEO_FLASHINFER_PREFILL_BACKEND=cudnn\): "
    ):
        impl(backend=None)
    monkeypatch.setenv("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "cuddn")
    with pytest.raises(batten.InvalidArgument, match="expected one of single, cudnn, native, auto"):
        impl(backend=None)
    monkeypatch.delenv("FASTVIDEO_FLASHINFER_PREFILL_BACKEND")
    with pytest.raises(batten.Error, match=r"backend single \(FLASHINFER without"):
        impl(backend=None)
    with pytest.raises(batten.Error):
        impl(heads=4, num_kv_heads=3)


def test_a_gradient_is_refused():
    q, k, v = qkv()
    layer = impl()
    with pytest.raises(batten.Unsupported, match="inference"):
        layer.forward(q.requires_grad_(), k, v, None)
    with torch.no_grad():
        layer.forward(q, k, v, None)


def test_half_precision_comes_back_as_it_came():
    for dtype, tolerance in ((torch.bfloat16, 8e-3), (torch.float16, 1e-3)):
        q, k, v = qkv(dtype=dtype)
        out = impl().forward(q, k, v, None)
        assert out.dtype is dtype
        assert_close(out, reference(q, k, v), tolerance)


@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.int64] * 3,
        [torch.float64] * 3,
        [torch.complex64] * 3,
        [torch.bool] * 3,
        [torch.float32, torch.int64, torch.float32],
        [torch.bfloat16, torch.bfloat16, torch.float64],
    ],
)
def test_other_dtypes_are_refused(dtypes):
    tensors = [x.to(dtype) for x, dtype in zip(qkv(), dtypes, strict=True)]
    with pytest.raises(batten.InvalidArgument, match="expected float16, bfloat16 or float32"):
        impl().forward(*tensors, None)


@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.float32, torch.float32, torch.bfloat16],
        [torch.bfloat16, torch.float32, torch.float32],
        [torch.float16, torch.float16, torch.bfloat16],
    ],
)
def test_mixed_dtypes_are_cast_and_that_is_said_once(caplog, monkeypatch, dtypes):
    monkeypatch.setattr(module, "_said", set())
    tensors = [x.to(dtype) for x, dtype in zip(qkv(), dtypes, strict=True)]
    layer = impl()
    for _ in range(2):
        out = layer.forward(*tensors, None)
    assert out.dtype is dtypes[0]
    assert_close(out, reference(*tensors), 8e-3 if dtypes[0] is torch.bfloat16 else 1e-3)
    (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert "are computed in torch.float32 and the output is cast back" in said


def test_a_receipt_is_of_a_call_that_ran():
    """Fake and meta tensors only have shapes; and a receipt of something else must not be taken."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = qkv()
    batten.attention(q, k, v, backend="reference")
    mode = FakeTensorMode()
    layer = impl()
    layer.forward(*(mode.from_tensor(x) for x in (q, k, v)), None)
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer.forward(q, k, v, None)
    layer.forward(*(x.to("meta") for x in (q, k, v)), None)
    assert layer.receipt is None
    layer.forward(q, k, v, None)
    assert layer.receipt["backend"] == "cpu"


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))]
)
def test_a_copy_is_a_layer_of_its_own_that_has_not_run(copied):
    q, k, v = qkv()
    layer = impl(prefix="blocks.0")
    out = layer.forward(q, k, v, None)
    gc.collect()
    before = len(batten.fastvideo.receipts())
    twin = copied(layer)
    entries = batten.fastvideo.receipts()
    assert len(entries) == before + 1 and twin.receipt is None and layer.receipt is not None
    assert (entries[-1]["prefix"], entries[-1]["receipt"]) == ("blocks.0", None)
    assert torch.equal(twin.forward(q, k, v, None), out)
    assert batten.fastvideo.receipts()[-1]["receipt"]["backend"] == "cpu"
    del twin, entries
    gc.collect()
    assert len(batten.fastvideo.receipts()) == before


@pytest.mark.parametrize("mask", [[[1] * 9] * 2, torch.ones(2, 9).numpy()], ids=["list", "numpy"])
def test_a_mask_that_is_no_tensor_is_refused(mask):
    q, k, v = qkv()
    with pytest.raises(batten.InvalidArgument, match="attn_mask of type (list|ndarray), expected"):
        impl().forward(q, k, v, metadata(mask))


def test_one_receipt_line_and_a_receipt_of_each_layer(caplog, monkeypatch):
    monkeypatch.setattr(module, "_said", set())
    gc.collect()
    before = len(batten.fastvideo.receipts())
    layers = [impl(prefix=f"blocks.{i}.attn1.impl") for i in range(3)]
    q, k, v = qkv()
    with caplog.at_level(logging.INFO, logger="batten.fastvideo"):
        for layer in layers[:2]:
            layer.forward(q, k, v, None)
    lines = [record.message for record in caplog.records if record.levelno == logging.INFO]
    assert len(lines) == 1
    assert (
        "backend=cpu" in lines[0]
        and "form=" in lines[0]
        and "kernel=" in lines[0]
        and "on cpu" in lines[0]
    )
    ours = batten.fastvideo.receipts()[before:]
    assert [entry["prefix"] for entry in ours] == [f"blocks.{i}.attn1.impl" for i in range(3)]
    assert [entry["receipt"] and entry["receipt"]["backend"] for entry in ours] == [
        "cpu",
        "cpu",
        None,
    ]
    del layers, layer
    gc.collect()
    assert len(batten.fastvideo.receipts()) == before


@pytest.mark.parametrize("masked", [False, True])
def test_compiles_into_one_graph(masked):
    layer = impl()
    q, k, v = qkv(dtype=torch.bfloat16)
    keep = torch.arange(9)[None] < torch.tensor([4, 9])[:, None]
    data = metadata(keep) if masked else None

    def step(q, k, v):
        return layer.forward(q * 2, k, v, data) + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(q, k, v), step(q, k, v))


def test_the_masks_operator():
    mask = torch.arange(9)[None] < torch.tensor([4, 9])[:, None]
    torch.library.opcheck(torch.ops.batten_fastvideo.key_lengths.default, (mask, 2, 12))
    assert torch.ops.batten_fastvideo.key_lengths(mask, 2, 12).tolist() == [7, 12]
    assert torch.ops.batten_fastvideo.key_lengths(mask[1:], 3, 9).tolist() == [9, 9, 9]
