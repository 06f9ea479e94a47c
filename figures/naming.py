"""What figures of several studies are told apart by: labels of panels and endings of file names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from adapter_probe.analysis.study_records import AblationRecord, StudyRecord
from adapter_probe.errors import ResultsError
from adapter_probe.wording import count_text

from .ablation_words import settings_text, study_label


def with_labels(studies: Sequence[StudyRecord], labels: Sequence[str]) -> list[StudyRecord]:
    """The studies with their panel labels, in order; sweeps have none. Equal labels are told apart.

    A study of several stacks of layers becomes one of each, which is a panel of its own. Equal labels are
    extended by the settings that differ or, if those are equal, by folders.

    Raises:
        ResultsError: the number of labels differs from that of ablations.
    """
    n_ablations = sum(isinstance(study, AblationRecord) for study in studies)
    if labels and len(labels) != n_ablations:
        raise ResultsError(
            f"{count_text(len(labels), 'label')} for {count_text(n_ablations, 'ablation')}; give --label "
            "once per ablation, in the order of the folders"
        )
    ablations, left = [one for one in studies if isinstance(one, AblationRecord)], iter(labels)
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
        for index, words in zip(same, _distinguishing_texts([studies[index] for index in same])):
            found[index] = f"{label}, {words}" if words else label
    return found


def _distinguishing_texts(studies: Sequence[StudyRecord]) -> list[str]:
    """Short texts that distinguish the studies: settings, folder, or parent folder."""
    folders = [study.folder.resolve() for study in studies]
    settings = [settings_text(study) if isinstance(study, AblationRecord) else "" for study in studies]
    for words in (settings, [folder.name for folder in folders], [folder.parent.name for folder in folders]):
        if len(set(words)) == len(words):
            return words
    return [folder.name for folder in folders]


def alike_ablations(
    studies: Sequence[StudyRecord], by_module: bool = False
) -> Iterator[tuple[str, list[AblationRecord]]]:
    """The ablations that belong into one figure, by what was done to the spans, with the file's ending.

    Args:
        studies: all studies.
        by_module: whether to give the maps of layers and modules instead of the studies of spans.
    """
    ablations = [one for one in studies if isinstance(one, AblationRecord) and one.by_module == by_module]
    for kind, suffix in (("ablated", ""), ("kept", "-kept")):
        alike = [one for one in ablations if one.summary.study == kind]
        strengths = dict.fromkeys(one.summary.strength or 0.0 for one in alike)
        for strength in sorted(strengths, key=str):
            text = "-by-layer" if isinstance(strength, str) else f"{strength:g}"
            own = f"-strength{text}" if strength and len(strengths) > 1 else ""
            yield f"{suffix}{own}", [one for one in alike if (one.summary.strength or 0.0) == strength]


def suffix_of(study: StudyRecord, studies: Sequence[StudyRecord]) -> str:
    """Suffix that distinguishes a study's files from others of its kind: empty, task, folder or number."""
    if len(studies) == 1:
        return ""
    if isinstance(study, AblationRecord) and study.stack and len({one.folder for one in studies}) == 1:
        return f"-{study.stack}"
    for names in ([_task_slug(one) for one in studies], [one.folder.resolve().name for one in studies]):
        name = names[studies.index(study)]
        if name and names.count(name) == 1:
            return f"-{name}"
    same = [other for other in studies if other.folder.resolve().name == name]
    return f"-{name}-{1 + same.index(study)}"


def _task_slug(study: StudyRecord) -> str:
    """An ablation's task in a form allowed in file names; empty for other studies."""
    if not isinstance(study, AblationRecord):
        return ""
    return "-".join(re.findall(r"[a-z0-9]+", study_label(study).lower()))
