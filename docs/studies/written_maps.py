"""Does a map by likelihood agree with one by what is written?

    python written_maps.py OUT NAME=WRITTEN,LIKELIHOOD,ROWS ...

WRITTEN and LIKELIHOOD are folders of ablations of one LoRA on the same rows: with `--generate` of the file
ROWS, and of the same answers as completions or choices. OUT gets `maps.csv`, a row per span with its drop by
every score and what its texts are; `agreement.csv`, rank correlations of two maps, on the same rows with the
95% range under random weights of them (how much the rows leave open; no confidence interval, because noise
lowers a correlation), and on disjoint halves, beside that of each map with itself; `texts.csv`,
examples; and `maps.png`.
"""

import json
import sys
from itertools import combinations, permutations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from seed_thirds import within

import adapter_probe as ap
from adapter_probe.analysis.resampling import draw_weights
from adapter_probe.data.written_scores import text_scorer
from adapter_probe.figures.style import FAINT, INK, paper_style
from adapter_probe.studies.ablation_study import Ablation

DRAWS, SPLITS, EXAMPLES = 1000, 100, 3


def costs_of(written: Ablation, likelihood: Ablation, rows: list) -> dict[str, np.ndarray]:
    """What every span costs on every row by each score, ``[spans, rows]``: points, or nats."""
    results, texts = likelihood.results, written.texts["text"].to_numpy().reshape(-1, len(rows))
    assert np.array_equal(written.results.spans, results.spans), "the folders have different spans"
    assert results.n_examples == len(rows), "the folders have different rows"
    scores = {"exact match": 100.0 * written.results.outputs[..., 0]}
    if results.metric == "accuracy":
        right = results.scored_with
        scores["choice"] = 100.0 * (results.predictions == right)
    else:
        f1 = text_scorer("token_f1")
        right = np.zeros(len(rows), int)
        scores["token F1"] = np.array(
            [[100 * f1(text, row["answers"]) for text, row in zip(own, rows)] for own in texts]
        )
    scores["log-likelihood"] = results.outputs[:, np.arange(len(rows)), right]
    return {name: (own[:1] - own)[results.spans[:, 0] >= 0] for name, own in scores.items()}


def kinds_of(texts: np.ndarray, rows: list) -> pd.DataFrame:
    """Shares of texts ``[variants, rows]`` in percent: exact, an answer with more, of the prompt, empty."""
    exact, held = text_scorer("text_match"), text_scorer("contains")
    sources = [row["prompt"].split("\nQuestion:")[0].lower() for row in rows]
    found = []
    for own in texts:
        pairs = [(exact(text, row["answers"]), held(text, row["answers"])) for text, row in zip(own, rows)]
        words = [text.strip().lower() for text in own]
        copied = [word != "" and word in source for word, source in zip(words, sources)]
        right, holds = 100 * np.mean(pairs, axis=0)
        found.append((right, holds - right, 100 * np.mean(copied), 100 * np.mean([w == "" for w in words])))
    kinds = ("exact", "exact_and_more", "of_the_prompt", "empty")
    return pd.DataFrame(found, columns=[f"{kind}_percent" for kind in kinds])


def agreement(costs: dict[str, np.ndarray], lengths: np.ndarray) -> list[dict[str, object]]:
    """Rank correlations of the maps, over all spans and among those of one length."""
    n = costs["exact match"].shape[1]
    ((drawn, _),) = draw_weights(n, DRAWS, 0, DRAWS)
    weights = np.concatenate([np.ones((n, 1)), drawn.T], axis=1)
    chance = np.random.default_rng(1)
    halves = np.array([np.isin(np.arange(n), chance.permutation(n)[: n // 2]) for _ in range(SPLITS)]).T
    sides = (halves.astype(float), (~halves).astype(float))
    rows = []
    for one, other in (*combinations(costs, 2), *((name, name) for name in costs)):
        row: dict[str, object] = {"map_a": one, "map_b": other}
        for kind, groups in (("all_spans", np.zeros_like(lengths)), ("one_length", lengths)):
            crossed = [
                within(costs[one] @ sides[i], costs[other] @ sides[j], groups)
                for i, j in permutations((0, 1))
            ]
            row |= {f"{kind}_halves": np.mean(crossed)}
            if one != other:
                found = within(costs[one] @ weights, costs[other] @ weights, groups)
                low, high = np.quantile(found[1:], [0.025, 0.975])
                row |= {kind: found[0], f"{kind}_low": low, f"{kind}_high": high}
        rows.append(row)
    return rows


def draw(studies: dict[str, tuple], maps: pd.DataFrame) -> plt.Figure:
    """A row per task: the two maps, and the one against the other."""
    figure, axes = plt.subplots(
        len(studies), 3, figsize=(9, 3 * len(studies)), squeeze=False, layout="constrained"
    )
    for line, (name, (written, likelihood)) in zip(axes, studies.items()):
        for ax, study in zip(line, (written, likelihood)):
            study.heatmap(ax, notes=False, colorbar=False)
            unit = "0.01 nats per token" if study.results.metric == "nll" else "points"
            what = {"text_match": "exact match", "accuracy": "choice"}.get(study.results.metric, "likelihood")
            ax.set_title(f"{name}: drop by {what} ({unit})", fontsize=7)
        own = maps[maps["task"] == name]
        second = "choice" if "choice" in own.dropna(axis=1, how="all") else "log-likelihood"
        dots = line[2].scatter(own[second], own["exact match"], c=own["n_layers"], s=10, cmap="viridis")
        figure.colorbar(dots, ax=line[2], label="layers off")
        line[2].axhline(0, color=FAINT, linewidth=0.5)
        unit = "points" if second == "choice" else "nats per answer"
        line[2].set_xlabel(f"drop by {second} ({unit})", fontsize=7, color=INK)
        line[2].set_ylabel("drop of exact match (points)", fontsize=7, color=INK)
    return figure


def main(out: Path, *given: str) -> None:
    """Write the tables and the figure."""
    maps, found, examples, studies = [], [], [], {}
    for name, folders in (one.split("=", 1) for one in given):
        *folders, file = folders.split(",")
        studies[name] = written, likelihood = tuple(ap.load(folder) for folder in folders)
        rows = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]
        costs, results = costs_of(written, likelihood, rows), written.results
        texts = written.texts["text"].to_numpy().reshape(-1, len(rows))
        table = pd.DataFrame(results.spans, columns=["first", "last"]).assign(task=name)
        off = table["first"] >= 0
        table["n_layers"] = (table["last"] - table["first"] + 1).where(off, 0)
        table = table.join(kinds_of(texts, rows))
        lengths = table.loc[off, "n_layers"].to_numpy()
        table.loc[off, list(costs)] = np.stack([own.mean(axis=1) for own in costs.values()], axis=1)
        maps.append(table)
        found += [
            {"task": name, "spans": len(lengths), "rows": len(rows), **row}
            for row in agreement(costs, lengths)
        ]
        shown = np.flatnonzero(~off | (table["n_layers"] >= results.n_layers // 3))
        differs = [k for k in range(len(rows)) if len(set(texts[shown, k])) > 2][:EXAMPLES]
        examples += [
            {"task": name, "prompt": rows[k]["prompt"], "answers": " | ".join(rows[k]["answers"]),
             "off": results.row_names[v], "text": texts[v, k]}
            for k in differs
            for v in shown
        ]  # fmt: skip
    everything = pd.concat(maps).round(4)
    out.mkdir(parents=True, exist_ok=True)
    for name, frame in (("maps", everything), ("agreement", pd.DataFrame(found).round(3)),
                        ("texts", pd.DataFrame(examples))):  # fmt: skip
        frame.to_csv(out / f"{name}.csv", index=False, lineterminator="\n")
    print(pd.DataFrame(found).round(3).to_string(index=False))
    with paper_style():
        draw(studies, everything).savefig(out / "maps.png", dpi=200)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
