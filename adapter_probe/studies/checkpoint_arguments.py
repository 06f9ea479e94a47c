"""The arguments of the functions that take a checkpoint and run no study; see `adapter_probe.settings`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from adapter_probe.data.prompting import Prompting
from adapter_probe.errors import AdapterProbeError, CheckpointError, ResultsError
from adapter_probe.settings import (
    Basis,
    Dequantised,
    Encoded,
    Labelled,
    OnBase,
    OnDevice,
    OneOfSeveral,
    required,
    setting,
)

from .arguments import Shown

if TYPE_CHECKING:
    from adapter_probe.spans import Span

    from .ablation import Ablation

_CHECKPOINT = required("checkpoint folder.", metavar="CHECKPOINT", argument=True, place="checkpoint")


@dataclass(frozen=True, eq=False, repr=False)
class Inspect(OneOfSeveral, OnBase):
    """The arguments of `adapter_probe.inspect`."""

    checkpoint: str | Path = field(metadata=_CHECKPOINT)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Convert(Labelled, OneOfSeveral, OnBase):
    """The arguments of `convert` that have defaults."""

    error: ClassVar[type[AdapterProbeError]] = CheckpointError

    data: str | Path | Sequence[str | Path] = setting(
        (), "file of labelled validation examples, for ``native`` and a checkpoint that records no task.",
        panel="Data", shell=list[Path], place="file",
    )  # fmt: skip
    strength: float | None = setting(
        None, "multiply what the adapters in the layers change by this number, in the weights that are "
        "written.", panel="Output", metavar="S",
    )  # fmt: skip
    lossy: bool = setting(False, "drop what the output format cannot represent.", panel="Output")


@dataclass(frozen=True, eq=False, repr=False)
class Convert(_Convert):
    """The arguments of `adapter_probe.convert`."""

    source: str | Path = field(metadata=_CHECKPOINT)
    out: str | Path = field(metadata=required("output folder.", metavar="FOLDER", argument=True))
    to: Literal["adapterhub", "mlx", "native", "peft"] = field(
        metadata=required("format of the output.", panel="Output")
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class _Prune(Shown, OnDevice, Encoded, Prompting, Labelled, Dequantised, OneOfSeveral, OnBase):
    """The arguments of `prune` that have defaults."""

    panel = "Spans"
    error: ClassVar[type[AdapterProbeError]] = ResultsError

    span: Span | tuple[int, int] | int | str | None = setting(
        None, "layers whose adapters are removed, such as 0-4, in a model with an encoder and a decoder "
        "'encoder 0-4'. In Python also a layer, or the first and the last one.", metavar="FIRST-LAST",
        shell=str,
    )  # fmt: skip
    within: float | None = setting(
        None, "remove the longest span whose drop is at most this many percentage points in an ablation.",
        metavar="POINTS",
    )  # fmt: skip
    strength: float = setting(
        0.0, "multiply what the span's adapters change by this number instead of removing them.", metavar="S"
    )
    basis: Basis = setting(
        "estimate",
        "whether the measured drop or the lower bound of its 95% interval is held against the tolerance.",
    )
    ablation: Ablation | str | Path | None = setting(
        None, "results folder of the ablation whose drops are held against the tolerance; by default the one "
        "inside the checkpoint. In Python also the ablation.", metavar="FOLDER", shell=Path, place="ablation",
    )  # fmt: skip
    data: str | Path | Sequence[str | Path] = setting(
        (), "file of labelled examples to use instead of the checkpoint's own task; required for checkpoints "
        "of other libraries, which record no task.", panel="Data", shell=list[Path], place="file",
    )  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class Prune(_Prune):
    """The arguments of `adapter_probe.prune`."""

    checkpoint: str | Path = field(metadata=_CHECKPOINT)
    out: str | Path = field(
        metadata=required("output folder of the new checkpoint.", panel="Output", metavar="FOLDER")
    )
