"""From tensors of any framework to the raw views that the native half takes.

A view is the tuple (address, dtype code, shape, strides in elements, device type, device index). It
owns nothing: the tensor that it was made from must outlive the call. A view of a DLPack export has
a seventh entry, which owns the export: there the view must outlive the call.
"""

from __future__ import annotations

import array
import sys
from typing import Any

from batten import _core
from batten._errors import Error, InvalidArgument, Unsupported

FLOAT32, FLOAT16, BFLOAT16, INT32 = 1, 2, 3, 4
DTYPE_CODES = {"float32": FLOAT32, "float16": FLOAT16, "bfloat16": BFLOAT16, "int32": INT32}
DTYPE_NAMES = {code: name for name, code in DTYPE_CODES.items()}
CPU, CUDA = 0, 1
INT32_MAX = 2**31 - 1

RawView = tuple[int, int, tuple[int, ...], tuple[int, ...], int, int] | tuple[Any, ...]


def is_numpy(tensor: Any) -> bool:
    """Whether it is a NumPy array, without importing NumPy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(tensor, numpy.ndarray)


def numpy_view(tensor: Any) -> RawView:
    """A NumPy array's view. Not through DLPack: that knows no bfloat16 of ml_dtypes, and refuses
    read-only arrays in old NumPy versions."""
    if isinstance(tensor, sys.modules["numpy"].ma.MaskedArray):
        raise InvalidArgument(
            "masked array: batten does not look at its mask; pass its .data, and lengths for what "
            "is padding"
        )
    size = tensor.itemsize
    code = DTYPE_CODES.get(tensor.dtype.name, 0) if tensor.dtype.isnative else 0
    if code == 0:
        raise InvalidArgument(
            f"array of {tensor.dtype}: expected float32, float16 or bfloat16 (ml_dtypes), "
            "and int32 for lengths and offsets"
        )
    if any(stride % size for stride in tensor.strides):
        raise InvalidArgument(
            f"array with strides of {tensor.strides} bytes: expected multiples of its element "
            f"size {size}; copy it with numpy.ascontiguousarray"
        )
    strides = tuple(stride // size for stride in tensor.strides)
    if tensor.size == 0:  # NumPy's strides of nothing may be anything
        strides = (*strides[:-1], 1) if strides else ()
    return (tensor.__array_interface__["data"][0], code, tensor.shape, strides, CPU, 0)


def view(tensor: Any, name: str) -> RawView:
    """The view of an input of any framework other than torch. `name` is for the message."""
    if is_numpy(tensor):
        return numpy_view(tensor)
    if not hasattr(tensor, "__dlpack__"):
        raise InvalidArgument(
            f"{name}: {type(tensor).__name__}, expected a tensor "
            "(torch, NumPy, CuPy, JAX or another with __dlpack__)"
        )
    try:
        raw = _core.view_of(tensor)
    except (TypeError, BufferError, RuntimeError) as error:
        if isinstance(error, Error):
            raise
        raise InvalidArgument(
            f"{name}: {type(tensor).__name__} whose __dlpack__ gives no tensor that batten can read"
        ) from error
    if raw[4] == CUDA and not _is_cupy(tensor):
        raise Unsupported(
            f"{name}: {type(tensor).__module__} tensor on a GPU, whose stream batten cannot know; "
            "pass torch.from_dlpack(tensor) or cupy.from_dlpack(tensor)"
        )
    return raw


def writable_view(tensor: Any, name: str) -> RawView:
    """The view of an output."""
    if (is_numpy(tensor) and not tensor.flags.writeable) or _is_jax(tensor):
        raise InvalidArgument(f"{name}: a read-only array, expected one that can be written")
    return view(tensor, name)


def lengths_view(lengths: Any, name: str) -> tuple[RawView | None, Any]:
    """The view of lengths or offsets, and what must be kept alive for it. Takes any sequence of
    ints and any integer array; what is not int32 is copied."""
    if lengths is None:
        return None, None
    if isinstance(lengths, (list, tuple, range)):
        values = int32_values(lengths, name)
        return (values.buffer_info()[0], INT32, (len(values),), (1,), CPU, 0), values
    lengths = _on_the_host(lengths)
    if is_numpy(lengths):
        lengths = int32_array(lengths, name)
        return numpy_view(lengths), lengths
    if not hasattr(lengths, "__dlpack__"):
        raise InvalidArgument(
            f"{name}: {type(lengths).__name__}, expected integers: a list, an array or a tensor"
        )
    if _is_cupy(lengths):
        if lengths.dtype.kind not in "iu":
            raise InvalidArgument(f"{name}: array of {lengths.dtype}, expected integers")
        if lengths.dtype.name != "int32" or not lengths.flags.c_contiguous:
            # Never read by the host: out of range is clamped, as the kernels do.
            if lengths.dtype.itemsize >= 4:
                lengths = lengths.clip(None, INT32_MAX)
            lengths = lengths.astype("int32", order="C")
    raw = view(lengths, name)
    return raw, lengths


def _on_the_host(lengths: Any) -> Any:
    """Lengths of torch and of JAX (whose arrays batten takes on the CPU) as NumPy's, if they are
    such; of a GPU's, a copy."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(lengths, torch.Tensor):
        from batten import _torch_calls

        return _torch_calls.host_integers(lengths)
    if _is_jax(lengths):
        import numpy

        return numpy.asarray(lengths)
    return lengths


def int32_array(lengths: Any, name: str) -> Any:
    """A NumPy array of integers as contiguous int32: itself, or a copy."""
    if lengths.dtype.kind not in "iu":
        raise InvalidArgument(f"{name}: array of {lengths.dtype}, expected integers")
    if lengths.dtype.name == "int32" and lengths.dtype.isnative and lengths.flags.c_contiguous:
        return lengths
    if lengths.size and (int(lengths.max()) > INT32_MAX or int(lengths.min()) < -INT32_MAX):
        raise InvalidArgument(f"{name}: a value does not fit in int32")
    return lengths.astype("int32", order="C")


def int32_values(lengths: Any, name: str) -> Any:
    """A list, tuple or range of ints as an array.array."""
    if bool in map(type, lengths):
        raise InvalidArgument(f"{name}: expected integers, got a bool")
    try:
        return array.array("i", lengths)
    except (TypeError, OverflowError) as error:
        raise InvalidArgument(f"{name}: expected integers that fit in int32 ({error})") from None


def empty(like: Any, shape: tuple[int, ...], code: int) -> Any:
    """An uninitialised array of the same framework and device; NumPy's for JAX, which is immutable
    (on the CPU: GPU arrays of it were refused before)."""
    if _is_cupy(like):
        return sys.modules["cupy"].empty(shape, dtype=DTYPE_NAMES[code])
    if not (is_numpy(like) or _is_jax(like)):
        raise Unsupported(
            f"{type(like).__module__} tensor: batten cannot make an output of that kind; pass out="
        )
    import numpy

    name = DTYPE_NAMES[code]
    return numpy.empty(shape, dtype=like.dtype if like.dtype.name == name else _numpy_dtype(name))


def _numpy_dtype(name: str) -> Any:
    if name != "bfloat16":
        return name
    import ml_dtypes

    return ml_dtypes.bfloat16


def current_stream(tensor: Any) -> int:
    """CuPy's current stream, as an integer; 0 on the CPU."""
    return sys.modules["cupy"].cuda.get_current_stream().ptr if _is_cupy(tensor) else 0


def _is_cupy(tensor: Any) -> bool:
    cupy = sys.modules.get("cupy")
    return cupy is not None and isinstance(tensor, cupy.ndarray)


def _is_jax(tensor: Any) -> bool:
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(tensor, jax.Array)
