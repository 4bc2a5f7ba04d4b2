"""batten on torch tensors on the CPU: the call, the ops, torch.compile."""

import subprocess
import sys
import warnings

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")
import batten  # noqa: E402
import batten.torch  # noqa: E402
from batten import _torch_calls  # noqa: E402

pytestmark = pytest.mark.torch
OPS = ["attention", "attention_lse", "attention_packed", "attention_packed_lse"]
NAMES = {torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def tensors(dtype=torch.float32, batch=2, sq=5, skv=7, heads=4, kv_heads=2, dim=16, seed=0):
    rng = torch.Generator().manual_seed(seed)
    shapes = [(batch, sq, heads, dim), (batch, skv, kv_heads, dim), (batch, skv, kv_heads, dim)]
    return [torch.randn(shape, generator=rng).to(dtype) for shape in shapes]


def check(out, q, k, v, lse=None, **options):
    dtype = NAMES[q.dtype]
    expected = oracle.attention(*(t.detach().float().numpy() for t in (q, k, v)), **options)
    oracle.assert_close(
        out.detach().float().numpy(), expected, dtype, None if lse is None else lse.numpy()
    )


def ways():
    """Each way to the same attention."""
    return {
        "call": lambda q, k, v, **o: batten.attention(q, k, v, return_lse=True, **o),
        "front": lambda q, k, v, **o: batten.torch.attention(q, k, v, return_lse=True, **o),
        "op": lambda q, k, v, causal=False, **o: torch.ops.batten.attention_lse(
            q, k, v, "causal" if causal else "none", **o
        ),
    }


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.get)
@pytest.mark.parametrize("causal", [False, True])
def test_matches_float64(way, dtype, causal):
    q, k, v = tensors(dtype)
    lengths = torch.tensor([7, 3])
    out, lse = ways()[way](q, k, v, causal=causal, scale=0.4, kv_lengths=lengths)
    assert out.dtype == dtype and out.is_contiguous()
    check(out, q, k, v, lse, mask="causal" if causal else "none", scale=0.4, kv_lengths=[7, 3])


@pytest.mark.parametrize("way", ways())
def test_strided_views(way):
    rng = torch.Generator().manual_seed(1)
    q, k, v = torch.randn(2, 5, 3, 4, 16, generator=rng).unbind(2)
    out, lse = ways()[way](q, k, v)
    check(out, q, k, v, lse)
    heads_first = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v)]
    assert torch.equal(ways()[way](*heads_first)[0], out)


@pytest.mark.parametrize("direct", [True, False])
def test_addresses_by_either_way(direct, monkeypatch):
    """Through DLPack's C interface where torch has it, and by attributes where it has not."""
    if direct and not _torch_calls._DIRECT:
        pytest.skip("this torch has no C exchange interface of DLPack")
    monkeypatch.setattr(_torch_calls, "_DIRECT", direct)
    q, k, v = tensors(torch.bfloat16)
    lengths = torch.tensor([7, 3], dtype=torch.int32)
    out, lse = batten.attention(q, k, v, kv_lengths=lengths, return_lse=True)
    check(out, q, k, v, lse, kv_lengths=[7, 3])
    batten.merge(out, lse, torch.zeros_like(out), torch.full_like(lse, -torch.inf))
    check(out, q, k, v, lse, kv_lengths=[7, 3])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8])
def test_lengths_of_any_integers(dtype):
    q, k, v = tensors()
    lengths = torch.tensor([7, 3], dtype=dtype)
    for way in ways().values():
        check(way(q, k, v, kv_lengths=lengths)[0], q, k, v, kv_lengths=[7, 3])


def test_lengths_of_other_kinds():
    q, k, v = tensors()
    every_other = torch.tensor([7, 0, 3, 0])[::2]
    for lengths in ([7, 3], np.array([7, 3]), every_other):
        check(batten.attention(q, k, v, kv_lengths=lengths), q, k, v, kv_lengths=[7, 3])
        check(batten.torch.attention(q, k, v, kv_lengths=lengths), q, k, v, kv_lengths=[7, 3])


def test_different_value_head_dim_and_float32_output():
    q, k, v = tensors(torch.bfloat16)
    v = torch.cat([v, v], dim=-1)
    out = batten.attention(q, k, v, float32_output=True)
    assert out.dtype == torch.float32 and out.shape == (2, 5, 4, 32)
    check(out, q, k, v)


def test_packed_call_and_ops():
    q, k, v = (t.flatten(0, 1) for t in tensors())
    oq, okv = torch.tensor([0, 5, 10]), torch.tensor([0, 7, 14])
    out, lse = batten.attention_packed(q, k, v, offsets_q=oq, offsets_kv=okv, return_lse=True)
    check(out.unflatten(0, (2, 5)), *tensors(), lse.unflatten(0, (2, 5)))
    assert torch.equal(torch.ops.batten.attention_packed(q, k, v, oq, okv), out)
    assert torch.equal(torch.ops.batten.attention_packed_lse(q, k, v, oq, okv)[1], lse)


def test_out_is_written():
    q, k, v = tensors()
    out = torch.full_like(q, torch.nan)
    assert batten.attention(q, k, v, out=out) is out
    check(out, q, k, v)


def test_parameters_and_empty_batches():
    q, k, v = (torch.nn.Parameter(t) for t in tensors())
    with torch.no_grad():
        check(batten.attention(q, k, v), q, k, v)
    assert batten.attention(*(t.detach()[:0] for t in (q, k, v))).shape == (0, 5, 4, 16)


WRONG = {
    "dtype": (dict(q=torch.zeros(2, 5, 4, 16, dtype=torch.float64)), "float64"),
    "mixed": (dict(k=torch.zeros(2, 7, 2, 16, dtype=torch.float16)), "dtype"),
    "frameworks": (dict(k=np.zeros((2, 7, 2, 16), np.float32)), "one framework"),
    "meta": (dict(q=torch.zeros(2, 5, 4, 16, device="meta")), "meta"),
    "lengths": (dict(kv_lengths=torch.tensor([8, 1])), "kv_lengths[0] is 8"),
    "lengths' dtype": (dict(kv_lengths=torch.tensor([1.0, 1.0])), "expected integers"),
    "lengths' range": (dict(kv_lengths=torch.tensor([2**32, 1])), "does not fit"),
    "causal": (dict(causal="left"), "causal='left'"),
    "stride": (dict(q=torch.zeros(2, 5, 16, 4).transpose(2, 3)), "last dimension"),
    "out": (dict(out=torch.zeros(2, 5, 4, 8)), "out"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_one_line(name):
    change, text = WRONG[name]
    q, k, v = tensors()
    with pytest.raises(batten.InvalidArgument) as caught:
        batten.attention(**{"q": q, "k": k, "v": v, **change})
    assert text in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("which", range(3))
def test_gradient_is_refused(way, which):
    inputs = tensors()
    inputs[which].requires_grad_()
    with pytest.raises(batten.Unsupported, match="no_grad"):
        ways()[way](*inputs)
    with torch.inference_mode():
        check(ways()[way](*inputs)[0], *inputs)


def test_gradient_is_refused_under_compile():
    q, k, v = tensors()
    q.requires_grad_()
    for function in (batten.attention, batten.torch.attention, torch.ops.batten.attention):
        torch.compiler.reset()
        # With fullgraph dynamo raises an error of its own, which quotes ours.
        with pytest.raises(Exception, match="batten is for inference only"):
            torch.compile(lambda *a, f=function: f(*a) + 1, fullgraph=True, backend="eager")(
                q, k, v
            )
        with torch.no_grad():
            out = torch.compile(lambda *a, f=function: f(*a), fullgraph=True, backend="eager")(
                q, k, v
            )
        check(out, q, k, v)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck(name, dtype):
    q, k, v = tensors(dtype)
    samples = [
        ((q, k, v), {}),
        ((q, k, v, "causal", 0.3, torch.tensor([7, 3], dtype=torch.int32)), {}),
        ((q, k, v), dict(q_lengths=torch.tensor([0, 5]), float32_output=True, backend="reference")),
    ]
    if "packed" in name:
        q, k, v = (t.flatten(0, 1) for t in (q, k, v))
        offsets = torch.tensor([0, 5, 10]), torch.tensor([0, 7, 14])
        samples = [((q, k, v, *offsets), {}), ((q, k, v, *offsets, 5, 7, "top_left"), {})]
    for arguments, named in samples:
        result = torch.library.opcheck(getattr(torch.ops.batten, name).default, arguments, named)
        assert set(result.values()) == {"SUCCESS"}


def test_fake_agrees_in_dtype_shape_and_strides():
    from torch._subclasses.fake_tensor import FakeTensorMode

    q, k, v = tensors(torch.bfloat16)
    v = torch.cat([v, v], dim=-1).transpose(1, 2).contiguous().transpose(1, 2)
    real = torch.ops.batten.attention_lse(q, k, v)
    with FakeTensorMode() as mode:
        fake = torch.ops.batten.attention_lse(*(mode.from_tensor(t) for t in (q, k, v)))
    for a, b in zip(real, fake):
        assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())


FRONTS = pytest.mark.parametrize("front", ["call", "front"])


def front_of(name):
    return batten.attention if name == "call" else batten.torch.attention


@FRONTS
def test_transforms_of_torch_func(front):
    function = front_of(front)
    q, k, v = tensors(batch=3)
    out = torch.func.vmap(lambda q: function(q[None], k[:1], v[:1])[0])(q)
    check(out, q, *(t[:1].expand(3, -1, -1, -1) for t in (k, v)))
    with pytest.raises(batten.Unsupported, match="no_grad"):
        torch.func.grad(lambda q: function(q, k, v).sum())(q)


@FRONTS
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_tracers_see_the_op(front, mode):
    from torch.fx.experimental.proxy_tensor import make_fx

    traced = make_fx(lambda *a: front_of(front)(*a), tracing_mode=mode)(*tensors())
    targets = [str(node.target) for node in traced.graph.nodes]
    assert targets[-2:] == ["batten.attention.default", "output"]


COMPILED = {
    "call": lambda q, k, v, n: batten.attention(q, k, v, causal=True, kv_lengths=n) * 2,
    "front": lambda q, k, v, n: batten.torch.attention(q, k, v, causal=True, kv_lengths=n) * 2,
    "lse": lambda q, k, v, n: batten.attention(
        q, k, v, causal=True, kv_lengths=n, return_lse=True, q_lengths=[5, 5]
    )[0] * 2,
}  # fmt: skip


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_without_a_graph_break(name):
    torch.compiler.reset()
    q, k, v = tensors()
    function = COMPILED[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for lengths in ([7, 3], [1, 0]):
        n = torch.tensor(lengths)
        assert torch.equal(compiled(q, k, v, n), function(q, k, v, n))
        check(compiled(q, k, v, n) / 2, q, k, v, mask="causal", kv_lengths=lengths)


def test_compiles_with_dynamic_shapes():
    torch.compiler.reset()
    compiled = torch.compile(
        lambda q, k, v: batten.torch.attention(q, k, v),
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for size in (5, 6, 9):
        q, k, v = tensors(sq=size, skv=size + 2)
        check(compiled(q, k, v), q, k, v)


def test_packed_compiles():
    torch.compiler.reset()
    q, k, v = (t.flatten(0, 1) for t in tensors())
    call = lambda q, k, v, oq: batten.attention_packed(  # noqa: E731
        q, k, v, offsets_q=oq, offsets_kv=[0, 7, 14]
    )
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    oq = torch.tensor([0, 5, 10])
    assert torch.equal(compiled(q, k, v, oq), call(q, k, v, oq))


def test_exports():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return batten.attention(q, k, v)

    q, k, v = tensors()
    program = torch.export.export(Layer(), (q, k, v))
    assert "batten.attention" in str(program.graph)
    check(program.module()(q, k, v), q, k, v)


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_casts_and_says_so_once(compiled, monkeypatch):
    monkeypatch.setattr(_torch_calls, "_cast_was_said", False)
    torch.compiler.reset()
    q, k, v = tensors()
    function = batten.torch.attention
    if compiled:
        function = torch.compile(
            lambda *a: batten.torch.attention(*a), fullgraph=True, backend="eager"
        )
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.warns(UserWarning, match="cast to torch.bfloat16"):
            out = function(q, k, v)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            mixed = function(q, k.bfloat16(), v.bfloat16())
    halves = [t.bfloat16() for t in (q, k, v)]
    assert out.dtype == torch.float32 and mixed.dtype == torch.float32
    assert torch.equal(out, batten.torch.attention(*halves).float())
    assert torch.equal(mixed, out)


def test_float32_on_the_cpu_is_not_cast(recwarn):
    q, k, v = tensors()
    check(batten.torch.attention(q, k, v), q, k, v)
    assert not [w for w in recwarn if "batten" in str(w.message)]


def test_check_takes_torch_s_devices_and_dtypes():
    batten.check(device=torch.device("cpu"), dtype=torch.bfloat16, num_heads=2, head_dim=8)


def test_torch_may_be_imported_after_batten():
    code = (
        "import batten, torch; q = torch.zeros(1, 2, 1, 8); print(batten.attention(q, q, q).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert "torch.Size([1, 2, 1, 8])" in done.stdout, done.stderr
