"""benchmarks/wan_diffusers.py runs, checks and reports, on a tiny model on the CPU."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("diffusers", reason="diffusers is not installed")

pytestmark = pytest.mark.torch
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "wan_diffusers.py"
TINY = (
    "--device cpu --layers 2 --heads 2 --head-dim 64 --ffn 64 --frames 5 --height 64 --width 64 "
    "--check-frames 5 --text-length 7 --dtype float32 --batch 1 2 --repeats 2"
).split()


def run(*arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], env=environment, timeout=300,
                          capture_output=True, text=True, check=False)  # fmt: skip


@pytest.mark.parametrize("compiled", [[], ["--compile", "--compile-backend", "aot_eager"]])
def test_tiny_run(tmp_path, compiled):
    output = tmp_path / "out" / "wan.json"
    done = run(*TINY, *compiled, "--output", str(output))
    assert done.returncode == 0, done.stderr
    payload = json.loads(output.read_text())
    rows = payload["results"]
    assert {(row["contender"], row["batch_size"]) for row in rows} == {
        (name, batch) for name in ("sdpa", "batten:auto", "batten:cpu") for batch in (1, 2)
    }
    for row in rows:
        assert len(row["samples_ms"]) == 2 and 0 < row["p20_ms"] <= row["p80_ms"]
        assert row["tokens"] == 2 * 4 * 4 and row["compiled"] is bool(compiled)
        assert row["relative_error"] <= 1e-5
        if row["contender"] != "sdpa":
            assert row["receipts"]["attention_layers"] == 4
            assert sum(row["receipts"]["served"].values()) == 4
            assert all(name.startswith("cpu: ") for name in row["receipts"]["served"])
            assert row["receipts"].get("compiled_ops") == (4 if compiled else None)
    assert payload["environment"]["diffusers"] and payload["environment"]["batten"]
    assert "B=2: batten:cpu is" in done.stdout


def test_bad_arguments_are_one_line():
    done = run(*TINY, "--frames", "6")
    assert done.returncode == 2 and "--frames: expected 4n + 1" in done.stderr
    done = run(*TINY, "--contenders", "nobody")
    assert done.returncode != 0 and "unknown contender 'nobody'" in done.stderr
