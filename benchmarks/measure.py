"""Timing on a GPU: interleaved rounds of CUDA-graph replays."""

import random

import torch

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
