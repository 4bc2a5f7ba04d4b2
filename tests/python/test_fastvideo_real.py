"""On the real FastVideo's classes: its selector, layers, a Wan block, and its own TORCH_SDPA as the
judge of masks.

Runs on the CPU, where FastVideo has no attention of its own; on a GPU see test_fastvideo_gpu.py.
"""

import pytest

torch = pytest.importorskip("torch")
batten = pytest.importorskip("batten")

import batten.fastvideo  # noqa: E402, F811

pytest.importorskip(
    "fastvideo.attention.layer", reason="FastVideo is not installed", exc_type=ImportError
)

from batten.fastvideo.backend import BattenImpl  # noqa: E402
from fastvideo.attention import selector  # noqa: E402
from fastvideo.attention.backends.abstract import AttentionBackend, AttentionImpl, AttentionMetadata  # noqa: E402
from fastvideo.attention.backends.sdpa import SDPAImpl, SDPAMetadata  # noqa: E402
from fastvideo.attention.layer import DistributedAttention, LocalAttention  # noqa: E402
from fastvideo.forward_context import set_forward_context  # noqa: E402
from fastvideo.platforms import AttentionBackendEnum as Names  # noqa: E402
from fastvideo_standin import make_environment, one_rank, run  # noqa: E402

pytestmark = pytest.mark.torch

CROSS_ATTENTION = (Names.FLASH_ATTN, Names.TORCH_SDPA)
INF = float("inf")


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """batten installed, no variables, one rank, the CPU, bf16 layers."""
    one_rank(monkeypatch)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    batten.fastvideo.install()
    selector._cached_get_attn_backend.cache_clear()
    yield
    batten.fastvideo.uninstall()
    torch.set_default_dtype(before)


def ask(monkeypatch, backend="auto"):
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    monkeypatch.setenv("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", backend)


def test_the_layers_that_wan_builds(monkeypatch):
    ask(monkeypatch)
    from fastvideo.models.dits.wanvideo import WanTransformer3DModel

    declared = tuple(WanTransformer3DModel._supported_attention_backends)
    assert Names.FLASHINFER not in declared
    cross = LocalAttention(12, 128, dropout_rate=0, supported_attention_backends=CROSS_ATTENTION)
    self_attention = DistributedAttention(
        12, 128, supported_attention_backends=declared, prefix="blocks.0.attn1"
    )
    for layer in (cross, self_attention):
        assert type(layer.attn_impl) is BattenImpl and isinstance(layer.attn_impl, AttentionImpl)
        assert layer.backend is Names.FLASHINFER
    assert self_attention.attn_impl.prefix == "blocks.0.attn1.impl"
    assert issubclass(
        selector.get_attn_backend(128, torch.bfloat16, CROSS_ATTENTION), AttentionBackend
    )


def test_a_wan_block(monkeypatch):
    """Self-attention and cross-attention are both served, and the block's output is that of
    TORCH_SDPA."""
    wan = pytest.importorskip("fastvideo.models.dits.wanvideo")
    ask(monkeypatch)
    torch.manual_seed(0)
    block = wan.WanTransformerBlock(
        256,
        512,
        4,
        qk_norm="rms_norm_across_heads",
        cross_attn_norm=True,
        supported_attention_backends=wan.WanTransformer3DModel._supported_attention_backends,
        prefix="blocks.0",
    )
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.05)
    inputs = (
        torch.randn(2, 30, 256),
        torch.randn(2, 17, 256),
        torch.randn(2, 6, 256),
        (torch.ones(30, 32), torch.zeros(30, 32)),
        30,
    )
    with torch.no_grad(), set_forward_context(0, None), torch.autocast("cpu", torch.bfloat16):
        ours = block(*inputs)
        layers = [block.attn1, block.attn2.attn]
        receipts = [layer.attn_impl.receipt for layer in layers]
        for layer in layers:
            layer.attn_impl = SDPAImpl(4, 64, False, layer.softmax_scale)
        theirs = block(*inputs)
    assert [receipt["backend"] for receipt in receipts] == ["cpu", "cpu"]
    assert (ours - theirs).norm() <= 1e-2 * theirs.norm()


def test_requests_as_the_loader_makes_them(monkeypatch):
    monkeypatch.setenv("FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "auto")
    assert selector.coerce_attn_backend("flashinfer") is Names.FLASHINFER
    with selector._component_attention_backend_scope("FLASHINFER", component="transformer"):
        layer = LocalAttention(4, 128, supported_attention_backends=CROSS_ATTENTION)
    assert type(layer.attn_impl) is BattenImpl
    with selector._component_attention_backend_scope("FLASHINFER", component="image_encoder"):
        with pytest.raises(
            ValueError, match="Invalid attention backend for CPU"
        ):  # FastVideo's own answer here
            LocalAttention(4, 80, supported_attention_backends=CROSS_ATTENTION)


def test_on_fastvideos_cuda_platform(monkeypatch):
    """The platform forced to CUDA: what batten does not take is chosen as before."""
    import fastvideo.platforms
    from fastvideo.platforms.cuda import CudaPlatformBase

    class Hopper(CudaPlatformBase):
        @classmethod
        def has_device_capability(cls, capability, device_id=0):
            return True

    monkeypatch.setattr(fastvideo.platforms, "_current_platform", Hopper())
    assert (
        selector.get_attn_backend(64, torch.bfloat16, (Names.TORCH_SDPA,)).get_name()
        == "TORCH_SDPA"
    )
    monkeypatch.setenv("BATTEN_FASTVIDEO", "1")
    assert selector.get_attn_backend(64, torch.bfloat16, CROSS_ATTENTION).get_name() == "FLASHINFER"
    assert (
        selector.get_attn_backend(64, torch.bfloat16, (Names.TORCH_SDPA,)).get_name()
        == "TORCH_SDPA"
    )
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "TORCH_SDPA")
    assert selector.get_attn_backend(64, torch.bfloat16, CROSS_ATTENTION).get_name() == "TORCH_SDPA"


def test_unknown_and_unavailable_backends_raise_at_construction(monkeypatch):
    ask(monkeypatch, "cuddn")
    with pytest.raises(
        ValueError,
        match="FASTVIDEO_FLASHINFER_PREFILL_BACKEND=cuddn: unknown; expected one of single",
    ):
        LocalAttention(4, 128, supported_attention_backends=CROSS_ATTENTION)
    ask(monkeypatch, "cudnn")
    with pytest.raises(
        batten.Error, match=r"backend cudnn \(FASTVIDEO_FLASHINFER_PREFILL_BACKEND=cudnn\)"
    ):
        LocalAttention(4, 128, supported_attention_backends=CROSS_ATTENTION)


KEEP = torch.arange(24)[None] < torch.tensor([24, 7, 1])[:, None]
MASKS = {
    "none": lambda: None,
    "2d bool": lambda: KEEP,
    "2d int64": lambda: KEEP.long(),
    "2d float 0 and -inf": lambda: torch.zeros(3, 24, dtype=torch.float32).masked_fill(~KEEP, -INF),
    "2d float ones": lambda: torch.ones(3, 24, dtype=torch.float32),
    "3d bool": lambda: KEEP[:, None],
    "4d bool": lambda: KEEP[:, None, None],
    "4d additive finfo.min": lambda: torch.zeros(3, 1, 1, 24, dtype=torch.float32).masked_fill(
        ~KEEP[:, None, None], torch.finfo(torch.float32).min
    ),
}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("sq, skv", [(24, 24), (5, 24), (40, 40), (16, 50)])
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_masks_as_fastvideos_sdpa_reads_them(name, sq, skv, kv_heads):
    """Masks of 24 keys on 24 keys, and on more, of which they speak of the last."""
    generator = torch.Generator().manual_seed(1)
    q, k, v = (
        torch.randn(3, rows, heads, 64, generator=generator, dtype=torch.float32)
        for rows, heads in ((sq, 4), (skv, kv_heads), (skv, kv_heads))
    )
    arguments = {
        "num_heads": 4,
        "head_size": 64,
        "softmax_scale": 0.2,
        "causal": False,
        "num_kv_heads": kv_heads,
    }
    if name == "2d float ones" and skv > 24:
        data = SDPAMetadata(0, attn_mask=MASKS[name]())
        with pytest.raises(
            batten.Unsupported, match="different biases"
        ):  # TORCH_SDPA adds 1 to the last keys
            BattenImpl(**arguments, backend="cpu").forward(q, k, v, data)
        return
    data = SDPAMetadata(0, attn_mask=MASKS[name]())
    theirs = SDPAImpl(**arguments).forward(q, k, v, data)
    ours = BattenImpl(**arguments, backend="cpu").forward(q, k, v, data)
    assert (ours - theirs).norm() <= 1e-5 * theirs.norm()


def test_metadata_of_other_backends():
    q = torch.randn(1, 8, 4, 64, dtype=torch.float32)
    layer = BattenImpl(4, 64, backend="cpu")
    assert torch.equal(
        layer.forward(q, q, q, AttentionMetadata(current_timestep=3)), layer.forward(q, q, q, None)
    )


def test_a_spawned_worker_of_the_real_package(tmp_path):
    python, _, script = make_environment(tmp_path)
    run(python, "-m", "batten.fastvideo", "enable")
    asked = run(python, script, FASTVIDEO_ATTENTION_BACKEND="FLASHINFER", CUDA_VISIBLE_DEVICES="")
    assert "worker batten.fastvideo.backend" in asked and "main batten.fastvideo.backend" in asked
    assert "worker automatic" in run(python, script, CUDA_VISIBLE_DEVICES="")
