"""From tensors of any framework to the raw views that the native half takes."""

import functools
import sys

from batten import _core

FLOAT32, FLOAT16, BFLOAT16, INT32 = 1, 2, 3, 4
DTYPE_CODES = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16, "int32": INT32}
DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
CPU, CUDA = 0, 1


@functools.cache
def _torch_dtypes():
    torch = sys.modules["torch"]
    return {getattr(torch, name): code for name, code in DTYPE_CODES.items()}


def torch_view(tensor):
    """A torch tensor's view without DLPack, which costs microseconds. The tensor must outlive the call."""
    device = tensor.device
    return (
        tensor.data_ptr(),
        _torch_dtypes().get(tensor.dtype, 0),
        tensor.shape,
        tensor.stride(),
        CUDA if device.type == "cuda" else CPU,
        device.index or 0,
    )


def is_torch(tensor):
    """Whether it is a torch tensor, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def view(tensor):
    """The view of a tensor of any framework that speaks DLPack."""
    if is_torch(tensor):
        if tensor.device.type not in ("cpu", "cuda"):
            raise TypeError(f"tensor on {tensor.device}: expected one on cpu or cuda")
        return torch_view(tensor)
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(f"{type(tensor).__name__}: expected a tensor (NumPy, torch, CuPy, JAX, any with __dlpack__)")
    return _core.view_of(tensor)


def optional_view(tensor):
    return None if tensor is None else view(tensor)


def current_stream(tensor):
    """The stream that the tensor's framework queues work on, as an integer; 0 where it has no such notion."""
    if is_torch(tensor):
        return sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else 0
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(tensor, cupy.ndarray):
        return cupy.cuda.get_current_stream().ptr
    return 0
