"""batten.diffusers on the real diffusers package, on the CPU."""

import copy
import os
import subprocess
import sys
import types

import pytest
from diffusers_here import attention_dispatch, batten, dispatch, registry, torch

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
st = hypothesis.strategies

pytestmark = pytest.mark.torch
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

    def qkv():
        return [torch.randn(2, 5, 2, 16) for _ in range(3)]

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
