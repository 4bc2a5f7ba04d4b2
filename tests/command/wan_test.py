"""`batten wan` on small models on the CPU: what it makes, how it stops and goes on, and what it refuses."""

import json
import math
import pathlib
import shutil
import signal
import struct
import subprocess
import time
import unittest

import safetensors_io
from harness import (BATTEN, BAD_INPUT, EMULATED, ENVIRONMENT, INTERRUPTED, OK, SLOW, UNAVAILABLE, USAGE, CommandTest,
                     relative_error)

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "wan" / "golden"
WEIGHTS = "diffusion_pytorch_model.safetensors"
SIZES = {"t2v": (96, 64, 9), "i2v": (48, 32, 5), "ti2v": (64, 32, 9)}
# diffusers' names to Wan's own; the order counts.
NATIVE = (("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
          ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
          ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
          ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
          ("condition_embedder.time_proj", "time_projection.1"),
          ("proj_out", "head.head"), ("attn1.", "self_attn."), ("attn2.", "cross_attn."), (".norm2.", ".norm3."),
          (".to_out.0.", ".o."), (".to_q.", ".q."), (".to_k.", ".k."), (".to_v.", ".v."),
          ("ffn.net.0.proj", "ffn.0"), ("ffn.net.2", "ffn.2"))


def read_raw(path):
    """The header and the data of a file, as they are."""
    raw = path.read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def native_name(name):
    if name == "scale_shift_table":
        return "head.modulation"
    name = name.replace("scale_shift_table", "modulation")
    for diffusers, wan in NATIVE:
        name = name.replace(diffusers, wan)
    return name


MANY_STEPS = 20 if EMULATED else 200 if SLOW else 700  # some seconds, so that Ctrl-C comes in between


class WanTest(CommandTest):

    def start(self, *command):
        """The command, running, with both outputs in pipes."""
        return subprocess.Popen([*BATTEN, *map(str, command)], cwd=self.folder, env=ENVIRONMENT,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop(self, process):
        """Ctrl-C; what the command still prints."""
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
        self.assertEqual(process.returncode, INTERRUPTED, out + err)
        return out, err

    def denoise(self, *options, model="t2v", out="out.safetensors", inputs=None, size=None):
        """The command line of a run on a golden model."""
        inputs = inputs or GOLDEN / (model if model in SIZES else "t2v") / "denoise.safetensors"
        width, height, frames = size or SIZES[model if model in SIZES else "t2v"]
        image = ("--image-embeds", inputs) if model != "t2v" and model in SIZES else ()
        folder = GOLDEN / model if model in SIZES else self.folder / model
        return ("wan", "denoise", "--model", folder, "--prompt-embeds", inputs, *image, "-o", out, "--width", width,
                "--height", height, "--frames", frames, "--steps", 4, "--guidance", 3, "--device", "cpu", *options)

    def latents(self, out="out.safetensors"):
        tensors, _ = safetensors_io.read(self.folder / out)
        self.assertEqual(list(tensors), ["latents"])
        return tensors["latents"]

    def changed_model(self, change=None, config=None, name="model", more=b""):
        """A copy of the small model whose header and configuration are changed, with `more` data."""
        folder = self.folder / name
        shutil.copytree(GOLDEN / "t2v", folder)
        if change:
            header, data = read_raw(folder / WEIGHTS)
            change(header)
            (folder / WEIGHTS).write_bytes(safetensors_io.pack(header, data + more))
        if config:
            stated = json.loads((folder / "config.json").read_text())
            stated.update(config)
            (folder / "config.json").write_text(json.dumps(stated))
        return name


class Denoise(WanTest):

    def test_is_what_diffusers_pipelines_make(self):
        for model in SIZES:
            golden = GOLDEN / model / "denoise.safetensors"
            expected, _ = safetensors_io.read(golden)
            for scheduler in ("unipc", "euler"):
                self.succeeds(*self.denoise("--scheduler", scheduler, "--latents", golden, model=model))
                dtype, shape, values = self.latents()
                _, expected_shape, reference = expected[f"expected.{scheduler}"]
                self.assertEqual((dtype, shape), ("F32", expected_shape))
                self.assertLess(relative_error(values, reference), 1e-4, (model, scheduler))

    def test_report(self):
        text = self.succeeds(*self.denoise()).out
        for word in ("2 layers", "unipc on the grid diffusers, shift 3, 4 steps", "self attention: cpu", "complete"):
            self.assertIn(word, text)
        report = json.loads(self.succeeds(*self.denoise("--json", "--sigmas", "wan", "--shift", 5)).out)
        self.assertEqual(report["schedule"]["timesteps"], [999, 937, 833, 624])
        self.assertEqual(report["schedule"]["grid"], "wan")
        self.assertEqual(report["receipts"]["cross"]["backend"], "cpu")
        self.assertEqual((report["steps_done"], report["forwards"]), (4, 2))
        self.assertLessEqual({"environment", "config", "flops", "memory", "seconds_per_step", "linear_library"},
                             report.keys())

    def test_seed_and_guidance_matter_and_nothing_else(self):
        def run(*options):
            self.succeeds(*self.denoise(*options))
            return self.latents()[2]

        first = run()
        self.assertEqual(run(), first)
        self.assertEqual(run("--backend", "cpu", "--save-every", 1), first)
        self.assertLess(relative_error(run("--cfg-batch"), first), 1e-4)
        self.assertLess(relative_error(run("--backend", "reference"), first), 1e-4)
        self.assertGreater(relative_error(run("--seed", 1), first), 0.1)
        self.assertGreater(relative_error(run("--guidance", 1), first), 0.01)

    def test_every_form_of_a_checkpoint(self):
        """Wan's own names, with and without a repack's prefix, and shards give the same bits."""
        self.succeeds(*self.denoise())
        expected = self.latents()

        def rename(prefix):
            def change(header):
                for name in list(header):
                    if name != "__metadata__":
                        header[prefix + native_name(name)] = header.pop(name)
            return change

        for prefix in ("", "model.diffusion_model."):
            name = self.changed_model(rename(prefix), name=f"native{prefix}")
            self.assertIn("Wan's own names", self.succeeds(*self.denoise(model=name)).out)
            self.assertEqual(self.latents(), expected)
        self.shard(self.folder / "sharded" / "transformer")
        self.succeeds(*self.denoise(model="sharded"))
        self.assertEqual(self.latents(), expected)

    def shard(self, folder):
        folder.mkdir(parents=True)
        shutil.copy(GOLDEN / "t2v" / "config.json", folder)
        header, data = read_raw(GOLDEN / "t2v" / WEIGHTS)
        names = sorted(name for name in header if name != "__metadata__")
        index = {}
        for number, part in enumerate((names[::2], names[1::2])):
            file, shard, offset = f"part-{number}.safetensors", {}, 0
            body = b""
            for name in part:
                begin, end = header[name]["data_offsets"]
                shard[name] = {**header[name], "data_offsets": [offset, offset + end - begin]}
                body += data[begin:end]
                offset += end - begin
                index[name] = file
            (folder / file).write_bytes(safetensors_io.pack(shard, body))
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": index}))

    def test_one_file_without_a_configuration(self):
        shutil.copy(GOLDEN / "t2v_head128" / WEIGHTS, self.folder / "model.safetensors")
        report = json.loads(self.succeeds(*self.denoise("--json", "--dry-run", model="model.safetensors")).out)
        self.assertEqual((report["config"]["heads"], report["config"]["head_dim"]), (1, 128))
        self.assertEqual(report["status"], "not run")
        self.assertFalse((self.folder / "out.safetensors").exists())

    def test_progress_on_a_terminal(self):
        steps = 20 if EMULATED else 200
        code, text = self.on_terminal(*self.denoise("--steps", steps))
        self.assertEqual(code, OK)
        self.assertRegex(text, rf"/{steps} \d+:\d\d \d+\.\d\d s/step, \d+:\d\d left")

    def test_several_videos(self):
        tensors, _ = safetensors_io.read(GOLDEN / "t2v" / "denoise.safetensors")
        _, (_, tokens, width), one = tensors["prompt_embeds"]
        other = [value * 0.5 for value in one]
        safetensors_io.write(self.folder / "two.safetensors", {
            "prompt_embeds": ("F32", [2, tokens, width], one + other),
            "negative_prompt_embeds": tensors["negative_prompt_embeds"],
        })
        self.succeeds(*self.denoise(inputs=self.folder / "two.safetensors"))
        _, shape, values = self.latents()
        self.assertEqual(shape[0], 2)
        self.assertGreater(relative_error(values[len(values) // 2 :], values[: len(values) // 2]), 0.1)


class StopAndGoOn(WanTest):

    def interrupted(self, *options, steps):
        process = self.start(*self.denoise("--steps", steps, "--save-every", 1, *options))
        deadline = time.monotonic() + 200
        while not (self.folder / "out.safetensors").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        _, err = self.stop(process)
        self.assertIn("go on with --resume", err)

    def test_a_pipe_sees_the_plan_before_the_first_step(self):
        process = self.start(*self.denoise("--steps", MANY_STEPS))
        first = process.stdout.readline()
        self.assertIn("2 layers, 3 x 16, float32, diffusers' names", first)
        # A run that had printed it at its end would end as usual.
        self.stop(process)

    def test_ctrl_c_and_resume(self):
        steps = MANY_STEPS
        self.interrupted(steps=steps)
        tensors, metadata = safetensors_io.read(self.folder / "out.safetensors")
        self.assertIn("latents", tensors)
        self.assertIn("resume.prediction", tensors)
        done = int(metadata["batten.wan.steps_done"])
        self.assertTrue(0 < done < steps)
        again = ("--steps", steps)
        # What would lose or mix up the run is refused.
        self.fails(BAD_INPUT, *self.denoise(*again), says=[f"holds {done} steps", "--resume"])
        self.fails(BAD_INPUT, *self.denoise(*again, "--resume", "--seed", 5), says=["seed 0", "with 5"])
        self.fails(BAD_INPUT, *self.denoise("--resume"), says=[f"steps {steps}", "with 4"])
        self.fails(BAD_INPUT, *self.denoise(*again, "--resume", size=(64, 64, 9)), says="was made with start")
        self.fails(BAD_INPUT, *self.denoise(*again, "--resume", inputs=self.other_prompt()), says="prompt")
        self.succeeds(*self.denoise(*again, "--resume"))
        resumed = self.latents()
        text = self.succeeds(*self.denoise(*again, "--resume")).out
        self.assertIn("complete already", text)
        self.assertIn("2 layers, 3 x 16, diffusers' names", text)
        self.succeeds(*self.denoise(*again, out="whole.safetensors"))
        self.assertEqual(self.latents("whole.safetensors"), resumed)

    def other_prompt(self):
        tensors, _ = safetensors_io.read(GOLDEN / "t2v" / "denoise.safetensors")
        dtype, shape, values = tensors["prompt_embeds"]
        path = self.folder / "other.safetensors"
        safetensors_io.write(path, {**tensors, "prompt_embeds": (dtype, shape, [-v for v in values])})
        return path

    def test_resume_without_a_run_begins(self):
        self.succeeds(*self.denoise("--resume"))
        first = self.latents()
        (self.folder / "out.safetensors").unlink()
        self.succeeds(*self.denoise())
        self.assertEqual(self.latents(), first)

    def test_another_programs_file_is_left_alone(self):
        safetensors_io.write(self.folder / "out.safetensors", {"latents": ("F32", [1], [0.0])})
        self.fails(BAD_INPUT, *self.denoise(), says=["out.safetensors", "no file of `batten wan denoise`"])


class BadModel(WanTest):

    def refuses(self, says, change=None, config=None, code=BAD_INPUT, more=b""):
        name = self.changed_model(change, config, f"model{len(list(self.folder.iterdir()))}", more)
        self.fails(code, *self.denoise(model=name), says=says)

    def test_missing_and_misnamed_tensors(self):
        self.refuses(["'blocks.1.attn1.to_q.weight' is missing", "nearest is 'blocks.1.attn1.to_qq.weight'"],
                     lambda h: h.update({"blocks.1.attn1.to_qq.weight": h.pop("blocks.1.attn1.to_q.weight")}))
        self.refuses(["'patch_embedding.weight' is missing"],
                     lambda h: h.update({"conv.weight": h.pop("patch_embedding.weight")}))

    def test_another_variant(self):
        _, data = read_raw(GOLDEN / "t2v" / WEIGHTS)
        place = [len(data), len(data) + 4]
        self.refuses(["'vace_blocks.0.proj.bias' is none of this model's"],
                     lambda h: h.update({"vace_blocks.0.proj.bias": {"dtype": "BF16", "shape": [2],
                                                                     "data_offsets": place}}),
                     code=UNAVAILABLE, more=bytes(4))

    def test_wrong_shapes(self):
        self.refuses(["'proj_out.bias' has shape [4, 4], expected [16]"],
                     lambda h: h["proj_out.bias"].update(shape=[4, 4]))
        self.refuses(["'proj_out.weight' is I16, expected F32, F16 or BF16"],
                     lambda h: h["proj_out.weight"].update(dtype="I16"), code=UNAVAILABLE)

    def test_configuration_that_disagrees(self):
        self.refuses(["config.json: the ffn's width is 48, and 40 in the tensors"], config={"ffn_dim": 48})
        self.refuses(["the number of layers is 3, and 2"], config={"num_layers": 3})
        self.refuses(["heads x head dim", "64, and 48"], config={"num_attention_heads": 4})
        self.refuses(["'qk_norm' is \"layer_norm\""], config={"qk_norm": "layer_norm"}, code=UNAVAILABLE)
        self.refuses(["'ffn_dim' is \"wide\", expected a whole number"], config={"ffn_dim": "wide"})

    def test_a_pair_of_models(self):
        self.changed_model(name="pair")
        (self.folder / "pair" / "transformer_2").mkdir()
        self.fails(UNAVAILABLE, *self.denoise(model="pair"), says=["pair: a pair of transformers", "Wan2.2 14B"])

    def test_no_model(self):
        self.fails(BAD_INPUT, *self.denoise(model="nowhere"),
                   says=["nowhere' cannot be read: No such file", "name a diffusers folder", "nothing is downloaded"])
        (self.folder / "empty").mkdir()
        self.fails(BAD_INPUT, *self.denoise(model="empty"), says=["empty", "no safetensors file"])
        shutil.copy(GOLDEN / "t2v" / WEIGHTS, self.folder / "alone.safetensors")
        self.fails(BAD_INPUT, *self.denoise(model="alone.safetensors"), says=["48 wide", "config.json is needed"])
        (self.folder / "a.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))
        self.fails(BAD_INPUT, *self.denoise(model="a.safetensors.index.json"), says="is no file name")
        (self.folder / "a.safetensors.index.json").write_text("{}")
        self.fails(BAD_INPUT, *self.denoise(model="a.safetensors.index.json"), says="'weight_map' is missing")


class BadInput(WanTest):

    def inputs(self, **replaced):
        tensors, _ = safetensors_io.read(GOLDEN / "t2v" / "denoise.safetensors")
        tensors.update(replaced)
        path = self.folder / "inputs.safetensors"
        safetensors_io.write(path, {name: tensor for name, tensor in tensors.items() if tensor is not None})
        return path

    def test_sizes(self):
        for size, says in (((90, 64, 9), ["--width: 90 is no multiple of 16", "nearest is 96"]),
                           ((96, 70, 9), ["--height: 70", "nearest is 64"]),
                           ((96, 64, 10), ["--frames: 10 is not 4n + 1", "nearest is 9"]),
                           ((0, 64, 9), ["--width: 0"]), ((96, 64, 0), ["--frames: 0"])):
            self.fails(USAGE, *self.denoise(size=size), says=says)
        self.fails(BAD_INPUT, *self.denoise(size=(16 * 65, 64, 9)), says=["130 columns", "positions for 128"])

    def test_embeddings(self):
        def refuses(says, **replaced):
            self.fails(BAD_INPUT, *self.denoise(inputs=self.inputs(**replaced)), says=says)

        refuses(["'prompt_embeds' [1, 9, 20] is 20 wide", "embeddings are 24"],
                prompt_embeds=("F32", [1, 9, 20], [0.0] * 180))
        refuses(["has 513 tokens", "at most 512"], prompt_embeds=("F32", [513, 24], [0.0] * 513 * 24))
        refuses(["is I32, expected F32"], prompt_embeds=("I32", [9, 24], [0] * 216))
        refuses(["not finite"], prompt_embeds=("F32", [9, 24], [math.nan] * 216))
        refuses(["is no text embedding"], prompt_embeds=("F32", [216], [0.0] * 216))
        refuses(["inputs.safetensors': tensor 'prompt_embeds' is missing", "nearest is 'prompt_embedings'",
                 "one of the names prompt_embeds, text"], prompt_embeds=None,
                prompt_embedings=("F32", [9, 24], [0.0] * 216))
        others = dict.fromkeys(("latents", "negative_prompt_embeds", "expected.unipc", "expected.euler"))
        refuses(["'prompt_embeds' is missing, the file holds 'a', 'b', 'c' and 1 more"], prompt_embeds=None, **others,
                **{name: ("F32", [1], [0.0]) for name in "abcd"})
        refuses(["negative embeddings for 3 videos", "1 prompts"],
                negative_prompt_embeds=("F32", [3, 1, 24], [0.0] * 72))

    def test_guidance_needs_a_negative(self):
        inputs = self.inputs(negative_prompt_embeds=None)
        self.fails(USAGE, *self.denoise(inputs=inputs), says=["--guidance 3", "--negative-embeds"])
        self.succeeds(*self.denoise("--guidance", 1, inputs=inputs))

    def test_images(self):
        command = [str(word) for word in self.denoise(model="i2v")]
        at = command.index("--image-embeds")
        self.fails(USAGE, *command[:at], *command[at + 2 :], says="--image-embeds is missing")
        self.fails(BAD_INPUT, *self.denoise(model="i2v", size=(64, 32, 5)),
                   says=["'condition' has shape [1, 8, 2, 4, 6]", "mask and encoded image here is [N, 8, 2, 4, 8]"])

    def test_starting_noise(self):
        noise = self.inputs(latents=("F32", [1, 4, 3, 8, 10], [0.0] * 960))
        self.fails(BAD_INPUT, *self.denoise("--latents", noise), says=["'latents' has shape", "[1, 4, 3, 8, 12]"])

    def test_options(self):
        for options, says in ((("--scheduler", "dpm"), "'dpm' is none of unipc, euler"),
                              (("--sigmas", "karras"), "'karras' is none of diffusers, wan, flow-match"),
                              (("--sigmas", "flow-match"), "unipc cannot"), (("--steps", 0), "--steps: 0"),
                              (("--shift", "nan"), "--shift"), (("--guidance", -1), "--guidance: -1"),
                              (("--save-every", 0), "--save-every"), (("--backend", "cuddn"), "did you mean cudnn?"),
                              (("--threads", -1), "--threads"), (("--vae-stride", 65), "65 is none of 1 to 64"),
                              (("--tune-linears",), ["--tune-linears", "the CPU does not run"])):
            self.fails(USAGE, *self.denoise(*options), says=says)
        self.fails(UNAVAILABLE, *self.denoise("--dtype", "bfloat16"), says=["float32, not in bfloat16"])
        self.fails(UNAVAILABLE, *self.denoise("--backend", "cudnn"), says="cudnn")
        (self.folder / "file").touch()
        self.fails(BAD_INPUT, *self.denoise(out="file/out.safetensors"), says="file/out.safetensors")
        self.succeeds(*self.denoise("--steps", 1, out="new/folder/out.safetensors"))
        self.latents("new/folder/out.safetensors")

    def test_options_without_effect_are_said(self):
        noise = GOLDEN / "t2v" / "denoise.safetensors"
        for options, says in ((("--guidance", 1, "--cfg-batch"), "--guidance 1 is none: --cfg-batch is not used"),
                              (("--guidance", 1, "--negative-embeds", noise), "--guidance 1 is none: --negative-embeds is not used"),
                              (("--latents", noise, "--seed", 3), "--latents holds the noise: --seed 3 is not used")):
            result = self.batten(*self.denoise("--steps", 1, *options))
            self.assertEqual(result.code, OK, str(result))
            self.assertEqual(len(result.err.splitlines()), 1, str(result))
            self.assertIn(f"batten wan denoise: warning: {says}", result.err)

    def test_no_openblas(self):
        self.fails(UNAVAILABLE, *self.denoise(), env={"BATTEN_OPENBLAS": "/none"}, says=["OpenBLAS", "/none"])


class Bench(WanTest):

    def bench(self, *options, model="t2v"):
        # OpenBLAS's threads wait by spinning, which an emulator is slow at.
        threads = ("--threads", 1) if EMULATED else ()
        return ("wan", "bench", "--model", GOLDEN / model, "--width", 64, "--height", 32, "--frames", 5, "--repeats", 2,
                "--device", "cpu", *threads, *options)

    def test_json(self):
        result = self.succeeds(*self.bench("--backends", "cpu", "reference", "-o", "bench.json"))
        self.assertIn("alone/attention", result.out)
        report = json.loads((self.folder / "bench.json").read_text())
        self.assertTrue(report["complete"])
        self.assertEqual([r["backend"] for r in report["results"]], ["cpu", "reference"])
        self.assertEqual((report["tokens"], report["latent"]), (16, [2, 4, 8]))
        flops = report["flops"]
        self.assertEqual(flops["self_attention"], 4 * 16 * 16 * 48 * 2)
        self.assertEqual(flops["cross_attention"], 4 * 16 * 512 * 48 * 2)
        for r in report["results"]:
            self.assertEqual(len(r["samples_seconds"]), 2)
            self.assertAlmostEqual(r["seconds_per_video"], 100 * r["seconds_per_forward"])
            self.assertTrue(all(r["split"][kind] > 0 for kind in ("attention", "linear", "other")))
            self.assertEqual(r["receipts"]["self"]["backend"], r["backend"])
            self.assertGreater(report["matrix_tflops"], 0)

    def test_a_backend_that_is_not_there_is_refused_first(self):
        self.fails(UNAVAILABLE, "wan", "bench", "--model", GOLDEN / "t2v", "--random-weights", "--width", 96, "--height", 64,
                   "--frames", 9, "--device", "cpu", "--backends", "cpu", "cudnn", "-o", "a.json", says="cudnn")
        self.assertFalse((self.folder / "a.json").exists())

    def test_every_model(self):
        for model, options in (("i2v", ("--image-tokens", 5)), ("flf2v", ()), ("ti2v", ())):
            self.succeeds(*self.bench("--random-weights", "--layers", 1, *options, model=model))

    def test_ctrl_c_saves_what_was_measured(self):
        process = self.start(*self.bench("--repeats", 10**6, "--backends", "cpu", "reference", "-o", "a/b.json"))
        while not process.stdout.readline().startswith("matrix products"):
            self.assertIsNone(process.poll())
        time.sleep(10 if SLOW else 2)  # warm-ups and some forwards
        out, err = self.stop(process)
        self.assertIn("wrote a/b.json", out)
        self.assertIn("error: interrupted; what was measured up to here is in 'a/b.json'", err)
        report = json.loads((self.folder / "a/b.json").read_text())
        (result,) = report["results"]
        self.assertFalse(report["complete"])
        self.assertEqual(result["backend"], "cpu")
        self.assertTrue(0 < len(result["samples_seconds"]) < 10**6)
        self.assertEqual(result["receipts"]["self"]["backend"], "cpu")
        self.assertNotIn("split", result)

    def test_memory_is_said_before(self):
        self.fails(UNAVAILABLE, "wan", "bench", "--preset", "t2v-14b", "--random-weights", "--size", "720p", "--batch",
                   4000, "--device", "cpu", "-o", "bench.json", says=["GiB are needed on cpu", "weights 53", "are free"])

    def test_usage(self):
        for options, says in (((), "give either --preset or --model"),
                              (("--preset", "t2v-14b"), "needs --random-weights"),
                              (("--preset", "t2v-2b", "--random-weights"), "'t2v-2b' is none of t2v-1.3b"),
                              (("--model", GOLDEN / "t2v", "--layers", 1), "--layers needs --random-weights"),
                              (("--model", GOLDEN / "t2v", "--batch", 0), "--batch: 0"),
                              (("--model", GOLDEN / "t2v", "--size", "4k"), "'4k' is none of 480p, 720p"),
                              (("--model", GOLDEN / "t2v", "--backends", "torch"), "unknown backend 'torch'"),
                              (("--model", GOLDEN / "t2v", "--passes", 7), "--passes: 7 is neither 2 (with guidance) nor 1"),
                              (("--model", GOLDEN / "t2v", "--size", "480p", "--width", 64),
                               "--size 480p states width and height"),
                              (("--model", GOLDEN / "t2v", "--random-weights", "--layers", 99),
                               ["--layers: 99 is more than the 2 of", "leave it out for all"]),
                              (("--model", GOLDEN / "t2v", "--image-tokens", 5), "takes no image embeddings"),
                              (("--model", GOLDEN / "flf2v", "--image-tokens", 5), "has positions for 14, not for 5"),
                              (self.bench("--tune-linears")[2:], "--tune-linears chooses among cuBLASLt's kernels")):
            self.fails(USAGE, "wan", "bench", *options, says=says)


class Usage(WanTest):

    def test_the_group(self):
        self.fails(USAGE, "wan", says=["a verb is missing: denoise or bench", "`batten wan --help`"])
        self.fails(USAGE, "wan", "denose", says=["unknown verb 'denose'", "did you mean denoise?"])
        self.fails(USAGE, "wan", "bench", "--modle", "x", says=["'--modle'", "did you mean --model?"])
        self.fails(USAGE, "wan", "denoise", says=["--model is required", "`batten wan denoise --help`"])

    def test_help(self):
        self.assertIn("denoise", self.succeeds("wan", "--help").out)
        for verb in ("denoise", "bench"):
            text = self.succeeds("wan", verb, "--help").out
            for word in (f"batten wan {verb}", "Examples:", "--log-level", "--tune-linears"):
                self.assertIn(word, text)


if __name__ == "__main__":
    unittest.main()
