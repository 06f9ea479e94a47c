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

import sys
from collections import defaultdict
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pandas as pd
from map_ranks import within
from map_record import Map, Means, of_file, of_folders, parts
from matplotlib.figure import Figure

from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.comparing import average_ablations
from adapter_probe.analysis.score_changes import intact_row, removed_row, row_scores
from adapter_probe.analysis.sweeps import half_width
from adapter_probe.figures.levels import draw_colorbar
from adapter_probe.figures.span_grid import Grid, draw, published_grid, scale_of
from adapter_probe.metrics import to_points
from adapter_probe.wording import count_text, task_label

SHARES = ("alone", "all")
METHODS = {
    "full": "full fine-tuning", "lora": "LoRA 8, all maps", "adapters": "adapters 64",
    "layernorm_only": "LayerNorms", "bitfit": "BitFit",
}  # fmt: skip


def shares(found: np.ndarray) -> np.ndarray:
    """Both shares of every layer, then their centre, ``[2, ..., layers + 1]``, of `parts`."""
    total = found.sum(axis=-1, keepdims=True)
    share = found / np.where(total == 0, np.nan, total)  # nothing to share
    return np.concatenate([share, (share @ np.arange(found.shape[-1]))[..., None]], axis=-1)


def ends(point: np.ndarray, of_seeds: float | np.ndarray, drawn: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of 95% intervals over seeds and examples, as those of a mean over seeds (`over_seeds`).

    Args:
        of_seeds: the half-width over seeds.
        drawn: on resamples of the examples, ``[draws, ...]``.
    """
    low, high = np.nanquantile(drawn, [0.025, 0.975], axis=0)
    below, above = np.maximum(point - low, 0), np.maximum(high - point, 0)
    return point - np.hypot(of_seeds, below), point + np.hypot(of_seeds, above)


def reach(*seeds: np.ndarray) -> float:
    """The half-width over seeds of a mean or of a difference of two; 0 with one seed, which says nothing."""
    return 0.0 if min(map(len, seeds)) < 2 else half_width([(1.0, own) for own in seeds])


def share_rows(methods: dict[str, list[Means]], n_layers: int, n: int) -> tuple[list[dict], list[dict]]:
    """Rows of `shares.csv` and of `centres.csv`, from the means of every seed by method, on n examples."""
    rows, differences = [], []
    point, alone, draws = {}, {}, {}
    for method, seeds in methods.items():
        point[method] = shares(parts(np.mean([own.mean for own in seeds], axis=0), n_layers))
        alone[method] = shares(parts(np.stack([own.mean for own in seeds]), n_layers))  # [2, seeds, ...]
        draws[method] = shares(np.mean([own.drawn for own in seeds], axis=0))
    for i, of in enumerate(SHARES):
        for method, seeds in methods.items():
            of_seeds = np.array([reach(own) for own in alone[method][i].T])
            bounds = ends(point[method][i], of_seeds, draws[method][i])
            names = ("layer", "share", "ci_low", "ci_high", "n_seeds", "n_examples")
            for values in zip([*range(n_layers), "centre"], point[method][i], *bounds):
                rows.append({"method": method, "of": of} | dict(zip(names, (*values, len(seeds), n))))
        for a, b in combinations(methods, 2):
            apart = point[a][i, -1] - point[b][i, -1]
            of_seeds = reach(alone[a][i, :, -1], alone[b][i, :, -1])
            low, high = ends(apart, of_seeds, draws[a][i, :, -1] - draws[b][i, :, -1])
            pair = {"method_a": a, "method_b": b, "of": of, "difference": apart}
            differences.append(pair | {"ci_low": low, "ci_high": high})
    return rows, differences


def agreement(maps: dict[tuple[str, str], Means], n_layers: int) -> list[dict]:
    """Rows of `agreement.csv`, from the means by method and seed."""
    index = pd.MultiIndex.from_arrays(np.triu_indices(n_layers))
    rows = []

    def agreed(one: np.ndarray, other: np.ndarray) -> float:
        return within(*(pd.Series(own.round(9), index) for own in (one, other)))

    for a, b in [*((key, key) for key in maps), *combinations(maps, 2)]:
        kind = "itself" if a == b else "another seed" if a[0] == b[0] else "another method"
        halves = zip(maps[a].halves, maps[b].halves)
        crossed = np.mean([agreed(own[x], other[1 - x]) for own, other in halves for x in (0, 1)])
        shared = np.nan if a == b else agreed(maps[a].mean, maps[b].mean)
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


def read(path: Path) -> Map | None:
    """The map of a file, or of a checkpoint's folder with an ablation; None where none is finished."""
    if path.is_file():
        return of_file(path)
    found = sorted(path.glob("ablation*/checksums.json"))
    return of_folders(path, found[0].parent) if found else None


def main(out: Path, *given: str) -> None:
    """Write the tables and the figures; checkpoints without a finished ablation are left out."""
    own, tables = defaultdict(dict), defaultdict(list)
    named = [(*path.name.split(".")[0].split("-"), path) for path in map(Path, given)]
    for task, method, seed, path in sorted(named, key=lambda one: ([*METHODS].index(one[1]), one[3])):
        if (found := read(path)) is None:
            print(f"{path}: no finished ablation, left out")
            continue
        results, training, scores = found.results, found.training, row_scores(found.results)
        intact, off = (scores[row(results)] for row in (intact_row, removed_row))
        tables["trials"].append(
            {"task": task, "method": method, "seed": seed, "learning_rate": training["learning_rate"],
             "epochs": training["epochs"], "score": max(training["validation_scores"]),
             "majority_score": training["majority_score"], "n_examples": results.n_examples,
             "intact_score": intact, "all_off_points": to_points(results.metric, off - intact)}
        )  # fmt: skip
        if len(set(results.outputs[intact_row(results)].argmax(axis=1))) == 1:
            print(f"{path}: predicts one class for everything, in trials.csv only")
            continue
        own[task][method, seed] = found
    for (task, maps), measure in product(own.items(), ("accuracy", "kl")):
        chosen = {key: one.means[measure] for key, one in maps.items()}
        methods = {name: [one for key, one in chosen.items() if key[0] == name] for name, _ in chosen}
        results = next(iter(maps.values())).results
        n_layers, n = results.n_layers, results.n_examples
        found = (*share_rows(methods, n_layers, n), agreement(chosen, n_layers))
        for name, rows in zip(("shares", "centres", "agreement"), found):
            tables[name] += [{"task": task, "measure": measure} | row for row in rows]
    for task, maps in own.items():
        for method in dict.fromkeys(name for name, _ in maps):
            seeds = [one.results for key, one in maps.items() if key[0] == method]
            record = average_ablations(seeds) if len(seeds) > 1 else ablation_tables(seeds[0])
            mean = record.spans.assign(task=task, method=method, n_studies=len(seeds))
            tables["maps"] += mean.to_dict("records")
    out.mkdir(parents=True, exist_ok=True)
    done = {
        name: merged(out / f"{name}.csv", pd.DataFrame(rows), 6 if name == "trials" else 4)
        for name, rows in tables.items()
        if rows
    }
    if "maps" not in done:
        print("no checkpoint learnt anything, so there are no maps")
        return
    hero(done["maps"], out)
    curves(done["shares"].query("of == 'alone' and measure == 'kl'"), out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
