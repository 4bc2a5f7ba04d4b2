"""What may be concluded from samples of time: percentiles, and ratios with their interval."""

import math
import statistics


def percentile(sorted_values, fraction):
    """The published benchmark's rule."""
    return sorted_values[round((len(sorted_values) - 1) * fraction)]


def ratio(slower, faster):
    """Median of the rounds' ratios slower/faster, with its 95 % interval from order statistics (binomial, no
    assumption about the distribution)."""
    ratios = sorted(s / f for s, f in zip(slower, faster))
    n = len(ratios)
    reach = int(math.ceil(0.98 * math.sqrt(n)))  # 1.96 * sqrt(n) / 2
    low, high = max(0, n // 2 - reach), min(n - 1, n // 2 + reach)
    return {"median": statistics.median(ratios), "low": ratios[low], "high": ratios[high]}


def summary(samples):
    ordered = sorted(samples)
    return {
        "median_ms": statistics.median(ordered),
        "p20_ms": percentile(ordered, 0.2),
        "p80_ms": percentile(ordered, 0.8),
        "samples_ms": samples,
    }
