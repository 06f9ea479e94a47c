"""Which modules and layers cost most, chosen on one half and judged on the other?

    python module_halves.py OUT.csv NAME=FOLDER ...

The folders hold ablations by module (`ablate --by module`); folders of one name hold those of other
trainings, on the same examples. A cost is in points, and of choices also the divergence of their
distribution from the intact model's, in nats. A random half A of the examples chooses the costliest and the
cheapest module in all layers, layers with all modules, and single cells of the map; half B says what they
cost, with the 95% intervals of an ablation on its examples. Beside them stands everything off, how far the
two halves agree on the order of modules, layers and cells (the mean rank correlation of 200 other pairs of
random halves), and how far two trainings agree on it, with all examples.
"""

import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import adapter_probe as ap
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.resampling import draw_changes
from adapter_probe.analysis.significance import span_interval
from adapter_probe.kinds.table import scored_of

SPLITS = 200
KINDS = ("module in all layers", "layers, all modules", "cell")


Measures = dict[str, tuple[np.ndarray, AblationResults]]


def costs_of(folder: str) -> tuple[pd.DataFrame, Measures]:
    """The cells of a map with their kind; by measure their costs ``[cells, examples]``, and the results."""
    results = ap.load(folder).results
    cells = pd.DataFrame(results.spans, columns=["first", "last"]).assign(module=results.modules)
    everywhere = (cells["last"] - cells["first"] + 1) == results.n_layers
    whole = cells["module"] == "all"
    cells["kind"] = np.select([everywhere & whole, everywhere, whole], ["everything", *KINDS[:2]], KINDS[2])
    kept = ((cells["first"] >= 0) & (cells["module"] != "")).to_numpy()
    written = results.outputs.shape[-1] == 1
    scores = 100.0 * (results.outputs[..., 0] if written else results.predictions == results.scored_with)
    costs = {"points": ((scores[:1] - scores)[kept], results)}
    if not written:
        arrays = results.scored.arrays() | {"scored_with": np.ones(results.n_examples, dtype=np.int64)}
        divergences = scored_of(results.kind, "kl", results.label_names, arrays)
        costs["divergence"] = divergences.predicted(0)[kept], replace(results, scored=divergences)
    return cells.assign(row=np.arange(len(cells)))[kept].reset_index(drop=True), costs


def judged(costs: np.ndarray, half: AblationResults, row: int) -> dict[str, float]:
    """The mean cost on a half with its 95% interval; divergences are in nats."""
    (low,), (high,) = span_interval(draw_changes(half, [row]), half, [row])
    unit = 100 if half.metric == "kl" else 1
    return {"drop_b": costs.mean(), "low_b": -high / unit, "high_b": -low / unit}


def halves(cells: pd.DataFrame, costs: np.ndarray, results: AblationResults) -> list[dict[str, object]]:
    """A row for everything, and for each kind the costliest, the cheapest and the agreement."""
    n = costs.shape[1]
    order = np.random.default_rng(0).permutation(n)
    a, b = order[: n // 2], order[n // 2 :]
    half = results.of_examples(b)
    whole = int(np.flatnonzero(cells["kind"] == "everything")[0])
    rows: list[dict[str, object]] = [
        {
            "kind": "everything",
            "drop_a": costs[whole, a].mean(),
            **judged(costs[whole, b], half, cells["row"][whole]),
        }
    ]
    chance = np.random.default_rng(1)
    for kind in KINDS:
        places = np.flatnonzero(cells["kind"] == kind)
        means = costs[places][:, a].mean(axis=1)
        for which, k in (("costliest", means.argmax()), ("cheapest", means.argmin())):
            own = cells.iloc[places[k]]
            rows.append({
                "kind": kind, "which": which, "module": own["module"], "first": own["first"],
                "last": own["last"], "drop_a": means[k], "of": len(places),
                **judged(costs[places[k], b], half, own["row"]),
            })  # fmt: skip
        found = []
        for _ in range(SPLITS):
            drawn = np.isin(np.arange(n), chance.permutation(n)[: n // 2])
            pair = costs[places][:, drawn].sum(axis=1), costs[places][:, ~drawn].sum(axis=1)
            found.append(correlation(*pair))
        rows.append({"kind": kind, "which": "rank correlation of two halves", "drop_b": np.mean(found)})
    return [{**row, "examples_a": len(a), "examples_b": len(b)} for row in rows]


def agreements(cells: pd.DataFrame, one: np.ndarray, other: np.ndarray) -> list[dict[str, object]]:
    """A row for each kind: the rank correlation of the costs with two trainings."""
    places, which = {kind: cells["kind"] == kind for kind in KINDS}, "rank correlation of two trainings"
    found = {
        kind: correlation(one[own].mean(axis=1), other[own].mean(axis=1)) for kind, own in places.items()
    }
    return [{"kind": kind, "which": which, "drop_b": r} for kind, r in found.items()]


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's, 0 where one of them is constant."""
    return 0.0 if min(np.ptp(one), np.ptp(other)) == 0 else float(spearmanr(one, other).statistic)


def main(out: Path, *given: str) -> None:
    """Write the table."""
    read: dict[str, list[tuple[pd.DataFrame, Measures]]] = {}
    for name, folder in (one.split("=", 1) for one in given):
        read.setdefault(name, []).append(costs_of(folder))
    found = []
    for name, trainings in read.items():
        for number, (cells, costs) in enumerate(trainings):
            for measure, own in costs.items():
                about = {"task": name, "training": number, "measure": measure}
                found += [{**about, **row} for row in halves(cells, *own)]
        for (one, (cells, costs)), (other, (_, others)) in combinations(enumerate(trainings), 2):
            for measure in costs:
                about = {"task": name, "training": f"{one} and {other}", "measure": measure}
                found += [
                    {**about, **row} for row in agreements(cells, costs[measure][0], others[measure][0])
                ]
    table = pd.DataFrame(found).round(7)
    table[["first", "last", "of"]] = table[["first", "last", "of"]].astype("Int64")
    table.to_csv(out, index=False, lineterminator="\n")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
