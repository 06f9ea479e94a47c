"""The arguments of the functions that draw and report finished studies; see `adapter_probe.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.figure_settings import FigureFiles, Look
from adapter_probe.settings import Encoded, required, setting

if TYPE_CHECKING:
    from .study_base import DrawnStudy


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Draw(Look):
    """The arguments of `adapter_probe.draw`."""

    studies: DrawnStudy | str | Path | Sequence[DrawnStudy | str | Path] = field(
        metadata=required(
            "results folders, or checkpoints that contain ablations. In Python also studies.",
            metavar="FOLDER...", shell=list[Path], argument=True, place="results",
        )
    )  # fmt: skip
    out: str | Path | None = setting(
        None, "output folder; by default the results folder of a single study, and otherwise ``figures``.",
        metavar="FOLDER", positional=True,
    )  # fmt: skip
    average: bool = setting(False, "draw the mean over ablations that differ in the training seed.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Report(Encoded):
    """The arguments of `adapter_probe.report`."""

    panel = "Output"
    error: ClassVar[type[AdapterProbeError]] = ResultsError

    folders: DrawnStudy | str | Path | Sequence[DrawnStudy | str | Path] = field(
        metadata=required(
            "results folders, or checkpoints that contain ablations. In Python also ablations, their "
            "averages and comparisons, studies of strengths and ranks, and sweeps.",
            metavar="FOLDER...", shell=list[Path], argument=True, place="results",
        )
    )  # fmt: skip
    out: str | Path | None = setting(
        None,
        "output file, by default report.html.",
        metavar="FILE",
        flags=("--out", "-o"),
        positional=True,
    )
    examples: bool = setting(
        False,
        "include the texts of examples whose prediction changes. Omit it for private data.",
        panel="Data",
    )
    checkpoints: str | Path | Sequence[str | Path] = setting(
        (), "checkpoint of an ablation whose results folder is no longer inside it.", panel="Data",
        metavar="FOLDER", shell=list[Path], flags=("--checkpoint",), place="checkpoint",
    )  # fmt: skip
    data: str | Path | Sequence[str | Path] = setting(
        (), "file of the evaluated examples, if the ablation was given `data`.", panel="Data",
        shell=list[Path], place="file",
    )  # fmt: skip
    tolerance: float = setting(
        1.0, "initial position of the tolerance slider, in percentage points.", metavar="POINTS"
    )
    average: bool = setting(False, "begin with the mean over ablations that differ in the training seed.")
    compare: bool = setting(False, "begin with the difference of two ablations, second minus first.")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Compare(FigureFiles):
    """The options of the command `compare`; `adapter_probe.compare` takes the two ablations alone."""

    a: Path = field(
        metadata=required(
            "an ablation: its results folder, or its checkpoint.", metavar="A", argument=True, place="results"
        )
    )
    b: Path = field(
        metadata=required(
            "another ablation of the same spans on the same examples.",
            metavar="B", argument=True, place="results",
        )
    )  # fmt: skip
    out: str | Path = setting(
        Path("comparison"), "output folder for the table and the figure.", metavar="FOLDER"
    )
