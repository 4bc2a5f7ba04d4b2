"""cmake/check_ptxas.py on recorded output of ptxas, with a script in nvcc's place."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

LAUNCHER = pathlib.Path(__file__).resolve().parents[2] / "cmake" / "check_ptxas.py"

SERIALISED = (
    "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized "
    "due to non wgmma instructions defining accumulator registers of a wgmma between start and end of "
    "the pipeline stage in the function '_Z4kernPf'\n")
SPILLS = ("ptxas info    : Compiling entry function '_Z4kernPf' for 'sm_90a'\n"
          "ptxas info    : Function properties for _Z4kernPf\n"
          "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
          "ptxas info    : Used 168 registers, used 1 barriers\n")
CLEAN = SPILLS.replace("12 bytes", "0 bytes").replace("16 bytes", "0 bytes")


def temporary_folder(test):
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)


class CheckPtxas(unittest.TestCase):

    def compile(self, source, printed, exit_code=0):
        """Runs the launcher over a compiler that prints `printed` and writes its object."""
        self.folder = temporary_folder(self)
        compiler = self.folder / "nvcc"
        compiler.write_text(f"#!{sys.executable}\nimport sys\n"
                            f"sys.stderr.write({printed!r})\n"
                            "open(sys.argv[sys.argv.index('-o') + 1], 'w').close()\n"
                            f"sys.exit({exit_code})\n")
        compiler.chmod(0o755)
        self.object = self.folder / "kernel.o"
        return subprocess.run([sys.executable, str(LAUNCHER), str(compiler), "-Xptxas=-v", "-c",
                               source, "-o", str(self.object)], capture_output=True, text=True,
                              check=False)

    def test_clean_kernel_passes_in_silence(self):
        result = self.compile("/src/backends/native/sm90/kernel.cu", CLEAN)
        self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        self.assertTrue(self.object.exists())
        self.assertIn("Used 168 registers", (self.folder / "kernel.o.ptxas").read_text())

    def test_serialised_wgmma_fails(self):
        result = self.compile("/src/backends/native/sm90/kernel.cu", CLEAN + SERIALISED)
        self.assertEqual(result.returncode, 1)
        self.assertIn("error: WGMMA serialised", result.stderr)
        self.assertFalse(self.object.exists(), "the object of a failed compilation stays")

    def test_spills_fail_in_own_kernels_only(self):
        for family in ("sm80", "sm90"):
            result = self.compile(f"/src/backends/native/{family}/kernel.cu", SPILLS)
            self.assertEqual(result.returncode, 1)
            self.assertIn("_Z4kernPf spills registers", result.stderr)
        self.assertEqual(self.compile("/src/backends/single/sm80/kernel.cu", SPILLS).returncode, 0)

    def test_templates_of_others_are_not_judged(self):
        result = self.compile("/src/backends/single/sm90/kernel.cu", SERIALISED)
        self.assertEqual(result.returncode, 0)
        self.assertIn("C7510", result.stderr)

    def test_compiler_failure_keeps_its_exit_code_and_text(self):
        result = self.compile("/src/merge/merge.cu", "error: expected a ';'\n", exit_code=2)
        self.assertEqual(result.returncode, 2)
        self.assertIn("expected a ';'", result.stderr)


if __name__ == "__main__":
    unittest.main()
