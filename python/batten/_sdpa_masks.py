"""The masks of torch's scaled_dot_product_attention as key lengths, for diffusers and ComfyUI."""

from __future__ import annotations

import torch

from batten._errors import InvalidArgument, Unsupported
from batten._masks import LengthsCache, key_lengths, refuse_capture

_AXES = ("samples", "heads", "queries", "keys")
_lengths = LengthsCache()


def sdpa_key_lengths(
    mask: torch.Tensor, sizes: tuple[int, int, int, int], device: torch.device, host: str
) -> torch.Tensor | None:
    """The int32 key lengths [B] on `device` that a mask stands for; None if it keeps every key.

    mask: bool (True keeps) or float (added to the scores, as batten._masks.key_lengths reads it).
       [B, H, Sq, K], each of its size or 1. Fewer dimensions by `host`'s own rule:
       "diffusers": [B, K] if that fits the call, else [Sq, K] for all samples; [H, Sq, K], and
       [B, Sq, K] where B is not H. "comfyui": [Sq, K] for all samples; [B, Sq, K].
       All heads and queries of a sample must see the same keys, a prefix of them.
    sizes: the call's (B, H, Sq, K), H of the queries.

    The device is waited for when a mask is seen first, not again; under torch.compile, and for
    masks that batten._masks.LengthsCache does not keep, at each call. Raises Unsupported for a mask
    that is no prefix of the keys or whose dtype torch's attention refuses, and InvalidArgument for
    one that does not fit.
    """
    if not isinstance(mask, torch.Tensor):
        raise Unsupported(
            f"attn_mask of type {type(mask).__name__}: batten serves masks that are tensors and "
            "keep a prefix of the keys"
        )
    if mask.dtype != torch.bool and not mask.dtype.is_floating_point:
        raise Unsupported(
            f"attn_mask of {mask.dtype}: torch's attention takes bool masks (True keeps) and float "
            "ones; mask.bool() if 1 and 0 mean keep and drop"
        )
    if torch.compiler.is_compiling():
        return torch.ops.batten.sdpa_key_lengths(mask, sizes, host).to(device)

    def compute():
        lengths = _read(mask, sizes, host)
        return None if lengths is None else lengths.to(device)

    return _lengths.lengths(mask, (sizes, device, host), compute)


def _read(mask, sizes, host):
    refuse_capture(mask)
    whole = _HOSTS[host](mask, sizes)
    for have, want, axis in zip(whole.shape, sizes, _AXES, strict=True):
        if have not in (1, want):
            raise InvalidArgument(
                f"attn_mask {tuple(mask.shape)}: {have} where the {axis} are, but the call has "
                f"{want}"
            )
    rows = _one_row(whole, mask.shape).expand(-1, -1, -1, sizes[3])
    return key_lengths(rows, sizes[0], sizes[3], front_pad=False, float_rule="additive")


def _diffusers(mask, sizes):
    batch, heads, q_rows, kv_rows = sizes
    if mask.dim() == 2:
        if tuple(mask.shape) == (batch, kv_rows):
            return mask[:, None, None]
        return mask[None, None]
    if mask.dim() == 3:
        # torch's attention takes the first dimension as the heads'; diffusers' backends of variable
        # lengths as the samples', which is served where torch would refuse.
        return mask[:, None] if mask.shape[0] == batch != heads else mask[None]
    return _four(mask)


def _comfyui(mask, sizes):
    if mask.dim() == 2:
        return mask[None, None]
    return mask[:, None] if mask.dim() == 3 else _four(mask)


def _four(mask):
    if mask.dim() != 4:
        raise InvalidArgument(
            f"attn_mask {tuple(mask.shape)}: expected 2, 3 or 4 dimensions, the last one the keys'"
        )
    return mask


_HOSTS = {"diffusers": _diffusers, "comfyui": _comfyui}


def _one_row(mask, shape):
    """[B, H, Sq, K] with one row of keys for each sample. Rows that were written out may be merged
    if they are equal."""
    for dim in (1, 2):
        if mask.shape[dim] > 1:
            first = mask.narrow(dim, 0, 1)
            if mask.stride(dim) != 0 and not torch.equal(mask, first.expand_as(mask)):
                axis = ("head", "query")[dim - 1]
                raise Unsupported(
                    f"attn_mask {tuple(shape)}: a mask that differs from {axis} to {axis} is not "
                    "served, only padding: a prefix of the keys, the same for all heads and queries"
                )
            mask = first
    return mask


@torch.library.custom_op("batten::sdpa_key_lengths", mutates_args=())
def _op(mask: torch.Tensor, sizes: list[int], host: str) -> torch.Tensor:
    lengths = _read(mask, tuple(sizes), host)
    if lengths is None:
        return torch.full((sizes[0],), sizes[3], dtype=torch.int32, device=mask.device)
    return lengths


@_op.register_fake
def _(mask, sizes, host):
    del host
    return mask.new_empty((sizes[0],), dtype=torch.int32)
