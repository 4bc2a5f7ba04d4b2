"""What is timed: a contender is a function of (q, k, v) that returns the output."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import batten
import batten.torch  # registers the op
from batten.bench.options import PEERS

_SDPA = {
    "torch:flash": SDPBackend.FLASH_ATTENTION,
    "torch:cudnn": SDPBackend.CUDNN_ATTENTION,
    "torch:sdpa": None,
}


def default_backends(device: torch.device) -> list[str]:
    """batten's backends that `auto` may take and that run on the device. Raises Unavailable if
    there is none."""
    kind = str(device) if device.type == "cuda" else "cpu"
    names = [
        backend["name"]
        for backend in batten.info()["backends"]
        if backend["automatic"]
        and any(state["device"] == kind and state["available"] for state in backend["devices"])
    ]
    if not names:
        raise batten.Unavailable(f"no backend is available on {device}; batten.info() says why")
    return names


def make(backend: str, form: str, sets: list, causal: bool) -> Any:
    """run(i): one call on input set i, returning its output."""
    call = _peer(backend, causal) if backend in PEERS else _FORMS[form](backend, sets, causal)
    return lambda i: call(*sets[i])


def name_of(backend: str, form: str) -> str:
    """A contender's name in results: batten:cudnn is the raw call, batten:cudnn@op the same through
    the op."""
    if backend in PEERS:
        return backend
    return f"batten:{backend}" + ("" if form == "raw" else f"@{form}")


def _raw(backend, sets, causal):
    del sets
    return lambda q, k, v: batten.attention(q, k, v, causal=causal, backend=backend)


def _op(backend, sets, causal):
    del sets
    op = torch.ops.batten.attention.default
    mask = "causal" if causal else "none"
    return lambda q, k, v: op(q, k, v, mask, None, None, backend)


def _fastvideo(backend, sets, causal):
    from batten.fastvideo.backend import BattenImpl

    q, k, _ = sets[0]
    layer = BattenImpl(
        num_heads=q.shape[2],
        head_size=q.shape[3],
        causal=causal,
        num_kv_heads=k.shape[2],
        backend=backend,
        device=q.device,
        dtype=q.dtype,
    )
    return lambda q, k, v: layer.forward(q, k, v, None)


def _core(backend, sets, causal):
    """The native half alone: no choice of framework, no cast, no new output."""
    from batten import _core as native
    from batten._torch_calls import view

    out = torch.empty_like(sets[0][0])
    views = {q.data_ptr(): (view(q), view(k), view(v)) for q, k, v in sets}
    out_view = view(out)
    none = (None,) * 5
    cuda = out.is_cuda

    def call(q, k, v):
        stream = torch.cuda.current_stream().cuda_stream if cuda else 0
        native.forward(
            *views[q.data_ptr()],
            out_view,
            *none,
            0,
            0,
            int(causal),
            backend,
            0,
            None,
            False,
            stream,
        )
        return out

    return call


_FORMS = {"raw": _raw, "op": _op, "fastvideo": _fastvideo, "core": _core}


def _peer(name, causal):
    if name == "fa3":
        import flash_attn_interface

        def flash(q, k, v):
            result = flash_attn_interface.flash_attn_func(q, k, v, causal=causal)
            return result[0] if isinstance(result, tuple) else result

        return flash
    chosen = _SDPA[name]

    def sdpa(q, k, v):
        arguments = {"is_causal": causal, "enable_gqa": q.shape[2] != k.shape[2]}
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if chosen is None:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments).transpose(
                1, 2
            )
        with sdpa_kernel(chosen):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, **arguments).transpose(
                1, 2
            )

    return sdpa
