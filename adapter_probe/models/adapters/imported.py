"""A common representation of adapters of other libraries.

`Adapters` describes adapters that this project trains, `ImportedMethod` adapters that it only opens. Sizes
follow from the tensors; the specs here describe everything else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args

from adapter_probe.records import to_record

SiteKind = Literal["attention", "ffn"]
SITE_KINDS: tuple[SiteKind, ...] = get_args(SiteKind)
SkipFrom = Literal["output", "sum", "normed"]
LearnedScale = Literal["none", "one", "channel"]
InnerKind = Literal["low_rank", "decomposed", "scale_input", "scale_output", "norm", "tuner"]


@dataclass(frozen=True)
class BottleneckSpec:
    """A bottleneck A at one site, where x is the sublayer's output, h its input and N the LayerNorm after it.

    With r what A reads: ``change = scale * gate(r) * A(r)``. A sequential one makes
    ``N(change + skip + h)``; a parallel one, which reads h, ``N(change + x + h)``. See
    `ConfiguredBottleneck`.

    Attributes:
        layer: from 0.
        site: after which sublayer.
        size: width of the bottleneck.
        activation: name in transformers, or ``leakyrelu``.
        parallel: A reads h.
        norm_before: A reads N(x + h) instead of x.
        norm_after: N is applied; otherwise the adapter's output leaves the sublayer unchanged.
        skip: term that a sequential adapter adds to its change: x, x + h, or its input.
        ln_before: a separate LayerNorm on its input.
        ln_after: a separate LayerNorm on its change.
        ln_after_skip: `ln_after` also normalises the skip term.
        scale: a constant factor.
        learned_scale: an additional trained factor, scalar or per channel.
        gate: a factor in (0, 1) per example: the mean over its tokens of a sigmoid of a linear map of r.
    """

    layer: int
    site: SiteKind
    size: int
    activation: str
    parallel: bool = False
    norm_before: bool = False
    norm_after: bool = True
    skip: SkipFrom = "output"
    ln_before: bool = False
    ln_after: bool = False
    ln_after_skip: bool = False
    scale: float = 1.0
    learned_scale: LearnedScale = "none"
    gate: bool = False


@dataclass(frozen=True)
class InnerSpec:
    """A change to one module of the base, most often a linear map inside a sublayer.

    Attributes:
        module: dotted name of the module in the base.
        kind: ``low_rank`` adds scale * B A r to the output of the map for the input r; ``decomposed`` also
            gives each row of W + scale * B A the length that was trained for it; ``scale_input`` and
            ``scale_output`` multiply by a vector (and by scale); ``norm`` replaces the base's normalisation
            by one with separate weights; ``tuner`` is any other change, which only PEFT itself can run.
        rank: of ``low_rank`` and ``decomposed``.
        scale: a constant factor.
        bias: B A r + b instead of B A r; for ``norm``, whether it has a bias.
    """

    module: str
    kind: InnerKind
    rank: int = 0
    scale: float = 1.0
    bias: bool = False

    @property
    def is_factor(self) -> bool:
        """Whether it multiplies by a vector."""
        return self.kind.startswith("scale_")

    @property
    def scales_input(self) -> bool:
        """Whether it multiplies what the module reads."""
        return self.kind == "scale_input"


@dataclass(frozen=True)
class HeadSpec:
    """A classification head other than the family's: linear maps with an activation between them.

    Attributes:
        layers: number of linear maps.
        activation: activation after each map but the last, or None.
        pooled: whether it reads the pooler's output instead of the first token.
        bias: whether the last map has a bias.
    """

    layers: int
    activation: str | None
    pooled: bool
    bias: bool = True


def _short_names(modules: Collection[str]) -> list[str]:
    """The kinds of modules by their last name, or by their path in a layer where several have this name."""
    paths = {re.sub(r"^.*\.\d+\.", "", module) for module in modules}
    last = Counter(path.rpartition(".")[2] for path in paths)
    return sorted(path if last[name := path.rpartition(".")[2]] > 1 else name for path in paths)


@dataclass(frozen=True)
class ImportedMethod:
    """Adapters that another library trained.

    Attributes:
        library: name of the library.
        kinds: names of the adapters in the library.
        bottlenecks: bottlenecks at the sites.
        inner: adapters inside the sublayers, or outside the layers, where they always stay on.
        head: a head of the library, or None for the family's.
    """

    name: ClassVar[str] = "imported"

    library: str
    kinds: tuple[str, ...]
    bottlenecks: tuple[BottleneckSpec, ...] = ()
    inner: tuple[InnerSpec, ...] = ()
    head: HeadSpec | None = None

    def to_json(self) -> dict[str, Any]:
        """A plain dict, with the method's name under ``name``; fields at their default are left out."""
        record = to_record(self)
        for entries, kind in ((record["bottlenecks"], BottleneckSpec), (record["inner"], InnerSpec)):
            plain = {field.name: field.default for field in fields(kind)}
            entries[:] = [{k: v for k, v in entry.items() if v != plain[k]} for entry in entries]
        return {"name": self.name, **record}

    def summary(self) -> dict[str, Any]:
        """A short form of the record for display."""
        counts = Counter(spec.kind for spec in self.inner)
        return {
            "name": self.name,
            "library": self.library,
            "kinds": list(self.kinds),
            "bottlenecks": len(self.bottlenecks),
            "sizes": sorted({spec.size for spec in self.bottlenecks}),
            "activations": sorted({spec.activation for spec in self.bottlenecks}),
            "inner": dict(sorted(counts.items())),
            "modules": _short_names({spec.module for spec in self.inner}),
            "ranks": sorted({spec.rank for spec in self.inner if spec.rank}),
        }
