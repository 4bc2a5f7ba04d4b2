"""Runs the built `batten` (named by the variable BATTEN) in an empty folder.

Where BATTEN_EMULATOR is set, that command runs it: the program is for another processor.
"""

import json
import math
import os
import pathlib
import pty
import random
import select
import shlex
import shutil
import subprocess
import tempfile
import unittest

import safetensors_io

BATTEN = [*shlex.split(os.environ.get("BATTEN_EMULATOR", "")), os.environ.get("BATTEN", "batten")]
EMULATED = len(BATTEN) > 1
# Whether the tests run under a sanitizer or an emulator, where everything is many times slower.
SLOW = os.environ.get("BATTEN_TEST_QUICK") == "1"
EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data"

VERBS = ("info", "attend", "verify", "bench", "explain", "tune", "wan")
OK, USAGE, BAD_INPUT, UNAVAILABLE, VERIFICATION_FAILED, INTERRUPTED = 0, 2, 3, 4, 5, 130

# What the user's shell may set must not change what the tests see.
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("BATTEN_", "FASTVIDEO_")) and name not in ("NO_COLOR", "TERM")
}


class Result:
    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    def __str__(self):
        return f"exit {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}"


class CommandTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="batten_command_"))
        self.addCleanup(shutil.rmtree, self.folder, True)

    def batten(self, *arguments, env=None, timeout=1200 if EMULATED else 280, **options):
        done = subprocess.run(
            [*BATTEN, *map(str, arguments)],
            cwd=self.folder,
            env={**ENVIRONMENT, "BATTEN_CACHE_DIR": str(self.folder / "cache"), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            **options,
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def on_terminal(self, *arguments, env=None):
        """Runs with stdout and stderr on a pseudo-terminal; returns what a user would see."""
        try:
            leader, follower = pty.openpty()
        except OSError as failure:  # a container without /dev/pts
            self.skipTest(f"no pseudo terminal: {failure}")
        process = subprocess.Popen(
            [*BATTEN, *map(str, arguments)],
            cwd=self.folder,
            env={**ENVIRONMENT, "TERM": "xterm", **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=follower,
            stderr=follower,
        )
        os.close(follower)
        seen = b""
        while True:
            ready, _, _ = select.select([leader], [], [], 280)
            if not ready:
                process.kill()
                self.fail("no output for too long")
            try:
                part = os.read(leader, 65536)
            except OSError:  # how Linux says that the other side is closed
                break
            if not part:
                break
            seen += part
        os.close(leader)
        return process.wait(), seen.decode()

    def succeeds(self, *arguments, **options):
        result = self.batten(*arguments, **options)
        self.assertEqual(result.code, OK, str(result))
        self.assertEqual(result.err, "", str(result))
        return result

    def fails(self, code, *arguments, says=(), prints=False, **options):
        """One line on stderr with all of `says`; nothing on stdout unless `prints`."""
        words = list(map(str, arguments))
        verb = next((a for a in words if a in VERBS), "")
        if verb == "wan":  # a group of verbs
            inner = words[words.index("wan") + 1 :][:1]
            verb += "".join(f" {word}" for word in inner if word in ("denoise", "bench"))
        before = self.contents()
        result = self.batten(*arguments, **options)
        self.assertEqual(result.code, code, str(result))
        self.assertEqual(len(result.err.splitlines()), 1, str(result))
        start = f"batten {verb}: error: " if verb else "batten: error: "
        self.assertTrue(result.err.startswith(start), str(result))
        for text in (says,) if isinstance(says, str) else says:
            self.assertIn(text, result.err)
        if not prints:
            self.assertEqual(result.out, "", str(result))
        # Nothing half-written, nothing replaced.
        self.assertEqual(self.contents(), before, str(result))
        return result

    def contents(self):
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and os.access(path, os.R_OK)
        }

    def has_gpu(self):
        return any(d["name"].startswith("cuda:") for d in json.loads(self.batten("info", "--json").out)["devices"])


# ---- attention in plain Python ------------------------------------------------------------------


def random_values(count, seed):
    generator = random.Random(seed)
    # Halves of 8 bits: exact in all three formats.
    return [generator.randrange(-128, 129) / 64 for _ in range(count)]


class Problem:
    """A small call; `tensors()` for the file, `expected()` for its result."""

    def __init__(self, batch=1, sq=5, skv=7, heads=4, kv_heads=2, dim=8, dtype="F32", seed=1):
        self.batch, self.sq, self.skv, self.heads, self.kv_heads, self.dim = batch, sq, skv, heads, kv_heads, dim
        self.dtype = dtype
        self.q = random_values(batch * sq * heads * dim, seed)
        self.k = random_values(batch * skv * kv_heads * dim, seed + 1)
        self.v = random_values(batch * skv * kv_heads * dim, seed + 2)

    def tensors(self, **replaced):
        tensors = {
            "q": (self.dtype, [self.batch, self.sq, self.heads, self.dim], self.q),
            "k": (self.dtype, [self.batch, self.skv, self.kv_heads, self.dim], self.k),
            "v": (self.dtype, [self.batch, self.skv, self.kv_heads, self.dim], self.v),
        }
        tensors.update(replaced)
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def row(self, values, b, s, h, length, heads):
        start = ((b * length + s) * heads + h) * self.dim
        return values[start : start + self.dim]

    def expected(self, mask="none", scale=None, q_lengths=None, kv_lengths=None):
        scale = self.dim**-0.5 if scale is None else scale
        out, lse = [], []
        for b in range(self.batch):
            sq = q_lengths[b] if q_lengths else self.sq
            skv = kv_lengths[b] if kv_lengths else self.skv
            for i in range(self.sq):
                for h in range(self.heads):
                    end = {"none": skv, "causal": i + 1 + skv - sq, "causal-top-left": i + 1}[mask]
                    end = max(0, min(end, skv)) if i < sq else 0
                    if end == 0:
                        out += [0.0] * self.dim
                        lse.append(-math.inf)
                        continue
                    group = h * self.kv_heads // self.heads
                    query = self.row(self.q, b, i, h, self.sq, self.heads)
                    keys = [self.row(self.k, b, j, group, self.skv, self.kv_heads) for j in range(end)]
                    logits = [scale * sum(x * y for x, y in zip(query, key)) for key in keys]
                    top = max(logits)
                    weights = [math.exp(x - top) for x in logits]
                    total = sum(weights)
                    row = [0.0] * self.dim
                    for j, weight in enumerate(weights):
                        for d, value in enumerate(self.row(self.v, b, j, group, self.skv, self.kv_heads)):
                            row[d] += weight / total * value
                    out += row
                    lse.append(top + math.log(total))
        return out, lse


def relative_error(got, expected):
    error = math.sqrt(sum((g - e) ** 2 for g, e in zip(got, expected)))
    return error / math.sqrt(sum(e * e for e in expected))


def write_problem(path, problem=None, **replaced):
    safetensors_io.write(path, (problem or Problem()).tensors(**replaced))
    return path
