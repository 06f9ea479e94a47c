"""Scores against the directions that adapters keep, beside what their singular values say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from adapter_probe import metrics, wording
from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.score_changes import without_noise
from adapter_probe.analysis.strengths import JudgedSummary, choose_and_judge, facts_of, strength_table


@dataclass(frozen=True, kw_only=True)
class RankSummary(JudgedSummary):
    """How many directions are needed, ``summary.json``; see `JudgedSummary`.

    Attributes:
        largest: the largest rank of a tuned matrix, so that as many directions are all.
        effective: the mean effective rank of the tuned matrices, see `effective_rank`.
        within_points: what the needed directions may cost, in points.
        needed: the fewest directions in every matrix that cost at most this on the examples that they are
            chosen on.
        energy: the share of the change's energy that these directions have.
    """

    largest: int
    effective: float
    within_points: float
    needed: int
    energy: float

    @property
    def verdict(self) -> str:
        """The answer to "how many directions are needed?"."""
        limit, n = wording.tolerance_text(self.within_points, self.metric), f"{self.n_judged:,} examples"
        half = self.chosen_on == "half"
        where = "the half of the examples that they are chosen on" if half else "the examples"
        if self.needed == self.largest:
            return f"all {self.largest}: of the ranks that were tried, none costs at most {limit} on {where}"
        low, high = self.interval_points
        chosen = f"{self.needed} of {self.largest}: the fewest that cost at most {limit} on {where}"
        if self.delta_points is None or low is None or high is None:
            return f"{chosen}; on the others the difference is undefined"
        cost = wording.drop_text(-self.delta_points, self.metric)
        ends = wording.interval_text(-high, -low, self.metric)
        if not wording.is_distance(self.metric):  # a change may be a gain, its interval is that of the drop
            cost = f"it is a {cost.replace(' ', ' of ', 1)}"
            ends = f"of the {wording.drop_name(self.metric)} {ends}"
        judged = f"the other half ({n})" if half else f"the same ones ({n})"
        return (
            f"{chosen}; on {judged} {cost}, 95% interval {ends}; they have "
            f"{wording.rounded(100 * self.energy, 0)}% of the change's energy, and its effective rank is "
            f"{wording.rounded(self.effective)}"
        )


def effective_rank(values: np.ndarray) -> float:
    """The exponential of the entropy of singular values that are divided by their sum; 0 of no change.

    Source: Roy and Vetterli 2007, The effective rank.
    """
    total = float(values.sum())
    if not total:
        return 0.0
    p = values[values > 0] / total
    return float(np.exp(-(p * np.log(p)).sum()))


def energy_kept(spectra: pd.DataFrame, rank: int, inside: np.ndarray | None = None) -> float:
    """The share of the squared singular values that the largest of every matrix have; NaN of no change.

    Args:
        rank: how many of each matrix are kept.
        inside: bool ``[rows]``, the rows of the maps that are truncated; by default all.
    """
    energy = spectra["value"].to_numpy(float) ** 2
    lost = spectra["direction"].to_numpy() > rank
    if inside is not None:
        energy, lost = energy[inside], lost[inside]
    return float(1 - energy[lost].sum() / energy.sum()) if energy.sum() else np.nan


def spectra_table(values: Sequence[tuple[str, int, str, str, np.ndarray]]) -> pd.DataFrame:
    """Singular values as a table.

    Args:
        values: of every tuned matrix: its stack of layers, its layer in the stack, the site that it belongs
            to, its name, and the values, descending; of experts ``[experts, rank]``.

    Returns:
        Columns `stack` (of several), `layer`, `site`, `module`, `expert` (0 of a map alone), `direction`
        (from 1), `value`.
    """
    rows = [
        (*place, expert, direction + 1, float(value))
        for *place, found in values
        for expert, own in enumerate(np.atleast_2d(found))
        for direction, value in enumerate(own)
    ]
    columns = ["stack", "layer", "site", "module", "expert", "direction", "value"]
    frame = pd.DataFrame(rows, columns=columns)
    return frame if frame["stack"].any() else frame.drop(columns="stack")


def _truncated(results: AblationResults, spectra: pd.DataFrame, variant: int) -> np.ndarray:
    """Bool ``[rows]``: whether a variant truncates the map that a row of the spectra is of."""
    off = (~results.masks[variant]).reshape(results.n_layers, -1)  # [layers, sites of a layer]
    stacks = results.settings.get("stacks") or [["", results.n_layers]]
    begins = dict(zip([one[0] for one in stacks], np.cumsum([0, *(one[1] for one in stacks)]).tolist()))
    layers = spectra["layer"].to_numpy()
    if "stack" in spectra:
        layers = layers + spectra["stack"].map(begins).to_numpy()
    if "site" not in spectra:  # of a study before there were sites in its spectra, which was of spans
        found: np.ndarray = off.any(axis=1)[layers]
        return found
    sites = spectra["site"].map({name: n for n, name in enumerate(results.sites)}).to_numpy()
    chosen: np.ndarray = off[layers, sites]
    return chosen


def rank_table(
    results: AblationResults, variants: pd.DataFrame, spectra: pd.DataFrame, largest: int
) -> pd.DataFrame:
    """The table of `adapter_probe.Ranks`.

    Args:
        results: the ablations of all ranks as one, see `strengths.joined`.
        largest: the rank that keeps all.
    """
    energy = [
        energy_kept(spectra, int(row["strength"]), _truncated(results, spectra, row["variant"]))
        for row in variants.to_dict("records")
    ]
    frame = strength_table(results, variants.assign(energy=energy), intact=float(largest))
    frame = frame.rename(columns={"strength": "rank"})
    frame["rank"] = frame["rank"].astype(int)
    shares = frame.pop("energy").mask(frame["rank"] >= largest, 1.0)  # intact rows are copies of others
    frame.insert(list(frame).index("n_examples"), "energy", shares)
    return frame


def rank_summary(
    results: AblationResults, variants: pd.DataFrame, spectra: pd.DataFrame, largest: int, within: float
) -> RankSummary:
    """How many directions of all layers are needed; arguments as in `rank_table`.

    `within`: what they may cost, in points. They are chosen on one half of the examples.
    """
    whole = variants[variants["whole"]].sort_values("strength")
    ranks = np.append(whole["strength"].to_numpy(), largest).astype(int)

    def fewest(scores: np.ndarray) -> int:
        points = without_noise(metrics.to_points(results.metric, scores - scores[-1]))
        return int(np.append(np.flatnonzero(points >= -within), len(ranks) - 1)[0])

    best, judged = choose_and_judge(results, np.append(whole["variant"].to_numpy(), 0), fewest)
    maps = spectra.groupby(["module", "expert"])["value"]
    return RankSummary(
        largest=largest,
        effective=float(np.mean([effective_rank(one.to_numpy(float)) for _, one in maps])),
        within_points=within,
        needed=int(ranks[best]),
        energy=energy_kept(spectra, int(ranks[best])),
        **facts_of(results),
        **judged,
    )
