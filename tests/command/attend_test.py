"""`batten attend` on right input: the numbers, what is printed and what is written."""

import os
import threading
import unittest

import safetensors_io
from harness import (
    BAD_INPUT, EXAMPLES, OK, VERIFICATION_FAILED, CommandTest, Problem, relative_error, write_problem)

EPSILON = {"F32": 2e-6, "F16": 8e-4, "BF16": 4e-3}


class Attend(CommandTest):
    def attend(self, problem, *options, file=None, **expected):
        """Attends and compares; returns the result."""
        path = self.folder / "in.safetensors"
        safetensors_io.write(path, file or problem.tensors())
        result = self.succeeds("attend", "in.safetensors", "-o", "out.safetensors", "--lse", *options)
        tensors, _ = safetensors_io.read(self.folder / "out.safetensors")
        out, lse = problem.expected(**expected)
        self.assertEqual(set(tensors), {"out", "lse"})
        dtype, shape, values = tensors["out"]
        self.assertEqual(dtype, problem.dtype)
        self.assertEqual(shape, [problem.batch, problem.sq, problem.heads, problem.dim])
        self.assertLess(relative_error(values, out), EPSILON[dtype])
        self.assertEqual(tensors["lse"][:2], ("F32", [problem.batch, problem.sq, problem.heads]))
        for got, want in zip(tensors["lse"][2], lse):
            self.assertTrue(got == want or abs(got - want) < 1e-4, (got, want))
        self.assertEqual(sorted(os.listdir(self.folder)), ["in.safetensors", "out.safetensors"])
        return result

    def test_dtypes(self):
        for dtype in EPSILON:
            self.attend(Problem(dtype=dtype), "--verify")

    def test_backends(self):
        for backend in ("cpu", "reference", "auto"):
            result = self.attend(Problem(), "--backend", backend, "--device", "cpu")
            self.assertIn("receipt: " + ("cpu" if backend == "auto" else backend), result.out)

    def test_masks(self):
        problem = Problem(sq=6, skv=9)
        self.attend(problem, "--causal", "--verify", mask="causal")
        self.attend(problem, "--mask", "causal", mask="causal")
        self.attend(problem, "--mask", "causal-top-left", "--verify", mask="causal-top-left")
        # More queries than keys: the first rows see nothing.
        self.attend(Problem(sq=9, skv=4), "--causal", "--verify", mask="causal")

    def test_scale(self):
        self.attend(Problem(), "--scale", "0.7", "--verify", scale=0.7)
        self.attend(Problem(), "--scale", "-0.25", "--verify", scale=-0.25)
        self.attend(Problem(), "--scale", "0", "--verify", scale=0.0)

    def test_lengths(self):
        problem = Problem(batch=3)
        lengths = {"kv_lengths": ("I32", [3], [7, 0, 4]), "q_lengths": ("I32", [3], [2, 5, 0])}
        self.attend(problem, "--verify", file=problem.tensors(**lengths), q_lengths=[2, 5, 0], kv_lengths=[7, 0, 4])
        self.attend(problem, "--causal", "--verify", file=problem.tensors(**lengths), mask="causal",
                    q_lengths=[2, 5, 0], kv_lengths=[7, 0, 4])

    def test_empty(self):
        for problem in (Problem(batch=0), Problem(sq=0), Problem(skv=0)):
            write_problem(self.folder / "in.safetensors", problem)
            self.succeeds("attend", "in.safetensors", "-o", "out.safetensors", "--lse", "--verify")
            tensors, _ = safetensors_io.read(self.folder / "out.safetensors")
            self.assertTrue(all(value == 0 for value in tensors["out"][2]))

    def test_unaligned_file(self):
        for dtype in EPSILON:
            problem = Problem(dtype=dtype)
            header, data = safetensors_io.build({"pad": ("I32", [1], [0]), **problem.tensors()})
            # One byte before the tensors, and a header of odd length.
            for entry in header.values():
                entry["data_offsets"] = [x + 1 for x in entry["data_offsets"]]
            header["a"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
            (self.folder / "in.safetensors").write_bytes(safetensors_io.pack(header, b"\0" + data, pad=False))
            self.succeeds("attend", "in.safetensors", "-o", "out.safetensors", "--verify")
            tensors, _ = safetensors_io.read(self.folder / "out.safetensors")
            self.assertLess(relative_error(tensors["out"][2], problem.expected()[0]), EPSILON[dtype])

    def test_without_lse(self):
        write_problem(self.folder / "in.safetensors")
        self.succeeds("attend", "in.safetensors", "-o", "out.safetensors")
        tensors, metadata = safetensors_io.read(self.folder / "out.safetensors")
        self.assertEqual(set(tensors), {"out"})
        self.assertIn("batten", metadata)

    def test_threads(self):
        problem = Problem(batch=2, sq=40, skv=50)
        for threads in ("1", "2", "7"):
            self.attend(problem, "--threads", threads)

    def test_replaces_an_existing_output(self):
        write_problem(self.folder / "in.safetensors")
        (self.folder / "out.safetensors").write_text("old")
        self.succeeds("attend", "in.safetensors", "-o", "out.safetensors")
        self.assertIn("out", safetensors_io.read(self.folder / "out.safetensors")[0])

    def test_writes_into_a_pipe(self):
        write_problem(self.folder / "in.safetensors", Problem(batch=1, sq=300, skv=300, dim=64))
        os.mkfifo(self.folder / "pipe")
        received = []
        reader = threading.Thread(target=lambda: received.append((self.folder / "pipe").read_bytes()))
        reader.start()
        self.succeeds("attend", "in.safetensors", "-o", "pipe")
        reader.join(timeout=60)
        (self.folder / "copy.safetensors").write_bytes(received[0])
        self.assertIn("out", safetensors_io.read(self.folder / "copy.safetensors")[0])

    def test_same_bytes_each_time(self):
        write_problem(self.folder / "in.safetensors", Problem(batch=2, sq=70, skv=90, dim=16, dtype="BF16"))
        for name in ("one", "two"):
            self.succeeds("attend", "in.safetensors", "-o", name, "--lse", "--device", "cpu")
        self.assertEqual((self.folder / "one").read_bytes(), (self.folder / "two").read_bytes())

    def test_results_on_stdout_logs_on_stderr(self):
        write_problem(self.folder / "in.safetensors")
        result = self.batten("attend", "in.safetensors", "-o", "out.safetensors", "--log-level", "debug")
        self.assertEqual(result.code, OK)
        self.assertEqual([line.split(":")[0].split(" ")[0] for line in result.out.splitlines()],
                         ["q", "receipt", "wrote"], str(result))


class Compare(CommandTest):
    def setUp(self):
        super().setUp()
        self.problem = Problem()
        self.out, self.lse = self.problem.expected()
        self.shape = [1, self.problem.sq, self.problem.heads, self.problem.dim]

    def write(self, values, **more):
        tensors = {"out": ("F32", self.shape, values), **more}
        write_problem(self.folder / "in.safetensors", self.problem, **tensors)

    def test_agreement(self):
        self.write(self.out, lse=("F32", self.shape[:3], self.lse))
        result = self.succeeds("attend", "in.safetensors", "-o", "o", "--compare", "out", "--lse")
        self.assertRegex(result.out, r"compare: with 'out' of the file, relative error \S+e-0[789].*lse within .*: ok")

    def test_verify_shows_it_where_there_is_one(self):
        self.write(self.out)
        self.assertIn("compare: with 'out'", self.succeeds("attend", "in.safetensors", "-o", "o", "--verify").out)
        # Recorded without a mask, so that a causal call differs: that is no failure.
        result = self.succeeds("attend", "in.safetensors", "-o", "o", "--verify", "--causal")
        self.assertIn("differs", result.out)

    def test_disagreement_fails_and_keeps_the_old_output(self):
        wrong = list(self.out)
        wrong[5] += 0.5
        self.write(wrong)
        (self.folder / "o").write_text("old")
        self.fails(VERIFICATION_FAILED, "attend", "in.safetensors", "-o", "o", "--compare", "out",
                   says=["verification failed", "'o' was not written"], prints=True)

    def test_nan_is_a_disagreement(self):
        wrong = list(self.out)
        wrong[0] = float("nan")
        self.write(wrong)
        self.fails(VERIFICATION_FAILED, "attend", "in.safetensors", "-o", "o", "--compare", "out", prints=True)

    def test_names_and_shapes(self):
        self.write(self.out, small=("F32", [1], [0.0]), whole=("I32", self.shape, [0] * len(self.out)))
        attend = ("attend", "in.safetensors", "-o", "o", "--compare")
        self.fails(BAD_INPUT, *attend, "output", says=["no tensor 'output'"])
        self.fails(BAD_INPUT, *attend, "small", says=["'small' of shape [1]", str(self.shape)])
        self.fails(BAD_INPUT, *attend, "whole", says=["'whole' is I32"])


@unittest.skipUnless((EXAMPLES / "wan_self_attention.safetensors").exists(), "no example data in this tree")
class Examples(CommandTest):
    def test_wan(self):
        for name in ("wan_self_attention", "wan_cross_attention"):
            result = self.succeeds("attend", EXAMPLES / f"{name}.safetensors", "-o", "out.safetensors", "--lse",
                                   "--device", "cpu", "--verify", "--compare", "out")
            self.assertIn("receipt: cpu", result.out)
            self.assertEqual(result.out.count(": ok"), 2, result.out)


if __name__ == "__main__":
    unittest.main()
