#!/usr/bin/env python3
"""Compare attention outputs in two safetensors files; needs nothing but Python.

    scripts/compare_outputs.py MINE REFERENCE [--tolerance 4e-3]

compares the tensors "out" and, where both files have it, "lse". Prints the relative error over the
whole tensor (norm of the difference by norm of the reference); exit code 1 when it is too large.
"""

import argparse
import array
import json
import math
import struct
import sys


def read(path):
    """The tensors of a safetensors file, as name -> (shape, array of float)."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    tensors = {}
    for name, entry in header.items():
        if name not in ("out", "lse"):
            continue
        begin, end = entry["data_offsets"]
        raw = data[begin:end]
        if entry["dtype"] == "F32":
            values = array.array("f", raw)
        elif entry["dtype"] == "F16":
            values = array.array("f", (x for (x,) in struct.iter_unpack("<e", raw)))
        elif entry["dtype"] == "BF16":  # the upper half of an fp32
            values = array.array("f", b"".join(b"\0\0" + raw[i:i + 2] for i in range(0, len(raw), 2)))
        else:
            raise ValueError(f"{path}: {name} has dtype {entry['dtype']}")
        tensors[name] = (entry["shape"], values)
    return tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("mine")
    parser.add_argument("reference")
    parser.add_argument("--tolerance", type=float, default=4e-3)
    options = parser.parse_args()
    mine, reference = read(options.mine), read(options.reference)
    if "out" not in mine or "out" not in reference:
        print("compare: no tensor 'out' in one of the files", file=sys.stderr)
        return 1
    good = True
    for name in sorted(mine.keys() & reference.keys(), reverse=True):
        shape, values = mine[name]
        expected_shape, expected = reference[name]
        if shape != expected_shape:
            print(f"{name}: shape {shape}, PyTorch has {expected_shape}")
            good = False
            continue
        difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(values, expected)))
        error = difference / math.sqrt(sum(b * b for b in expected))
        fine = error <= options.tolerance  # false for NaN
        good = good and fine
        print(f"{name}: differs from PyTorch's float64 by {error:.1e} "
              f"({'fine' if fine else 'TOO MUCH'}, limit {options.tolerance:.0e})")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
