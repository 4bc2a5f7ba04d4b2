"""batten in ComfyUI: an attention override for a model, and an attention function to pick by name.

    model = batten.comfyui.apply(model)     # a patched clone of a MODEL, as nodes make it
    transformer_options["optimized_attention_override"] = batten.comfyui.Override()
    batten.comfyui.register()               # then get_attention_function("batten")

A file custom_nodes/batten_attention.py of one line makes the node "batten attention":

    from batten.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS

A call that batten cannot serve raises batten.Unsupported with the reason. With fallback=True it
goes to the function that ComfyUI would have called, and the reason is logged once.
"""

from __future__ import annotations

import collections
import importlib
import logging
from typing import Any

import torch

import batten
import batten.torch
from batten._errors import InvalidArgument, Unavailable, Unsupported
from batten._masks import is_real
from batten._sdpa_masks import sdpa_key_lengths

__all__ = [
    "NODE_CLASS_MAPPINGS",
    "NODE_DISPLAY_NAME_MAPPINGS",
    "Override",
    "apply",
    "attention",
    "optimized_attention_override",
    "register",
]

_logger = logging.getLogger("batten.comfyui")
_OPTION = "optimized_attention_override"
# What ComfyUI hands over for its own use; neither asks anything of the attention.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_COMFY_OWN = {"transformer_options", "_inside_attn_wrapper", "preferred_attention"}


def attention(
    q,
    k,
    v,
    heads,
    mask=None,
    attn_precision=None,
    skip_reshape=False,
    skip_output_reshape=False,
    *,
    scale=None,
    enable_gqa=False,
    low_precision_attention=True,
    backend="auto",
    **others,
):
    """ComfyUI's attention call, served by batten.

    q: [B, Sq, heads·D], or [B, heads, Sq, D] with skip_reshape; k, v likewise, with fewer heads if
       enable_gqa.
    mask: None, or one that keeps a prefix of the keys, the same for all heads and queries: bool
       (True keeps) or float (0, or at least 9000 less), [Sq, K] for all samples, [B, Sq, K] or
       [B, H, Sq, K], each of its size or 1.
    attn_precision: float32 asks for float32 scores, which batten always has.
    low_precision_attention: False forbids precision below the inputs': float32 is then refused on a
       GPU.
    backend: "auto", a backend's name, or None for the environment's choice.

    Returns [B, Sq, heads·D], or [B, heads, Sq, D] with skip_output_reshape. Raises
    batten.Unsupported for what is not served, with the reason, and batten.InvalidArgument for
    inputs that do not fit together.
    """
    _refuse_options(q, attn_precision, low_precision_attention, others)
    _refuse_dtypes(q, k, v)
    q, k, v = _bshd(q, k, v, heads, skip_reshape, enable_gqa)
    lengths = None
    if mask is not None:
        sizes = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
        lengths = sdpa_key_lengths(mask, sizes, q.device, "comfyui")
    # Masked keys are as finite here as torch's attention needs them: it multiplies them by 0.
    out = batten.torch.attention(
        q,
        k,
        v,
        scale=scale,
        kv_lengths=lengths,
        backend=backend,
        padding_is_finite=lengths is not None,
    )
    return out.transpose(1, 2) if skip_output_reshape else out.flatten(2)


def _refuse_options(q, attn_precision, low_precision_attention, others):
    for name, value in others.items():
        if name not in _COMFY_OWN and value is not None and value is not False:
            raise Unsupported(f"attention argument {name}={value!r}: not known to batten")
    if (
        q.is_cuda
        and q.dtype == torch.float32
        and (low_precision_attention is False or attn_precision == torch.float32)
    ):
        raise Unsupported(
            "float32 attention on a GPU: batten's GPU backends take float16 and bfloat16, and the "
            "model asks for full precision here"
        )


def _refuse_dtypes(q, k, v):
    dtypes = [tensor.dtype for tensor in (q, k, v)]
    if all(dtype in _DTYPES for dtype in dtypes) and (
        len(set(dtypes)) == 1 or torch.is_autocast_enabled(q.device.type)
    ):
        return
    raise Unsupported(
        f"q, k and v of {', '.join(map(str, dtypes))}: batten takes float16, bfloat16 or float32, "
        "all of one"
    )


def _bshd(q, k, v, heads, skip_reshape, enable_gqa):
    """Views [B, S, H, D] of ComfyUI's layouts."""
    if heads < 1:
        raise InvalidArgument(f"heads = {heads}: expected at least 1")
    if skip_reshape:
        if q.dim() != 4:
            raise InvalidArgument(f"q {tuple(q.shape)}: expected [B, H, S, D] with skip_reshape")
        q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    else:
        if q.dim() != 3 or q.shape[2] % heads:
            raise InvalidArgument(
                f"q {tuple(q.shape)}: expected [B, S, H·D] with H = {heads} heads"
            )
        dim = q.shape[2] // heads
        q = q.unflatten(2, (heads, dim))
        k, v = (
            _split_heads(name, tensor, heads, dim, enable_gqa)
            for name, tensor in (("k", k), ("v", v))
        )
    if q.shape[2] != heads or (k.shape[2] != heads and not enable_gqa):
        raise InvalidArgument(
            f"{q.shape[2]} query and {k.shape[2]} key heads: expected heads = {heads}, and fewer "
            "for keys only with enable_gqa"
        )
    return q, k, v


def _split_heads(name, tensor, heads, dim, enable_gqa):
    count = tensor.shape[-1] // dim if enable_gqa else heads
    if tensor.dim() != 3 or count == 0 or tensor.shape[2] % count:
        raise InvalidArgument(
            f"{name} {tuple(tensor.shape)}: expected [B, S, H·D] with heads of {dim}"
        )
    return tensor.unflatten(2, (count, -1))


def _known(backend):
    """batten.info()'s entry of a backend; None for the choices that name none. Raises
    InvalidArgument for an unknown name."""
    if backend is None or backend == "auto":
        return None
    entries = {entry["name"]: entry for entry in batten.info()["backends"]}
    name, colon, form = str(backend).partition(":")
    if not isinstance(backend, str) or name not in entries:
        raise InvalidArgument(f"backend={backend!r}: expected one of auto, {', '.join(entries)}")
    if colon and form not in entries[name]["forms"]:
        raise InvalidArgument(
            f"backend={backend!r}: {name} has no form {form!r}, expected "
            + (", ".join(entries[name]["forms"]) or "none")
        )
    return entries[name]


def _check_available(backend):
    entry = _known(backend)
    if entry is None or any(device["available"] for device in entry["devices"]):
        return
    gpus = [device for device in entry["devices"] if device["device"] != "cpu"]
    device = (gpus or entry["devices"])[0]
    raise Unavailable(
        f"backend {backend} cannot run here: on {device['device']} {device['reason']}"
        + (f"; {device['remedy']}" if device.get("remedy") else "")
    )


class Override:
    """A function for transformer_options["optimized_attention_override"].

    backend: "auto", a backend's name, or None for the environment's choice.
    fallback: a call that batten cannot serve goes to ComfyUI's own function instead of raising;
       each reason is logged once, as a warning.

    calls: Counter of the calls by what served them: (backend, kernel), or ("ComfyUI", reason) for
       those given back.

    Raises batten.InvalidArgument for an unknown backend.
    """

    def __init__(self, backend: str | None = "auto", fallback: bool = False) -> None:
        _known(backend)
        self.backend = backend
        self.fallback = fallback
        self.calls = collections.Counter()

    def __call__(self, original, *args, **kwargs):
        try:
            out = attention(*args, **kwargs, backend=self.backend)
        except (Unsupported, Unavailable) as error:
            if not self.fallback:
                raise
            return self._give_back(error, original, args, kwargs)
        if not torch.compiler.is_compiling() and is_real(out):
            receipt = batten.last_receipt()
            self.calls[receipt["backend"], receipt["kernel"]] += 1
        return out

    def _give_back(self, error, original, args, kwargs):
        key = ("ComfyUI", str(error))
        self.calls[key] += 1
        if self.calls[key] == 1:
            _logger.warning("not served by batten, given back to ComfyUI (said once): %s", error)
        return original(*args, **kwargs)

    def __deepcopy__(self, memo):
        return self  # ComfyUI copies a model's options; the counts are one


optimized_attention_override = Override()


def apply(
    model: Any, backend: str | None = "auto", fallback: bool = False, replace: bool = False
) -> Any:
    """A clone of a ComfyUI model patcher whose attention batten serves.

    model: what a MODEL socket carries: it has clone() and model_options.
    replace: take the place of an override that the model already has; else that raises
       batten.InvalidArgument.

    Raises batten.InvalidArgument for an unknown backend, and without `fallback`
    batten.Unavailable for one that runs on no device here.

    The override is in the clone's model_options["transformer_options"]; its `calls` say what
    served.
    """
    override = Override(backend, fallback)
    if not fallback:
        _check_available(backend)
    patched = model.clone()
    options = dict(patched.model_options)
    transformer_options = dict(options.get("transformer_options") or {})
    if transformer_options.get(_OPTION) is not None and not replace:
        raise InvalidArgument(
            f"the model already has an {_OPTION}: remove the node that sets it, or pass "
            "replace=True"
        )
    transformer_options[_OPTION] = override
    options["transformer_options"] = transformer_options
    patched.model_options = options
    return patched


def register(name: str = "batten", backend: str | None = "auto") -> Any:
    """Registers batten with ComfyUI's register_attention_function, for nodes that pick a function
    by name.

    Raises batten.Unavailable outside ComfyUI, or where it is too old to have the function.
    InvalidArgument or Unavailable for an unknown backend or one that runs on no device here.
    Registering a name again changes nothing, as in ComfyUI.
    """
    _check_available(backend)
    try:
        module = importlib.import_module("comfy.ldm.modules.attention")
        add, registered = module.register_attention_function, module.REGISTERED_ATTENTION_FUNCTIONS
    except (ImportError, AttributeError) as error:
        raise Unavailable(
            f"ComfyUI's register_attention_function is not here ({error}): call this inside a "
            "ComfyUI that has it (one of September 2025 or newer)"
        ) from error
    if name in registered:
        return registered[name]

    def attention_batten(*args, **kwargs):
        return attention(*args, **kwargs, backend=backend)

    wrapped = getattr(module, "wrap_attn", lambda function: function)(attention_batten)
    add(name, wrapped)
    return wrapped


class BattenAttention:
    """The node "batten attention": a MODEL in, a MODEL out whose attention batten serves."""

    CATEGORY = "attention"
    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"

    @classmethod
    def INPUT_TYPES(cls):  # noqa: N802 (ComfyUI's name)
        backends = ["auto", *(entry["name"] for entry in batten.info()["backends"])]
        return {
            "required": {
                "model": ("MODEL",),
                "backend": (backends,),
                "fallback": ("BOOLEAN", {"default": False}),
            }
        }

    def patch(self, model, backend, fallback):
        return (apply(model, backend, fallback),)


NODE_CLASS_MAPPINGS = {"BattenAttention": BattenAttention}
NODE_DISPLAY_NAME_MAPPINGS = {"BattenAttention": "batten attention"}
