#!/usr/bin/env python3
"""Fetch the C++ headers that batten takes from Python packages.

    scripts/fetch_headers.py --into build/headers

downloads each wheel pinned in requirements-headers.txt with pip (no dependencies, hash checked),
unpacks its headers into INTO/NAME-VERSION, and prints "NAME VERSION FOLDER" for each. What is there
already is not fetched again, so a second run needs no network. Nothing is installed.
"""

import argparse
import fcntl
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent

# What to unpack of each wheel: folders in it, and where they go. Licences travel along.
FOLDERS = {
    "nvidia-cudnn-frontend": {"include/": "include/"},
    "flashinfer-python": {
        "flashinfer/data/include/": "include/",
        "flashinfer/data/cccl/cub/": "cccl/cub/",
        "flashinfer/data/cccl/thrust/": "cccl/thrust/",
        "flashinfer/data/cccl/libcudacxx/include/": "cccl/libcudacxx/include/",
        "flashinfer/data/cutlass/include/": "cutlass/include/",
        "flashinfer/data/cutlass/tools/util/include/": "cutlass/tools/util/include/",
    },
    # Compiled into the Python module, so its sources come too.
    "nanobind": {
        "nanobind/include/": "include/",
        "nanobind/src/": "src/",
        "nanobind/ext/robin_map/include/": "robin_map/include/",
    },
}
# Who needs a package, and how to build without; the CUDA backends if it is not here.
USERS = {"nanobind": ("the Python module needs", "-DBATTEN_BUILD_PYTHON=OFF")}
REQUIREMENT = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)\s+--hash=sha256:([0-9a-f]{64})$")

# The wheel's tag names a Python and a platform, but its headers suit any: ask for one always, so
# that there is one hash.
PIP_OPTIONS = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:",
               "--python-version=3.11", "--implementation=cp",
               "--platform=manylinux_2_28_x86_64", "--platform=manylinux_2_27_x86_64"]


class Failure(Exception):
    """One line for the user."""


def requirements_of(path):
    for line in path.read_text(encoding="utf-8").splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = REQUIREMENT.match(line)
        if not match or match[1] not in FOLDERS:
            raise Failure(f"{path}: cannot read the requirement '{line}'")
        yield match[1], match[2], match[3]


def pip_command():
    """A Python that has pip: this one, or the system's."""
    for python in (sys.executable, "/usr/bin/python3"):
        probe = subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False)
        if probe.returncode == 0:
            return [python, "-m", "pip"]
    raise Failure("pip is missing, which fetches the header packages: install python3-pip")


def download(name, version, sha256, folder):
    pinned = folder / "requirement.txt"
    pinned.write_text(f"{name}=={version} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [*pip_command(), "download", *PIP_OPTIONS, "--dest", str(folder), "-r", str(pinned)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        user, option = USERS.get(name, ("the CUDA backends need", "-DBATTEN_CUDA=OFF"))
        raise Failure(f"cannot download {name} {version}, whose headers {user} "
                      f"({errors[-1][7:] if errors else 'pip failed'}); "
                      f"connect to PyPI once, or configure with {option}")
    return wheels[0]


def unpack(wheel, folders, target):
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            path = member.filename
            if member.is_dir() or ".." in path.split("/"):
                continue
            destination = None
            for source, place in folders.items():
                if path.startswith(source):
                    destination = target / place / path[len(source):]
            if destination is None and re.search(r"\.dist-info/.*LICEN[CS]E", path):
                destination = target / path.rsplit("/", 1)[-1]
            if destination is not None:
                destination.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source_file, open(destination, "wb") as file:
                    shutil.copyfileobj(source_file, file)


def fetch(name, version, sha256, into):
    """The folder of a package's headers, downloaded when it is not there."""
    target = into / f"{name}-{version}"
    stamp = target / ".sha256"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == sha256:
        return target
    shutil.rmtree(target, ignore_errors=True)
    # Unpack beside the target and rename, so that a stopped run leaves nothing half there.
    with tempfile.TemporaryDirectory(dir=into) as scratch:
        scratch = pathlib.Path(scratch)
        wheel = download(name, version, sha256, scratch)
        unpack(wheel, FOLDERS[name], scratch / "headers")
        (scratch / "headers" / ".sha256").write_text(sha256, encoding="utf-8")
        (scratch / "headers").rename(target)
    return target


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--into", type=pathlib.Path, required=True, help="folder of the headers")
    parser.add_argument("--requirements", type=pathlib.Path,
                        default=HERE / "requirements-headers.txt")
    options = parser.parse_args()
    into = options.into.resolve()
    try:
        into.mkdir(parents=True, exist_ok=True)
        with open(into / ".lock", "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for name, version, sha256 in requirements_of(options.requirements):
                print(name, version, fetch(name, version, sha256, into))
    except (Failure, OSError) as failure:
        print(f"batten: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
