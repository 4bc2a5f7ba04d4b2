"""The benchmark's run: shapes, contenders, report, JSON."""

from __future__ import annotations

import datetime
import json
import math
import os
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

USAGE, UNAVAILABLE, WRONG = 2, 4, 5


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    from batten.bench import options as options_module

    options = options_module.parse(arguments)
    try:
        import torch
    except ImportError:
        return _failed("torch cannot be imported; install it (2.9 or newer)", UNAVAILABLE)
    import batten

    try:
        device = _device(torch, options)
        return Bench(options, device, options_module.cases(options), _command(arguments)).run()
    except (batten.Error, OSError) as failure:
        return _failed(
            str(failure), USAGE if isinstance(failure, (OSError, ValueError)) else UNAVAILABLE
        )


def _failed(message: str, status: int) -> int:
    print(f"batten.bench: error: {message}", file=sys.stderr)
    return status


def _command(arguments: list[str] | None) -> str:
    """How the benchmark was called, without where its file went."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    for name in ("--output", "-o"):
        if name in words:
            at = words.index(name)
            del words[at : at + 2]
    return " ".join(
        ["python -m batten.bench", *(word for word in words if not word.startswith("--output="))]
    )


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

    def __init__(self, options: Any, device: Any, cases: list, command: str) -> None:
        from batten.bench import contenders

        self.options, self.device, self.cases, self.command = options, device, cases, command
        named = options.backends is not None
        self.backends = options.backends if named else contenders.default_backends(device)
        self.results: list[dict] = []
        self.skipped: list[dict] = []
        self.named = named
        self.wrong = False

    def run(self) -> int:
        """Measures and reports all shapes."""
        output = Path(self.options.output)
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f"{output.name}.{os.getpid()}.partial")
        partial.touch()  # whether the file can be written is known before the work
        complete = False
        try:
            print(self._headline())
            for index, case in enumerate(self.cases):
                self._measure(case, index)
            complete = True
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
        finally:
            self._save(partial, output, complete)
        if not complete:
            return 130
        self._summarise()
        print(f"wrote {output}" if self.results else "nothing was measured, nothing was written")
        if self.wrong:
            return WRONG
        return UNAVAILABLE if not self.results or (self.named and self.skipped) else 0

    def _save(self, partial: Path, output: Path, complete: bool) -> None:
        if not self.results:  # an earlier file would be replaced by nothing
            partial.unlink(missing_ok=True)
            return
        with open(partial, "w", encoding="utf-8") as file:
            json.dump(self._payload(complete), file, indent=1)
            file.write("\n")
        os.replace(partial, output)

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
