#!/usr/bin/env python3
"""Make examples/data/: the inputs and exact outputs of two attention calls of a Wan transformer.

Builds diffusers' WanTransformer3DModel with the head layout of Wan2.1 T2V-1.3B (12 heads of 128) and
random weights, runs it once on a small latent in bf16, and records what scaled_dot_product_attention
receives in the last block: after RMS norm and, for self-attention, after RoPE.

    pip install torch==2.11.0 diffusers==0.42.1 safetensors==0.8.0 numpy
    python scripts/make_example_data.py

writes wan_self_attention.safetensors and wan_cross_attention.safetensors. Runs on the CPU in under
a minute and needs no download of weights. Two runs on one machine give the same bytes.
"""

import argparse
import json
import math
import pathlib
import struct

import diffusers
import safetensors.torch
import torch
import torch.nn.functional as F
from diffusers import WanTransformer3DModel
from torch.overrides import TorchFunctionMode

DEFAULT_OUTPUT_DIR = pathlib.Path(__file__).resolve().parent.parent / "examples" / "data"
SIZE_LIMIT = 7_500_000  # bytes, both files together: they live in the repository

NUM_HEADS = 12
HEAD_DIM = 128
MODEL_CONFIG = {
    "patch_size": [1, 2, 2],
    "num_attention_heads": NUM_HEADS,
    "attention_head_dim": HEAD_DIM,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 256,
    "freq_dim": 256,
    "ffn_dim": 1024,
    "num_layers": 2,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
    "rope_max_seq_len": 1024,
}
# Frames, height and width differ after patching, so that no two RoPE axes can be confused.
LATENT_SHAPE = (1, 16, 3, 10, 16)
TOKEN_GRID = tuple(n // p for n, p in zip(LATENT_SHAPE[2:], MODEL_CONFIG["patch_size"]))  # 3, 5, 8
TIMESTEP = 625
# Wan always has 512. The pipeline pads shorter prompts with zeros, unmasked; here no row is padding,
# since equal keys would hide errors among them.
TEXT_TOKENS = 512

# Weights of norm_q and norm_k, one level a head. The standard deviation of the logits is about
# the square of the level: from broad heads, which sum many keys, to heads that pick one.
NORM_LEVELS = torch.linspace(1.2, 3.4, NUM_HEADS)


def random_parameters(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Fill every parameter. Plain initialisation would give near-uniform attention, zero biases and
    unit norms, under which wrong wiring of q, k, v or heads hardly shows."""

    def randn(parameter: torch.Tensor) -> torch.Tensor:
        return torch.randn(parameter.shape, generator=generator)

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("norm_q.weight", "norm_k.weight")):
                level = NORM_LEVELS.repeat_interleave(HEAD_DIM)
                value = level * (1 + 0.2 * randn(parameter))
            elif ".norm" in name and name.endswith(".weight"):
                value = 1 + 0.2 * randn(parameter)
            elif name.endswith("scale_shift_table"):
                value = 0.3 * randn(parameter)
            elif parameter.dim() == 1:
                value = 0.2 * randn(parameter)
            else:
                fan_in = parameter[0].numel()
                value = randn(parameter) / math.sqrt(fan_in)
            parameter.copy_(value)


def cast_like_pipeline(model: WanTransformer3DModel) -> None:
    """bf16 but for the modules that loading with torch_dtype=bfloat16 leaves in fp32."""
    keep = set(model._keep_in_fp32_modules)
    for name, parameter in model.named_parameters():
        if keep.isdisjoint(name.split(".")):
            parameter.data = parameter.data.to(torch.bfloat16)


class RecordAttention(TorchFunctionMode):
    """Records the arguments and the result of every scaled_dot_product_attention call, in BSHD."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            named = dict(zip(("query", "key", "value"), args)) | kwargs
            q, k, v = (named.pop(name) for name in ("query", "key", "value"))
            # What is recorded must be all there is: no mask, default scale, as many kv heads as heads.
            assert len(args) <= 3 and not any(named.values()), named
            self.calls.append([t.transpose(1, 2).contiguous() for t in (q, k, v, result)])
        return result


def record_model(seed: int) -> dict[str, list[torch.Tensor]]:
    """Runs the model once; returns q, k, v and the bf16 result of both attentions of the last block."""
    generator = torch.Generator().manual_seed(seed)
    model = WanTransformer3DModel(**MODEL_CONFIG).eval()
    random_parameters(model, generator)
    cast_like_pipeline(model)

    latent = torch.randn(LATENT_SHAPE, generator=generator)
    text = torch.randn(1, TEXT_TOKENS, MODEL_CONFIG["text_dim"], generator=generator)

    with torch.no_grad(), RecordAttention() as record:
        sample = model(
            hidden_states=latent.to(torch.bfloat16),
            timestep=torch.tensor([TIMESTEP]),
            encoder_hidden_states=text.to(torch.bfloat16),
            return_dict=False,
        )[0]
    assert sample.isfinite().all()
    # Each block calls self-attention, then cross-attention.
    assert len(record.calls) == 2 * MODEL_CONFIG["num_layers"]
    return {"self": record.calls[-2], "cross": record.calls[-1]}


def exact_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
    """out [B,Sq,H,D], lse [B,Sq,H] and the probabilities [B,H,Sq,Skv], all float64."""
    q, k, v = (t.to(torch.float64) for t in (q, k, v))
    out = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)

    # The same by hand and in BSHD, so that an error in either shows.
    logits = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    largest = logits.amax(dim=-1, keepdim=True)
    weights = torch.exp(logits - largest)
    total = weights.sum(dim=-1, keepdim=True)
    probabilities = weights / total
    by_hand = torch.einsum("bhqk,bkhd->bqhd", probabilities, v)
    lse = (largest + total.log()).squeeze(-1)

    difference = (out - by_hand).abs().max().item()
    assert difference < 1e-12, difference
    lse_difference = (lse - logits.logsumexp(dim=-1)).abs().max().item()
    assert lse_difference < 1e-12, lse_difference
    print(f"  float64: SDPA and plain softmax differ by {difference:.1e}, lse by {lse_difference:.1e}")
    return out, lse.transpose(1, 2), probabilities


def report_peakedness(probabilities: torch.Tensor) -> None:
    largest = probabilities.amax(dim=-1)
    # xlogy: a probability that underflowed to 0 adds 0.
    entropy = -torch.special.xlogy(probabilities, probabilities).sum(dim=-1)
    by_head = largest.mean(dim=(0, 2)).tolist()
    print(
        f"  mean largest probability {largest.mean():.3f} (uniform: {1 / probabilities.shape[-1]:.4f}), "
        f"mean entropy {entropy.mean():.3f} of log(Skv) = {math.log(probabilities.shape[-1]):.3f}"
    )
    print("  mean largest probability by head: " + " ".join(f"{p:.2f}" for p in by_head))
    assert largest.mean() > 0.3, "attention is too flat to show wrong wiring"


def check_recorded(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, result: torch.Tensor, out: torch.Tensor, kv_tokens: int
) -> None:
    assert q.shape == (1, math.prod(TOKEN_GRID), NUM_HEADS, HEAD_DIM)
    assert k.shape == v.shape == (1, kv_tokens, NUM_HEADS, HEAD_DIM)
    assert all(t.dtype == torch.bfloat16 for t in (q, k, v, result))
    # The model's own bf16 attention must be the same function, or the wrong tensors were recorded.
    error = ((result.double() - out).norm() / out.norm()).item()
    print(f"  torch's bf16 attention: relative error {error:.1e}")
    assert error < 4e-3, error


def metadata(kind: str, seed: int) -> dict[str, str]:
    text = {
        "self": "self-attention (attn1), after RMS norm and RoPE",
        "cross": "text cross-attention (attn2), after RMS norm; keys and values are the projected text",
    }[kind]
    grid = "x".join(map(str, TOKEN_GRID))
    return {
        "description": f"One attention call of a Wan transformer with random weights: {text}. No mask, scale 1/sqrt(D).",
        "q": "[B,Sq,H,D] BF16, as scaled_dot_product_attention received it",
        "k": "[B,Skv,H,D] BF16, likewise",
        "v": "[B,Skv,H,D] BF16, likewise",
        "out": "[B,Sq,H,D] F32, rounded from torch's scaled_dot_product_attention in float64 on the stored q, k, v",
        "lse": "[B,Sq,H] F32, rounded from float64: natural log of the sum over keys of exp(q.k / sqrt(D))",
        "model": f"diffusers WanTransformer3DModel, bf16, block {MODEL_CONFIG['num_layers'] - 1} (counted from 0)",
        "model_config": json.dumps(MODEL_CONFIG),
        "latent": f"{list(LATENT_SHAPE)} as [B,C,F,H,W]: {grid} = {math.prod(TOKEN_GRID)} tokens",
        "text": f"{TEXT_TOKENS} random tokens",
        "timestep": str(TIMESTEP),
        "seed": str(seed),
        "torch": torch.__version__,
        "diffusers": diffusers.__version__,
        "made_by": "scripts/make_example_data.py",
    }


def save(path: pathlib.Path, tensors: dict[str, torch.Tensor], notes: dict[str, str]) -> int:
    data = safetensors.torch.save(tensors, metadata=notes)
    # safetensors promises no order of the metadata, so the header is written again, sorted.
    (header_size,) = struct.unpack_from("<Q", data)
    header = json.dumps(json.loads(data[8 : 8 + header_size]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)  # tensors stay 8-byte aligned
    data = struct.pack("<Q", len(header)) + header + data[8 + header_size :]

    stored = safetensors.torch.load(data)
    assert stored.keys() == tensors.keys()
    assert all(torch.equal(stored[name], tensors[name]) for name in tensors)
    path.write_bytes(data)
    return len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--output-dir", type=pathlib.Path, default=DEFAULT_OUTPUT_DIR)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    # One thread: the order of sums, and so the bytes, must not depend on the number of cores.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    kv_tokens = {"self": math.prod(TOKEN_GRID), "cross": TEXT_TOKENS}
    size = 0
    for kind, (q, k, v, result) in record_model(arguments.seed).items():
        path = arguments.output_dir / f"wan_{kind}_attention.safetensors"
        print(path.name)
        out, lse, probabilities = exact_attention(q, k, v)
        check_recorded(q, k, v, result, out, kv_tokens[kind])
        report_peakedness(probabilities)
        tensors = {
            "q": q,
            "k": k,
            "v": v,
            "out": out.to(torch.float32).contiguous(),
            "lse": lse.to(torch.float32).contiguous(),
        }
        for name, tensor in tensors.items():
            print(f"  {name:3} {list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}")
        written = save(path, tensors, metadata(kind, arguments.seed))
        print(f"  {written} bytes")
        size += written
    assert size <= SIZE_LIMIT, f"{size} bytes is too much for the repository"


if __name__ == "__main__":
    main()
