"""The package: what it exports, info(), check(), and what importing it does."""

import inspect
import json
import os
import pathlib
import subprocess
import sys

import batten
import pytest


def run(code, **environment):
    """A new interpreter's output."""
    path = str(pathlib.Path(batten.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True, text=True, check=True, timeout=120,
    ).stdout  # fmt: skip


def test_import_loads_neither_torch_nor_numpy():
    heavy = run("import batten, sys; print(sorted({'torch', 'numpy', 'jax'} & set(sys.modules)))")
    assert heavy.strip() == "[]"


def test_every_public_name_is_there_and_described():
    for name in batten.__all__:
        assert inspect.getdoc(getattr(batten, name)), name
    for name in ("attention", "attention_packed", "merge", "check", "info", "last_receipt", "trim"):
        function = getattr(batten, name)
        assert all(
            p.annotation is not p.empty for p in inspect.signature(function).parameters.values()
        )
    assert (pathlib.Path(batten.__file__).parent / "py.typed").exists()


def test_version_is_the_library_s():
    assert batten.__version__ == batten.info()["batten"]["version"]


def test_info_states_backends_and_build():
    info = batten.info()
    assert {"auto"}.isdisjoint(b["name"] for b in info["backends"])
    assert {"cpu", "reference", "single", "cudnn", "native"} <= {
        b["name"] for b in info["backends"]
    }
    assert {"version", "cuda", "cuda_archs", "glibc", "python"} <= set(info["build"])
    assert bool(info["build"]["cuda"]) == info["batten"]["cuda_build"]
    json.dumps(info)


def test_no_receipt_before_a_call():
    assert run("import batten; print(batten.last_receipt())").strip() == "None"


def test_check_passes_and_refuses():
    assert batten.check(device="cpu", dtype="float32", num_heads=4, head_dim=64) is None
    batten.check(
        device="cpu", dtype="bfloat16", num_heads=4, num_kv_heads=2, head_dim=64, causal="top_left"
    )
    with pytest.raises(batten.Unavailable, match="cudnn"):
        batten.check(device="cpu", dtype="float16", num_heads=4, head_dim=64, backend="cudnn")


@pytest.mark.parametrize(
    "change, text",
    [
        (dict(device="gpu"), "device='gpu'"),
        (dict(dtype="int32"), "dtype='int32'"),
        (dict(dtype="bf16"), "dtype='bf16'"),
        (dict(num_kv_heads=3), "num_kv_heads"),
        (dict(head_dim=0), "head_dim is 0"),
        (dict(causal=2), "causal=2"),
    ],
)
def test_check_of_nonsense_is_one_line(change, text):
    problem = {"device": "cpu", "dtype": "float32", "num_heads": 4, "head_dim": 8, **change}
    with pytest.raises(batten.InvalidArgument) as caught:
        batten.check(**problem)
    assert text in str(caught.value) and "\n" not in str(caught.value)


def test_check_takes_dtypes_of_numpy():
    numpy = pytest.importorskip("numpy")
    for dtype in (numpy.float32, numpy.dtype("float16")):
        batten.check(device="cpu", dtype=dtype, num_heads=1, head_dim=8)


def test_explain_of_a_card_that_is_not_here():
    answer = batten.explain(4, 128, 4096, 12, 4, gpu="h200")
    times = {c["backend"]: c["predicted_us"] for c in answer["candidates"] if "predicted_us" in c}
    assert answer["chosen"] == min(times, key=times.get)
    assert answer["reason"].startswith("auto (default): ")
    causal = batten.explain(4, 4096, 4096, 12, causal=True, gpu="h200", backend="cudnn")
    assert causal["chosen"] == "cudnn" and causal["flops"] < 4 * 4 * 4096**2 * 12 * 128 * 0.51


def test_explain_on_the_cpu():
    answer = batten.explain(1, 8, 8, 2, head_dim=64, dtype="float32", device="cpu")
    assert answer["chosen"] == "cpu" and answer["card"] is None


@pytest.mark.parametrize(
    ("change", "text"),
    [({"gpu": "h300"}, "'h300'"), ({"dtype": "int32"}, "dtype"), ({"causal": 7}, "causal"),
     ({"num_kv_heads": 5}, "num_heads"), ({"backend": "cuddn"}, "cuddn")],
)  # fmt: skip
def test_explain_of_nonsense_is_one_line(change, text):
    sizes = {"batch": 1, "q": 8, "kv": 8, "num_heads": 12, "gpu": "h200"}
    with pytest.raises(batten.InvalidArgument, match=text) as raised:
        batten.explain(**{**sizes, **change})
    assert "\n" not in str(raised.value)


def test_trim_gives_memory_back():
    numpy = pytest.importorskip("numpy")
    q = numpy.zeros((1, 64, 2, 64), numpy.float32)
    batten.attention(q, q, q)
    batten.trim()
    assert all(pool["bytes"] == 0 for pool in batten.info()["workspace"]["pools"])


@pytest.mark.parametrize(
    "name", ["InvalidArgument", "Unsupported", "Unavailable", "OutOfMemory", "Device", "Internal"]
)
def test_errors_have_one_base(name):
    assert issubclass(getattr(batten, name), batten.Error)
