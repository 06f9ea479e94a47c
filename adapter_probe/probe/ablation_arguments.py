"""The arguments of an ablation, before anything is opened: plain data, without torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.errors import AdapterProbeError, DataError
from adapter_probe.records import to_record
from adapter_probe.settings import Dequantised, Encoded, Labelled, OnBase, Sampled, Split, setting

# Increased when a change of the code changes the predictions.
PREDICTIONS_VERSION = {"float32": 2, "float64": 2, "bfloat16": 4, "float16": 1, "mixed": 5}


@dataclass(frozen=True, kw_only=True)
class Evaluation(Sampled, Labelled, Encoded, Dequantised, OnBase, Prompting, Generation):
    """What an ablation is evaluated on, and how much memory it may take."""

    panel = "Data"
    error: ClassVar[type[AdapterProbeError]] = DataError

    split: Split = setting("validation", "split of the checkpoint's own task to evaluate on.", slug="{}")
    device_map: Literal["auto"] | None = setting(
        None, "auto spreads the layers of a checkpoint over all devices of the kind, then to the host's "
        "memory and to disk, by the memory that is free; for adapters of PEFT.", panel="Running",
    )  # fmt: skip
    tokens_per_pass: int | None = setting(
        None, "maximum number of rows (variants x tokens) per pass through a layer, which bounds memory; by "
        "default chosen for the device.", panel="Running",
    )  # fmt: skip


@dataclass(frozen=True)
class AblationArguments(Evaluation):
    """The arguments of an ablation, before anything is opened.

    Attributes:
        data: files to use instead of the checkpoint's own task, with the same columns and labels, or tasks of
            lm-evaluation-harness (``lm-eval:NAME``). Required for checkpoints of other libraries, which
            record no task.
        categories: the categories of the labels, if they are a pandas categorical: names of the outputs
            where neither the user nor the checkpoint gives any.
        adapters: names of several adapters in the checkpoint's folder, which are opened together.
    """

    checkpoint: str
    settings: AblationSettings = field(default_factory=AblationSettings)
    data: tuple[str, ...] = ()
    metric: str | None = None
    categories: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()

    @property
    def compares(self) -> bool:
        """Whether outputs are compared with the intact model's, without labels."""
        from adapter_probe.metrics import COMPARISONS  # loads NumPy

        return self.metric in COMPARISONS

    def settled(self) -> dict[str, Any]:
        """The arguments as plain JSON with absolute paths, for processes with another working directory."""
        from adapter_probe.custom_metric import CustomMetric
        from adapter_probe.data.lm_eval_tasks import with_absolute_paths

        base = self.base
        if base:
            # Too long a path or an unknown user is reported when it is opened.
            with suppress(OSError, RuntimeError, ValueError):
                folder = Path(base).expanduser()
                base = str(folder.resolve()) if folder.is_dir() else base
        # A job only computes outputs; a metric function stays in the calling process.
        metric = None if isinstance(self.metric, CustomMetric) else self.metric
        places = {"checkpoint": str(Path(self.checkpoint).resolve()), "base": base, "metric": metric}
        return {**to_record(self), **places, "data": [with_absolute_paths(path) for path in self.data]}
