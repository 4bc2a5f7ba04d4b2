"""Where the results go: an earlier complete result is replaced by a complete one only."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from typing import Any


class Output:
    """The JSON file of a run. Symbolic links are followed; what is no regular file (a device, a
    FIFO) is written into, never replaced.

    name: the path as it was given. Raises OSError, in words, for one that cannot be written, and
    makes no directory before there is something to write.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        if not name:
            raise OSError("--output: expected a file's name")
        self.path = os.path.realpath(name)
        if name.endswith("/") or os.path.isdir(self.path):
            raise OSError(f"--output {name}: is a directory; name a file in it")
        self.direct = os.path.exists(self.path) and not os.path.isfile(self.path)
        if self.direct:
            kind = os.stat(self.path).st_mode
            if stat.S_ISBLK(kind) or stat.S_ISSOCK(kind):
                raise OSError(f"--output {name}: is a block device or a socket; name a file")
            if not os.access(self.path, os.W_OK):
                raise OSError(f"--output {name}: cannot be written")
            return
        folder = os.path.dirname(self.path)
        while not os.path.lexists(folder):
            folder = os.path.dirname(folder)
        if not os.path.isdir(folder):
            raise OSError(f"--output {name}: {folder} is no directory")
        if not os.access(folder, os.W_OK | os.X_OK) or (
            os.path.exists(self.path) and not os.access(self.path, os.W_OK)
        ):
            raise OSError(f"--output {name}: cannot be written")

    def save(self, payload: dict, complete: bool) -> str | None:
        """Writes the results and says where. Those of an interrupted run go beside the file, as
        FILE.partial; not at all where the file is a device or a FIFO (None)."""
        if self.direct:
            if not complete:
                return None
            with open(self.path, "w", encoding="utf-8") as file:
                _dump(payload, file)
            return self.name
        target = self.path if complete else f"{self.path}.partial"
        if not complete and os.path.lexists(target) and not _is_plain(target):
            return None
        os.makedirs(os.path.dirname(target), exist_ok=True)
        temporary = f"{target}.{os.getpid()}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                _dump(payload, file)
            if os.path.exists(target):
                with contextlib.suppress(OSError):
                    shutil.copymode(target, temporary)
            os.replace(temporary, target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        return self.name if complete else f"{self.name}.partial"


def _is_plain(path: str) -> bool:
    return stat.S_ISREG(os.lstat(path).st_mode)


def _dump(payload: Any, file: Any) -> None:
    json.dump(payload, file, indent=1)
    file.write("\n")
