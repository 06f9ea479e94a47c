"""The arguments of the functions that draw and report finished studies; see `adapter_probe.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.settings import DEFAULT_FORMATS, Axis, Column, Encoded, Settings, Style, required, setting

if TYPE_CHECKING:
    from .gallery import DrawnStudy


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class FigureFiles(Settings):
    """In which style and formats figures are written."""

    panel = "Output"
    error: ClassVar[type[AdapterProbeError]] = ResultsError

    style: Style = setting("paper", "figure sizes and fonts of a publication venue, or of slides.")
    formats: str | Sequence[str] = setting(
        DEFAULT_FORMATS, "figure formats, some of pdf, svg, png and pgf.", flags=("--format",)
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Tolerance(Settings):
    """The drop that figures mark as tolerated."""

    panel = "Output"
    error: ClassVar[type[AdapterProbeError]] = ResultsError

    tolerance: float = setting(
        1.0, "tolerated drop, in percentage points, marked by the black line of an ablation.",
        metavar="POINTS",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Paper(Settings):
    """Whether figures have the paper's values."""

    panel = "Output"

    paper: bool = setting(False, "overlay the values published by Houlsby et al. (2019).")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Look(Paper, Tolerance, FigureFiles):
    """How figures and tables look, and which are written."""

    column: Column | None = setting(
        None, "figure width: one column or the full text width; by default chosen per figure."
    )
    labels: str | Sequence[str] = setting(
        (), "panel label, once per ablation in the order of the studies; by default the task, and the "
        "settings where they differ.", flags=("--label",), shell=list[str], metavar="TEXT",
    )  # fmt: skip
    only: str | Sequence[str] = setting(
        (), "figures and tables to write, such as heatmap,table-removable; by default all."
    )
    overlay: str | Path | Sequence[str | Path] = setting(
        (), "results of other people to draw beside a trade-off's: a CSV with the columns method, size, "
        "parameters, score (a fraction), task and seed, or a JSON file of PEFT's method comparison, or a "
        "folder of them.", metavar="FILE", shell=list[Path], place="overlay",
    )  # fmt: skip
    x: Axis = setting(
        "parameters", "what a trade-off's score is drawn against: trained parameters, the peak of memory in "
        "training, seconds per step, or bytes of a checkpoint.",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Draw(Look):
    """The arguments of `draw` that have defaults."""

    out: str | Path | None = setting(
        None, "output folder; by default the results folder of a single study, and otherwise ``figures``.",
        metavar="FOLDER", positional=True,
    )  # fmt: skip
    average: bool = setting(False, "draw the mean over ablations that differ in the training seed.")


@dataclass(frozen=True, eq=False, repr=False)
class Draw(_Draw):
    """The arguments of `adapter_probe.draw`."""

    studies: DrawnStudy | str | Path | Sequence[DrawnStudy | str | Path] = field(
        metadata=required(
            "results folders, or checkpoints that contain ablations. In Python also studies.",
            metavar="FOLDER...", shell=list[Path], argument=True, place="results",
        )
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Report(Encoded):
    """The arguments of `report` that have defaults."""

    panel = "Output"
    error: ClassVar[type[AdapterProbeError]] = ResultsError

    out: str | Path | None = setting(
        None,
        "output file, by default report.html; with space a folder.",
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
    space: bool = setting(
        False, "write a folder that is a static Space of the Hugging Face Hub, a README.md and the page as "
        "index.html, by default report-space.",
    )  # fmt: skip
    average: bool = setting(False, "begin with the mean over ablations that differ in the training seed.")
    compare: bool = setting(False, "begin with the difference of two ablations, second minus first.")


@dataclass(frozen=True, eq=False, repr=False)
class Report(_Report):
    """The arguments of `adapter_probe.report`."""

    folders: DrawnStudy | str | Path | Sequence[DrawnStudy | str | Path] = field(
        metadata=required(
            "results folders, or checkpoints that contain ablations. In Python also ablations, their "
            "averages and comparisons, studies of strengths, and sweeps.",
            metavar="FOLDER...", shell=list[Path], argument=True, place="results",
        )
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Compare(FigureFiles):
    """The options of the command `compare` that have defaults."""

    out: str | Path = setting(
        Path("comparison"), "output folder for the table and the figure.", metavar="FOLDER"
    )


@dataclass(frozen=True, eq=False, repr=False)
class Compare(_Compare):
    """The options of the command `compare`; `adapter_probe.compare` takes the two ablations alone."""

    a: Path = field(
        metadata=required("results folder of an ablation.", metavar="A", argument=True, place="results")
    )
    b: Path = field(
        metadata=required(
            "results folder of another ablation of the same spans on the same examples.",
            metavar="B", argument=True, place="results",
        )
    )  # fmt: skip
