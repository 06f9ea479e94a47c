"""The arguments of an ablation, before anything is opened: plain data, without torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from adapter_probe.data.lm_eval_tasks import with_absolute_paths
from adapter_probe.errors import ResultsError
from adapter_probe.metrics import CustomMetric
from adapter_probe.records import to_record
from adapter_probe.settings import Settings
from adapter_probe.spans import NormChoice, SiteChoice, VariantSet, check_choice, span_variants

# Increased when a change of the code changes the predictions.
CODE_SCHEMA = {"float32": 1, "float64": 1, "bfloat16": 3, "mixed": 4}
Precision = Literal["float32", "float64", "bfloat16", "mixed"]


@dataclass(frozen=True)
class AblationSettings(Settings):
    """Settings of an ablation: what is switched off, and in which precision.

    Attributes:
        sites: the sites of each layer that are switched off.
        complement: whether to switch off the adapters outside the span instead.
        layernorm: LayerNorm weights after a switched-off site: trained or pretrained.
        precision: precision of weights and arithmetic. "mixed" gives the predictions of float32, mostly from
            bfloat16; see `adapter_probe.probe.guard`.
        spans, group, layers: choice of spans, see `choose_spans`.
    """

    recorded_always = frozenset(("sites", "complement", "layernorm", "precision", "spans", "group", "layers"))

    sites: SiteChoice = "both"
    complement: bool = False
    layernorm: NormChoice = "trained"
    precision: Precision = "float32"
    spans: str = "all"
    group: int = 1
    layers: str = ""

    def __post_init__(self) -> None:
        for name, kind in (("sites", SiteChoice), ("layernorm", NormChoice), ("precision", Precision)):
            if (value := getattr(self, name)) not in (allowed := get_args(kind)):
                raise ResultsError(f"--{name} {value} is not allowed; choose from {', '.join(allowed)}")
        check_choice(self.spans, self.group)

    def variants(self, n_layers: int) -> VariantSet:
        """The variants of the study on a model with this many layers, the intact model first.

        Raises:
            ResultsError: the model does not have these layers.
        """
        return span_variants(n_layers, self.sites, self.complement, self.spans, self.group, self.layers)


@dataclass(frozen=True)
class AblationArguments:
    """The arguments of an ablation, before anything is opened.

    Attributes:
        checkpoint: folder of the checkpoint.
        settings: settings of the ablation.
        base: folder or Hugging Face Hub id of the base model, if it differs from the recorded one.
        data: files to use instead of the checkpoint's own task, with the same columns and labels, or tasks of
            lm-evaluation-harness (``lm-eval:NAME``). Required for checkpoints of other libraries, which
            record no task.
        split: split of the checkpoint's own task to evaluate on.
        metric: evaluation metric; by default the metric of the task.
        max_examples: evaluate on a fixed random subset of this many examples.
        tokens_per_pass: maximum number of rows per pass; None for the device's default.
        encoding: text encoding of the files in `data`.
    """

    checkpoint: str
    settings: AblationSettings = field(default_factory=AblationSettings)
    base: str | None = None
    data: tuple[str, ...] = ()
    split: str = "validation"
    metric: str | None = None
    max_examples: int | None = None
    tokens_per_pass: int | None = None
    encoding: str = "utf-8"

    def settled(self) -> dict[str, Any]:
        """The arguments as plain JSON with absolute paths, for processes with another working directory."""
        base = self.base
        if base:
            with suppress(
                OSError, RuntimeError, ValueError
            ):  # path too long, unknown user: reported when it is opened
                folder = Path(base).expanduser()
                base = str(folder.resolve()) if folder.is_dir() else base
        # A job only computes outputs; a metric function stays in the calling process.
        metric = None if isinstance(self.metric, CustomMetric) else self.metric
        places = {"checkpoint": str(Path(self.checkpoint).resolve()), "base": base, "metric": metric}
        return {**to_record(self), **places, "data": [with_absolute_paths(path) for path in self.data]}
