"""batten's C ABI through ctypes, for benchmarks: no build step, no dependency but the shared library."""

import ctypes
import os
import pathlib

DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "int32": 4}
MASKS = {"none": 0, "causal": 1, "causal_top_left": 2}
DEVICES = {"cpu": 0, "cuda": 1}


class Device(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int32), ("index", ctypes.c_int32)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("shape", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
        ("device", Device),
    ]


class Problem(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("dtype", ctypes.c_int32),
        ("out_dtype", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("head_dim_v", ctypes.c_int32),
        ("mask", ctypes.c_int32),
        ("has_scale", ctypes.c_int32),
        ("scale", ctypes.c_double),
        ("batch_invariant", ctypes.c_int32),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_char_p),
        ("num_threads", ctypes.c_int32),
    ]


class Call(ctypes.Structure):
    _fields_ = (
        [("struct_size", ctypes.c_size_t)]
        + [
            (name, ctypes.POINTER(Tensor))
            for name in ("q", "k", "v", "out", "lse", "q_lengths", "kv_lengths", "offsets_q", "offsets_kv")
        ]
        + [
            ("max_q", ctypes.c_int64),
            ("max_kv", ctypes.c_int64),
            ("has_scale", ctypes.c_int32),
            ("padding_is_finite", ctypes.c_int32),
            ("scale", ctypes.c_double),
            ("stream", ctypes.c_void_p),
            ("workspace", ctypes.c_void_p),
            ("workspace_size", ctypes.c_uint64),
        ]
    )


class Receipt(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("backend", ctypes.c_char * 16),
        ("form", ctypes.c_char * 16),
        ("kernel", ctypes.c_char * 96),
        ("tile", ctypes.c_char * 32),
        ("splits", ctypes.c_int32),
        ("plan_reused", ctypes.c_int32),
        ("workspace_size", ctypes.c_uint64),
        ("library", ctypes.c_char * 160),
        ("reason", ctypes.c_char * 512),
    ]

    def as_dict(self):
        values = {name: getattr(self, name) for name, _ in self._fields_ if name != "struct_size"}
        return {k: v.decode() if isinstance(v, bytes) else v for k, v in values.items()}


class Error(RuntimeError):
    """A failed call; the text is batten's one line."""


def load(path=None):
    """Loads libbatten: `path`, else BATTEN_LIBRARY, else a build of this checkout, else the loader's path."""
    root = pathlib.Path(__file__).resolve().parent.parent
    built = [root / "build" / preset / "lib" / "libbatten.so.0" for preset in ("cuda", "cpu", "release")]
    found = path or os.environ.get("BATTEN_LIBRARY")
    found = found or next((str(p) for p in built if p.exists()), "libbatten.so.0")
    library = ctypes.CDLL(found)
    library.batten_last_error.restype = ctypes.c_char_p
    library.batten_version.restype = ctypes.c_char_p
    library.batten_attention_create.argtypes = [
        ctypes.POINTER(Problem),
        Device,
        ctypes.POINTER(Options),
        ctypes.POINTER(ctypes.c_void_p),
    ]
    library.batten_attention_destroy.argtypes = [ctypes.c_void_p]
    library.batten_forward.argtypes = [ctypes.c_void_p, ctypes.POINTER(Call), ctypes.POINTER(Receipt)]
    return library


def view(tensor):
    """A view of a torch tensor; the tensor must outlive it."""
    device = Device(DEVICES[tensor.device.type], tensor.device.index or 0)
    pad = [0] * (4 - tensor.dim())
    dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
    shape = (ctypes.c_int64 * 4)(*tensor.shape, *pad)
    strides = (ctypes.c_int64 * 4)(*tensor.stride(), *pad)
    return Tensor(tensor.data_ptr(), dtype, tensor.dim(), shape, strides, device)


class Attention:
    """One problem on one device."""

    def __init__(self, library, dtype, num_heads, num_kv_heads, head_dim, mask="none", backend=None,
                 device=("cuda", 0), num_threads=0):
        self._library = library
        problem = Problem(struct_size=ctypes.sizeof(Problem), dtype=DTYPES[dtype], num_heads=num_heads,
                          num_kv_heads=num_kv_heads, head_dim=head_dim, mask=MASKS[mask])
        options = Options(struct_size=ctypes.sizeof(Options), num_threads=num_threads,
                          backend=backend.encode() if backend else None)
        self._handle = ctypes.c_void_p()
        self._check(library.batten_attention_create(ctypes.byref(problem), Device(DEVICES[device[0]], device[1]),
                                                    ctypes.byref(options), ctypes.byref(self._handle)))

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library.batten_attention_destroy(self._handle)

    def _check(self, status):
        if status != 0:
            raise Error(self._library.batten_last_error().decode())

    def call(self, q, k, v, out, stream=None):
        """A reusable call of torch tensors [B, S, H, D]; keeps what it points to alive."""
        views = [view(t) for t in (q, k, v, out)]
        # The tensors hold random numbers throughout, so the promise is true.
        call = Call(struct_size=ctypes.sizeof(Call), stream=stream, padding_is_finite=1)
        call.q, call.k, call.v, call.out = (ctypes.pointer(t) for t in views)
        call.keep = (views, q, k, v, out)
        return call

    def call_packed(self, q, k, v, out, offsets, longest, stream=None):
        """The same for packed samples: tensors [tokens, H, D], self-attention, `offsets` of int32 with one more entry
        than samples, on the host or the device; `longest` bounds a sample's length."""
        views = [view(t) for t in (q, k, v, out, offsets)]
        call = Call(struct_size=ctypes.sizeof(Call), stream=stream, padding_is_finite=1, max_q=longest, max_kv=longest)
        call.q, call.k, call.v, call.out, call.offsets_q = (ctypes.pointer(t) for t in views)
        call.offsets_kv = call.offsets_q
        call.keep = (views, q, k, v, out, offsets)
        return call

    def forward(self, call, receipt=None):
        self._check(self._library.batten_forward(self._handle, ctypes.byref(call),
                                                 ctypes.byref(receipt) if receipt is not None else None))
