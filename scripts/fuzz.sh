#!/bin/bash
# Runs each fuzz target for a while:  scripts/fuzz.sh BUILD_DIR SECONDS
# New inputs go to BUILD_DIR/corpus/TARGET; tests/fuzz/corpus/NAME holds the seeds.
set -euo pipefail
build=$1
seconds=$2
cd "$(dirname "$0")/.."

for target in "$build"/bin/*_fuzz; do
  name=$(basename "$target")
  corpus=$build/corpus/$name
  mkdir -p "$corpus"
  seeds=tests/fuzz/corpus/${name%_fuzz}
  inputs=("$corpus")
  [[ ! -d $seeds ]] || inputs+=("$seeds")
  echo "fuzz: $name for $seconds s"
  "$target" -max_total_time="$seconds" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="$build/" "${inputs[@]}"
done
