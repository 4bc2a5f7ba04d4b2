"""`batten verify`: the table, the JSON file, Ctrl-C."""

import json
import signal
import subprocess
import time
import unittest

import harness
from harness import BAD_INPUT, INTERRUPTED, OK, UNAVAILABLE, USAGE, CommandTest


class Verify(CommandTest):
    @unittest.skipIf(harness.SLOW, "the conformance tests run the same cases under the sanitizers")
    def test_quick(self):
        result = self.succeeds("verify", "--quick", "--device", "cpu", "--json", "verify.json", timeout=600)
        self.assertRegex(result.out, r"verify quick: \d+ passed, 0 failed, 0 refused, \d+ skipped in")
        self.assertIn("cpu (cpu)", result.out)
        self.assertIn("reference (cpu)", result.out)
        payload = json.loads((self.folder / "verify.json").read_text())
        self.assertTrue(payload["complete"])
        self.assertEqual(payload["failed"], 0)
        self.assertGreater(payload["passed"], 50)
        for case in payload["cases"]:
            self.assertLessEqual({"backend", "device", "name", "status", "reason", "rel_error", "seconds"}, case.keys())

    def test_what_a_form_does_not_serve_is_refused(self):
        result = self.batten("verify", "--backend", "cpu:bf16dot", "--json", "verify.json", timeout=600)
        payload = json.loads((self.folder / "verify.json").read_text())
        self.assertEqual(payload["failed"], 0)
        self.assertGreater(payload["refused"], 0)
        self.assertIn("refused cpu:bf16dot (cpu): ", result.out)
        if payload["passed"] > 0:
            self.assertEqual((result.code, result.err), (OK, ""), str(result))
            self.assertIn("form bf16dot serves bfloat16", result.out)
        else:  # a processor without such an instruction
            self.assertEqual(result.code, UNAVAILABLE, str(result))
            self.assertIn("cpu:bf16dot on cpu serves none of the cases", result.err)

    def test_threads(self):
        for threads in ("0", "-2", "1025", "1000000", "99999999999999", "x"):
            self.fails(USAGE, "verify", "--threads", threads, says=f"--threads: {threads} is not from 1 to 1024")

    def test_json_that_cannot_be_written(self):
        (self.folder / "file").touch()
        self.fails(BAD_INPUT, "verify", "--json", "file/verify.json", says="file/verify.json")

    def test_interrupt(self):
        process = subprocess.Popen([*harness.BATTEN, "verify", "--full", "--device", "cpu", "--json", "v.json"],
                                   cwd=self.folder, env=harness.ENVIRONMENT, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=250)
        self.assertEqual(process.returncode, INTERRUPTED, out + err)
        self.assertIn("batten verify: error: interrupted", err)
        self.assertFalse(json.loads((self.folder / "v.json").read_text())["complete"])


if __name__ == "__main__":
    unittest.main()
