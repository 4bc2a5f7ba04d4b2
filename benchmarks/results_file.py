"""Where a benchmark's results go: a file that is whole or as it was."""

import json
import os


def write(path, payload):
    """Writes `payload` as JSON, in a folder that is made where there is none."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as file:
        json.dump(payload, file, indent=1)
        file.write("\n")
    os.replace(partial, path)
