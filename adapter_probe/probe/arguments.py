"""What an ablation is asked to do, before anything is opened: plain data, without torch."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from adapter_probe.data.lm_eval_tasks import settle
from adapter_probe.metrics import CustomMetric
from adapter_probe.records import to_record
from adapter_probe.spans import NormChoice, SiteChoice, SpanChoice, VariantSet, span_variants

if TYPE_CHECKING:
    import torch

    from .request import AblationRequest

# Raised when a change of the code changes the predictions.
CODE_SCHEMA = {"float32": 1, "float64": 1, "bfloat16": 2, "mixed": 2}
Precision = Literal["float32", "float64", "bfloat16", "mixed"]


@dataclass(frozen=True)
class AblationSettings:
    """What is switched off, and how it is computed.

    Attributes:
        sites: which of a layer's sites are switched.
        complement: keep only the span's adapters on.
        layernorm: the LayerNorm after a switched-off site: the trained one, or the base's.
        precision: of weights and arithmetic. "mixed" gives float32's predictions, most of them by way of
            bfloat16; see `adapter_probe.probe.guard`.
        spans, group, layers: which spans are switched, see `SpanChoice`.
    """

    sites: SiteChoice = "both"
    complement: bool = False
    layernorm: NormChoice = "trained"
    precision: Precision = "float32"
    spans: str = "all"
    group: int = 1
    layers: str = ""

    def __post_init__(self) -> None:
        SpanChoice(self.spans, self.group, self.layers)  # refuses what is none

    def variants(self, n_layers: int) -> VariantSet:
        """The rows of the study on a model of so many layers, the intact model first.

        Raises:
            ResultsError: the model does not have these layers.
        """
        choice = SpanChoice(self.spans, self.group, self.layers)
        return span_variants(n_layers, self.sites, self.complement, choice)


@dataclass(frozen=True)
class AblationArguments:
    """An ablation as it is asked for, before anything is opened: the arguments of `prepare_ablation`."""

    checkpoint: str
    settings: AblationSettings
    base: str | None = None
    data: tuple[str, ...] = ()
    split: str = "validation"
    metric: str | None = None
    max_examples: int | None = None
    tokens_per_pass: int | None = None
    encoding: str = "utf-8"

    def prepare(self, device: torch.device) -> AblationRequest:
        """See `prepare_ablation`, whose errors it raises."""
        from .request import prepare_ablation

        return prepare_ablation(
            self.checkpoint,
            self.settings,
            device,
            base=self.base,
            data=self.data,
            split=self.split,
            metric=self.metric,
            max_examples=self.max_examples,
            tokens_per_pass=self.tokens_per_pass,
            encoding=self.encoding,
        )

    def settled(self) -> dict[str, Any]:
        """As plain JSON with absolute paths, for a process that starts in another folder."""
        base = self.base
        if base:
            with suppress(OSError, RuntimeError, ValueError):  # too long, no such user: opening says so
                folder = Path(base).expanduser()
                base = str(folder.resolve()) if folder.is_dir() else base
        # A job computes outputs; a function that scores them stays in the process that asked.
        metric = None if isinstance(self.metric, CustomMetric) else self.metric
        places = {"checkpoint": str(Path(self.checkpoint).resolve()), "base": base, "metric": metric}
        return {**to_record(self), **places, "data": [settle(path) for path in self.data]}
