"""`batten tune`: without a GPU, and with one what it leaves behind."""

import json
import os
import signal
import subprocess
import time
import unittest

import harness
from harness import BAD_INPUT, INTERRUPTED, UNAVAILABLE, USAGE, CommandTest


class Mistakes(CommandTest):
    def test_options(self):
        self.fails(USAGE, "tune", "--device", "cpu", says=["--device", "cpu has nothing to tune"])
        self.fails(USAGE, "tune", "--device", "gpu", says="--device: 'gpu'")
        self.fails(USAGE, "tune", "--exhuastive", says="did you mean --exhaustive?")
        self.fails(USAGE, "tune", "4,128,4096,12", says="unexpected argument")
        self.fails(USAGE, "tune", "--exhaustive", env={"BATTEN_NATIVE_ARCH": "sm80"}, says="unset BATTEN_NATIVE_ARCH")
        for variables in ({"BATTEN_NATIVE_ARCH": "sm80"}, {"BATTEN_SMEM_LIMIT": "99"}):
            (name,) = variables
            for options in ((), ("--exhaustive",), ("--exhaustive", "-o", "card.json")):
                self.fails(USAGE, "tune", *options, env=variables, says=[f"unset {name}", "the card's own kernels"])

    def test_without_a_gpu(self):
        if self.has_gpu():
            self.skipTest("this machine has a GPU")
        (self.folder / "card.json").write_text("old")
        for options in ((), ("--device", "cuda:0"), ("--exhaustive",), ("-o", "card.json"), ("--json",)):
            self.fails(UNAVAILABLE, "tune", *options, says=["cuda:0", "measures a GPU"])
        # What goes elsewhere may be of other kernels.
        self.fails(UNAVAILABLE, "tune", "-o", "card.json", env={"BATTEN_SMEM_LIMIT": "99"}, says="measures a GPU")


class OnAGpu(CommandTest):
    def setUp(self):
        super().setUp()
        if not self.has_gpu():
            self.skipTest("this machine has no GPU")

    def test_a_place_that_cannot_be_written(self):
        self.fails(BAD_INPUT, "tune", "-o", "no/folder/card.json", says="no/folder/card.json")

    def test_an_interruption_leaves_the_old_file(self):
        (self.folder / "card.json").write_text("old")
        process = subprocess.Popen([*harness.BATTEN, "tune", "-o", "card.json"], cwd=self.folder, env=harness.ENVIRONMENT,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(8)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, INTERRUPTED, err)
        self.assertIn("nothing was written", err)
        self.assertEqual((self.folder / "card.json").read_text(), "old")
        self.assertEqual(os.listdir(self.folder), ["card.json"])

    def test_constants_are_kept_and_used(self):
        cache = {"BATTEN_CACHE_DIR": str(self.folder)}
        started = time.monotonic()
        tuned = json.loads(self.succeeds("tune", "--json", env=cache).out)
        self.assertLess(time.monotonic() - started, 60)
        self.assertEqual(tuned["format"], "batten card")
        self.assertTrue(tuned["kernels"])
        self.assertTrue(all(s["measured_us"] > 0 for s in tuned["samples"]))
        self.assertTrue(tuned["file"].startswith(str(self.folder / "cards")))
        answer = json.loads(self.succeeds("explain", "--shape", "4,128,4096,12,4", "--json", env=cache).out)[0]
        chosen = next(c for c in answer["candidates"] if c["taken"])
        self.assertEqual(chosen["constants"], "measured")


if __name__ == "__main__":
    unittest.main()
