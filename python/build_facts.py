#!/usr/bin/env python3
"""Writes what a build of the Python module was made with, and what it needs, as JSON.

    build_facts.py --module _core.abi3.so [--library libhwy.so] --output _build.json NAME=VALUE...

Adds "glibc": the newest version of glibc whose symbols the files use, by binutils' objdump; and
"python": "abi3 (3.12 or newer)" or the interpreter's tag.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sysconfig


def glibc_needed(files):
    versions = set()
    for file in files:
        text = subprocess.run(
            ["objdump", "-T", str(file)], check=True, capture_output=True, text=True
        ).stdout
        versions.update(tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", text))
    return ".".join(map(str, max(versions))) if versions else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--module", type=pathlib.Path, required=True)
    parser.add_argument("--library", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("facts", nargs="*", metavar="NAME=VALUE")
    options = parser.parse_args()
    facts = {"cuda": None, "cuda_archs": []}
    facts.update(fact.split("=", 1) for fact in options.facts)
    if facts["cuda_archs"]:
        facts["cuda_archs"] = facts["cuda_archs"].split(",")
    shared = [library for library in options.library if ".so" in library.name]
    facts["glibc"] = glibc_needed([options.module, *shared])
    abi3 = options.module.name.endswith(".abi3.so")
    facts["python"] = "abi3 (3.12 or newer)" if abi3 else sysconfig.get_config_var("SOABI")
    options.output.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
