"""Reads and writes safetensors files with the standard library alone, right ones and wrong ones."""

import json
import struct

CODES = {"F32": "f", "F16": "e", "I32": "i", "I64": "q", "F64": "d"}


def to_bf16(value):
    """The bits of a float as bfloat16, rounded to nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16) & 0xFFFF


def encode(dtype, values):
    if dtype == "BF16":
        return struct.pack(f"<{len(values)}H", *(to_bf16(v) for v in values))
    return struct.pack(f"<{len(values)}{CODES[dtype]}", *values)


def decode(dtype, data):
    if dtype == "BF16":
        halves = struct.unpack(f"<{len(data) // 2}H", data)
        return [struct.unpack("<f", struct.pack("<I", h << 16))[0] for h in halves]
    code = CODES[dtype]
    return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))


def pack(header, data, pad=True):
    text = json.dumps(header).encode()
    if pad:
        text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def build(tensors, pad=True):
    """`tensors`: name -> (dtype, shape, values). Returns the header and the data of the file."""
    header, data = {}, b""
    for name, (dtype, shape, values) in tensors.items():
        part = encode(dtype, values)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    return header, data


def write(path, tensors, pad=True):
    path.write_bytes(pack(*build(tensors), pad))


def read(path):
    """name -> (dtype, shape, values), and the metadata."""
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    data = raw[8 + size :]
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = (entry["dtype"], entry["shape"], decode(entry["dtype"], data[begin:end]))
    return tensors, metadata
