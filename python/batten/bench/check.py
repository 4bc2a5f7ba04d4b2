"""A float64 reference of sampled rows."""

from __future__ import annotations

import torch

CHECKED_ROWS = 256
LIMITS = {torch.bfloat16: 4e-3, torch.float16: 8e-4, torch.float32: 2e-6}
# torch's own kernels round the probabilities and the output to the inputs' dtype.
PEER_FACTOR = 2.0


def relative_error(q, k, v, out, causal: bool) -> float:
    """‖out - float64 attention‖ / ‖float64 attention‖ over rows spread from the first to the last
    of every sample and head. q, out: [B, Sq, Hq, D]; k, v: [B, Skv, Hkv, D]."""
    rows = (
        torch.linspace(0, q.shape[1] - 1, min(CHECKED_ROWS, q.shape[1]))
        .long()
        .unique()
        .to(q.device)
    )
    group = q.shape[2] // k.shape[2]
    keys = torch.arange(k.shape[1], device=q.device)
    error = norm = 0.0
    for b in range(q.shape[0]):
        for h in range(q.shape[2]):
            kh, vh = (t[b, :, h // group].double() for t in (k, v))
            scores = q[b, rows, h].double() @ kh.T / q.shape[3] ** 0.5
            if causal:
                scores.masked_fill_(
                    keys[None] > rows[:, None] + (k.shape[1] - q.shape[1]), float("-inf")
                )
            expected = torch.softmax(scores, -1) @ vh
            error += (out[b, rows, h].double() - expected).square().sum().item()
            norm += expected.square().sum().item()
    return (error / norm) ** 0.5
