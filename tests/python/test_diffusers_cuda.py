"""batten.diffusers on a GPU: a small Wan with heads of 128, each backend, receipts of each layer.

It needs torch with CUDA, diffusers and a GPU of sm80 or newer; a cuDNN backend also libcudnn.
"""

import pytest
from diffusers_here import batten, dispatch, torch

if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

pytestmark = [pytest.mark.torch, pytest.mark.cuda]
LAYERS = 2
BACKENDS = ["auto", "cudnn", "single", "native"]


def wan(dtype=torch.bfloat16, **options):
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=12, attention_head_dim=128, in_channels=16,
            out_channels=16, text_dim=64, freq_dim=64, ffn_dim=512, num_layers=LAYERS, **options,
        )  # fmt: skip
    model = model.to("cuda").eval().requires_grad_(False)
    for tensor in [*model.parameters()]:
        tensor.data = tensor.data.to(dtype)
    return model


def wan_inputs(dtype=torch.bfloat16, text_length=512, **more):
    generator = torch.Generator("cuda").manual_seed(1)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").to(dtype)

    return {
        "hidden_states": normal(2, 16, 3, 16, 26),
        "timestep": torch.tensor([3, 500], device="cuda"),
        "encoder_hidden_states": normal(2, text_length, 64),
        "return_dict": False,
        **{name: normal(*shape) for name, shape in more.items()},
    }


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0].float()


def difference(out, reference):
    return (torch.linalg.vector_norm(out - reference) / torch.linalg.vector_norm(reference)).item()


def enable_or_skip(model, backend):
    try:
        return batten.diffusers.enable(model, backend=backend)
    except (batten.Unavailable, batten.InvalidArgument) as error:
        if backend == "auto":
            raise
        pytest.skip(f"{backend} is not here: {error}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_layer_is_served_by_the_backend_that_was_named(backend):
    model, inputs = wan(), wan_inputs()
    native = run(model, inputs)
    exact = run(wan().float(), {name: value.float() if name != "timestep" and name != "return_dict"
                                else value for name, value in inputs.items()})  # fmt: skip
    assert enable_or_skip(model, backend) == 2 * LAYERS
    with batten.diffusers.record(model) as ran:
        out = run(model, inputs)
    ran.check(None if backend == "auto" else backend)
    assert ran.calls == 2 * LAYERS and len(ran.runs) == 2 * LAYERS
    assert "cpu" not in ran.backends and "reference" not in ran.backends
    print(f"\n{ran}")
    assert difference(out, exact) <= 1.25 * difference(native, exact)


@pytest.mark.parametrize("backend", BACKENDS)
def test_image_cross_attention_is_served_too(backend):
    model = wan(image_dim=64, added_kv_proj_dim=1536)
    inputs = wan_inputs(encoder_hidden_states_image=(2, 257, 64))
    native = run(model, inputs)
    enable_or_skip(model, backend)
    with batten.diffusers.record(model) as ran:
        out = run(model, inputs)
    ran.check()
    assert ran.layers["blocks.1.attn2"].total() == 2
    assert difference(out, native) < 2e-2


@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_blocks(backend):
    torch._dynamo.reset()
    model, inputs = wan(), wan_inputs()
    enable_or_skip(model, backend)
    reference = run(model, inputs)
    model.compile_repeated_blocks(fullgraph=True)
    assert difference(run(model, inputs), reference) < 2e-2
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(model, inputs)
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["batten::attention"] == 2 * LAYERS


@pytest.mark.parametrize("backend", ["auto", "cudnn"])
def test_padding_masks(backend):
    generator = torch.Generator("cuda").manual_seed(2)
    q, k, v = (torch.randn(2, rows, 12, 128, generator=generator, device="cuda").bfloat16()
               for rows in (130, 257, 257))  # fmt: skip
    keep = torch.arange(257, device="cuda") < torch.tensor([31, 257], device="cuda")[:, None]
    full = keep[:, None, None]  # diffusers' own function takes no [B, Sk] mask
    exact = dispatch(q.float(), k.float(), v.float(), attn_mask=full, backend="_native_math")
    try:
        out = dispatch(q, k, v, attn_mask=keep, backend=f"batten:{backend}")
    except batten.Unavailable as error:
        pytest.skip(f"{backend} is not here: {error}")
    assert batten.last_receipt()["backend"] not in ("cpu", "reference")
    assert difference(out.float(), exact) < 4e-3


def test_a_masked_model_in_a_cuda_graph():
    q, k, v = (torch.randn(2, 128, 12, 128, device="cuda").bfloat16() for _ in range(3))
    mask = torch.arange(128, device="cuda").expand(2, 128) < 77
    first = dispatch(q, k, v, attn_mask=mask, backend="batten:auto")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = dispatch(q, k, v, attn_mask=mask, backend="batten:auto")
        with pytest.raises(batten.Unsupported, match="capture"):
            dispatch(q, k, v, attn_mask=mask.clone(), backend="batten:auto")
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, first)
