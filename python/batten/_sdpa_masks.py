"""The masks of torch's scaled_dot_product_attention as key lengths, for diffusers and ComfyUI."""

from __future__ import annotations

import weakref

import torch

from batten._errors import InvalidArgument, Unsupported
from batten._masks import key_lengths

_AXES = {1: "head", 2: "query"}
_seen = {}


def sdpa_key_lengths(
    mask: torch.Tensor, batch: int, q_rows: int, kv_rows: int, device: torch.device
) -> torch.Tensor | None:
    """The int32 key lengths [B] on `device` that a mask stands for; None if it keeps every key.

    mask: bool (True keeps) or float (added to the scores: 0, or -inf and other values at most
       -5000), of shape [B, K], [Sq, K], [B, Sq, K] or [B, H, Sq, K]; B, H and Sq may be 1. All
       heads and queries of a sample must see the same keys, a prefix of them.

    The device is waited for when a mask is seen first, not again; under torch.compile at each call.
    Raises Unsupported for a mask that is no prefix of the keys, and InvalidArgument for one that
    does not fit.
    """
    if not isinstance(mask, torch.Tensor):
        raise Unsupported(
            f"attn_mask of type {type(mask).__name__}: batten serves masks that are tensors and "
            "keep a prefix of the keys"
        )
    if torch.compiler.is_compiling():
        return torch.ops.batten.sdpa_key_lengths(mask, batch, q_rows, kv_rows).to(device)
    version = None if mask.is_inference() else mask._version
    key = (id(mask), batch, q_rows, kv_rows, device)
    entry = _seen.get(key)
    if entry is not None and entry[0]() is mask and entry[1] == version:
        return entry[2]
    lengths = _lengths(mask, batch, q_rows, kv_rows)
    lengths = None if lengths is None else lengths.to(device)
    # Tensors made under torch.inference_mode() count no writes: those are checked at each call.
    if version is not None:
        _seen[key] = (weakref.ref(mask, lambda _: _seen.pop(key, None)), version, lengths)
    return lengths


def _lengths(mask, batch, q_rows, kv_rows):
    if mask.is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unsupported(
            "attn_mask: checking it waits for the device, which a CUDA graph's capture cannot; run "
            "the model once with this mask first"
        )
    return key_lengths(
        _one_row(_with_batch(mask, batch, q_rows)),
        batch,
        kv_rows,
        front_pad=False,
        float_rule="additive",
    )


def _with_batch(mask, batch, q_rows):
    """The mask with its batch as the first dimension."""
    if mask.dim() == 2 and mask.shape[0] not in (1, batch):
        if mask.shape[0] != q_rows:
            raise InvalidArgument(
                f"attn_mask {tuple(mask.shape)}: expected [B, K] with B = {batch}, or [Sq, K] with "
                f"Sq = {q_rows}"
            )
        return mask.unsqueeze(0)
    return mask


def _one_row(mask):
    """The mask with one row of keys for each sample. Rows that were written out may be merged if
    they are equal."""
    for dim in range(1, mask.dim() - 1):
        if mask.shape[dim] > 1:
            first = mask.narrow(dim, 0, 1)
            if mask.stride(dim) != 0 and not torch.equal(mask, first.expand_as(mask)):
                axis = _AXES.get(dim + 4 - mask.dim(), "query")
                raise Unsupported(
                    f"attn_mask {tuple(mask.shape)}: a mask that differs from {axis} to {axis} is "
                    "not served, only padding: a prefix of the keys, the same for all heads and "
                    "queries"
                )
            mask = first
    return mask


@torch.library.custom_op("batten::sdpa_key_lengths", mutates_args=())
def _op(mask: torch.Tensor, batch: int, q_rows: int, kv_rows: int) -> torch.Tensor:
    lengths = _lengths(mask, batch, q_rows, kv_rows)
    if lengths is None:
        return torch.full((batch,), kv_rows, dtype=torch.int32, device=mask.device)
    return lengths


@_op.register_fake
def _(mask, batch, q_rows, kv_rows):
    del q_rows, kv_rows
    return mask.new_empty((batch,), dtype=torch.int32)
