"""batten on torch tensors on a GPU: streams, CUDA graphs, casts, devices."""

import pytest

torch = pytest.importorskip("torch")
import batten  # noqa: E402
import batten.torch  # noqa: E402
from batten import _torch_calls  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.cuda]
BACKENDS = ["auto", "cudnn", "single", "native"]


def tensors(dtype=torch.bfloat16, batch=2, sq=64, skv=96, heads=4, kv_heads=2, dim=128, seed=0):
    rng = torch.Generator("cuda").manual_seed(seed)
    shapes = [(batch, sq, heads, dim), (batch, skv, kv_heads, dim), (batch, skv, kv_heads, dim)]
    return [torch.randn(shape, generator=rng, device="cuda").to(dtype) for shape in shapes]


def expected(q, k, v, kv_lengths=None):
    """In float64, by torch; [B, S, H, D]."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if kv_lengths is not None:
        seen = torch.arange(k.shape[2], device="cuda") < kv_lengths[:, None]
        logits = logits.masked_fill(~seen[:, None, None], float("-inf"))
    weights = logits.softmax(-1)
    return (weights @ v).transpose(1, 2), (weights @ v.abs()).transpose(1, 2)


def check(out, q, k, v, kv_lengths=None, tolerance=4e-3):
    reference, bound = expected(q, k, v, kv_lengths)
    error = (out.double() - reference).norm(dim=-1)
    assert torch.all(error <= 4 * tolerance * bound.norm(dim=-1)), error.max()


def or_skip(function):
    try:
        return function()
    except (batten.Unavailable, batten.Unsupported) as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_matches_float64(backend, dtype):
    q, k, v = tensors(dtype)
    for call in (batten.attention, batten.torch.attention):
        out = or_skip(lambda c=call: c(q, k, v, backend=backend))
        check(out, q, k, v)
        assert backend in ("auto", batten.last_receipt()["backend"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_lengths_on_either_side(backend, dtype, device):
    q, k, v = tensors()
    lengths = torch.tensor([96, 17], dtype=dtype, device=device)
    out = or_skip(
        lambda: batten.torch.attention(
            q, k, v, kv_lengths=lengths, backend=backend, padding_is_finite=True
        )
    )
    check(out, q, k, v, lengths.cuda())


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_on_the_current_stream(backend):
    q, k, v = tensors(sq=512, skv=512)
    or_skip(lambda: batten.attention(q, k, v, backend=backend))
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # The inputs change on this stream, late: a call on another stream would read the old ones.
        torch.cuda._sleep(50_000_000)
        q.mul_(-1)
        k.add_(0.5)
        out = batten.attention(q, k, v, backend=backend)
    stream.synchronize()
    check(out, q, k, v)


@pytest.mark.parametrize("call", ["call", "front"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_graph_replays_with_new_contents(backend, call):
    function = batten.attention if call == "call" else batten.torch.attention
    q, k, v = tensors()
    lengths = torch.tensor([96, 17], dtype=torch.int32, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        or_skip(
            lambda: function(q, k, v, kv_lengths=lengths, backend=backend, padding_is_finite=True)
        )
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = or_skip(
            lambda: function(q, k, v, kv_lengths=lengths, backend=backend, padding_is_finite=True)
        )
    for seed, new in ((1, [5, 96]), (2, [64, 1])):
        for old, fresh in zip((q, k, v), tensors(seed=seed)):
            old.copy_(fresh)
        lengths.copy_(torch.tensor(new))
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check(out, q, k, v, lengths)


def test_nothing_synchronises():
    q, k, v = tensors()
    lengths = torch.tensor([96, 17], device="cuda")  # int64: converted on the device
    options = {"kv_lengths": lengths, "padding_is_finite": True}
    batten.torch.attention(q, k, v, **options)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        batten.torch.attention(q, k, v, **options)
        batten.attention(q, k, v, **options)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("compiled", [False, True])
def test_float32_is_cast_to_bfloat16(compiled, monkeypatch):
    monkeypatch.setattr(_torch_calls, "_cast_was_said", False)
    torch.compiler.reset()
    q, k, v = tensors(torch.float32)
    function = batten.torch.attention
    if compiled:
        function = torch.compile(lambda *a: batten.torch.attention(*a), fullgraph=True)
    with pytest.warns(UserWarning, match="cast to torch.bfloat16"):
        out = function(q, k, v)
    assert out.dtype == torch.float32
    halves = [t.bfloat16() for t in (q, k, v)]
    assert torch.equal(out, batten.torch.attention(*halves).float())
    assert torch.equal(batten.attention(q, k, v), out)


def test_float32_stays_with_the_reference():
    q, k, v = tensors(torch.float32, sq=8, skv=16)
    check(or_skip(lambda: batten.attention(q, k, v, backend="reference")), q, k, v, tolerance=2e-6)


def test_opcheck():
    q, k, v = tensors()
    lengths = torch.tensor([96, 17], device="cuda", dtype=torch.int32)
    for op in (torch.ops.batten.attention, torch.ops.batten.attention_lse):
        result = torch.library.opcheck(op.default, (q, k, v, "none", None, lengths, None, True))
        assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_compiles(mode):
    torch.compiler.reset()
    q, k, v = tensors()
    compiled = torch.compile(
        lambda *a: batten.attention(*a, causal=False) * 1, fullgraph=True, mode=mode
    )
    for _ in range(4):
        out = compiled(q, k, v).clone()
        check(out, q, k, v)


def test_packed_with_offsets_on_the_device():
    q, k, v = tensors()
    oq = torch.tensor([0, 64, 128], device="cuda", dtype=torch.int32)
    okv = torch.tensor([0, 96, 192], device="cuda", dtype=torch.int32)
    flat = [t.flatten(0, 1) for t in (q, k, v)]
    out = batten.attention_packed(
        *flat, offsets_q=oq, offsets_kv=okv, max_q=64, max_kv=96, padding_is_finite=True
    )
    check(out.unflatten(0, (2, 64)), q, k, v)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_device_other_than_the_current_one():
    q, k, v = (t.to("cuda:1") for t in tensors())
    out = batten.attention(q, k, v)
    assert out.device == q.device and torch.cuda.current_device() == 0
    torch.cuda.synchronize(1)
    check(out.to("cuda:0"), *(t.to("cuda:0") for t in (q, k, v)))


def test_merge_on_the_device():
    q, k, v = tensors()
    parts = [
        batten.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(40), slice(40, None))
    ]
    batten.merge(*parts[0], *parts[1])
    check(parts[0][0], q, k, v, tolerance=8e-3)


def test_lengths_of_the_device_with_cpu_tensors():
    q, k, v = (t.float().cpu() for t in tensors(sq=4, skv=6))
    lengths = torch.tensor([6, 2], device="cuda")
    out = batten.attention(q, k, v, kv_lengths=lengths)
    assert torch.equal(out, batten.attention(q, k, v, kv_lengths=[6, 2]))
