#!/bin/bash
# Attends the example data, compares with what PyTorch recorded, denoises with a small Wan transformer,
# compares with what diffusers recorded, and times a small grid:
#
#   scripts/demo.sh [PRESET] [JOBS]        `make demo` calls it
#
# Builds the command with the CMake preset (cpu, or cuda where a GPU answers), and writes outputs and
# benchmark samples under results/demo/.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-cpu}
jobs=${2:-$(nproc)}
# A folder of its own, without the tests: what they need may not be installed, and the cache of the
# preset's own folder must not remember that they were left out.
build=build/$preset/demo
results=results/demo
log=$build/demo.log

mkdir -p "$build" "$results"
echo "building the command (log: $log) ..."
if ! { cmake --preset "$preset" -B "$build" -DBATTEN_BUILD_TESTS=OFF &&
  cmake --build "$build" --parallel "$jobs" --target batten_cli; } >"$log" 2>&1; then
  tail -n 40 "$log" >&2
  echo "demo: the build failed, see above and $log" >&2
  exit 1
fi
batten=$build/bin/batten

"$batten" info
have() { # have BACKEND DEVICE: whether it is available there
  "$batten" info --json | python3 -c '
import json, sys
name, device = sys.argv[1:]
for backend in json.load(sys.stdin)["backends"]:
    if backend["name"] == name:
        sys.exit(0 if any(s["device"] == device and s["available"] for s in backend["devices"]) else 1)
sys.exit(1)' "$1" "$2"
}
contenders=(cpu@cpu)
for backend in native cudnn single; do
  if have "$backend" cuda:0; then contenders+=("$backend@cuda:0"); fi
done

for call in self cross; do
  echo
  echo "== Wan ${call}-attention, against PyTorch's float64 output"
  for contender in "${contenders[@]}"; do
    "$batten" attend "examples/data/wan_${call}_attention.safetensors" --backend "${contender%@*}" \
      --device "${contender#*@}" --lse --verify --compare out \
      -o "$results/wan_${call}_${contender%@*}.safetensors"
  done
done

echo
echo "== a small Wan transformer (image to video), against the latents of diffusers' pipeline"
golden=tests/wan/golden/i2v
"$batten" wan denoise --model "$golden" --prompt-embeds "$golden/denoise.safetensors" \
  --image-embeds "$golden/denoise.safetensors" --latents "$golden/denoise.safetensors" --device cpu \
  --width 48 --height 32 --frames 5 --steps 4 --guidance 3 -o "$results/wan_latents.safetensors"
PYTHONPATH=tests/command python3 -B - "$golden/denoise.safetensors" "$results/wan_latents.safetensors" <<'PYTHON'
import pathlib
import sys

import safetensors_io

recorded, made = (safetensors_io.read(pathlib.Path(path))[0] for path in sys.argv[1:])
expected, latents = recorded["expected.unipc"][2], made["latents"][2]
error = (sum((a - b) ** 2 for a, b in zip(latents, expected)) / sum(b * b for b in expected)) ** 0.5
print(f"relative error against diffusers {error:.1e} (bound 1e-04)")
sys.exit(0 if error < 1e-4 else 1)
PYTHON

echo
echo "== a small grid on the CPU"
"$batten" bench --device cpu --backends cpu --batch-size 1 2 --query-length 128 256 --kv-length 512 \
  --num-heads 12 --num-kv-heads 4 --head-size 128 --dtype bfloat16 --warmups 2 --repeats 15 --check \
  --output "$results/bench_cpu.json"
if [[ ${#contenders[@]} -gt 1 ]]; then
  echo
  echo "== the published grid's corners on the GPU"
  "$batten" bench --device cuda:0 --batch-size 4 32 --query-length 128 1024 --kv-length 4096 \
    --num-heads 12 --num-kv-heads 4 --warmups 20 --repeats 60 --check --output "$results/bench_gpu.json"
fi
echo
echo "results are in $results/; next: $batten --help"
