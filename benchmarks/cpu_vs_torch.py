#!/usr/bin/env python3
"""batten's cpu backend beside PyTorch's CPU scaled_dot_product_attention, in one process, in turns.

    python3 benchmarks/cpu_vs_torch.py [--library libbatten.so] [--threads N] [--rounds 25]
                                       [--shapes NAME ...] [--dtypes float32 bfloat16] [--output FILE.json]

Every contender computes the same problem from the same [B, S, H, D] memory. Grouped heads are given to
PyTorch with enable_gqa and, as a second contender, with keys and values expanded beforehand (the expansion is
not timed); the faster of the two is its time. Outputs are compared with a float64 softmax. Needs torch.

On a machine that others use too, wall time says little; `ratio_by_cpu_time` is then the number to read, of a
run with --threads 1 (with more, the time in which a thread spins for another counts as well).
"""

import argparse
import json
import math
import os
import pathlib
import platform
import random
import sys
import time

import torch
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import batten_capi  # noqa: E402
import measure_rules  # noqa: E402

HEAD_DIM = 128
# name: batch, queries, keys, query heads, key/value heads
SHAPES = {
    "self": (1, 1560, 1560, 12, 12),
    "cross": (1, 1560, 512, 12, 12),
    "grouped": (8, 128, 4096, 12, 4),
}
EPSILON = {"float32": 2e-6, "bfloat16": 4e-3, "float16": 8e-4}  # of the design's error bound
RESULTS = pathlib.Path(__file__).resolve().parent / "results" / "cpu"


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def float64_attention(q, k, v):
    """[B, S, H, D] in float64, head by head so that the scores stay small."""
    out = torch.empty(q.shape, dtype=torch.float64)
    group = q.shape[2] // k.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            scores = q[b, :, h].double() @ k[b, :, h // group].double().T / math.sqrt(q.shape[3])
            out[b, :, h] = torch.softmax(scores, -1) @ v[b, :, h // group].double()
    return out


def torch_runner(q, k, v, **options):
    """PyTorch wants [B, H, S, D]: views of the same memory."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return lambda: scaled_dot_product_attention(q, k, v, **options)


def contenders_of(library, dtype, shape, threads):
    """{name: function that runs once}, and {name: function that gives the output in [B, S, H, D]}."""
    batch, sq, skv, heads, kv_heads = shape
    torch.manual_seed(0)
    kind = getattr(torch, dtype)
    q = torch.randn(batch, sq, heads, HEAD_DIM).to(kind)
    k, v = (torch.randn(batch, skv, kv_heads, HEAD_DIM).to(kind) for _ in range(2))
    out = torch.empty_like(q)

    attention = batten_capi.Attention(library, dtype, heads, kv_heads, HEAD_DIM, backend="cpu", device=("cpu", 0),
                                      num_threads=threads)
    call = attention.call(q, k, v, out)
    runs = {"batten": lambda: attention.forward(call)}
    if heads == kv_heads:
        runs["torch"] = torch_runner(q, k, v)
    else:
        runs["torch enable_gqa"] = torch_runner(q, k, v, enable_gqa=True)
        expanded = (t.repeat_interleave(heads // kv_heads, 2) for t in (k, v))
        runs["torch expanded"] = torch_runner(q, *expanded)

    receipt = batten_capi.Receipt(struct_size=batten_capi.ctypes.sizeof(batten_capi.Receipt))
    attention.forward(call, receipt)
    expected = float64_attention(q, k, v)
    errors = {}
    for name, run in runs.items():
        result = run()
        result = out if name == "batten" else result.transpose(1, 2)
        errors[name] = float((result.double() - expected).norm() / expected.norm())
    return runs, errors, receipt.as_dict()


def interleaved(runs, rounds, warmups=2):
    """Milliseconds of wall time, and of CPU time of all threads, of each contender and round."""
    wall, cpu = ({name: [] for name in runs} for _ in range(2))
    names = list(runs)
    order = random.Random(0)
    for i in range(warmups + rounds):
        order.shuffle(names)
        for name in names:
            start = time.perf_counter(), time.process_time()
            runs[name]()
            elapsed = time.perf_counter() - start[0], time.process_time() - start[1]
            if i >= warmups:
                wall[name].append(elapsed[0] * 1e3)
                cpu[name].append(elapsed[1] * 1e3)
    return wall, cpu


def against_torch(samples):
    """The faster of PyTorch's contenders, and how many times its time is batten's."""
    medians = {n: measure_rules.summary(s)["median_ms"] for n, s in samples.items()}
    best = min((n for n in medians if n != "batten"), key=medians.get)
    return best, medians, measure_rules.ratio(samples[best], samples["batten"])


def measure(library, dtype, name, threads, rounds):
    runs, errors, receipt = contenders_of(library, dtype, SHAPES[name], threads)
    wall, cpu = interleaved(runs, rounds)
    best, medians, ratio = against_torch(wall)
    _, cpu_medians, cpu_ratio = against_torch(cpu)
    batch, sq, skv, heads, kv_heads = SHAPES[name]
    gflops = 4e-6 * batch * sq * skv * heads * HEAD_DIM / medians["batten"]
    exact = errors["batten"] <= EPSILON[dtype]
    print(f"{name:8} {dtype:9} {threads} threads  batten {medians['batten']:8.2f} ms ({gflops:6.1f} GFLOP/s, "
          f"error {errors['batten']:.1e}{'' if exact else ' TOO LARGE'})  {best} {medians[best]:8.2f} ms "
          f"(error {errors[best]:.1e})  {ratio['median']:.2f}x [{ratio['low']:.2f}, {ratio['high']:.2f}]  "
          f"CPU time {cpu_ratio['median']:.2f}x [{cpu_ratio['low']:.2f}, {cpu_ratio['high']:.2f}]", flush=True)
    return {
        "shape": name,
        "batch_size": batch, "query_length": sq, "kv_length": skv,
        "num_heads": heads, "num_kv_heads": kv_heads, "head_size": HEAD_DIM,
        "dtype": dtype,
        "threads": threads,
        "receipt": receipt,
        "errors": errors,
        "times": {n: measure_rules.summary(s) for n, s in wall.items()},
        "median_cpu_ms": cpu_medians,
        "fastest_torch": best,
        "ratio": ratio,
        "ratio_by_cpu_time": cpu_ratio,
    }, exact


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--library", help="libbatten.so; otherwise a build of this checkout")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of both contenders")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--dtypes", nargs="+", choices=EPSILON, default=["float32", "bfloat16"])
    parser.add_argument("--output", type=pathlib.Path, default=RESULTS / "vs_torch.json")
    options = parser.parse_args()

    load = os.getloadavg()[0]  # near 0: wall time can be trusted
    torch.set_num_threads(options.threads)
    library = batten_capi.load(options.library)
    results, exact = [], True
    with torch.inference_mode():
        for dtype in options.dtypes:
            for name in options.shapes:
                result, fine = measure(library, dtype, name, options.threads, options.rounds)
                results.append(result)
                exact = exact and fine
    document = {
        "environment": {
            "cpu": cpu_name(), "threads": options.threads, "torch": torch.__version__,
            "batten": library.batten_version().decode(), "date": time.strftime("%Y-%m-%d"),
            "load_average": load,
        },
        "timing_scope": "call",
        "rounds": options.rounds,
        "results": results,
    }
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(document, indent=2) + "\n")
    print(f"wrote {options.output}", file=sys.stderr)
    return 0 if exact else 1


if __name__ == "__main__":
    sys.exit(main())
