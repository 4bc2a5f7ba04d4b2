"""Times a denoising step of a Wan transformer in diffusers, with each attention backend in turn.

    python benchmarks/wan_diffusers.py --output results/wan_diffusers.json              # a GPU
    python benchmarks/wan_diffusers.py --compile --output results/wan_compiled.json
    python benchmarks/wan_diffusers.py --device cpu --layers 2 --heads 2 --head-dim 64 --ffn 256 \
        --frames 5 --height 64 --width 64 --dtype float32 --repeats 2

The model is diffusers' WanTransformer3DModel with random weights, by default of Wan 2.1 1.3B's
shape at 480 x 832 pixels and 81 frames: 32,760 tokens, 30 layers of 12 heads of 128. B = 1 is one
sample; B = 2 is what guidance makes of it (both halves in one call).

Contenders, all of them diffusers attention backends, so that all run, and are compiled, the same
way:
  batten:NAME       batten with that backend (auto, cudnn, single, native, cpu)
  sdpa:flash        torch's scaled_dot_product_attention, FlashAttention-2 kernel
  sdpa:cudnn        the same, cuDNN's kernel, on views (diffusers' own _native_cudnn copies q, k, v)
  diffusers:NAME    a backend of diffusers itself, such as _native_cudnn
  fa3               FlashAttention-3, where flash_attn_interface can be imported
  sdpa              torch's own choice

Before anything is timed: at --check-frames frames each contender's output is compared with the same
model whose attention is computed in float32, and each layer of batten's contenders must have been
served by the backend that was named. Steps are then timed with events in interleaved rounds.
"""

import argparse
import contextlib
import datetime
import importlib.util
import platform
import sys
import time

import batten
import batten.diffusers
import results_file
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

# A contender may be this much further from the float32-attention model than torch's attention is.
ERROR_FACTOR = 1.5
# Weights that diffusers keeps in float32 when it loads a Wan checkpoint.
KEPT_FLOAT32 = ("rope", "time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--frames", type=int, default=81, help="frames of the video, 4n + 1")
    parser.add_argument("--height", type=int, default=480, help="pixels, a multiple of 16")
    parser.add_argument("--width", type=int, default=832, help="pixels, a multiple of 16")
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--ffn", type=int, default=8960)
    parser.add_argument("--text-length", type=int, default=512)
    parser.add_argument("--contenders", nargs="+", help="default: all that can run here")
    parser.add_argument("--compile", action="store_true", help="compile the repeated blocks")
    parser.add_argument("--compile-backend", default="inductor")
    parser.add_argument("--warmups", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--check-frames", type=int, default=9)
    parser.add_argument("--output", help="a JSON file")
    options = parser.parse_args()
    problems = [
        (options.frames % 4 != 1 or options.check_frames % 4 != 1, "--frames: expected 4n + 1"),
        (options.height % 16 or options.width % 16, "--height, --width: expected multiples of 16"),
        (options.repeats < 1 or options.warmups < 1, "--repeats, --warmups: expected at least 1"),
        (min(options.batch) < 1, "--batch: expected at least 1"),
    ]
    for wrong, message in problems:
        if wrong:
            parser.error(message)
    return options


# ---- contenders ----------------------------------------------------------------------------------


def sdpa_function(kernel):
    def attend(query, key, value, attn_mask=None, is_causal=False, scale=None):
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        with sdpa_kernel(kernel):
            out = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
            )
        return out.transpose(1, 2)

    return attend


def float32_function(query, key, value, attn_mask=None, is_causal=False, scale=None):
    q, k, v = (tensor.transpose(1, 2).float() for tensor in (query, key, value))
    with sdpa_kernel(SDPBackend.MATH):
        out = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, is_causal=is_causal, scale=scale
        )
    return out.transpose(1, 2).to(query.dtype)


def fa3_function():
    from flash_attn_interface import flash_attn_func

    @torch.library.custom_op("wan_diffusers::fa3", mutates_args=())
    def fa3(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        out = flash_attn_func(query, key, value)
        return out[0] if isinstance(out, tuple) else out

    @fa3.register_fake
    def _(query, key, value):
        return torch.empty_like(query)

    def attend(query, key, value, attn_mask=None, is_causal=False, scale=None):
        if attn_mask is not None or is_causal or scale is not None:
            raise NotImplementedError("this contender serves plain attention only")
        return fa3(query, key, value)

    return attend


def registered(name, function):
    """diffusers' name for a function of this file, registered the way batten registers its own."""
    module = batten.diffusers._dispatch()
    registry, names = module._AttentionBackendRegistry, module.AttentionBackendName
    value = f"wan_diffusers_{name}"
    member = names._value2member_map_.get(value) or batten.diffusers._add_name(names, value)
    registry.register(member)(function)
    return member


def available(options):
    """The names of the contenders that can run here, the best known reference first."""
    if options.device == "cpu":
        return ["sdpa", "batten:auto", "batten:cpu"]
    names = ["sdpa:flash", "sdpa:cudnn", "diffusers:_native_cudnn"]
    if importlib.util.find_spec("flash_attn_interface"):
        names.append("fa3")
    return names + ["batten:auto"] + [f"batten:{name}" for name in batten_backends(options)]


def batten_backends(options):
    served = []
    for entry in batten.info()["backends"]:
        if entry["name"] in ("reference", "cpu"):
            continue
        with contextlib.suppress(batten.Error):
            batten.check(
                device=options.device, dtype=options.dtype, num_heads=options.heads,
                head_dim=options.head_dim, backend=entry["name"],
            )  # fmt: skip
            served.append(entry["name"])
    return served


def use(model, contender):
    """Makes a contender the attention backend of every layer."""
    family, _, name = contender.partition(":")
    batten.diffusers.disable(model)
    if family == "batten":
        return batten.diffusers.enable(model, backend=name or "auto")
    names = batten.diffusers._dispatch().AttentionBackendName
    makers = {
        "sdpa": lambda: names("native"),
        "sdpa:flash": lambda: registered("flash", sdpa_function(SDPBackend.FLASH_ATTENTION)),
        "sdpa:cudnn": lambda: registered("cudnn", sdpa_function(SDPBackend.CUDNN_ATTENTION)),
        "float32": lambda: registered("float32", float32_function),
        "fa3": lambda: registered("fa3", fa3_function()),
    }
    member = _members.get(contender)
    if member is None:
        if family == "diffusers":
            member = names(name)
        elif contender in makers:
            member = makers[contender]()
        else:
            raise SystemExit(f"unknown contender {contender!r}: see --help")
        _members[contender] = member
    layers = batten.diffusers._layers(model)
    for _, layer in layers:
        layer.processor._attention_backend = member
    return len(layers)


_members = {}

# ---- model and inputs ----------------------------------------------------------------------------


def make_model(options):
    from diffusers import WanTransformer3DModel

    torch.manual_seed(0)
    with torch.device(options.device):
        model = WanTransformer3DModel(
            patch_size=(1, 2, 2), num_attention_heads=options.heads,
            attention_head_dim=options.head_dim, in_channels=16, out_channels=16, text_dim=4096,
            freq_dim=256, ffn_dim=options.ffn, num_layers=options.layers,
        )  # fmt: skip
    model = model.to(options.device).eval().requires_grad_(False)
    dtype = getattr(torch, options.dtype)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if tensor.is_floating_point() and not set(name.split(".")) & set(KEPT_FLOAT32):
            tensor.data = tensor.data.to(dtype)
    return model


def make_inputs(options, batch, frames):
    generator = torch.Generator(options.device).manual_seed(1)
    dtype = getattr(torch, options.dtype)
    shape = (batch, 16, (frames - 1) // 4 + 1, options.height // 8, options.width // 8)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, device=options.device).to(dtype)

    return {
        "hidden_states": normal(*shape),
        "timestep": torch.full((batch,), 500, device=options.device),
        "encoder_hidden_states": normal(batch, options.text_length, 4096),
        "return_dict": False,
    }


def tokens(options):
    return ((options.frames - 1) // 4 + 1) * (options.height // 16) * (options.width // 16)


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs)[0]


# ---- checks --------------------------------------------------------------------------------------


def relative_error(out, reference):
    out, reference = out.double(), reference.double()
    return (torch.linalg.vector_norm(out - reference) / torch.linalg.vector_norm(reference)).item()


def check(options, model, contenders, batch):
    """{contender: relative error against the model with float32 attention}; stops at a bad one.

    A kernel of torch's that is not in this build is left out, and said so, unless it was named.
    """
    inputs = make_inputs(options, batch, min(options.check_frames, options.frames))
    use(model, "float32")
    reference = run(model, inputs)
    errors = {}
    for contender in contenders:
        use(model, contender)
        try:
            errors[contender] = relative_error(run(model, inputs), reference)
        except RuntimeError as error:
            if options.contenders or contender.startswith("batten"):
                raise
            print(f"{contender}, B={batch}: left out ({error})", file=sys.stderr)
    native = [error for name, error in errors.items() if not name.startswith("batten")]
    bound = ERROR_FACTOR * max(native) if native else 2e-2
    bound = max(bound, 1e-5)
    for contender, error in errors.items():
        if not error <= bound:
            raise SystemExit(
                f"{contender}, B={batch}: relative error {error:.2e} above {bound:.2e}"
            )
    return errors


def served(options, model, contender, inputs):
    """What batten's receipts say of one step; stops unless they cover every attention layer."""
    layers = use(model, contender)
    with batten.diffusers.record(model) as ran:
        run(model, inputs)
    name = contender.partition(":")[2].partition(":")[0]
    ran.check(None if name in ("", "auto") else name)
    if ran.calls != layers or len(ran.runs) != layers:
        raise SystemExit(f"{contender}: {ran.calls} calls served in {layers} attention layers")
    kernels = {}
    for counter in ran.layers.values():
        for (backend, kernel), count in counter.items():
            kernels[f"{backend}: {kernel}"] = kernels.get(f"{backend}: {kernel}", 0) + count
    return {"attention_layers": layers, "served": kernels,
            "reason": next(iter(ran.receipts.values()))["reason"]}  # fmt: skip


def count_ops(model, inputs):
    """How many batten ops one step runs, by torch's profiler: also true of compiled models."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        run(model, inputs)
    return sum(event.count for event in profile.key_averages() if event.key == "batten::attention")


# ---- timing --------------------------------------------------------------------------------------


def timed(options, model, inputs):
    """Milliseconds of one step."""
    if options.device == "cpu":
        start = time.perf_counter()
        run(model, inputs)
        return (time.perf_counter() - start) * 1e3
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    run(model, inputs)
    end.record()
    end.synchronize()
    return start.elapsed_time(end)


def percentile(samples, q):
    ordered = sorted(samples)
    return ordered[round((len(ordered) - 1) * q)]


def measure(options, model, contenders, batch):
    inputs = make_inputs(options, batch, options.frames)
    samples = {contender: [] for contender in contenders}
    proofs = {}
    for contender in contenders:
        if contender.startswith("batten"):
            proofs[contender] = served(options, model, contender, inputs)
        use(model, contender)
        for _ in range(options.warmups):
            run(model, inputs)
        if contender in proofs and options.compile:
            ops = count_ops(model, inputs)
            if ops != proofs[contender]["attention_layers"]:
                raise SystemExit(f"{contender}, compiled: {ops} batten ops in a step")
            proofs[contender]["compiled_ops"] = ops
    for _ in range(options.repeats):
        for contender in contenders:
            use(model, contender)
            samples[contender].append(timed(options, model, inputs))
    return samples, proofs


def row(options, contender, batch, samples, proof, error):
    return {
        "contender": contender, "batch_size": batch, "tokens": tokens(options),
        "layers": options.layers, "heads": options.heads, "head_size": options.head_dim,
        "dtype": options.dtype, "compiled": options.compile,
        "median_ms": percentile(samples, 0.5), "p20_ms": percentile(samples, 0.2),
        "p80_ms": percentile(samples, 0.8), "samples_ms": samples,
        "relative_error": error, "receipts": proof,
    }  # fmt: skip


def environment(options):
    import diffusers

    cuda = options.device != "cpu"
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "cpu": platform.processor() or platform.machine(),
        "torch": torch.__version__, "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "diffusers": diffusers.__version__,
        "batten": batten.__version__,
    }  # fmt: skip


def table(rows):
    head = ("contender", "B", "median ms", "p20", "p80", "rel error")
    print("{:<26} {:>2} {:>10} {:>9} {:>9} {:>10}  served by".format(*head))
    for entry in rows:
        served_by = (entry["receipts"] or {"served": {}})["served"]
        print(
            f"{entry['contender']:<26} {entry['batch_size']:>2} {entry['median_ms']:>10.2f} "
            f"{entry['p20_ms']:>9.2f} {entry['p80_ms']:>9.2f} {entry['relative_error']:>10.2e}  "
            + ", ".join(f"{count} x {name}" for name, count in served_by.items())
        )


def ratios(rows):
    """batten against the best of torch's kernels, per batch size."""
    for batch in dict.fromkeys(entry["batch_size"] for entry in rows):
        median = {e["contender"]: e["median_ms"] for e in rows if e["batch_size"] == batch}
        others = [name for name in median if name.startswith(("sdpa", "diffusers"))]
        best = min(others, key=median.get, default=None)
        for name in median:
            if best and name.startswith("batten"):
                speed = median[best] / median[name]
                print(f"B={batch}: {name} is {speed:.3f}x as fast as {best}")


def main():
    options = parse()
    model = make_model(options)
    contenders = options.contenders or available(options)
    errors = {batch: check(options, model, contenders, batch) for batch in options.batch}
    if options.compile:
        torch._dynamo.config.recompile_limit = 64
        model.compile_repeated_blocks(
            fullgraph=True, dynamic=False, backend=options.compile_backend
        )
    rows = []
    for batch in options.batch:
        contenders = list(errors[batch])
        samples, proofs = measure(options, model, contenders, batch)
        rows += [row(options, contender, batch, samples[contender], proofs.get(contender),
                     errors[batch][contender]) for contender in contenders]  # fmt: skip
    table(rows)
    ratios(rows)
    if options.output:
        results_file.write(options.output, {
            "environment": environment(options), "timing_scope": "step",
            "warmups": options.warmups, "repeats": options.repeats, "results": rows,
        })  # fmt: skip


if __name__ == "__main__":
    main()
