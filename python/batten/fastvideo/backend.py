"""The two classes that FastVideo asks of an attention backend. They need torch, and no FastVideo
until asked for it."""

import logging
import sys
import threading
import weakref

import torch

import batten
import batten.torch  # registers the op
from batten._masks import LengthsCache, is_real, key_lengths, refuse_capture
from batten._torch_calls import refuse_gradient
from batten.fastvideo import _settings

logger = logging.getLogger("batten.fastvideo")

_HALF = (torch.float16, torch.bfloat16)
# Key lengths stay on the host: the check of a mask has them there, every backend takes them there,
# and a kernel gets them as parameters.
_HOST = torch.device("cpu")
_attention = torch.ops.batten.attention.default
_lengths = LengthsCache()
_layers = []  # weak references, in order of construction
_once = threading.Lock()
_said = set()


class BattenBackend:
    """What FastVideo's selector returns for a layer that batten serves."""

    accept_output_buffer = False

    @staticmethod
    def get_name():
        return _settings.MEMBER

    @staticmethod
    def get_impl_cls():
        return BattenImpl

    @staticmethod
    def get_metadata_cls():
        from fastvideo.attention.backends.sdpa import SDPAMetadata

        return SDPAMetadata

    @staticmethod
    def get_builder_cls():
        from fastvideo.attention.backends.sdpa import SDPAMetadataBuilder

        return SDPAMetadataBuilder

    @staticmethod
    def get_supported_head_sizes():
        return None  # depends on the backend; BattenImpl asks it


class BattenImpl:
    """Attention of one FastVideo layer.

    The backend is chosen and checked here, from the variables that batten.fastvideo documents: what
    cannot be served raises Unavailable, Unsupported or InvalidArgument, and no layer is handed to
    another backend.

    softmax_scale: 1/sqrt(head_size) if None. causal: bottom-right, as FlashAttention aligns it.
    prefix: the layer's name; DistributedAttention gives one, LocalAttention none.
    backend: a backend's name, instead of the variables. device, dtype: what to check for, instead
       of FastVideo's.
    extra_impl_args: dropout must be 0 and nvfp4_fa4 off; others are hints to other backends.
    """

    def __init__(
        self,
        num_heads,
        head_size,
        softmax_scale=None,
        causal=False,
        num_kv_heads=None,
        prefix="",
        *,
        backend=None,
        device=None,
        dtype=None,
        **extra_impl_args,
    ):
        _refuse_extras(prefix, extra_impl_args)
        chosen = _settings.Choice(backend, "code") if backend else _settings.choice()
        self.backend = chosen.backend
        self.num_heads, self.head_size, self.prefix = num_heads, head_size, prefix
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.causal = bool(causal)
        self._mask = "causal" if self.causal else "none"
        self.softmax_scale = head_size**-0.5 if softmax_scale is None else float(softmax_scale)
        self.receipt = None
        self._asked_by = chosen.asked_by
        device = torch.device(_device() if device is None else device)
        try:
            batten.check(
                device=device,
                dtype=_served_dtype(dtype or _compute_dtype(), device.type),
                num_heads=num_heads,
                num_kv_heads=self.num_kv_heads,
                head_dim=head_size,
                causal=self.causal,
                backend=self.backend,
            )
        except batten.Error as failure:
            raise type(failure)(
                f"FastVideo layer {_named(prefix)}, backend {self.backend} ({self._asked_by}): "
                f"{failure}"
            ) from None
        _layers.append(weakref.ref(self))

    def __getstate__(self):
        return {**self.__dict__, "receipt": None}  # a copy has not run

    def __setstate__(self, state):
        self.__dict__.update(state)
        _layers.append(weakref.ref(self))

    def preprocess_qkv(self, qkv, attn_metadata):
        return qkv

    def postprocess_output(self, output, attn_metadata):
        return output

    def forward(self, query, key, value, attn_metadata=None, *gate):
        """query: [B, Sq, Hq, D]; key, value: [B, Skv, Hkv, D], of any strides with a contiguous
        last dimension. float16, bfloat16 or float32; mixed ones are computed as float32 is.

        attn_metadata: None, or any object; its attn_mask (padding, see docs/fastvideo.md) and
        is_causal count. Returns [B, Sq, Hq, D] in the dtype of query. Raises Unsupported for sparse
        attention and for masks that are no key lengths.
        """
        if gate or isinstance(attn_metadata, torch.Tensor):
            raise batten.Unsupported(
                f"FastVideo layer {_named(self.prefix)}: gate_compress belongs to sparse "
                "attention, which batten does not serve; unset "
                "FASTVIDEO_ATTENTION_BACKEND=VIDEO_SPARSE_ATTN, or batten's variables"
            )
        causal, lengths = self._mask, None
        if attn_metadata is not None:
            causal, lengths = self._from_metadata(attn_metadata, query, key)
        dtype = query.dtype
        if dtype not in _HALF or key.dtype is not dtype or value.dtype is not dtype:
            query, key, value = _cast(query, key, value)
        refuse_gradient(query, key, value)
        # A masked key must be finite for TORCH_SDPA too, which multiplies it by 0.
        out = _attention(
            query,
            key,
            value,
            causal,
            self.softmax_scale,
            lengths,
            self.backend,
            lengths is not None,
        )
        if self.receipt is None and not torch.compiler.is_compiling() and is_real(out):
            self._note_first_call(out)
        return out if out.dtype is dtype else out.to(dtype)

    def _from_metadata(self, metadata, query, key):
        """(causal, kv_lengths) of a call: TORCH_SDPA's reading of a mask, FLASH_ATTN's of
        is_causal."""
        if self.prefix and getattr(metadata, "VSA_sparsity", 0.0):
            raise batten.Unsupported(
                f"FastVideo layer {self.prefix}: its metadata asks for sparsity "
                f"{metadata.VSA_sparsity}, batten computes dense attention; set the sparsity to 0, "
                "or FASTVIDEO_ATTENTION_BACKEND=VIDEO_SPARSE_ATTN"
            )
        if getattr(metadata, "is_causal", False):
            return "causal", None
        mask = getattr(metadata, "attn_mask", None)
        if mask is None:
            return self._mask, None
        batch, kv_rows = key.shape[0], key.shape[1]
        if torch.compiler.is_compiling():
            lengths = torch.ops.batten_fastvideo.key_lengths(mask, batch, kv_rows)
        else:
            if not isinstance(mask, torch.Tensor):
                raise batten.InvalidArgument(
                    f"FastVideo layer {_named(self.prefix)}: attn_mask of type "
                    f"{type(mask).__name__}, expected a torch tensor; torch.as_tensor() makes one"
                )
            lengths = _lengths.lengths(
                mask, (batch, kv_rows), lambda: _read_mask(mask, batch, kv_rows)
            )
        if self.causal and lengths is not None and query.shape[1] == kv_rows:
            # Positions of queries count from the first key, however few keys are valid.
            return "top_left", lengths
        return self._mask, lengths

    def _note_first_call(self, out):
        self.receipt = batten.last_receipt()
        with _once:
            first = "receipt" not in _said
            _said.add("receipt")
        line = (
            f"batten {batten.__version__} serves {len(receipts())} FastVideo layers of this "
            f"process, asked by {self._asked_by}; the first ran {describe(self.receipt)} on "
            f"{_device_name(out)}"
        )
        logger.log(logging.INFO if first else logging.DEBUG, line)


def receipts():
    """See batten.fastvideo.receipts()."""
    alive = [layer for layer in (reference() for reference in _layers) if layer is not None]
    if len(alive) < len(_layers):
        _layers[:] = [weakref.ref(layer) for layer in alive]
    names = ("prefix", "backend", "num_heads", "num_kv_heads", "head_size", "causal", "receipt")
    return [{name: getattr(layer, name) for name in names} for layer in alive]


def describe(receipt):
    """A receipt in words, for a log."""
    if not receipt:
        return "nothing"
    text = " ".join(
        f"{name}={receipt[name]}"
        for name in ("backend", "form", "kernel", "library")
        if receipt.get(name)
    )
    return f"{text} ({receipt.get('reason') or 'no reason given'})"


def _read_mask(mask, batch, kv_rows):
    refuse_capture(mask)
    lengths = key_lengths(mask, batch, kv_rows)
    return None if lengths is None else lengths.to(_HOST)


@torch.library.custom_op("batten_fastvideo::key_lengths", mutates_args=())
def _key_lengths_op(mask: torch.Tensor, batch: int, kv_rows: int) -> torch.Tensor:
    """A mask's key lengths, int32 [batch] on the host, as one node of a compiled graph. Read at
    each call: compiled code reuses its buffers, and counts no writes to them."""
    lengths = _read_mask(mask, batch, kv_rows)
    if lengths is None:
        return torch.full((batch,), kv_rows, dtype=torch.int32, device=_HOST)
    return lengths


@_key_lengths_op.register_fake
def _(mask, batch, kv_rows):
    return mask.new_empty((batch,), dtype=torch.int32, device=_HOST)


def _named(prefix):
    return prefix or "without a name"


def _refuse_extras(prefix, extra):
    for name in ("dropout_p", "dropout_rate", "dropout"):
        if extra.get(name):
            raise batten.Unsupported(
                f"FastVideo layer {_named(prefix)}: {name}={extra[name]}, batten has no dropout; "
                "use 0"
            )
    if extra.get("nvfp4_fa4"):
        raise batten.Unsupported(
            f"FastVideo layer {_named(prefix)}: nvfp4_fa4 asks for FP4 queries and keys, batten "
            "computes in bf16 and fp16; unset it, or batten's variables"
        )


def _compute_dtype():
    utils = sys.modules.get("fastvideo.utils")
    return (
        utils.get_compute_dtype()
        if hasattr(utils, "get_compute_dtype")
        else torch.get_default_dtype()
    )


def _device():
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else "cpu"


def _served_dtype(dtype, device_type):
    """What inputs of a dtype are computed in: FlashAttention's rule on a GPU; the CPU takes float32
    as it is."""
    if dtype in _HALF:
        return dtype
    return torch.float32 if device_type == "cpu" else torch.bfloat16


def _cast(*tensors):
    """Float32 and mixed tensors (Wan's normalised q and k beside its v) in what float32 is computed
    in."""
    dtypes = [tensor.dtype for tensor in tensors]
    if any(dtype not in _HALF and dtype is not torch.float32 for dtype in dtypes):
        raise batten.InvalidArgument(
            f"query, key and value of {', '.join(map(str, dtypes))}: expected float16, bfloat16 or "
            "float32; cast them first"
        )
    served = _served_dtype(torch.float32, tensors[0].device.type)
    if all(dtype is served for dtype in dtypes):
        return tensors
    if not torch.compiler.is_compiling() and "cast" not in _said:
        _said.add("cast")
        logger.warning(
            "batten: inputs of %s are computed in %s and the output is cast back",
            ", ".join(map(str, dict.fromkeys(dtypes))),
            served,
        )
    return tuple(tensor.to(served) for tensor in tensors)


def _device_name(tensor):
    return (
        f"{tensor.device} ({torch.cuda.get_device_name(tensor.device)})"
        if tensor.is_cuda
        else str(tensor.device)
    )
