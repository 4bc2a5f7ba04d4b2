"""Padding masks as key lengths: every accepted form, every refusal, and the cache."""

import ctypes
import gc

import numpy as np
import oracle
import pytest

torch = pytest.importorskip("torch")
batten = pytest.importorskip("batten")

from batten import _masks  # noqa: E402
from batten._masks import LengthsCache, key_lengths  # noqa: E402

pytestmark = pytest.mark.torch

INF = float("inf")


def padding(lengths, rows):
    """A bool mask [B, rows] that keeps the first lengths[b] keys."""
    return torch.arange(rows)[None, :] < torch.tensor(lengths)[:, None]


def as_list(lengths):
    return None if lengths is None else lengths.tolist()


@pytest.mark.parametrize("form", ["2d", "3d", "4d", "4d heads expanded", "4d queries expanded"])
@pytest.mark.parametrize(
    "dtype", ["bool", "int64", "int32", "uint8", "additive", "finfo.min", "bf16 -10000"]
)
def test_forms_and_dtypes(form, dtype):
    # A row of finite biases keeps a key at least: the largest one's.
    least = 1 if dtype in ("finfo.min", "bf16 -10000") else 0
    keep = padding([3, least, 6, 7], 7)
    mask = {
        "bool": lambda: keep,
        "int64": lambda: keep.long() * 5,
        "int32": lambda: keep.int(),
        "uint8": lambda: keep.to(torch.uint8),
        "additive": lambda: torch.zeros(4, 7).masked_fill(~keep, -INF),
        "finfo.min": lambda: torch.zeros(4, 7).masked_fill(~keep, torch.finfo(torch.float32).min),
        "bf16 -10000": lambda: torch.zeros(4, 7, dtype=torch.bfloat16).masked_fill(~keep, -10000.0),
    }[dtype]()
    shaped = {
        "2d": lambda: mask,
        "3d": lambda: mask[:, None],
        "4d": lambda: mask[:, None, None],
        "4d heads expanded": lambda: mask[:, None, None].expand(-1, 12, -1, -1),
        "4d queries expanded": lambda: mask[:, None, None].expand(-1, 1, 99, -1),
    }[form]()
    lengths = key_lengths(shaped, 4, 7)
    assert lengths.dtype == torch.int32
    assert lengths.tolist() == [3, least, 6, 7]


def test_all_kept_is_none():
    for mask in (
        torch.ones(2, 5, dtype=torch.bool),
        torch.ones(2, 5, dtype=torch.int64),
        torch.zeros(2, 5),
        torch.full((2, 1, 1, 5), 1.0),
    ):
        assert key_lengths(mask, 2, 5) is None


def test_one_row_for_all_samples():
    assert as_list(key_lengths(padding([2], 5), 3, 5)) == [2, 2, 2]


def test_shorter_masks_speak_of_the_last_keys():
    mask = padding([2, 0, 4], 4)
    assert as_list(key_lengths(mask, 3, 10)) == [8, 6, 10]
    assert key_lengths(torch.ones(3, 4, dtype=torch.bool), 3, 10) is None
    with pytest.raises(batten.InvalidArgument, match="4 keys, but the call has 10"):
        key_lengths(mask, 3, 10, front_pad=False)


def test_empty_masks():
    assert key_lengths(torch.zeros(2, 0, dtype=torch.bool), 2, 3) is None
    assert key_lengths(torch.zeros(2, 0), 2, 0) is None


def test_a_bias_common_to_the_kept_keys_changes_no_softmax():
    mask = torch.tensor([[2.5, 2.5, -INF], [-3.0, -3.0, -3.0]])
    assert as_list(key_lengths(mask, 2, 3)) == [2, 3]
    with pytest.raises(batten.Unsupported, match="sample 0"):  # the padding in front has bias 0
        key_lengths(mask, 2, 4)


@pytest.mark.parametrize(
    "row",
    [
        [1.0, 1.0, 0.0],
        [0.0, -1.0, 0.0],
        [0.0, float("nan"), 0.0],
        [INF, INF, INF],
        [0.0, 0.0, float("nan")],
    ],
)
def test_biases_are_refused(row):
    with pytest.raises(
        batten.Unsupported, match="sample 1: a float mask that adds different biases"
    ):
        key_lengths(torch.tensor([[0.0, 0.0, 0.0], row]), 2, 3)


def test_a_key_is_dropped_by_what_its_bias_is_below_the_others():
    """Only where float32 cannot see it beside the others; and a row of equal biases keeps all."""
    for row, length in (
        ([0.0, 0.0, -9000.0], 2),
        ([100.0, 100.0, -8900.0], 2),
        ([-100.0, -INF, -INF], 1),
        ([-INF, -INF, -INF], 0),
    ):
        assert as_list(key_lengths(torch.tensor([row]), 1, 3)) == [length]
    lowest = torch.finfo(torch.float32).min
    for row in (
        [0.0, 0.0, -8900.0],
        [0.0, 0.0, -5001.0],
        [-5001.0, -5001.0, -INF],
        [-6000.0] * 3,
        [-10000.0] * 3,
        [lowest] * 3,
        [lowest, lowest, -INF],
        [129.0] * 3,
        [INF, 0.0, 0.0],
    ):
        for dtype in (torch.float32, torch.bfloat16):
            if lowest in row and dtype is torch.bfloat16:
                continue  # rounds to -inf
            with pytest.raises(batten.Unsupported, match="sample 0.*also where a sample keeps no"):
                key_lengths(torch.tensor([row], dtype=dtype), 1, 3)


@pytest.mark.parametrize("front", [0, 4])
def test_float_masks_are_never_other_than_torch_reads_them(front):
    """Random rows of the values that masks are made of: served as torch's attention computes them
    in float64, or refused."""
    generator = torch.Generator().manual_seed(front)
    values = torch.tensor([0.0, 0.0, -1.0, 2.0, -5001.0, -10000.0, -20000.0, -3.4e38, -INF])
    scores = torch.randn(7, 6 + front, generator=generator)
    served = 0
    for _ in range(2000):
        kinds = values[torch.randint(9, (2,), generator=generator)]
        length = int(torch.randint(0, 7, (), generator=generator))
        row = torch.where(torch.arange(6) < length, kinds[0], kinds[1])
        try:
            lengths = key_lengths(row[None], 1, 6 + front)
        except batten.Unsupported:
            continue
        served += 1
        whole = torch.cat([torch.zeros(front), row])
        # As torch adds it: in float32.
        expected = (scores + whole).double().softmax(-1).nan_to_num(0.0)
        kept = 6 + front if lengths is None else int(lengths)
        ours = torch.zeros_like(expected)
        ours[:, :kept] = scores[:, :kept].double().softmax(-1)
        torch.testing.assert_close(ours, expected, rtol=2e-5, atol=1e-7)
    assert 200 < served < 1900


@pytest.mark.parametrize("mask", [[[1, 0]], "numpy", 3, None])
def test_what_is_no_tensor_is_refused(mask):
    if mask == "numpy":
        mask = torch.ones(1, 2).numpy()
    with pytest.raises(batten.InvalidArgument, match="attention mask of type .*torch.as_tensor"):
        key_lengths(mask, 1, 2)


def test_float_ones_and_zeros_where_the_caller_means_keep():
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    assert as_list(key_lengths(mask, 2, 3, float_rule="keep")) == [2, 1]
    with pytest.raises(batten.InvalidArgument, match="expected one of additive, keep"):
        key_lengths(mask, 2, 3, float_rule="tokenizer")


@pytest.mark.parametrize("row", [[0, 1, 1], [1, 0, 1], [0, 0, 1]])
def test_the_first_sample_that_is_no_prefix_is_named(row):
    mask = torch.tensor([[1, 1, 0], row, [0, 1, 0]], dtype=torch.bool)
    with pytest.raises(batten.Unsupported, match="sample 1: a key is kept after a dropped one"):
        key_lengths(mask, 3, 3)


def test_masks_that_do_not_fit():
    with pytest.raises(batten.Unsupported, match="one row of keys for each query"):
        key_lengths(torch.ones(2, 1, 4, 5, dtype=torch.bool), 2, 5)
    with pytest.raises(batten.Unsupported, match="one row of keys for each query"):
        key_lengths(torch.ones(2, 4, 5, dtype=torch.bool), 2, 5)
    with pytest.raises(batten.Unsupported, match="one row of keys for each head"):
        key_lengths(torch.ones(2, 4, 1, 5, dtype=torch.bool), 2, 5)
    with pytest.raises(batten.InvalidArgument, match="3 samples, but the call has 2"):
        key_lengths(torch.ones(3, 5, dtype=torch.bool), 2, 5)
    with pytest.raises(batten.InvalidArgument, match="6 keys, but the call has 5"):
        key_lengths(torch.ones(2, 6, dtype=torch.bool), 2, 5)
    with pytest.raises(batten.InvalidArgument, match="expected"):
        key_lengths(torch.ones(5, dtype=torch.bool), 2, 5)


def test_agrees_with_a_plain_reading():
    """Random masks: the lengths where each row is a prefix, a refusal where one is not."""
    generator = torch.Generator().manual_seed(0)
    refused = 0
    for _ in range(300):
        batch, rows, front = (int(torch.randint(1, 5, (), generator=generator)) for _ in range(3))
        mask = torch.rand(batch, rows, generator=generator) < 0.6
        full = torch.cat([torch.ones(batch, front, dtype=torch.bool), mask], 1).tolist()
        if all(row == sorted(row, reverse=True) for row in full):
            expected = None if mask.all() else [sum(row) for row in full]
            assert as_list(key_lengths(mask, batch, front + rows)) == expected
        else:
            refused += 1
            with pytest.raises(batten.Unsupported):
                key_lengths(mask, batch, front + rows)
    assert 50 < refused < 250


class Counting(LengthsCache):
    """A cache that counts, and that takes masks of the host for a GPU's."""

    def __init__(self, monkeypatch, everywhere=True):
        super().__init__()
        self.checked = 0
        if everywhere:
            monkeypatch.setattr(_masks, "is_remembered", lambda mask: not mask.is_inference())

    def key_lengths(self, mask, batch, kv_rows):
        def read():
            self.checked += 1
            return key_lengths(mask, batch, kv_rows)

        return self.lengths(mask, (batch, kv_rows), read)


def test_a_mask_is_checked_once_until_it_is_written_to(monkeypatch):
    cache = Counting(monkeypatch)
    mask = padding([3, 1], 4)
    first = cache.key_lengths(mask, 2, 4)
    assert cache.key_lengths(mask, 2, 4) is first and cache.checked == 1
    assert as_list(cache.key_lengths(mask, 2, 6)) == [5, 3] and cache.checked == 2
    mask[0, 2] = False
    assert as_list(cache.key_lengths(mask, 2, 4)) == [2, 1] and cache.checked == 3
    mask[0, 3] = True
    with pytest.raises(batten.Unsupported):
        cache.key_lengths(mask, 2, 4)


def test_a_mask_of_other_memory_or_shape_is_another(monkeypatch):
    cache = Counting(monkeypatch)
    mask = padding([3, 1], 4)
    assert as_list(cache.key_lengths(mask, 2, 4)) == [3, 1]
    mask.data = padding([2, 2], 4)
    assert as_list(cache.key_lengths(mask, 2, 4)) == [2, 2]
    mask.set_(padding([4, 1], 4))
    assert as_list(cache.key_lengths(mask, 2, 4)) == [4, 1]
    square = padding([2, 2, 2], 3)
    cache.key_lengths(square, 3, 3)
    square.t_()
    assert as_list(cache.key_lengths(square, 3, 3)) == [3, 3, 0]


def test_an_entry_goes_with_its_mask(monkeypatch):
    cache = Counting(monkeypatch)
    for length in range(1, 5):  # addresses and ids are reused
        mask = padding([length], 8)
        assert as_list(cache.key_lengths(mask, 1, 8)) == [length]
        del mask
        gc.collect()
    assert cache.checked == 4
    assert not cache._entries


def test_masks_of_inference_mode_and_of_the_host_are_checked_at_each_call(monkeypatch):
    host = Counting(monkeypatch, everywhere=False)
    mask = padding([2], 3)
    for _ in range(2):
        assert as_list(host.key_lengths(mask, 1, 3)) == [2]
    assert host.checked == 2 and not host._entries
    cache = Counting(monkeypatch)
    with torch.inference_mode():
        mask = padding([2], 3)
        assert as_list(cache.key_lengths(mask, 1, 3)) == [2]
        mask[0, 1] = False
        assert as_list(cache.key_lengths(mask, 1, 3)) == [1]
    assert cache.checked == 2


# Every way to write to a mask that a layer has seen: the next call reads what is there now.


def _inference(mask, new):
    with torch.inference_mode():
        mask.copy_(new)


def _unsafe(mask, new):
    with torch.autograd._unsafe_preserve_version_counter(mask):
        mask.copy_(new)


def _resized(mask, new):
    mask.resize_(new.shape).copy_(new)


def _address(mask, new):
    ctypes.memmove(mask.data_ptr(), new.data_ptr(), new.numel())


WRITES = {
    "copy_": lambda mask, new: mask.copy_(new),
    "setitem": lambda mask, new: mask.__setitem__(slice(None), new),
    "a view": lambda mask, new: mask.view(-1).copy_(new.view(-1)),
    ".data.copy_": lambda mask, new: mask.data.copy_(new),
    ".data =": lambda mask, new: setattr(mask, "data", new.clone()),
    "detach": lambda mask, new: mask.detach().copy_(new),
    "set_": lambda mask, new: mask.set_(new.clone()),
    "numpy": lambda mask, new: np.copyto(mask.numpy(), new.numpy()),
    "dlpack": lambda mask, new: torch.from_dlpack(mask.view(torch.uint8)).copy_(
        new.view(torch.uint8)
    ),
    "storage": lambda mask, new: mask.untyped_storage().copy_(new.untyped_storage()),
    "foreach": lambda mask, new: torch._foreach_copy_([mask], [new]),
    "inference mode": _inference,
    "version counter kept": _unsafe,
    "resize_": _resized,
    "address": _address,
    "compiled": lambda mask, new: torch.compile(lambda a, b: a.copy_(b), backend="aot_eager")(
        mask, new
    ),
}


class Metadata:
    def __init__(self, attn_mask):
        self.attn_mask = attn_mask


def fastvideo_call():
    import batten.fastvideo.backend

    layer = batten.fastvideo.backend.BattenImpl(
        2, 16, backend="cpu", device="cpu", dtype=torch.float32
    )
    return lambda q, k, v, mask: layer.forward(q, k, v, Metadata(mask))


def diffusers_call():
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    import batten.diffusers  # noqa: F401
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    return lambda q, k, v, mask: dispatch_attention_fn(q, k, v, attn_mask=mask, backend="batten")


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("call", [fastvideo_call, diffusers_call])
@pytest.mark.parametrize("write", WRITES)
def test_every_write_to_a_mask_is_seen(write, call, compiled):
    call = call()
    if compiled:
        torch._dynamo.reset()
        call = torch.compile(call, fullgraph=True, backend="aot_eager")
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, rows, 2, 16, generator=generator) for rows in (5, 9, 9))
    mask = padding([3, 5], 9)
    with torch.no_grad():
        for lengths in ([3, 5], [7, 8], [2, 9]):
            if lengths != [3, 5]:
                WRITES[write](mask, padding(lengths, 9))
            expected = oracle.attention(q.numpy(), k.numpy(), v.numpy(), kv_lengths=lengths)
            oracle.assert_close(call(q, k, v, mask).numpy(), expected, "float32")
