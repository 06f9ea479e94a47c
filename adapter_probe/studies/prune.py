"""Prune a checkpoint: remove a given span, or the longest removable span within a tolerance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.removable import (
    Basis,
    longest_removable,
    random_halves,
    span_costs,
    spans_with_adapters,
)
from adapter_probe.analysis.score_changes import of_stack, row_scores, section_of
from adapter_probe.argument_checks import as_tuple, taking
from adapter_probe.checkpoints.adapter_folder import choose_adapter
from adapter_probe.checkpoints.mlx import as_peft
from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.data.lm_eval_tasks import with_absolute_paths
from adapter_probe.device import choose_device, use_threads
from adapter_probe.errors import ResultsError, must_be
from adapter_probe.probe.ablation_arguments import PREDICTIONS_VERSION, AblationArguments
from adapter_probe.probe.prune import PruneMeasurement, adapted_layers, prune_checkpoint
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.progress import activity
from adapter_probe.results.fingerprints import refuse_changes
from adapter_probe.results.schema import MANIFEST
from adapter_probe.settings import as_points
from adapter_probe.spans import Span, as_span
from adapter_probe.wording import switched_parts, tolerance_text

from .ablation_study import Ablation
from .checkpoint_arguments import Prune
from .example_files import check_files, of_columns
from .load import ablations_of


@dataclass(frozen=True)
class Pruning:
    """The outcome of pruning one span: savings and change of the score.

    Attributes:
        span: the layers whose adapters were removed.
        chosen_on: None if the span was given; ``half`` if it was chosen on one half of the examples, and
            scores and interval were measured on the other half.
        n_examples_chosen_on: number of examples that the span was chosen on; None if the span was given.
        n_examples: number of examples that the scores and the interval were measured on.
        metric: metric of the scores: the ablation's, or the task's if the span was given.
        score_before, score_after: fractions; NaN where undefined.
        delta_points: score after minus score before, in percentage points.
        delta_interval_points: 95% interval of `delta_points`.
        p_value: p-value of the difference; NaN for a distance from the outputs before, which has no test.
        adapter_parameters_before, adapter_parameters_after: numbers of adapter parameters.
        seconds_before, seconds_after: time of one evaluation of a few examples on this machine.
        checkpoint: folder of the new checkpoint.
        strength: what the span's adapters were multiplied by; 0 if they were removed, ``by layer`` if every
            layer or module has its own strength.
        rank: how many directions they keep; None where they were not truncated.
        parts: ``adapters`` or, of a fine-tuned model, ``changes``, of which the numbers of parameters are.
        question: what the scores are of, one line each.
        warning: why the ablation that the span was chosen by is not informative, such as a model that is no
            better than guessing; None if it is informative.
    """

    span: Span
    chosen_on: Literal["half"] | None
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
    parts: str = "adapters"
    question: tuple[str, ...] = ()


_MAY_DIFFER = frozenset(f"settings.{name}" for name in (*AblationSettings.choice_of_spans, "precision"))
"""Settings in which the ablation may differ from pruning: its choice of spans and its precision."""


@dataclass(frozen=True, eq=False)
class _Choice:
    """The layers that something becomes of, and how they were chosen.

    Attributes:
        span: the layers; None for all.
        n_examples: how many examples they were chosen on; None if they were given.
        measured: the examples held out to measure the cost on, int ``[examples]``; None for all.
        warning: see `Pruning`.
    """

    span: Span | None
    n_examples: int | None = None
    measured: np.ndarray | None = None
    warning: str | None = None


@taking(Prune)
def prune(call: Prune) -> Pruning:
    """Remove the adapters of a span of layers and write the smaller checkpoint.

    Give either `span` or `within`. With `within`, the span is chosen on a fixed random half of the examples
    of an ablation, and scores and interval are measured on the other half. A PEFT checkpoint stays in PEFT's
    format. With `strength` the adapters are not removed: the new checkpoint has them scaled, every layer or
    module by a number of its own where it is a list or a mapping. With `rank` they keep so many of their
    largest directions.

    Raises:
        CheckpointError, ModelError, DataError: the checkpoint, its base or its data cannot be opened, or the
            first or last layer of the span has no adapters.
        ResultsError: there is no ablation of this checkpoint, or no span within the tolerance.
    """
    use_threads(call.threads)
    checkpoint = choose_adapter(Path(call.checkpoint), call.adapter)
    within = None if call.within is None else as_points("--within", call.within)
    choice, files = _Choice(_as_span(call.span)), tuple(map(str, as_tuple(call.data)))
    if call.columns:
        files = of_columns(files, call.columns, checkpoint, call.encoding)
    check_files(checkpoint, call.encoding, *files)
    by = None if within is None else _chosen_by(call)
    base = None if call.base is None else str(call.base)
    arguments = AblationArguments.of(
        call, checkpoint=str(checkpoint), base=base, data=files, **_as_ablated(call, by),
        settings=AblationSettings(strength=call.strength, sites=call.sites, rank=call.rank or 0),
    )  # fmt: skip
    with activity(f"prune: opening {checkpoint}", call.progress):
        request = _recording_data(prepare_ablation(arguments, choose_device(call.device)), files)
    if by is not None and within is not None:
        _refuse_other(request, by, checkpoint)
        with activity("prune: choosing the span", call.progress):
            choice = _by_ablation(request, by, within, call.basis)
    pruned = prune_checkpoint(
        request, as_peft(checkpoint, base)[0], choice.span, Path(call.out), call.progress
    )
    with activity("prune: computing intervals and tests", call.progress):
        return _outcome(call, request, choice, pruned)


def _as_ablated(call: Prune, by: Ablation | None) -> dict[str, Any]:
    """The examples and prompts of the ablation that the span is chosen by; nothing without one."""
    if by is None:
        return {}
    asked: dict[str, Any] = {"split": by.summary.split, "max_examples": by.summary.n_examples}
    asked["metric"], said = by.results.metric, by.results.settings.get("generation")
    if said is not None and not call.generate:
        asked |= {**said, "until": tuple(said.get("until", ()))}
    return asked


def _recording_data(request: AblationRequest, files: tuple[str, ...]) -> AblationRequest:
    """The request with a task of this project's format that records the data, as the new checkpoint does."""
    opened, rows = request.checkpoint, request.examples.rows
    task = opened.description.task
    if not isinstance(opened, OpenedPlaced) or task.files:
        return request
    own = {rows.name: tuple(map(with_absolute_paths, files))}
    task = replace(task, files=own, fingerprints={rows.name: rows.fingerprint})
    return replace(request, checkpoint=opened.with_task(task))


def _outcome(call: Prune, request: AblationRequest, choice: _Choice, pruned: PruneMeasurement) -> Pruning:
    results = pruned.results if choice.measured is None else pruned.results.of_examples(choice.measured)
    row = ablation_tables(results).spans.iloc[0]
    before, after = row_scores(results).tolist()
    return Pruning(
        span=pruned.span,
        chosen_on=None if choice.n_examples is None else "half",
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
        checkpoint=Path(call.out),
        warning=choice.warning,
        strength=pruned.strength,
        rank=call.rank,
        parts=switched_parts(request.checkpoint.description.method.name),
        question=request.question,
    )


def _as_span(span: Span | tuple[int, int] | int | str | None) -> Span | None:
    try:
        if isinstance(span, str):  # 0-4, or 3 for a single layer, or encoder 0-4
            stack, _, layers = span.rpartition(" ")
            first, dash, last = layers.partition("-")
            return Span(int(first), int(last if dash else first), stack)
        return None if span is None else as_span(span)
    except (TypeError, ValueError) as error:
        raise ResultsError(
            f"{must_be('--span', 'a first and a last layer, such as 0-4', span)}: {error}"
        ) from None


def _chosen_by(call: Prune) -> Ablation:
    """The finished ablation that the span is chosen by."""
    study = ablations_of([call.chosen_by])[0]
    if study.record.by_module:
        raise ResultsError(
            f"{study.folder} is a map of layers and modules, which does not say which modules can go "
            "together; give --span FIRST-LAST with --sites NAMES"
        )
    return study


def _by_ablation(request: AblationRequest, study: Ablation, within: float, basis: Basis) -> _Choice:
    """The longest span within the tolerance on one half of an ablation's examples."""
    chosen, measured = random_halves(study.results)
    if not len(chosen):
        raise ResultsError(
            f"{study.folder} has too few examples to choose a span on half of them; give --span"
        )
    spans, n_examples = span_costs(study.results.of_examples(chosen), basis), len(chosen)
    adapted, stacks = adapted_layers(request), request.model.stacks
    if "stack" in spans:
        parts = zip(stacks, np.split(adapted, np.cumsum([one.n_layers for one in stacks])[:-1]))
        own = [spans_with_adapters(of_stack(spans, one.name), there) for one, there in parts]
        spans = pd.concat(own, ignore_index=True)
    else:
        spans = spans_with_adapters(spans, adapted)
    found = longest_removable(spans, within, basis)
    if found is None:
        done = study.summary.done if study.summary.strength else "removed"
        limit = tolerance_text(within, study.summary.metric)
        judged = "by the estimate" if basis == "estimate" else "by the 95% bound"
        raise ResultsError(
            f"{study.folder}: no span can be {done} within {limit} {judged}, on the "
            f"{n_examples:,} examples that the span is chosen on; give a larger --within"
        )
    span = Span(int(found["first"]), int(found["last"]), str(found.get("stack", "")))
    warning = (study.summary.stacks or {}).get(span.stack, study.summary).warning
    return _Choice(span, n_examples, measured, warning)


def _refuse_other(request: AblationRequest, study: Ablation, checkpoint: Path) -> None:
    """Refuse an ablation of another checkpoint, base, data or settings."""
    if not study.identity:
        raise ResultsError(
            f"{study.folder} contains no {MANIFEST}, so the ablated checkpoint is unknown; give --span"
        )
    precision = section_of(study.identity, "settings").get("precision")  # which pruning does not choose
    refuse_changes(
        study.identity,
        {**request.identity, "code_schema": PREDICTIONS_VERSION.get(str(precision))},
        f"{study.folder} is not an ablation of {checkpoint} as it is now",
        f"; run `adapter-probe ablate {checkpoint} --out FOLDER` and give that folder with --ablation, or "
        "give --span",
        apart=_MAY_DIFFER,
    )
