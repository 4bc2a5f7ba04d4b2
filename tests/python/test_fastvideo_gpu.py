"""Real FastVideo layers on a GPU: receipts prove that each was served by the backend asked for.

PYTHONPATH=python:<folder of FastVideo> python -m pytest tests/python/test_fastvideo_gpu.py -v
"""

import pytest

torch = pytest.importorskip("torch")
batten = pytest.importorskip("batten")

import batten.fastvideo  # noqa: E402, F811

pytest.importorskip(
    "fastvideo.attention.layer", reason="FastVideo is not installed", exc_type=ImportError
)
if not torch.cuda.is_available():
    pytest.skip("no CUDA device", allow_module_level=True)

from batten.fastvideo.backend import BattenImpl  # noqa: E402
from fastvideo.attention.backends.sdpa import SDPAImpl, SDPAMetadata  # noqa: E402
from fastvideo.attention.layer import DistributedAttention, LocalAttention  # noqa: E402
from fastvideo.forward_context import set_forward_context  # noqa: E402
from fastvideo.platforms import AttentionBackendEnum as Names  # noqa: E402
from fastvideo_standin import make_environment, one_rank, run  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.cuda]

DEVICE = "cuda"
CROSS_ATTENTION = (Names.FLASH_ATTN, Names.TORCH_SDPA)


def available(backend):
    states = {entry["name"]: entry["devices"] for entry in batten.info()["backends"]}
    return any(
        state["available"] and state["device"].startswith(DEVICE)
        for state in states.get(backend, ())
    )


BACKENDS = [name for name in ("single", "cudnn", "native") if available(name)]


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """batten installed, no variables, one rank, bf16 layers."""
    one_rank(monkeypatch)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(0)
    batten.fastvideo.install()
    yield
    batten.fastvideo.uninstall()
    torch.set_default_dtype(before)


def ask(monkeypatch, backend):
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    monkeypatch.setenv("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", backend)


def randn(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def assert_close(out, expected, tolerance=1e-2):
    assert out.shape == expected.shape and out.dtype == expected.dtype
    assert (out.float() - expected.float()).norm() <= tolerance * expected.float().norm()


def sdpa_of(layer, kv_heads=None):
    return SDPAImpl(
        layer.num_heads, layer.head_size, False, layer.softmax_scale, num_kv_heads=kv_heads
    )


def test_there_is_a_backend_to_test():
    assert BACKENDS, batten.info()["backends"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "batch, sq, skv, kv_heads", [(1, 1560, 512, 12), (2, 1024, 257, 12), (4, 256, 4096, 4)]
)
def test_local_attention(monkeypatch, backend, batch, sq, skv, kv_heads):
    """Wan's cross-attention to text and to CLIP's 257 tokens, and the published benchmark's GQA
    shape."""
    ask(monkeypatch, backend)
    layer = LocalAttention(
        12, 128, num_kv_heads=kv_heads, dropout_rate=0, supported_attention_backends=CROSS_ATTENTION
    )
    q, k, v = (
        randn(batch, sq, 12, 128),
        randn(batch, skv, kv_heads, 128),
        randn(batch, skv, kv_heads, 128),
    )
    with torch.no_grad(), set_forward_context(0, None):
        out = layer(q, k, v)
    assert layer.attn_impl.receipt["backend"] == backend
    assert_close(out, sdpa_of(layer, kv_heads).forward(q, k, v, None))


@pytest.mark.parametrize("backend", BACKENDS)
def test_distributed_attention_with_padding_of_sequence_parallelism(monkeypatch, backend):
    """Rows past original_seq_len are cut off inside the layer, which makes strided views of B >
    1."""
    ask(monkeypatch, backend)
    layer = DistributedAttention(
        12, 128, supported_attention_backends=CROSS_ATTENTION, prefix="blocks.0.attn1"
    )
    q, k, v = (randn(2, 1000, 12, 128) for _ in range(3))
    with torch.no_grad(), set_forward_context(0, None):
        out, _ = layer(q, k, v, 990)
    assert layer.attn_impl.receipt["backend"] == backend
    assert_close(out[:, :990], sdpa_of(layer).forward(q[:, :990], k[:, :990], v[:, :990], None))


@pytest.mark.parametrize(
    "variable, value",
    [
        *(("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", name) for name in BACKENDS),
        ("BATTEN_FASTVIDEO", "1"),
    ],
)
def test_every_layer_of_wan_blocks(monkeypatch, variable, value):
    wan = pytest.importorskip("fastvideo.models.dits.wanvideo", exc_type=ImportError)
    if variable != "BATTEN_FASTVIDEO":
        monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    monkeypatch.setenv(variable, value)
    blocks = [
        wan.WanTransformerBlock(
            1536,
            2048,
            12,
            qk_norm="rms_norm_across_heads",
            cross_attn_norm=True,
            supported_attention_backends=wan.WanTransformer3DModel._supported_attention_backends,
            prefix=f"blocks.{i}",
        ).to(DEVICE)
        for i in range(2)
    ]
    with torch.no_grad():
        for block in blocks:
            for parameter in block.parameters():
                parameter.normal_(0, 0.02)
    hidden, text, modulation = randn(2, 1560, 1536), randn(2, 512, 1536), randn(2, 6, 1536)
    rotary = (torch.ones(1560, 64, device=DEVICE), torch.zeros(1560, 64, device=DEVICE))

    def forward():
        out = hidden
        with torch.no_grad(), set_forward_context(0, None), torch.autocast(DEVICE, torch.bfloat16):
            for block in blocks:
                out = block(out, text, modulation, rotary, 1560)
        return out

    ours = forward()
    layers = [layer for block in blocks for layer in (block.attn1, block.attn2.attn)]
    assert all(type(layer.attn_impl) is BattenImpl for layer in layers)
    expected = BACKENDS if variable == "BATTEN_FASTVIDEO" else [value]
    assert all(layer.attn_impl.receipt["backend"] in expected for layer in layers)
    for layer in layers:
        layer.attn_impl = sdpa_of(layer)
    assert_close(ours, forward(), 2e-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["2d int64", "4d bool", "2d additive", "shorter"])
def test_masks_without_waiting_for_the_device(monkeypatch, backend, form):
    ask(monkeypatch, backend)
    layer = LocalAttention(12, 128, supported_attention_backends=CROSS_ATTENTION)
    q, k, v = randn(3, 300, 12, 128), randn(3, 512, 12, 128), randn(3, 512, 12, 128)
    rows = 256 if form == "shorter" else 512
    keep = (
        torch.arange(rows, device=DEVICE)[None]
        < torch.tensor([77, rows, 1], device=DEVICE)[:, None]
    )
    mask = {
        "2d int64": keep.long(),
        "4d bool": keep[:, None, None],
        "shorter": keep,
        "2d additive": torch.zeros(3, rows, device=DEVICE).masked_fill(~keep, float("-inf")),
    }[form]
    with torch.no_grad(), set_forward_context(0, SDPAMetadata(0, attn_mask=mask)):
        out = layer(q, k, v)
        torch.cuda.set_sync_debug_mode("error")  # the mask is known from here on
        try:
            again = layer(q, k, v)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out, again)
    assert layer.attn_impl.receipt["backend"] == backend
    assert_close(out, sdpa_of(layer).forward(q, k, v, SDPAMetadata(0, attn_mask=mask)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_in_a_cuda_graph(monkeypatch, backend):
    ask(monkeypatch, backend)
    layer = LocalAttention(12, 128, supported_attention_backends=CROSS_ATTENTION)
    q, k, v = randn(2, 256, 12, 128), randn(2, 512, 12, 128), randn(2, 512, 12, 128)
    with torch.no_grad(), set_forward_context(0, None):
        expected = layer(q, k, v)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = layer(q, k, v)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected)


def test_a_new_mask_in_a_capture_is_refused(monkeypatch):
    layer = BattenImpl(12, 128, backend=BACKENDS[-1])
    q = randn(1, 64, 12, 128)
    layer.forward(q, q, q, None)
    mask = torch.ones(1, 64, dtype=torch.bool, device=DEVICE)
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        with pytest.raises(batten.Unsupported, match="not seen before this CUDA graph's capture"):
            layer.forward(q, q, q, SDPAMetadata(0, attn_mask=mask))


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_into_one_graph(monkeypatch, backend):
    ask(monkeypatch, backend)
    layer = LocalAttention(12, 128, supported_attention_backends=CROSS_ATTENTION)
    q, k, v = randn(2, 256, 12, 128), randn(2, 512, 12, 128), randn(2, 512, 12, 128)
    compiled = torch.compile(
        lambda q: layer.attn_impl.forward(q * 1, k, v, None), fullgraph=True, backend="aot_eager"
    )
    with torch.no_grad():
        assert torch.equal(compiled(q), layer.attn_impl.forward(q, k, v, None))


def test_float32_inputs_are_computed_in_bfloat16():
    layer = BattenImpl(12, 128, backend=BACKENDS[0])
    q, k, v = (randn(1, 256, 12, 128, dtype=torch.float32) for _ in range(3))
    out = layer.forward(q, k, v, None)
    assert out.dtype is torch.float32
    assert_close(out, sdpa_of(layer).forward(q, k, v, None))


def test_views_of_packed_qkv_and_of_a_cache():
    for backend in BACKENDS:
        layer = BattenImpl(12, 128, backend=backend)
        q, k, v = randn(2, 300, 3, 12, 128).unbind(2)
        assert_close(layer.forward(q, k, v, None), sdpa_of(layer).forward(q, k, v, None))
        cache_k, cache_v = randn(2, 1000, 12, 128), randn(2, 1000, 12, 128)
        k, v = cache_k[:, :450], cache_v[:, :450]
        assert_close(layer.forward(q, k, v, None), sdpa_of(layer).forward(q, k, v, None))


def test_what_a_backend_does_not_serve_raises_at_construction(monkeypatch):
    ask(monkeypatch, "single")
    with pytest.raises(
        batten.Error, match=r"backend single \(FASTVIDEO_FLASHINFER_PREFILL_BACKEND=single\)"
    ):
        LocalAttention(12, 72, supported_attention_backends=CROSS_ATTENTION)
    for name in ("cudnn", "native"):
        if name not in BACKENDS:
            ask(monkeypatch, name)
            with pytest.raises(batten.Error, match=f"backend {name}"):
                LocalAttention(12, 128, supported_attention_backends=CROSS_ATTENTION)


def test_a_spawned_worker(tmp_path):
    python, _, script = make_environment(tmp_path)
    run(python, "-m", "batten.fastvideo", "enable")
    printed = run(python, script, BATTEN_FASTVIDEO="1")
    assert (
        "worker batten.fastvideo.backend" in printed and "main batten.fastvideo.backend" in printed
    )
