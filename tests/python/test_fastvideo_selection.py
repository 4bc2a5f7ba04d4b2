"""Which layers batten serves, on stand-ins for FastVideo's interface; the variables; the hook in
other processes."""

import importlib
import os
import pickle
import sys

import pytest

torch = pytest.importorskip("torch")
batten = pytest.importorskip("batten")

import batten.fastvideo  # noqa: E402, F811
import fastvideo_standin  # noqa: E402
from batten.fastvideo import _settings  # noqa: E402
from batten.fastvideo.__main__ import MODULE, PTH, main  # noqa: E402
from fastvideo_standin import VARIABLES, make_environment, run  # noqa: E402

pytestmark = pytest.mark.torch

GENERATIONS = ("requested", "environment")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def standin(monkeypatch, tmp_path):
    """standin(generation, ...): the stand-in's modules as a namespace, with batten installed."""
    hidden = {
        name: module for name, module in sys.modules.items() if name.split(".")[0] == "fastvideo"
    }

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] == "fastvideo"]:
            del sys.modules[name]

    def make(generation, install="before", **options):
        fastvideo_standin.write(tmp_path, generation, **options)
        monkeypatch.syspath_prepend(tmp_path)
        forget()
        importlib.invalidate_caches()
        if install == "before":
            batten.fastvideo.install()
        modules = {
            name: importlib.import_module(f"fastvideo.{path}")
            for name, path in {
                "layer": "attention.layer",
                "selector": "attention.selector",
                "platforms": "platforms",
                "abstract": "attention.backends.abstract",
            }.items()
        }
        if install == "after":
            batten.fastvideo.install()
        return type("Standin", (), modules)

    yield make
    batten.fastvideo.uninstall()
    forget()
    sys.modules.update(hidden)


def served_by(standin, supported=("FLASH_ATTN", "TORCH_SDPA"), dtype=torch.bfloat16, **more):
    enum = standin.platforms.AttentionBackendEnum
    cls = standin.selector.get_attn_backend(
        64, dtype, tuple(enum[name] for name in supported), **more
    )
    return cls if isinstance(cls, str) else cls.__module__.split(".")[0]


@pytest.mark.parametrize("install", ["before", "after"])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_published_variable_reaches_every_dense_layer(
    standin, monkeypatch, generation, cached, install
):
    fastvideo = standin(generation, cached=cached, install=install)
    enum = fastvideo.platforms.AttentionBackendEnum
    cross_attention = (enum.FLASH_ATTN, enum.TORCH_SDPA)
    assert served_by(fastvideo) == "automatic"
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    assert served_by(fastvideo) == "batten"
    layer = fastvideo.layer.LocalAttention(4, 64, torch.bfloat16, cross_attention)
    assert layer.backend_cls.get_name() == "FLASHINFER"
    assert issubclass(layer.backend_cls, fastvideo.abstract.AttentionBackend)
    assert issubclass(layer.backend_cls.get_impl_cls(), fastvideo.abstract.AttentionImpl)
    assert served_by(fastvideo, ("VIDEO_SPARSE_ATTN", "TORCH_SDPA")) == "automatic"
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "TORCH_SDPA")
    assert served_by(fastvideo, dtype=torch.float16) == "TORCH_SDPA"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_taking_over(standin, monkeypatch, caplog, generation):
    fastvideo = standin(generation)
    monkeypatch.setenv("BATTEN_FASTVIDEO", "1")
    assert served_by(fastvideo) == "batten"
    assert served_by(fastvideo, ("SAGE_ATTN", "FLASH_ATTN", "TORCH_SDPA")) == "batten"
    assert served_by(fastvideo, ("TORCH_SDPA",)) == "automatic"
    assert "a layer serves only TORCH_SDPA, not FLASH_ATTN" in caplog.text
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "VIDEO_SPARSE_ATTN")
    assert served_by(fastvideo, ("VIDEO_SPARSE_ATTN", "FLASH_ATTN")) == "VIDEO_SPARSE_ATTN"
    assert "VIDEO_SPARSE_ATTN was asked for" in caplog.text
    assert (
        served_by(fastvideo, ("FLASH_ATTN", "TORCH_SDPA")) == "batten"
    )  # its cross-attention is dense
    monkeypatch.setenv("BATTEN_FASTVIDEO", "0")
    assert served_by(fastvideo, ("FLASH_ATTN", "SAGE_ATTN")) == "automatic"


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_flashinfer_of_fastvideos_own_keeps_its_name(standin, monkeypatch, generation):
    fastvideo = standin(generation, own_member=True)
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    supported = ("FLASH_ATTN", "TORCH_SDPA", "FLASHINFER")
    assert served_by(fastvideo, supported) == "FLASHINFER"
    monkeypatch.setenv("BATTEN_FASTVIDEO", "1")
    assert served_by(fastvideo, supported) == "batten"
    assert served_by(fastvideo) == "batten"


def test_requests_of_components(standin, monkeypatch, caplog):
    fastvideo = standin("requested")
    enum = fastvideo.platforms.AttentionBackendEnum
    assert served_by(fastvideo, requested=enum.FLASHINFER) == "batten"
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    assert served_by(fastvideo, requested=None) == "automatic"  # an answer, not an absence
    fastvideo.selector.COMPONENT = "transformer_2"
    assert served_by(fastvideo) == "batten"
    fastvideo.selector.COMPONENT = "image_encoder"
    assert served_by(fastvideo) == "automatic"
    assert (
        "image_encoder left to FastVideo's own choice: FLASHINFER is for transformers"
        in caplog.text
    )
    monkeypatch.setenv("BATTEN_FASTVIDEO", "auto")
    assert served_by(fastvideo) == "batten"
    assert served_by(fastvideo, dtype=torch.float32) == "automatic"
    assert "its layers compute in torch.float32" in caplog.text


def test_a_forced_backend_of_the_process(standin, monkeypatch):
    fastvideo = standin("environment")
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    fastvideo.selector.forced = fastvideo.platforms.AttentionBackendEnum.TORCH_SDPA
    assert served_by(fastvideo) == "TORCH_SDPA"


def test_encoders_where_the_selector_knows_no_components(standin, monkeypatch, caplog):
    """An image encoder in float32, with a head size that `single` does not serve, must not fail."""
    fastvideo = standin("environment")
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    assert served_by(fastvideo, dtype=torch.float32) == "automatic"
    assert "a layer in torch.float32 left to FastVideo's own choice" in caplog.text
    monkeypatch.setenv("BATTEN_FASTVIDEO", "1")
    assert served_by(fastvideo, dtype=torch.float32) == "automatic"
    assert served_by(fastvideo) == "batten"


def test_lines_about_what_is_left_are_said_once(standin, monkeypatch, caplog):
    fastvideo = standin("requested")
    monkeypatch.setenv("BATTEN_FASTVIDEO", "1")
    for head_size in range(3):
        fastvideo.selector.get_attn_backend(
            head_size, torch.float16, (fastvideo.platforms.AttentionBackendEnum.TORCH_SDPA,)
        )
    assert len(caplog.records) == 1


@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize("value", [None, "", " ", "flashinfer", " FLASHINFER ", "NOPE"])
@pytest.mark.parametrize("taking_over", [False, True])
def test_names_that_fastvideo_does_not_know_are_unset_as_in_fastvideo(
    standin, monkeypatch, caplog, generation, value, taking_over
):
    fastvideo = standin(generation)
    if taking_over:
        monkeypatch.setenv("BATTEN_FASTVIDEO", "1")
    if value is not None:
        monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", value)
    for _ in range(2):
        assert served_by(fastvideo) == ("batten" if taking_over else "automatic")
    said = [record for record in caplog.records if "counts as unset" in record.getMessage()]
    assert len(said) == bool(value and value.strip())
    assert all("FLASH_ATTN" in record.getMessage() for record in said)


VALUES = {
    "BATTEN_FASTVIDEO": ("cpu", "expected one of 0, 1, auto"),
    "FASTVIDEO_FLASHINFER_PREFILL_BACKEND": ("cudnn", "expected one of single, cudnn"),
    "BATTEN_BACKEND": ("reference", "expected one of auto"),
}


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("variable", VALUES)
def test_every_variable_blank_padded_and_mistyped(variable, others):
    """A typo is a mistake also where another variable decides."""
    known, message = VALUES[variable]
    rest = {name: value for name, (value, _) in VALUES.items() if others and name != variable}
    unset = _settings.choice(rest)
    for blank in ("", " ", "\t"):
        assert _settings.choice({**rest, variable: blank}) == unset
    assert _settings.choice({**rest, variable: f" {known} "}) == _settings.choice(
        {**rest, variable: known}
    )
    for typo in (known.upper(), "nope", "nope:packed", "0:cpu", "1:cpu", ":", ":packed"):
        with pytest.raises(batten.InvalidArgument, match=f"^{variable}={typo}.*{message}"):
            _settings.choice({**rest, variable: typo})


@pytest.mark.parametrize("install", ["before", "after"])
@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_reloaded_selector_is_patched_again(standin, monkeypatch, generation, cached, install):
    fastvideo = standin(generation, cached=cached, install=install)
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    for _ in range(2):
        importlib.reload(fastvideo.selector)
        assert served_by(fastvideo) == "batten"
    importlib.reload(fastvideo.layer)  # what it had is of the selector before
    dense = tuple(fastvideo.platforms.AttentionBackendEnum[n] for n in ("FLASH_ATTN", "TORCH_SDPA"))

    def of_layer():
        cls = fastvideo.layer.LocalAttention(4, 64, torch.bfloat16, dense).backend_cls
        return cls if isinstance(cls, str) else cls.__module__

    assert of_layer() == "batten.fastvideo.backend"
    batten.fastvideo.uninstall()
    assert served_by(fastvideo) == of_layer() == "automatic"
    importlib.reload(fastvideo.selector)
    assert served_by(fastvideo) == "automatic"


def test_the_further_member_is_like_the_others(standin):
    fastvideo = standin("requested")
    enum = fastvideo.platforms.AttentionBackendEnum
    member = enum.FLASHINFER
    assert enum["FLASHINFER"] is enum(member.value) is member and member in list(enum)
    assert (
        isinstance(member, enum) and member.name in enum.__members__ and len({*enum}) == len(enum)
    )
    assert pickle.loads(pickle.dumps(member)) is member
    assert repr(member) == f"<AttentionBackendEnum.FLASHINFER: {member.value}>"


def test_install_and_uninstall_any_number_of_times(standin, monkeypatch):
    fastvideo = standin("requested")
    monkeypatch.setenv("FASTVIDEO_ATTENTION_BACKEND", "FLASHINFER")
    batten.fastvideo.install()
    assert served_by(fastvideo) == "batten"
    batten.fastvideo.uninstall()
    assert served_by(fastvideo) == "automatic"
    batten.fastvideo.install()
    assert served_by(fastvideo) == "batten"
    assert fastvideo.selector._cached_get_attn_backend.cache_info().currsize >= 1


def test_a_selector_that_batten_does_not_know(standin, monkeypatch):
    fastvideo = standin("requested", install=None)
    monkeypatch.delattr(fastvideo.selector, "AttentionBackendEnum")
    with pytest.raises(ImportError, match="in a way that batten does not know"):
        batten.fastvideo.install()


CHOICES = [
    ({}, "single"),
    ({"FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "cudnn"}, "cudnn"),
    ({"FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "auto"}, "auto"),
    ({"BATTEN_FASTVIDEO": "1"}, "auto"),
    ({"BATTEN_FASTVIDEO": "cpu"}, "cpu"),
    ({"BATTEN_FASTVIDEO": "cudnn:packed"}, "cudnn:packed"),
    ({"BATTEN_FASTVIDEO": "1", "FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "cudnn"}, "auto"),
    (
        {
            "BATTEN_FASTVIDEO": "1",
            "FASTVIDEO_ATTENTION_BACKEND": "FLASHINFER",
            "FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "cudnn",
        },
        "cudnn",
    ),
    ({"BATTEN_FASTVIDEO": "1", "FASTVIDEO_ATTENTION_BACKEND": "FLASHINFER"}, "auto"),
    ({"BATTEN_BACKEND": "cpu", "FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "cudnn"}, "cpu"),
    ({"BATTEN_BACKEND": "cpu", "BATTEN_FASTVIDEO": "1"}, "cpu"),
    ({"BATTEN_BACKEND": "cpu", "BATTEN_FASTVIDEO": "reference"}, "reference"),
]


@pytest.mark.parametrize("variables, backend", CHOICES)
def test_the_variables_order(variables, backend):
    assert _settings.choice(variables).backend == backend


@pytest.mark.parametrize(
    "variables, message",
    [
        (
            {"FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "cuddn"},
            "FASTVIDEO_FLASHINFER_PREFILL_BACKEND=cuddn: unknown; expected one of single, cudnn, "
            "native, auto",
        ),
        (
            {"BATTEN_FASTVIDEO": "yes"},
            "BATTEN_FASTVIDEO=yes: unknown; expected one of 0, 1, auto, ",
        ),
        (
            {"BATTEN_FASTVIDEO": "1", "FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "packed"},
            "PREFILL_BACKEND=packed: unknown",
        ),
    ],
)
def test_unknown_backends_are_errors_with_the_valid_names(variables, message):
    with pytest.raises(batten.InvalidArgument, match=message):
        _settings.choice(variables)


def test_install_with_a_backend(monkeypatch):
    monkeypatch.setenv("BATTEN_FASTVIDEO", "0")
    for wrong in ("nope", "", "0", " "):
        with pytest.raises(batten.InvalidArgument):
            batten.fastvideo.install(wrong)
    assert os.environ["BATTEN_FASTVIDEO"] == "0"
    try:
        batten.fastvideo.install("auto")
        assert os.environ["BATTEN_FASTVIDEO"] == "auto"
    finally:
        batten.fastvideo.uninstall()


# The hook, in other interpreters


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    root = tmp_path_factory.mktemp("environment")
    return make_environment(root, fastvideo_standin.write(root / "work", "requested"))


def test_spawned_workers_without_a_line_of_code(environment):
    python, site, script = environment
    assert "enabled" in run(python, "-m", "batten.fastvideo", "enable")
    try:
        asked = run(python, script, FASTVIDEO_ATTENTION_BACKEND="FLASHINFER")
        assert (
            "worker batten.fastvideo.backend" in asked and "main batten.fastvideo.backend" in asked
        )
        took = run(python, script, BATTEN_FASTVIDEO="1")
        assert "worker batten.fastvideo.backend" in took
        assert "worker automatic" in run(python, script)
        assert "worker TORCH_SDPA" in run(python, script, FASTVIDEO_ATTENTION_BACKEND="TORCH_SDPA")
        status = run(python, "-m", "batten.fastvideo", "status", BATTEN_FASTVIDEO="1")
        assert "active in this interpreter: yes" in status
    finally:
        run(python, "-m", "batten.fastvideo", "disable")
    assert not (site / PTH).exists() and not (site / f"{MODULE}.py").exists()
    assert "worker automatic" in run(python, script, FASTVIDEO_ATTENTION_BACKEND="FLASHINFER")


LOADED = (
    "import sys; print(sorted(m for m in sys.modules if 'batten' in m), 'torch' in sys.modules)"
)


def test_the_hook_imports_nothing_until_it_is_asked_for(environment):
    python, site, _ = environment
    run(python, "-m", "batten.fastvideo", "enable")
    try:
        assert run(python, "-c", LOADED).strip() == "[] False"
        assert run(python, "-c", LOADED, BATTEN_FASTVIDEO="0").strip() == "[] False"
        assert (
            run(python, "-c", LOADED, FASTVIDEO_ATTENTION_BACKEND="SAGE_ATTN").strip() == "[] False"
        )
        assert run(python, "-c", LOADED, BATTEN_FASTVIDEO="1").strip() == f"['{MODULE}'] False"
        for broken in ("", "def arm(:", "raise OSError('no')", "import nothing_of_this_name"):
            (site / f"{MODULE}.py").write_text(broken)
            assert run(python, "-c", "print(1)") == "1\n"
            said = run(python, "-c", "print(1)", BATTEN_FASTVIDEO="1")
            assert "Traceback" not in said and said.count("\n") <= 2
            assert ("the hook of FastVideo is broken" in said) != ("nothing_of" in broken)
        (site / f"{MODULE}.py").unlink()  # half deleted: no interpreter may fail or complain for it
        assert run(python, "-c", LOADED, BATTEN_FASTVIDEO="1").strip() == "[] False"
    finally:
        run(python, "-m", "batten.fastvideo", "disable")


def test_the_hook_without_batten(tmp_path):
    """The hook outlives an uninstalled batten: FastVideo's import then says what to do."""
    fastvideo_standin.write(tmp_path)
    main(["enable", "--site-dir", str(tmp_path)])
    code = (
        f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.modules['batten'] = None; import "
        f"{MODULE} as hook\nhook.arm()\ntry:\n import fastvideo.attention\nexcept ImportError as "
        "e: print(e)"
    )
    text = run(sys.executable, "-c", code)
    assert "cannot be imported" in text and "unset the variables, or delete" in text


@pytest.mark.parametrize(
    "variables, said",
    [
        ({}, "no, neither variable asks for it"),
        ({"BATTEN_FASTVIDEO": "0"}, "no, neither variable asks for it"),
        ({"BATTEN_FASTVIDEO": "1"}, "no, though a variable asks for it"),
        ({"FASTVIDEO_ATTENTION_BACKEND": "FLASHINFER"}, "no, though a variable asks for it"),
    ],
)
def test_status_of_another_directory(tmp_path, capsys, monkeypatch, variables, said):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    main(["enable", "--site-dir", str(tmp_path)])
    assert main(["status", "--site-dir", str(tmp_path)]) == 0
    assert f"active in this interpreter: {said}" in capsys.readouterr().out


@pytest.mark.parametrize("there", [False, True])
def test_enable_and_status_say_if_fastvideo_is_missing(tmp_path, capsys, monkeypatch, there):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if there else None)
    for command in ("enable", "status"):
        assert main([command, "--site-dir", str(tmp_path)]) == 0
        assert ("FastVideo is not installed" in capsys.readouterr().out) is not there


def test_enable_status_disable(tmp_path, capsys):
    assert main(["status", "--site-dir", str(tmp_path)]) == 1
    assert main(["enable", "--site-dir", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{MODULE}.py", PTH]
    assert (tmp_path / PTH).read_text().count("\n") == 1
    assert main(["status", "--site-dir", str(tmp_path)]) == 0
    (tmp_path / f"{MODULE}.py").write_text("# an older one\n")
    capsys.readouterr()
    main(["status", "--site-dir", str(tmp_path)])
    assert "by another version" in capsys.readouterr().out
    assert main(["disable", "--site-dir", str(tmp_path)]) == 0
    assert main(["disable", "--site-dir", str(tmp_path)]) == 0
    assert "was not enabled" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    assert main(["disable", "--site-dir", str(tmp_path / "missing")]) == 2
    assert "is no directory" in capsys.readouterr().err
    (tmp_path / PTH).mkdir()  # in the way of the second file
    (tmp_path / PTH / "x").touch()
    assert main(["enable", "--site-dir", str(tmp_path)]) == 2
    assert not list(tmp_path.glob("*.tmp"))
    assert main(["enable", "--site-dir", str(tmp_path / "missing")]) == 2
    assert "--site-dir" in capsys.readouterr().err
