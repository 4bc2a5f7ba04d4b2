"""Padding masks as key lengths, for the adapters to frameworks that pass masks.

A mask that keeps a prefix of each sample's keys is the same thing as int32 key lengths, which every
backend serves. Any other mask is refused with the sample that breaks the rule: it is never dropped,
never guessed at.
"""

from __future__ import annotations

import sys
import weakref
from typing import Any

from batten._errors import InvalidArgument, Unsupported

# Additive masks mean "never" by -inf, the dtype's lowest value or -10000 (which bfloat16 rounds to
# -9984). exp() is 0 in float32 from -104 on, so a bias this far below the row's largest drops its
# key, unless scores differ by thousands.
DROPS = 9e3
# A bias common to the kept keys changes no softmax; but torch adds it in float32, and a large one
# swallows the scores' low bits. Up to here that stays below 1e-5.
LARGEST_COMMON = 128.0

FLOAT_RULES = ("additive", "keep")
INF = float("inf")


def key_lengths(
    mask: Any, batch: int, kv_rows: int, *, front_pad: bool = True, float_rule: str = "additive"
) -> Any:
    """The key lengths that a padding mask stands for.

    mask: torch tensor [B, K], [B, 1, K] or [B, 1, 1, K] (B may be 1 for all samples; a 1 may be an
       expanded dimension). bool: True keeps a key. Integers: nonzero keeps it. Floats by
       float_rule: "additive", what torch's scaled_dot_product_attention does with them: a bias at
       least 9000 below the largest of its row drops a key, the kept ones must have one bias of at
       most 128 in size, which changes no softmax; a row of -inf keeps no key. Or "keep": nonzero
       keeps it.
    batch, kv_rows: the call's B, and the rows of its keys. A mask of K < kv_rows keys speaks of the
       last K keys, and the ones before them are kept, if front_pad; else it is refused.

    Returns None if every key is kept, else int32 [B] on the mask's device. Waits for the device
    once. Raises InvalidArgument for what is no tensor or does not fit the call, and Unsupported,
    naming the first such sample, for a mask that is no prefix or whose biases no length stands for.
    """
    if float_rule not in FLOAT_RULES:
        raise InvalidArgument(
            f"float_rule={float_rule!r}: expected one of {', '.join(FLOAT_RULES)}"
        )
    rows = _rows_of(mask, batch, kv_rows, front_pad)
    padding = kv_rows - rows.shape[1]
    keep, biased = _keep(rows, padding, float_rule)
    torch = sys.modules["torch"]
    lengths = keep.sum(1)
    gaps = (keep[:, 1:] & ~keep[:, :-1]).any(1)
    host_lengths, host_gaps, host_biased = torch.stack(
        (lengths, gaps.long(), biased.long())
    ).tolist()
    for sample, (gap, bias) in enumerate(zip(host_gaps, host_biased, strict=True)):
        if bias:
            raise Unsupported(
                f"attention mask, sample {sample}: a float mask that adds different biases to kept "
                f"keys, or one above {LARGEST_COMMON:g} in size, is no padding mask; pass a bool "
                "mask (True keeps), also where a sample keeps no key"
            )
        if gap:
            raise Unsupported(
                f"attention mask, sample {sample}: a key is kept after a dropped one; only masks "
                "that keep a prefix of the keys are served (padding at the end)"
            )
    if all(length == rows.shape[1] for length in host_lengths):
        return None
    return (lengths + padding).to(torch.int32).expand(batch).contiguous()


def _rows_of(mask, batch, kv_rows, front_pad):
    """The mask as [B or 1, K], checked against the call."""
    if not isinstance(mask, sys.modules["torch"].Tensor):
        raise InvalidArgument(
            f"attention mask of type {type(mask).__name__}: expected a torch tensor; "
            "torch.as_tensor() makes one"
        )
    shape = tuple(mask.shape)
    if mask.dim() not in (2, 3, 4):
        raise InvalidArgument(f"attention mask {shape}: expected [B, K], [B, 1, K] or [B, 1, 1, K]")
    for dim in range(1, mask.dim() - 1):
        if shape[dim] != 1 and mask.stride(dim) != 0:
            raise Unsupported(
                f"attention mask {shape}: one row of keys for each "
                f"{'head' if dim == 1 else 'query'} is not served; expected [B, K], [B, 1, K] or "
                "[B, 1, 1, K]"
                if mask.dim() == 4
                else f"attention mask {shape}: one row of keys for each query is not served; "
                "expected [B, K], [B, 1, K] or [B, 1, 1, K]"
            )
    for _ in range(mask.dim() - 2):
        mask = mask.select(1, 0) if shape[1] else mask.flatten(1)
    if shape[0] not in (1, batch):
        raise InvalidArgument(
            f"attention mask {shape}: {shape[0]} samples, but the call has {batch}"
        )
    if shape[-1] > kv_rows or (shape[-1] < kv_rows and not front_pad):
        raise InvalidArgument(
            f"attention mask {shape}: {shape[-1]} keys, but the call has {kv_rows}"
        )
    return mask


def _keep(rows, padding, float_rule):
    """(which keys are kept, bool [B, K]; which samples add biases that no length can stand for,
    bool [B])."""
    torch = sys.modules["torch"]
    if not rows.dtype.is_floating_point:
        keep = rows if rows.dtype == torch.bool else rows != 0
        return keep, torch.zeros_like(keep[:, 0]) if keep.shape[1] else keep.any(1)
    if float_rule == "keep":
        keep = rows != 0
        return keep, (rows != rows).any(1)
    if not rows.shape[1]:
        keep = rows != rows
        return keep, keep.any(1)
    rows = rows if rows.dtype == torch.float64 else rows.float()
    peak = rows.amax(1, keepdim=True)
    if padding:  # the keys in front have bias 0
        peak = peak.clamp(min=0.0)
    keep = ~(rows <= peak - DROPS)  # so that a NaN counts as kept, and is found below
    odd = (keep & (rows != peak)).any(1)
    peak = peak[:, 0]
    return keep, odd | ~((peak.abs() <= (0.0 if padding else LARGEST_COMMON)) | (peak == -INF))


def is_real(tensor: Any) -> bool:
    """Whether an output was computed: not one of a fake or meta tensor, which only has a shape."""
    if tensor.is_meta:
        return False
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is None or not fake.is_fake(tensor)


class LengthsCache:
    """The lengths of masks on a GPU that were seen before, without waiting for it again.

    A model passes one mask to all its layers at all steps. An entry lives as long as its mask, and
    is made anew when the mask was written to or changed its shape, strides or memory. Writes that
    torch does not count are not seen: those through .data, DLPack, the storage, or a kernel that
    was handed the address. So masks in the host's memory, where reading is cheap, are read at each
    call, and so are tensors made under torch.inference_mode(), which count no writes.
    """

    def __init__(self):
        self._entries = {}

    def lengths(self, mask, key, compute):
        """compute(), or what it gave for the same mask and key."""
        if not is_remembered(mask):
            return compute()
        key = (id(mask), *key)
        state = (mask._version, mask.data_ptr(), mask.shape, mask.stride(), mask.dtype)
        entry = self._entries.get(key)
        if entry is not None and entry[0]() is mask and entry[1] == state:
            return entry[2]
        refuse_capture(mask)
        lengths = compute()
        entries = self._entries
        forget = weakref.ref(mask, lambda _, key=key: entries.pop(key, None))
        entries[key] = (forget, state, lengths)
        return lengths


def is_remembered(mask: Any) -> bool:
    """Whether LengthsCache keeps a mask's lengths."""
    return mask.is_cuda and not mask.is_inference()


def refuse_capture(mask: Any) -> None:
    """Raises Unsupported if the mask cannot be read now."""
    torch = sys.modules["torch"]
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            "attention mask: not seen before this CUDA graph's capture, and checking it waits for "
            "the device; run the model once with this mask first"
        )
