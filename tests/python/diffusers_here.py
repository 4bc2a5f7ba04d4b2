"""What tests of the adapter import: a file that does is skipped without torch or diffusers."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")
import batten  # noqa: E402
import batten.diffusers  # noqa: E402
from diffusers.models import attention_dispatch  # noqa: E402

dispatch = attention_dispatch.dispatch_attention_fn
registry = attention_dispatch._AttentionBackendRegistry

__all__ = ["attention_dispatch", "batten", "dispatch", "registry", "torch"]
