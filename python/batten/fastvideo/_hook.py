"""Lets batten into FastVideo in any interpreter, spawned workers and console commands included.

`python -m batten.fastvideo enable` copies this file into a site directory, beside a .pth file that
imports it where BATTEN_FASTVIDEO or FASTVIDEO_ATTENTION_BACKEND=FLASHINFER is set. It stands alone:
nothing else is imported until FastVideo's selector is, and then batten patches that module.
"""

import sys

_SELECTOR = "fastvideo.attention.selector"


class _Loader:
    """Stands in for a module's loader until the module has run."""

    def __init__(self, inner, patch):
        self._inner = inner
        self._patch = patch

    def create_module(self, spec):
        return self._inner.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._inner
        self._inner.exec_module(module)
        self._patch(module)


class _Finder:
    """Finds FastVideo's selector as the other finders do, and has it patched once it has run."""

    def __init__(self, patch):
        self._patch = patch

    def find_spec(self, name, path=None, target=None):
        if name != _SELECTOR:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or isinstance(finder, _Finder) or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None and hasattr(spec.loader, "exec_module"):
                spec.loader = _Loader(spec.loader, self._patch)
                return spec
        return None


def _patch_with_batten(module):
    try:
        from batten.fastvideo import _selector
    except ImportError as failure:
        raise ImportError(
            f"FastVideo was asked to use batten, which cannot be imported ({failure}). Install it "
            f"into this environment, or unset the variables, or delete {__file__} and "
            "batten_fastvideo.pth beside it."
        ) from failure
    _selector.patch(module)


def arm(patch=_patch_with_batten):
    """Has FastVideo's selector patched when it is imported. Does nothing when called again."""
    if not any(
        type(finder).__name__ == "_Finder"
        and type(finder).__module__ in (__name__, "_batten_fastvideo_hook")
        for finder in sys.meta_path
    ):
        sys.meta_path.insert(0, _Finder(patch))


def disarm():
    """Takes arm() back."""
    sys.meta_path[:] = [
        finder
        for finder in sys.meta_path
        if type(finder).__name__ != _Finder.__name__
        or type(finder).__module__ not in (__name__, "_batten_fastvideo_hook")
    ]
