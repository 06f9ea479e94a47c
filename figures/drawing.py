"""A figure together with the files written next to it: its numbers as CSV and its caption."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pandas as pd
from matplotlib.figure import Figure

from adapter_probe.analysis.study_records import AblationRecord, StudyRecord
from adapter_probe.results.atomic import make_folder, write_csv, write_text

from . import style
from .ablation_words import study_label
from .venues import FigureOptions

SOURCE = "Houlsby et al. (2019)"
"""How captions and legends cite the paper whose values they show."""

_POINT_DECIMALS = 9

RecordT = TypeVar("RecordT")


@dataclass(frozen=True, eq=False)
class Drawing:
    """A figure, drawn within `style.paper_style`, that is ready to be written; `title` is for metadata."""

    stem: str
    title: str
    figure: Figure
    frame: pd.DataFrame
    caption: str
    identity: Mapping[str, object]

    def write(self, folder: str | Path, options: FigureOptions) -> tuple[Path, ...]:
        """Write the figure in every format, ``<stem>.csv`` and ``<stem>.txt``; return the paths."""
        folder = make_folder(folder)
        paths = style.save(
            self.figure, folder, self.stem, title=self.title, identity=self.identity, formats=options.formats
        )
        csv, text = folder / f"{self.stem}.csv", folder / f"{self.stem}.txt"
        write_csv(csv, without_noise_of_points(self.frame))
        write_text(text, self.caption + "\n")
        return (*paths, csv, text)


def without_noise_of_points(frame: pd.DataFrame) -> pd.DataFrame:
    """A table as it is written: points without the errors of floating point that older results have."""
    return frame.round({name: _POINT_DECIMALS for name in frame if str(name).endswith("_points")})


def identity_of(studies: Sequence[StudyRecord]) -> dict[str, object]:
    """The identity of one study, or a list of several."""
    known: list[dict[str, object]] = []  # of a study's stacks once
    for study in studies:
        if not getattr(study, "stack", "") or dict(study.identity) not in known:
            known.append(dict(study.identity))
    return known[0] if len(known) == 1 else {"studies": known}


def caption_of(sentences: Iterable[object]) -> str:
    """The sentences as one paragraph, without those that are empty or False."""
    return " ".join(str(sentence) for sentence in sentences if sentence)


def undefined_text(n: int, what: str) -> str:
    """How undefined values are shown, and their number; empty if there are none."""
    return f"{what} are undefined ({n})." if n else ""


def joined(named: Sequence[tuple[str, pd.DataFrame]], published: pd.DataFrame | None = None) -> pd.DataFrame:
    """The frames of several grids or curves with a column that names each, then the published ones."""
    if len(named) == 1 and published is None:
        return named[0][1]
    frames = [frame.assign(grid=name)[["grid", *frame]] for name, frame in named]
    return pd.concat([*frames, *([] if published is None else [published])], ignore_index=True)


def of_kind(studies: Sequence[object], kind: type[RecordT]) -> Iterator[tuple[RecordT, str]]:
    """The studies of one kind, each with the suffix of its files; see `suffix_of`."""
    found = [study for study in studies if isinstance(study, kind)]
    return ((study, suffix_of(study, found)) for study in found)


def suffix_of(study: StudyRecord, studies: Sequence[StudyRecord]) -> str:
    """Suffix that distinguishes a study's files from others of its kind: empty, task, folder or number."""
    if len(studies) == 1:
        return ""
    if isinstance(study, AblationRecord) and study.stack and len({one.folder for one in studies}) == 1:
        return f"-{study.stack}"
    folders, names = [one.folder.resolve().name for one in studies], []
    for one in studies:
        label = study_label(one).lower() if isinstance(one, AblationRecord) else ""
        names.append("-".join(re.findall(r"[a-z0-9]+", label)))
    for known in (names, folders):
        name = known[studies.index(study)]
        if name and known.count(name) == 1:
            return f"-{name}"
    same = [other for other, folder in zip(studies, folders) if folder == name]
    return f"-{name}-{1 + same.index(study)}"
