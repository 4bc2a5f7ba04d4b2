#!/usr/bin/env python3
"""Shows Doxygen the plain comments of batten's headers as documentation.

    doxygen_filter.py HEADER        prints the header with Doxygen's comment marks

A comment before a declaration documents it, one behind a declaration on its line documents that. The
headers themselves stay free of marks, for they are read more often than their HTML.
"""

import re
import sys

LINE = re.compile(r"^(\s*)//(?!/) ?(.*)$")
TRAILING_LINE = re.compile(r"^(\s*[^\s/].*?)\s//(?![/]) ?(.*)$")
TRAILING_BLOCK = re.compile(r"^(\s*[^\s/*].*?)\s/\*(?!\*) ?(.*)$")
BLOCK = re.compile(r"^(\s*)/\*(?!\*) ?(.*)$")
NOT_DOCUMENTATION = re.compile(r"NOLINT|^\s*(}|#)")


def filtered(lines):
    for number, line in enumerate(lines):
        trailing = TRAILING_LINE.match(line)
        block = TRAILING_BLOCK.match(line)
        if (trailing or block) and NOT_DOCUMENTATION.search(line):
            yield line
        elif trailing:
            yield f"{trailing[1]} ///< {trailing[2]}"
        elif block:
            yield f"{block[1]} /**< {block[2]}"
        elif LINE.match(line):
            yield LINE.sub(r"\1/// \2", line)
        elif BLOCK.match(line):
            # The comment at the top of a file speaks of the file.
            mark = r"\1/** @file\n * \2" if number == 0 else r"\1/** \2"
            yield BLOCK.sub(mark, line)
        else:
            yield line


def main():
    with open(sys.argv[1], encoding="utf-8") as header:
        lines = header.read().splitlines()
    if lines and lines[0].startswith("//"):
        lines[0] = "// @file\n/// " + lines[0][3:]
    print("\n".join(filtered(lines)))


if __name__ == "__main__":
    main()
