"""`python -m batten.fastvideo enable|disable|status`: the import hook for spawned workers and
console commands.

`enable` writes two small files into the environment's site directory; `disable` deletes them.
Without the variables BATTEN_FASTVIDEO and FASTVIDEO_ATTENTION_BACKEND=FLASHINFER they do nothing.
"""

import argparse
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path

MODULE = "_batten_fastvideo_hook"
PTH = "batten_fastvideo.pth"
# One line, as .pth files need: nothing is imported but where a variable asks for it, and nothing
# is raised: a broken module costs one line, a deleted one nothing. In a virtual environment a .pth
# file is read twice.
LINE = (
    'import os; exec("try:\\n'
    " if os.environ.get('BATTEN_FASTVIDEO', '').strip() not in ('', '0') or "
    "os.environ.get('FASTVIDEO_ATTENTION_BACKEND', '').strip().upper() == 'FLASHINFER':\\n  "
    f"import {MODULE}; {MODULE}.arm()\\n"
    "except ImportError: pass\\n"
    "except Exception as error:\\n import sys\\n"
    " if not hasattr(sys, '_batten_said'): sys._batten_said = print('batten: the hook of FastVideo "
    "is broken (' + repr(error) + '); run python -m batten.fastvideo enable or disable', "
    'file=sys.stderr)")\n'
)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="python -m batten.fastvideo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("action", choices=("enable", "disable", "status"))
    parser.add_argument(
        "--site-dir",
        type=Path,
        default=Path(sysconfig.get_path("purelib")),
        help="where the files are [%(default)s]",
    )
    options = parser.parse_args(arguments)
    try:
        return {"enable": enable, "disable": disable, "status": status}[options.action](
            options.site_dir
        )
    except OSError as failure:
        print(
            f"batten.fastvideo: error: {failure}; name a directory that you may write with "
            "--site-dir",
            file=sys.stderr,
        )
        return 2


def asked(environ=os.environ):
    """Whether a variable asks for batten: the test that LINE makes."""
    return (
        environ.get("BATTEN_FASTVIDEO", "").strip() not in ("", "0")
        or environ.get("FASTVIDEO_ATTENTION_BACKEND", "").strip().upper() == "FLASHINFER"
    )


def enable(site_dir):
    """Writes the hook, its module before the line that imports it."""
    source = Path(__file__).with_name("_hook.py").read_text(encoding="utf-8")
    for name, text in ((f"{MODULE}.py", source), (PTH, LINE)):
        temporary = site_dir / f"{name}.{os.getpid()}.tmp"
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(site_dir / name)
        finally:
            temporary.unlink(missing_ok=True)
    print(
        f"enabled: {site_dir / PTH}\nSet FASTVIDEO_ATTENTION_BACKEND=FLASHINFER or "
        "BATTEN_FASTVIDEO=1 to use it."
    )
    _say_if_missing()
    return 0


def _say_if_missing():
    if importlib.util.find_spec("fastvideo") is None:
        print(f"note: FastVideo is not installed for {sys.executable}")


def disable(site_dir):
    """Deletes what enable() wrote, the line before the module that it imports."""
    if not site_dir.is_dir():
        raise NotADirectoryError(f"{site_dir} is no directory")
    gone = [path for path in (site_dir / PTH, site_dir / f"{MODULE}.py") if os.path.lexists(path)]
    for path in gone:
        path.unlink()
    print(f"disabled: {site_dir / PTH}" if gone else f"was not enabled in {site_dir}")
    return 0


def status(site_dir):
    """Says whether the hook is there, current and active. 0 if it is enabled, else 1."""
    pth, module = site_dir / PTH, site_dir / f"{MODULE}.py"
    if not (pth.exists() and module.exists()):
        print(f"not enabled in {site_dir}; python -m batten.fastvideo enable")
        return 1
    source = Path(__file__).with_name("_hook.py").read_bytes()
    current = module.read_bytes() == source and pth.read_bytes() == LINE.encode()
    print(
        f"enabled: {pth}" + ("" if current else " (by another version of batten; enable it again)")
    )
    print(f"active in this interpreter: {_activity(module)}")
    _say_if_missing()
    return 0


def _activity(module):
    loaded = getattr(sys.modules.get(MODULE), "__file__", None)
    if loaded is not None and Path(loaded).resolve() == module.resolve():
        return "yes"
    if not asked():
        return "no, neither variable asks for it"
    if loaded is not None:
        return f"no, another directory's is: {loaded}"
    return f"no, though a variable asks for it: {sys.executable} does not read that directory"


if __name__ == "__main__":
    sys.exit(main())
