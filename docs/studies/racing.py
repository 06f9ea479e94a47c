"""Races on recorded studies: do the verdicts keep their word, and what share of the map do they need?

    python racing.py FOLDER                       # the simulations, into FOLDER/*.csv
    python racing.py --record ABLATION FILE       # which examples an ablation has right, as a CSV

A recorded study gives, for every span, how many predictions become wrong and how many become right. For CoLA,
`racing/cola.csv` has which ones. For the other studies only the drop, the p of the exact McNemar test and the
interval are recorded, from which the two counts follow; the examples that change are then taken to be nested,
so that a span that loses more loses those of a span that loses fewer, too. The error of a verdict on one span
does not depend on this; how often any verdict of a race is wrong does.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from adapter_probe.ablation_settings import RaceSettings
from adapter_probe.analysis.racing import BEYOND, CHOSEN, WITHIN, RaceState, order_of, round_ends

STUDIES = Path(__file__).resolve().parent
RECORDED = {
    "MNLI, gte-small": "gte-small/mnli/heatmap.csv",
    "SST-2, gte-small": "heatmap/gte-sst2-seed-0.csv",
    "SST-2, MPNet": "heatmap/sst2-seed-0.csv",
    "MNLI, MPNet": "heatmap/mnli-seed-0.csv",
    "ARC-Easy, SmolLM2": "smollm2/arc/heatmap.csv",
}
OTHERS = {  # the other committed maps of accuracies: seeds, suffixes, and a file with several grids
    **{f"MNLI, gte-small, seed {k}": f"heatmap/gte-mnli-seed-{k}.csv" for k in (1, 2)},
    **{f"SST-2, gte-small, seed {k}": f"heatmap/gte-sst2-seed-{k}.csv" for k in (1, 2)},
    **{f"CoLA, gte-small, seed {k}": f"heatmap/cola-seed-{k}.csv" for k in (0, 2, 3)},
    **{f"MNLI, MPNet, seed {k}": f"heatmap/mnli-seed-{k}.csv" for k in (1, 2)},
    **{f"SST-2, MPNet, seed {k}": f"heatmap/sst2-seed-{k}.csv" for k in (1, 2)},
    **{f"{name}, MiniLM": "heatmap/six-tasks/heatmap.csv"
       for name in ("SST-2", "airline", "corporate messaging", "disasters", "global warming")},
    "ARC-Easy, SmolLM2, suffixes": "smollm2/suffix/curve.csv",
    "BLiMP, SmolLM2": "smollm2/blimp/heatmap.csv",
    "BLiMP, SmolLM2, suffixes": "smollm2/blimp-suffix/curve.csv",
}  # fmt: skip
PREDICTIONS = {  # what `--record` wrote
    "SST-2 words written, SmolLM2": "generated/words-right.csv",
    "SQuAD answers written, SmolLM2": "generated/answers-right.csv",
}
ORDERS, OTHER_ORDERS, DEEP_ORDERS, DEEP = 1000, 100, 50, 30
_LEVELS = 1.959964  # standard errors from the middle to an end of a 95% interval


@dataclass(frozen=True, eq=False)
class Recorded:
    """Recorded spans, int ``[spans, 2]``, and their costs on every example, int8 ``[spans, examples]``."""

    name: str
    spans: np.ndarray
    costs: np.ndarray

    @property
    def drops(self) -> np.ndarray:
        """The drop of every span on all examples, in examples."""
        return self.costs.sum(axis=1, dtype=np.int64)

    def singles(self) -> Recorded:
        """The single layers, or groups, alone."""
        first, last = self.spans.T
        inside = (first >= first[:, None]) & (last <= last[:, None])
        alone = inside.sum(axis=1) == 1
        return Recorded(self.name, self.spans[alone], self.costs[alone])


def changed(row: pd.Series) -> tuple[int, int]:
    """How many predictions of a span become wrong, and how many right."""
    n = int(row["n_examples"])
    drop = round(-row["delta_points"] * n / 100)
    width = (row["ci_high_points"] - row["ci_low_points"]) / 2 / _LEVELS * n / 100
    both = max(abs(drop), round(width**2 + drop**2 / n))
    if 1e-12 < row["p_value"] < 1 - 1e-9:
        near = np.arange(max(abs(drop), round(0.7 * both)), min(n, round(1.4 * both) + 20) + 1)
        near = near[(near - drop) % 2 == 0]
        p = np.array([mcnemar((total - abs(drop)) // 2, total) for total in near.tolist()])
        both = int(near[np.abs(np.log(p) - math.log(row["p_value"])).argmin()])
    both += (both - drop) % 2
    return (both + drop) // 2, (both - drop) // 2


def mcnemar(fewer: int, both: int) -> float:
    """The exact two-sided p of `fewer` of `both` discordant predictions; 1e-300 where it underflows."""
    k = np.arange(1, fewer + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log((both - k + 1) / k))]) - both * math.log(2)
    return float(min(1.0, max(1e-300, 2 * np.exp(logs).sum())))


def recorded(name: str, path: Path) -> Recorded:
    """A study from its table of spans, with nested examples."""
    frame = pd.read_csv(path)
    if "grid" in frame:
        frame = frame[frame["grid"] == name.split(", ")[0]].reset_index(drop=True)
    counts = np.array([changed(row) for _, row in frame.iterrows()])
    right = round(frame["n_examples"][0] * (frame["score"] - frame["delta_points"] / 100).iloc[0])
    return nested(name, frame[["first", "last"]].to_numpy(), counts, right, int(frame["n_examples"][0]))


def nested(name: str, spans: np.ndarray, counts: np.ndarray, right: int, n: int) -> Recorded:
    """A study in which `right` of `n` examples are right, from counts ``[spans, 2]`` of those that change."""
    places = np.arange(n)
    lost, won = counts[:, :1], counts[:, 1:]
    costs = (places < np.minimum(lost, right)).astype(np.int8)
    costs -= (places >= right) & (places < right + won)
    return Recorded(name, spans, costs)


def cola(path: Path, name: str = "CoLA, gte-small") -> Recorded:
    """A study whose predictions are recorded: the first row is the intact model."""
    frame = pd.read_csv(path, dtype={"right": str})
    right = np.array(
        [[int(c) for c in f"{int(own, 16):0{4 * len(own)}b}"] for own in frame["right"]], np.int8
    )
    right = right[:, : int(frame["n_examples"][0])]
    return Recorded(name, frame[["first", "last"]].to_numpy()[1:], right[0] - right[1:])


def deep(base: Recorded, n_layers: int) -> Recorded:
    """A made-up study of more layers: counts between those of a recorded one, by the spans' ends."""
    n_before, n = int(base.spans.max()) + 1, base.costs.shape[1]
    counts = np.stack([(base.costs == 1).sum(axis=1), (base.costs == -1).sum(axis=1)], axis=1)
    known = np.zeros((n_before + 1, n_before + 1, 2))  # from the begin of a layer to the begin of another
    for (first, last), own in zip(base.spans, counts):
        known[first, last + 1] = own
    ends = np.linspace(0, n_before, n_layers + 1)
    spans = np.array([(a, b) for a in range(n_layers) for b in range(a, n_layers)])
    found = []
    for a, b in spans:
        x, y = ends[a], ends[b + 1]
        i, j = min(int(x), n_before - 1), min(int(y), n_before - 1)
        u, v = x - i, y - j
        corners = (
            (i, j, (1 - u) * (1 - v)),
            (i + 1, j, u * (1 - v)),
            (i, j + 1, (1 - u) * v),
            (i + 1, j + 1, u * v),
        )
        found.append(sum(w * known[p, q] for p, q, w in corners))
    right = int((base.costs.max(axis=0) >= 0).sum())
    return nested(f"{base.name}, {n_layers} layers", spans, np.round(found).astype(int), right, n)


def race_once(study: Recorded, settings: RaceSettings) -> RaceState:
    """One race, in the order of the settings' seed."""
    n = study.costs.shape[1]
    order = order_of(n, settings.race_seed)
    state = RaceState(study.spans, n, settings, round_ends(n), whole=True)
    for one in state.rounds():
        state.take(one, study.costs[one.spans][:, order[one.start : one.stop]])
    return state


def raced(study: Recorded, orders: int, **settings: object) -> dict[str, object]:
    """Races in many orders, as a row of the table."""
    n, truth = study.costs.shape[1], study.drops
    found = []
    for seed in range(orders):
        asked = RaceSettings(race_seed=seed, **settings)
        state = race_once(study, asked)
        limit = asked.within / 100 * n + 1e-9
        wrong = (state.decisions == WITHIN) & (truth > limit) | (state.decisions == BEYOND) & (truth <= limit)
        share = state.n_read.sum() / state.costs.size
        decided = np.isin(state.decisions, [WITHIN, BEYOND])
        early = (decided & (state.n_read < n)).sum() / max(1, decided.sum())
        answer = wrong.any()
        if asked.n_least:
            chosen = state.decisions == CHOSEN
            answer = truth[chosen].max() - truth[~chosen].min() > limit
        elif asked.goal == "longest":
            answer = wrong.any() or length_of(study, state.decisions == WITHIN) != length_of(
                study, truth <= limit
            )
        found.append((share, wrong.any(), wrong.sum(), answer, early))
    share, any_wrong, wrongs, answers, early = np.mean(found, axis=0)
    spread = np.std([own[0] for own in found])
    return {
        "study": study.name, "spans": len(study.spans), "examples": n, "within_points": asked.within,
        "goal": asked.goal + (", monotone" if asked.assume_monotone else ""), "method": "race",
        "orders": orders, "share": share, "share_sd": spread,
        "any_wrong": any_wrong, "wrong_verdicts": wrongs, "answer_wrong": answers, "decided_early": early,
    }  # fmt: skip


def length_of(study: Recorded, within: np.ndarray) -> int:
    """The length of the longest of some spans."""
    length = study.spans[:, 1] - study.spans[:, 0] + 1
    return int(length[within].max(initial=0))


def fixed_part(study: Recorded, like: dict[str, object]) -> dict[str, object]:
    """All spans on the same part of the examples, judged by their drop there, at the cost of a race."""
    n, truth = study.costs.shape[1], study.drops
    m, limit = max(1, round(float(like["share"]) * n)), float(like["within_points"]) / 100
    found = []
    for seed in range(int(like["orders"])):
        drops = study.costs[:, order_of(n, seed)[:m]].mean(axis=1)
        wrong = (drops <= limit + 1e-12) != (truth <= limit * n + 1e-9)
        longest = length_of(study, drops <= limit + 1e-12) != length_of(study, truth <= limit * n + 1e-9)
        found.append((wrong.any(), wrong.sum(), longest if like["goal"] == "longest" else wrong.any()))
    any_wrong, wrongs, answers = np.mean(found, axis=0)
    return {**like, "method": "a fixed part", "share": m / n, "share_sd": 0.0, "any_wrong": any_wrong,
            "wrong_verdicts": wrongs, "answer_wrong": answers, "decided_early": math.nan}  # fmt: skip


def rejects(n_arms: int, n_least: int, budget: float) -> Iterator[tuple[int, int]]:
    """Successive rejects (Audibert, Bubeck and Munos 2010): after how many examples how many layers stay.

    Synchronised, as in SySRs (arXiv 2606.07726): the layers that are left read the same examples.
    """
    scale = 0.5 + sum(1 / i for i in range(2, n_arms + 1))
    for phase in range(1, n_arms - n_least + 1):
        yield math.ceil((budget - n_arms) / scale / (n_arms + 1 - phase)), n_arms - phase


def halving(n_arms: int, n_least: int, budget: float) -> Iterator[tuple[int, int]]:
    """Sequential halving (Karnin, Koren and Somekh 2013); the layers that are left read the same examples."""
    rounds, left, read = math.ceil(math.log2(n_arms / n_least)), n_arms, 0.0
    for _ in range(rounds):
        read += budget / rounds / left
        left = max(n_least, left // 2)
        yield math.floor(read), left


def fixed_budget(
    study: Recorded,
    like: dict[str, object],
    name: str,
    plan: Callable[[int, int, float], Iterator[tuple[int, int]]],
) -> dict[str, object]:
    """A method with a fixed budget, that of the race on average, in the same orders."""
    n, truth, k = study.costs.shape[1], study.drops, int(str(like["goal"]).split(":")[1])
    budget, limit = float(like["share"]) * study.costs.size, float(like["within_points"]) / 100 * n + 1e-9
    found = []
    for seed in range(int(like["orders"])):
        order, left, pairs, before = order_of(n, seed), np.arange(len(study.spans)), 0, 0
        for read, kept in plan(len(left), k, budget):
            read = min(max(read, 1), n)
            pairs += len(left) * max(0, read - before)
            before = max(before, read)
            left = left[np.argsort(study.costs[left][:, order[:before]].sum(axis=1), kind="stable")[:kept]]
        others = np.setdiff1d(np.arange(len(study.spans)), left)
        found.append((pairs / study.costs.size, truth[left].max() - truth[others].min() > limit,
                      truth[left].max() > truth[others].min()))  # fmt: skip
    share, answers, any_wrong = np.mean(found, axis=0)
    return {**like, "method": name, "share": share, "share_sd": 0.0, "any_wrong": any_wrong,
            "wrong_verdicts": math.nan, "answer_wrong": answers, "decided_early": math.nan}  # fmt: skip


def main(out: Path, orders: int = ORDERS) -> None:
    """All simulations, into ``races.csv``; what is there already is not simulated again."""
    out.mkdir(parents=True, exist_ok=True)
    picture(recorded("MNLI, gte-small", STUDIES / RECORDED["MNLI, gte-small"]), out, goal="spans")
    file, rows = out / "races.csv", []
    if file.exists():
        rows = pd.read_csv(file).to_dict("records")
    studies = [cola(STUDIES / "racing" / "cola.csv")]
    studies += [recorded(name, STUDIES / path) for name, path in RECORDED.items()]
    jobs = [(one, {"goal": goal}, orders) for one in studies for goal in ("longest", "spans")]
    jobs += [(one, {"goal": "spans", "assume_monotone": True}, orders) for one in studies[:2]]
    jobs += [(one.singles(), {"goal": f"least:{k}"}, orders // 2) for one in studies[:2] for k in (1, 4)]
    jobs += [
        (deep(studies[1], DEEP), {"goal": goal}, min(orders, DEEP_ORDERS)) for goal in ("longest", "spans")
    ]
    others = [cola(STUDIES / path, name) for name, path in PREDICTIONS.items() if (STUDIES / path).exists()]
    others += [recorded(name, STUDIES / path) for name, path in OTHERS.items()]
    jobs += [
        (one, {"goal": goal}, min(orders, OTHER_ORDERS)) for one in others for goal in ("longest", "spans")
    ]
    for study, settings, n in jobs:
        goal = settings["goal"] + (", monotone" if settings.get("assume_monotone") else "")
        if any((row["study"], row["goal"]) == (study.name, goal) for row in rows):
            continue
        row = raced(study, n, **settings)
        rows.append(row)
        if goal in ("longest", "spans") and not study.name.endswith(f"{DEEP} layers"):
            rows.append(fixed_part(study, row))
        elif goal.startswith("least"):
            rows += [fixed_budget(study, row, name, plan) for name, plan in METHODS.items()]
        pd.DataFrame(rows).to_csv(file, index=False, float_format="%.5g", lineterminator="\n")


def picture(study: Recorded, folder: Path, **settings: object) -> None:
    """Draw one race on a study, ``race.png``."""
    from adapter_probe.analysis.race_tables import race_summary, race_table
    from adapter_probe.analysis.study_records import RaceRecord
    from adapter_probe.figures.gallery import write_gallery
    from adapter_probe.figures.venues import PAPER, FigureOptions

    state, n = race_once(study, RaceSettings(**settings)), study.costs.shape[1]
    scores = (np.arange(n) < (study.costs.max(axis=0) >= 0).sum()).astype(float)[order_of(n, 0)]
    name, base = study.name.split(", ")
    about = {"task": name.lower(), "split": "validation", "metric": "accuracy", "n_layers": 12}
    summary = race_summary(state, scores, math.nan, about, math.nan)
    record = RaceRecord(folder / base, race_table(state, scores), summary, {"race": settings})
    write_gallery([record], folder, FigureOptions(PAPER, formats=("png",)))


METHODS = {"successive rejects": rejects, "halving": halving}


def record(ablation: Path, file: Path) -> None:
    """Write which examples an ablation has right, one hexadecimal number per variant."""
    from adapter_probe.results.ablation_files import load_ablation

    results = load_ablation(ablation)
    right = results.are_right
    assert right is not None, "an ablation of classes"
    rows = [0, *np.flatnonzero(results.spans[:, 0] >= 0)]
    padded = np.pad(right[rows], ((0, 0), (0, -right.shape[1] % 4)))
    texts = [f"{int(''.join(map(str, own.astype(int))), 2):0{len(own) // 4}x}" for own in padded]
    frame = pd.DataFrame(results.spans[rows], columns=["first", "last"])
    frame.assign(n_examples=right.shape[1], right=texts).to_csv(file, index=False, lineterminator="\n")


if __name__ == "__main__":
    if sys.argv[1] == "--record":
        record(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
