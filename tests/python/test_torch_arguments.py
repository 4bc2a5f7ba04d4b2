"""What batten refuses of torch tensors, and says, by every way to a call: odd tensors, derivatives,
lengths of nonsense, outputs."""

import batten
import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")
import batten.torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]
RNG = torch.Generator().manual_seed(0)
Q = torch.randn(2, 5, 4, 16, generator=RNG)
K, V = torch.randn(2, 2, 9, 2, 16, generator=RNG)
QKV = dict(q=Q, k=K, v=V)
NAMES = pytest.mark.parametrize("name", QKV)
FRONTS = {"call": batten.attention, "front": batten.torch.attention}
BY_FRONT = pytest.mark.parametrize("front", FRONTS)


def check(out, q=Q, k=K, v=V, **options):
    expected = oracle.attention(*(t.detach().numpy() for t in (q, k, v)), **options)
    oracle.assert_close(out.detach().numpy(), expected, "float32")


def compiled(function, **options):
    torch.compiler.reset()
    return torch.compile(function, backend="eager", **options)


def one_line(caught, *texts):
    message = str(caught.value)
    assert "\n" not in message and "null data pointer" not in message
    assert all(text in message for text in texts), message


# Lengths and offsets that are none.


def numpy_entry(lengths):
    return batten.attention(Q.numpy(), K.numpy(), V.numpy(), kv_lengths=lengths)


def numpy_packed_entry(lengths):
    q, k, v = (t.flatten(0, 1).numpy() for t in (Q, K, V))
    return batten.attention_packed(
        q, k, v, offsets_q=[0, 5, 10], offsets_kv=[0, 9, 18], kv_lengths=lengths
    )


def packed_entry(lengths):
    q, k, v = (t.flatten(0, 1) for t in (Q, K, V))
    return batten.attention_packed(
        q, k, v, offsets_q=[0, 5, 10], offsets_kv=[0, 9, 18], kv_lengths=lengths
    )


def autocast_entry(lengths):
    with torch.autocast("cpu", torch.bfloat16):
        return batten.attention(Q, K, V, kv_lengths=lengths)


def compiled_entry(front):
    return lambda lengths: compiled(lambda q, n: FRONTS[front](q, K, V, kv_lengths=n))(Q, lengths)


ENTRIES = {
    "numpy": numpy_entry,
    "numpy packed": numpy_packed_entry,
    "torch": lambda n: batten.attention(Q, K, V, kv_lengths=n),
    "packed": packed_entry,
    "front": lambda n: batten.torch.attention(Q, K, V, kv_lengths=n),
    "autocast": autocast_entry,
    "compiled": compiled_entry("call"),
    "compiled front": compiled_entry("front"),
}
BAD_LENGTHS = {
    "floats": lambda: [1.9, 2.2],
    "one float": lambda: (3, 2.0),
    "bools": lambda: [True, 3],
    "strings": lambda: ["1", "2"],
    "string": lambda: "ab",
    "bytes": lambda: b"\x01\x02",
    "set": lambda: {3, 4},
    "iterator": lambda: iter([3, 4]),
    "int": lambda: 3,
    "too large": lambda: [3, 2**32 + 1],
    "larger than int64": lambda: [3, 2**70],
    "past the keys": lambda: [3, 10],
    "negative": lambda: [-1, 3],
    "float array": lambda: np.array([1.5, 2.5]),
    "bool array": lambda: np.array([True, False]),
    "large array": lambda: np.array([3, 2**32 + 1]),
    "float tensor": lambda: torch.tensor([1.5, 2.5]),
    "bool tensor": lambda: torch.tensor([True, False]),
    "large tensor": lambda: torch.tensor([3, 2**32 + 1]),
    "large unsigned tensor": lambda: torch.tensor([3, 2**32 - 1]).to(torch.uint32),
    "column": lambda: torch.tensor([[3], [4]]),
    "too few": lambda: [3],
}


@pytest.mark.parametrize("bad", BAD_LENGTHS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_lengths_of_nonsense_are_refused(entry, bad):
    # The compiler wraps what is raised while it traces, and quotes it.
    quoted = (RuntimeError,) if "compiled" in entry else ()
    with pytest.raises((batten.InvalidArgument, *quoted), match="length") as caught:
        ENTRIES[entry](BAD_LENGTHS[bad]())
    if isinstance(caught.value, batten.Error):
        one_line(caught)
    else:
        assert "expected integers" in str(caught.value)


@pytest.mark.parametrize(
    "dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
@pytest.mark.parametrize("entry", ENTRIES)
def test_lengths_of_every_integer_dtype(entry, dtype):
    expected = torch.as_tensor(ENTRIES[entry]([3, 8]))
    lengths = torch.tensor([3, 8]).to(getattr(torch, dtype))
    strided = torch.stack([lengths.long()] * 2, 1).to(lengths.dtype)[:, 0]
    for given in (lengths, strided, lengths.numpy()):
        assert torch.equal(torch.as_tensor(ENTRIES[entry](given)), expected)


# Outputs.


def into(out, way):
    """attention() into out, by the ways that differ in how they write."""
    if way == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            return batten.attention(Q, K, V, out=out)
    if way == "compiled":
        return compiled(lambda q, k, v, o: batten.attention(q, k, v, out=o))(Q, K, V, out)
    if way == "vmap":
        return torch.vmap(lambda _: batten.attention(Q, K, V, out=out))(torch.zeros(1))
    return batten.attention(Q, K, V, out=out)


WAYS = pytest.mark.parametrize("way", ["direct", "autocast", "compiled"])
BAD_OUTPUTS = {
    "int32": lambda: torch.zeros(Q.shape, dtype=torch.int32),
    "int64": lambda: torch.zeros(Q.shape, dtype=torch.int64),
    "float64": lambda: torch.zeros(Q.shape, dtype=torch.float64),
    "bfloat16": lambda: torch.zeros(Q.shape, dtype=torch.bfloat16),
    "shape": lambda: torch.zeros(2, 5, 4, 8),
    "broadcast": lambda: torch.zeros(1, 5, 4, 16),
    "expanded": lambda: torch.zeros(1, 5, 4, 16).expand(2, 5, 4, 16),
    "q": lambda: Q,
    "meta": lambda: torch.zeros(Q.shape, device="meta"),
}


@WAYS
@pytest.mark.parametrize("bad", BAD_OUTPUTS)
def test_wrong_output_is_refused(way, bad):
    before = Q.clone()
    with pytest.raises(batten.InvalidArgument, match="out") as caught:
        into(BAD_OUTPUTS[bad](), way)
    one_line(caught)
    assert torch.equal(Q, before)


@pytest.mark.parametrize("shift", [0, 1, 3, 4])
def test_outputs_in_the_buffer_of_an_input(shift):
    """Slices that interleave are served, others refused, and autocast makes no difference."""
    seen = []
    for dtype in (None, torch.bfloat16):
        buffer = torch.randn(2, 5, 8, 16, generator=torch.Generator().manual_seed(1))
        q, out = buffer[:, :, :4], buffer[:, :, shift : shift + 4]
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype is not None):
            try:
                batten.attention(q, K, V, out=out)
                seen.append("served")
            except batten.InvalidArgument as error:
                seen.append("refused")
                assert "overlap" in str(error)
    assert seen == ["served" if shift == 4 else "refused"] * 2


def test_output_of_another_framework_is_refused():
    for q, out in ((Q, np.zeros(Q.shape, np.float32)), (Q.numpy(), torch.zeros(Q.shape))):
        k, v = (K, V) if q is Q else (K.numpy(), V.numpy())
        with pytest.raises(batten.InvalidArgument) as caught:
            batten.attention(q, k, v, out=out)
        one_line(caught)


@WAYS
def test_writing_raises_in_a_backward_pass_that_saved_the_output(way):
    out, weight = torch.ones(Q.shape), torch.ones(Q.shape, requires_grad=True)
    loss = (out * weight).sum()
    version = out._version
    with torch.no_grad():
        into(out, way)
    assert out._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@WAYS
def test_output_that_requires_a_gradient(way):
    out = torch.zeros(Q.shape, requires_grad=True)
    with pytest.raises(batten.Unsupported, match="gradient"):
        into(out, way)
    with torch.no_grad():
        into(out, way)
    assert out.detach().abs().sum() > 0


def parts():
    return [
        t
        for part in (slice(4), slice(4, None))
        for t in batten.attention(Q, K[:, part], V[:, part], return_lse=True)
    ]


@pytest.mark.parametrize("which", [0, 1])
def test_merge_counts_as_a_write(which):
    four = parts()
    weight = torch.ones(four[which].shape, requires_grad=True)
    loss = (four[which] * weight).sum()
    version = four[which]._version
    batten.merge(*four)
    assert four[which]._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    check(four[0])


@pytest.mark.parametrize("which", range(4))
def test_merge_of_a_tensor_that_requires_a_gradient(which):
    four = parts()
    four[which].requires_grad_()
    with pytest.raises(batten.Unsupported):
        batten.merge(*four)
    with torch.no_grad():
        batten.merge(*four)


def test_tensors_of_inference_mode_are_written():
    with torch.inference_mode():
        out = torch.zeros(Q.shape)
        batten.attention(Q, K, V, out=out)
    check(batten.attention(Q, K, V, out=out))


# Derivatives.


def dual(function, value):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(value, torch.ones_like(value)))


DERIVATIVES = {
    "backward": lambda f, x: f(x.clone().requires_grad_()).sum().backward(),
    "func.grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "dual": dual,
    "jacfwd": lambda f, x: torch.func.jacfwd(lambda y: f(y).sum())(x),
    "grad of vmap": lambda f, x: torch.func.grad(lambda y: torch.vmap(f)(y[None]).sum())(x),
    "jvp of vmap": lambda f, x: torch.func.jvp(lambda y: torch.vmap(f)(y[None]), (x,), (x,)),
    "compiled grad": lambda f, x: compiled(torch.func.grad(lambda y: f(y).sum()))(x),
    "compiled jvp": lambda f, x: compiled(lambda y: torch.func.jvp(f, (y,), (y,))[1])(x),
    "dual of compiled": lambda f, x: dual(compiled(f), x),
}


@BY_FRONT
@NAMES
@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_derivatives_are_refused(derivative, name, front):
    def function(value):
        return FRONTS[front](**{**QKV, name: value})

    with pytest.raises(batten.Unsupported, match="inference only") as caught:
        DERIVATIVES[derivative](function, QKV[name])
    one_line(caught)


@NAMES
@pytest.mark.parametrize("derivative", ["backward", "func.grad", "jvp", "dual"])
def test_derivatives_of_a_packed_call_are_refused(derivative, name):
    def function(value):
        flat = {n: t.flatten(0, 1) for n, t in {**QKV, name: value}.items()}
        return batten.attention_packed(**flat, offsets_q=[0, 5, 10], offsets_kv=[0, 9, 18])

    with pytest.raises(batten.Unsupported, match="inference only"):
        DERIVATIVES[derivative](function, QKV[name])


def test_a_dual_level_without_tangents_is_served():
    with forward_ad.dual_level():
        check(batten.attention(Q, K, V))
        check(batten.torch.attention(Q, K, V))


@pytest.mark.parametrize("name", ["k", "v"])
def test_torch_tensors_beside_numpy_are_refused(name):
    arguments = {n: t.numpy() for n, t in QKV.items()}
    for tensor in (QKV[name], QKV[name].clone().requires_grad_()):
        with pytest.raises(batten.InvalidArgument, match="one framework") as caught:
            batten.attention(**{**arguments, name: tensor})
        one_line(caught)


# Tensors that are not what lies at their address.


def negative(tensor):
    return torch._neg_view(-tensor)


class Subclass(torch.Tensor):
    pass


SAME = {
    "negative": negative,
    "subclass": lambda t: t.as_subclass(Subclass),
    "parameter": lambda t: torch.nn.Parameter(t, requires_grad=False),
    "lazy clone": torch._lazy_clone,
}


@BY_FRONT
@NAMES
@pytest.mark.parametrize("kind", SAME)
def test_odd_tensors_are_served(kind, name, front):
    odd = SAME[kind](QKV[name])
    check(torch.Tensor(FRONTS[front](**{**QKV, name: odd})))


@BY_FRONT
@NAMES
def test_vmap_over_any_argument(front, name):
    values = torch.stack([QKV[name], 2 * QKV[name]])
    out = torch.vmap(lambda x: FRONTS[front](**{**QKV, name: x}))(values)
    for i in range(2):
        check(out[i], **{**QKV, name: values[i]})


@BY_FRONT
def test_vmap_over_lengths(front):
    lengths = torch.tensor([[2, 3], [4, 5]], dtype=torch.int32)
    out = torch.vmap(lambda n: FRONTS[front](Q, K, V, kv_lengths=n))(lengths)
    for i in range(2):
        check(out[i], kv_lengths=lengths[i].tolist())


@BY_FRONT
@NAMES
def test_functionalize_over_any_argument(front, name):
    function = torch.func.functionalize(lambda x: FRONTS[front](**{**QKV, name: x}))
    check(function(QKV[name]))


LENGTHS = torch.tensor([3, 4], dtype=torch.int32)
UNREADABLE = {
    "sparse": (torch.Tensor.to_sparse, "qkv"),
    "meta": (lambda t: t.to("meta"), ["k", "v", "kv_lengths"]),
    "fake": (lambda t: FakeTensorMode().from_tensor(t), ["q", "k", "v", "kv_lengths"]),
    "mkldnn": (lambda t: t.to_mkldnn(), "qkv"),
    "nested": (lambda t: torch.nested.nested_tensor(list(t)), "qkv"),
    "jagged": (lambda t: torch.nested.nested_tensor(list(t), layout=torch.jagged), "qkv"),
    "zero": (lambda t: torch._efficientzerotensor(t.shape), "qkv"),
}


@pytest.mark.filterwarnings("ignore")
@BY_FRONT
@pytest.mark.parametrize(
    "kind, name", [(k, n) for k, (_, names) in UNREADABLE.items() for n in names]
)
def test_tensors_without_memory_are_one_line(kind, name, front):
    tensors = {**QKV, "kv_lengths": LENGTHS}
    tensors[name] = UNREADABLE[kind][0](tensors[name])
    with pytest.raises(batten.InvalidArgument) as caught:
        FRONTS[front](**tensors)
    one_line(caught, name)


def test_storage_that_was_freed_is_one_line():
    k = K.clone()
    k.untyped_storage().resize_(0)
    with pytest.raises(batten.InvalidArgument, match="k: its storage") as caught:
        batten.attention(Q, k, V)
    one_line(caught)


@pytest.mark.filterwarnings("ignore")
def test_merge_of_odd_tensors_is_one_line():
    for odd in (negative, lambda t: FakeTensorMode().from_tensor(t), lambda t: t.to("meta")):
        for which in range(4):
            four = parts()
            four[which] = odd(four[which])
            with pytest.raises(batten.Error) as caught:
                batten.merge(*four)
            one_line(caught)


@BY_FRONT
@NAMES
@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.int64, torch.bool])
def test_other_dtypes_are_refused(dtype, name, front):
    changed = {**QKV, name: QKV[name].to(dtype)}
    for arguments in (changed, {n: t.to(dtype) for n, t in QKV.items()}):
        with pytest.raises(batten.InvalidArgument, match="dtype|expected float") as caught:
            FRONTS[front](**arguments)
        one_line(caught)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(batten.InvalidArgument):
            FRONTS[front](**arguments)
        with pytest.raises((batten.InvalidArgument, RuntimeError), match="dtype|expected float"):
            compiled(lambda q, k, v: FRONTS[front](q, k, v))(**arguments)


# What ran, and what came out.


@BY_FRONT
def test_a_call_on_fake_tensors_leaves_no_receipt(front):
    batten.attention(Q, K, V, backend="reference")
    mode = FakeTensorMode()
    FRONTS[front](*(mode.from_tensor(t) for t in (Q, K, V)))
    assert batten.last_receipt() is None
    FRONTS[front](Q, K, V, backend="cpu")
    assert batten.last_receipt()["backend"] == "cpu"


@pytest.mark.parametrize("backend", ["", "fast"])
@pytest.mark.parametrize("entry", ["numpy", "call", "front", "check"])
def test_backends_that_are_none(entry, backend):
    with pytest.raises(batten.InvalidArgument, match="backend"):
        if entry == "numpy":
            batten.attention(Q.numpy(), K.numpy(), V.numpy(), backend=backend)
        elif entry == "check":
            batten.check(device="cpu", dtype="float32", num_heads=2, head_dim=8, backend=backend)
        else:
            FRONTS[entry](Q, K, V, backend=backend)


@pytest.mark.parametrize("shape", [(1, 5, 4, 16), (2, 1, 4, 16), (2, 5, 1, 16), (1, 1, 1, 16)])
def test_strides_of_dimensions_of_one_agree_with_the_fake_s(shape):
    strides = tuple(7 if n == 1 else s for n, s in zip(shape, torch.zeros(shape).stride()))
    q = torch.randn(512).as_strided(shape, strides)
    k = torch.randn(shape[0], 3, shape[2], 16)
    real = torch.ops.batten.attention_lse(q, k, k)
    mode = FakeTensorMode()
    fake = torch.ops.batten.attention_lse(*(mode.from_tensor(t) for t in (q, k, k)))
    assert [t.stride() for t in real] == [t.stride() for t in fake]
    assert real[0].stride() == torch.zeros(shape).stride()
