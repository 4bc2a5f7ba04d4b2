"""How well `auto` chooses: its pick beside the fastest backend, on random calls that it was not tuned on.

On a machine with a GPU and PyTorch:

    python benchmarks/regret.py --shapes 200 --output results/regret.json

Each call is drawn log-uniformly (batch, lengths, heads, head dim, mask; the seed is recorded) and measured on every
backend that serves it, in interleaved rounds of CUDA-graph replays. Regret is the time of `auto`'s pick over that of
the fastest, minus one. Then what choosing costs the host: `auto` beside the same backend by name, on warm plans.
"""

import argparse
import ctypes
import json
import math
import random
import statistics
import sys
import time

import torch

import batten_capi
import measure
import peers
import results_file

BACKENDS = ("native", "cudnn", "single")
HEADS = (1, 2, 4, 5, 8, 12, 16, 20, 24, 32, 40)
HEAD_DIMS = (64, 96, 128, 128, 128, 128, 256)
MOST_FLOPS = 1.0e12
MOST_BYTES = 1 << 30
ARENA_BYTES = 3 << 29
PERIOD = 61 * (1 << 20) + 256
REPLAY_MS = 1.0
MOST_CALLS = 60  # of a replay
# A first call this much longer than the shortest is not measured again, unless auto took it.
FAR_SLOWER = 3.0


class Shape:
    def __init__(self, batch, sq, skv, hq, hkv, dim, causal):
        self.batch, self.sq, self.skv, self.hq, self.hkv, self.dim, self.causal = batch, sq, skv, hq, hkv, dim, causal

    def flops(self):
        return 4.0 * self.batch * self.sq * self.skv * self.hq * self.dim / (2 if self.causal else 1)

    def q_elements(self):
        return self.batch * self.sq * self.hq * self.dim

    def kv_elements(self):
        return self.batch * self.skv * self.hkv * self.dim

    def bytes(self):
        return 4 * (self.q_elements() + self.kv_elements())

    def as_dict(self):
        return {"batch_size": self.batch, "query_length": self.sq, "kv_length": self.skv, "num_heads": self.hq,
                "num_kv_heads": self.hkv, "head_size": self.dim, "causal": self.causal}

    def __str__(self):
        return (f"B{self.batch} {self.sq}x{self.skv} {self.hq}/{self.hkv} d{self.dim}"
                + (" causal" if self.causal else ""))


def log_uniform(rng, low, high):
    return int(round(math.exp(rng.uniform(math.log(low), math.log(high)))))


def random_shape(rng):
    while True:
        hq = rng.choice(HEADS)
        hkv = rng.choice([h for h in range(1, hq + 1) if hq % h == 0 and hq // h <= 8])
        sq, skv = log_uniform(rng, 1, 8192), log_uniform(rng, 16, 32768)
        causal = rng.random() < 0.3
        if causal and rng.random() < 0.7:
            skv = max(sq, 16)
        if causal and sq > skv:
            continue
        shape = Shape(log_uniform(rng, 1, 32), sq, skv, hq, hkv, rng.choice(HEAD_DIMS), causal)
        if shape.flops() <= MOST_FLOPS and shape.bytes() <= MOST_BYTES:
            return shape


class Arena:
    """Random numbers in one piece, from which every call's tensors are cut: a new shape costs no time."""

    def __init__(self):
        period = torch.randn(PERIOD // 2, device="cuda", dtype=torch.bfloat16)
        self.inputs = period.repeat(-(-ARENA_BYTES // PERIOD))
        self.outputs = torch.empty(ARENA_BYTES // 2, device="cuda", dtype=torch.bfloat16)
        self.cache = torch.cuda.get_device_properties(0).L2_cache_size

    def sets(self, shape):
        def cut(memory, at, heads, rows, count):
            return memory[at:at + count].view(shape.batch, rows, heads, shape.dim)

        nq, nkv = -(-shape.q_elements() // 128) * 128, -(-shape.kv_elements() // 128) * 128
        one = nq + 2 * nkv
        fitting = min(self.inputs.numel() // one, self.outputs.numel() // nq)
        wanted = 3 * self.cache // (2 * (one + nq)) + 1
        return [(cut(self.inputs, i * one, shape.hq, shape.sq, shape.q_elements()),
                 cut(self.inputs, i * one + nq, shape.hkv, shape.skv, shape.kv_elements()),
                 cut(self.inputs, i * one + nq + nkv, shape.hkv, shape.skv, shape.kv_elements()),
                 cut(self.outputs, i * nq, shape.hq, shape.sq, shape.q_elements()))
                for i in range(min(fitting, wanted, 20))]


class Contender:
    """One backend's calls of a shape. Raises batten_capi.Error where it does not serve it."""

    def __init__(self, library, shape, sets, backend):
        self.attention = batten_capi.Attention(library, "bfloat16", shape.hq, shape.hkv, shape.dim,
                                               mask="causal" if shape.causal else "none", backend=backend)
        receipt = batten_capi.Receipt(struct_size=ctypes.sizeof(batten_capi.Receipt))
        self.calls = [self.attention.call(*tensors) for tensors in sets]
        self.run(0, receipt)
        self.receipt = receipt.as_dict()

    def run(self, i, receipt=None):
        call = self.calls[i % len(self.calls)]
        call.stream = torch.cuda.current_stream().cuda_stream
        self.attention.forward(call, receipt)

    def once_ms(self):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        self.run(0)
        start.record()
        self.run(1)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)


def measure_shape(shape, library, arena, rounds):
    sets = arena.sets(shape)
    auto = Contender(library, shape, sets, "auto")
    pick = auto.receipt["backend"]
    contenders, first, refused = {}, {}, {}
    for name in BACKENDS:
        try:
            contenders[name] = Contender(library, shape, sets, name)
            first[name] = contenders[name].once_ms()
        except batten_capi.Error as error:
            contenders.pop(name, None)
            refused[name] = str(error)
    least = min(first.values())
    kept = {name: c for name, c in contenders.items() if name == pick or first[name] <= FAR_SLOWER * least + 0.02}
    replays = {}
    for name, contender in kept.items():
        calls = min(MOST_CALLS, max(2, math.ceil(REPLAY_MS / max(first[name], 1e-3))))
        replays[name] = measure.Replay(contender.run, len(sets), calls)
    samples = measure.interleave(replays, rounds, warmups=1)
    median = {name: statistics.median(values) for name, values in samples.items()}
    best = min(median, key=median.get)
    return {**shape.as_dict(), "pick": pick, "best": best, "reason": auto.receipt["reason"],
            "regret_percent": 100 * (median[pick] / median[best] - 1),
            "median_us": {n: 1e3 * t for n, t in median.items()},
            "refused": refused}


def host_us(contenders, repeats=200):
    """Microseconds of one forward on warm plans, the contenders' calls in turn."""
    start = time.perf_counter()
    for i in range(repeats):
        for contender in contenders:
            contender.run(i)
    elapsed = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * elapsed / (repeats * len(contenders))


class SameLayer:
    """Many shapes on one attention, as a server's batches come."""

    def __init__(self, library, arena, lengths, backend):
        self.attention = batten_capi.Attention(library, "bfloat16", 4, 4, 128, backend=backend)
        self.calls = [self.attention.call(*arena.sets(Shape(1, n, 256, 4, 4, 128, False))[0]) for n in lengths]
        self.next = 0

    def run(self, i):
        del i
        self.next = (self.next + 1) % len(self.calls)
        call = self.calls[self.next]
        call.stream = torch.cuda.current_stream().cuda_stream
        self.attention.forward(call)


def choosing(library, arena, pick):
    """What `auto` adds to a forward of the same backend by name, in microseconds: medians of interleaved rounds."""
    result = {}
    for name, lengths in (("one shape", [128]), ("64 shapes", [16 * (n + 1) for n in range(64)])):
        layers = {backend: SameLayer(library, arena, lengths, backend) for backend in ("auto", pick)}
        samples = {backend: [] for backend in layers}
        for i in range(23):
            for backend, layer in layers.items():
                us = host_us([layer], 4 * 64)
                if i >= 2:
                    samples[backend].append(us)
        medians = {b: statistics.median(s) for b, s in samples.items()}
        result[name] = {"auto_us": medians["auto"], "named_us": medians[pick],
                        "difference_us": statistics.median(a - b for a, b in zip(samples["auto"], samples[pick]))}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--seed", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--library", help="libbatten.so (default: BATTEN_LIBRARY, then this checkout's build)")
    parser.add_argument("--output", default="results/regret.json")
    arguments = parser.parse_args()
    if arguments.shapes < 1 or arguments.rounds < 1:
        parser.error("--shapes and --rounds are at least 1")
    if not torch.cuda.is_available():
        print("regret: error: no CUDA device; run on a machine with a GPU", file=sys.stderr)
        return 4
    library = batten_capi.load(arguments.library)
    torch.manual_seed(0)
    rng = random.Random(arguments.seed)
    arena = Arena()
    started = time.perf_counter()
    results = []
    for i in range(arguments.shapes):
        result = measure_shape(random_shape(rng), library, arena, arguments.rounds)
        results.append(result)
        shape = Shape(*(result[k] for k in ("batch_size", "query_length", "kv_length", "num_heads", "num_kv_heads",
                                            "head_size", "causal")))
        times = ", ".join(f"{n} {t:.1f}" for n, t in result["median_us"].items())
        print(f"{i + 1:4} {str(shape):44} {result['pick']:7} regret {result['regret_percent']:5.1f} %  {times}"
              f"  [{result['reason'][:110]}]", flush=True)
    regrets = sorted(r["regret_percent"] for r in results)
    summary = {"median_percent": statistics.median(regrets), "p90_percent": regrets[int(0.9 * (len(regrets) - 1))],
               "worst_percent": regrets[-1], "right_picks": sum(r["pick"] == r["best"] for r in results),
               "seconds": time.perf_counter() - started}
    summary["choosing"] = choosing(library, arena, results[0]["pick"])
    print(json.dumps(summary, indent=1))
    command = (f"python benchmarks/regret.py --shapes {arguments.shapes} --seed {arguments.seed} "
               f"--rounds {arguments.rounds}")
    payload = {"environment": peers.environment(library, command), "timing_scope": "graph", "seed": arguments.seed,
               "repeats": arguments.rounds, "summary": summary, "results": results}
    results_file.write(arguments.output, payload)
    return 0


if __name__ == "__main__":
    sys.exit(main())
