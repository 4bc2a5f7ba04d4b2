"""Teaches FastVideo's selector about batten: which class serves a layer is decided there, once per
layer.

What a FastVideo has is found by looking, never by its version: the selector's cached function or
its public one, a FLASHINFER member of its own or none, requests per component or the environment
alone.
"""

import functools
import inspect
import logging
import os
import sys

from batten.fastvideo import _settings

logger = logging.getLogger("batten.fastvideo")

_MARK = "_batten_original"
_FUNCTIONS = ("_cached_get_attn_backend", "get_attn_backend")
_DENSE = ("FLASH_ATTN", _settings.MEMBER)


def patch(selector):
    """Routes the layers that ask for batten to it. `selector`: the module
    fastvideo.attention.selector."""
    name = _function_of(selector)
    original = getattr(selector, name)
    if hasattr(original, _MARK):
        return
    enum = selector.AttentionBackendEnum
    ships_own = _settings.MEMBER in enum.__members__
    if not ships_own:
        _add_member(enum, _settings.MEMBER)
    router = _Router(selector, original, getattr(enum, "_batten_ships_own", ships_own))
    enum._batten_ships_own = router.ships_own  # the member stays when the patch is taken back

    @functools.wraps(original)
    def routed(*args, **kwargs):
        return router.backend(args, kwargs)

    for attribute in ("cache_clear", "cache_info", "cache_parameters"):
        if hasattr(original, attribute):
            setattr(routed, attribute, getattr(original, attribute))
    setattr(routed, _MARK, original)
    _replace(selector, name, original, routed)


def unpatch(selector):
    """Takes patch() back for layers constructed from now on, also where a function was imported by
    name before the selector was reloaded."""
    for module_name, module in [(selector.__name__, selector), *sys.modules.items()]:
        if module is selector or module_name.startswith("fastvideo."):
            for name in _FUNCTIONS:
                routed = getattr(module, name, None)
                if hasattr(routed, _MARK):
                    setattr(module, name, getattr(routed, _MARK))


def _function_of(selector):
    for name in _FUNCTIONS:
        if callable(getattr(selector, name, None)) and hasattr(selector, "AttentionBackendEnum"):
            return name
    raise ImportError(
        "this FastVideo chooses attention backends in a way that batten does not know "
        f"({selector.__name__} has no get_attn_backend or no AttentionBackendEnum); nothing was "
        "changed"
    )


def _replace(selector, name, old, new):
    """In the selector, and where else in FastVideo the function was imported by name."""
    setattr(selector, name, new)
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("fastvideo.") and getattr(module, name, None) is old:
            setattr(module, name, new)


def _add_member(enum, name):
    """A further member of a plain Enum: by name, by value, in iteration and through pickle as the
    others."""
    member = object.__new__(enum)
    member._name_ = name
    member._value_ = 1 + max(other.value for other in enum if isinstance(other.value, int))
    member.__objclass__ = enum
    member._sort_order_ = len(enum._member_names_)
    enum._member_names_.append(name)
    enum._member_map_[name] = member
    enum._value2member_map_[member._value_] = member
    type.__setattr__(enum, name, member)


def _backend_class():
    """Batten's class, which isinstance() and issubclass() of FastVideo's abstract classes know from
    then on."""
    from batten.fastvideo import backend

    abstract = sys.modules.get("fastvideo.attention.backends.abstract")
    if abstract is not None:
        abstract.AttentionBackend.register(backend.BattenBackend)
        abstract.AttentionImpl.register(backend.BattenImpl)
    return backend.BattenBackend


class _Router:
    """Decides, layer by layer, whether batten or FastVideo's own choice serves it."""

    def __init__(self, selector, original, ships_own):
        self._selector = selector
        self._original = original
        self._signature = inspect.signature(original)
        self._said = set()
        self.ships_own = ships_own

    def backend(self, args, kwargs):
        """The class that serves a layer; the arguments are those of the selector's function."""
        if self._serves(self._signature.bind(*args, **kwargs).arguments):
            return _backend_class()
        return self._original(*args, **kwargs)

    def _serves(self, layer):
        takes_over = _settings.takes_over()
        wanted = self._wanted(layer)
        name = wanted.name if wanted is not None else None
        if not takes_over and (name != _settings.MEMBER or self.ships_own):
            return False
        supported = [member.name for member in layer.get("supported_attention_backends") or ()]
        component = layer.get("component")
        half = str(layer.get("dtype")) in ("torch.float16", "torch.bfloat16")
        transformer = self._is_transformer(component, half)
        if not any(member in supported for member in _DENSE):
            return self._leave(
                component,
                f"a layer serves only {', '.join(supported) or 'nothing'}, not FLASH_ATTN",
            )
        if not takes_over:
            return transformer or self._leave(
                component or f"a layer in {layer.get('dtype')}",
                f"{_settings.MEMBER} is for transformers",
            )
        if name in supported and name not in _DENSE:
            return self._leave(component, f"{name} was asked for")
        if not transformer and not half:
            return self._leave(component, f"its layers compute in {layer.get('dtype')}")
        return True

    def _is_transformer(self, component, half):
        """Whether a layer is a diffusion transformer's. Selectors that know no components are asked
        for encoders' layers too, which differ by computing in float32."""
        if component is not None:
            return str(component).startswith("transformer")
        return half or "component" in self._signature.parameters

    def _leave(self, component, why):
        """False, and a line that says so once."""
        self._say(f"batten: {component or 'layer'} left to FastVideo's own choice: {why}")
        return False

    def _say(self, line):
        if line not in self._said:
            self._said.add(line)
            logger.warning(line)

    def _wanted(self, layer):
        """The member that was asked for: by the call, the process or the environment, else by the
        layer."""
        enum = self._selector.AttentionBackendEnum
        forced = getattr(self._selector, "get_global_forced_attn_backend", lambda: None)()
        for request in (layer.get("requested"), forced):
            if isinstance(request, enum):
                return request
        reads_environment = "env_backend" not in self._signature.parameters
        named = (
            os.environ.get(_settings.ATTENTION_BACKEND)
            if reads_environment
            else layer.get("env_backend")
        )
        if named in enum.__members__:
            return enum[named]
        if named is not None and named.strip():
            self._say(
                f"batten: {_settings.ATTENTION_BACKEND}={named!r} is no name that FastVideo knows, "
                f"and counts as unset, as in FastVideo; expected one of "
                f"{', '.join(enum.__members__)}"
            )
        return layer.get("default_backend")
