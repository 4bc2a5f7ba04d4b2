"""`batten bench`: the published command line, its checks, the JSON, Ctrl-C."""

import json
import math
import signal
import subprocess
import time
import unittest

import harness
from harness import BAD_INPUT, INTERRUPTED, OK, UNAVAILABLE, USAGE, CommandTest

HEADS = ("--num-heads", "4", "--num-kv-heads", "2", "--head-size", "16", "--warmups", "1", "--repeats", "6", "--device",
         "cpu")
SMALL = ("--batch-size", "1", "2", "--query-length", "16", "--kv-length", "32", *HEADS)

PUBLISHED_KEYS = {"backend", "batch_size", "query_length", "kv_length", "num_heads", "num_kv_heads", "head_size",
                  "dtype", "causal", "median_ms", "p20_ms", "p80_ms", "samples_ms"}


class Bench(CommandTest):
    def load(self, name="results/bench.json"):
        return json.loads((self.folder / name).read_text())

    def test_json(self):
        result = self.succeeds("bench", *SMALL, "--check")
        payload = self.load()
        self.assertLessEqual({"gpu", "compute_capability", "driver", "cuda", "cudnn", "cpu", "batten", "git"},
                             payload["environment"].keys())
        self.assertEqual((payload["timing_scope"], payload["warmups"], payload["repeats"], payload["complete"]),
                         ("call", 1, 6, True))
        self.assertIn("--batch-size 1 2", payload["command"])
        self.assertEqual([r["batch_size"] for r in payload["results"]], [1, 2])
        for entry in payload["results"]:
            self.assertLessEqual(PUBLISHED_KEYS | {"receipt", "tflops", "rel_error", "host_us"}, entry.keys())
            self.assertEqual((entry["backend"], entry["dtype"], entry["causal"]), ("cpu", "bfloat16", False))
            self.assertEqual(entry["receipt"]["backend"], "cpu")
            self.assertEqual(len(entry["samples_ms"]), 6)
            self.assertLess(entry["rel_error"], 4e-3)
            ordered = sorted(entry["samples_ms"])
            for key, q in (("median_ms", 0.5), ("p20_ms", 0.2), ("p80_ms", 0.8)):
                self.assertEqual(entry[key], ordered[round(5 * q)])
            flops = 4 * entry["batch_size"] * 16 * 32 * 4 * 16
            self.assertTrue(math.isclose(entry["tflops"], flops / entry["median_ms"] / 1e9, rel_tol=1e-9))
        self.assertIn("wrote results/bench.json", result.out)
        self.assertIn("cpu", result.out)

    def test_comparison(self):
        result = self.succeeds("bench", *SMALL, "--backends", "reference", "cpu", "--output", "a/b/c.json")
        payload = self.load("a/b/c.json")
        self.assertEqual([r["backend"] for r in payload["results"]], ["reference", "cpu"] * 2)
        self.assertEqual(payload["first_backend"], "reference")
        for entry in payload["results"]:
            if entry["backend"] == "cpu":
                speedup = entry["speedup"]
                self.assertLessEqual(speedup["low"], speedup["median"])
                self.assertLessEqual(speedup["median"], speedup["high"])
            else:
                self.assertIsNone(entry["speedup"])
        self.assertIn("speed-up over reference", result.out)

    def test_dtypes_and_flags(self):
        for dtype in ("float16", "float32", "bfloat16"):
            self.succeeds("bench", *SMALL, "--dtype", dtype, "--no-causal", "--rounds", "2", "--sets", "3")
            self.assertTrue(all(r["dtype"] == dtype and r["input_sets"] == 3 for r in self.load()["results"]))

    def test_causal_runs_equal_pairs(self):
        self.succeeds("bench", "--batch-size", "1", "2", "--query-length", "16", "32", "--kv-length", "32", "16",
                      *HEADS, "--causal")
        self.assertEqual([(r["query_length"], r["kv_length"], r["causal"]) for r in self.load()["results"]],
                         [(16, 16, True), (32, 32, True)] * 2)

    def test_sustained(self):
        self.succeeds("bench", *SMALL, "--scope", "sustained", "--seconds", "0.1", "--rounds", "2")
        payload = self.load()
        self.assertEqual(payload["timing_scope"], "sustained")
        self.assertIn("joules_per_call", payload["results"][0])

    def test_wrong_values(self):
        for options, says in (
            (("--warmups", "0"), "--warmups: 0"),
            (("--repeats", "0"), "--repeats: 0"),
            (("--repeats", "-3"), "--repeats: -3"),
            (("--batch-size", "4", "0"), "--batch-size: 0"),
            (("--query-length", "0"), "--query-length: 0"),
            (("--kv-length", "x"), "--kv-length"),
            (("--batch-size",), "--batch-size"),
            (("--head-size", "100"), "--head-size: 100"),
            (("--head-size", "0"), "--head-size: 0"),
            (("--head-size", "512"), "--head-size: 512"),
            (("--num-heads", "12", "--num-kv-heads", "5"), "12 is no multiple of --num-kv-heads 5"),
            (("--num-kv-heads", "0"), "--num-kv-heads: 0"),
            (("--dtype", "fp8"), "--dtype: 'fp8'"),
            (("--scope", "wall"), "--scope: 'wall'"),
            (("--causal",), "--causal: --query-length and --kv-length"),
            (("--rounds", "7"), "--rounds: 7"),
            (("--sets", "-1"), "--sets: -1"),
            (("--seconds", "0", "--scope", "sustained"), "--seconds: 0"),
            (("--seconds", "1"), "--seconds: only --scope sustained"),
            (("--threads", "0"), "--threads: 0 is not from 1 to 1024"),
            (("--threads", "1000000"), "--threads: 1000000 is not from 1 to 1024"),
            (("--backends", "cpu", "cpu"), "named twice"),
        ):
            self.fails(USAGE, "bench", *SMALL, *options, says=says)

    def test_tensors_that_do_not_fit(self):
        far_too_many = str(2**63 - 1)
        for options, says in (
            (("--batch-size", "1", "1000000", "--query-length", "1000000"),
             ["batch 1000000 q 1000000 kv 32: the tensors need ", "on cpu", "are free", "lower --batch-size"]),
            (("--batch-size", far_too_many, "--query-length", far_too_many), "lower --batch-size"),
            (("--sets", "2000000000"), "lower --sets, --batch-size"),
        ):
            self.fails(UNAVAILABLE, "bench", *SMALL, *options, says=says)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_settings_are_recorded(self):
        self.succeeds("bench", *SMALL, env={"BATTEN_WORKSPACE_MIB": "64", "BATTEN_WORKSPACE_MB": "1", "BATTEN_CHECK": ""})
        self.assertEqual(self.load()["environment"]["settings"],
                         {"BATTEN_CACHE_DIR": str(self.folder / "cache"), "BATTEN_WORKSPACE_MIB": "64"})

    def test_output_that_cannot_be_written(self):
        (self.folder / "file").write_text("old")
        self.fails(BAD_INPUT, "bench", *SMALL, "--output", ".", says="directory")
        self.fails(BAD_INPUT, "bench", *SMALL, "--output", "file/bench.json", says="file/bench.json")
        self.fails(USAGE, "bench", *SMALL, "--output", "", says="--output")

    def test_a_backend_that_does_not_serve(self):
        # float32 on a GPU backend that is not there: availability comes first.
        if not self.has_gpu():
            self.fails(UNAVAILABLE, "bench", *SMALL, "--backends", "cpu", "cudnn", says="cudnn")

    def test_progress_only_on_a_terminal(self):
        code, text = self.on_terminal("bench", *SMALL)
        self.assertEqual(code, OK)
        self.assertIn("/2 ", text)
        self.assertEqual(self.succeeds("bench", *SMALL).err, "")

    def test_interrupt_saves_what_there_is(self):
        # A call takes milliseconds, so that there is something to save.
        lengths = ("16", "64") if harness.EMULATED else ("512", "2048")
        process = subprocess.Popen(
            [*harness.BATTEN, "bench", *HEADS, "--batch-size", "1", "8", "--query-length", lengths[0], "--kv-length",
             lengths[1], "--repeats", "100000", "--rounds", "100000"],
            cwd=self.folder, env=harness.ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        process.stdout.readline()
        time.sleep(2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=250)
        self.assertEqual(process.returncode, INTERRUPTED, out + err)
        self.assertIn("batten bench: error: interrupted", err)
        payload = self.load()
        self.assertFalse(payload["complete"])
        self.assertEqual([path.name for path in (self.folder / "results").iterdir()], ["bench.json"])


if __name__ == "__main__":
    unittest.main()
