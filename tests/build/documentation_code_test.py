"""The code in README.md and docs/ compiles: whole programs as they stand, fragments in a function.

CXX and CC name the compilers (c++, cc).
"""

import os
import pathlib
import re
import shlex
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(cpp|c|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# What the texts take as known.
FRAME = {
    "cpp": ("#include <batten/batten.hpp>\n#include <cstdio>\n#include <vector>\n",
            "[[maybe_unused]] static void fragment(batten::Attention& attention, batten::Device device,\n"
            "    batten::TensorView q, batten::TensorView k, batten::TensorView v, batten::TensorView out,\n"
            "    batten::TensorView lse, batten::TensorView out2, batten::TensorView lse2,\n"
            "    batten::TensorView k_first, batten::TensorView v_first, batten::TensorView k_second,\n"
            "    batten::TensorView v_second) {{\n", "}}\n"),
    "c": ("#include <batten/batten.h>\n#include <stdio.h>\n",
          "int fragment(void* q_data, batten_tensor k, batten_tensor v, batten_tensor out) {\n",
          "return 0; }\n"),
}
COMPILER = {"cpp": (os.environ.get("CXX", "c++"), ["-std=c++20", "-x", "c++"]),
            "c": (os.environ.get("CC", "cc"), ["-std=c11", "-x", "c"])}


def blocks():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
            line = page.read_text(encoding="utf-8")[:match.start()].count("\n") + 1
            yield f"{page.relative_to(ROOT)}:{line}", match[1], match[2]


def program(language, code):
    """Whole programs are left alone. The names of the frame may be declared anew."""
    if "int main(" in code:
        return code
    prelude, begin, end = FRAME[language]
    includes = [line for line in code.splitlines() if line.startswith("#include")]
    rest = [line for line in code.splitlines() if not line.startswith("#include")]
    return "\n".join([prelude, *includes, begin, *rest, end])


class DocumentationCode(unittest.TestCase):

    def test_compiles(self):
        found = list(blocks())
        self.assertTrue({"cpp", "c", "python"} <= {language for _, language, _ in found})
        for place, language, code in found:
            if place.startswith("docs/adding_a_backend.md") or place.startswith("docs/kernels/"):
                continue  # sketches of the library's insides
            with self.subTest(place=place):
                if language == "python":
                    compile(code, place, "exec")
                    continue
                command, flags = COMPILER[language]
                result = subprocess.run(
                    [*shlex.split(command), *flags, "-fsyntax-only", "-I", str(ROOT / "include"), "-"],
                    input=program(language, code), capture_output=True, text=True, check=False)
                self.assertEqual(result.returncode, 0, result.stderr)


if __name__ == "__main__":
    unittest.main()
