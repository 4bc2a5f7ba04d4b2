"""The `causal` argument, check() and explain()."""

from __future__ import annotations

import json
import sys
from typing import Any

from batten import _core
from batten._errors import InvalidArgument
from batten._views import CPU, CUDA, DTYPE_CODES, INT32

MASKS = {
    False: 0,
    None: 0,
    "none": 0,
    True: 1,
    "causal": 1,
    "bottom_right": 1,
    "top_left": 2,
    "causal_top_left": 2,
}
# By mask code, as the torch ops spell it.
MASK_NAMES = ("none", "causal", "top_left")


def mask_code(causal: Any) -> int:
    """The C ABI's mask of a `causal` argument."""
    try:
        return MASKS[causal]
    except (KeyError, TypeError):
        raise InvalidArgument(
            f"causal={causal!r}: expected False, True or 'causal' (bottom-right), or 'top_left'"
        ) from None


def check(
    *,
    device: Any,
    dtype: Any,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int,
    causal: bool | str = False,
    backend: str | None = None,
) -> None:
    """Chooses and checks the backend for a problem now, so that a layer that cannot be served fails
    when it is made and not in its first call. The result is kept: later calls find it.

    device: "cpu", "cuda", "cuda:1", or a torch.device.
    dtype: "float32", "float16" or "bfloat16", or a torch or NumPy dtype.
    num_heads, num_kv_heads, head_dim: Hq, Hkv (as num_heads if None) and D.
    causal, backend: as in attention().

    Raises Unavailable (the backend cannot run here), Unsupported (it does not serve the problem;
    the message names those that do) or InvalidArgument.
    """
    device_type, index = _device_codes(device)
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    _core.check(
        _dtype_code(dtype), num_heads, kv_heads, head_dim, mask_code(causal), device_type, index,
        backend,
    )  # fmt: skip


def explain(
    batch: int,
    q: int,
    kv: int,
    num_heads: int,
    num_kv_heads: int | None = None,
    head_dim: int = 128,
    *,
    dtype: Any = "bfloat16",
    causal: bool | str = False,
    device: Any = "cuda",
    gpu: str | None = None,
    backend: str | None = None,
) -> dict[str, Any]:
    """What `auto` takes for a dense call of these sizes, and why; nothing is run.

    batch, q, kv: B, Sq and Skv. num_heads, num_kv_heads, head_dim: Hq, Hkv (as num_heads if None), D.
    dtype, causal, device: as in check(). backend: what to ask for instead of "auto".
    gpu: a card whose constants come with batten, as "h200", which need not be here.

    Returns {"chosen", "reason", "candidates": [{"backend", "serves", "taken", "predicted_us", ...}],
    ...}; docs/backends.md says what the terms are. Raises as check() does.
    """
    device_type, index = (CUDA, 0) if gpu else _device_codes(device)
    text = _core.explain(
        _dtype_code(dtype), batch, q, kv, num_heads,
        num_heads if num_kv_heads is None else num_kv_heads, head_dim, mask_code(causal),
        device_type, index, backend, gpu or "",
    )  # fmt: skip
    return json.loads(text)


def _device_codes(device: Any) -> tuple[int, int]:
    kind, _, index = str(device).partition(":")
    if kind not in ("cpu", "cuda") or (index and not index.isdigit()):
        raise InvalidArgument(f"device={device!r}: expected 'cpu', 'cuda' or 'cuda:N'")
    if kind == "cpu":
        return CPU, 0
    return CUDA, int(index) if index else _current_cuda_device()


def _current_cuda_device() -> int:
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if torch is not None and torch.cuda.is_available() else 0


def _dtype_code(dtype: Any) -> int:
    name = getattr(dtype, "__name__", None) or str(dtype)
    code = DTYPE_CODES.get(name.rpartition(".")[2], 0)
    if code in (0, INT32):
        raise InvalidArgument(f"dtype={dtype!r}: expected float32, float16 or bfloat16")
    return code
