"""The native half. Programs use the functions of `batten`, which check and convert for this one.

A tensor is a view (see batten._views), or an object of a type that takes() accepts.
"""

from typing import Any

def version() -> str: ...
def info_json() -> str: ...
def last_receipt() -> dict[str, Any] | None: ...
def forget_receipt() -> None: ...
def takes(tensor: object, /) -> bool: ...
def view_of(
    array: object, /
) -> tuple[int, int, tuple[int, ...], tuple[int, ...], int, int, object]: ...
def forward(
    q: object,
    k: object,
    v: object,
    out: object,
    lse: object | None,
    q_lengths: object | None,
    kv_lengths: object | None,
    offsets_q: object | None,
    offsets_kv: object | None,
    max_q: int,
    max_kv: int,
    mask: int,
    backend: str | None,
    out_dtype: int,
    scale: float | None,
    padding_is_finite: bool,
    stream: int,
) -> None: ...
def check(
    dtype: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    mask: int,
    device_type: int,
    device_index: int,
    backend: str | None,
) -> None: ...
def explain(
    dtype: int,
    batch: int,
    queries: int,
    keys: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    mask: int,
    device_type: int,
    device_index: int,
    backend: str | None,
    card: str,
) -> str: ...
def merge(out: object, lse: object, out2: object, lse2: object, stream: int, /) -> None: ...
def trim() -> None: ...
