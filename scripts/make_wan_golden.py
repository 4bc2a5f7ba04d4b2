#!/usr/bin/env python3
"""Writes the golden files of the Wan tests, with diffusers' WanTransformer3DModel and schedulers.

    python scripts/make_wan_golden.py tests/wan/golden        # PyTorch, diffusers and safetensors

For each small model a diffusers folder (config.json, diffusion_pytorch_model.safetensors) and golden.safetensors:
inputs, output and the values on the way, all computed in float32 on the CPU. Weights are rounded to bfloat16 first, in
which they are stored. Softmax is peaked: with weights of the usual size all keys weigh the same, and a model with its
heads or its tokens in the wrong order passes. Everything that a fresh model has at 0 or 1 is random.

denoise.safetensors: what `batten wan denoise` is given, and the latents that diffusers' pipelines make of it: the loop of
pipeline_wan.py and pipeline_wan_i2v.py, without text encoder and VAE.

schedules.safetensors: sigmas and timesteps of the schedulers, and the latents after each of 6 steps.
"""

import json
import pathlib
import sys

import diffusers
import numpy
import torch
from safetensors.torch import load_file, save_file

# Frames, rows and columns differ, so that no two can be exchanged unnoticed.
SMALL = dict(patch_size=(1, 2, 2), num_attention_heads=3, attention_head_dim=16, in_channels=4, out_channels=4,
             text_dim=24, freq_dim=32, ffn_dim=40, num_layers=2, rope_max_seq_len=64)
MODELS = {
    # name: (configuration, latent [frames, rows, columns], batch, text tokens, image tokens)
    "t2v": (SMALL, (3, 8, 12), 2, 512, 0),
    "t2v_head128": ({**SMALL, "num_attention_heads": 1, "attention_head_dim": 128, "num_layers": 1}, (2, 6, 4), 1, 9, 0),
    "i2v": ({**SMALL, "num_attention_heads": 2, "in_channels": 12, "image_dim": 20, "added_kv_proj_dim": 32},
            (2, 4, 6), 2, 512, 7),
    "flf2v": ({**SMALL, "num_attention_heads": 2, "in_channels": 12, "image_dim": 20, "added_kv_proj_dim": 32,
               "num_layers": 1, "pos_embed_seq_len": 14}, (2, 4, 6), 1, 512, 14),
    "ti2v": ({**SMALL, "num_attention_heads": 2}, (3, 4, 8), 2, 512, 0),
}


def randomize(model, generator):
    def normal(parameter, mean, spread):
        parameter.copy_(mean + spread * torch.randn(parameter.shape, generator=generator))

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm_q.weight", "norm_k.weight", "norm_added_k.weight")):
                normal(parameter, 3.0, 0.6)  # logits of the order of 9 sqrt(head dim): peaked
            elif name.endswith("scale_shift_table"):
                normal(parameter, 0.0, 0.5)
            elif name.endswith("bias"):
                normal(parameter, 0.0, 0.3)
            elif parameter.ndim == 1:
                normal(parameter, 1.0, 0.4)
            elif name.endswith("pos_embed"):
                normal(parameter, 0.0, 0.8)
            else:
                normal(parameter, 0.0, 1.2 / parameter[0].numel() ** 0.5)
            parameter.copy_(parameter.bfloat16().float())


class Taps:
    """Records what passes through the model, under the names of batten's taps."""

    def __init__(self, model, values):
        embedder = model.condition_embedder
        model.patch_embedding.register_forward_hook(
            lambda _, args, out: values.update(patch=out.flatten(2).transpose(1, 2)))
        embedder.register_forward_hook(self.embedder(values))
        for i, block in enumerate(model.blocks):
            # What a norm is given is the residual stream.
            block.norm2.register_forward_pre_hook(self.input(values, f"blocks.{i}.attn1"))
            block.norm3.register_forward_pre_hook(self.input(values, f"blocks.{i}.attn2"))
            block.register_forward_hook(self.output(values, f"blocks.{i}.ffn"))

    @staticmethod
    def embedder(values):
        def hook(_, args, out):
            values.update(temb=out[0], time_proj=out[1], context=out[2])
            if out[3] is not None:
                values["context_image"] = out[3]
        return hook

    @staticmethod
    def input(values, name):
        return lambda _, args: values.update({name: args[0]})

    @staticmethod
    def output(values, name):
        return lambda _, args, out: values.update({name: out})


def timesteps_of(name, model, batch, latent):
    if name != "ti2v":
        return torch.tensor([937.0, 412.0][:batch])
    # A given first frame: its tokens are told 0.
    pt, ph, pw = model.config.patch_size
    tokens = latent[0] // pt, (latent[1] // ph) * (latent[2] // pw)
    return torch.tensor([0.0] + [873.0] * (tokens[0] - 1)).repeat_interleave(tokens[1]).expand(batch, -1)


@torch.no_grad()
def write_model(folder, name, seed):
    config, latent, batch, text_tokens, image_tokens = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    model = diffusers.WanTransformer3DModel(**config).eval()
    randomize(model, generator)

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    inputs = {"latents": normal(batch, config["in_channels"], *latent)}
    text = normal(batch, text_tokens, config["text_dim"])
    if text_tokens == 512:  # prompts end early, and zeros follow: they take part all the same
        text[:, 12:] = 0
        inputs["text"] = text[:, :12]
    else:
        inputs["text"] = text
    inputs["timesteps"] = timesteps_of(name, model, batch, latent)
    image = None
    if image_tokens:
        image = inputs["image"] = normal(batch, image_tokens, config["image_dim"])
        if "pos_embed_seq_len" in config:  # one row of the batch for each of the two images
            image = image.reshape(2 * batch, image_tokens // 2, -1)

    taps = {}
    Taps(model, taps)
    output = model(inputs["latents"], inputs["timesteps"], text, image, return_dict=False)[0]
    if text_tokens == 512:
        taps["context"] = taps["context"][:, :13]
    folder = folder / name
    folder.mkdir(parents=True, exist_ok=True)
    stated = {"_class_name": "WanTransformer3DModel", "_diffusers_version": diffusers.__version__}
    stated.update({k: v for k, v in model.config.items() if not k.startswith("_")})
    (folder / "config.json").write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")
    weights = {k: v.bfloat16().contiguous() for k, v in model.state_dict().items()}
    save_file(weights, folder / "diffusion_pytorch_model.safetensors", {"format": "pt"})
    tensors = {"output": output, **inputs, **{f"tap.{k}": v for k, v in taps.items()}}
    save_file({k: v.float().contiguous() for k, v in tensors.items()}, folder / "golden.safetensors",
              {"made_by": f"diffusers {diffusers.__version__}, torch {torch.__version__}"})
    print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, output rms {output.square().mean().sqrt():.3f}")


@torch.no_grad()
def denoised(model, start, prompt, negative, image, condition, scheduler, guidance):
    first_frame = condition is not None and condition.shape[2] == 1  # Wan2.2 5B
    latents = start.clone()
    if first_frame:
        mask = torch.ones(1, 1, *latents.shape[2:])
        mask[:, :, 0] = 0
    for step, timestep in enumerate(scheduler.timesteps):
        timesteps, given = timestep.expand(len(latents)), latents
        if first_frame:
            given = (1 - mask) * condition + mask * latents
            _, ph, pw = model.config.patch_size
            timesteps = (mask[0][0][:, ::ph, ::pw] * timestep).flatten().expand(len(latents), -1)
        elif condition is not None:
            given = torch.cat([latents, condition], dim=1)
        velocity = model(given, timesteps, prompt, image, return_dict=False)[0]
        if guidance > 1:
            without = model(given, timesteps, negative, image, return_dict=False)[0]
            velocity = without + guidance * (velocity - without)
        latents = scheduler.step(velocity, timestep, latents, return_dict=False)[0]
    return (1 - mask) * condition + mask * latents if first_frame else latents


def write_denoise(folder, name, seed):
    """4 steps of guidance 3 on what write_model() has written."""
    folder = folder / name
    model = diffusers.WanTransformer3DModel(**MODELS[name][0]).eval()
    model.load_state_dict({k: v.float() for k, v in load_file(folder / "diffusion_pytorch_model.safetensors").items()})
    generator = torch.Generator().manual_seed(seed)
    latent = MODELS[name][1]
    channels = model.config.out_channels

    def normal(*shape):
        return torch.randn(shape, generator=generator)

    tensors = {"latents": normal(1, channels, *latent), "prompt_embeds": normal(1, 9, model.config.text_dim),
               "negative_prompt_embeds": normal(1, 6, model.config.text_dim)}
    if name == "i2v":
        tensors["condition"] = normal(1, model.config.in_channels - channels, *latent)
        tensors["image_embeds"] = normal(1, 7, model.config.image_dim)
    elif name == "ti2v":
        tensors["condition"] = normal(1, channels, 1, *latent[1:])
    texts = [torch.nn.functional.pad(tensors[key], (0, 0, 0, 512 - tensors[key].shape[1]))
             for key in ("prompt_embeds", "negative_prompt_embeds")]
    for scheduler, solver in (
        ("unipc", diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)),
        ("euler", diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0)),
    ):
        solver.set_timesteps(4)
        tensors[f"expected.{scheduler}"] = denoised(model, tensors["latents"], *texts, tensors.get("image_embeds"),
                                                    tensors.get("condition"), solver, 3.0)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "denoise.safetensors")


def velocity_of(latents, timestep):
    """Stands in for the model: smooth, and different at each step."""
    return torch.tanh(1.3 * latents) + 0.4 * torch.cos(latents.flip(-1) + timestep / 300.0)


def write_schedules(folder, steps=6):
    tensors = {}
    start = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(11))
    tensors["start"] = start.clone()
    for scheduler, shift in (("unipc", 3.0), ("unipc", 5.0), ("unipc", 1.0), ("euler", 3.0), ("euler", 1.0)):
        if scheduler == "unipc":
            solver = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True,
                                                       flow_shift=shift, num_train_timesteps=1000)
        else:
            solver = diffusers.FlowMatchEulerDiscreteScheduler(shift=shift)
        for count in (1, 2, 4, steps, 50):
            solver.set_timesteps(count)
            name = f"{scheduler}.shift{shift:g}.steps{count}"
            tensors[f"{name}.sigmas"] = solver.sigmas.float().clone()
            tensors[f"{name}.timesteps"] = solver.timesteps.float().clone()
            if count == 50:
                continue
            latents, trace = start.clone(), []
            for timestep in solver.timesteps:
                latents = solver.step(velocity_of(latents, timestep.float()), timestep, latents, return_dict=False)[0]
                trace.append(latents)
            tensors[f"{name}.trace"] = torch.stack(trace)
    # Wan's own grid (wan/utils/fm_solvers_unipc.py): from 0.999 to 0.
    for shift, count in ((5.0, 4), (3.0, 50)):
        sigmas = numpy.linspace(0.999, 0, count + 1)[:-1]
        sigmas = shift * sigmas / (1 + (shift - 1) * sigmas)
        name = f"wan.shift{shift:g}.steps{count}"
        tensors[f"{name}.sigmas"] = torch.tensor(numpy.append(sigmas, 0).astype(numpy.float32))
        tensors[f"{name}.timesteps"] = torch.tensor((1000 * sigmas).astype(numpy.int64)).float()
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "schedules.safetensors")
    print(f"schedules: {len(tensors)} tensors")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed, name in enumerate(MODELS):
        write_model(folder, name, seed)
    for seed, name in enumerate(("t2v", "i2v", "ti2v")):
        write_denoise(folder, name, 300 + seed)
    write_schedules(folder)


if __name__ == "__main__":
    main()
