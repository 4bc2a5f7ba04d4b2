#!/usr/bin/env python3
"""Makes a folder that can be imported of a build's native module and the package's Python files.

    link_sources.py SOURCE_PACKAGE BUILT_PACKAGE

puts a symbolic link into BUILT_PACKAGE for each Python file and folder of SOURCE_PACKAGE, and
removes links whose file is gone.
"""

import pathlib
import sys

SUFFIXES = {".py", ".pyi", ".typed", ".json", ".pth"}


def wanted(path):
    if path.is_dir():
        return path.name not in ("__pycache__", "licenses")
    return path.name != "_build.json" and path.suffix in SUFFIXES


def main():
    source, built = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    built.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in source.iterdir() if wanted(path)}
    for path in built.iterdir():
        if path.is_symlink() and path.name not in names:
            path.unlink()
    for name in names:
        link = built / name
        if not link.is_symlink():
            link.symlink_to(source / name)


if __name__ == "__main__":
    main()
