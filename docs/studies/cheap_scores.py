"""Could a cheap score have told what can go? `python cheap_scores.py OUT NAME=CHECKPOINT,ABLATION ...`.

For each checkpoint the cheap scores, and how well these tell the exact drops of its ablation. Beside them two
lines that say what the numbers mean: a span of each length drawn at random, and the exact grid of one half of
the examples as the judge of the other half. `OUT/spans.csv` has every span's scores beside its drop,
`OUT/agreement.csv` the correlations and regrets, `OUT/agreement.png` and `.svg` the figure.
"""

import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from site_scores import site_scores
from span_scores import SCORE_LABELS, agreement_table, rank_correlation, span_table, with_drops

import adapter_probe as ap
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.examples import load_examples

HALVINGS = 200
RANDOM, HALF = "a random span of the length", "exact grid, other half of the examples"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#9467a0", "#000000", "#b8860b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "h", "p")


def study(given: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A checkpoint's spans, and its agreement table with the two lines beside it."""
    name, _, folders = given.partition("=")
    checkpoint, ablation = folders.split(",")
    exact = ap.load(ablation)
    spans = with_drops(spans_of(checkpoint, exact), exact.spans)
    table = pd.concat([agreement_table(spans), at_random(spans), by_halves(exact)], ignore_index=True)
    summary = exact.summary
    about = {
        "checkpoint": name, "task": summary.task, "examples": summary.n_examples,
        "intact_percent": 100 * summary.intact_score,
        "all_off_points": -float(spans.loc[spans["n_layers"].idxmax(), "drop_points"]),
    }  # fmt: skip
    return spans.assign(checkpoint=about["checkpoint"]), table.assign(**about)


def spans_of(checkpoint: str, exact: ap.Ablation) -> pd.DataFrame:
    """The scores of every span of a checkpoint, from a pass over the examples of its ablation.

    Raises:
        ValueError: the ablation is of another checkpoint, of other examples, or not of whole layers.
    """
    opened = open_any(checkpoint)
    about, settings = opened.description, exact.identity["settings"]
    if exact.identity["checkpoint"]["delta_sha256"] != about.delta_sha256:
        raise ValueError(f"{exact.folder} is not an ablation of {checkpoint}")
    if settings.get("sites", "both") != "both" or settings.get("complement"):
        raise ValueError(f"{exact.folder}: the scores are for both adapters of a layer, switched off")
    examples = load_examples(
        opened.tokenizer, about.task, "validation", about.max_length, expect_fingerprint=True
    )
    if not np.array_equal(examples.labels, exact.results.scored_with):
        raise ValueError(f"{exact.folder} is of other examples than the validation split of {checkpoint}")
    start = time.perf_counter()
    scores = site_scores(opened.model, examples)
    print(f"{checkpoint}: scored in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    layers = {"change": scores.change, "weight_norm": scores.weight_norm}
    frame = pd.DataFrame({name: values.reshape(-1, 2).sum(-1) for name, values in layers.items()})
    effects = scores.effects.reshape(len(scores.effects), -1, 2).sum(-1)  # two sites per layer
    return span_table(frame.assign(turn=scores.turn), effects, scores.margins)


def at_random(spans: pd.DataFrame) -> pd.DataFrame:
    """What a span costs beyond the best of its length when chosen blindly, on average."""
    lengths = [same["drop_points"] for _, same in spans.groupby("n_layers") if len(same) > 1]
    regrets = [drops.mean() - drops.min() for drops in lengths]
    most = max(drops.max() - drops.min() for drops in lengths)
    row = {"regret_points": np.mean(regrets), "regret_most_points": most}
    return pd.DataFrame([{"score": "random", "label": RANDOM, **row}])


def by_halves(exact: ap.Ablation) -> pd.DataFrame:
    """How well the exact grid on a random half of the examples tells that on the other half."""
    results, spans = exact.results, exact.spans.query("first >= 0")
    hits = results.predictions == results.scored_with  # [variants, examples]; the first variant is intact
    rows = np.array([results.row_names.index(name_of(span)) for span in spans.itertuples()])
    draw, found = np.random.default_rng(0), []
    for _ in range(HALVINGS):
        order = draw.permutation(hits.shape[1])
        halves = [hits[:, half] for half in np.array_split(order, 2)]
        seen, told = (100 * (half[0].mean() - half[rows].mean(axis=1)) for half in halves)
        frame = pd.DataFrame({"n_layers": spans["n_layers"].to_numpy(), "seen": seen, "told": told})
        found.append(half_agreement(frame))
    return pd.DataFrame([{"score": "half", "label": HALF, **pd.DataFrame(found).mean().to_dict()}])


def name_of(span: object) -> str:
    """As `AblationResults.row_names` has it."""
    return f"{span.first}-{span.last}"


def half_agreement(frame: pd.DataFrame) -> dict[str, float]:
    """The numbers of `agreement_table`, of one half's drops for the other's."""
    within, regrets = [], []
    for _, same in frame.groupby("n_layers"):
        if len(same) > 2:
            within.append(rank_correlation(same["seen"], same["told"]))
        if len(same) > 1:
            regrets.append(same["told"].loc[same["seen"].idxmin()] - same["told"].min())
    return {
        "spearman": rank_correlation(frame["seen"], frame["told"]),
        "spearman_within": np.nanmean(within) if np.isfinite(within).any() else np.nan,
        "regret_points": np.mean(regrets), "regret_most_points": np.max(regrets),
    }  # fmt: skip


def draw(table: pd.DataFrame, out: Path) -> None:
    """A row a score, a mark a checkpoint, a bar at the mean."""
    labels = [*SCORE_LABELS.values(), RANDOM, HALF]
    panels = [
        ("spearman", "rank correlation\nwith the exact drop"),
        ("spearman_within", "the same among\nspans of one length"),
        ("regret_points", "points lost beyond\nthe best span"),
    ]
    figure = Figure(figsize=(9.0, 5.0), layout="constrained")
    for ax, (column, title) in zip(figure.subplots(1, len(panels), sharey=True), panels):
        groups = list(table.groupby("checkpoint", sort=False))
        for number, (name, own) in enumerate(groups):
            shift = 0.7 * ((number + 0.5) / len(groups) - 0.5)
            heights = [labels.index(label) + shift for label in own["label"]]
            look = {"color": COLOURS[number % 6], "marker": MARKERS[number % 11]}
            ax.plot(own[column], heights, ls="", ms=4, label=name, **look)
        means = table.groupby("label")[column].mean().reindex(labels)
        ax.plot(means, range(len(labels)), ls="", marker="|", ms=13, mew=1.6, color="0.25", label="mean")
        ax.axvline(0, color="0.6", lw=0.8)
        ax.axhspan(labels.index(SCORE_LABELS["length"]) - 0.5, len(labels), color="0.95", zorder=0)
        ax.set(xlabel=title, ylim=(len(labels) - 0.5, -0.5))
        ax.set_yticks(range(len(labels)), labels)
        ax.spines[["top", "right"]].set_visible(False)
    handles, names = ax.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=min(len(names), 5), frameon=False)
    for kind in ("png", "svg"):
        figure.savefig(out / f"agreement.{kind}", dpi=200)


def main(out: Path, checkpoints: list[str]) -> None:
    """Write the two tables and the figure."""
    out.mkdir(parents=True, exist_ok=True)
    spans, tables = zip(*map(study, checkpoints))
    table = pd.concat(tables, ignore_index=True)
    for name, frame in (("spans", pd.concat(spans)), ("agreement", table)):
        first = ["checkpoint", *(column for column in frame if column != "checkpoint")]
        frame[first].round(4).to_csv(out / f"{name}.csv", index=False, lineterminator="\n")
    draw(table, out)
    means = table.groupby(["score", "label"], sort=False).mean(numeric_only=True)
    print(means[["spearman", "spearman_within", "regret_points", "regret_most_points"]].round(2).to_string())


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), sys.argv[2:])
