"""batten: attention for a whole batch in one call, on the fastest kernel that serves it.

out = batten.attention(q, k, v)     # [B, S, H, D]: torch, NumPy, CuPy
print(batten.last_receipt())        # which kernel ran, and why
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from batten import _core
from batten._attention import attention, attention_packed, merge
from batten._errors import (
    Device,
    Error,
    Internal,
    InvalidArgument,
    OutOfMemory,
    Unavailable,
    Unsupported,
)
from batten._layers import check, explain

__version__ = _core.version()
__all__ = [
    "Device",
    "Error",
    "Internal",
    "InvalidArgument",
    "OutOfMemory",
    "Unavailable",
    "Unsupported",
    "attention",
    "attention_packed",
    "check",
    "explain",
    "info",
    "last_receipt",
    "merge",
    "trim",
]


def _build_facts() -> dict[str, Any]:
    """What the build left beside the native module."""
    return json.loads((pathlib.Path(_core.__file__).parent / "_build.json").read_text("utf-8"))


def info() -> dict[str, Any]:
    """Versions, devices, backends (and why one is not available), workspace pools; and "build":
    what this build was made with (CUDA version and architectures, glibc needed, packages)."""
    return {**json.loads(_core.info_json()), "build": _build_facts()}


def last_receipt() -> dict[str, Any] | None:
    """What this thread's last successful call ran, None before one and after a call on fake
    tensors, which runs nothing: backend, form, kernel, tile, splits, plan_reused, workspace_size
    (bytes), library, reason."""
    return _core.last_receipt()


def trim() -> None:
    """Gives the pools' idle scratch memory back; waits for the device's work that uses it."""
    _core.trim()
