"""python -m batten.bench: the published flags and JSON, refusals, and that wrong results are
found."""

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
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


# Where the results go: every kind of target, and every way for a run to end.

KINDS = ("absent", "file", "symlink", "dangling symlink", "directory", "fifo", "device", "sealed")


def make_target(folder, kind):
    """(what --output names, the file in the end)"""
    name, real = folder / "link.json", folder / "real.json"
    if kind in ("file", "symlink"):
        real.write_text('{"complete": true}')
    if kind in ("symlink", "dangling symlink"):
        name.symlink_to(real)
        return name, real
    if kind == "directory":
        real.mkdir()
    if kind == "fifo":
        os.mkfifo(real)
    if kind == "device":
        try:
            os.mknod(real, 0o600 | stat.S_IFCHR, os.makedev(1, 3))  # /dev/null's
            open(real, "w").close()
        except OSError:
            pytest.skip("device nodes cannot be made here")
    if kind == "sealed":
        folder.chmod(0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("this user writes into any directory")
    return real, real


@pytest.fixture
def stopped(monkeypatch):
    """stopped(how): has the second shape's measurement end the run."""
    from batten.bench import timing

    original, calls = timing.measure, []

    def stop(how):
        def measure(*arguments):
            calls.append(1)
            if len(calls) == 2 and how == "interrupt":
                raise KeyboardInterrupt
            if len(calls) == 2 and how == "terminate":
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            if len(calls) == 2 and how == "error":
                raise RuntimeError("out of memory\nand more")
            return original(*arguments)

        monkeypatch.setattr(timing, "measure", measure)

    return stop


ENDS = {"ok": 0, "error": 4, "interrupt": 130, "terminate": 143}


@pytest.mark.torch
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_targets_and_ends(tmp_path, capsys, stopped, kind, how):
    name, real = make_target(tmp_path, kind)
    before = sorted(path.name for path in tmp_path.iterdir())
    stopped(how)
    received = []
    if kind == "fifo" and how == "ok":
        reader = threading.Thread(target=lambda: received.append(real.read_text()), daemon=True)
        reader.start()
    status = main([*SMALL, "--forms", "raw", "-o", str(name)])
    after = sorted(path.name for path in tmp_path.iterdir())
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    if kind in ("directory", "sealed"):
        assert status == 2 and after == before and str(name) in errors
        return
    assert status == ENDS[how]
    if kind == "fifo":
        assert stat.S_ISFIFO(os.lstat(real).st_mode) and after == before
        if how == "ok":
            reader.join(10)
            assert json.loads(received[0])["complete"] is True
        return
    if kind == "device":
        assert stat.S_ISCHR(os.lstat(real).st_mode) and after == before
        return
    assert ("symlink" in kind) == name.is_symlink()
    if how == "ok":
        payload = json.loads(real.read_text())
        assert payload["complete"] is True and len(payload["results"]) == 2
        assert after == sorted({*before, "real.json"})
        return
    assert after == sorted({*before, "real.json.partial"})
    if "real.json" in before:
        assert real.read_text() == '{"complete": true}'
    fragment = json.loads((tmp_path / "real.json.partial").read_text())
    assert fragment["complete"] is False and len(fragment["results"]) == 1
    assert errors.count("\n") == 2 and "what was measured is in" in errors


@pytest.mark.torch
@pytest.mark.parametrize(
    "more, status, message",
    [
        (["--backends", "nope"], 2, "nope"),
        (["--batch-size", "100000000"], 2, "GiB free; take smaller sizes"),
        (["--batch-size", str(10**30)], 2, "take smaller sizes"),
        (["--query-length", str(2**40)], 2, "take smaller sizes"),
        (["--num-heads", str(2**50)], 2, "take smaller sizes"),
    ],
)
def test_what_fails_before_the_work_leaves_nothing(tmp_path, capsys, more, status, message):
    path = tmp_path / "a" / "b" / "bench.json"
    assert main([*SMALL, *more, "-o", str(path)]) == status
    errors = capsys.readouterr().err
    assert message in errors and errors.count("\n") == 1 and "Traceback" not in errors
    assert not list(tmp_path.iterdir())


def test_no_name(capsys):
    with pytest.raises(SystemExit) as stopped_at:
        options_module.parse(["-o", ""])
    assert stopped_at.value.code == 2 and "expected a file's name" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    ["-o /x/y.json", "-o/x/y.json", "--output /x/y.json", "--output=/x/y.json", "--out /x/y.json",
     "--outp=/x/y.json", "--o /x/y.json"],
)  # fmt: skip
def test_the_recorded_command_names_no_file(words):
    from batten.bench.__main__ import _command

    arguments = ["--causal", *words.split(), "--repeats", "3"]
    options_module.parse(["--query-length", "8", "--kv-length", "8", *arguments])
    assert _command(arguments) == "python -m batten.bench --causal --repeats 3"


@pytest.mark.torch
def test_nobody_reads_on(tmp_path):
    command = [sys.executable, "-m", "batten.bench", *SMALL, "-o", str(tmp_path / "x.json")]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        process.stdout.close()
        errors = process.stderr.read()
        assert process.wait(120) == 141
    assert "Traceback" not in errors and "BrokenPipe" not in errors and "error" not in errors


def test_the_cpu_takes_a_small_grid_unless_sizes_are_given():
    options = options_module.parse(["--repeats", "7"])
    assert options_module.shrink(options)
    assert len(options_module.cases(options)) == 4 and max(options.kv_length) == 512
    assert (options.warmups, options.repeats) == (3, 7)
    for given in ("--batch-size", "--query-length", "--kv-length"):
        options = options_module.parse([given, "256"])
        assert not options_module.shrink(options) and options.repeats == 100


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
    assert "recorded under" not in done.stdout


def test_the_projects_table_names_settings(tmp_path):
    case = {
        "batch_size": 1,
        "query_length": 8,
        "kv_length": 16,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_size": 8,
        "dtype": "float32",
        "causal": False,
        "backend": "cpu",
        "median_ms": 1.0,
        "samples_ms": [1.0],
    }
    payload = {
        "environment": {"settings": {"BATTEN_NUM_THREADS": "2", "BATTEN_CHECK": "1"}},
        "results": [case],
    }
    (tmp_path / "a.json").write_text(json.dumps(payload))
    (tmp_path / "b.json").write_text(json.dumps({"environment": {}, "results": [case]}))
    table = Path(__file__).parents[2] / "benchmarks" / "table.py"
    done = subprocess.run(
        [sys.executable, str(table), "a.json", "b.json"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert "a.json: recorded under BATTEN_NUM_THREADS=2, BATTEN_CHECK=1.\n" in done.stdout
    assert "b.json" not in done.stdout
