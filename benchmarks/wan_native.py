"""batten's native Wan transformer against diffusers' WanTransformer3DModel: the same weights, the same run.

    python benchmarks/wan_native.py --batten build/cuda/bin/batten --output results/wan_native.json         # a GPU
    python benchmarks/wan_native.py --batten build/cpu/bin/batten --device cpu --layers 2 --heads 2 --head-dim 64 \
        --ffn 256 --text-dim 64 --width 64 --height 64 --frames 5 --check-frames 5 --repeats 1 --no-compile

Makes a model of Wan 2.1 1.3B's shape with random weights and saves it as a checkpoint. First, at --check-frames, the
velocity of one forward: of diffusers in float32, of diffusers in bfloat16 and of `batten wan denoise` (one step of
Euler from sigma 1, whose difference is the velocity). Then forwards are timed in turns: diffusers with compiled blocks
and each kernel of --attention, `batten wan bench` on the checkpoint, diffusers again. The kernels are contenders of
wan_diffusers.py, beside this file, which needs the batten package.
"""

import argparse
import contextlib
import datetime
import importlib.util
import json
import pathlib
import platform
import statistics
import subprocess
import sys
import tempfile
import time

import diffusers
import torch
import wan_diffusers
from safetensors.torch import load_file, save_file

# Weights that diffusers keeps in float32 when it loads a Wan checkpoint.
KEPT_FLOAT32 = ("time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")
# batten may be this much further from the float32 model than diffusers in bfloat16 is.
ERROR_FACTOR = 1.5


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batten", required=True, help="the command")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--ffn", type=int, default=8960)
    parser.add_argument("--text-dim", type=int, default=4096)
    parser.add_argument("--width", type=int, default=832)
    parser.add_argument("--height", type=int, default=480)
    parser.add_argument("--frames", type=int, default=81)
    parser.add_argument("--check-frames", type=int, default=9)
    parser.add_argument("--attention", nargs="+", metavar="KERNEL",
                        help="of diffusers [sdpa:cudnn, and fa3 where it can be imported; sdpa on a CPU]")
    parser.add_argument("--backends", nargs="+", default=["auto"], help="of batten")
    parser.add_argument("--bench-options", nargs="*", default=[], help="more options of `batten wan bench`, without --")
    parser.add_argument("--warmups", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-compile", action="store_true")
    parser.add_argument("--folder", help="for the checkpoint [a temporary one]")
    parser.add_argument("--output", help="a JSON file")
    options = parser.parse_args()
    options.attention = options.attention or available(options)
    return options


def available(options):
    """The kernels that diffusers is timed with, unless they are named."""
    if options.device == "cpu":
        return ["sdpa"]
    return ["sdpa:cudnn"] + (["fa3"] if importlib.util.find_spec("flash_attn_interface") else [])


@torch.no_grad()
def make_model(options):
    """In float32 on the device, with values that bfloat16 holds exactly."""
    torch.manual_seed(0)
    with torch.device(options.device):
        model = diffusers.WanTransformer3DModel(
            num_attention_heads=options.heads, attention_head_dim=options.head_dim, num_layers=options.layers,
            ffn_dim=options.ffn, text_dim=options.text_dim)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 and "norm" in name and name.endswith("weight"):
            parameter.add_(0.2 * torch.randn_like(parameter))
        elif parameter.ndim == 1:
            parameter.copy_(0.02 * torch.randn_like(parameter))
        parameter.copy_(parameter.bfloat16().float())
    return model.eval()


def save_checkpoint(model, folder):
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.bfloat16().cpu().contiguous() for name, tensor in model.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")
    config = {key: value for key, value in model.config.items() if not key.startswith("_")}
    (folder / "config.json").write_text(json.dumps(config))


def to_bfloat16(model):
    for name, parameter in model.named_parameters():
        if not any(part in name for part in KEPT_FLOAT32):
            parameter.data = parameter.data.bfloat16()
    return model


def inputs(options, frames, dtype):
    generator = torch.Generator().manual_seed(1)
    latents = torch.randn(1, 16, (frames - 1) // 4 + 1, options.height // 8, options.width // 8, generator=generator)
    text = torch.randn(1, 512, options.text_dim, generator=generator)
    text[:, 60:] = 0
    return latents, text.to(dtype).float()


def forward(model, options, latents, text, timestep):
    dtype = model.proj_out.weight.dtype
    device = options.device
    return model(latents.to(device, dtype), torch.tensor([timestep], device=device), text.to(device, dtype),
                 return_dict=False)[0]


def synchronize(options):
    if options.device != "cpu":
        torch.cuda.synchronize()


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\nexit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def batten_velocity(options, folder, latents, text):
    save_file({"prompt_embeds": text}, folder / "prompt.safetensors")
    save_file({"latents": latents}, folder / "start.safetensors")
    run([options.batten, "wan", "denoise", "--model", folder, "--prompt-embeds", folder / "prompt.safetensors",
         "--latents", folder / "start.safetensors", "-o", folder / "out.safetensors", "--width", options.width,
         "--height", options.height, "--frames", options.check_frames, "--scheduler", "euler", "--steps", 1, "--shift", 1,
         "--guidance", 1, "--device", options.device])
    return latents - load_file(folder / "out.safetensors")["latents"]


def relative(got, expected):
    return ((got.float().cpu() - expected).norm() / expected.norm()).item()


@torch.no_grad()
def check(model, options, folder):
    latents, text = inputs(options, options.check_frames, torch.bfloat16)
    # What both are given is the same, to the last bit.
    latents = latents.bfloat16().float()
    expected = forward(model, options, latents, text, 1000.0).float().cpu()
    errors = {"batten": relative(batten_velocity(options, folder, latents, text), expected)}
    to_bfloat16(model)
    others = {}
    for attention in options.attention:
        wan_diffusers.use(model, attention)
        others[attention] = relative(forward(model, options, latents, text, 1000.0), expected)
    errors["diffusers_bfloat16"] = others
    errors["passed"] = errors["batten"] <= ERROR_FACTOR * max(others.values())
    listed = ", ".join(f"{error:.2e} ({attention})" for attention, error in others.items())
    print(f"against diffusers in float32, {options.check_frames} frames: batten {errors['batten']:.2e}, diffusers in "
          f"bfloat16 {listed}", flush=True)
    return errors


@torch.no_grad()
def time_diffusers(model, options, attention):
    """Seconds of each forward."""
    wan_diffusers.use(model, attention)
    latents, text = inputs(options, options.frames, torch.bfloat16)
    dtype = model.proj_out.weight.dtype
    latents, text = latents.to(options.device, dtype), text.to(options.device, dtype)
    timestep = torch.tensor([500.0], device=options.device)
    samples = []
    for i in range(options.warmups + options.repeats):
        synchronize(options)
        start = time.perf_counter()
        model(latents, timestep, text, return_dict=False)
        synchronize(options)
        if i >= options.warmups:
            samples.append(time.perf_counter() - start)
    return samples


def time_batten(options, folder):
    output = folder / "bench.json"
    extra = [f"--{word}" if not word[0].isdigit() else word for word in options.bench_options]
    print(run([options.batten, "wan", "bench", "--model", folder, "--width", options.width, "--height", options.height,
               "--frames", options.frames, "--warmups", options.warmups, "--repeats", options.repeats, "--device",
               options.device, "-o", output, *extra, "--backends", *options.backends]), end="", flush=True)
    return json.loads(output.read_text())


def main():
    options = parse()
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(options.folder or stack.enter_context(tempfile.TemporaryDirectory()))
        model = make_model(options)
        save_checkpoint(model, folder)
        errors = check(model, options, folder)
        if not options.no_compile:
            model.compile_repeated_blocks(fullgraph=True, dynamic=False)
        before = {attention: time_diffusers(model, options, attention) for attention in options.attention}
        if options.device != "cpu":
            torch.cuda.empty_cache()
        bench = time_batten(options, folder)
        after = {attention: time_diffusers(model, options, attention) for attention in options.attention}
    others = {}
    for attention in options.attention:
        first, second = statistics.median(before[attention]), statistics.median(after[attention])
        seconds = statistics.median(before[attention] + after[attention])
        others[attention] = {"before": before[attention], "after": after[attention], "median": seconds}
        print(f"diffusers{'' if options.no_compile else ', compiled'}, {attention}: {seconds:.4f} s a forward "
              f"({first:.4f} before, {second:.4f} after batten)")
    for result in bench["results"]:
        own = result["seconds_per_forward"]
        result["speedup_over_diffusers"] = {name: other["median"] / own for name, other in others.items()}
        listed = ", ".join(f"{ratio:.3f}x as fast as with {name}"
                           for name, ratio in result["speedup_over_diffusers"].items())
        print(f"batten, {result['backend']}: {own:.4f} s, {listed}")
    report = {
        "command": " ".join(sys.argv), "date": datetime.datetime.now(datetime.timezone.utc).isoformat(),
        "python": platform.python_version(), "torch": torch.__version__, "diffusers": diffusers.__version__,
        "compiled": not options.no_compile, "errors": errors,
        "diffusers_seconds": others, "batten": bench,
    }
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0 if errors["passed"] else 5


if __name__ == "__main__":
    sys.exit(main())
