"""scripts/fetch_headers.py without a network: what is pinned, cached, and said when it fails."""

import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "fetch_headers.py"
sys.path.insert(0, str(ROOT / "scripts"))
import fetch_headers  # noqa: E402


def temporary_folder(test):
    folder = tempfile.TemporaryDirectory()
    test.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)


class FetchHeaders(unittest.TestCase):

    def setUp(self):
        self.folder = temporary_folder(self)
        self.requirements = ROOT / "scripts" / "requirements-headers.txt"
        self.python_requirements = ROOT / "scripts" / "requirements-python.txt"

    def run_script(self, requirements):
        # A closed port of this machine as the only index: a network that is down.
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(self.folder),
                       "PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
                       "PIP_RETRIES": "0", "PIP_DEFAULT_TIMEOUT": "2", "PIP_NO_CACHE_DIR": "1"}
        return subprocess.run([sys.executable, str(SCRIPT), "--into", str(self.folder / "headers"),
                               "--requirements", str(requirements)],
                              capture_output=True, text=True, check=False, env=environment)

    def test_every_package_is_pinned_with_a_hash(self):
        files = (self.requirements, self.python_requirements)
        pinned = {name for file in files for name, _, _ in fetch_headers.requirements_of(file)}
        self.assertEqual(pinned, set(fetch_headers.FOLDERS))

    def test_what_is_there_is_not_fetched_again(self):
        pinned = list(fetch_headers.requirements_of(self.requirements))
        for name, version, sha256 in pinned:
            folder = self.folder / "headers" / f"{name}-{version}"
            folder.mkdir(parents=True)
            (folder / ".sha256").write_text(sha256)
        result = self.run_script(self.requirements)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(len(result.stdout.splitlines()), len(pinned))

    def test_nanobind_is_the_one_of_pip_install(self):
        (name, version, _), = fetch_headers.requirements_of(self.python_requirements)
        self.assertIn(f'"{name}=={version}"', (ROOT / "pyproject.toml").read_text())

    def test_without_pip_it_says_what_to_install(self):
        absent = subprocess.CompletedProcess([], 1)
        with unittest.mock.patch.object(fetch_headers.subprocess, "run", return_value=absent):
            with self.assertRaisesRegex(fetch_headers.Failure, "pip is missing.*python3-pip"):
                fetch_headers.pip_command()

    def test_offline_is_one_line(self):
        try:
            fetch_headers.pip_command()
        except fetch_headers.Failure:
            self.skipTest("this machine has no pip")
        for requirements, option in ((self.requirements, "-DBATTEN_CUDA=OFF"),
                                     (self.python_requirements, "-DBATTEN_BUILD_PYTHON=OFF")):
            result = self.run_script(requirements)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(len(result.stderr.strip().splitlines()), 1, result.stderr)
            self.assertIn(option, result.stderr)
        leftovers = [path for path in (self.folder / "headers").iterdir() if path.name != ".lock"]
        self.assertEqual(leftovers, [])

    def test_unpinned_requirement_is_refused(self):
        requirements = self.folder / "requirements.txt"
        requirements.write_text("flashinfer-python\n")
        result = self.run_script(requirements)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cannot read the requirement", result.stderr)


if __name__ == "__main__":
    unittest.main()
