"""Times batten's backends beside the field's attention kernels, in one process, on the same tensors.

On a machine with a GPU and PyTorch:

    python benchmarks/peers.py --shapes published wan --output results/peers.json

Contenders: PyTorch SDPA's FlashAttention-2 and cuDNN; FlashAttention-3 (`flash_attn_interface`) and FlashInfer where
they can be imported; batten's backends through its C ABI. Each is checked against float64, then all are timed in
interleaved rounds of CUDA-graph replays (docs/performance/gpu.md has the method). `table.py` prints the result.
"""

import argparse
import ctypes
import datetime
import json
import os
import platform
import subprocess
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import batten_capi
import measure
import measure_rules

PUBLISHED = [(b, q, 4096, 12, 4, False) for b in (4, 8, 16, 32) for q in (128, 256, 512, 1024)]
WAN = [
    (1, 32760, 32760, 12, 12, False),
    (1, 75600, 75600, 12, 12, False),
    (1, 75600, 75600, 40, 40, False),
    (1, 32760, 512, 12, 12, False),
    (1, 75600, 512, 12, 12, False),
    (1, 75600, 512, 40, 40, False),
]
CAUSAL = [(16384 // s, s, s, 16, 16, True) for s in (1024, 4096, 16384)]
SHAPES = {"published": PUBLISHED, "wan": WAN, "causal": CAUSAL}
HEAD_DIM = 128
MAX_SETS = 6
# Above this a check samples rows instead of computing all of them in float64.
CHECKED_ROWS = 256
LARGEST_ERROR = 4e-3  # bfloat16


def sdpa(backend):
    def make(sets, causal, library):
        del library

        def run(i):
            q, k, v, _ = sets[i]
            with sdpa_kernel(backend):
                sets[i][3] = torch.nn.functional.scaled_dot_product_attention(
                    q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=causal,
                    enable_gqa=q.shape[2] != k.shape[2]).transpose(1, 2)

        return run, None

    return make


def flash_attention_3(sets, causal, library):
    del library
    import flash_attn_interface

    def run(i):
        q, k, v, _ = sets[i]
        result = flash_attn_interface.flash_attn_func(q, k, v, causal=causal, num_splits=0)
        sets[i][3] = result[0] if isinstance(result, tuple) else result

    return run, {"library": f"flash_attn_interface {getattr(flash_attn_interface, '__version__', '')}".strip()}


def flashinfer_single(sets, causal, library):
    del library
    import flashinfer

    def run(i):
        q, k, v, out = sets[i]
        for b in range(q.shape[0]):
            out[b] = flashinfer.single_prefill_with_kv_cache(q[b], k[b], v[b], causal=causal, kv_layout="NHD")

    return run, {"library": f"flashinfer {flashinfer.__version__}"}


def batten(backend):
    def make(sets, causal, library):
        q, k = sets[0][0], sets[0][1]
        attention = batten_capi.Attention(library, "bfloat16", q.shape[2], k.shape[2], q.shape[3],
                                          mask="causal" if causal else "none", backend=backend,
                                          device=("cuda", q.device.index or 0))
        receipt = batten_capi.Receipt(struct_size=ctypes.sizeof(batten_capi.Receipt))
        calls = [attention.call(*tensors) for tensors in sets]
        attention.forward(calls[0], receipt)

        def run(i):
            calls[i].stream = torch.cuda.current_stream().cuda_stream
            attention.forward(calls[i])

        return run, receipt.as_dict()

    return make


CONTENDERS = {
    "torch:flash": sdpa(SDPBackend.FLASH_ATTENTION),
    "torch:cudnn": sdpa(SDPBackend.CUDNN_ATTENTION),
    "fa3": flash_attention_3,
    "flashinfer:single": flashinfer_single,
}


def relative_error(q, k, v, out, causal):
    """‖out - float64 attention‖ / ‖float64 attention‖ over sampled rows: first, last, and evenly between."""
    rows = torch.linspace(0, q.shape[1] - 1, min(CHECKED_ROWS, q.shape[1]), device=q.device).long().unique()
    group = q.shape[2] // k.shape[2]
    error = norm = 0.0
    for b in range(min(q.shape[0], 2)):
        for h in range(0, q.shape[2], max(1, q.shape[2] // 4)):
            kh, vh = (t[b, :, h // group].double() for t in (k, v))
            scores = q[b, rows, h].double() @ kh.T / q.shape[3] ** 0.5
            if causal:
                limit = rows[:, None] + (k.shape[1] - q.shape[1])
                scores.masked_fill_(torch.arange(k.shape[1], device=q.device)[None] > limit, float("-inf"))
            expected = torch.softmax(scores, -1) @ vh
            error += (out[b, rows, h].double() - expected).square().sum().item()
            norm += expected.square().sum().item()
    return (error / norm) ** 0.5


def make_sets(shape):
    batch, sq, skv, hq, hkv, _ = shape
    options = {"device": "cuda", "dtype": torch.bfloat16}
    size = 2 * batch * HEAD_DIM * (2 * sq * hq + 2 * skv * hkv)
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, min(MAX_SETS, -(-4 * cache // size)))
    return [[torch.randn(batch, sq, hq, HEAD_DIM, **options), torch.randn(batch, skv, hkv, HEAD_DIM, **options),
             torch.randn(batch, skv, hkv, HEAD_DIM, **options),
             torch.full((batch, sq, hq, HEAD_DIM), float("nan"), **options)] for _ in range(count)]


def environment(library, command):
    properties = torch.cuda.get_device_properties(0)
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False,
                         cwd=os.path.dirname(os.path.abspath(__file__)))
    driver = subprocess.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
                            capture_output=True, text=True, check=False)
    return {
        "gpu": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "driver": driver.stdout.split("\n")[0],
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
        "torch": torch.__version__,
        "cpu": platform.processor() or platform.machine(),
        "batten": library.batten_version().decode(),
        "git": os.environ.get("BATTEN_GIT", git.stdout.strip()),
        "date": datetime.date.today().isoformat(),
        "command": command,
    }


def run_shape(shape, names, library, rounds):
    batch, sq, skv, hq, hkv, causal = shape
    sets = make_sets(shape)
    replays, meta = {}, {}
    for name in names:
        make = CONTENDERS.get(name) or batten(name.removeprefix("batten:"))
        try:
            run, receipt = make(sets, causal, library)
            run(0)
            torch.cuda.synchronize()
            q, k, v, out = sets[0]
            error = relative_error(q, k, v, out, causal)
            if not error < LARGEST_ERROR:  # NaN included: a row that was not written
                raise RuntimeError(f"wrong result, relative error {error}")
            meta[name] = {"receipt": receipt, "rel_error": error}
            sets[0][3] = torch.full_like(q, float("nan"))
            if name.startswith("batten:"):  # its calls hold the tensors of their making
                run, receipt = make(sets, causal, library)
            replays[name] = measure.Replay(run, len(sets))
        except (ImportError, RuntimeError) as failure:
            meta[name] = {"skipped": str(failure).split("\n")[0]}
    samples = measure.interleave(replays, rounds)
    flops = 4.0 * batch * sq * skv * hq * HEAD_DIM / (2 if causal and sq == skv else 1)
    results = []
    for name in names:
        result = {"backend": name, **meta[name], "batch_size": batch, "query_length": sq, "kv_length": skv,
                  "num_heads": hq, "num_kv_heads": hkv, "head_size": HEAD_DIM, "dtype": "bfloat16", "causal": causal}
        if name in samples:
            result |= measure_rules.summary(samples[name])
            result["tflops"] = flops / result["median_ms"] * 1e-9
            result["calls_per_replay"] = replays[name].calls
        results.append(result)
    return results


def parse_shape(text):
    """B,Sq,Skv,Hq,Hkv[,causal]"""
    *numbers, last = text.split(",")
    causal = last == "causal"
    try:
        batch, sq, skv, hq, hkv = (int(n) for n in (numbers if causal else [*numbers, last]))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected B,Sq,Skv,Hq,Hkv[,causal]") from None
    if min(batch, sq, skv, hq, hkv) < 1 or hq % hkv:
        raise argparse.ArgumentTypeError(f"{text}: sizes are at least 1, and Hq is a multiple of Hkv")
    return batch, sq, skv, hq, hkv, causal


def describe(results):
    first = results[0]
    cells = []
    for r in results:
        if "median_ms" in r:
            cells.append(f"{r['backend']} {r['median_ms'] * 1e3:.1f}us ({r['tflops']:.0f})")
        else:
            cells.append(f"{r['backend']} skipped: {r['skipped'][:60]}")
    shape = "B{batch_size} {query_length}x{kv_length} {num_heads}/{num_kv_heads}".format(**first)
    return shape + (" causal" if first["causal"] else "") + ": " + "  ".join(cells)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["published"], choices=sorted(SHAPES))
    parser.add_argument("--backends", nargs="+",
                        default=[*CONTENDERS, "batten:native", "batten:cudnn", "batten:cudnn:packed", "batten:cudnn:lengths",
                                 "batten:single"],
                        help="contenders; batten's as batten:NAME")
    parser.add_argument("--shape", nargs="+", type=parse_shape, default=[], metavar="B,SQ,SKV,HQ,HKV[,causal]",
                        help="shapes of your own, instead of --shapes")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds, at least 15 for a ratio")
    parser.add_argument("--library", help="libbatten.so (default: BATTEN_LIBRARY, then this checkout's build)")
    parser.add_argument("--output", default="results/peers.json")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    for name in arguments.backends:
        if name not in CONTENDERS and not name.startswith("batten:"):
            parser.error(f"unknown contender {name}: expected batten:NAME or one of {', '.join(CONTENDERS)}")
    if not torch.cuda.is_available():
        print("peers: error: no CUDA device; run on a machine with a GPU", file=sys.stderr)
        return 4
    library = batten_capi.load(arguments.library)
    # What was measured; where the file went is nobody's business.
    command = " ".join(["python benchmarks/peers.py"] + [a for i, a in enumerate(sys.argv[1:], 1)
                                                         if "--output" not in (a, sys.argv[i - 1])])
    torch.manual_seed(0)
    results = []
    for shape in arguments.shape or [s for group in arguments.shapes for s in SHAPES[group]]:
        shape_results = run_shape(shape, arguments.backends, library, arguments.rounds)
        print(describe(shape_results), flush=True)
        results += shape_results
        torch.cuda.empty_cache()
    payload = {"environment": environment(library, command), "timing_scope": "graph", "warmups": 2, "repeats": arguments.rounds,
               "results": results}
    os.makedirs(os.path.dirname(arguments.output) or ".", exist_ok=True)
    partial = arguments.output + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(payload, file, indent=1)
    os.replace(partial, arguments.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
