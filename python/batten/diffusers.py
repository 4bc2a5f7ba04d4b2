"""batten in diffusers: import this module, and `batten` is one of its attention backends.

    import batten.diffusers

    batten.diffusers.enable(pipe)                     # or one of diffusers' own ways:
    pipe.transformer.set_attention_backend("batten")  # also "batten:cudnn", "batten:single", …
    with attention_backend("batten"): ...             # diffusers.models.attention_dispatch has it
    DIFFUSERS_ATTN_BACKEND=batten python …            # import this before diffusers' models

    with batten.diffusers.record(pipe) as ran:        # what served each attention layer
        pipe(prompt)
    print(ran)

`batten` lets BATTEN_BACKEND choose; `batten:auto` does not. A call that the backend cannot serve
raises batten.Unsupported with the reason; nothing falls back.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import inspect
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch

import batten
import batten.torch
from batten._errors import InvalidArgument, Unavailable, Unsupported
from batten._masks import is_real
from batten._sdpa_masks import sdpa_key_lengths

__all__ = ["Record", "disable", "enable", "record"]

PREFIX = "batten"
_DISPATCH = "diffusers.models.attention_dispatch"
_logger = logging.getLogger("batten.diffusers")
_recorders = []
# On a processor, and so on its copies: (the backend before enable(), the one that enable() set).
_PREVIOUS = "_batten_previous"

# Arguments of other backends, and the values that ask for nothing. diffusers drops, without a word,
# what a backend does not name.
_NEUTRAL = {
    "window_size": (None, (-1, -1), [-1, -1]),
    "softcap": (None, 0, 0.0),
    "alibi_slopes": (None,),
    "deterministic": (None, False, True),  # batten gives the same bits at every run
    "return_attn_probs": (None, False),
    "block_mask": (None,),
    "score_mod": (None,),
}

_PARALLEL = (
    "context parallelism: not served by batten, whose diffusers backend computes whole sequences "
    "on one device; load the model without it, or use another attention backend"
)


def _refuse_others(others):
    for name, value in others.items():
        if not any(
            value is neutral or (type(value) is type(neutral) and value == neutral)
            for neutral in _NEUTRAL.get(name, (None, False))
        ):
            shown = type(value).__name__ if isinstance(value, torch.Tensor) else repr(value)
            raise Unsupported(
                f"{name}={shown}: batten has no such option; call diffusers without it, or use "
                "another attention backend"
            )


def _attend(
    backend, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa, return_lse,
    parallel,
):  # fmt: skip
    if dropout_p:
        raise Unsupported(f"dropout_p={dropout_p}: batten is for inference, dropout must be 0")
    if parallel is not None:
        raise Unsupported(_PARALLEL)
    if query.shape[2] != key.shape[2] and not enable_gqa:
        raise InvalidArgument(
            f"{query.shape[2]} query heads with {key.shape[2]} key heads: pass enable_gqa=True"
        )
    lengths = None
    if attn_mask is not None:
        if is_causal:
            raise InvalidArgument(
                "attn_mask and is_causal=True together: torch's attention takes one of the two"
            )
        sizes = (query.shape[0], query.shape[2], query.shape[1], key.shape[1])
        lengths = sdpa_key_lengths(attn_mask, sizes, query.device, "diffusers")
    causal = False
    if is_causal:  # torch's rule is j <= i; with equal lengths both rules are one
        causal = True if query.shape[1] == key.shape[1] else "top_left"
    # Masked keys are as finite here as torch's attention needs them: it multiplies them by 0.
    return batten.torch.attention(
        query, key, value, causal=causal, scale=scale, kv_lengths=lengths, backend=backend,
        padding_is_finite=lengths is not None, return_lse=return_lse,
    )  # fmt: skip


def _backend_function(backend):
    """What diffusers calls: [B, S, H, D] in and out; with return_lse also the lse, [B, Sq, H]."""

    def batten_attention(
        query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None,
        enable_gqa=False, return_lse=False, _parallel_config=None, **others,
    ):  # fmt: skip
        if others:
            _refuse_others(others)
        result = _attend(
            backend, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa,
            return_lse, _parallel_config,
        )  # fmt: skip
        if _recorders and is_real(result[0] if return_lse else result):
            _note_call()
        return result

    return batten_attention


# ---- registration --------------------------------------------------------------------------------


def _is_ours(name):
    return isinstance(name, str) and name.lower().split(":")[0] == PREFIX


def _import_dispatch():
    """(diffusers' module, the batten backend that DIFFUSERS_ATTN_BACKEND asks for or None).

    The module looks the variable's value up in a closed list while it is imported, so ours is put
    there after.
    """
    try:
        constants = importlib.import_module("diffusers.utils.constants")
    except ImportError as error:
        raise Unavailable(
            f"diffusers cannot be imported ({error}): pip install diffusers"
        ) from error
    wanted = getattr(constants, "DIFFUSERS_ATTN_BACKEND", None)
    wanted = wanted if _is_ours(wanted) and _DISPATCH not in sys.modules else None
    if wanted:
        constants.DIFFUSERS_ATTN_BACKEND = "native"
    try:
        return importlib.import_module(_DISPATCH), wanted
    except ImportError as error:
        raise Unavailable(
            f"{_version()} has no {_DISPATCH} ({error}): a newer one is needed, such as 0.42"
        ) from error
    finally:
        if wanted:
            constants.DIFFUSERS_ATTN_BACKEND = wanted


def _version():
    return f"diffusers {getattr(sys.modules.get('diffusers'), '__version__', '(unknown version)')}"


@functools.cache
def _dispatch():
    """diffusers' dispatch module, checked to be built as this adapter expects, with batten's names
    registered."""
    module, wanted = _import_dispatch()
    registry, names = (
        getattr(module, "_AttentionBackendRegistry", None),
        getattr(module, "AttentionBackendName", None),
    )
    needed = ("register", "_backends", "_supported_arg_names", "set_active_backend")
    missing = [
        f"_AttentionBackendRegistry.{name}" for name in needed if not hasattr(registry, name)
    ]
    missing += (
        []
        if hasattr(names, "_member_map_") and issubclass(names, str)
        else ["AttentionBackendName(str, Enum)"]
    )
    if missing:
        raise Unavailable(
            f"{_version()}: its attention dispatch is not built as batten expects (no "
            f"{', '.join(missing)}); 0.42 is. Use that one, or a newer batten"
        )
    for backend in (None, "auto", *_backend_names()):
        _register(module, backend)
    if wanted:
        registry.set_active_backend(_member(wanted.lower().partition(":")[2] or None, module))
    return module


def _backend_names():
    return [entry["name"] for entry in batten.info()["backends"]]


def _add_name(names, value):
    """Adds a member to the closed list of backend names."""
    member = str.__new__(names, value)
    member._name_ = value.upper().replace(":", "_")
    member._value_ = value
    member._sort_order_ = len(names._member_names_)
    type.__setattr__(names, member._name_, member)
    names._member_names_.append(member._name_)
    names._member_map_[member._name_] = member
    names._value2member_map_[value] = member
    return member


def _register(module, backend):
    value = PREFIX if backend is None else f"{PREFIX}:{backend}"
    registry, names = module._AttentionBackendRegistry, module.AttentionBackendName
    member = names._value2member_map_.get(value) or _add_name(names, value)
    if member not in registry._backends:
        function = registry.register(member)(_backend_function(backend))
        ours = set(inspect.signature(function).parameters) - {"others"}
        theirs = set().union(*registry._supported_arg_names.values()) - {"others"}
        registry._supported_arg_names[member] = ours | theirs | set(_NEUTRAL)
    return member


def _member(backend, module=None):
    """diffusers' name of a batten backend, registered when it is first asked for."""
    module = module or _dispatch()
    _check_name(backend)
    return _register(module, backend.lower() if backend else None)


def _check_name(backend):
    """Raises InvalidArgument unless this is None, or the name of a backend or of one's form."""
    if backend is None:
        return
    forms = {entry["name"]: entry["forms"] for entry in batten.info()["backends"]}
    forms = {"auto": [], **forms}
    name, colon, form = str(backend).lower().partition(":")
    if not isinstance(backend, str) or name not in forms:
        raise InvalidArgument(f"backend={backend!r}: expected one of {', '.join(forms)}")
    if colon and form not in forms[name]:
        raise InvalidArgument(
            f"backend={backend!r}: {name} has no form {form!r}, expected "
            + (", ".join(forms[name]) or "none")
        )


# ---- enable, disable -----------------------------------------------------------------------------


def _models(pipeline_or_model):
    """[(name, module)]: the module itself, or a pipeline's components that are modules."""
    if isinstance(pipeline_or_model, torch.nn.Module):
        return [("", pipeline_or_model)]
    components = getattr(pipeline_or_model, "components", None)
    if not isinstance(components, dict):
        raise InvalidArgument(
            f"{type(pipeline_or_model).__name__}: expected a diffusers pipeline or model"
        )
    return [
        (name, module) for name, module in components.items() if isinstance(module, torch.nn.Module)
    ]


def _layers(pipeline_or_model):
    """[(name, module)] of all attention layers that diffusers itself counts as such."""
    attention = importlib.import_module("diffusers.models.attention")
    processor = importlib.import_module("diffusers.models.attention_processor")
    kinds = tuple(
        getattr(source, name)
        for source, name in (
            (attention, "AttentionModuleMixin"),
            (processor, "Attention"),
            (processor, "MochiAttention"),
        )
        if hasattr(source, name)
    )
    return [
        (f"{prefix}.{name}" if prefix and name else prefix or name, module)
        for prefix, model in _models(pipeline_or_model)
        for name, module in model.named_modules()
        if isinstance(module, kinds)
    ]


def _takes_backends(layer):
    processor = getattr(layer, "processor", None)
    # Processors that are written for certain backends list them.
    return hasattr(processor, "_attention_backend") and not hasattr(
        processor, "_SUPPORTED_BACKENDS"
    )


def enable(pipeline_or_model: Any, backend: str | None = "auto") -> int:
    """Sets batten as the attention backend of every layer of a pipeline or model that takes one.

    backend: "auto", a backend's name ("cudnn", "single", …; "cudnn:packed" for a form), or None for
       the environment's choice (BATTEN_BACKEND, then "auto"). It is checked here, with the layers'
       heads and dtype.

    Returns the number of layers set. Layers whose processor calls torch's attention itself stay as
    they are and are named in a warning; record() shows them. Raises Unsupported if no layer takes a
    backend, or if the backend does not serve one; Unavailable if it cannot run here;
    InvalidArgument for an unknown name.
    """
    _check_name(backend)
    backend = backend.lower() if backend else None
    layers = _layers(pipeline_or_model)
    chosen = [(name, layer) for name, layer in layers if _takes_backends(layer)]
    if not chosen:
        raise Unsupported(
            f"{type(pipeline_or_model).__name__}: no attention layer whose processor takes a "
            f"backend ({len(layers)} attention layers found); nothing was set"
        )
    if any(getattr(layer.processor, "_parallel_config", None) is not None for _, layer in chosen):
        raise Unsupported(_PARALLEL)
    _check_layers(chosen, backend)
    member = _member(backend)
    for _, layer in chosen:
        processor = layer.processor
        before, ours = getattr(processor, _PREVIOUS, (None, None))
        if ours is None or processor._attention_backend is not ours:
            before = processor._attention_backend
        setattr(processor, _PREVIOUS, (before, member))
        processor._attention_backend = member
    _warn_of_others(pipeline_or_model)
    return len(chosen)


def disable(pipeline_or_model: Any) -> int:
    """Gives the layers that enable() set, and copies of them, the backend that they had before.
    Returns their number. Layers that were given another backend since are left alone."""
    count = 0
    for _, layer in _layers(pipeline_or_model):
        processor = getattr(layer, "processor", None)
        if hasattr(processor, _PREVIOUS):
            before, ours = getattr(processor, _PREVIOUS)
            delattr(processor, _PREVIOUS)
            if processor._attention_backend is ours:
                processor._attention_backend = before
                count += 1
    return count


def _warn_of_others(pipeline_or_model):
    """Says which layers, beside those that batten serves in the same model, stay as they are."""
    for prefix, model in _models(pipeline_or_model):
        layers = [layer for _, layer in _layers(model)]
        others = collections.Counter(
            type(layer.processor).__name__ for layer in layers if not _takes_backends(layer)
        )
        if others and others.total() < len(layers):
            _logger.warning(
                "%s: %d attention layers use batten; the processors of others take no backend: %s",
                prefix or type(model).__name__,
                len(layers) - others.total(),
                ", ".join(f"{count} with {kind}" for kind, count in others.items()),
            )


def _shape_of(layer):
    """(device, dtype, heads, head dim) of a layer, or None if it does not say."""
    heads, inner = getattr(layer, "heads", None), getattr(layer, "inner_dim", None)
    weight = next(layer.parameters(), None)
    if (
        weight is None
        or not isinstance(heads, int)
        or not isinstance(inner, int)
        or heads < 1
        or inner % heads
    ):
        return None
    return weight.device, weight.dtype, heads, inner // heads


def _check_layers(layers, backend):
    """Builds batten's object for each kind of layer, so that a backend that cannot serve fails
    here."""
    for shape in dict.fromkeys(_shape_of(layer) for _, layer in layers):
        if shape is not None:
            _check_shape(*shape, backend)


def _check_shape(device, dtype, heads, head_dim, backend):
    # Offloaded models lie on the CPU (or nowhere) and run on the GPU.
    places = [device] if device.type in ("cpu", "cuda") else []
    if device.type != "cuda" and torch.cuda.is_available():
        places.append(torch.device("cuda", torch.cuda.current_device()))
    errors = []
    for place in places:
        half = dtype in (torch.float16, torch.bfloat16)
        taken = (
            dtype if half or (place.type == "cpu" and dtype == torch.float32) else torch.bfloat16
        )
        try:
            batten.check(
                device=place, dtype=taken, num_heads=heads, head_dim=head_dim, backend=backend
            )
            return
        except batten.Error as error:
            errors.append(error)
    if errors:
        raise errors[-1]


# ---- record --------------------------------------------------------------------------------------


class Record:
    """What served each attention layer between record()'s enter and exit.

    layers: name -> Counter of (backend, kernel), one count for each call that batten served.
    runs: name -> how often the layer ran. A layer that ran without a call of batten's was served by
       something else.
    receipts: name -> the receipt of the layer's last call (batten.last_receipt()).
    """

    def __init__(self, names):
        self.layers = {name: collections.Counter() for name in names}
        self.runs = collections.Counter()
        self.receipts = {}
        self._inside = threading.local()
        self._served_runs = collections.Counter()

    def _stack(self):
        if not hasattr(self._inside, "stack"):
            self._inside.stack = []
        return self._inside.stack

    def _enter(self, name):
        self._stack().append([name, 0])

    def _leave(self):
        name, calls = self._stack().pop()
        self.runs[name] += 1
        self._served_runs[name] += bool(calls)

    def _call(self, receipt):
        stack = self._stack()
        name = "(outside the layers)"
        if stack:
            name = stack[-1][0]
            stack[-1][1] += 1
        served = self.layers.setdefault(name, collections.Counter())
        served[receipt["backend"], receipt["kernel"]] += 1
        self.receipts[name] = receipt

    @property
    def calls(self) -> int:
        """Calls that batten served, over all layers."""
        return sum(counter.total() for counter in self.layers.values())

    @property
    def backends(self) -> list[str]:
        """The names of the backends that served, sorted."""
        return sorted({backend for counter in self.layers.values() for backend, _ in counter})

    @property
    def unserved(self) -> list[str]:
        """Names of the layers that ran at least once without batten."""
        return [name for name, runs in self.runs.items() if self._served_runs[name] < runs]

    def check(self, backend: str | None = None) -> None:
        """Raises Unsupported unless layers ran, batten served each of their runs, and `backend` (if
        given) did it."""
        if not self.runs:
            raise Unsupported("no attention layer ran while it was recorded")
        if self.unserved:
            raise Unsupported(
                f"{len(self.unserved)} of {len(self.runs)} attention layers were not served by "
                f"batten: {', '.join(self.unserved[:4])}{', …' if len(self.unserved) > 4 else ''}"
            )
        if backend is not None and self.backends != [backend]:
            raise Unsupported(f"served by {', '.join(self.backends)}, not by {backend} alone")

    def __str__(self):
        lines = []
        for name in dict.fromkeys([*self.runs, *self.layers]):
            served = ", ".join(
                f"{count} by {backend} ({kernel})"
                for (backend, kernel), count in self.layers.get(name, {}).items()
            )
            if served or self.runs[name]:
                lines.append(f"{name}: {self.runs[name]} runs; batten's calls: {served or 'none'}")
        return "\n".join(lines) or "no attention layer ran"


def _note_call():
    receipt = batten.last_receipt()
    if receipt is None:
        return
    for recorder in _recorders:
        recorder._call(receipt)


@contextlib.contextmanager
def record(pipeline_or_model: Any) -> Iterator[Record]:
    """Records what serves each attention layer of a pipeline or model, as a Record.

    Compiled models run uncompiled meanwhile, so that each layer is seen. For a check or a look, not
    for timing.
    """
    layers = _layers(pipeline_or_model)
    recorder = Record([name for name, _ in layers])
    handles = []
    with contextlib.ExitStack() as stack:
        if hasattr(torch.compiler, "set_stance"):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        _recorders.append(recorder)
        try:
            for name, layer in layers:
                handles.append(
                    layer.register_forward_pre_hook(lambda *_, name=name: recorder._enter(name))
                )
                handles.append(
                    layer.register_forward_hook(lambda *_: recorder._leave(), always_call=True)
                )
            yield recorder
        finally:
            _recorders.remove(recorder)
            for handle in handles:
                handle.remove()


_dispatch()
