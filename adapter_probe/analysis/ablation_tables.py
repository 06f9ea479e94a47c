"""All tables of an ablation, from the same random weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.removable import (
    bounds_of_ablation,
    non_monotone,
    removable_table,
    spans_with_adapters,
)
from adapter_probe.analysis.resampling import N_DRAWS, Draws, draw_scores
from adapter_probe.analysis.score_changes import (
    StudyKind,
    intact_row,
    last_layers,
    removed_row,
    rows_of,
    span_scores,
    span_units,
    study_kind,
    switched_layers,
    without_noise,
)
from adapter_probe.analysis.significance import ALPHA, holm, interval, p_values, span_interval
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.metrics import about, constant_prediction
from adapter_probe.spans import ALL_MODULES

_INTERACTION = ("interaction_points", "interaction_low_points", "interaction_high_points")
_TEST = ("p_value", "p_holm", "significant")
_SHARE = ("share_points", "share_low_points", "share_high_points")


@dataclass(frozen=True, eq=False)
class AblationTables:
    """The tables ``spans.csv``, ``layers.csv`` and ``removable.csv``.

    Attributes:
        spans: one row per span: `span_scores`, then `ci_low_points`, `ci_high_points` (95% interval of
            `delta_points`, see `span_interval`), `p_value` against the intact model, `p_holm` (over all
            spans), `significant` (below 0.05; `metrics.COMPARISONS` have no test and none of the three),
            `bound_low_points` (lower bound for a
            span that is chosen by it, see `bounds_of_chosen`; only of spans),
            `n_nonfinite` (examples whose outputs are NaN or infinite; a span with any has no score),
            `interaction_points` with its interval `interaction_low_points`, `interaction_high_points` (of
            the drop: positive = the span costs beyond its parts) and `non_monotone`, see the function of
            that name. In a map of layers and modules the interaction of several modules or layers together
            is the drop beyond the sum over the single modules of single layers.
        layers: see `adapter_probe.Ablation.layers`; a layer without adapters has no span, and the share 0.
        removable: see `removable_table`; `n_layers` counts the layers that have adapters.
        chance_p: two-sided p of the intact score against guessing: always the most frequent class,
            a correlation of 0, or a choice at random. NaN where there is no such score.
        removed_p: p of the variant with all adapters off that the study switches, against the intact model.
        stacks: of a model with several stacks of layers, the tables of each; those above begin with the
            column `stack` then, and Holm's correction is over the spans of all stacks.
    """

    spans: pd.DataFrame
    layers: pd.DataFrame
    removable: pd.DataFrame
    chance_p: float
    removed_p: float
    stacks: Mapping[str, AblationTables] = field(default_factory=dict)


def draws_for(results: AblationResults, tested: bool | None = None) -> int:
    """Number of draws that allows significance after Holm's correction, if the metric is not slow.

    Args:
        tested: whether draws test the spans; by default as in an ablation, where proportions have an exact
            test and distances none, and the intervals alone need fewer draws.
    """
    if tested is None:
        own = about(results.metric)
        tested = not (own.is_proportion or own.distance)
    wanted = draws_wanted(int((results.spans[:, 0] >= 0).sum())) if tested else N_DRAWS
    if isinstance(results.metric, CustomMetric):
        return results.metric.draws(wanted, len(results.masks))
    return wanted


def draws_wanted(n_spans: int) -> int:
    """Number of draws that test spans.

    A p-value from draws is at least 2 / (draws + 1), and Holm multiplies the least by the number of spans:
    with 100 draws a span it can fall to 0.02.
    """
    return max(N_DRAWS, 100 * n_spans)


def ablation_tables(
    results: AblationResults, n_draws: int | None = None, seed: int = 0, n_families: int = 1
) -> AblationTables:
    """Score every span, with intervals and tests.

    Where the spans were kept and not ablated, a score is what the span brings and not what it costs: then
    interactions, shares and removable spans are empty and no span is flagged as non-monotone.

    Args:
        n_draws: number of draws of random weights; by default `draws_for`. Intervals use at most the first
            10,000. Questions on a paragraph have one weight.
        seed: seed of the weights; the same results and seed give the same tables.
        n_families: the number of stacks from which a removable span is chosen.

    Raises:
        ResultsError: there is no intact row, or a span is in two rows.
    """
    n_draws = n_draws or draws_for(results)
    if results.stacks is not None:
        return _of_stacks(results, n_draws, seed)
    frame = span_scores(results)
    rows, intact, removed = rows_of(results, frame), intact_row(results), removed_row(results)
    scores, chance_p = _drawn(results, n_draws, seed)
    tested = p_values(scores.changes([*rows, removed], intact))
    p, removed_p = np.where(frame["delta_points"].isna(), np.nan, tested[:-1]), float(tested[-1])
    if about(results.metric).distance:
        p, removed_p = np.full(len(frame), np.nan), np.nan
    p[(results.masks[rows] == results.masks[intact]).all(axis=1)] = np.nan  # nothing to test
    scores = scores.first(N_DRAWS)
    changes, parts = scores.changes(rows, intact), scores.map(lambda own: own[..., rows] - own[..., [intact]])
    adjusted, (low, high) = holm(p), span_interval(changes, results, rows)
    frame = frame.assign(
        ci_low_points=low, ci_high_points=high, p_value=p, p_holm=adjusted, significant=adjusted < ALPHA,
        n_nonfinite=results.nonfinite[rows],
    )  # fmt: skip
    if about(results.metric).distance:
        frame = frame.drop(columns=list(_TEST))
    n_layers = results.n_layers
    if results.modules is None:
        frame["bound_low_points"] = bounds_of_ablation(frame, changes, results, rows, n_families)
    if study_kind(results) != "ablated" or results.modules is not None:
        spans = frame.assign(**dict.fromkeys(_INTERACTION, np.nan), non_monotone=False)
        if results.modules is not None:
            spans, frame = _beyond_cells(spans, parts, study_kind(results)), _of_all_modules(frame)
        layers = _single_layers(frame, n_layers).assign(**dict.fromkeys(_SHARE, np.nan))
        removable = removable_table(frame.iloc[:0].assign(bound_low_points=np.nan))
        return AblationTables(spans, layers, removable, chance_p, removed_p)
    units, interaction, share = _attributed(frame, parts, n_layers)
    spans = frame.assign(**dict(zip(_INTERACTION, interaction)))
    spans["non_monotone"] = non_monotone(frame[["first", "last"]].to_numpy(), changes)
    layers = _with_shares(results, _single_layers(frame, n_layers), units, share)
    removable = removable_table(spans_with_adapters(frame, switched_layers(results)))
    return AblationTables(spans, layers, removable, chance_p, removed_p)


def _of_all_modules(frame: pd.DataFrame) -> pd.DataFrame:
    """Of a map of layers and modules, each layer with all its modules."""
    whole = frame["n_layers"] == frame["n_layers"].max()
    singles = frame[(frame["module"] == ALL_MODULES) & (~whole | whole.all())]
    return singles.drop(columns="module").reset_index(drop=True)


def _beyond_cells(spans: pd.DataFrame, changes: Draws, study: StudyKind) -> pd.DataFrame:
    """A map with the interaction of what is off together: the drop beyond the sum over single cells.

    `changes` of the score have a column a row. Where cells were kept on, nothing has an interaction.
    """
    of, first, last = spans["module"].to_numpy(), spans["first"].to_numpy(), spans["last"].to_numpy()
    shortest = (spans["n_layers"] < spans["n_layers"].max()).to_numpy()
    cells = (of != ALL_MODULES) & (shortest | (~shortest).all())  # of the only layer, if it is one
    inside = cells & (first[:, None] <= first) & (last <= last[:, None])
    inside &= (of[:, None] == of) | (of[:, None] == ALL_MODULES)  # [rows, cells]
    together = ~cells & (inside.sum(axis=1) > 0) & (study == "ablated")

    def beyond(own: np.ndarray) -> np.ndarray:
        sums = np.stack([own[..., cells].sum(axis=-1) for cells in inside], axis=-1)
        return np.where(together, sums - own, np.nan)

    point = without_noise(beyond(spans["delta_points"].to_numpy()))
    return spans.assign(**dict(zip(_INTERACTION, (point, *interval(changes.map(beyond, most=2.0))))))


def _of_stacks(results: AblationResults, n_draws: int, seed: int) -> AblationTables:
    """The tables of several stacks, each from weights of the same seed."""
    stacks = results.in_stacks
    parts = {name: ablation_tables(own, n_draws, seed, len(stacks)) for name, own in stacks.items()}
    if not about(results.metric).distance:
        adjusted = holm(np.concatenate([part.spans["p_value"] for part in parts.values()]))
        ends = np.cumsum([len(part.spans) for part in parts.values()])[:-1]
        parts = {
            name: _corrected(part, own) for (name, part), own in zip(parts.items(), np.split(adjusted, ends))
        }
    spans, layers, removable = (
        pd.concat(
            [getattr(part, table).assign(stack=name) for name, part in parts.items()], ignore_index=True
        )
        for table in ("spans", "layers", "removable")
    )
    for table in (spans, layers, removable):
        table.insert(0, "stack", table.pop("stack"))
    chance_p = next(iter(parts.values())).chance_p
    whole = [intact_row(results), removed_row(results)]
    ends = np.array([[-1, -1], [0, results.n_layers - 1]])
    alone = replace(results.rows(whole), spans=ends, stacks=None, modules=None)
    removed = ablation_tables(alone, n_draws, seed)
    return AblationTables(spans, layers, removable, chance_p, removed.removed_p, parts)


def _corrected(part: AblationTables, adjusted: np.ndarray) -> AblationTables:
    """The tables of a stack with p-values that are corrected over the spans of all stacks."""
    spans = part.spans.assign(p_holm=adjusted, significant=adjusted < ALPHA)
    whole = spans[spans["module"] == ALL_MODULES] if "module" in spans else spans
    of_span = whole.set_index(["first", "last"])["p_holm"].to_dict()
    own = [of_span.get(ends, np.nan) for ends in zip(part.layers["layer"], last_layers(part.layers))]
    return replace(part, spans=spans, layers=part.layers.assign(p_holm=own))


def _drawn(results: AblationResults, n_draws: int, seed: int) -> tuple[Draws, float]:
    """The variants' scores under random weights, and p of the intact one against guessing.

    The chance score of a correlation is 0; p is NaN if the score of guessing is not known.
    """
    constant, intact = None, intact_row(results)
    if results.scored.TASK.has_classes:
        constant = constant_prediction(results.metric, results.scored_with)
    scores = draw_scores([results], n_draws, seed, more=None if constant is None else constant[None])
    if constant is not None:
        return scores, float(p_values(scores.map(lambda own: own[..., [intact]] - own[..., [-1]]))[0])
    chance = 0.0 if about(results.metric).correlation else results.chance_score
    if np.isnan(chance):
        return scores, np.nan
    return scores, float(p_values(scores.map(lambda own: own[..., [intact]] - 100 * chance))[0])


_Interval = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Estimates with the bounds of their intervals."""


def _attributed(
    frame: pd.DataFrame, changes: Draws, n_layers: int
) -> tuple[np.ndarray | None, _Interval, _Interval]:
    """The layers, or groups of layers, that the spans are made of (see `span_units`), and attributions.

    Where spans are missing, what would need them is NaN.

    Returns:
        the units; the interaction of each span; the share of each unit.
    """
    units = span_units(frame)
    ends = np.repeat(np.arange(n_layers)[:, None], 2, axis=1) if units is None else units
    first, last = np.searchsorted(ends[:, 0], frame["first"]), np.searchsorted(ends[:, 1], frame["last"])

    def drops(own: np.ndarray) -> np.ndarray:  # [..., spans] to [..., units, units]
        grid = np.full((*own.shape[:-1], len(ends), len(ends)), np.nan)
        grid[..., first, last] = -own
        return grid

    found = []
    several = np.where(first < last, 2.0, 1.0)  # of what is right or wrong, an example can change so much
    for function, most in (
        (lambda own: interactions(drops(own))[..., first, last], several),
        (lambda own: shares(drops(own)), 1.0),
    ):
        point = without_noise(function(frame["delta_points"].to_numpy()))
        found.append((point, *interval(changes.map(function, most))))
    interaction, share = found
    return units, interaction, share


def _with_shares(
    results: AblationResults, layers: pd.DataFrame, units: np.ndarray | None, share: _Interval
) -> pd.DataFrame:
    """The layers with their shares: NaN if not all were studied, 0 without an adapter."""
    if units is None:
        return layers.assign(**dict.fromkeys(_SHARE, np.nan))
    layers = layers.join(pd.DataFrame(dict(zip(_SHARE, share)), index=units[:, 0]), on="layer")
    if counts := results.settings.get("site_parameters"):
        bare = np.reshape(counts, (results.n_layers, -1)).sum(axis=1) == 0
        layers.loc[bare[layers["layer"]] & layers["share_points"].isna().to_numpy(), list(_SHARE)] = 0.0
    return layers


def _single_layers(frame: pd.DataFrame, n_layers: int) -> pd.DataFrame:
    """One row per layer or group of layers, empty if the study has no such span."""
    wanted = ["delta_points", "ci_low_points", "ci_high_points", *({"p_holm"} & {*frame})]
    units = span_units(frame)
    if units is None or (units[:, 0] == units[:, 1]).all():
        singles = frame[frame["n_layers"] == 1].set_index("first")[wanted]
        return singles.reindex(pd.RangeIndex(n_layers, name="layer")).reset_index()
    groups = frame.merge(pd.DataFrame(units, columns=["first", "last"]))
    return groups.rename(columns={"first": "layer", "last": "last_layer"})[["layer", *wanted, "last_layer"]]
