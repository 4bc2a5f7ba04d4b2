"""Every function and every type of the public headers has a comment, its own or its neighbour's.

Declarations that follow each other without an empty line share the comment above them.
"""

import pathlib
import re
import unittest

HEADERS = pathlib.Path(__file__).resolve().parents[2] / "include" / "batten"
DECLARATION = re.compile(r"^(BATTEN_API|typedef|struct|class|enum|inline|template|constexpr)\b")


def undocumented(text):
    """First lines of declarations at namespace scope that stand in a block without a comment."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if any(line.lstrip().startswith(("//", "/*")) for line in lines):
            continue
        yield from (line for line in lines[:1] if DECLARATION.match(line))


class Documented(unittest.TestCase):

    def test_public_headers(self):
        # Enumerations and opaque handles whose name and values say it all.
        fine = ("enum class", "typedef enum", "typedef struct batten_attention batten_attention",
                "constexpr const char* name_of")
        for header in sorted(HEADERS.glob("*.h*")):
            with self.subTest(header=header.name):
                found = [line for line in undocumented(header.read_text(encoding="utf-8"))
                         if not line.startswith(fine)]
                self.assertEqual(found, [])

    def test_the_check_itself(self):
        self.assertEqual(list(undocumented("// said\nstruct A {};\n\nstruct B {};\n")), ["struct B {};"])


if __name__ == "__main__":
    unittest.main()
