#!/bin/bash
# The checks of `make lint`:  scripts/lint.sh BUILD_DIR [JOBS]
# BUILD_DIR holds a compile_commands.json. Every check runs; the script fails if one did.
set -uo pipefail
build=$1
jobs=${2:-$(nproc)}
cd "$(dirname "$0")/.." || exit 1
failed=()

check() {
  local name=$1
  shift
  local start=$SECONDS
  if "$@"; then
    echo "lint: $name: fine ($((SECONDS - start)) s)"
  else
    echo "lint: $name: FAILED"
    failed+=("$name")
  fi
}

format() { scripts/sources.sh | xargs -0 -n 20 -P "$jobs" clang-format --dry-run -Werror; }

# Translation units that the build knows; headers are seen through them. The SIMD kernels are left out:
# clang-tidy would look at each once for every target.
tidy() {
  python3 - "$build/compile_commands.json" <<'PYTHON' |
import json, os, sys
root = os.getcwd()
files = {os.path.relpath(entry["file"], root) for entry in json.load(open(sys.argv[1]))}
print("\n".join(sorted(f for f in files if f.startswith(("src/", "tools/", "wan/")) and f.endswith(".cpp")
                       and "hwy/foreach_target.h" not in open(f).read())))
PYTHON
    xargs -n 1 -P "$jobs" clang-tidy --quiet -p "$build" --warnings-as-errors='*' 2>&1 |
    grep -v -E '^[0-9]+ warnings? (generated|treated)|^Suppressed|^Use -header-filter'
  return "$((PIPESTATUS[1]))"
}

spelling() {
  git ls-files -co --exclude-standard -z | xargs -0 -r ls -d 2>/dev/null | xargs -d '\n' codespell --config .codespellrc
}

shell() {
  local file bad=0
  while read -r file; do
    [[ -f $file ]] || continue
    bash -n "$file" && shellcheck "$file" || bad=1
  done < <(git ls-files -co --exclude-standard '*.sh' .ci/run)
  return "$bad"
}

python() {
  git ls-files -co --exclude-standard '*.py' | while read -r file; do
    [[ -f $file ]] || continue
    python3 -c 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")' "$file" || exit 1
  done
}

# One subject a file: past this it has two.
length() {
  scripts/sources.sh | xargs -0 wc -l |
    awk '$2 != "total" && $1 > 600 { print $2 ": " $1 " lines, more than 600"; bad = 1 } END { exit bad }'
}

check clang-format format
check "file length" length
check codespell spelling
check shell shell
check python python
check clang-tidy tidy

if [[ ${#failed[@]} -gt 0 ]]; then
  echo "lint: failed: ${failed[*]}"
  exit 1
fi
