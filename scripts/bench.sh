#!/bin/bash
# What `make bench` runs:  scripts/bench.sh BUILD_DIR
# The command's benchmark on the published grid and the library's own benchmarks; JSON goes to results/.
set -euo pipefail
build=$1
cd "$(dirname "$0")/.."
mkdir -p results
device=cpu
lengths=(128 256)
batches=(1 4)
if "$build/bin/batten" info --json | grep -q '"cuda:0"'; then
  device=cuda:0
  lengths=(128 256 512 1024)
  batches=(4 8 16 32)
fi
"$build/bin/batten" bench --device "$device" --batch-size "${batches[@]}" \
  --query-length "${lengths[@]}" --kv-length 4096 --num-heads 12 --num-kv-heads 4 --head-size 128 \
  --dtype bfloat16 --output "results/bench_${device%%:*}.json"
echo "== the cpu backend against the machine's multiply-add peak"
"$build/bin/cpu_attention" --output results/cpu_attention.json
