"""python -m batten.bench: the published flags and JSON, refusals, and that wrong results are
found."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

batten = pytest.importorskip("batten")

from batten.bench import options as options_module  # noqa: E402
from batten.bench.__main__ import main  # noqa: E402

SMALL = [
    "--device",
    "cpu",
    "--batch-size",
    "1",
    "2",
    "--query-length",
    "8",
    "--kv-length",
    "16",
    "--num-heads",
    "4",
    "--num-kv-heads",
    "2",
    "--head-size",
    "64",
    "--warmups",
    "1",
    "--repeats",
    "3",
    "--backends",
    "cpu",
]
PUBLISHED_KEYS = {
    "backend",
    "batch_size",
    "query_length",
    "kv_length",
    "num_heads",
    "num_kv_heads",
    "head_size",
    "dtype",
    "causal",
    "median_ms",
    "p20_ms",
    "p80_ms",
    "samples_ms",
}


def test_published_defaults():
    options = options_module.parse([])
    assert (options.batch_size, options.query_length, options.kv_length) == (
        [1, 2, 4, 8],
        [256, 1024],
        [4096],
    )
    assert (options.num_heads, options.num_kv_heads, options.head_size) == (12, 4, 128)
    assert (options.dtype, options.causal, options.warmups, options.repeats) == (
        "bfloat16",
        False,
        20,
        100,
    )
    assert len(options_module.cases(options)) == 8


def test_the_published_runs_command():
    options = options_module.parse(
        "--batch-size 4 8 16 32 --query-length 128 256 512 1024 --kv-length 4096 --num-heads 12 "
        "--num-kv-heads 4 --warmups 30 --repeats 200 --no-causal".split()
    )
    assert len(options_module.cases(options)) == 16


@pytest.mark.parametrize(
    "arguments, message",
    [
        ("--warmups 0", "--warmups: 0 is less than 1"),
        ("--repeats 0", "--repeats: 0 is less than 1"),
        ("--batch-size 4 -1", "--batch-size: -1 is less than 1"),
        ("--head-size 100", "--head-size: 100 is no multiple of 8"),
        ("--head-size 512", "--head-size: 512 is no multiple of 8 from 8 to 256"),
        ("--num-heads 12 --num-kv-heads 5", "--num-heads: 12 is no multiple of --num-kv-heads 5"),
        ("--causal", "--causal: --query-length and --kv-length must list the same lengths"),
        ("--backends cpu cpu", "--backends: one is named twice"),
        ("--dtype float64", "invalid choice"),
    ],
)
def test_what_cannot_be_measured(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        options_module.parse(arguments.split())
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


def test_causal_runs_equal_pairs():
    options = options_module.parse(
        "--causal --batch-size 1 --query-length 64 128 --kv-length 128 64".split()
    )
    assert options_module.cases(options) == [(1, 64, 64), (1, 128, 128)]


def run(tmp_path, *more, status=0):
    path = tmp_path / "out" / "bench.json"
    assert main([*SMALL, "--output", str(path), *more]) == status
    return json.loads(path.read_text()) if path.exists() else None


@pytest.mark.torch
def test_json_and_lines(tmp_path, capsys):
    payload = run(tmp_path)
    names = ["batten:cpu", "batten:cpu@op", "batten:cpu@fastvideo"]
    assert [result["backend"] for result in payload["results"]] == names * 2
    assert payload["complete"] is True and payload["timing_scope"] == "call"
    assert (payload["warmups"], payload["repeats"]) == (1, 3)
    assert {"gpu", "compute_capability", "torch", "cuda"} <= payload["environment"].keys()
    assert str(tmp_path) not in json.dumps(payload)
    for result in payload["results"]:
        assert PUBLISHED_KEYS <= result.keys()
        samples = sorted(result["samples_ms"])
        assert len(samples) == 3 and samples[0] > 0
        assert (result["p20_ms"], result["median_ms"], result["p80_ms"]) == (
            samples[0],
            samples[1],
            samples[2],
        )
        assert result["rel_error"] < 4e-3
        assert result["receipt"]["backend"] == "cpu"
        assert (result["overhead_percent"] is None) == (result["backend"] == "batten:cpu")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["bench.json"]
    printed = capsys.readouterr().out
    assert printed.count("batten:cpu@op ") == 2
    assert "batten:cpu@fastvideo: " in printed and "% over the raw call at most" in printed


@pytest.mark.torch
@pytest.mark.parametrize(
    "more",
    [
        ("--causal", "--query-length", "16"),
        ("--dtype", "float32"),
        ("--dtype", "float16"),
        ("--forms", "raw", "core"),
        ("--backends", "cpu", "torch:sdpa"),
    ],
)
def test_more_of_the_grid(tmp_path, more):
    payload = run(tmp_path, *more)
    assert len(payload["results"]) >= 4
    assert all(result["rel_error"] < 1e-2 for result in payload["results"])


@pytest.mark.torch
@pytest.mark.parametrize(
    "values, fraction, expected",
    [
        (range(100), 0.2, 20),
        (range(100), 0.8, 79),
        ([5], 0.2, 5),
        (range(3), 0.2, 0),
        (range(3), 0.8, 2),
        (range(4), 0.5, 2),
    ],
)
def test_percentiles(values, fraction, expected):
    from batten.bench.timing import percentile

    assert percentile(list(values), fraction) == expected


@pytest.mark.torch
def test_a_wrong_result_is_not_timed(tmp_path, monkeypatch, capsys):
    from batten.bench import contenders

    original = contenders._FORMS["op"]

    def one_bad_head(backend, sets, causal):
        call = original(backend, sets, causal)

        def wrong(q, k, v):
            out = call(q, k, v)
            out[:, -1, -1] *= 1.1
            return out

        return wrong

    monkeypatch.setitem(contenders._FORMS, "op", one_bad_head)
    payload = run(tmp_path, status=5)
    assert {result["backend"] for result in payload["results"]} == {
        "batten:cpu",
        "batten:cpu@fastvideo",
    }
    assert all("wrong result, relative error" in entry["reason"] for entry in payload["skipped"])
    assert "batten:cpu@op" in capsys.readouterr().out


@pytest.mark.torch
def test_a_backend_that_is_not_there(tmp_path, capsys, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(tmp_path, "--backends", "single", status=4) is None
    assert "batten.bench: error: " in capsys.readouterr().err
    assert run(tmp_path, "--backends", "nope", status=2) is None
    assert run(tmp_path, "--device", "cuda", status=4) is None
    assert "use --device cpu" in capsys.readouterr().err
    assert run(tmp_path, "--device", "tpu9", status=2) is None
    assert run(tmp_path, "--scope", "graph", status=2) is None


@pytest.mark.torch
def test_an_earlier_file_stays_until_there_is_a_new_one(tmp_path):
    path = tmp_path / "out" / "bench.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert main([*SMALL, "--backends", "single", "-o", str(path)]) == 4
    assert path.read_text() == "{}" and len(list(path.parent.iterdir())) == 1
    assert main([*SMALL, "--output", str(tmp_path / "out" / "bench.json" / "x.json")]) == 2


@pytest.mark.torch
def test_joins_the_projects_table(tmp_path):
    table = Path(__file__).parents[2] / "benchmarks" / "table.py"
    run(tmp_path)
    done = subprocess.run(
        [
            sys.executable,
            str(table),
            str(tmp_path / "out" / "bench.json"),
            "--of",
            "batten:cpu",
            "--against",
            "batten:cpu@fastvideo",
        ],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(table.parent)},
    )
    assert "| 1 | 8 | 16 | 4/2 | full |" in done.stdout and "geometric mean" in done.stdout
