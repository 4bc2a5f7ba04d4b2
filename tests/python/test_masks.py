"""Padding masks as key lengths: every accepted form, every refusal, and the cache."""

import gc

import pytest

torch = pytest.importorskip("torch")
batten = pytest.importorskip("batten")

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
    keep = padding([3, 0, 6, 7], 7)
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
    assert lengths.tolist() == [3, 0, 6, 7]


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
    def __init__(self, monkeypatch):
        super().__init__()
        self.checked = 0
        from batten import _masks

        original = _masks.key_lengths

        def counted(*args, **kwargs):
            self.checked += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(_masks, "key_lengths", counted)


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


def test_an_entry_goes_with_its_mask(monkeypatch):
    cache = Counting(monkeypatch)
    for length in range(1, 5):  # addresses and ids are reused
        mask = padding([length], 8)
        assert as_list(cache.key_lengths(mask, 1, 8)) == [length]
        del mask
        gc.collect()
    assert cache.checked == 4
    assert not cache._entries


def test_masks_of_inference_mode_are_checked_at_each_call(monkeypatch):
    cache = Counting(monkeypatch)
    with torch.inference_mode():
        mask = padding([2], 3)
        assert as_list(cache.key_lengths(mask, 1, 3)) == [2]
        mask[0, 1] = False
        assert as_list(cache.key_lengths(mask, 1, 3)) == [1]
    assert cache.checked == 2
