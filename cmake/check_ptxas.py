#!/usr/bin/env python3
"""Compiler launcher for nvcc: turns what ptxas only remarks into errors.

    check_ptxas.py [LAUNCHER...] nvcc ARGUMENTS...

runs the command and reads what it prints. In batten's own kernels it fails the compilation when
ptxas serialised WGMMA instructions (remarks C7510 to C7519: the kernel is right, and half as fast).
For sources in a folder native/sm80 or native/sm90 it also fails when a kernel spills registers; those are compiled
with -Xptxas=-v, and the report is left beside the object as NAME.o.ptxas. Kernels of other
projects' templates (backends/single) are theirs to judge.
"""

import re
import subprocess
import sys

SERIALISED = re.compile(r"\(?\bC751[0-9]\b\)?")
ENTRY = re.compile(r"Compiling entry function '([^']+)'|Function properties for (\S+)")
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
# Lines of -Xptxas=-v, which nobody wants to read in a build log.
VERBOSE = re.compile(
    r"^ptxas info\s*:\s*(\d+ bytes gmem|Compiling entry function|Function properties|Used \d+|Compile time)"
    r"|^\s+\d+ bytes stack frame|^ptxas info\s*:\s*Compile time"
)


def argument_after(arguments, option):
    for i, argument in enumerate(arguments[:-1]):
        if argument == option:
            return arguments[i + 1]
    return None


def source_of(arguments):
    for argument in arguments:
        if argument.endswith(".cu") and not argument.startswith("-"):
            return argument
    return None


def faults(source, text):
    """What is wrong with the kernels of `source`, one line each."""
    if source is None or "/backends/single/" in source:
        return []
    found = []
    kernel = "a kernel"
    for line in text.splitlines():
        entry = ENTRY.search(line)
        if entry:
            kernel = entry.group(1) or entry.group(2)
        if SERIALISED.search(line):
            found.append(f"WGMMA serialised: {line.strip()}")
        spills = SPILLS.search(line)
        if spills and re.search("/native/sm[89]0/", source) and (int(spills[1]) or int(spills[2])):
            found.append(f"{kernel} spills registers: {line.strip()}")
    return found


def main(command):
    if not command:
        sys.exit(__doc__)
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            errors="replace")
    source, target = source_of(command), argument_after(command, "-o")
    if "-Xptxas=-v" in command and target and result.returncode == 0:
        with open(target + ".ptxas", "w", encoding="utf-8") as report:
            report.write(result.stdout)
    for line in result.stdout.splitlines():
        if not VERBOSE.search(line):
            print(line, file=sys.stderr)
    if result.returncode != 0:
        return result.returncode
    found = faults(source, result.stdout)
    for fault in found:
        print(f"{source}: error: {fault}", file=sys.stderr)
    if found and target:
        # The next build must not take the object for good.
        import os

        os.remove(target)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
