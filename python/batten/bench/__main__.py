"""The benchmark's run: shapes, contenders, report, JSON."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import platform
import signal
import statistics
import sys
import threading
from typing import Any

from batten.bench.output import Output

USAGE, UNAVAILABLE, WRONG = 2, 4, 5
INTERRUPTED, TERMINATED, CLOSED = 130, 143, 141


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived."""


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    try:
        with _terminable():
            status = _run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # Nobody reads on. Python would complain of it once more when it flushes at exit.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    except Terminated:
        return _failed("terminated", TERMINATED)
    except KeyboardInterrupt:
        return _failed("interrupted", INTERRUPTED)


@contextlib.contextmanager
def _terminable():
    """Has SIGTERM unwind the stack as Ctrl-C does, in the main thread."""

    def terminate(*_):
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: list[str] | None) -> int:
    from batten.bench import options as options_module

    options = options_module.parse(arguments)
    try:
        import torch
    except ImportError:
        return _failed("torch cannot be imported; install it (2.9 or newer)", UNAVAILABLE)
    import batten

    try:
        output = Output(options.output)
        device = _device(torch, options)
        if device.type == "cpu" and options_module.shrink(options):
            print(options_module.SHRUNK, flush=True)
        bench = Bench(options, device, options_module.cases(options), _command(arguments), output)
        return bench.run()
    except BrokenPipeError:
        raise
    except (batten.Error, OSError) as failure:
        return _failed(
            str(failure), USAGE if isinstance(failure, (OSError, ValueError)) else UNAVAILABLE
        )
    except MemoryError:
        return _failed("out of memory; take smaller sizes", USAGE)
    except (RuntimeError, OverflowError) as failure:  # torch's: out of memory, an error of CUDA's
        return _failed(str(failure).split("\n")[0], UNAVAILABLE)


def _failed(message: str, status: int) -> int:
    print(f"batten.bench: error: {message}", file=sys.stderr)
    return status


def _command(arguments: list[str] | None) -> str:
    """How the benchmark was called, without where its file went."""
    kept = []
    words = iter(sys.argv[1:] if arguments is None else arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        if len(name) > 2 and "--output".startswith(name):  # also --out, as argparse takes it
            if not equals:
                next(words, None)
        elif word == "-o":
            next(words, None)
        elif not word.startswith("-o"):
            kept.append(word)
    return " ".join(["python -m batten.bench", *kept])


def _device(torch: Any, options: Any) -> Any:
    import batten

    name = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise batten.InvalidArgument(f"--device {name}: expected cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda"):
        raise batten.InvalidArgument(f"--device {name}: expected cpu, cuda or cuda:N")
    if device.type == "cpu":
        if options.scope == "graph":
            raise batten.InvalidArgument(
                "--scope graph: graphs need a GPU; use --scope call on the CPU"
            )
        return device
    if not torch.cuda.is_available():
        raise batten.Unavailable(f"--device {name}: torch sees no GPU; use --device cpu")
    index = device.index or 0
    if index >= torch.cuda.device_count():
        raise batten.InvalidArgument(
            f"--device {name}: torch sees {torch.cuda.device_count()} GPU(s)"
        )
    if options.dtype == "float32":
        raise batten.InvalidArgument("--dtype float32: for --device cpu only")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


class Bench:
    """One run over the grid."""

    def __init__(
        self, options: Any, device: Any, cases: list, command: str, output: Output
    ) -> None:
        from batten.bench import contenders

        self.options, self.device, self.cases, self.command = options, device, cases, command
        named = options.backends is not None
        self.backends = options.backends if named else contenders.default_backends(device)
        self.results: list[dict] = []
        self.skipped: list[dict] = []
        self.named = named
        self.output = output
        self.wrong = False

    def run(self) -> int:
        """Measures and reports all shapes."""
        for case in self.cases:
            self._check_memory(case)
        try:
            print(self._headline(), flush=True)
            for index, case in enumerate(self.cases):
                self._measure(case, index)
        except BaseException as failure:
            self._keep(quiet=isinstance(failure, BrokenPipeError))
            raise
        if self.results:
            self.output.save(self._payload(True), True)
        self._summarise()
        print(
            f"wrote {self.output.name}"
            if self.results
            else "nothing was measured, nothing was written"
        )
        if self.wrong:
            return WRONG
        return UNAVAILABLE if not self.results or (self.named and self.skipped) else 0

    def _keep(self, quiet: bool) -> None:
        """What was measured before the run broke off; it must not hide why it did."""
        with contextlib.suppress(OSError):
            where = self.output.save(self._payload(False), False) if self.results else None
            if where is not None and not quiet:
                print(f"what was measured is in {where}", file=sys.stderr)

    def _check_memory(self, case: tuple[int, int, int]) -> None:
        import torch

        import batten

        o = self.options
        batch, sq, skv = case
        rows = 2 * sq * o.num_heads + 2 * skv * o.num_kv_heads
        size = 2 * batch * rows * o.head_size * getattr(torch, o.dtype).itemsize
        size += skv * (2 * o.head_size + 2 * 256) * 8  # the float64 reference of one head
        free = _free_memory(self.device)
        if free is not None and size > free:
            raise batten.InvalidArgument(
                f"batch {batch}, query length {sq}, key length {skv}: needs "
                f"{size / 2**30:.3g} GiB, of which {self.device} has {free / 2**30:.3g} GiB free; "
                "take smaller sizes"
            )

    def _payload(self, complete: bool) -> dict:
        o = self.options
        return {
            "environment": _environment(self.device),
            "timing_scope": o.scope,
            "warmups": o.warmups,
            "repeats": o.repeats,
            "device": str(self.device),
            "command": self.command,
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "complete": complete,
            "first_backend": self.results[0]["backend"],
            "results": self.results,
            "skipped": self.skipped,
        }

    def _headline(self) -> str:
        o = self.options
        machine = _environment(self.device)
        return (
            f"{self.device} ({machine['gpu'] or machine['cpu']}), {o.dtype}, heads "
            f"{o.num_heads}/{o.num_kv_heads} x {o.head_size}{', causal' if o.causal else ''}, "
            f"scope {o.scope}, {o.repeats} repeats after {o.warmups} warm-ups\n"
            + _line(
                "batch",
                "q",
                "kv",
                "contender",
                "median ms",
                "p20",
                "p80",
                "TFLOP/s",
                "host us",
                "over raw",
                "rel error",
            )
        )

    def _measure(self, case: tuple[int, int, int], index: int) -> None:
        import torch

        from batten.bench import timing

        torch.manual_seed(0 if index == 0 else index)
        sets = self._inputs(case)
        runs, facts = self._willing(case, sets)
        o = self.options
        with torch.inference_mode():
            samples = timing.measure(runs, len(sets), self.device, o.scope, o.warmups, o.repeats)
            for name, run in runs.items():
                facts[name]["host_us"] = timing.host_microseconds(run, len(sets), self.device)
        for name in runs:
            self._report(case, name, samples, facts, len(sets))

    def _inputs(self, case: tuple[int, int, int]) -> list:
        """Input sets in rotation, so that the device's cache does not hold them."""
        import torch

        o = self.options
        batch, sq, skv = case
        dtype = getattr(torch, o.dtype)
        size = 2 * batch * o.head_size * (sq * o.num_heads + skv * o.num_kv_heads) * dtype.itemsize
        count = 2
        if self.device.type == "cuda":
            cache = torch.cuda.get_device_properties(self.device).L2_cache_size
            count = max(2, min(6, math.ceil(4 * cache / size)))
        return [
            [
                torch.randn(batch, rows, heads, o.head_size, dtype=dtype, device=self.device)
                for rows, heads in ((sq, o.num_heads), (skv, o.num_kv_heads), (skv, o.num_kv_heads))
            ]
            for _ in range(count)
        ]

    def _willing(self, case: tuple[int, int, int], sets: list) -> tuple[dict, dict]:
        """({contender: run}, {contender: receipt and error}) of those that serve the shape,
        checked."""
        import batten
        from batten.bench import contenders

        runs, facts = {}, {}
        for backend in self.backends:
            for form in ("raw",) if backend in contenders.PEERS else self.options.forms:
                name = contenders.name_of(backend, form)
                try:
                    run = contenders.make(backend, form, sets, self.options.causal)
                    facts[name] = self._first_call(name, run, sets[0])
                    runs[name] = run
                except (ImportError, RuntimeError, batten.Error) as failure:
                    if (
                        isinstance(failure, (batten.Unavailable, batten.InvalidArgument))
                        and self.named
                    ):
                        raise
                    reason = str(failure).split("\n")[0]
                    self.skipped.append(self._shape(case) | {"backend": name, "reason": reason})
                    print(_line(*case, name, f"not served: {reason}"))
        return runs, facts

    def _first_call(self, name: str, run: Any, tensors: list) -> dict:
        import torch

        import batten
        from batten.bench import check

        with torch.inference_mode():
            out = run(0)
        receipt = batten.last_receipt() if name.startswith("batten:") else None
        if not self.options.check:
            return {"receipt": receipt, "rel_error": None}
        error = check.relative_error(*tensors, out, self.options.causal)
        limit = check.LIMITS[tensors[0].dtype] * (1 if receipt else check.PEER_FACTOR)
        if not error <= limit:  # NaN included
            self.wrong = True
            raise RuntimeError(f"wrong result, relative error {error:.1e} above {limit:.1e}")
        return {"receipt": receipt, "rel_error": error}

    def _shape(self, case: tuple[int, int, int]) -> dict:
        o = self.options
        return {
            "batch_size": case[0],
            "query_length": case[1],
            "kv_length": case[2],
            "num_heads": o.num_heads,
            "num_kv_heads": o.num_kv_heads,
            "head_size": o.head_size,
            "dtype": o.dtype,
            "causal": o.causal,
        }

    def _report(
        self, case: tuple[int, int, int], name: str, samples: dict, facts: dict, sets: int
    ) -> None:
        from batten.bench.timing import percentile

        o = self.options
        ordered = sorted(samples[name])
        median = statistics.median(ordered)
        flops = (
            4.0 * case[0] * case[1] * case[2] * o.num_heads * o.head_size / (2 if o.causal else 1)
        )
        base = name.split("@")[0]
        overhead = None
        if name != base and base in samples:
            overhead = 100 * (
                statistics.median(b / a for a, b in zip(samples[base], samples[name], strict=True))
                - 1
            )
        result = (
            {"backend": name}
            | self._shape(case)
            | {
                "median_ms": median,
                "p20_ms": percentile(ordered, 0.2),
                "p80_ms": percentile(ordered, 0.8),
                "tflops": flops / median * 1e-9,
                "rel_error": facts[name]["rel_error"],
                "host_us": facts[name]["host_us"],
                "overhead_percent": overhead,
                "input_sets": sets,
                "receipt": facts[name]["receipt"],
                "samples_ms": samples[name],
            }
        )
        self.results.append(result)
        print(
            _line(
                *case,
                name,
                _number(median, "{:.4f}"),
                _number(result["p20_ms"], "{:.4f}"),
                _number(result["p80_ms"], "{:.4f}"),
                _number(result["tflops"], "{:.4g}"),
                _number(result["host_us"], "{:.1f}"),
                _number(overhead, "{:+.2f} %"),
                _number(result["rel_error"], "{:.1e}"),
            ),
            flush=True,
        )

    def _summarise(self) -> None:
        """Speed-ups over the first contender, and the largest overhead of each wrapper."""
        first = self.results[0]["backend"] if self.results else None
        by_name: dict[str, list[dict]] = {}
        for result in self.results:
            by_name.setdefault(result["backend"], []).append(result)
        for name, results in by_name.items():
            overheads = [
                r["overhead_percent"] for r in results if r["overhead_percent"] is not None
            ]
            if overheads:
                print(
                    f"{name}: {max(overheads):+.2f} % over the raw call at most, "
                    f"{statistics.median(overheads):+.2f} % in the middle, of {len(overheads)} "
                    "shapes"
                )
            elif name != first:
                ratios = [
                    other["median_ms"] / r["median_ms"]
                    for r in results
                    for other in by_name[first]
                    if all(other[k] == r[k] for k in ("batch_size", "query_length", "kv_length"))
                ]
                if ratios:
                    print(f"{name}: {min(ratios):.3f}x to {max(ratios):.3f}x as fast as {first}")


def _free_memory(device: Any) -> int | None:
    import torch

    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            lines = dict(line.split(":", 1) for line in file)
        return int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None


def _environment(device: Any) -> dict:
    import torch

    import batten

    cuda = device.type == "cuda"
    properties = torch.cuda.get_device_properties(device) if cuda else None
    return {
        "gpu": properties.name if cuda else None,
        "compute_capability": f"{properties.major}.{properties.minor}" if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "cpu": _cpu(),
        "threads": None if cuda else torch.get_num_threads(),
        "batten": batten.__version__,
    }


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next(
                line.split(":", 1)[1].strip() for line in file if line.startswith("model name")
            )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _line(batch, q, kv, name, *cells) -> str:
    widths = (10, 9, 9, 9, 9, 10, 10)
    return f"{batch:>5} {q:>6} {kv:>6}  {name:<28}" + (
        f" {cells[0]}"
        if len(cells) == 1
        else "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=False))
    )


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


if __name__ == "__main__":
    sys.exit(main())
