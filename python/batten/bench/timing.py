"""How time is taken: event pairs or graph replays on a GPU, a clock on the CPU; contenders in
turns."""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

import torch

CALLS_PER_REPLAY = 20
LONGEST_REPLAY_MS = 60.0
HOST_CALLS = 32
# Event pairs are read back in blocks: waiting after each call would add the host's time to the
# device's.
BLOCK = 25


def percentile(ordered: list[float], fraction: float) -> float:
    """The published benchmark's rule, of sorted values."""
    return ordered[round((len(ordered) - 1) * fraction)]


def measure(
    runs: dict[str, Any], sets: int, device: torch.device, scope: str, warmups: int, repeats: int
) -> dict[str, list[float]]:
    """{contender: milliseconds of each call}; runs: {contender: run(i)}. The order changes in every
    turn."""
    for run in runs.values():
        for i in range(warmups):
            run(i % sets)
    _wait(device)
    if device.type == "cpu":
        timers = {name: _Clock(run) for name, run in runs.items()}
    else:
        timer = _Replay if scope == "graph" else _Events
        timers = {name: timer(run, sets) for name, run in runs.items()}
    names = list(timers)
    order = random.Random(0)
    for i in range(repeats):
        order.shuffle(names)
        for name in names:
            timers[name].sample(i % sets)
        if (i + 1) % BLOCK == 0:
            _wait(device)
    _wait(device)
    return {name: timers[name].milliseconds() for name in runs}


def host_microseconds(run: Any, sets: int, device: torch.device) -> float | None:
    """Median time until a call returns, without waiting for the device; None on the CPU, where the
    call is the work."""
    if device.type == "cpu":
        return None
    times = []
    for i in range(HOST_CALLS):
        if i % 8 == 0:
            _wait(device)  # a full launch queue would make the host wait
        begin = time.perf_counter()
        run(i % sets)
        times.append(time.perf_counter() - begin)
    _wait(device)
    return statistics.median(times) * 1e6


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class _Clock:
    def __init__(self, run):
        self._run = run
        self._samples = []

    def sample(self, i):
        begin = time.perf_counter()
        self._run(i)
        self._samples.append((time.perf_counter() - begin) * 1e3)

    def milliseconds(self):
        return self._samples


class _Events:
    def __init__(self, run, sets):
        del sets
        self._run = run
        self._pairs = []

    def sample(self, i):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self._run(i)
        end.record()
        self._pairs.append((start, end))

    def milliseconds(self):
        return [start.elapsed_time(end) for start, end in self._pairs]


class _Replay:
    def __init__(self, run, sets):
        probe = _Events(run, sets)
        probe.sample(0)
        torch.cuda.synchronize()
        once = max(probe.milliseconds()[0], 1e-3)
        self.calls = max(1, min(CALLS_PER_REPLAY, int(LONGEST_REPLAY_MS / once)))
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for i in range(self.calls):
                run(i % sets)
        self._events = _Events(lambda i: self._graph.replay(), sets)

    def sample(self, i):
        self._events.sample(i)

    def milliseconds(self):
        return [ms / self.calls for ms in self._events.milliseconds()]
