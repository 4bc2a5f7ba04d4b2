"""The command line: the published benchmark's flags and defaults, and a few more."""

from __future__ import annotations

import argparse
import itertools

DESCRIPTION = """\
Times batten's backends in one process, on the same tensors and in turns: the raw call
(batten.attention), through the torch op (torch.ops.batten.attention) and through FastVideo's layer
(batten.fastvideo), with what the wrappers add in percent. Each is checked against float64 first.
"""
# What is measured on the CPU unless sizes are given: the published grid takes many minutes there.
SMALL = {
    "batch_size": [1, 2],
    "query_length": [64, 256],
    "kv_length": [512],
    "warmups": 3,
    "repeats": 20,
}
SHRUNK = (
    "on the CPU: a small grid (batch 1 2, query length 64 256, key length 512); give --batch-size, "
    "--query-length or --kv-length for another"
)
FORMS = ("raw", "op", "fastvideo", "core")
PEERS = ("torch:flash", "torch:cudnn", "torch:sdpa", "fa3")
MAX_HEAD_SIZE = 256


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The checked options; exits with status 2 and one line for what cannot be measured."""
    parser = argparse.ArgumentParser(
        prog="python -m batten.bench",
        description=DESCRIPTION,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    for name, default in (
        ("--batch-size", [1, 2, 4, 8]),
        ("--query-length", [256, 1024]),
        ("--kv-length", [4096]),
    ):
        add(name, type=int, nargs="+", default=default, metavar="N", help="one or more")
    add("--num-heads", type=int, default=12, metavar="N", help="query heads")
    add(
        "--num-kv-heads",
        type=int,
        default=4,
        metavar="N",
        help="key/value heads; divides --num-heads",
    )
    add("--head-size", type=int, default=128, metavar="N", help="elements of a head")
    add(
        "--dtype",
        choices=("float16", "bfloat16", "float32"),
        default="bfloat16",
        help="float32: cpu only",
    )
    add(
        "--causal",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="bottom-right causal mask; runs the equal pairs of --query-length and --kv-length",
    )
    add("--warmups", type=int, default=20, metavar="N", help="calls before timing")
    add("--repeats", type=int, default=100, metavar="N", help="samples of each contender and shape")
    add(
        "--scope",
        choices=("call", "graph"),
        default="call",
        help="call: around each call, the published method; graph: replays of a CUDA graph of up "
        "to 20 calls",
    )
    add(
        "--backends",
        nargs="+",
        default=None,
        metavar="NAME",
        help=f"backends of batten's, the first is compared with; also {', '.join(PEERS)} [all that "
        "are available]",
    )
    add(
        "--forms",
        nargs="+",
        default=["raw", "op", "fastvideo"],
        choices=FORMS,
        help="ways of calling; core is the native half on prepared tensors",
    )
    add(
        "--device",
        default=None,
        metavar="DEVICE",
        help="cpu, cuda or cuda:N [a GPU if there is one]",
    )
    add(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare with float64 before timing",
    )
    add(
        "--output",
        "-o",
        default="results/bench.json",
        metavar="FILE",
        help="JSON file with all samples",
    )
    # What is still None afterwards was not given.
    options = parser.parse_args(arguments, argparse.Namespace(**dict.fromkeys(SMALL)))
    options.given = {name for name in SMALL if getattr(options, name) is not None}
    for name in set(SMALL) - options.given:
        setattr(options, name, parser.get_default(name))
    problem = _problem(options)
    if problem:
        parser.error(problem)
    return options


def shrink(options: argparse.Namespace) -> bool:
    """Takes the small grid instead of the published one, unless sizes were given."""
    if options.given & {"batch_size", "query_length", "kv_length"}:
        return False
    for name in set(SMALL) - options.given:
        setattr(options, name, SMALL[name])
    return True


def _problem(options: argparse.Namespace) -> str | None:
    """What is wrong with the options, in one line."""
    lists = {
        "--batch-size": options.batch_size,
        "--query-length": options.query_length,
        "--kv-length": options.kv_length,
        "--num-heads": [options.num_heads],
        "--num-kv-heads": [options.num_kv_heads],
        "--warmups": [options.warmups],
        "--repeats": [options.repeats],
    }
    for name, values in lists.items():
        for value in values:
            if value < 1:
                return f"{name}: {value} is less than 1"
    if not 8 <= options.head_size <= MAX_HEAD_SIZE or options.head_size % 8:
        return f"--head-size: {options.head_size} is no multiple of 8 from 8 to {MAX_HEAD_SIZE}"
    if options.num_heads % options.num_kv_heads:
        return (
            f"--num-heads: {options.num_heads} is no multiple of --num-kv-heads "
            f"{options.num_kv_heads}"
        )
    if options.causal and set(options.query_length) != set(options.kv_length):
        return (
            "--causal: --query-length and --kv-length must list the same lengths, of which equal "
            "pairs are run"
        )
    if not options.output:
        return "--output: expected a file's name"
    for name, values in (("--backends", options.backends or []), ("--forms", options.forms)):
        if len(set(values)) != len(values):
            return f"{name}: one is named twice"
    return None


def cases(options: argparse.Namespace) -> list[tuple[int, int, int]]:
    """(batch, query length, key/value length) of the grid; with causal only equal lengths."""
    grid = itertools.product(options.batch_size, options.query_length, options.kv_length)
    return [case for case in grid if not options.causal or case[1] == case[2]]
