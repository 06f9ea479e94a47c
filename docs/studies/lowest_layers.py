"""Time saved against score lost, lowest adapters off: `python lowest_layers.py ABLATION BASE ROWS OUT`.

ABLATION is the results folder of an ablation of all spans or prefixes, inside its checkpoint. The adapters of
the lowest n layers are removed (`adapter-probe prune`), for every n, and the forward pass of each pruned
checkpoint is timed on the first of the examples in the file ROWS: in every round once each, in an order drawn
anew, on one thread. The time of several tasks on the same examples follows from it: what is below the lowest
adapter is computed once for all of them, so that it takes the time until layer n begins once and the rest
once a task.

OUT gets `lowest-layers.csv` and `.png`: the score and its change with its interval, which are the ablation's,
the median time in seconds per 1,000 examples, and the share of the time that is saved for one task and for
`TASKS` at once, within the round, with the 10th and the 90th percentile of the rounds.
"""

import json
import random
import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from torch import nn

import adapter_probe as ap
from adapter_probe.figures.style import FAINT, GREEN, INK, paper_style

ROUNDS, TEXTS, BATCH, TASKS = 9, 64, 16, 8
PUBLISHED = (5, 100 * (1 - 1 / 1.39))
"""AdapterDrop (arXiv 2010.11918): eight tasks are 39% faster without the adapters of five layers."""


@torch.inference_mode()
def timed(checkpoint: str, base: str, rows: Path, out: Path, n_layers: int) -> dict[str, pd.DataFrame]:
    """Seconds of every round ``[rounds, layers without adapters]``: until layer n begins, and of the rest."""
    torch.set_num_threads(1)
    lines = rows.read_text("utf-8").splitlines()[:TEXTS]
    few = out / "timed.jsonl"
    few.write_text("\n".join(lines) + "\n", encoding="utf-8")
    texts = [[text for key, text in json.loads(line).items() if key != "label"][:2] for line in lines]
    texts.sort(key=lambda own: sum(map(len, own)))  # little padding
    models, began = {}, [0.0]
    for n in range(n_layers):
        pruned = out / f"without-{n}"
        if n and not pruned.exists():
            ap.prune(checkpoint, pruned, base=base, span=(0, n - 1), data=few, progress=False)
        model = ap.open(pruned if n else checkpoint, base=base, device="cpu")
        layers = next(m for m in model.base.modules() if isinstance(m, nn.ModuleList) and len(m) == n_layers)
        layers[n].register_forward_pre_hook(lambda *_: began.append(time.perf_counter()))
        models[n] = model.base.eval()
    cut = [texts[first : first + BATCH] for first in range(0, len(texts), BATCH)]
    options = {"padding": True, "truncation": True, "return_tensors": "pt"}
    batches = [model.tokenizer(*map(list, zip(*batch)), **options) for batch in cut]
    chance, rounds = random.Random(0), []
    for _ in range(ROUNDS + 1):  # the first is not counted
        spent = dict.fromkeys(models, (0.0, 0.0))
        for n in chance.sample(list(models), len(models)):
            for batch in batches:
                start = time.perf_counter()
                models[n](**batch)
                below, above = began[-1] - start, time.perf_counter() - began[-1]
                spent[n] = (spent[n][0] + below, spent[n][1] + above)
        rounds.append(spent)
    return {
        name: pd.DataFrame([{n: spent[n][part] for n in sorted(spent)} for spent in rounds[1:]])
        for part, name in enumerate(("below", "rest"))
    }


def main(ablation: str, base: str, rows: Path, out: Path) -> None:
    """Write the table and the figure."""
    out.mkdir(parents=True, exist_ok=True)
    study = ap.load(ablation)
    n_layers = study.summary.n_layers
    lost = study.spans[study.spans["first"] == 0].set_index("last").sort_index()
    seconds = timed(str(Path(ablation).parent), base, rows, out, n_layers)
    one = seconds["below"] + seconds["rest"]
    together = seconds["below"] + TASKS * seconds["rest"]
    saved = {
        "one": 100 * (1 - one.div(one[0], axis=0)),
        "eight": 100 * (1 - together.div(TASKS * one[0], axis=0)),
    }
    table = pd.DataFrame(
        {
            "layers_without": one.columns,
            "score": [study.summary.intact_score, *lost.loc[: n_layers - 2, "score"]],
            "delta_points": [0.0, *lost.loc[: n_layers - 2, "delta_points"]],
            "ci_low_points": [0.0, *lost.loc[: n_layers - 2, "ci_low_points"]],
            "ci_high_points": [0.0, *lost.loc[: n_layers - 2, "ci_high_points"]],
            "seconds_per_1000": one.median().to_numpy() * 1000 / TEXTS,
        }
    )
    for name, share in saved.items():
        table[f"saved_{name}"] = share.median().to_numpy()
        table[f"saved_{name}_low"] = share.quantile(0.1).to_numpy()
        table[f"saved_{name}_high"] = share.quantile(0.9).to_numpy()
    table.round(4).to_csv(out / "lowest-layers.csv", index=False, lineterminator="\n")
    print(table.round(4).to_string(index=False))
    with paper_style():
        draw(table).savefig(out / "lowest-layers.png")


def draw(table: pd.DataFrame) -> plt.Figure:
    """The time that is saved and the score that is lost, over the number of layers without adapters."""
    figure, (time_axis, axis) = plt.subplots(1, 2, figsize=(5.6, 2.1), layout="constrained")
    layers = table["layers_without"]
    for name, words, color in (("one", "one task", FAINT), ("eight", f"{TASKS} tasks at once", GREEN)):
        time_axis.fill_between(layers, table[f"saved_{name}_low"], table[f"saved_{name}_high"], color=color,
                               alpha=0.3, linewidth=0)  # fmt: skip
        time_axis.plot(
            layers, table[f"saved_{name}"], "o-", color=color, markersize=3, linewidth=0.8, label=words
        )
    time_axis.plot(*PUBLISHED, "D", color=INK, markersize=4, label=f"AdapterDrop, {TASKS} tasks")
    time_axis.set_ylabel("time saved (%)", fontsize=7, color=INK)
    time_axis.legend(fontsize=6, frameon=False)
    points = table["delta_points"]
    reach = [points - table["ci_low_points"], table["ci_high_points"] - points]
    axis.axhline(0, color=FAINT, linewidth=0.6)
    axis.errorbar(
        layers, points, yerr=reach, fmt="o-", color=GREEN, markersize=3, linewidth=0.8, elinewidth=0.6
    )
    axis.set_ylabel("change of the score (points)", fontsize=7, color=INK)
    for one in (time_axis, axis):
        one.set_xlabel("lowest layers without adapters", fontsize=7, color=INK)
        one.tick_params(labelsize=7)
    return figure


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
