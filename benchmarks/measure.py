"""Timing on a GPU: interleaved rounds of CUDA-graph replays, or each contender for seconds at the power limit."""

import contextlib
import random
import time

import torch

import measure_rules

CALLS_PER_REPLAY = 20
# A replay of long calls would take minutes; beyond this a graph holds fewer of them.
LONGEST_REPLAY_MS = 60.0


class Replay:
    """A captured graph of `calls` calls of one contender over rotating input sets."""

    def __init__(self, run, sets, calls=None):
        """`run(i)` queues one call on input set i, on the current stream."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(sets):  # loads kernels, builds plans, sizes workspaces
                run(i)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run(0)
            end.record()
            end.synchronize()
            once = start.elapsed_time(end)
        torch.cuda.current_stream().wait_stream(stream)
        self.calls = calls or max(1, min(CALLS_PER_REPLAY, int(LONGEST_REPLAY_MS / max(once, 1e-3))))
        self._run = run  # keeps the tensors that the graph points to
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=stream):
            for i in range(self.calls):
                run(i % sets)
        self._start = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)

    def milliseconds(self):
        """One replay's time per call."""
        self._start.record()
        self.graph.replay()
        self._end.record()
        self._end.synchronize()
        return self._start.elapsed_time(self._end) / self.calls


def interleave(replays, rounds, warmups=2):
    """{name: Replay} -> {name: [milliseconds of each round]}. The order changes every round, so that no
    contender always follows the same neighbour."""
    names = list(replays)
    samples = {name: [] for name in names}
    order = random.Random(0)
    for i in range(warmups + rounds):
        order.shuffle(names)
        for name in names:
            elapsed = replays[name].milliseconds()
            if i >= warmups:
                samples[name].append(elapsed)
    return samples


class Meter:
    """The card's clock and energy, through NVML (the package nvidia-ml-py); without it they are None."""

    def __init__(self):
        self._nvml = None
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
            self._device = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            pynvml.nvmlDeviceGetTotalEnergyConsumption(self._device)
            self._nvml = pynvml

    def megahertz(self):
        return self._nvml and self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM)

    def joules(self):
        return self._nvml and self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._device) / 1e3


def sustain(replays, rounds, seconds):
    """{name: Replay} -> {name: summary of time, clock, power and energy}. Each runs alone for `seconds`, in turns; the
    first tenth of a turn, in which the card settles at its limit, is not counted."""
    meter = Meter()
    turns = {name: [] for name in replays}
    for _ in range(rounds):
        for name, replay in replays.items():
            turns[name].append(_turn(replay, seconds, meter))
    return {name: _sustained(parts) for name, parts in turns.items()}


def _turn(replay, seconds, meter):
    settled = time.perf_counter() + seconds / 10
    while time.perf_counter() < settled:
        replay.milliseconds()
    samples, clocks = [], []
    joules, start = meter.joules(), time.perf_counter()
    while time.perf_counter() < start + seconds * 0.9:
        samples.append(replay.milliseconds())
        clocks.append(meter.megahertz())
    elapsed = time.perf_counter() - start
    joules = None if joules is None else meter.joules() - joules
    return {"samples": samples, "clocks": clocks, "joules": joules, "seconds": elapsed,
            "calls": len(samples) * replay.calls}


def _sustained(turns):
    result = measure_rules.summary([s for turn in turns for s in turn["samples"]])
    if all(turn["joules"] is not None for turn in turns):
        clocks = [c for turn in turns for c in turn["clocks"]]
        joules = sum(turn["joules"] for turn in turns)
        result |= {"sm_clock_mhz": sum(clocks) / len(clocks), "watts": joules / sum(turn["seconds"] for turn in turns),
                   "joules_per_call": joules / sum(turn["calls"] for turn in turns)}
    return result
