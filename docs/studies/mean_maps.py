"""The mean of maps of several seeds from their tables. `python mean_maps.py OUT TASK SEED.csv SEED.csv ...`.

Where predictions are kept, `adapter-probe figures SEED ... --average` computes the same with the noise of the
mean over examples. The tables of single seeds have no predictions, so the examples' half-width of the mean is
taken to be the mean of the seeds' half-widths, which it cannot exceed by much, and the interval is rather too
wide (see `adapter_probe.analysis.significance.over_seeds`).
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.special import ndtri, stdtrit

from adapter_probe.analysis.comparing import AverageRecord
from adapter_probe.analysis.removable import bounds_of_chosen
from adapter_probe.analysis.significance import ALPHA, holm
from adapter_probe.figures import joint
from adapter_probe.figures.venues import VENUES, FigureOptions


def tested(table: pd.DataFrame, n: int, below: np.ndarray, above: np.ndarray) -> pd.DataFrame:
    """A table of means with interval and test, from `sd_points` over seeds and half-widths over examples."""
    mean, error = table["delta_points"].to_numpy(), table["sd_points"].to_numpy() / np.sqrt(n)
    own = stdtrit(n - 1, 0.975) * error
    nearer = np.where(mean > 0, below, above) / ndtri(0.975)
    tails = np.geomspace(1e-12, 0.5, 4000)[:, None]  # on a fine grid, where the interval ends at 0
    reach = np.hypot(stdtrit(n - 1, tails) * error, ndtri(tails) * nearer)
    p = 2 * np.where(reach >= np.abs(mean), tails, tails[0]).max(axis=0)
    adjusted = holm(p)

    def low_at(tails: np.ndarray) -> np.ndarray:
        by_seeds, by_examples = stdtrit(n - 1, 1 - tails) * error, ndtri(1 - tails) / ndtri(0.975) * below
        return mean - np.hypot(by_seeds, by_examples)

    return table.assign(
        ci_low_points=mean - np.hypot(own, below), ci_high_points=mean + np.hypot(own, above), p_value=p,
        p_holm=adjusted, significant=adjusted < ALPHA, bound_low_points=bounds_of_chosen(table, low_at),
    )  # fmt: skip


def reaches(seeds: list[pd.DataFrame]) -> list[np.ndarray]:
    """Mean half-widths of the seeds' intervals, below and above."""
    ends = ("ci_low_points", "ci_high_points")
    return [np.mean([np.abs(one["delta_points"] - one[end]) for one in seeds], axis=0) for end in ends]


def mean_map(seeds: list[pd.DataFrame]) -> pd.DataFrame:
    """The table ``average.csv`` from ``spans.csv`` of every seed."""
    deltas = np.stack([one["delta_points"] for one in seeds])  # [seeds, spans]
    below, above = reaches(seeds)
    table = seeds[0][["first", "last", "n_layers"]].assign(
        score=np.mean([one["score"] for one in seeds], axis=0), delta_points=deltas.mean(axis=0),
        sd_points=deltas.std(axis=0, ddof=1), min_points=deltas.min(axis=0), max_points=deltas.max(axis=0),
    )  # fmt: skip
    table = tested(table, len(seeds), below, above)
    return table.assign(n_studies=len(seeds), n_examples=seeds[0]["n_examples"])


def main(out: Path, task: str, *paths: str) -> None:
    """Write the table and draw it."""
    seeds = [pd.read_csv(path) for path in paths]
    table, names = mean_map(seeds), tuple(Path(path).stem.replace("-seed", "") for path in paths)
    intact = tuple(float((one["score"] - one["delta_points"] / 100).iloc[0]) for one in seeds)
    whole = table["n_layers"].idxmax()
    removed = tuple(float(one["delta_points"][whole]) for one in seeds)
    deltas = np.stack([one["delta_points"] for one in seeds])
    n = int(table["n_examples"].iloc[0])
    record = AverageRecord(
        names, table, "accuracy", n, intact, {}, task=task, removed_points=removed, deltas=deltas
    )
    options = FigureOptions(VENUES["paper"], paper=True, formats=("png",))
    for drawing in joint.drawings([record], options):
        drawing.write(out, options)
    print(out, int(table["significant"].sum()), "of", len(table), "beyond chance;", names, intact)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *sys.argv[3:])
