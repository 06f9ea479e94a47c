"""The settings of an ablation, without NumPy: command, figures and studies read them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .errors import AdapterProbeError, ResultsError, must_be, one_line
from .settings import NormChoice, OutsideChoice, Precision, Settings, setting
from .units import SUBLAYERS, Unit

if TYPE_CHECKING:
    from .spans import Site, Stack, VariantSet

BY_LAYER = "by layer"
"""In place of a strength: every layer, or module, has its own."""
_LARGEST = 3.4e38  # float32 holds no more


@dataclass(frozen=True, kw_only=True)
class AblationSettings(Settings):
    """Settings of an ablation: what is switched off, and in which precision."""

    panel = "Spans"
    error: ClassVar[type[AdapterProbeError]] = ResultsError
    recorded_always = frozenset(("sites", "complement", "layernorm", "precision", "spans", "group", "layers"))
    choice_of_spans: ClassVar[frozenset[str]] = frozenset(("spans", "group", "layers", "stack"))
    """Settings that say which spans are studied, and change nothing about the result of a span."""

    sites: str = setting(
        "both", "which adapters of each layer are studied: both, attention, ffn, or names of tuned modules "
        "as the model has them, such as q_proj,down_proj or attention.self.query; patterns with *.",
        metavar="NAMES", slug="{}", note="{} only",
    )  # fmt: skip
    by: Unit = setting(
        "span", "what is studied one after the other: spans of layers, or single tuned modules of single "
        "layers (module), each of them in all layers, and all of them in each layer: a map of layers and "
        "modules. By sublayer, the tuned modules of a layer's attention are taken together, and so are those "
        "of its feed-forward network.",
        slug="by-{}", note="by {}",
    )  # fmt: skip
    complement: bool = setting(
        False, "switch off every adapter outside the span instead of those inside it.",
        slug="complement", note="span kept on",
    )  # fmt: skip
    spans: str = setting(
        "all",
        "spans to study: all (every contiguous span), single (single layers), prefix (from the lowest "
        "layer), suffix (up to the highest), whole (all layers together), or a range of lengths such as "
        "1..4.",
        metavar="SET", slug="{}", note="spans {}",
    )  # fmt: skip
    group: int = setting(
        1,
        "number of adjacent layers that are studied as one.",
        least=1,
        slug="by{}",
        note="groups of {} layers",
    )
    layers: str = setting(
        "", "restrict the study to these layers, such as 8-23; other layers stay on.",
        metavar="FIRST-LAST", slug="layers{}", note="layers {}",
    )  # fmt: skip
    stack: str = setting(
        "both", "stack of layers to study, such as encoder or decoder, in a model with several; the others "
        "stay on.", metavar="NAME", slug="{}", note="{} only",
    )  # fmt: skip
    layernorm: NormChoice = setting(
        "trained", "LayerNorm weights to use after an adapter that is not as it was trained.",
        slug="{}-layernorm", note="{} LayerNorms",
    )  # fmt: skip
    strength: float | str | Path | Sequence[float] | Mapping[str, float] = setting(
        0.0, "what the change by the chosen adapters is multiplied by: 0 switches them off, 0.5 halves it, "
        "1.5 and -1 go beyond; or that of every layer, such as 1,1,0.5, or a JSON file of patterns and "
        'strengths, such as {"*.down_proj": 0.5}, where nothing matches 1. The factors of (IA)³ and tuned '
        "LayerNorms are interpolated between the base's values and the trained ones; for methods that are "
        "not linear, the modules' outputs are.",
        metavar="S|LIST|FILE", shell=str, slug="strength{}", note="scaled by {}",
    )  # fmt: skip
    rank: int = setting(
        0, "keep this many of the largest directions (singular values) of what the chosen adapters "
        "change, in place of switching them off.", metavar="K", least=0, slug="rank{}",
        note="{} directions kept",
    )  # fmt: skip
    outside: OutsideChoice = setting(
        "finetuned", "which tensors a fine-tuned model has outside the layers (embeddings, last norms, "
        "heads): its own, or those of its base where the base has them.", slug="{}-outside",
        note="{} outside the layers",
    )  # fmt: skip
    reference: Literal["rows", "off", "none"] = setting(
        "rows", "which log-likelihoods are subtracted from those of preferences, as in DPO: those in the "
        "columns ref_chosen_logps and ref_rejected_logps of the rows, if they are there; those of the model "
        "with all adapters off; or none.", panel="Data", slug="reference-{}", note="reference: {}",
    )  # fmt: skip
    pooling: Literal["mean", "cls", "last"] | None = setting(
        None, "how an adapter for embeddings makes a text's embedding of the states of its tokens: their "
        "mean, or the state of the first (cls) or of the last token. A folder of sentence-transformers says "
        "it itself.",
        panel="Data", slug="{}-pooling", note="{} pooling",
    )  # fmt: skip
    precision: Precision = setting(
        "float32",
        "precision of weights and arithmetic; float16 is for accelerators; mixed computes in bfloat16 and "
        "recomputes near-ties in float32.", panel="Running", slug="{}", note="{}",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        from adapter_probe.spans import check_choice  # which needs NumPy

        check_choice(self.spans)
        if "strength" in vars(self):  # not of what has a fixed one, which nobody gives
            object.__setattr__(self, "strength", as_strength(self.strength))
        for wrong, words in (
            (self.reference == "off" and self.strength,
             "--reference off is the model with all adapters off, and --strength scales them; give the "
             "reference's log-likelihoods in the rows, as ref_chosen_logps and ref_rejected_logps"),
            (self.rank and self.strength,
             f"--rank {self.rank} and --strength {self.by_layer or f'{self.scale:g}'} cannot be combined; "
             "give one of them"),
            (self.strength == 1, "--strength 1 is the intact model; give another strength, such as 0.5"),
            (self.by != "span" and self.spans not in ("all", "single"),
             f"--by {self.by} switches {self.by}s of single layers and of all; omit --spans {self.spans}"),
        ):  # fmt: skip
            if wrong:
                raise ResultsError(words)

    @property
    def scale(self) -> float:
        """What every adapter that is not on is multiplied by; 0 where layers or modules have their own."""
        return 0.0 if isinstance(self.strength, str) else float(self.strength)  # type: ignore[arg-type]

    @property
    def by_layer(self) -> str:
        """The strengths of layers or modules, see `as_strength`; empty where all have one."""
        return self.strength if isinstance(self.strength, str) else ""

    @property
    def unit(self) -> Unit:
        """The unit that is a site: that of `by`, or where `sites` names tuned modules of spans, `module`."""
        named = self.by == "span" and self.sites not in ("both", *SUBLAYERS)
        return "module" if named else self.by

    def variants(self, stacks: Sequence[Stack], of_layer: Sequence[Site]) -> VariantSet:
        """The variants of the study on a model with these stacks of layers, the intact model first.

        Args:
            stacks: the stacks.
            of_layer: the sites of every layer.

        Raises:
            ResultsError: the model does not have these layers, this stack, or these sites.
        """
        from adapter_probe.spans import choose_stacks, join_stacks, span_variants

        adapters = [name for name in dict.fromkeys(site.adapter for site in of_layer) if name]
        names = (
            {f"adapter {name}": name for name in adapters} | {"adapters together": ""}
            if adapters
            else {"": ""}
        )
        found, of = {}, {}
        for one in choose_stacks(stacks, self.stack):
            for name, adapter in names.items():
                part = f"{one.name} {name}".strip()
                of[part] = one.name
                found[part] = span_variants(
                    one.n_layers, self.sites, self.complement, self.spans, self.group, self.layers,
                    by=self.by, of_layer=of_layer, adapter=adapter,
                )  # fmt: skip
        if len(stacks) == 1 and not adapters:
            return found[stacks[0].name]
        return join_stacks(stacks, found, of if adapters else None)


def as_strength(given: Any) -> float | str:
    """A strength; those of layers or modules as the text that identifies them, a file by its content.

    Raises:
        ResultsError: it is neither a number, nor numbers, nor a file of patterns and numbers.
    """
    wanted = "a number, numbers such as 1,1,0.5, or a JSON file of patterns and numbers"
    if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".json")):
        try:
            file, given = given, json.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ResultsError(f"--strength: cannot read {given}: {one_line(error)}") from error
        if not given or not isinstance(given, (list, dict)):
            raise ResultsError(
                f"{file} has {given!r}; --strength takes a list of numbers, or patterns and numbers"
            )
    try:
        if isinstance(given, bool):
            raise TypeError
        if isinstance(given, str):
            given = json.loads(given) if given.startswith("{") else [float(one) for one in given.split(",")]
            given = given[0] if isinstance(given, list) and len(given) == 1 else given
        named, single = isinstance(given, Mapping), isinstance(given, (int, float))
        numbers = [float(one) for one in (given.values() if named else [given] if single else given)]
    except (TypeError, ValueError):
        raise ResultsError(must_be("--strength", wanted, given)) from None
    if not numbers:
        raise ResultsError(must_be("--strength", wanted, given))
    for one in numbers:
        check_strength(one)
    if set(numbers) == {1.0} and not single:
        raise ResultsError("--strength has no strength but 1, which is the intact model")
    if single:
        return numbers[0]
    return json.dumps(dict(zip(given, numbers))) if named else ",".join(f"{one:g}" for one in numbers)


def read_strengths(given: Any) -> float | list[float] | dict[str, float]:
    """The strength of all adapters, those of every layer, or by pattern, from what `as_strength` gives."""
    if not isinstance(given, str):
        return float(given)
    return json.loads(given) if given.startswith("{") else [float(one) for one in given.split(",")]


def check_strength(strength: float, name: str = "--strength") -> None:
    """Refuse a strength that is no number of float32."""
    if not math.isfinite(strength) or abs(strength) > _LARGEST:
        raise ResultsError(must_be(name, "a finite number that float32 holds", strength))
