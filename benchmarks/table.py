"""Joins benchmark JSON files (of `batten bench` and peers.py) into one Markdown table with ratios.

    python benchmarks/table.py results/peers.json --against torch:cudnn --of batten:cudnn

Variables under which a file was recorded are named below the table.
A ratio is the median over interleaved rounds of the other's time by ours, with its 95 % interval; above 1 is faster.
"""

import argparse
import json
import math
import statistics
import sys

from measure_rules import ratio

SHAPE_KEYS = ("batch_size", "query_length", "kv_length", "num_heads", "num_kv_heads", "head_size", "dtype", "causal")


BEST = "best"  # of the peers, in --against


def load(paths):
    """([(shape key, backend, result)], in the files' order, and a line for each file's settings); a later file replaces
    an earlier one's row."""
    rows, settings = {}, []
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                payload = json.load(file)
            for result in payload["results"]:
                rows.setdefault(tuple(result[k] for k in SHAPE_KEYS), {})[result["backend"]] = result
            settings += settings_lines(path, payload)
        except (OSError, ValueError, KeyError, TypeError) as failure:
            raise SystemExit(f"table: error: {path}: not a benchmark result ({failure})") from failure
    return rows, settings


def settings_lines(path, payload):
    """The variables of a file's environment, none of an old file's."""
    settings = payload.get("environment", {}).get("settings", {})
    text = ", ".join(f"{name}={value}" for name, value in settings.items())
    return [f"\n{path}: recorded under {text}."] if text else []


def shape_cells(key):
    batch, sq, skv, hq, hkv, _, _, causal = key
    return [str(batch), str(sq), str(skv), f"{hq}/{hkv}", "causal" if causal else "full"]


def time_cell(result):
    if result is None or "median_ms" not in result:
        return "-"
    microseconds = result["median_ms"] * 1e3
    return f"{microseconds:.1f}" if microseconds < 1000 else f"{microseconds:.0f}"


def fastest_peer(results):
    """Of the contenders that are not batten's; None without one."""
    peers = [r for name, r in results.items() if not name.startswith("batten:") and "median_ms" in r]
    return min(peers, key=lambda r: r["median_ms"], default=None)


def ratio_cell(ours, other, ratios):
    if not ours or not other or "samples_ms" not in ours or "samples_ms" not in other:
        return "-"
    r = ratio(other["samples_ms"], ours["samples_ms"])
    ratios.append(r["median"])
    return f"{r['median']:.3f} ({r['low']:.3f}-{r['high']:.3f})"


def medians(results, of, other):
    """The ratio without its interval; None where one of the two is missing."""
    ours, theirs = results.get(of), fastest_peer(results) if other == BEST else results.get(other)
    if not ours or not theirs or "samples_ms" not in ours or "samples_ms" not in theirs:
        return None
    return ratio(theirs["samples_ms"], ours["samples_ms"])["median"]


def summary(rows, of, against):
    """A line for each group of shapes: the ratios' geometric mean, and the worst."""
    groups = {}
    for results in rows.values():
        groups.setdefault(next(iter(results.values())).get("group", ""), []).append(results)
    lines = ["| shapes | of them | " + " | ".join(f"{of} vs {a}: mean | worst" for a in against) + " |"]
    lines.append("|" + " --- |" * (2 + 2 * len(against)))
    for group, members in groups.items():
        cells = [group, str(len(members))]
        for a in against:
            values = [r for r in (medians(results, of, a) for results in members) if r is not None]
            mean = math.exp(statistics.fmean(math.log(v) for v in values)) if values else 0
            cells += [f"{mean:.3f}", f"{min(values):.3f}"] if values else ["-", "-"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(rows, of, against, columns):
    backends = columns or list(dict.fromkeys(b for results in rows.values() for b in results))
    backends = [b for b in backends if any("median_ms" in r.get(b, {}) for r in rows.values())]
    lines = ["| " + " | ".join(["B", "Sq", "Skv", "heads", "mask"] + [f"{b} µs" for b in backends]
                               + [f"{of} vs {a}" for a in against]) + " |"]
    lines.append("|" + " --- |" * (5 + len(backends) + len(against)))
    ratios = {a: [] for a in against}
    for key, results in rows.items():
        cells = shape_cells(key) + [time_cell(results.get(b)) for b in backends]
        cells += [ratio_cell(results.get(of), fastest_peer(results) if a == BEST else results.get(a), ratios[a])
                  for a in against]
        lines.append("| " + " | ".join(cells) + " |")
    for a, values in ratios.items():
        if values:
            mean = math.exp(statistics.fmean(math.log(v) for v in values))
            lines.append(f"\n{of} against {a}: geometric mean {mean:.3f}x, worst {min(values):.3f}x over "
                         f"{len(values)} shapes.")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--of", default="batten:cudnn", help="the backend whose speed the ratios state")
    parser.add_argument("--against", nargs="*", default=["torch:cudnn"],
                        help="backends it is compared with; best: each row's fastest that is not batten's")
    parser.add_argument("--columns", nargs="*", help="the backends whose times are shown (default: all)")
    parser.add_argument("--where", nargs="*", default=[], metavar="KEY=NUMBER",
                        help=f"only shapes with these values, of {', '.join(SHAPE_KEYS[:6])}")
    parser.add_argument("--short", action="store_true", help="a line for each group of shapes instead of each shape")
    arguments = parser.parse_args()
    rows, settings = load(arguments.files)
    for condition in arguments.where:
        key, _, value = condition.partition("=")
        if key not in SHAPE_KEYS or not value.isdigit():
            parser.error(f"--where {condition}: expected KEY=NUMBER, KEY one of {', '.join(SHAPE_KEYS[:6])}")
        rows = {k: r for k, r in rows.items() if k[SHAPE_KEYS.index(key)] == int(value)}
    if arguments.short:
        print(summary(rows, arguments.of, arguments.against))
    else:
        print(table(rows, arguments.of, arguments.against, arguments.columns))
    for line in settings:
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
