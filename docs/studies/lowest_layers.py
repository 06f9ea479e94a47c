"""Time saved against score lost, lowest adapters off: `python lowest_layers.py CHECKPOINT BASE ROWS OUT`.

The adapters of the lowest n layers are removed (`adapter-probe prune`), for every n, and the forward pass of
each pruned checkpoint is timed on the same texts: in every round once each, in an order drawn anew, on one
thread. OUT gets `lowest-layers.csv` and `.png`: the score on all rows, the change of it with its interval
from the ablation's bootstrap, and the median time in seconds per 1,000 texts, also as a ratio to that of all
adapters within the round.
"""

import random
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch

import adapter_probe as ap
from adapter_probe.figures.style import FAINT, GREEN, INK, paper_style

ROUNDS, TEXTS, BATCH = 15, 256, 32


def timed(checkpoint: str, base: str, rows: Path, out: Path, n_layers: int) -> pd.DataFrame:
    """The seconds of every round, one column per number of layers without adapters."""
    torch.set_num_threads(1)
    texts = pd.read_json(rows, lines=True).iloc[:, 0].astype(str).tolist()[:TEXTS]
    batches = [texts[first : first + BATCH] for first in range(0, len(texts), BATCH)]
    models = {0: ap.open(checkpoint, base=base, device="cpu")}
    for n in range(1, n_layers):
        pruned = out / f"without-{n}"
        if not pruned.exists():
            ap.prune(checkpoint, pruned, base=base, span=(0, n - 1), progress=False)
        models[n] = ap.open(pruned, base=base, device="cpu")
    chance, rounds = random.Random(0), []
    for _ in range(ROUNDS + 1):  # the first is not counted
        seconds = {}
        for n in chance.sample(list(models), len(models)):
            begin = time.perf_counter()
            for batch in batches:
                models[n].logits(batch)
            seconds[n] = time.perf_counter() - begin
        rounds.append(seconds)
    return pd.DataFrame(rounds[1:]).sort_index(axis=1) * 1000 / len(texts)


def main(checkpoint: str, base: str, rows: Path, out: Path) -> None:
    """Write the table and the figure."""
    out.mkdir(parents=True, exist_ok=True)
    study = ap.ablate(checkpoint, data=rows, base=base, spans="prefix", out=out / "ablation", device="cpu")
    n_layers = study.summary.n_layers
    lost = study.spans.set_index("last").sort_index()
    seconds = timed(checkpoint, base, rows, out, n_layers)
    ratios = seconds.div(seconds[0], axis=0)
    table = pd.DataFrame(
        {
            "layers_without": seconds.columns,
            "score": [study.summary.intact_score, *lost.loc[: n_layers - 2, "score"]],
            "delta_points": [0.0, *lost.loc[: n_layers - 2, "delta_points"]],
            "ci_low_points": [0.0, *lost.loc[: n_layers - 2, "ci_low_points"]],
            "ci_high_points": [0.0, *lost.loc[: n_layers - 2, "ci_high_points"]],
            "seconds_per_1000_texts": seconds.median().to_numpy(),
            "time_ratio": ratios.median().to_numpy(),
            "time_ratio_low": ratios.quantile(0.1).to_numpy(),
            "time_ratio_high": ratios.quantile(0.9).to_numpy(),
        }
    )
    table.round(4).to_csv(out / "lowest-layers.csv", index=False, lineterminator="\n")
    print(table.round(4).to_string(index=False))
    with paper_style():
        draw(table).savefig(out / "lowest-layers.png")


def draw(table: pd.DataFrame) -> plt.Figure:
    """Score lost against time saved, one point per number of layers."""
    figure, axis = plt.subplots(figsize=(3.4, 2.2), layout="constrained")
    saved, points = 100 * (1 - table["time_ratio"]), table["delta_points"]
    reach = [points - table["ci_low_points"], table["ci_high_points"] - points]
    axis.errorbar(
        saved, points, yerr=reach, fmt="o-", color=GREEN, markersize=3, linewidth=0.8, elinewidth=0.6
    )
    for n, x, y in zip(table["layers_without"], saved, points):
        axis.annotate(str(n), (x, y), (2, 3), textcoords="offset points", fontsize=6, color=INK)
    axis.axhline(0, color=FAINT, linewidth=0.6)
    axis.set_xlabel("time saved (%)", fontsize=7)
    axis.set_ylabel("change of the score (points)", fontsize=7)
    axis.tick_params(labelsize=7)
    return figure


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
