"""`batten explain`: what auto would take, of a card that need not be here, and mistakes."""

import json
import unittest

from harness import OK, UNAVAILABLE, USAGE, BAD_INPUT, CommandTest

H200 = ("explain", "--gpu", "h200", "--shape")


class Explain(CommandTest):
    def ask(self, *arguments, **options):
        return json.loads(self.succeeds(*arguments, "--json", **options).out)

    def one(self, *arguments, **options):
        answers = self.ask(*arguments, **options)
        self.assertEqual(len(answers), 1)
        return answers[0]

    def candidate(self, answer, backend):
        return next(c for c in answer["candidates"] if c["backend"] == backend)

    def test_page(self):
        text = self.succeeds(*H200, "4,128,4096,12,4").out
        first, heading, *rows, reason = text.splitlines()
        self.assertEqual(first, "B4 128x4096, heads 12/4 x 128, bfloat16 on NVIDIA H200, 132 multiprocessors")
        self.assertTrue(heading.startswith("backend"), heading)
        self.assertEqual([row.split()[0] for row in rows], ["native", "cudnn", "single", "cpu", "reference"])
        self.assertEqual([row.endswith("taken") for row in rows], [True, False, False, False, False])
        # 48 tiles of 32 blocks, joined: 11.6 for each multiprocessor.
        self.assertIn("key blocks 12 x", rows[0])
        self.assertRegex(rows[0], r", joined +taken$")
        self.assertRegex(rows[1], r"shipped .* [12]\.\d\dx as long$")
        self.assertRegex(reason, r"^auto \(default\): native \d+ us, cudnn \d+ us, single \d+ us \(shipped constants\)$")

    def test_terms_add_up(self):
        for shape in ("4,128,4096,12,4", "1,1,4096,40,8", "3,700,900,8", "2,64,64,4,4,64"):
            for candidate in self.one(*H200, shape)["candidates"]:
                if "predicted_us" not in candidate or candidate["bound"] == "power":
                    continue
                total = sum(
                    term["us"]
                    for term in candidate["terms"]
                    if candidate["bound"] == "tiles" or term["name"] in ("launches", "parts", "merges")
                )
                total += candidate["memory_us"] if candidate["bound"] == "memory" else 0
                self.assertAlmostEqual(total / candidate["predicted_us"], 1, delta=1e-3, msg=shape)
                for term in candidate["terms"]:
                    self.assertAlmostEqual(term["count"] * term["unit_us"], term["us"], delta=1e-2 * term["us"])

    def test_what_becomes_of_tiles(self):
        def native(shape, *more):
            return self.candidate(self.one(*H200, shape, *more), "native")

        self.assertEqual(native("4,128,4096,12,4")["form"], "joined")
        self.assertEqual(native("4,128,4096,12,4", "--backend", "native:divided")["form"], "divided")
        self.assertEqual(native("4,128,4096,12,4", "--backend", "native:whole")["form"], "")
        self.assertEqual(native("32,1024,4096,12,4")["form"], "")
        # As the form of that name.
        for shape in ("4,128,4096,12,4", "1,16,32760,40,8"):
            chosen = native(shape)
            named = native(shape, "--backend", "native:" + chosen["form"])
            self.assertEqual(named["predicted_us"], chosen["predicted_us"], shape)

    def test_the_least_time_is_taken(self):
        for shape in ("4,128,4096,12,4", "1,1,4096,40,8", "1,32760,512,12", "8,77,4096,24"):
            answer = self.one(*H200, shape)
            times = {c["backend"]: c["predicted_us"] for c in answer["candidates"] if "predicted_us" in c}
            self.assertEqual(answer["chosen"], min(times, key=times.get), shape)
            self.assertEqual([c["backend"] for c in answer["candidates"] if c["taken"]], [answer["chosen"]])

    def test_several_shapes(self):
        answers = self.ask("explain", "--gpu", "h200", "--shape", "1,16,16,2", "2,16,16,2")
        self.assertEqual([a["shape"] for a in answers], ["1,16,16,2", "2,16,16,2"])

    def test_masks_and_lengths(self):
        full = self.one(*H200, "4,2048,2048,16")
        causal = self.one(*H200, "4,2048,2048,16", "--causal")
        self.assertEqual(causal["flops"] * 2, full["flops"] + 2 * 2 * 4 * 16 * 128 * 2048)
        self.assertEqual(self.candidate(causal, "native")["kernel"], "native d128 causal")
        on_device = self.one(*H200, "2,64,64,4", "--lengths-on-device", "--padding-is-finite")
        self.assertIn("host", self.candidate(on_device, "single")["why"])
        self.assertEqual(self.candidate(on_device, "cudnn")["kernel"], "cudnn:lengths d128")
        ragged = self.one(*H200, "2,64,64,4", "--kv-lengths", "64", "32")
        self.assertIn("padding_is_finite", self.candidate(ragged, "cudnn")["why"])
        packed = self.one(*H200, "2,64,64,4", "--packed", "--q-lengths", "64", "3", "--kv-lengths", "64", "10",
                          "--padding-is-finite")
        self.assertEqual(self.candidate(packed, "cudnn")["kernel"], "cudnn:packed d128")

    def test_a_named_backend(self):
        answer = self.one(*H200, "4,128,4096,12,4", "--backend", "cudnn:packed")
        self.assertEqual((answer["chosen"], answer["reason"]), ("cudnn", "asked for by option"))
        self.assertEqual(self.candidate(answer, "cudnn")["kernel"], "cudnn:packed d128")
        answer = self.one(*H200, "4,128,4096,12,4", env={"BATTEN_BACKEND": "single"})
        self.assertEqual((answer["chosen"], answer["reason"]), ("single", "asked for by BATTEN_BACKEND=single"))

    def test_on_the_cpu(self):
        answer = self.one("explain", "--device", "cpu", "--shape", "1,16,16,2")
        self.assertEqual(answer["chosen"], "cpu")
        self.assertIsNone(answer["card"])
        self.assertEqual(self.candidate(answer, "reference")["why"], "only when named")

    def test_not_served(self):
        result = self.batten(*H200, "1,16,16,2", "--dtype", "float32")
        self.assertEqual((result.code, result.err), (UNAVAILABLE, ""), str(result))
        self.assertIn("no backend serves this call", result.out)

    def test_empty_calls(self):
        for shape in ("0,16,16,2", "1,0,16,2", "1,16,0,2"):
            self.assertIsNotNone(self.one(*H200, shape)["chosen"])


class Mistakes(CommandTest):
    def test_shapes(self):
        self.fails(USAGE, "explain", says="--shape is required")
        for shape in ("4,128", "1,2,3,4,5,6,7", "4,128,4096", "a,1,1,1", "1,,1,1", "1,1,1,1,", "", "1,-1,1,1",
                      "1,1,1,99999999999", "1.5,1,1,1", " 1,1,1,1"):
            self.fails(USAGE, "explain", "--shape", shape, says="--shape")
        self.fails(USAGE, "explain", "--shape", "1,1,1,12,5", says="12 query heads are no multiple of 5")
        self.fails(USAGE, "explain", "--shape", "1,1,1,0", says="--shape")
        self.fails(BAD_INPUT, *H200, "1,1,1,2,2,100000", says="head_dim is 100000")

    def test_options(self):
        self.fails(USAGE, *H200, "1,1,1,1", "--dtype", "float8", says="--dtype")
        self.fails(USAGE, *H200, "1,1,1,1", "--mask", "window", says="--mask")
        self.fails(USAGE, *H200, "1,1,1,1", "--causal", "--mask", "causal-top-left", says="--causal is --mask causal")
        self.fails(USAGE, *H200, "1,1,1,1", "--causal", "--mask", "none", says="--causal is --mask causal")
        self.fails(USAGE, *H200, "2,8,8,1", "--kv-lengths", "8", says="--kv-lengths: 1 lengths for 2 samples")
        self.fails(BAD_INPUT, *H200, "2,8,8,1", "--kv-lengths", "8", "9", says="kv_lengths[1] is 9")
        self.fails(USAGE, *H200, "1,1,1,1", "--backend", "cuddn", says="did you mean cudnn?")
        self.fails(USAGE, *H200, "1,1,1,1", "--device", "cpu", says="--gpu")

    def test_cards(self):
        self.fails(BAD_INPUT, "explain", "--gpu", "h300", "--shape", "1,1,1,1", says=["'h300'", "h200"])

    def test_a_device_that_is_not_here(self):
        if self.has_gpu():
            self.skipTest("this machine has a GPU")
        self.fails(UNAVAILABLE, "explain", "--device", "cuda:0", "--shape", "1,1,1,1", says="cuda:0")


if __name__ == "__main__":
    unittest.main()
