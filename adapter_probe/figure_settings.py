"""The settings of figures, each declared once; see `adapter_probe.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.settings import DEFAULT_FORMATS, Axis, Column, Settings, Style, setting


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
