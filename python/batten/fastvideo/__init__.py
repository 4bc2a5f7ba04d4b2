"""batten as an attention backend of FastVideo, without editing FastVideo.

In a script, before the generator is made (spawned workers import the script again, and with it
these lines):

    import batten.fastvideo
    batten.fastvideo.install()

For the `fastvideo` command, or any script as it is, once per environment:

    python -m batten.fastvideo enable        # disable, status

Then FASTVIDEO_ATTENTION_BACKEND=FLASHINFER, with
FASTVIDEO_FLASHINFER_PREFILL_BACKEND=single|cudnn|native|auto (default single), asks for batten in
transformers; BATTEN_FASTVIDEO=1 has it take every dense layer, with `auto`, and
BATTEN_FASTVIDEO=<backend> with that backend. The variables are read when a layer is constructed.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from batten.fastvideo import _hook, _settings

__all__ = ["install", "receipts", "uninstall"]


def install(backend: str | None = None) -> None:
    """Makes FASTVIDEO_ATTENTION_BACKEND=FLASHINFER and BATTEN_FASTVIDEO work in this process.

    Works before or after FastVideo is imported, for layers constructed from then on. Calling it
    again does nothing.
    backend: sets BATTEN_FASTVIDEO for this process and those that it starts: "auto", or a backend's
       name. Raises InvalidArgument for an unknown one.
    """
    if backend is not None:
        _settings.check_name(backend)
        os.environ[_settings.TAKE_OVER] = backend
    _hook.arm()  # also where FastVideo is here already: its module may be reloaded
    selector = sys.modules.get("fastvideo.attention.selector")
    if selector is None:
        return
    from batten.fastvideo import _selector

    _selector.patch(selector)


def uninstall() -> None:
    """Leaves layers constructed from now on to FastVideo; those that exist stay as they are."""
    selector = sys.modules.get("fastvideo.attention.selector")
    _hook.disarm()
    if selector is not None:
        from batten.fastvideo import _selector

        _selector.unpatch(selector)


def receipts() -> list[dict[str, Any]]:
    """What each of this process's layers ran at its first call outside of a compiled graph, in
    order of construction.

    A list of dicts: prefix (the layer's name, where FastVideo gives one), backend (as asked for),
    num_heads, num_kv_heads, head_size, causal, and receipt: batten.last_receipt() of that call,
    None before it.
    """
    backend = sys.modules.get("batten.fastvideo.backend")
    return [] if backend is None else backend.receipts()
