"""Compares the arms of `recipe_arms.py`: `python recipe_differences.py TRIALS OUT`.

Every difference is paired over seeds: the LoRAs of one seed share their examples, their order and the halves
of the validation data. OUT gets `differences.csv` and `differences.png`. An arm is equivalent to all layers
if two one-sided paired t tests at the 5% level exclude that it is `MARGIN` points better or worse (TOST,
Schuirmann 1987); with few seeds an arm can be neither different nor equivalent. Holm's correction is over the
differences of a task.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy import stats

from adapter_probe.analysis.significance import holm
from adapter_probe.figures.style import FAINT, GREEN, GRID, INK, paper_style

MARGIN = 1.0  # points
TASKS = {"sst2": "SST-2", "crowdflower_airline": "airline", "mnli": "MNLI"}
PAIRS = (  # an arm and what it is compared with
    ("ablation", "all"), ("lowest", "all"), ("highest", "all"), ("random", "all"), ("ranks", "all"),
    ("ablation", "random"), ("ablation", "lowest"), ("ablation", "highest"),
)  # fmt: skip


def difference(points: pd.DataFrame, arm: str, other: str) -> dict[str, object]:
    """The mean paired difference over seeds, in points, with its 95% interval and both tests."""
    paired = (points[arm] - points[other]).dropna()
    n, mean = len(paired), float(paired.mean())
    error = float(paired.std(ddof=1)) / np.sqrt(n) if n > 1 else np.nan
    reach = stats.t.ppf(0.975, n - 1) * error if n > 1 else np.nan
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.t.sf(abs(mean) / error, n - 1) if n > 1 else np.nan
        nearer = (
            max(stats.t.sf((MARGIN + side * mean) / error, n - 1) for side in (1, -1)) if n > 1 else np.nan
        )
    return {
        "arm": arm, "other": other, "seeds": n, "difference_points": mean, "ci_low_points": mean - reach,
        "ci_high_points": mean + reach, "p": p, "p_equivalent": nearer,
    }  # fmt: skip


def main(trials: Path, out: Path) -> None:
    """Write the table and the figure."""
    table = pd.read_csv(trials)
    rows, scores = [], {}
    for task, own in table.groupby("task", sort=False):
        scores[task] = 100 * own.pivot(index="seed", columns="arm", values="score")
        known = [pair for pair in PAIRS if set(pair) <= set(scores[task].columns)]
        rows += [{"task": task, **difference(scores[task], *pair)} for pair in known]
    out.mkdir(parents=True, exist_ok=True)
    found = pd.DataFrame(rows)
    found.insert(7, "p_holm", found.groupby("task")["p"].transform(lambda own: holm(own.to_numpy())))
    rounded = found.drop(columns=["p_holm", "p", "p_equivalent"]).round(4)  # a small p is not 0
    found.assign(**rounded).to_csv(out / "differences.csv", index=False, lineterminator="\n")
    print(found.to_string(index=False, float_format="{:.3g}".format))
    with paper_style():
        draw(found[found["other"] == "all"], scores).savefig(out / "differences.png")


def draw(found: pd.DataFrame, scores: dict[str, pd.DataFrame]) -> plt.Figure:
    """One panel per task: each arm minus all layers, every seed and the mean with its interval."""
    words = {"ablation": "chosen by the ablation", "lowest": "lowest layers", "highest": "highest layers",
             "random": "random layers", "ranks": "all layers, ranks by share"}  # fmt: skip
    figure, axes = plt.subplots(
        1,
        len(scores),
        figsize=(1.9 + 1.6 * len(scores), 1.9),
        sharey=True,
        layout="constrained",
        squeeze=False,
    )
    for axis, (task, points) in zip(axes[0], scores.items()):
        axis.axvspan(-MARGIN, MARGIN, color=GRID, linewidth=0)
        axis.axvline(0, color=FAINT, linewidth=0.6)
        for place, arm in enumerate(words):
            row = found[(found["task"] == task) & (found["arm"] == arm)]
            if row.empty:
                continue
            seeds = (points[arm] - points["all"]).dropna()
            axis.plot(seeds, np.full(len(seeds), place), ".", color=FAINT, markersize=3, alpha=0.8)
            low, mean, high = row[["ci_low_points", "difference_points", "ci_high_points"]].iloc[0]
            axis.plot([low, high], [place - 0.22] * 2, color=GREEN, linewidth=1.2)
            axis.plot(mean, place - 0.22, "D", color=GREEN, markersize=3)
        axis.set_title(f"{TASKS.get(task, task)}, all layers {points['all'].mean():.1f}%", fontsize=7)
        axis.set_yticks(range(len(words)), list(words.values()), fontsize=7)
        axis.set_ylim(len(words) - 0.5, -0.6)
        axis.tick_params(axis="x", labelsize=7)
        axis.set_xlabel("difference from all layers (points)", fontsize=7, color=INK)
    return figure


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
