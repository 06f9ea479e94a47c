"""Do methods keep what they learnt in the same layers? `python where_learnt.py OUT TASK-METHOD-SEED ...`.

The folders are checkpoints, named by task, method and seed, with an ablation of all spans of layers on the
same examples of a task. A span costs points of accuracy, and nats of divergence from the intact model's
predictions (KL). Of either, a layer has two shares: its cost `alone` divided by the sum over layers, and its
part of the cost of `all` layers (`share_points` of an ablation) divided by that. `centre` is the mean layer.
Rows of other tasks that tables in OUT have already stay, and the figures show these tasks too.

`OUT/trials.csv` has the scores. What predicts one class for everything learnt nothing that could be kept, and
is in no other table: `shares.csv`, the shares of the mean map over seeds; `centres.csv`, differences of two
methods' centres, with 95% intervals over seeds and examples; `agreement.csv`, rank correlations within one
length of span between two checkpoints of a task, on all examples and on disjoint halves, and of each with
itself on these; `maps.png` and `maps.csv`, the mean maps, with the paper's grid on one scale; `shares.png`,
the shares alone by divergence.
"""

import json
import sys
from collections import defaultdict
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
from map_ranks import within
from matplotlib.figure import Figure
from scipy.special import log_softmax

import adapter_probe as ap
from adapter_probe.analysis.attribution import shares as shares_of_all
from adapter_probe.figures.levels import draw_colorbar
from adapter_probe.figures.span_grid import Grid, draw, published_grid, scale_of
from adapter_probe.wording import count_text, task_label

DRAWS, SPLITS, SHARES = 1000, 5, ("alone", "all")
METHODS = {
    "full": "full fine-tuning", "lora": "LoRA 8, all maps", "adapters": "adapters 64",
    "layernorm_only": "LayerNorms", "bitfit": "BitFit",
}  # fmt: skip


def costs(study: ap.Ablation) -> dict[str, np.ndarray]:
    """By measure, what every span costs on every example, ``[spans, examples]``."""
    results = study.results
    spans = np.flatnonzero(results.spans[:, 0] >= 0)
    spans = spans[np.lexsort((results.spans[spans, 1], results.spans[spans, 0]))]
    intact = results.row_names.index("intact")
    right = results.outputs.argmax(axis=2) == results.scored_with
    logs = log_softmax(results.outputs.astype(np.float64), axis=2)
    divergence = (np.exp(logs[intact]) * (logs[intact] - logs[spans])).sum(axis=2)
    return {"accuracy": 100.0 * right[intact] - 100.0 * right[spans], "kl": divergence}


def parts(drops: np.ndarray, n_layers: int) -> np.ndarray:
    """What every layer costs alone, and its part of the cost of all, ``[2, ..., layers]``."""
    first, last = np.triu_indices(n_layers)
    square = np.zeros((*drops.shape[:-1], n_layers, n_layers))
    square[..., first, last] = drops
    return np.stack([drops[..., first == last], shares_of_all(square)])


def shares(drops: np.ndarray, n_layers: int) -> np.ndarray:
    """Both shares of every layer, then their centre, ``[2, ..., layers + 1]``, of costs ``[..., spans]``."""
    found = parts(drops, n_layers)
    total = found.sum(axis=-1, keepdims=True)
    found /= np.where(total == 0, np.nan, total)  # nothing to share
    return np.concatenate([found, (found @ np.arange(n_layers))[..., None]], axis=-1)


def resampled(seeds: np.ndarray) -> np.ndarray:
    """Mean drops ``[draws, spans]`` of ``[seeds, spans, examples]``, with seeds and examples drawn again.

    Every method has the same draws of examples; the deviations of seeds are scaled as in `ap.average`.
    """
    n_seeds, _, n = seeds.shape
    examples = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=DRAWS) / n
    drawn = np.random.default_rng(1).multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=DRAWS) / n_seeds
    maps = np.einsum("kse,de->kds", seeds, examples)
    centre = maps.mean(axis=0)
    return centre + np.sqrt(n_seeds / max(1, n_seeds - 1)) * (np.einsum("dk,kds->ds", drawn, maps) - centre)


def share_rows(methods: dict[str, np.ndarray], n_layers: int) -> tuple[list[dict], list[dict]]:
    """Rows of `shares.csv` and of `centres.csv`, from the costs ``[seeds, spans, examples]`` by method."""
    rows, differences = [], []
    point = {method: shares(seeds.mean(axis=(0, 2)), n_layers) for method, seeds in methods.items()}
    draws = {method: shares(resampled(seeds), n_layers) for method, seeds in methods.items()}
    for i, of in enumerate(SHARES):
        for method, seeds in methods.items():
            low, high = np.nanquantile(draws[method][i], [0.025, 0.975], axis=0)
            names = ("layer", "share", "ci_low", "ci_high", "n_seeds", "n_examples")
            for values in zip([*range(n_layers), "centre"], point[method][i], low, high):
                rows.append({"method": method, "of": of} | dict(zip(names, (*values, *seeds.shape[::2]))))
        for a, b in combinations(methods, 2):
            low, high = np.nanquantile(draws[a][i, :, -1] - draws[b][i, :, -1], [0.025, 0.975])
            pair = {"method_a": a, "method_b": b, "of": of, "difference": point[a][i, -1] - point[b][i, -1]}
            differences.append(pair | {"ci_low": low, "ci_high": high})
    return rows, differences


def halves_of(n: int) -> list[list[np.ndarray]]:
    """Random halves of so many examples, several times."""
    chance = np.random.default_rng(0)
    return [np.array_split(chance.permutation(n), 2) for _ in range(SPLITS)]


def agreement(maps: dict[tuple[str, str], np.ndarray], n_layers: int) -> list[dict]:
    """Rows of `agreement.csv`, from the costs ``[spans, examples]`` by method and seed."""
    index = pd.MultiIndex.from_arrays(np.triu_indices(n_layers))
    splits, rows = halves_of(next(iter(maps.values())).shape[1]), []

    def on(key: tuple[str, str], examples: np.ndarray | slice) -> pd.Series:
        return pd.Series(maps[key][:, examples].mean(axis=1).round(9), index)

    for a, b in [*((key, key) for key in maps), *combinations(maps, 2)]:
        kind = "itself" if a == b else "another seed" if a[0] == b[0] else "another method"
        crossed = np.mean(
            [within(on(a, x), on(b, y)) for one, two in splits for x, y in ((one, two), (two, one))]
        )
        shared = np.nan if a == b else within(on(a, slice(None)), on(b, slice(None)))
        named = {"with": kind, "method_a": a[0], "seed_a": a[1], "method_b": b[0], "seed_b": b[1]}
        rows.append(named | {"all_examples": shared, "disjoint_halves": crossed})
    return rows


def hero(maps: pd.DataFrame, out: Path) -> None:
    """A row of mean maps for each task with the paper's grid; where no task has one, that of MNLI."""
    tasks = sorted(maps["task"].unique(), key=lambda task: published_grid(task) is None)
    methods = [method for method in METHODS if method in {*maps["method"]}]
    size = (2.05 * (len(methods) + 1), 2.3 * len(tasks) + 1.1)
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(len(tasks), len(methods) + 1, squeeze=False)
    published = {t: own for t in tasks if (own := published_grid(t))} or {tasks[0]: published_grid("mnli")}
    grids = {(tasks.index(task), len(methods)): grid for task, grid in published.items()}
    for (task, method), frame in maps.groupby(["task", "method"]):
        whole = frame.loc[frame["n_layers"].idxmax()]
        said = f"{count_text(int(whole['n_studies']), 'seed')}, n = {whole['n_examples']}"
        notes = [task_label(task), said, f"all switched off: drop {-whole['delta_points']:.1f}"]
        shown = frame[["first", "last", "n_layers", "delta_points", "significant"]]
        grids[tasks.index(task), methods.index(method)] = Grid(shown, notes)
    for place in np.ndindex(axes.shape):
        if place not in grids:
            axes[place].set_axis_off()
    scale = scale_of([*grids.values()])
    for place, grid in grids.items():
        draw(grid, axes[place], tolerance=1.0, notes=True, scale=scale)
        axes[place].set_ylabel("" if place[1] else axes[place].get_ylabel())
    for column, name in enumerate([*(METHODS[method] for method in methods), "the paper, adapters 64"]):
        top = min(row for row, own in grids if own == column)
        axes[top, column].set_title(name, fontsize=10)
    label = "drop in accuracy (points); black line = 1 point"
    draw_colorbar(scale, [*axes.flat], label, 1.0, location="bottom", length=400)
    figure.savefig(out / "maps.png", dpi=150, bbox_inches="tight")


def curves(shares: pd.DataFrame, out: Path) -> None:
    """The share of every layer alone, by divergence: a panel for each task, a line for each method."""
    n = shares["task"].nunique()
    columns = n if n < 4 else 2
    rows = -(-n // columns)
    figure = Figure(figsize=(4.6 * columns + 1.6, 3.0 * rows + 0.2), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).flatten()
    for ax, (task, own) in zip(axes, shares.query("layer != 'centre'").groupby("task", sort=False)):
        for i, (method, line) in enumerate(own.groupby("method", sort=False)):
            x, y = line["layer"].astype(float) + 0.1 * i - 0.2, 100 * line["share"]
            spread = np.abs(100 * line[["ci_low", "ci_high"]].to_numpy().T - y.to_numpy())
            ax.errorbar(x, y, spread, marker="osD^vP"[i], markersize=3, linewidth=1, label=METHODS[method])
        ax.set(title=task_label(task), xticks=range(0, int(x.max()) + 1, 2))
        ax.set_xlabel("layer switched off alone")
    for ax in axes[::columns]:
        ax.set_ylabel("share of the divergence (%)")
    for ax in axes[n:]:
        ax.set_axis_off()
    named = max((ax.get_legend_handles_labels() for ax in axes), key=lambda one: len(one[1]))
    figure.legend(*named, loc="outside right center", frameon=False)
    figure.savefig(out / "shares.png", dpi=150)


def merged(path: Path, rows: pd.DataFrame, digits: int) -> pd.DataFrame:
    """Write a table: these rows, and those of other tasks that it has already."""
    rows = rows.round(digits)
    if path.exists():
        kept = pd.read_csv(path)
        rows = pd.concat([kept[~kept["task"].isin(rows["task"])], rows])
    rows = rows.sort_values("task", kind="stable")
    rows.to_csv(path, index=False, lineterminator="\n")
    return pd.read_csv(path)


def main(out: Path, *folders: str) -> None:
    """Write the tables and the figure; checkpoints without a finished ablation are left out."""
    studies, own, tables = defaultdict(list), defaultdict(dict), defaultdict(list)
    for path in sorted(
        map(Path, folders), key=lambda path: ([*METHODS].index(path.name.split("-")[1]), path)
    ):
        (task, method, seed), found = path.name.split("-"), sorted(path.glob("ablation*/checksums.json"))
        if not found:
            print(f"{path}: no finished ablation, left out")
            continue
        study = ap.load(found[0].parent)
        said, training = study.summary, json.loads((path / "adapter_probe.json").read_text())["training"]
        tables["trials"].append(
            {"task": task, "method": method, "seed": seed, "learning_rate": training["learning_rate"],
             "epochs": training["epochs"], "score": max(training["validation_scores"]),
             "majority_score": training["majority_score"], "n_examples": said.n_examples,
             "intact_score": said.intact_score, "all_off_points": said.removed_delta_points}
        )  # fmt: skip
        if len(set(study.predictions[study.results.row_names.index("intact")].tolist())) == 1:
            print(f"{path}: predicts one class for everything, in trials.csv only")
            continue
        studies[task, method].append(study)
        own[task][method, seed] = costs(study)
    for (task, maps), measure in product(own.items(), ("accuracy", "kl")):
        chosen = {key: cost[measure] for key, cost in maps.items()}
        methods = {m: np.stack([cost for key, cost in chosen.items() if key[0] == m]) for m, _ in chosen}
        n_layers = studies[task, next(iter(methods))][0].summary.n_layers
        found = (*share_rows(methods, n_layers), agreement(chosen, n_layers))
        for name, rows in zip(("shares", "centres", "agreement"), found):
            tables[name] += [{"task": task, "measure": measure} | row for row in rows]
    for (task, method), seeds in studies.items():
        record = ap.average(seeds).record if len(seeds) > 1 else seeds[0].record
        mean = record.spans.assign(task=task, method=method, n_studies=len(seeds))
        tables["maps"] += mean.to_dict("records")
    out.mkdir(parents=True, exist_ok=True)
    done = {
        name: merged(out / f"{name}.csv", pd.DataFrame(rows), 6 if name == "trials" else 4)
        for name, rows in tables.items()
        if rows
    }
    hero(done["maps"], out)
    curves(done["shares"].query("of == 'alone' and measure == 'kl'"), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
