#!/usr/bin/env python3
"""Collects the licences of what is compiled into the Python module.

    collect_licenses.py --into FOLDER NAME=ROOT...

NAME is nanobind, cudnn-frontend, flashinfer or cuda, and ROOT the folder it was found in. Writes
one file for each, and for the libraries of the system (fmt, spdlog, nlohmann-json, Highway), to
FOLDER. Fails with one line if a licence is not found: a module must not be handed on without them.
"""

import argparse
import pathlib
import shutil
import sys

DOC = pathlib.Path("/usr/share/doc")
# Places of a licence, the first that exists; patterns below the root. A header's leading comment
# stands for a project whose licence file is not shipped with its headers.
SYSTEM = {
    "highway": ["libhwy-dev", "libhwy1", "highway"],
    "fmt": ["libfmt-dev", "fmt"],
    "spdlog": ["libspdlog-dev", "spdlog"],
    "nlohmann-json": ["nlohmann-json3-dev", "nlohmann-json"],
    # The C++ runtime, which is linked in.
    "gcc-runtime": ["libstdc++6", "gcc-12-base", "gcc-base"],
}
PACKAGES = {
    "nanobind": {
        "nanobind": ["LICENSE", "../nanobind-*.dist-info/licenses/LICENSE"],
        "robin-map": ["ext/robin_map/include/tsl/robin_map.h", "robin_map/include/tsl/robin_map.h"],
    },
    "cudnn-frontend": {"cudnn-frontend": ["LICENSE.txt", "LICENSE"]},
    "flashinfer": {
        "flashinfer": ["LICENSE"],
        "cutlass": ["cutlass/LICENSE.txt", "cutlass/include/cutlass/cutlass.h"],
        "cccl": ["cccl/LICENSE", "cccl/libcudacxx/include/cuda/barrier"],
    },
    "cuda": {"cuda-runtime": ["EULA.txt"]},
}
CUDA_NOTE = (
    "The module contains NVIDIA's CUDA runtime (libcudart_static), which may be redistributed\n"
    "under the NVIDIA CUDA Toolkit End User License Agreement, attachment A:\n"
    "https://docs.nvidia.com/cuda/eula/\n"
)


class Missing(Exception):
    """One line for the user."""


def leading_comment(path):
    """The comments before a header's first directive."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip() and not line.lstrip().startswith(("/", "*")):
            break
        kept.append(line)
    text = "\n".join(kept).strip()
    if "icense" not in text:
        raise Missing(f"{path} does not begin with a licence")
    return text + "\n"


def of_package(name, root, into):
    for part, patterns in PACKAGES[name].items():
        target = into / f"{part}.txt"
        found = next((path for pattern in patterns for path in sorted(root.glob(pattern))), None)
        if found is None and part == "cuda-runtime":
            target.write_text(CUDA_NOTE, encoding="utf-8")
        elif found is None:
            raise Missing(f"the licence of {part} was not found below {root}")
        elif found.name.startswith(("LICENSE", "EULA")):
            shutil.copyfile(found, target)
        else:
            target.write_text(leading_comment(found), encoding="utf-8")


def of_system(into):
    for name, folders in SYSTEM.items():
        found = [DOC / folder / "copyright" for folder in folders]
        found = next((path for path in found if path.is_file()), None)
        if found is None:
            raise Missing(f"the licence of {name} was not found in {DOC}")
        shutil.copyfile(found, into / f"{name}.txt")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--into", type=pathlib.Path, required=True)
    parser.add_argument("packages", nargs="*", metavar="NAME=ROOT")
    options = parser.parse_args()
    shutil.rmtree(options.into, ignore_errors=True)
    options.into.mkdir(parents=True)
    try:
        of_system(options.into)
        for package in options.packages:
            name, root = package.split("=", 1)
            of_package(name, pathlib.Path(root), options.into)
    except (Missing, OSError) as failure:
        print(f"batten: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
