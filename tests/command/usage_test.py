"""Wrong command lines, help, version, info, and where the output goes."""

import json
import subprocess
import unittest

import harness
from harness import BAD_INPUT, OK, UNAVAILABLE, USAGE, CommandTest, write_problem


class Help(CommandTest):
    def test_every_help_says_what_to_type(self):
        for verb in ((), ("info",), ("attend",), ("verify",), ("bench",)):
            result = self.succeeds(*verb, "--help")
            self.assertIn(" ".join(("batten", *verb)), result.out)
            self.assertIn("Examples:", result.out)
            self.assertIn("--log-level", result.out)

    def test_main_help_lists_verbs_and_exit_codes(self):
        text = self.succeeds("--help").out
        for word in ("info", "attend", "verify", "bench", "Exit codes", "130"):
            self.assertIn(word, text)

    def test_bench_help_names_the_published_flags_and_defaults(self):
        text = self.succeeds("bench", "--help").out
        for flag in ("--batch-size", "--query-length", "--kv-length", "--num-heads", "--num-kv-heads", "--head-size",
                     "--dtype", "--causal", "--no-causal", "--warmups", "--repeats", "--output"):
            self.assertIn(flag, text)
        self.assertIn("results/bench.json", text)

    def test_version(self):
        self.assertRegex(self.succeeds("--version").out, r"^batten \d+\.\d+\.\d+ \(.+\)\n$")


class Usage(CommandTest):
    def test_no_verb(self):
        self.fails(USAGE, says=["a verb is missing", "`batten --help`"])

    def test_unknown_verb(self):
        self.fails(USAGE, "atend", says=["unknown verb 'atend'", "did you mean attend?"])

    def test_unknown_option(self):
        self.fails(USAGE, "--colour", says="unknown option '--colour'")
        self.fails(USAGE, "bench", "--bacth-size", "4",
                   says=["unknown option '--bacth-size'", "did you mean --batch-size?", "`batten bench --help`"])
        self.fails(USAGE, "info", "everything", says="unexpected argument 'everything'")

    def test_missing_arguments(self):
        self.fails(USAGE, "attend", says="IN is required")
        write_problem(self.folder / "in.safetensors")
        self.fails(USAGE, "attend", "in.safetensors", says="--output is required")
        self.fails(USAGE, "attend", "in.safetensors", "-o", says="--output")

    def test_log_level(self):
        self.fails(USAGE, "--log-level", "loud", "info", says="--log-level")
        self.fails(USAGE, "info", "--log-level", "loud", says="--log-level")
        for place in (("--log-level", "off", "info"), ("info", "--log-level", "off")):
            self.succeeds(*place)

    def test_device(self):
        write_problem(self.folder / "in.safetensors")
        for device in ("gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cpu:0", "cuda:99999999999"):
            self.fails(USAGE, "attend", "in.safetensors", "-o", "out.safetensors", "--device", device,
                       says=f"--device: '{device}' is none of cpu, cuda, cuda:N")

    def test_backend_name(self):
        write_problem(self.folder / "in.safetensors")
        attend = ("attend", "in.safetensors", "-o", "out.safetensors", "--backend")
        self.fails(USAGE, *attend, "cuddn", says=["unknown backend 'cuddn'", "did you mean cudnn?", "reference"])
        self.fails(USAGE, *attend, "cpu:fast", says="backend 'cpu' has no form 'fast'")
        self.fails(USAGE, "verify", "--backend", "torch", says="unknown backend 'torch'")
        self.fails(USAGE, "verify", "--backend", "auto", says="auto is a choice")
        self.fails(USAGE, "bench", "--backends", "cpu", "torch", says="unknown backend 'torch'")

    def test_backend_in_the_environment(self):
        write_problem(self.folder / "in.safetensors")
        attend = ("attend", "in.safetensors", "-o", "out.safetensors")
        self.fails(BAD_INPUT, *attend, env={"BATTEN_BACKEND": "torch"}, says=["BATTEN_BACKEND", "torch", "cpu"])
        self.fails(BAD_INPUT, *attend, env={"FASTVIDEO_ATTENTION_BACKEND": "FLASHINFER",
                                            "FASTVIDEO_FLASHINFER_PREFILL_BACKEND": "trtllm"},
                   says=["FASTVIDEO_FLASHINFER_PREFILL_BACKEND", "trtllm", "single"])
        # The option goes before the variable.
        self.succeeds(*attend, "--backend", "cpu", env={"BATTEN_BACKEND": "torch"})

    def test_scale_and_mask(self):
        write_problem(self.folder / "in.safetensors")
        attend = ("attend", "in.safetensors", "-o", "out.safetensors")
        self.fails(USAGE, *attend, "--scale", "nan", says="--scale: nan is not a finite number")
        self.fails(USAGE, *attend, "--scale", "-inf", says="not a finite number")
        self.fails(USAGE, *attend, "--scale", "big", says="--scale")
        self.fails(USAGE, *attend, "--mask", "diagonal", says="--mask: 'diagonal' is none of")
        self.fails(USAGE, *attend, "--causal", "--mask", "causal-top-left", says="--causal is --mask causal")
        self.fails(USAGE, *attend, "--causal", "--mask", "none", says="--causal is --mask causal, not --mask none")
        self.succeeds(*attend, "--causal", "--mask", "causal")
        for threads in ("-2", "0", "1000000"):
            self.fails(USAGE, *attend, "--threads", threads, says=f"--threads: {threads} is not from 1 to 1024")
        self.succeeds(*attend, "--threads", "1024")

    def test_quick_and_full_exclude_each_other(self):
        self.fails(USAGE, "verify", "--quick", "--full", says="--quick")


class Info(CommandTest):
    def test_page(self):
        text = self.succeeds("info").out
        for word in ("batten ", "device", "cpu", "reference", "cudnn", "single", "workspace"):
            self.assertIn(word, text)
        self.assertNotIn("\033", text)
        for name in ("cpu", "reference", "cudnn", "single"):  # one line each
            self.assertEqual(sum(line.startswith(name + " ") and " yes " in line or
                                 line.startswith(name + " ") and " no " in line for line in text.splitlines()), 1, text)

    def test_json(self):
        info = json.loads(self.succeeds("info", "--json").out)
        self.assertEqual(info["devices"][0]["name"], "cpu")
        self.assertLessEqual({"gpu", "compute_capability", "driver", "cuda", "cudnn", "cpu", "batten", "git"},
                             info["environment"].keys())
        backends = {backend["name"]: backend for backend in info["backends"]}
        self.assertLessEqual({"reference", "cpu", "cudnn", "single"}, backends.keys())
        for backend in backends.values():
            for state in backend["devices"]:
                self.assertTrue(state["available"] or state["reason"], backend)

    def test_variables(self):
        self.assertNotIn("BATTEN_CHECK", self.succeeds("info").out)
        set_here = {"BATTEN_CHECK": "maybe", "BATTEN_WORKSPACE_MB": "64", "BATTEN_BACKEND": "cuddn",
                    "BATTEN_LOG_LEVEL": "debug", "BATTEN_PLAN_CACHE": "no", "BATTEN_CUDNN": ""}
        info = json.loads(self.batten("info", "--json", env=set_here).out)
        problems = {v["name"]: v.get("problem", "") for v in info["variables"]}
        self.assertEqual(set(problems), {*set_here, "BATTEN_CACHE_DIR"} - {"BATTEN_CUDNN"})
        self.assertIn("did you mean BATTEN_WORKSPACE_MIB?", problems["BATTEN_WORKSPACE_MB"])
        self.assertIn("did you mean cudnn?", problems["BATTEN_BACKEND"])
        self.assertIn("expected 1, 0", problems["BATTEN_CHECK"])
        self.assertIn("expected off", problems["BATTEN_PLAN_CACHE"])
        self.assertEqual((problems["BATTEN_LOG_LEVEL"], problems["BATTEN_CACHE_DIR"]), ("", ""))
        self.assertEqual(info["environment"]["settings"]["BATTEN_CHECK"], "maybe")
        self.assertNotIn("BATTEN_WORKSPACE_MB", info["environment"]["settings"])
        page = self.batten("info", env=set_here).out
        self.assertRegex(page, r"BATTEN_CHECK +maybe +not valid: expected 1, 0")

    def test_numbers_in_variables(self):
        for name, least, most in (("NUM_THREADS", 1, 1024), ("WORKSPACE_MIB", 1, 2**20), ("SMEM_LIMIT", 48, 227)):
            for value in (least, most):
                self.assertNotIn("not valid", self.succeeds("info", env={f"BATTEN_{name}": str(value)}).out)
            for value in (least - 1, most + 1, "1.5", "many"):
                # Where the library itself asks for the variable, it says the same and fails.
                result = self.batten("info", env={f"BATTEN_{name}": str(value)})
                self.assertIn(f"not valid: expected a whole number from {least} to {most}", result.out)
                self.assertIn(result.code, (OK, BAD_INPUT))
                if result.code == BAD_INPUT:
                    self.assertIn(f"expected a whole number from {least} to {most}", result.err)

    def test_colour_only_on_terminals_that_want_it(self):
        code, text = self.on_terminal("info")
        self.assertEqual(code, OK)
        self.assertIn("\033[", text)
        for env in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
            code, text = self.on_terminal("info", env=env)
            self.assertEqual(code, OK)
            self.assertNotIn("\033", text)


class NoGpu(CommandTest):
    """What is asked of a machine without a GPU."""

    def setUp(self):
        super().setUp()
        if self.has_gpu():
            self.skipTest("this machine has a GPU")
        write_problem(self.folder / "in.safetensors")

    def test_cuda_device(self):
        for device in ("cuda", "cuda:0", "cuda:3"):
            self.fails(UNAVAILABLE, "attend", "in.safetensors", "-o", "out.safetensors", "--device", device,
                       says="cuda")
        self.fails(UNAVAILABLE, "verify", "--device", "cuda:0", says="cuda:0")
        self.fails(UNAVAILABLE, "bench", "--device", "cuda:0", says="cuda:0")

    def test_gpu_backends(self):
        for backend in ("cudnn", "single"):
            self.fails(UNAVAILABLE, "attend", "in.safetensors", "-o", "out.safetensors", "--backend", backend,
                       says=backend)
            self.fails(UNAVAILABLE, "verify", "--backend", backend, says=backend)
            self.fails(UNAVAILABLE, "bench", "--backends", backend, says=backend)
            self.fails(UNAVAILABLE, "attend", "in.safetensors", "-o", "out.safetensors",
                       env={"BATTEN_BACKEND": backend}, says=backend)

    def test_graphs(self):
        self.fails(USAGE, "bench", "--device", "cpu", "--scope", "graph", says="--scope graph")


class Stdout(CommandTest):
    def test_a_full_disk_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([*harness.BATTEN, "info"], stdout=full, stderr=subprocess.PIPE, text=True,
                                  env=harness.ENVIRONMENT)
        self.assertEqual(done.returncode, BAD_INPUT)
        self.assertIn("cannot write the results to stdout", done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1)


if __name__ == "__main__":
    unittest.main()
