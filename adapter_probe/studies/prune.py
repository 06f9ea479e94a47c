"""Prune a checkpoint: remove a given span, or the longest removable span within a tolerance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.deltas import of_stack, row_scores, section_of
from adapter_probe.analysis.removable import (
    Basis,
    longest_removable,
    random_halves,
    span_costs,
    spans_with_adapters,
)
from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.checkpoints.adapter_folder import choose_adapter
from adapter_probe.checkpoints.mlx import as_peft
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.data.lm_eval_tasks import with_absolute_paths
from adapter_probe.device import choose_device, use_threads
from adapter_probe.errors import ResultsError, must_be
from adapter_probe.probe.arguments import PREDICTIONS_VERSION, AblationArguments
from adapter_probe.probe.prune import PruneMeasurement, adapted_layers, prune_checkpoint
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.progress import activity
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.schema import MANIFEST
from adapter_probe.settings import as_points
from adapter_probe.spans import Span, as_span
from adapter_probe.wording import tolerance_text

from .ablation_study import Ablation
from .checkpoint_arguments import Prune
from .example_files import check_files
from .load import ablations_of, load
from .race_choice import chosen_in_race, race_for
from .race_study import Race
from .ranks import chosen_rank

ChosenOn = Literal["half", "all", "race"]


@dataclass(frozen=True)
class Pruning:
    """The outcome of pruning one span: savings and change of the score.

    Attributes:
        span: the layers whose adapters were removed.
        chosen_on: None if the span was given; ``half`` if it was chosen on one half of the examples, and
            scores and interval were measured on the other half; ``race`` if a race decided about it, and they
            were measured on the examples that its verdict did not need; ``all`` if it was chosen on the same
            examples as scores and interval, which makes them optimistic.
        n_examples_chosen_on: number of examples that the span was chosen on; None if the span was given.
        n_examples: number of examples that the scores and the interval were measured on.
        metric: metric of the scores: the ablation's, or the task's if the span was given.
        score_before, score_after: fractions; NaN where undefined.
        delta_points: score after minus score before, in percentage points.
        delta_interval_points: 95% paired bootstrap interval of `delta_points`.
        p_value: p-value of the difference; NaN for a distance from the outputs before, which has no test.
        adapter_parameters_before, adapter_parameters_after: numbers of adapter parameters.
        seconds_before, seconds_after: time of one evaluation of a few examples on this machine.
        checkpoint: folder of the new checkpoint.
        strength: what the span's adapters were multiplied by; 0 if they were removed, ``by layer`` if every
            layer or module has its own strength.
        rank: how many directions they keep; None where they were not truncated.
        warning: why the ablation that the span was chosen by is not informative, such as a model that is no
            better than guessing; None if it is informative.
    """

    span: Span
    chosen_on: ChosenOn | None
    n_examples_chosen_on: int | None
    n_examples: int
    metric: str
    score_before: float
    score_after: float
    delta_points: float
    delta_interval_points: tuple[float, float]
    p_value: float
    adapter_parameters_before: int
    adapter_parameters_after: int
    seconds_before: float
    seconds_after: float
    checkpoint: Path
    warning: str | None = None
    strength: float | str = 0.0
    rank: int | None = None


_MAY_DIFFER = frozenset(f"settings.{name}" for name in (*AblationSettings.choice_of_spans, "precision"))
"""Settings in which the ablation may differ from pruning: its choice of spans and its precision."""


@dataclass(frozen=True, eq=False)
class _Choice:
    """A span, what it was chosen on, and the examples (int ``[examples]``) held out to measure it on."""

    span: Span | None
    chosen_on: ChosenOn | None = None
    n_examples: int | None = None
    measured: np.ndarray | None = None
    warning: str | None = None


@taking(Prune)
def prune(call: Prune) -> Pruning:
    """Remove the adapters of a span of layers and write the smaller checkpoint.

    Give either `span` or `within`. With `within`, the span is chosen on a fixed random half of the examples
    of an ablation, and scores and interval are measured on the other half; or by a race, and they are
    measured on the examples that the span's verdict did not need. A PEFT checkpoint stays in PEFT's
    format. With `strength` the adapters are not removed: the new checkpoint has them scaled, with
    `strengths_by_layer` every layer or module by a number of its own. With `rank` they keep so many of their
    largest directions; with `ranks` and `within` the fewest that cost at most this in a study of ranks,
    chosen and measured on halves in the same way.

    Raises:
        CheckpointError, ModelError, DataError: the checkpoint, its base or its data cannot be opened, or the
            first or last layer of the span has no adapters.
        ResultsError: there is no ablation of this checkpoint, or no span within the tolerance.
    """
    use_threads(call.threads)
    checkpoint, out = choose_adapter(Path(call.checkpoint), call.adapter), Path(call.out)
    within = None if call.within is None else as_points("--within", call.within)
    choice = _Choice(_as_span(call.span)) if call.span is not None else None
    by_rank = None if call.ranks is None or within is None else chosen_rank(call.ranks, within)
    if by_rank is not None or call.rank is not None:
        choice = choice or _Choice(None)
    rank = by_rank.rank if by_rank is not None else call.rank or 0
    files = tuple(map(str, as_tuple(call.data)))
    check_files(checkpoint, call.encoding, *files)
    study: Ablation | Race | None = by_rank.study if by_rank is not None else None
    if within is not None and study is None:
        study = _chosen_by(call, checkpoint, files)
    with activity(f"prune: opening {checkpoint}", call.progress):
        arguments = AblationArguments(
            str(checkpoint),
            base=None if call.base is None else str(call.base),
            data=files,
            encoding=call.encoding,
            label_names=as_tuple(call.label_names),
            metric=_metric_of(study),
            **_examples_of(study),
            settings=AblationSettings(
                strength=call.strength,
                strengths_by_layer=call.strengths_by_layer,
                sites=call.sites,
                rank=rank,
            ),
            dequantise=call.dequantise,
            **vars(Prompting.of(call)),
            **vars(_generation_of(call, study)),
        )
        request = _remembering(prepare_ablation(arguments, choose_device(call.device)), files)
    if call.strengths_by_layer:
        choice = _Choice(None)
    if choice is None:
        assert study is not None
        assert within is not None
        with activity("prune: choosing the span", call.progress):
            if isinstance(study, Race):
                choice = _choose_by_race(request, study, checkpoint, within)
            else:
                choice = _choose(request, study, checkpoint, within, call.basis)
    if by_rank is not None:
        _refuse_other(request, by_rank.study, checkpoint)
        choice = _Choice(None, "half", by_rank.n_examples, by_rank.measured)
    source = as_peft(checkpoint, None if call.base is None else str(call.base)).folder
    pruned = prune_checkpoint(request, source, choice.span, out, call.progress)
    with activity("prune: computing intervals and tests", call.progress):
        return _measured(pruned, choice, out, rank)


def _as_span(span: Span | tuple[int, int] | int | str) -> Span:
    try:
        if isinstance(span, str):  # 0-4, or 3 for a single layer, or encoder 0-4
            stack, _, layers = span.rpartition(" ")
            first, dash, last = layers.partition("-")
            return Span(int(first), int(last if dash else first), stack)
        return as_span(span)
    except (TypeError, ValueError) as error:
        raise ResultsError(
            f"{must_be('--span', 'a first and a last layer, such as 0-4', span)}: {error}"
        ) from None


def _remembering(request: AblationRequest, data: Sequence[str]) -> AblationRequest:
    """The request with its data files recorded in the checkpoint's description, if that records none."""
    opened, rows = request.checkpoint, request.examples.rows
    if opened.description.task.files:
        return request
    files = {rows.name: tuple(map(with_absolute_paths, data))}
    task = replace(opened.description.task, files=files, fingerprints={rows.name: rows.fingerprint})
    description = replace(opened.description, task=task)
    return replace(request, checkpoint=replace(opened, description=description))


def _chosen_by(call: Prune, checkpoint: Path, data: Sequence[str]) -> Ablation | Race:
    """The study that the span is chosen by: an ablation or a race that is finished, or a race that runs now.

    Raises:
        ResultsError: the folder holds another study; see `race`.
    """
    if call.race:
        return race_for(call, checkpoint, data)
    given = call.chosen_by
    if isinstance(given, Ablation | Race):
        return given
    study = load(given)
    return study if isinstance(study, Ablation | Race) else ablations_of([given])[0]


def _metric_of(study: Ablation | Race | None) -> str | None:
    """The metric that the span was chosen by; None for that of the task."""
    if study is None:
        return None
    if isinstance(study, Race):
        return study.summary.metric
    return study.results.metric if study.has_predictions else study.summary.metric


def _generation_of(call: Prune, study: Ablation | Race | None) -> Generation:
    """How texts are written: as the user says, or as in the ablation."""
    asked = Generation.of(call)
    if asked.generate or study is None or isinstance(study, Race) or not study.has_predictions:
        return asked
    said = study.results.settings.get("generation")
    return asked if said is None else Generation(**{**said, "until": tuple(said.get("until", ()))})


def _examples_of(study: Ablation | Race | None) -> dict[str, Any]:
    """The split and the number of examples of the ablation, so that its span is measured on the same."""
    if study is None:
        return {}
    return {"split": study.summary.split, "max_examples": study.summary.n_examples}


def _choose(
    request: AblationRequest, study: Ablation, checkpoint: Path, within: float, basis: Basis
) -> _Choice:
    """The longest span within the tolerance by an ablation.

    Raises:
        ResultsError: the ablation is of another checkpoint, has no intervals, or no span is within.
    """
    if section_of(study.identity, "settings").get("by") == "module":
        raise ResultsError(
            f"{study.folder} is a map of layers and modules, which does not say which modules can go "
            "together; give --span FIRST-LAST with --sites NAMES"
        )
    _refuse_other(request, study, checkpoint)
    if study.has_predictions:
        chosen, measured = random_halves(study.results)
        if not len(chosen):
            raise ResultsError(
                f"{study.folder} has too few examples to choose a span on half of them; give --span"
            )
        spans, n_examples = span_costs(study.results.of_examples(chosen), basis), len(chosen)
    else:
        spans, n_examples, measured = _table(study, checkpoint, basis), len(request.examples.labels), None
    found = longest_removable(_with_adapters(spans, request), within, basis)
    if found is None:
        done = study.summary.done if study.summary.strength else "removed"
        limit = tolerance_text(within, study.summary.metric)
        judged = "by the estimate" if basis == "estimate" else "by the 95% interval"
        raise ResultsError(
            f"{study.folder}: no span can be {done} within {limit} {judged}, on the "
            f"{n_examples:,} examples that the span is chosen on; give a larger --within"
        )
    span = Span(int(found["first"]), int(found["last"]), str(found.get("stack", "")))
    warning = (study.summary.stacks or {}).get(span.stack, study.summary).warning
    return _Choice(span, "half" if study.has_predictions else "all", n_examples, measured, warning)


def _choose_by_race(request: AblationRequest, study: Race, checkpoint: Path, within: float) -> _Choice:
    """The longest span within the tolerance by a race; see `chosen_in_race`."""
    _refuse_other(request, study, checkpoint)
    span, n, rest = chosen_in_race(study, within)
    return _Choice(span, "all" if rest is None else "race", n, rest, study.summary.warning)


def _refuse_other(request: AblationRequest, study: Ablation | Race, checkpoint: Path) -> None:
    """Refuse an ablation of another checkpoint, base, data or settings.

    Raises:
        ResultsError: it is one.
    """
    if not study.identity:
        raise ResultsError(
            f"{study.folder} contains no {MANIFEST}, so the ablated checkpoint is unknown; give --span"
        )
    precision = section_of(study.identity, "settings").get("precision")  # which pruning does not choose
    what = "a race" if isinstance(study, Race) else "an ablation"
    refuse_changes(
        {name: own for name, own in study.identity.items() if name != "race"},
        {**request.identity, "code_schema": PREDICTIONS_VERSION.get(str(precision))},
        f"{study.folder} is not {what} of {checkpoint} as it is now",
        f"; run `adapter-probe ablate {checkpoint} --out FOLDER` and give that folder with --ablation, or "
        "give --span",
        apart=_MAY_DIFFER,
    )


def _with_adapters(spans: pd.DataFrame, request: AblationRequest) -> pd.DataFrame:
    """The distinct spans without bare layers at their ends, in each stack of layers."""
    adapted = adapted_layers(request)
    if "stack" not in spans:
        return spans_with_adapters(spans, adapted)
    ends = np.cumsum([one.n_layers for one in request.model.stacks])[:-1]
    parts = zip(request.model.stacks, np.split(adapted, ends))
    return pd.concat(
        [spans_with_adapters(of_stack(spans, one.name), own) for one, own in parts], ignore_index=True
    )


def _table(study: Ablation, checkpoint: Path, basis: Basis) -> pd.DataFrame:
    if "ci_low_points" in study.spans:
        return study.spans
    if basis == "interval":
        raise ResultsError(
            f"{study.folder} has no intervals; run `adapter-probe ablate {checkpoint}` again, or give "
            "--basis estimate"
        )
    return study.spans.assign(ci_low_points=np.nan)


def _measured(pruned: PruneMeasurement, choice: _Choice, out: Path, rank: int) -> Pruning:
    results = pruned.results if choice.measured is None else pruned.results.of_examples(choice.measured)
    row = ablation_tables(results).spans.iloc[0]
    before, after = row_scores(results).tolist()
    return Pruning(
        span=pruned.span,
        chosen_on=choice.chosen_on,
        n_examples_chosen_on=choice.n_examples,
        n_examples=results.n_examples,
        metric=results.metric,
        score_before=before,
        score_after=after,
        delta_points=float(row["delta_points"]),
        delta_interval_points=(float(row["ci_low_points"]), float(row["ci_high_points"])),
        p_value=float(row.get("p_value", np.nan)),
        adapter_parameters_before=pruned.adapters_before,
        adapter_parameters_after=pruned.adapters_after,
        seconds_before=pruned.seconds_before,
        seconds_after=pruned.seconds_after,
        checkpoint=out,
        warning=choice.warning,
        strength=pruned.strength,
        rank=rank or None,
    )
