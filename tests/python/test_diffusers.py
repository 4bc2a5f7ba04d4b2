"""batten.diffusers on the real diffusers package, on the CPU."""

import copy
import itertools
import os
import shutil
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
import batten  # noqa: E402
import batten.diffusers  # noqa: E402
from diffusers.models import attention_dispatch  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

pytestmark = pytest.mark.torch
dispatch = attention_dispatch.dispatch_attention_fn
registry = attention_dispatch._AttentionBackendRegistry
LAYERS = 2


def wan(dtype=torch.float32, layers=LAYERS, **options):
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    model = WanTransformer3DModel(
        patch_size=(1, 2, 2), num_attention_heads=2, attention_head_dim=64, in_channels=16,
        out_channels=16, text_dim=32, freq_dim=64, ffn_dim=128, num_layers=layers, **options,
    )  # fmt: skip
    return (model if dtype == torch.float32 else model.to(dtype)).eval().requires_grad_(False)


def wan_inputs(dtype=torch.float32, text_length=7, **more):
    generator = torch.Generator().manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "hidden_states": normal(2, 16, 3, 8, 12),
        "timestep": torch.tensor([3, 500]),
        "encoder_hidden_states": normal(2, text_length, 32),
        "return_dict": False,
        **{name: normal(*shape) for name, shape in more.items()},
    }


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0].float()


def difference(out, reference):
    return (torch.linalg.vector_norm(out - reference) / torch.linalg.vector_norm(reference)).item()


@pytest.fixture(autouse=True)
def native_is_active():
    """set_attention_backend() also sets the process's default: give it back."""
    active = registry._active_backend
    yield
    registry.set_active_backend(active)


# ---- models --------------------------------------------------------------------------------------


def test_wan_gives_what_torch_gives_and_every_layer_is_served():
    model, inputs = wan(), wan_inputs()
    reference = run(model, inputs)
    assert batten.diffusers.enable(model) == 2 * LAYERS
    with batten.diffusers.record(model) as ran:
        out = run(model, inputs)
    ran.check("cpu")
    assert ran.calls == 2 * LAYERS
    assert set(ran.runs) == {f"blocks.{i}.attn{n}" for i in range(LAYERS) for n in (1, 2)}
    assert ran.receipts["blocks.0.attn1"]["backend"] == "cpu"
    assert "blocks.1.attn2: 1 runs; batten's calls: 1 by cpu" in str(ran)
    assert difference(out, reference) < 1e-5


def test_wan_in_bfloat16_is_as_close_to_float32_as_torch_is():
    model, inputs = wan(torch.bfloat16), wan_inputs(torch.bfloat16)
    exact = wan(torch.bfloat16).float()
    halves = [
        name for name, value in inputs.items() if getattr(value, "dtype", 0) == torch.bfloat16
    ]
    exact_inputs = {**inputs, **{name: inputs[name].float() for name in halves}}
    reference = run(exact, exact_inputs)
    native = difference(run(model, inputs), reference)
    batten.diffusers.enable(model, backend="cpu")
    assert difference(run(model, inputs), reference) <= 1.25 * native
    assert native > 1e-4  # bfloat16 rounds: a bound of 0 would prove nothing


def test_image_cross_attention_of_wan_i2v_is_served_too():
    model = wan(image_dim=24, added_kv_proj_dim=128)
    inputs = wan_inputs(text_length=512, encoder_hidden_states_image=(2, 9, 24))
    reference = run(model, inputs)
    batten.diffusers.enable(model)
    with batten.diffusers.record(model) as ran:
        out = run(model, inputs)
    ran.check()
    assert ran.layers["blocks.0.attn1"].total() == 1
    assert ran.layers["blocks.0.attn2"].total() == 2  # image keys, then text keys
    assert difference(out, reference) < 1e-5


def test_hunyuan_video_passes_its_padding_mask(caplog):
    from diffusers import HunyuanVideoTransformer3DModel

    torch.manual_seed(0)
    model = HunyuanVideoTransformer3DModel(
        in_channels=4, out_channels=4, num_attention_heads=2, attention_head_dim=32, num_layers=1,
        num_single_layers=1, num_refiner_layers=1, patch_size=2, patch_size_t=1, text_embed_dim=16,
        pooled_projection_dim=8, rope_axes_dim=(8, 12, 12),
    ).eval().requires_grad_(False)  # fmt: skip
    keep = torch.tensor([[1] * 3 + [0] * 5, [1] * 8])
    inputs = {
        "hidden_states": torch.randn(2, 4, 2, 8, 8), "timestep": torch.tensor([3, 500]),
        "encoder_hidden_states": torch.randn(2, 8, 16), "encoder_attention_mask": keep,
        "pooled_projections": torch.randn(2, 8), "guidance": torch.tensor([1.0, 1.0]),
        "return_dict": False,
    }  # fmt: skip
    reference = run(model, inputs)
    count = batten.diffusers.enable(model)
    with batten.diffusers.record(model) as ran:
        out = run(model, inputs)
    assert count == 2 and ran.calls == 2
    # The refiner's processor calls torch itself: that is said, and seen.
    assert ran.unserved == ["context_embedder.token_refiner.refiner_blocks.0.attn"]
    assert "HunyuanVideoTransformer3DModel: 2 attention layers use batten" in caplog.text
    assert difference(out, reference) < 1e-5


def test_flux_is_served():
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    model = FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=2, joint_attention_dim=32, pooled_projection_dim=32,
        axes_dims_rope=(4, 4, 8),
    ).eval().requires_grad_(False)  # fmt: skip
    inputs = {
        "hidden_states": torch.randn(1, 16, 4), "encoder_hidden_states": torch.randn(1, 6, 32),
        "pooled_projections": torch.randn(1, 32), "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(16, 3), "txt_ids": torch.zeros(6, 3), "return_dict": False,
    }  # fmt: skip
    reference = run(model, inputs)
    assert batten.diffusers.enable(model) == 2
    with batten.diffusers.record(model) as ran:
        out = run(model, inputs)
    ran.check("cpu")
    assert difference(out, reference) < 1e-5


# ---- the ways to turn it on ----------------------------------------------------------------------


def test_names_are_registered():
    names = {member.value for member in attention_dispatch.AttentionBackendName}
    assert {"batten", "batten:auto", "batten:cpu", "batten:cudnn", "batten:single"} <= names
    member = attention_dispatch.AttentionBackendName("batten:cpu")
    assert member is attention_dispatch.AttentionBackendName.BATTEN_CPU
    assert member == "batten:cpu" and member in registry.list_backends()


@pytest.mark.parametrize("name", ["batten", "batten:cpu"])
def test_set_attention_backend(name):
    model, inputs = wan(layers=1), wan_inputs()
    model.set_attention_backend(name)
    with batten.diffusers.record(model) as ran:
        run(model, inputs)
    ran.check("cpu")


def test_context_manager():
    model, inputs = wan(layers=1), wan_inputs()
    with batten.diffusers.record(model) as ran, attention_dispatch.attention_backend("batten"):
        run(model, inputs)
    ran.check("cpu")
    with batten.diffusers.record(model) as ran:
        run(model, inputs)
    assert ran.calls == 0 and ran.unserved == ["blocks.0.attn1", "blocks.0.attn2"]
    with pytest.raises(batten.Unsupported, match="2 of 2 attention layers were not served"):
        ran.check()


@pytest.mark.parametrize("first", ["", "import diffusers\n"])
def test_environment_variable(first):
    code = first + (
        "import batten.diffusers\n"
        "from diffusers.models import attention_dispatch as d\n"
        "import torch\n"
        "q = torch.randn(1, 3, 2, 8)\n"
        "d.dispatch_attention_fn(q, q, q)\n"
        "print(d._AttentionBackendRegistry._active_backend.value, batten.last_receipt()['backend'])"
    )
    environment = {**os.environ, "DIFFUSERS_ATTN_BACKEND": "batten:cpu",
                   "PYTHONPATH": os.pathsep.join(sys.path)}  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                          text=True, timeout=300, check=False)  # fmt: skip
    assert done.stdout.split() == ["batten:cpu", "cpu"], done.stderr


def test_disable_gives_back_what_was_set_before():
    model = wan(layers=1)
    model.blocks[0].attn1.set_attention_backend("_native_math")
    before = [layer.processor._attention_backend for _, layer in batten.diffusers._layers(model)]
    assert batten.diffusers.enable(model) == 2
    assert batten.diffusers.enable(model, backend="cpu") == 2
    assert batten.diffusers.disable(model) == 2
    after = [layer.processor._attention_backend for _, layer in batten.diffusers._layers(model)]
    assert after == before and before[0].value == "_native_math"
    assert batten.diffusers.disable(model) == 0


class Small(torch.nn.Module):
    """Two attention layers, which diffusers counts as such."""

    def __init__(self):
        super().__init__()
        from diffusers.models.transformers.transformer_wan import WanAttention, WanAttnProcessor

        self.a, self.b = (WanAttention(32, 2, 16, processor=WanAttnProcessor()) for _ in "ab")


def backends_of(model):
    return [layer.processor._attention_backend for _, layer in batten.diffusers._layers(model)]


STEPS = st.lists(st.tuples(st.sampled_from(
    ["enable", "enable cpu", "enable cpu:bogus", "disable", "set", "reset", "copy"]),
    st.integers(0, 1), st.integers(0, 3)), max_size=14)  # fmt: skip


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(steps=STEPS)
def test_enable_and_disable_in_any_order(steps):
    """Against a model of what each layer should have: its backend, and what enable() found."""
    name = attention_dispatch.AttentionBackendName
    models, states = [Small()], [[[None, None, None], [None, None, None]]]
    for step, layer, at in steps:
        at %= len(models)
        model, state = models[at], states[at]
        if step == "enable cpu:bogus":
            with pytest.raises(batten.InvalidArgument, match="no form 'bogus'"):
                batten.diffusers.enable(model, "cpu:bogus")
        elif step.startswith("enable"):
            backend = step.partition(" ")[2] or "auto"
            assert batten.diffusers.enable(model, backend) == 2
            for entry in state:
                now, before, ours = entry
                if ours is None or now is not ours:
                    before = now
                entry[:] = [name(f"batten:{backend}"), before, name(f"batten:{backend}")]
        elif step == "disable":
            expected = 0
            for entry in state:
                now, before, ours = entry
                if ours is not None and now is ours:
                    now = before
                    expected += 1
                entry[:] = [now, None, None]
            assert batten.diffusers.disable(model) == expected
        elif step in ("set", "reset"):
            target = (model.a, model.b)[layer]
            state[layer][0] = name.NATIVE if step == "set" else None
            target.processor._attention_backend = state[layer][0]
        else:
            models.append(copy.deepcopy(model))
            states.append([list(entry) for entry in state])
        for model, state in zip(models, states, strict=True):
            assert backends_of(model) == [now for now, _, _ in state]
    assert not [member for member in name if "bogus" in member.value]


def test_a_record_is_of_calls_that_ran():
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    fake = [mode.from_tensor(x) for x in qkv()]
    batten.attention(*qkv(), backend="reference")  # whose receipt must not be taken
    with batten.diffusers.record(Small()) as ran:
        with attention_dispatch.attention_backend("batten:cpu"):
            dispatch(*fake)
            assert ran.calls == 0
            dispatch(*qkv())
    assert ran.calls == 1 and ran.backends == ["cpu"]


def test_a_pipelines_components_are_set_by_name():
    pipe = types.SimpleNamespace(components={
        "transformer": wan(layers=1), "transformer_2": wan(layers=1), "scheduler": object(),
        "vae": torch.nn.Linear(2, 2), "tokenizer": None})  # fmt: skip
    assert batten.diffusers.enable(pipe) == 4
    with batten.diffusers.record(pipe) as ran:
        run(pipe.components["transformer_2"], wan_inputs())
    assert set(ran.runs) == {"transformer_2.blocks.0.attn1", "transformer_2.blocks.0.attn2"}
    ran.check("cpu")


def test_enable_refuses_what_cannot_be_set():
    model = wan(layers=1)
    with pytest.raises(batten.InvalidArgument, match="nothing.*expected one of auto"):
        batten.diffusers.enable(model, backend="nothing")
    with pytest.raises(batten.Unsupported, match="no attention layer"):
        batten.diffusers.enable(torch.nn.Linear(2, 2))
    with pytest.raises(batten.InvalidArgument, match="expected a diffusers pipeline or model"):
        batten.diffusers.enable(3)
    with pytest.raises(batten.Unsupported, match="no attention layer ran"):
        with batten.diffusers.record(model) as ran:
            pass
        ran.check()


def test_context_parallel_models_are_refused():
    model = wan(layers=1)
    model.blocks[0].attn1.processor._parallel_config = object()
    with pytest.raises(batten.Unsupported, match="context parallelism"):
        batten.diffusers.enable(model)
    with pytest.raises(ValueError, match="does not support context parallelism"):
        model.set_attention_backend("batten")


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_enable_fails_at_once_where_the_backend_cannot_run():
    model = wan(torch.bfloat16, layers=1)
    with pytest.raises((batten.Unavailable, batten.Unsupported)):
        batten.diffusers.enable(model, backend="cudnn")
    assert {layer.processor._attention_backend for _, layer in batten.diffusers._layers(model)} == {
        None}  # fmt: skip


def test_layers_that_stay_as_they_are_are_named(caplog):
    from diffusers.models.attention_processor import Attention, AttnProcessor2_0

    def said():
        return [
            record.getMessage() for record in caplog.records if record.name.startswith("batten")
        ]

    block = wan(layers=1)
    assert batten.diffusers.enable(block) == 2 and not said()
    block.refiner = Attention(16, heads=2, dim_head=8, processor=AttnProcessor2_0())
    pipe = types.SimpleNamespace(components={"transformer": block})
    assert batten.diffusers.enable(pipe) == 2
    assert ["1 with AttnProcessor2_0" in message for message in said()] == [True]


def test_another_diffusers_is_refused_with_what_is_missing(monkeypatch):
    monkeypatch.delattr(attention_dispatch._AttentionBackendRegistry, "_supported_arg_names")
    with pytest.raises(batten.Unavailable, match=r"diffusers \d.*_supported_arg_names"):
        batten.diffusers._dispatch.__wrapped__()


# ---- one call ------------------------------------------------------------------------------------


def qkv(batch=2, q_rows=5, kv_rows=9, heads=2, kv_heads=None, dim=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, q_rows, heads, dim, generator=generator)
    k = torch.randn(batch, kv_rows, kv_heads or heads, dim, generator=generator)
    return q, k, torch.randn(k.shape, generator=generator)


def both(q, k, v, **options):
    return (dispatch(q, k, v, backend="batten", **options),
            dispatch(q, k, v, backend="native", **options))  # fmt: skip


MASKS = {
    "bool [B, K]": lambda keep: keep,
    "bool [B, 1, 1, K]": lambda keep: keep[:, None, None],
    "bool [B, 1, Sq, K] expanded": lambda keep: keep[:, None, None].expand(-1, 1, 5, -1),
    "bool [B, 1, Sq, K] written out": lambda keep: keep[:, None, None].repeat(1, 1, 5, 1),
    "bool [B, H, Sq, K] written out": lambda keep: keep[:, None, None].repeat(1, 2, 5, 1),
    "float -inf [B, 1, 1, K]": lambda keep: torch.zeros(keep.shape).masked_fill(
        ~keep, float("-inf"))[:, None, None],
    "float -10000 [B, 1, 1, K]": lambda keep: (1 - keep.float())[:, None, None] * -10000.0,
    "float lowest [B, K]": lambda keep: (1 - keep.float()) * torch.finfo(torch.float32).min,
}  # fmt: skip


@pytest.mark.parametrize("kind", MASKS)
@hypothesis.settings(deadline=None, max_examples=12)
@hypothesis.given(
    lengths=st.lists(st.integers(1, 9), min_size=2, max_size=2), seed=st.integers(0, 9)
)
def test_padding_masks_are_key_lengths(kind, lengths, seed):
    q, k, v = qkv(seed=seed)
    keep = torch.arange(9) < torch.tensor(lengths)[:, None]
    ours, native = both(q, k, v, attn_mask=MASKS[kind](keep))
    torch.testing.assert_close(ours, native, rtol=2e-5, atol=2e-6)


def test_a_mask_for_all_samples():
    q, k, v = qkv(batch=3)
    keep = (torch.arange(9) < 4)[None].repeat(5, 1)  # [Sq, K]
    ours, native = both(q, k, v, attn_mask=keep)
    torch.testing.assert_close(ours, native, rtol=2e-5, atol=2e-6)


def test_a_mask_that_was_written_to_is_looked_at_again():
    q, k, v = qkv()
    mask = torch.arange(9).expand(2, 9) < 4
    first = dispatch(q, k, v, attn_mask=mask, backend="batten")
    again = dispatch(q, k, v, attn_mask=mask, backend="batten")
    assert torch.equal(first, again)
    mask[:, 4:7] = True
    ours, native = both(q, k, v, attn_mask=mask)
    torch.testing.assert_close(ours, native, rtol=2e-5, atol=2e-6)
    mask[0, 2] = False
    with pytest.raises(batten.Unsupported, match="sample 0: a key is kept after a dropped one"):
        dispatch(q, k, v, attn_mask=mask, backend="batten")


REFUSED_MASKS = {
    "a gap": (lambda: torch.tensor([[True, False] * 4 + [True]]).expand(2, 9), "kept after"),
    "another row per query": (
        lambda: torch.ones(5, 9, dtype=torch.bool).tril().expand(2, 1, 5, 9), "query to query"),
    "another row per head": (
        lambda: (torch.arange(9) < torch.tensor([3, 4])[:, None])[None, :, None], "head to head"),
    "a bias": (lambda: torch.linspace(0, 1, 9)[None, None, None], "adds different biases"),
    "no tensor": (lambda: types.SimpleNamespace(shape=(1,)), "of type SimpleNamespace"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED_MASKS)
def test_other_masks_are_refused(kind):
    make, message = REFUSED_MASKS[kind]
    with pytest.raises(batten.Unsupported, match=message):
        dispatch(*qkv(), attn_mask=make(), backend="batten")


def test_a_mask_of_another_size_is_refused():
    with pytest.raises(batten.InvalidArgument, match=r"\(7, 9\): 7 where the queries are.* has 5"):
        dispatch(*qkv(), attn_mask=torch.ones(7, 9, dtype=torch.bool), backend="batten")
    with pytest.raises(batten.InvalidArgument, match="8 where the keys are"):
        dispatch(*qkv(), attn_mask=torch.ones(2, 1, 1, 8) > 0, backend="batten")


def same_or_refused(shape, sizes):
    """How many masks of a shape batten served: as diffusers' own backend reads them."""
    batch, heads, q_rows, kv_rows = sizes
    q, k, v = qkv(batch, q_rows, kv_rows, heads)
    generator = torch.Generator().manual_seed(sum(shape))
    served = 0
    for prefix in (True, False):
        mask = torch.rand(shape, generator=generator) < 0.7
        if prefix:
            lengths = torch.randint(1, shape[-1] + 1, (*shape[:-1], 1), generator=generator)
            mask = torch.arange(shape[-1]) < lengths
        if prefix and len(shape) == 4:
            mask = mask[:, :1, :1].expand(shape)
        try:
            native = dispatch(q, k, v, attn_mask=mask, backend="native")
        except (RuntimeError, IndexError):
            native = None
        try:
            ours = dispatch(q, k, v, attn_mask=mask, backend="batten")
        except (batten.Unsupported, batten.InvalidArgument):
            continue
        served += 1
        if native is not None:
            torch.testing.assert_close(ours, native, rtol=2e-5, atol=2e-6)
        else:  # torch knows no such mask; diffusers' backends of variable lengths do
            assert len(shape) == 3 and shape[0] == batch != heads
    return served


def test_masks_of_every_rank_and_equal_sizes_are_read_as_native_reads_them():
    served = 0
    for sizes in itertools.product((1, 3), (1, 3), (1, 3, 4), (1, 3, 4)):
        for rank in (1, 2, 3, 4, 5):
            choices = [{1, size} for size in ((1,) + sizes)[-rank:]]
            if rank == 2:
                choices[0].add(sizes[0])
            if rank == 3:
                choices[0].add(sizes[0])
            for shape in itertools.product(*choices):
                served += same_or_refused(shape, sizes)
    assert served > 300


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.int32, torch.complex64])
def test_masks_of_integers_are_refused_as_torch_refuses_them(dtype):
    mask = torch.ones(2, 9).to(dtype)
    with pytest.raises(batten.Unsupported, match=r"attn_mask of torch\..*mask.bool\(\)"):
        dispatch(*qkv(), attn_mask=mask, backend="batten")
    with pytest.raises(RuntimeError):
        dispatch(*qkv(), attn_mask=mask, backend="native")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_float_masks_of_any_dtype_are_read_by_their_values(dtype):
    keep = torch.arange(9) < torch.tensor([4, 9])[:, None]
    mask = torch.zeros(2, 9).masked_fill(~keep, -10000.0)
    ours = dispatch(*qkv(), attn_mask=mask.to(dtype), backend="batten")
    native = dispatch(*qkv(), attn_mask=mask, backend="native")
    torch.testing.assert_close(ours, native, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("q_rows", "kv_rows"), [(5, 9), (9, 5), (6, 6)])
def test_causal_is_torchs_rule(q_rows, kv_rows):
    q, k, v = qkv(q_rows=q_rows, kv_rows=kv_rows)
    ours, native = both(q, k, v, is_causal=True)
    torch.testing.assert_close(ours, native, rtol=2e-5, atol=2e-6)


def test_scale_and_grouped_heads():
    q, k, v = qkv(heads=6, kv_heads=2)
    ours, native = both(q, k, v, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(ours, native, rtol=2e-5, atol=2e-6)
    with pytest.raises(batten.InvalidArgument, match="enable_gqa"):
        dispatch(q, k, v, backend="batten")


def test_log_sum_exp_is_batch_rows_heads():
    q, k, v = qkv()
    out, lse = dispatch(q, k, v, backend="batten", attention_kwargs={"return_lse": True})
    logits = torch.einsum("bqhd,bkhd->bqhk", q, k) / 4
    torch.testing.assert_close(lse, logits.logsumexp(-1), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(out, dispatch(q, k, v, backend="native"), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("options", "message"), [
    ({"dropout_p": 0.1}, "dropout_p=0.1"),
    ({"attention_kwargs": {"window_size": (4, 4)}}, r"window_size=\(4, 4\)"),
    ({"attention_kwargs": {"softcap": 30.0}}, "softcap=30.0"),
    ({"parallel_config": object()}, "context parallelism"),
])  # fmt: skip
def test_what_is_not_served_is_refused(options, message):
    with pytest.raises(batten.Unsupported, match=message):
        dispatch(*qkv(), backend="batten", **options)


def test_mask_with_causal_is_refused():
    with pytest.raises(batten.InvalidArgument, match="is_causal"):
        dispatch(*qkv(), attn_mask=torch.ones(2, 9, dtype=torch.bool), is_causal=True,
                 backend="batten")  # fmt: skip


def test_options_that_ask_for_nothing_are_taken():
    options = {"window_size": (-1, -1), "softcap": 0.0, "deterministic": False}
    ours = dispatch(*qkv(), backend="batten", attention_kwargs=options)
    assert torch.equal(ours, dispatch(*qkv(), backend="batten"))


def test_no_argument_that_some_backend_names_is_dropped_in_silence():
    named = set().union(*registry._supported_arg_names.values())
    for member in registry.list_backends():
        if member.value.startswith("batten"):
            assert registry._supported_arg_names[member] >= named - {"others"}


def test_a_gradient_is_refused():
    q, k, v = qkv()
    with pytest.raises(batten.Unsupported, match="inference"):
        dispatch(q.requires_grad_(), k, v, backend="batten")


# ---- torch.compile -------------------------------------------------------------------------------


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_blocks_compile_without_a_graph_break(compiler):
    torch._dynamo.reset()
    model, inputs = wan(), wan_inputs()
    reference = run(model, inputs)
    batten.diffusers.enable(model)
    model.compile_repeated_blocks(fullgraph=True, backend=compiler)
    assert difference(run(model, inputs), reference) < 1e-5
    with torch.profiler.profile() as profile:
        run(model, inputs)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["batten::attention"] == 2 * LAYERS
    with batten.diffusers.record(model) as ran:  # runs them uncompiled
        run(model, inputs)
    ran.check("cpu")
    assert ran.calls == 2 * LAYERS


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_masks_compile_too(compiler):
    if (
        compiler == "inductor"
    ):  # on a CPU it needs a C++ compiler, and setuptools to find torch's headers
        pytest.importorskip("setuptools", reason="setuptools is not installed")
        if not shutil.which("g++"):
            pytest.skip("no g++")
    torch._dynamo.reset()
    q, k, v = qkv()
    mask = (torch.arange(9) < torch.tensor([4, 9])[:, None])[:, None, None]

    def attend(q, k, v, mask):
        return dispatch(q, k, v, attn_mask=mask, backend="batten") * 2

    with torch.no_grad():
        out = torch.compile(attend, fullgraph=True, backend=compiler)(q, k, v, mask)
    torch.testing.assert_close(out, attend(q, k, v, mask), rtol=1e-6, atol=1e-7)
