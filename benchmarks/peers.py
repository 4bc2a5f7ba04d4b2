"""Times batten's backends beside the field's attention kernels, in one process, on the same tensors.

On a machine with a GPU and PyTorch:

    python benchmarks/peers.py --shapes published self --output results/peers.json
    python benchmarks/peers.py --scope sustained --shapes self --backends fa3 batten:native   # joules per call too
    python benchmarks/peers.py --shapes sm80 --backends torch:flash batten:native@sm80 batten:native@sm80,99

Contenders: PyTorch SDPA's FlashAttention-2 and cuDNN; FlashAttention-3 (`flash_attn_interface`) and FlashInfer where
they can be imported; batten's backends through its C ABI. Each is checked against float64, then all are timed in
interleaved rounds of CUDA-graph replays, or each in turn for seconds (docs/performance/README.md has the method).
`table.py` prints the result.
"""

import argparse
import contextlib
import ctypes
import datetime
import math
import os
import platform
import subprocess
import sys
import typing

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import batten_capi
import measure
import measure_rules
import results_file


class Shape(typing.NamedTuple):
    """One call: sizes, and whether its mask is causal."""

    batch: int
    sq: int
    skv: int
    hq: int
    hkv: int
    causal: bool = False
    head_dim: int = 128

    def flops(self):
        pairs = self.sq * self.skv / (2 if self.causal and self.sq == self.skv else 1)
        return 4.0 * self.batch * pairs * self.hq * self.head_dim


TOKENS = 16384  # of the square shapes
SELF = [(1, 32760, 12), (2, 32760, 12), (1, 27280, 24), (1, 75600, 12), (1, 75600, 40), (1, 75600, 5)]
CROSS = [(1, 32760, 512, 12), (2, 32760, 512, 12), (1, 75600, 512, 40), (1, 32760, 257, 12), (1, 32760, 257, 40)]
SHAPES = {
    "published": [Shape(b, q, 4096, 12, 4) for b in (4, 8, 16, 32) for q in (128, 256, 512, 1024)],
    # Wan: all tokens of a video (480p, both halves of guidance, 720p, a rank of several), then text and image.
    "self": [Shape(b, s, s, h, h) for b, s, h in SELF],
    "cross": [Shape(b, sq, skv, h, h) for b, sq, skv, h in CROSS],
    # Video made frame by frame: a frame, and three frames of queries on a whole window of keys.
    "frames": [Shape(b, sq, skv, 12, 12) for sq, skv in ((1560, 1560), (4680, 32760)) for b in (1, 2, 4)],
    "square": [Shape(TOKENS // s, s, s, 16, 16) for s in (512, 1024, 2048, 4096, 8192, 16384)],
    "causal": [Shape(TOKENS // s, s, s, 16, 16, True) for s in (512, 1024, 2048, 4096, 8192, 16384)],
    "few": [Shape(1, sq, skv, hq, hkv) for sq in (1, 16, 64, 256) for skv in (4096, 32760, 75600)
            for hq, hkv in ((12, 12), (40, 40), (40, 8))],
    "d64": [Shape(TOKENS // s, s, s, 16, 16, causal, 64) for s in (4096, 16384) for causal in (False, True)],
    "dims": [Shape(4, 4096, 4096, 16, 16, causal, dim) for dim in (80, 96, 192, 256) for causal in (False, True)],
}
# The sm80 family beside FlashAttention-2, which computes with the same instructions.
SM80 = {"published": SHAPES["published"], "Wan self": SHAPES["self"][:1], "Wan cross": SHAPES["cross"][:1],
        "causal": SHAPES["causal"][1:], "head dim 64": SHAPES["d64"],
        **{f"head dim {dim}": [s for s in SHAPES["dims"] if s.head_dim == dim] for dim in (80, 96, 192, 256)}}
SHAPES["sm80"] = [shape for shapes in SM80.values() for shape in shapes]
MAX_SETS = 6
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# Above this a check samples rows instead of computing all of them in float64.
CHECKED_ROWS = 256
LARGEST_ERROR = 4e-3


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


@contextlib.contextmanager
def variables(values):
    """Environment variables for a while; the library reads them when it makes a plan."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def batten(name):
    """NAME, or native@sm80 and native@sm80,99: the sm80 family's kernels, those for so many KB of shared memory."""
    backend, _, family = name.partition("@")
    arch, _, limit = family.partition(",")
    settings = {"BATTEN_NATIVE_ARCH": arch, "BATTEN_SMEM_LIMIT": limit}

    def make(sets, causal, library):
        with variables({variable: value for variable, value in settings.items() if value}):
            return make_with_settings(sets, causal, library)

    def make_with_settings(sets, causal, library):
        q, k = sets[0][0], sets[0][1]
        dtype = str(q.dtype).removeprefix("torch.")
        attention = batten_capi.Attention(library, dtype, q.shape[2], k.shape[2], q.shape[3],
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


def make_sets(shape, dtype):
    options = {"device": "cuda", "dtype": dtype}
    sizes = [(shape.batch, rows, heads, shape.head_dim)
             for rows, heads in ((shape.sq, shape.hq), (shape.skv, shape.hkv), (shape.skv, shape.hkv))]
    size = dtype.itemsize * 2 * (math.prod(sizes[0]) + math.prod(sizes[1]))
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    count = max(2, min(MAX_SETS, -(-4 * cache // size)))
    return [[torch.randn(size, **options) for size in sizes] + [torch.full(sizes[0], float("nan"), **options)]
            for _ in range(count)]


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
        "settings": {name: value for name, value in sorted(os.environ.items())
                     if name.startswith("BATTEN_") and name != "BATTEN_GIT" and value},
        "date": datetime.date.today().isoformat(),
        "command": command,
    }


def prepare(shape, names, library, dtype):
    """({name: Replay}, {name: what is known without timing}) of the contenders that run and are right."""
    sets = make_sets(shape, dtype)
    replays, meta = {}, {}
    for name in names:
        make = CONTENDERS.get(name) or batten(name.removeprefix("batten:"))
        try:
            run, receipt = make(sets, shape.causal, library)
            run(0)
            torch.cuda.synchronize()
            q, k, v, out = sets[0]
            error = relative_error(q, k, v, out, shape.causal)
            if not error < LARGEST_ERROR:  # NaN included: a row that was not written
                raise RuntimeError(f"wrong result, relative error {error}")
            meta[name] = {"receipt": receipt, "rel_error": error}
            sets[0][3] = torch.full_like(q, float("nan"))
            if name.startswith("batten:"):  # its calls hold the tensors of their making
                run, receipt = make(sets, shape.causal, library)
            replays[name] = measure.Replay(run, len(sets))
        except (ImportError, RuntimeError) as failure:
            meta[name] = {"skipped": str(failure).split("\n")[0]}
    return replays, meta


def run_shape(shape, group, names, library, options):
    replays, meta = prepare(shape, names, library, DTYPES[options.dtype])
    if options.scope == "graph":
        measured = {name: measure_rules.summary(samples)
                    for name, samples in measure.interleave(replays, options.rounds).items()}
    else:
        measured = measure.sustain(replays, options.rounds, options.seconds)
    results = []
    for name in names:
        result = {"backend": name, **meta[name], "batch_size": shape.batch, "query_length": shape.sq,
                  "kv_length": shape.skv, "num_heads": shape.hq, "num_kv_heads": shape.hkv,
                  "head_size": shape.head_dim, "dtype": options.dtype, "causal": shape.causal,
                  "group": group}
        if name in measured:
            result |= measured[name]
            result["tflops"] = shape.flops() / result["median_ms"] * 1e-9
            result["calls_per_replay"] = replays[name].calls
        results.append(result)
    return results


def chosen_shapes(arguments):
    """[(group, shape)]"""
    if arguments.shape:
        return [("own", shape) for shape in arguments.shape]
    groups = [(name, shapes) for chosen in arguments.shapes
              for name, shapes in (SM80.items() if chosen == "sm80" else [(chosen, SHAPES[chosen])])]
    return [(name, shape) for name, shapes in groups for shape in shapes]


def parse_shape(text):
    """B,Sq,Skv,Hq,Hkv[,D][,causal]"""
    fields = text.split(",")
    causal = fields[-1] == "causal"
    try:
        batch, sq, skv, hq, hkv, *rest = (int(n) for n in fields[:len(fields) - causal])
        (head_dim,) = rest or (128,)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: expected B,Sq,Skv,Hq,Hkv[,D][,causal]") from None
    if min(batch, sq, skv, hq, hkv, head_dim) < 1 or hq % hkv:
        raise argparse.ArgumentTypeError(f"{text}: sizes are at least 1, and Hq is a multiple of Hkv")
    return Shape(batch, sq, skv, hq, hkv, causal, head_dim)


def describe(results):
    first = results[0]
    cells = []
    for r in results:
        if "median_ms" in r:
            energy = f", {r['joules_per_call'] * 1e3:.1f}mJ" if "joules_per_call" in r else ""
            cells.append(f"{r['backend']} {r['median_ms'] * 1e3:.1f}us ({r['tflops']:.0f}{energy})")
        else:
            cells.append(f"{r['backend']} skipped: {r['skipped'][:60]}")
    shape = "B{batch_size} {query_length}x{kv_length} {num_heads}/{num_kv_heads}".format(**first)
    shape += f" d{first['head_size']}" if first["head_size"] != 128 else ""
    return shape + (" causal" if first["causal"] else "") + ": " + "  ".join(cells)


def save(arguments, library, command, results):
    payload = {"environment": environment(library, command), "timing_scope": arguments.scope, "warmups": 2,
               "repeats": arguments.rounds, "results": results}
    results_file.write(arguments.output, payload)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["published"], choices=sorted(SHAPES))
    parser.add_argument("--backends", nargs="+",
                        default=[*CONTENDERS, "batten:native", "batten:cudnn", "batten:cudnn:packed",
                                 "batten:cudnn:lengths", "batten:single"],
                        help="contenders; batten's as batten:NAME, the sm80 family on another card as "
                        "batten:native@sm80, as with 99 KB of shared memory batten:native@sm80,99")
    parser.add_argument("--shape", nargs="+", type=parse_shape, default=[], metavar="B,SQ,SKV,HQ,HKV[,D][,causal]",
                        help="shapes of your own, instead of --shapes")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16")
    parser.add_argument("--scope", choices=("graph", "sustained"), default="graph")
    parser.add_argument("--rounds", type=int, help="interleaved rounds (graph: 15, as a ratio needs; sustained: 2)")
    parser.add_argument("--seconds", type=float, default=2, help="sustained: of each contender in each round")
    parser.add_argument("--library", help="libbatten.so (default: BATTEN_LIBRARY, then this checkout's build)")
    parser.add_argument("--output", default="results/peers.json")
    arguments = parser.parse_args()
    if arguments.rounds is None:
        arguments.rounds = 15 if arguments.scope == "graph" else 2
    if arguments.rounds < 1 or not 0 < arguments.seconds <= 600:
        parser.error("--rounds must be at least 1, --seconds above 0 and at most 600")
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
    for group, shape in chosen_shapes(arguments):
        shape_results = run_shape(shape, group, arguments.backends, library, arguments)
        print(describe(shape_results), flush=True)
        results += shape_results
        torch.cuda.empty_cache()
        save(arguments, library, command, results)  # a contender that breaks the device costs the rest only
    return 0


if __name__ == "__main__":
    sys.exit(main())
