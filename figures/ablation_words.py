"""What figures of ablations say: names of panels, notes in grids, and the sentences that captions share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from adapter_probe import wording
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.analysis.comparing import AverageRecord, ComparisonRecord, DataComparisonRecord
from adapter_probe.analysis.score_changes import StudyKind, drop_points, section_of, tested_spans
from adapter_probe.analysis.study_records import AblationRecord, StudyRecord, parts_of
from adapter_probe.analysis.summary import NOT_DIFFERENT, NOT_WORSE, AblationSummary
from adapter_probe.errors import ResultsError
from adapter_probe.settings import texts_of
from adapter_probe.wording import (
    amount_text,
    common_value,
    count_text,
    done_text,
    drop_text,
    examples_text,
    metric_name,
    named_score,
    named_test,
    printable,
    score_text,
    task_label,
)

from .grid import forms_of
from .style import escape_mathtext

SpanRecord = AblationRecord | AverageRecord | ComparisonRecord
"""A study of spans, or of layers by modules."""


@dataclass(frozen=True)
class Words:
    """The words of one study of spans: what was done to the adapters, and drops with their unit.

    Attributes:
        strength: what the adapters were multiplied by; 0 if they were switched off.
        rank: how many directions they kept; 0 if none.
        adapters: what was switched: ``adapters``, or the ``changes`` of a fine-tuned model.
    """

    metric: str | None
    study: StudyKind = "ablated"
    strength: float | str = 0.0
    rank: int = 0
    adapters: str = "adapters"

    @classmethod
    def of(cls, record: SpanRecord | DataComparisonRecord) -> Words:
        """The words of a study, or of several that differ in seed, checkpoint or data."""
        if isinstance(record, AblationRecord):
            said, noun = record.summary, record.parts
            return cls(said.metric, said.study, said.strength or 0.0, said.rank or 0, noun)
        identities = [one for one in record.identity.values() if isinstance(one, Mapping)]
        noun = "changes" if identities and {*map(parts_of, identities)} == {"changes"} else "adapters"
        metric = record.metrics[0] if isinstance(record, DataComparisonRecord) else record.metric
        return cls(metric, record.study, record.strength, record.rank, noun)

    @property
    def done(self) -> str:
        """What was done to the adapters: `switched off`, `kept on`, `scaled by 0.5`."""
        return done_text(self.study, self.strength, self.rank)

    @property
    def off(self) -> str:
        """What was done where they were not left on, in a word or two: `off`, `scaled by 0.5`."""
        return done_text("ablated", self.strength, self.rank).removeprefix("switched ")

    @property
    def removed(self) -> str:
        """The same, where it is about what the checkpoint has: `removed`, `alone`, `scaled by 0.5`."""
        return "alone" if self.study == "kept" else self.off.replace("off", "removed")

    @property
    def drop(self) -> str:
        """What a change for the worse is called."""
        return wording.drop_name(self.metric)

    @property
    def best_span(self) -> str:
        """What the longest or shortest span within a tolerance is called."""
        return wording.best_span_text(self.study, self.strength, self.rank)

    def done_to(self, where: str) -> str:
        """What was done to the adapters of some layers, as a clause; `where` says which, with its blank."""
        if self.study == "ablated":
            return f"the {self.adapters} {where} are {self.done}, without retraining"
        return f"the {self.adapters} {where} are the only ones kept on, without retraining"

    def done_to_span(self) -> str:
        """What was done to the adapters of a span, as a clause."""
        where = "in a contiguous span of layers"
        if self.study == "ablated":
            return self.done_to(where)
        others = f" and the others {replace(self, study='ablated').done}" if self.off != "off" else ""
        return f"only the {self.adapters} {where} are kept on{others}, without retraining"

    def span(self, first: int, last: int) -> str:
        """A span with what was done to it."""
        done = "alone" if self.study == "kept" else self.off
        return f"{wording.layers_text(first, last).capitalize()} {done}"

    def amount(self, points: float) -> str:
        """A number of points with its unit; `undefined` for NaN."""
        return "undefined" if math.isnan(points) else amount_text(points, self.metric)

    def number(self, points: float) -> str:
        """A number of points without its unit; `undefined` for NaN."""
        return self.amount(points).split(" ")[0]

    @property
    def unit(self) -> str:
        """The unit with a blank before it; empty for a perplexity."""
        return amount_text(0.0, self.metric).removeprefix(self.number(0.0))


def study_label(record: AblationRecord) -> str:
    """Name of an ablation in a figure: its label, or by default its task, and its stack of several."""
    name = printable(record.label) or task_label(record.summary.task)
    return f"{name}, {record.stack}" if record.stack else name


def with_labels(studies: Sequence[StudyRecord], labels: Sequence[str]) -> list[StudyRecord]:
    """The studies with their panel labels, in order; sweeps have none. Equal labels are told apart.

    A study of several stacks of layers becomes one of each, which is a panel of its own. Equal labels are
    extended by the settings that differ or, if those are equal, by folders.

    Raises:
        ResultsError: the number of labels differs from that of ablations.
    """
    ablations, left = [one for one in studies if isinstance(one, AblationRecord)], iter(labels)
    if labels and len(labels) != len(ablations):
        raise ResultsError(
            f"{count_text(len(labels), 'label')} for {count_text(len(ablations), 'ablation')}; give --label "
            "once per ablation, in the order of the folders"
        )
    ablations = [replace(one, label=next(left)) for one in ablations] if labels else ablations
    apart = told_apart([study_label(one) for one in ablations], ablations)
    named = iter([replace(one, label=label) for one, label in zip(ablations, apart)])
    return [
        part
        for study in studies
        for part in (next(named).in_stacks if isinstance(study, AblationRecord) else [study])
    ]


def told_apart(labels: Sequence[str], studies: Sequence[StudyRecord]) -> list[str]:
    """The labels of studies; equal ones are extended by settings that differ or, without any, by folders."""
    found = list(labels)
    for label in {label for label in labels if labels.count(label) > 1}:
        same = [index for index, other in enumerate(labels) if other == label]
        alike = [studies[index] for index in same]
        folders = [study.folder.resolve() for study in alike]
        names, parents = [folder.name for folder in folders], [folder.parent.name for folder in folders]
        settings = [_settings_text(study) if isinstance(study, AblationRecord) else "" for study in alike]
        apart = next((own for own in (settings, names, parents) if len(set(own)) == len(own)), names)
        for index, words in zip(same, apart):
            found[index] = f"{label}, {words}" if words else label
    return found


def _settings_text(study: AblationRecord) -> str:
    """The non-default settings of an ablation as text: `ffn only, groups of 3 layers`."""
    chosen = texts_of(AblationSettings, section_of(study.identity, "settings"), "note").values()
    said = study.summary
    split = "" if said.split == "validation" else said.split
    return ", ".join(part for part in (*chosen, split, said.data and task_label(said.data)) if part)


def alike_ablations(
    studies: Sequence[StudyRecord], by_module: bool = False
) -> Iterator[tuple[str, list[AblationRecord]]]:
    """The ablations that belong into one figure, by what was done to the spans, with the file's ending.

    Changes in points belong together, and those by each metric with a unit of its own, such as nats. With
    `by_module`, the maps of layers and modules, which are no studies of spans.
    """
    ablations = [one for one in studies if isinstance(one, AblationRecord) and one.by_module == by_module]
    for kind, suffix in (("ablated", ""), ("kept", "-kept")):
        alike = [one for one in ablations if one.summary.study == kind]
        said = [one.summary for one in alike]
        done = [(one.strength or 0.0, one.rank or 0, wording.own_unit(one.metric)) for one in said]
        for strength, rank, unit in sorted(set(done), key=str):
            text = "-by-layer" if isinstance(strength, str) else f"{strength:g}"
            own = (f"-strength{text}" if strength else "") + (f"-rank{rank}" if rank else "")
            own = f"{own}{unit and f'-{unit}'}" if len(set(done)) > 1 else ""
            yield f"{suffix}{own}", [one for one, its in zip(alike, done) if its == (strength, rank, unit)]


def common_metric(records: Iterable[AblationRecord]) -> str | None:
    """The common metric of the ablations; None if it differs."""
    return common_value(record.summary.metric for record in records)


def drop_label(records: Sequence[AblationRecord], metric: str | None) -> str:
    """Label of drops in the metric on the studies' data, where they agree; see `wording.drop_label`."""
    name, own = metric_name(metric), [record.summary for record in records]
    if data := common_value(one.data for one in own):
        return wording.drop_label(metric, f"{name} on {task_label(data)}")
    split = "" if any(one.data for one in own) else common_value(one.split for one in own)
    return wording.drop_label(metric, f"{split or ''} {name}".strip())


def notes_of(record: SpanRecord) -> list[str]:
    """The notes in a grid: what it is of, the number of examples, intact scores, everything switched off."""
    if not isinstance(record, AblationRecord):
        return _joint_notes(record)
    said, delta = record.summary, record.summary.removed_delta_points
    lost = None if delta is None else -delta
    notes = [f"{escape_mathtext(study_label(record))}, n = {said.n_examples:,}"]
    if not wording.is_distance(said.metric):
        notes.append(f"intact {named_score(said.intact_score, said.metric)}")
    notes.append(f"{said.removed}: {drop_text(lost, said.metric).removesuffix(' points')}")
    if said.majority_score is not None:
        notes.append(f"{said.baseline} {score_text(said.majority_score, said.metric)}")
    reason = _why_spans_mean_nothing(said)
    return notes + ([f"{reason}:", "spans not informative"] if reason else [])


def _joint_notes(record: AverageRecord | ComparisonRecord) -> list[str]:
    metric, n_examples = record.metric, f"n = {record.n_examples:,}"
    notes = [record.stack] if record.stack else []
    notes += ["spans not informative"] if record.warnings else []
    if isinstance(record, ComparisonRecord):
        names = [escape_mathtext(name) for name in record.names]
        notes += [f"{names[1]} minus {names[0]}", f"{n_examples}, {metric_name(metric)}"]
        intact = [
            f"{name}: intact {score_text(score, metric)}" for name, score in zip(names, record.intact_scores)
        ]
    else:
        shown = "mean" if record.by_module else "mean ± s.d."
        notes += [f"{shown} of {len(record.names)} studies", n_examples]
        intact = [f"intact {metric_name(metric)} {score_range(record)}"]
    return notes + ([] if wording.is_distance(metric) else intact)


def about_joint(record: AverageRecord | ComparisonRecord) -> str:
    """What several studies are of, for a caption: the model, the examples and the intact scores."""
    metric, model = record.metric, f"{record.model}; " if record.model else ""
    about = model + examples_text(record.n_examples, metric) + (f" of {record.data}" if record.data else "")
    scores = ", ".join(score_text(score, metric) for score in record.intact_scores)
    return about if wording.is_distance(metric) else f"{about}, intact {scores}"


def score_range(record: AverageRecord) -> str:
    """The lowest and the highest intact score of the studies of a mean, or one where they look the same."""
    low, high = (score_text(end(record.intact_scores), record.metric) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def _why_spans_mean_nothing(summary: AblationSummary) -> str | None:
    """Why the spans of a study are not informative by its tests; None if they are."""
    if summary.warning is None:
        return None
    if summary.warning.startswith(NOT_DIFFERENT):
        return f"not different with {summary.removed}"
    if summary.warning.startswith(NOT_WORSE):
        return f"no better than with {summary.removed}"
    article = "the" if summary.baseline == "majority class" else "a"
    return f"no better than {article} {summary.baseline}"


def warnings_of(records: Iterable[AblationRecord]) -> list[str]:
    """A sentence for each study whose spans are not informative; comparisons with itself have no test."""
    return [
        f"{study_label(one)}: the intact model is {reason}"
        f"{'' if wording.is_distance(one.summary.metric) else ' at the 5% level'}, so its spans are not "
        "informative."
        for one in records
        if (reason := _why_spans_mean_nothing(one.summary))
    ]


def checkpoint_sentence(record: AblationRecord) -> str:
    """A checkpoint with its model, data and scores."""
    found = record.summary
    what = f"intact {metric_name(found.metric)} {score_text(found.intact_score, found.metric)}"
    if wording.is_distance(found.metric):
        what = "compared with its own intact outputs"
    said = [examples_text(found.n_examples, found.metric), what]
    if found.majority_score is not None:
        said.append(f"{found.baseline} {score_text(found.majority_score, found.metric)}")
    model = f" ({found.model})" if found.model else ""
    said[0] += f" of {task_label(found.data)}" if found.data else ""
    return f"{study_label(replace(record, stack=''))}: one trained checkpoint{model}, {', '.join(said)}."


def question_sentences(question: Sequence[str] | None) -> list[str]:
    """What a study asks of which rows, and what of them is not read, for a caption."""
    lines = [
        line for number, line in enumerate(question or ()) if not number or line.startswith("not read: ")
    ]
    return [f"Asked: {printable('; '.join(lines))}."] if lines else []


def checkpoint_sentences(records: Sequence[AblationRecord]) -> list[str]:
    """A sentence on every checkpoint, and on the stacks where grids are of one of several."""
    found = list(dict.fromkeys(map(checkpoint_sentence, records)))
    found += question_sentences(records[0].summary.question) if len(records) == 1 else []
    stacks = list(dict.fromkeys(record.stack for record in records if record.stack))
    if any(stack.endswith("adapters together") for stack in stacks):
        said = "In each map the other adapters stay on; in the last one, all adapters are switched together."
        return [said, *found]
    if stacks:
        found.insert(
            0, f"Layers are numbered within {' and '.join(stacks)}, and the layers of the others stay on."
        )
    found += dict.fromkeys(
        f"The study is of {one.summary.switched} only: the other {one.parts} stay on."
        for one in records
        if one.summary.study == "kept" and one.summary.switched
    )
    if any(one.parts == "changes" for one in records):
        found.append(
            "The changes of a fine-tuned model in a layer are the differences of its tensors from those of "
            "the base."
        )
    return found


def tests_of(records: Iterable[AblationRecord]) -> str:
    """The names of the tests behind the p-values."""
    found = dict.fromkeys(named_test(one.summary.metric) for one in records)
    return " or ".join(found) or "a two-sided test"


def at_level(tests: str, frames: Iterable[pd.DataFrame], what: str = "spans") -> str:
    """By which tests something is significant at 0.05, and over how many spans Holm corrects, if over any."""
    counts = {tested_spans(frame) for frame in frames if "p_holm" in frame}
    over = f" over {' or '.join(map(str, sorted(counts)))} {what}" if counts else ""
    return f"at 0.05 by {tests}" + ("" if counts == {1} else f", Holm-corrected{over}")


def ring_sentence(
    records: Sequence[AblationRecord], frames: Sequence[pd.DataFrame], what: str = "span"
) -> str:
    """What a ring in a grid of ablations means; empty where nothing was tested."""
    if not any("significant" in frame and frame["delta_points"].notna().any() for frame in frames):
        return ""
    if not any(tested_spans(one.spans) for one in records):
        few = " or ".join(dict.fromkeys(wording.drawn_units(one.summary.metric) for one in records))
        return f"Rings, or in small cells dots: no {what} was tested, since there are too few {few}."
    return (
        f"A ring, or in small cells a dot, marks a {what} that does not differ significantly from the intact"
        f" model {at_level(tests_of(records), (one.spans for one in records), f'{what}s')}."
    )


def gains_sentence(frame: pd.DataFrame, metric: str | None, what: str) -> str:
    """What blue cells mean; empty where there are none."""
    printed = forms_of(drop_points(frame["delta_points"]), metric)[0][0]
    if wording.is_distance(metric) or not (printed < 0).any():
        return ""
    return f"Blue cells, with a minus sign: the {what} improves."
