"""batten.comfyui against a stand-in of ComfyUI's attention call and model patcher."""

import copy
import functools
import itertools
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import batten  # noqa: E402
from batten import comfyui  # noqa: E402

pytestmark = pytest.mark.torch
BATCH, ROWS, KEYS, HEADS, DIM = 2, 5, 9, 4, 16


def wrap(function):
    """What ComfyUI does around each attention function: the override gets the function and the
    call."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        kwargs.pop("preferred_attention", None)
        if "_inside_attn_wrapper" not in kwargs:
            kwargs["_inside_attn_wrapper"] = True
            override = kwargs.get("transformer_options", {}).get("optimized_attention_override")
            if override is not None:
                return override(function, *args, **kwargs)
        return function(*args, **kwargs)

    return wrapper


@wrap
def comfy_attention(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False,
                    skip_output_reshape=False, **options):  # fmt: skip
    """ComfyUI's documented call on torch's attention."""
    if not skip_reshape:
        dim = q.shape[-1] // heads
        q, k, v = (x.unflatten(-1, (x.shape[-1] // dim, dim)).transpose(1, 2) for x in (q, k, v))
    if mask is not None:
        mask = mask.unsqueeze(0) if mask.dim() == 2 else mask
        mask = mask.unsqueeze(1) if mask.dim() == 3 else mask
    out = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, scale=options.get("scale"),
        enable_gqa=options.get("enable_gqa", False),
    )  # fmt: skip
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)


class Patcher:
    """A model patcher: clone() copies the options."""

    def __init__(self, model_options=None):
        self.model_options = model_options or {"transformer_options": {"patches": {}}}

    def clone(self):
        return Patcher(copy.deepcopy(self.model_options))


def qkv(kv_heads=HEADS, skip_reshape=False, rows=ROWS):
    generator = torch.Generator().manual_seed(0)
    shapes = [(rows, HEADS), (KEYS, kv_heads), (KEYS, kv_heads)]
    tensors = [torch.randn(BATCH, r, h * DIM, generator=generator) for r, h in shapes]
    if skip_reshape:
        return [x.unflatten(-1, (-1, DIM)).transpose(1, 2).contiguous() for x in tensors]
    return tensors


def options(override):
    return {"transformer_options": {"optimized_attention_override": override}}


def both(q, k, v, *args, **kwargs):
    override = comfyui.Override()
    ours = comfy_attention(q, k, v, HEADS, *args, **kwargs, **options(override))
    assert override.calls.total() == 1 and {name for name, _ in override.calls} == {"cpu"}
    return ours, comfy_attention(q, k, v, HEADS, *args, **kwargs)


def assert_same(pair):
    ours, theirs = pair
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("skip_output_reshape", [False, True])
@pytest.mark.parametrize("skip_reshape", [False, True])
def test_layouts(skip_reshape, skip_output_reshape):
    assert_same(both(*qkv(skip_reshape=skip_reshape), skip_reshape=skip_reshape,
                     skip_output_reshape=skip_output_reshape))  # fmt: skip


@pytest.mark.parametrize("skip_reshape", [False, True])
def test_scale_and_grouped_heads(skip_reshape):
    assert_same(both(*qkv(kv_heads=2, skip_reshape=skip_reshape), skip_reshape=skip_reshape,
                     scale=0.4, enable_gqa=True))  # fmt: skip


def test_precision_arguments():
    assert_same(both(*qkv(), attn_precision=torch.float32, low_precision_attention=False))


def test_half_precision_keeps_its_dtype():
    q, k, v = (x.bfloat16() for x in qkv())
    out = comfy_attention(q, k, v, HEADS, **options(comfyui.optimized_attention_override))
    exact = comfy_attention(*(x.float() for x in (q, k, v)), HEADS)
    assert out.dtype == torch.bfloat16
    assert torch.linalg.vector_norm(out.float() - exact) < 4e-3 * torch.linalg.vector_norm(exact)


KEEP = torch.arange(KEYS) < torch.tensor([[4], [9]])
MASKS = {
    "bool [B, 1, 1, K]": KEEP[:, None, None],
    "bool [B, Sq, K]": KEEP[:, None].repeat(1, ROWS, 1),
    "bool [1, K] for all samples": KEEP[:1],
    "float [Sq, K] for all samples": torch.zeros(ROWS, KEYS).masked_fill(~KEEP[:1], float("-inf")),
    "float [B, 1, Sq, K]": ((1 - KEEP.float()) * -torch.finfo(torch.float32).max)[:, None, None]
    .expand(-1, 1, ROWS, -1),
}  # fmt: skip


@pytest.mark.parametrize("kind", MASKS)
def test_padding_masks(kind):
    mask = MASKS[kind]
    assert_same(both(*qkv(), mask))
    assert_same(both(*qkv(), mask=mask))


def test_masks_of_every_rank_and_equal_sizes_are_read_as_comfyui_reads_them():
    served = 0
    for batch, heads, rows, keys in itertools.product((1, 3), (1, 3), (1, 3, 4), (1, 3, 4)):
        generator = torch.Generator().manual_seed(0)
        q, k, v = (
            torch.randn(batch, n, heads * DIM, generator=generator) for n in (rows, keys, keys)
        )
        for whole in ((rows, keys), (batch, rows, keys), (batch, heads, rows, keys)):
            choices = [{1, batch, size} for size in whole]
            for shape in itertools.product(*choices):
                lengths = torch.randint(1, shape[-1] + 1, (*shape[:-1], 1), generator=generator)
                mask = torch.arange(shape[-1]) < lengths
                try:
                    theirs = comfy_attention(q, k, v, heads, mask)
                except RuntimeError:
                    theirs = None
                for equal in (mask, mask[..., :1, :].expand(shape)):
                    try:
                        ours = comfyui.attention(q, k, v, heads, equal)
                    except (batten.Unsupported, batten.InvalidArgument):
                        continue
                    served += 1
                    assert theirs is not None, (shape, batch, heads, rows, keys)
                    assert_same((ours, comfy_attention(q, k, v, heads, equal)))
    assert served > 200


def test_rows_of_samples_are_no_rows_of_queries():
    """[B, K] is no mask of ComfyUI's, even where B is Sq."""
    q, k, v = qkv(rows=BATCH)
    with pytest.raises(batten.Unsupported, match="query to query"):
        comfyui.attention(q, k, v, HEADS, KEEP)
    with pytest.raises(batten.InvalidArgument, match="2 where the queries are"):
        comfyui.attention(*qkv(), HEADS, KEEP)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_a_mask_of_one_value_for_all_keys(dtype):
    mask = torch.ones(BATCH, ROWS, 1, dtype=dtype)
    assert_same(both(*qkv(), mask))


BIAS = torch.linspace(0, 1, KEYS).expand(1, 1, 1, KEYS)


def test_other_masks_raise():
    with pytest.raises(batten.Unsupported, match="different biases"):
        comfy_attention(*qkv(), HEADS, BIAS, **options(comfyui.optimized_attention_override))
    triangle = torch.ones(ROWS, KEYS, dtype=torch.bool).tril()
    with pytest.raises(batten.Unsupported, match="query to query"):
        comfy_attention(*qkv(), HEADS, triangle, **options(comfyui.optimized_attention_override))


def test_fallback_is_asked_for_and_said_once(caplog):
    override = comfyui.Override(fallback=True)
    expected = comfy_attention(*qkv(), HEADS, BIAS)
    for _ in range(3):
        out = comfy_attention(*qkv(), HEADS, BIAS, **options(override))
        assert torch.equal(out, expected)
    ((where, reason),) = override.calls
    assert where == "ComfyUI" and "biases" in reason and override.calls.total() == 3
    assert [record.name for record in caplog.records] == ["batten.comfyui"]
    comfy_attention(*qkv(), HEADS, **options(override))
    assert {name for name, _ in override.calls} == {"ComfyUI", "cpu"}


def test_wrong_inputs_raise_even_with_fallback():
    override = comfyui.Override(fallback=True)
    q, k, v = qkv()
    for wrong, message in (
        ((q[..., :-1], k, v), r"H = 4"),
        ((q, k[..., :-1], v), "k .*heads of 16"),
    ):
        with pytest.raises(batten.InvalidArgument, match=message):
            override(None, *wrong, HEADS)
    with pytest.raises(batten.InvalidArgument, match="skip_reshape"):
        override(None, q, k, v, HEADS, skip_reshape=True)
    q, k, v = qkv(kv_heads=2, skip_reshape=True)
    with pytest.raises(batten.InvalidArgument, match="only with enable_gqa"):
        override(None, q, k, v, HEADS, skip_reshape=True)


@pytest.mark.parametrize(
    "dtypes",
    [
        [torch.float64] * 3,
        [torch.float64, torch.float32, torch.float32],
        [torch.bfloat16, torch.float32, torch.float32],
        [torch.float32, torch.float16, torch.float32],
    ],
)
def test_other_dtypes_are_given_back(dtypes):
    tensors = [x.to(dtype) for x, dtype in zip(qkv(), dtypes, strict=True)]
    override = comfyui.Override("cpu", fallback=True)
    assert override(lambda *_, **__: "ComfyUI's own", *tensors, HEADS) == "ComfyUI's own"
    with pytest.raises(batten.Unsupported, match="float16, bfloat16 or float32, all of one"):
        comfyui.attention(*tensors, HEADS)


def test_no_heads():
    for skip_reshape in (False, True):
        with pytest.raises(batten.InvalidArgument, match="heads = 0: expected at least 1"):
            comfyui.attention(*qkv(skip_reshape=skip_reshape), 0, skip_reshape=skip_reshape)


@pytest.mark.parametrize("backend", ["bogus", "cpu:bogus", "CPU", "", 3])
def test_an_unknown_backend_is_an_error_at_once(backend):
    for make in (comfyui.Override, lambda b: comfyui.apply(Patcher(), b, fallback=True)):
        with pytest.raises(batten.InvalidArgument, match="backend="):
            make(backend)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_a_backend_that_cannot_run_is_an_error_at_once():
    with pytest.raises(batten.Unavailable, match="backend cudnn cannot run here"):
        comfyui.apply(Patcher(), "cudnn")
    comfyui.apply(Patcher(), "cudnn", fallback=True)  # a workflow that is to run anywhere


def test_a_fake_call_is_not_counted(monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    fake = [mode.from_tensor(x) for x in qkv()]
    override = comfyui.Override("cpu")
    with monkeypatch.context() as patch:
        patch.setattr(batten, "last_receipt", lambda: None)  # as in a thread's first call
        override(None, *fake, HEADS)
    batten.attention(*(x.unflatten(2, (HEADS, DIM)) for x in qkv()), backend="reference")
    override(None, *fake, HEADS)  # nor may it take that receipt
    assert not override.calls
    override(None, *qkv(), HEADS)
    assert {name for name, _ in override.calls} == {"cpu"} and override.calls.total() == 1


def test_an_unknown_argument_is_refused():
    with pytest.raises(batten.Unsupported, match="softcap=3.0"):
        comfyui.attention(*qkv(), HEADS, softcap=3.0)
    comfyui.attention(*qkv(), HEADS, transformer_options={"block": 3}, softcap=None)


def test_a_named_backend_that_is_not_here_raises():
    with pytest.raises(batten.Error):
        comfyui.attention(*qkv(), HEADS, backend="cudnn")


def test_apply_patches_a_clone():
    model = Patcher()
    patched = comfyui.apply(model, backend="cpu", fallback=True)
    assert "optimized_attention_override" not in model.model_options["transformer_options"]
    override = patched.model_options["transformer_options"]["optimized_attention_override"]
    assert override.backend == "cpu" and override.fallback
    assert patched.model_options["transformer_options"]["patches"] == {}
    out = comfy_attention(*qkv(), HEADS, **patched.model_options)
    torch.testing.assert_close(out, comfy_attention(*qkv(), HEADS), rtol=2e-5, atol=2e-6)
    copied = patched.clone().model_options["transformer_options"]["optimized_attention_override"]
    assert copied is override and override.calls.total() == 1


def test_apply_does_not_displace_another_override():
    model = Patcher({"transformer_options": {"optimized_attention_override": print}})
    with pytest.raises(batten.InvalidArgument, match="replace=True"):
        comfyui.apply(model)
    patched = comfyui.apply(model, replace=True)
    assert isinstance(
        patched.model_options["transformer_options"]["optimized_attention_override"],
        comfyui.Override)  # fmt: skip
    assert model.model_options["transformer_options"]["optimized_attention_override"] is print


def test_the_node():
    (node,) = comfyui.NODE_CLASS_MAPPINGS.values()
    inputs = node.INPUT_TYPES()["required"]
    assert inputs["backend"][0][0] == "auto" and "cpu" in inputs["backend"][0]
    (patched,) = node().patch(Patcher(), backend="cpu", fallback=False)
    override = patched.model_options["transformer_options"]["optimized_attention_override"]
    assert override.backend == "cpu" and getattr(node(), node.FUNCTION)
    assert set(comfyui.NODE_DISPLAY_NAME_MAPPINGS) == set(comfyui.NODE_CLASS_MAPPINGS)


def test_register(monkeypatch):
    with pytest.raises(batten.Unavailable, match="register_attention_function is not here"):
        comfyui.register()
    module = types.ModuleType("comfy.ldm.modules.attention")
    module.REGISTERED_ATTENTION_FUNCTIONS = {}
    module.register_attention_function = module.REGISTERED_ATTENTION_FUNCTIONS.__setitem__
    module.wrap_attn = wrap
    for name in ("comfy", "comfy.ldm", "comfy.ldm.modules"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "comfy.ldm.modules.attention", module)
    function = comfyui.register(backend="cpu")
    assert module.REGISTERED_ATTENTION_FUNCTIONS == {"batten": function}
    assert comfyui.register() is function
    torch.testing.assert_close(function(*qkv(), HEADS), comfy_attention(*qkv(), HEADS),
                               rtol=2e-5, atol=2e-6)  # fmt: skip
    swapped = function(*qkv(), HEADS, **options(lambda *_, **__: "another override"))
    assert swapped == "another override"
