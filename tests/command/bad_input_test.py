"""`batten attend` on wrong files: one clear line, the right exit code, nothing half-written."""

import os
import resource
import struct
import unittest

import safetensors_io
from harness import BAD_INPUT, UNAVAILABLE, USAGE, CommandTest, Problem, write_problem


class BadInput(CommandTest):
    def setUp(self):
        super().setUp()
        # An output of an earlier run, which no failure may touch.
        (self.folder / "out.safetensors").write_text("old")

    def attend(self, *options, code=BAD_INPUT, says=()):
        return self.fails(code, "attend", "in.safetensors", "-o", "out.safetensors", *options, says=says)

    def refuses(self, says, problem=None, **replaced):
        write_problem(self.folder / "in.safetensors", problem, **replaced)
        return self.attend(says=["in.safetensors", *([says] if isinstance(says, str) else says)])


class Tensors(BadInput):
    def test_missing(self):
        q, k, v = (Problem().tensors()[name] for name in "qkv")
        self.refuses(["no tensor 'q'", "nearest is 'query'"], q=None, query=q)
        self.refuses(["no tensor 'v'", "nearest is 'blocks.0.attn1.v'"], v=None, **{"blocks.0.attn1.v": v})
        self.refuses(["no tensor 'k'", "hidden"], k=None, hidden=k)

    def test_dtype(self):
        values = Problem().tensors()["q"][2]
        self.refuses(["'q' is F64", "expected F32, F16 or BF16"], q=("F64", [1, 5, 4, 8], values))
        self.refuses(["'k' is F16 but q is F32", "one dtype"], k=("F16", [1, 7, 2, 8], [0.0] * 112))

    def test_rank(self):
        self.refuses(["'q' has 3 dimensions [5, 4, 8]", "expected 4"], q=("F32", [5, 4, 8], [0.0] * 160))
        self.refuses(["'v' has 5 dimensions"], v=("F32", [1, 7, 2, 8, 1], [0.0] * 112))

    def test_shapes_that_disagree(self):
        self.refuses(["'k'", "batch 2", "has 1"], k=("F32", [2, 7, 2, 8], [0.0] * 224))
        self.refuses(["k of shape [1, 7, 2, 8]", "v of shape [1, 6, 2, 8]"], v=("F32", [1, 6, 2, 8], [0.0] * 96))
        self.refuses(["k of shape [1, 7, 2, 8]", "v of shape [1, 7, 4, 8]"], v=("F32", [1, 7, 4, 8], [0.0] * 224))
        self.refuses("head dim", k=("F32", [1, 7, 2, 16], [0.0] * 224), v=("F32", [1, 7, 2, 8], [0.0] * 112))

    def test_head_groups(self):
        self.refuses(["4 query heads", "no multiple of 3 key/value heads"], Problem(kv_heads=3))
        self.refuses("no heads", Problem(kv_heads=0))

    def test_head_dim_that_is_not_served(self):
        write_problem(self.folder / "in.safetensors", Problem(dim=12))
        self.attend("--backend", "cpu", code=UNAVAILABLE, says=["cpu", "12", "reference"])
        write_problem(self.folder / "in.safetensors", Problem(sq=1, skv=1, heads=1, kv_heads=1, dim=264))
        self.attend("--backend", "cpu", code=UNAVAILABLE, says=["cpu", "264"])

    def test_lengths(self):
        problem = Problem(batch=2)
        self.refuses(["kv_lengths[1] is 8", "expected 0 to 7"], problem, kv_lengths=("I32", [2], [7, 8]))
        self.refuses(["q_lengths[0] is -1", "expected 0 to 5"], problem, q_lengths=("I32", [2], [-1, 5]))
        self.refuses(["kv_lengths", "3 entries for a batch of 2"], problem, kv_lengths=("I32", [3], [1, 2, 3]))
        self.refuses(["kv_lengths", "I64", "expected I32"], problem, kv_lengths=("I64", [2], [1, 2]))
        self.refuses(["q_lengths", "[2, 1]", "expected I32"], problem, q_lengths=("I32", [2, 1], [1, 2]))


class Files(BadInput):
    def lies(self, raw, says=()):
        (self.folder / "in.safetensors").write_bytes(raw)
        self.attend(says=["in.safetensors", *([says] if isinstance(says, str) else says)])

    def changed(self, change):
        header, data = safetensors_io.build(Problem().tensors())
        change(header)
        return safetensors_io.pack(header, data)

    def test_missing(self):
        self.fails(BAD_INPUT, "attend", "none.safetensors", "-o", "out.safetensors",
                   says=["none.safetensors", "No such file"])

    def test_folder_and_empty(self):
        self.fails(BAD_INPUT, "attend", ".", "-o", "out.safetensors", says="directory")
        self.lies(b"")

    def test_truncated(self):
        raw = safetensors_io.pack(*safetensors_io.build(Problem().tensors()))
        for size in (1, 7, 8, 9, 100, len(raw) // 2, len(raw) - 1):
            self.lies(raw[:size])
        self.lies(raw + b"x")

    def test_not_safetensors(self):
        self.lies(b"PK\x03\x04" + b"junk" * 100)
        self.lies(struct.pack("<Q", 2**63) + b"{}")
        self.lies(struct.pack("<Q", 5) + b"[1,2]")
        self.lies(struct.pack("<Q", 8) + b"{\"a\": {}" + b"}")

    def test_overlapping(self):
        self.lies(self.changed(lambda h: h["k"].update(data_offsets=h["q"]["data_offsets"][:1] + [448])))

    def test_lying(self):
        self.lies(self.changed(lambda h: h["q"].update(shape=[1, 5, 4, 9])), "tensor 'q'")
        self.lies(self.changed(lambda h: h["q"].update(shape=[2**32, 2**32, 4, 8])), "tensor 'q'")
        self.lies(self.changed(lambda h: h["q"].update(shape=[1, -5, 4, 8])))
        self.lies(self.changed(lambda h: h["q"].update(dtype="F99")))
        self.lies(self.changed(lambda h: h["v"]["data_offsets"].__setitem__(1, 10**9)))
        self.lies(self.changed(lambda h: h["v"].pop("shape")))

    def test_names_cannot_forge_lines(self):
        self.lies(self.changed(lambda h: h.update({"q\nbatten attend: fine": h.pop("q")})))


class Output(BadInput):
    def setUp(self):
        super().setUp()
        write_problem(self.folder / "in.safetensors")

    def refuses_output(self, path, says=()):
        self.fails(BAD_INPUT, "attend", "in.safetensors", "-o", path, says=says)

    def test_folder(self):
        (self.folder / "folder").mkdir()
        self.refuses_output("folder", "directory")
        self.refuses_output("in.safetensors/out", "in.safetensors/out")
        self.refuses_output("")
        self.refuses_output("x" * 300, "File name too long")

    def test_missing_folders_are_made(self):
        for verb in (("attend", "in.safetensors"), ("verify", "--quick", "--device", "cpu", "--backend", "cpu")):
            option = "-o" if verb[0] == "attend" else "--json"
            self.succeeds(*verb, option, f"a/{verb[0]}/out")
            self.assertTrue((self.folder / "a" / verb[0] / "out").is_file())

    def test_what_is_refused_leaves_no_folder(self):
        self.refuses_output("new/folder/", "new/folder")
        self.refuses_output("new/deeper/" + "x" * 300, "File name too long")
        self.fails(USAGE, "attend", "in.safetensors", "-o", "new/out", "--backend", "nonsense", says="nonsense")
        self.fails(UNAVAILABLE, "attend", "in.safetensors", "-o", "new/out", "--device", "cuda:99", says="cuda:99")
        self.assertFalse((self.folder / "new").exists())

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_read_only(self):
        locked = self.folder / "locked"
        locked.mkdir()
        locked.chmod(0o555)
        self.addCleanup(locked.chmod, 0o755)
        self.refuses_output("locked/out", "Permission denied")
        (self.folder / "out.safetensors").chmod(0o444)
        self.refuses_output("out.safetensors", "Permission denied")

    def test_same_file(self):
        os.link(self.folder / "in.safetensors", self.folder / "hard")
        os.symlink("in.safetensors", self.folder / "soft")
        for name in ("in.safetensors", "./in.safetensors", "hard", "soft", self.folder / "in.safetensors"):
            self.refuses_output(name, "input and output are the same file")

    def test_disk_full(self):
        self.fails(BAD_INPUT, "attend", "in.safetensors", "-o", "/dev/full", says=["/dev/full", "No space left"],
                   prints=True)

    def test_file_too_large(self):
        write_problem(self.folder / "in.safetensors", Problem(sq=64, dim=16))
        self.fails(BAD_INPUT, "attend", "in.safetensors", "-o", "out.safetensors", prints=True,
                   says="out.safetensors",
                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)))


if __name__ == "__main__":
    unittest.main()
