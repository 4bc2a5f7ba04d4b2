"""batten: attention for a whole batch in one call, on the fastest kernel that serves it.

    out = batten.attention(q, k, v)                 # [B, S, H, D]: NumPy, torch, CuPy
    print(batten.last_receipt())                    # which kernel ran, and why
"""

import json

from batten import _core
from batten._attention import attention, attention_packed, merge
from batten._errors import Device, Error, Internal, InvalidArgument, OutOfMemory, Unavailable, Unsupported

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
    "info",
    "last_receipt",
    "merge",
    "trim",
]


def info():
    """Versions, devices, backends (and why one is not available), workspace pools: a dict."""
    return json.loads(_core.info_json())


def last_receipt():
    """What this thread's last call ran: backend, form, kernel, tile, splits, library, reason. None before one."""
    return _core.last_receipt()


def trim():
    """Gives the pools' idle scratch memory back."""
    _core.trim()
