"""Times packed samples of different lengths: batten's one call beside a padded batch and beside equal lengths.

On a machine with a GPU and PyTorch:

    python benchmarks/ragged.py --output results/ragged.json

A set has 16 to 64 samples of self-attention, 64 to 8192 tokens each: lengths drawn evenly, or one long sample among
many short ones. Contenders, in interleaved rounds of CUDA-graph replays:
  batten:NAME   forward_packed with offsets on the device
  padded        PyTorch's cuDNN attention on the batch padded to its longest sample; a mask, which it would need, would
                cost more
  equal         batten's `native` on as many samples, all of one length, with (nearly) as many FLOPs, its time scaled to
                just as many: what no imbalance costs
Each sample of batten's output is compared with float64 attention before anything is timed.
"""

import argparse
import math
import random
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import batten_capi
import measure
import measure_rules
import peers
import results_file

HEADS = 12
HEAD_DIM = 128
SHORTEST, LONGEST = 64, 8192
LONGEST_OF_SHORT = 512
COUNTS = (16, 32, 48, 64)
EQUAL, PADDED = "equal", "padded"


def lengths_of(kind, count, seed):
    """`count` lengths; kind "even": drawn evenly, "one long": the longest, and short ones, in random order."""
    draw = random.Random(seed)
    if kind == "even":
        return [draw.randint(SHORTEST, LONGEST) for _ in range(count)]
    lengths = [LONGEST] + [draw.randint(SHORTEST, LONGEST_OF_SHORT) for _ in range(count - 1)]
    draw.shuffle(lengths)
    return lengths


def flops(lengths):
    return 4.0 * sum(n * n for n in lengths) * HEADS * HEAD_DIM


def equal_length(lengths):
    """A length, a multiple of 128, at which as many samples have about the same FLOPs."""
    return max(1, round(math.sqrt(sum(n * n for n in lengths) / len(lengths)) / 128)) * 128


def normal(*shape):
    return torch.randn(*shape, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)


def packed(backend, lengths, library):
    tokens = sum(lengths)
    q, k, v = (normal(tokens) for _ in range(3))
    out = torch.full_like(q, float("nan"))
    offsets = torch.tensor([0, *lengths]).cumsum(0).int().cuda()
    attention = batten_capi.Attention(library, "bfloat16", HEADS, HEADS, HEAD_DIM, backend=backend)
    call = attention.call_packed(q, k, v, out, offsets, max(lengths))
    receipt = batten_capi.Receipt(struct_size=batten_capi.ctypes.sizeof(batten_capi.Receipt))
    attention.forward(call, receipt)
    torch.cuda.synchronize()
    starts = offsets.tolist()
    errors = [peers.relative_error(*(t[None, a:b] for t in (q, k, v, out)), False) for a, b in zip(starts, starts[1:])]
    if not max(errors) < peers.LARGEST_ERROR:
        raise RuntimeError(f"wrong result, relative error {max(errors)}")

    def run(_):
        call.stream = torch.cuda.current_stream().cuda_stream
        attention.forward(call)

    return run, {"receipt": receipt.as_dict(), "rel_error": max(errors)}


def padded(lengths):
    q, k, v = (normal(len(lengths), max(lengths)).transpose(1, 2) for _ in range(3))

    def run(_):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(q, k, v)

    return run, {}


def equal(lengths, library):
    q, k, v, out = (normal(len(lengths), equal_length(lengths)) for _ in range(4))
    attention = batten_capi.Attention(library, "bfloat16", HEADS, HEADS, HEAD_DIM, backend="native")
    call = attention.call(q, k, v, out)

    def run(_):
        call.stream = torch.cuda.current_stream().cuda_stream
        attention.forward(call)

    return run, {"length": equal_length(lengths)}


def run_set(kind, count, seed, backends, library, rounds):
    lengths = lengths_of(kind, count, seed)
    made = {f"batten:{b}": packed(b, lengths, library) for b in backends}
    made |= {PADDED: padded(lengths), EQUAL: equal(lengths, library)}
    samples = measure.interleave({name: measure.Replay(run, 1) for name, (run, _) in made.items()}, rounds)
    # As if it had exactly the set's FLOPs.
    scale = flops(lengths) / flops([equal_length(lengths)] * count)
    samples[EQUAL] = [s * scale for s in samples[EQUAL]]
    return [{"backend": name, "set": f"{count} {kind}", "lengths": lengths, "num_heads": HEADS, "head_size": HEAD_DIM,
             "dtype": "bfloat16", **made[name][1], **measure_rules.summary(s),
             "tflops": flops(lengths) / measure_rules.summary(s)["median_ms"] * 1e-9,
             "of_equal": measure_rules.ratio(s, samples[EQUAL]),
             "padded_over_this": measure_rules.ratio(samples[PADDED], s)}
            for name, s in samples.items()]


def save(arguments, library, results):
    command = f"python benchmarks/ragged.py --seed {arguments.seed} --rounds {arguments.rounds}"
    results_file.write(arguments.output, {
        "environment": peers.environment(library, command), "timing_scope": "graph", "warmups": 2,
        "repeats": arguments.rounds, "results": results})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backends", nargs="+", default=["native", "cudnn"], help="batten's")
    parser.add_argument("--rounds", type=int, default=15, help="interleaved rounds, at least 15 for a ratio")
    parser.add_argument("--seed", type=int, default=0, help="of the lengths")
    parser.add_argument("--library", help="libbatten.so (default: BATTEN_LIBRARY, then this checkout's build)")
    parser.add_argument("--output", default="results/ragged.json")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not torch.cuda.is_available():
        print("ragged: error: no CUDA device; run on a machine with a GPU", file=sys.stderr)
        return 4
    library = batten_capi.load(arguments.library)
    torch.manual_seed(arguments.seed)
    results = []
    print("| set | contender | ms | TFLOP/s | of equal lengths | padded over it |\n" + "| --- " * 6 + "|")
    for kind in ("even", "one long"):
        for count in COUNTS:
            rows = run_set(kind, count, arguments.seed + count, arguments.backends, library, arguments.rounds)
            for r in rows:
                print(f"| {r['set']} | {r['backend']} | {r['median_ms']:.3f} | {r['tflops']:.0f} | "
                      f"{r['of_equal']['median']:.3f} | {r['padded_over_this']['median']:.2f} |", flush=True)
            results += rows
            torch.cuda.empty_cache()
            save(arguments, library, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
