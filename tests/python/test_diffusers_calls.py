"""Single calls of diffusers' dispatcher: masks and options, served or refused, on the CPU."""

import itertools
import shutil
import types

import pytest
from diffusers_here import batten, dispatch, registry, torch

hypothesis = pytest.importorskip("hypothesis", reason="hypothesis is not installed")
st = hypothesis.strategies

pytestmark = pytest.mark.torch


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
