"""The settings of an ablation, without NumPy: the command's help, figures and studies read them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from .errors import AdapterProbeError, ResultsError
from .settings import NormChoice, Precision, Settings, SiteChoice, setting

if TYPE_CHECKING:
    from .spans import VariantSet


@dataclass(frozen=True, kw_only=True)
class AblationSettings(Settings):
    """Settings of an ablation: what is switched off, and in which precision."""

    panel = "Spans"
    error: ClassVar[type[AdapterProbeError]] = ResultsError
    recorded_always = frozenset(("sites", "complement", "layernorm", "precision", "spans", "group", "layers"))

    sites: SiteChoice = setting(
        "both", "which adapters of each layer to switch off.", slug="{}", note="{} only"
    )
    complement: bool = setting(
        False, "switch off every adapter outside the span instead of those inside it.",
        slug="complement", note="span kept on",
    )  # fmt: skip
    spans: str = setting(
        "all",
        "spans to switch off: all (every contiguous span), single (single layers), prefix (from the lowest "
        "layer), suffix (up to the highest), or a range of lengths such as 1..4.",
        metavar="SET", slug="{}", note="spans {}",
    )  # fmt: skip
    group: int = setting(
        1,
        "number of adjacent layers to switch off together.",
        least=1,
        slug="by{}",
        note="groups of {} layers",
    )
    layers: str = setting(
        "", "restrict the study to these layers, such as 8-23; other layers stay on.",
        metavar="FIRST-LAST", slug="layers{}", note="layers {}",
    )  # fmt: skip
    layernorm: NormChoice = setting(
        "trained", "LayerNorm weights to use after an adapter that is switched off.",
        slug="{}-layernorm", note="{} LayerNorms",
    )  # fmt: skip
    precision: Precision = setting(
        "float32",
        "precision of weights and arithmetic; mixed computes in bfloat16 and recomputes near-ties "
        "in float32.", panel="Running", slug="{}", note="{}",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        from adapter_probe.spans import check_choice  # which needs NumPy

        check_choice(self.spans)

    def variants(self, n_layers: int) -> VariantSet:
        """The variants of the study on a model with this many layers, the intact model first.

        Raises:
            ResultsError: the model does not have these layers.
        """
        from adapter_probe.spans import span_variants

        return span_variants(n_layers, self.sites, self.complement, self.spans, self.group, self.layers)
