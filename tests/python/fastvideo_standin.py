"""A package with the documented interface of FastVideo's attention, written into a folder: for
tests without FastVideo.

Two generations: "requested" keeps requests per component in the selector (2026), "environment"
reads the environment inside the cached function (2025). Either may ship a FLASHINFER member of its
own.
"""

import os
import subprocess
import sys
import textwrap
import venv
from types import SimpleNamespace

VARIABLES = (
    "BATTEN_FASTVIDEO",
    "FASTVIDEO_ATTENTION_BACKEND",
    "FASTVIDEO_FLASHINFER_PREFILL_BACKEND",
    "BATTEN_BACKEND",
)

_INTERFACE = """
import enum
class AttentionBackendEnum(enum.Enum):
    FLASH_ATTN = enum.auto()
    TORCH_SDPA = enum.auto()
    SAGE_ATTN = enum.auto()
    VIDEO_SPARSE_ATTN = enum.auto()
    {own}
"""

_ABSTRACT = """
from abc import ABC, abstractmethod
from dataclasses import dataclass
class AttentionBackend(ABC):
    @staticmethod
    @abstractmethod
    def get_name(): ...
class AttentionImpl(ABC):
    @abstractmethod
    def forward(self, query, key, value, attn_metadata): ...
@dataclass
class AttentionMetadata:
    current_timestep: int
    VSA_sparsity: float = 0.0
"""

_CUDA = """
class CudaPlatform:
    device_name = "cuda"
    @classmethod
    def get_attn_backend_cls(cls, selected_backend, head_size, dtype):
        name = getattr(selected_backend, "name", None)
        if name not in (None, "FLASH_ATTN", "TORCH_SDPA", "VIDEO_SPARSE_ATTN", "SAGE_ATTN"{own}):
            raise ValueError("Invalid attention backend for cuda")
        return name or "automatic"
"""

_REQUESTED = """
from functools import cache
import os
from fastvideo.platforms import AttentionBackendEnum, current_platform
NO_REQUEST = object()
COMPONENT = None
def get_attn_backend(head_size, dtype, supported_attention_backends=None, default_backend=None, *,
                     requested=NO_REQUEST):
    env = None
    if requested is NO_REQUEST:
        requested, env = None, os.environ.get("FASTVIDEO_ATTENTION_BACKEND")
    return _cached_get_attn_backend(head_size, dtype, supported_attention_backends, default_backend,
                                    requested=requested, env_backend=env, component=COMPONENT)
@cache
def _cached_get_attn_backend(head_size, dtype, supported_attention_backends=None,
                             default_backend=None, *, requested=None, env_backend=None,
                             component=None):
    if not supported_attention_backends:
        raise ValueError("supported_attention_backends is empty")
    selected = requested or AttentionBackendEnum.__members__.get(env_backend) or default_backend
    if selected not in supported_attention_backends:
        selected = None
    return current_platform.get_attn_backend_cls(selected, head_size, dtype)
"""

_ENVIRONMENT = """
from functools import cache
import os
from fastvideo.platforms import AttentionBackendEnum, current_platform
forced = None
def get_global_forced_attn_backend():
    return forced
def get_attn_backend(head_size, dtype, supported_attention_backends=None):
    return _cached_get_attn_backend(head_size, dtype, supported_attention_backends)
@cache
def _cached_get_attn_backend(head_size, dtype, supported_attention_backends=None):
    if not supported_attention_backends:
        raise ValueError("supported_attention_backends is empty")
    named = os.environ.get("FASTVIDEO_ATTENTION_BACKEND")
    selected = forced or AttentionBackendEnum.__members__.get(named)
    if selected not in supported_attention_backends:
        selected = None
    return current_platform.get_attn_backend_cls(selected, head_size, dtype)
"""

_LAYER = """
from fastvideo.attention.selector import get_attn_backend
class LocalAttention:
    def __init__(self, num_heads, head_size, dtype, supported_attention_backends):
        self.backend_cls = get_attn_backend(head_size, dtype, supported_attention_backends)
"""

_SDPA = """
from dataclasses import dataclass
class SDPAMetadataBuilder: pass
@dataclass
class SDPAMetadata:
    current_timestep: int
    attn_mask: object = None
    is_causal: bool = False
"""


def write(folder, generation="requested", own_member=False, cached=True):
    """Writes the package under `folder`, which is to be put on the path."""
    own = "FLASHINFER = enum.auto()" if own_member else ""
    selector = {"requested": _REQUESTED, "environment": _ENVIRONMENT}[generation]
    if not cached:
        selector = selector.replace("_cached_get_attn_backend", "_resolve").replace("@cache\n", "")
    files = {
        "__init__.py": "",
        "attention/__init__.py": "from fastvideo.attention.selector import get_attn_backend\n",
        "attention/backends/__init__.py": "",
        "attention/backends/abstract.py": _ABSTRACT,
        "attention/backends/sdpa.py": _SDPA,
        "attention/layer.py": _LAYER,
        "attention/selector.py": selector,
        "platforms/__init__.py": "from fastvideo.platforms.interface import AttentionBackendEnum\n"
        "from fastvideo.platforms.cuda import CudaPlatform as current_platform\n",
        "platforms/interface.py": _INTERFACE.format(own=own),
        "platforms/cuda.py": _CUDA.format(own=', "FLASHINFER"' if own_member else ""),
    }
    for name, text in files.items():
        path = folder / "fastvideo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return folder


WORKER = """
import multiprocessing
import sys

def served():
    from fastvideo.platforms import AttentionBackendEnum as names
    from fastvideo.attention.selector import get_attn_backend
    import torch
    try:
        cls = get_attn_backend(64, torch.bfloat16, (names.FLASH_ATTN, names.TORCH_SDPA))
    except ValueError:  # a real FastVideo has no attention of its own on the CPU
        return "automatic"
    return cls if isinstance(cls, str) else cls.__module__

def put(queue):
    queue.put(served())

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=put, args=(queue,))
    worker.start()
    print("worker", queue.get(timeout=240))
    worker.join()
    print("main", served())
"""


def make_environment(root, *paths):
    """A virtual environment with this interpreter's packages behind `paths`: (interpreter, site
    directory, script that prints what serves a layer in a spawned worker and in its main
    process)."""
    venv.create(root / "venv", with_pip=False, symlinks=True)
    site = next((root / "venv").glob("lib/python*/site-packages"))
    here = os.path.dirname(os.path.abspath(__file__))
    ours = [path for path in sys.path if path and os.path.abspath(path) != here]
    (site / "paths.pth").write_text("\n".join([*map(str, paths), *ours]) + "\n", encoding="utf-8")
    script = root / "worker_of_test.py"
    script.write_text(WORKER, encoding="utf-8")
    return root / "venv" / "bin" / "python", site, script


def run(python, *arguments, **variables):
    """What a program prints, on stdout and stderr, with no variable of batten's set but these."""
    clean = {
        name: value for name, value in os.environ.items() if name not in (*VARIABLES, "PYTHONPATH")
    }
    done = subprocess.run(
        [str(python), *map(str, arguments)],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def one_rank(monkeypatch):
    """The real FastVideo without its variables, as one process of one: nothing is exchanged."""
    from fastvideo.distributed import parallel_state

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    group = SimpleNamespace(
        world_size=1, rank_in_group=0, all_to_all_4D=lambda x, *_: x, all_gather=lambda x, *_: x
    )
    monkeypatch.setattr(parallel_state, "_SP", group)
    monkeypatch.setattr(parallel_state, "_TP", group)
