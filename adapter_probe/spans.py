"""Layer spans and the corresponding on/off masks.

A *site* is what a variant switches as one. Sites are numbered layer by layer, the same number in each: by
default two, the adapters in the attention and in the feed-forward network, or one per tuned module.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import numpy as np

from adapter_probe.errors import ResultsError, shown
from adapter_probe.units import SUBLAYERS, Unit

SPAN_SETS = ("all", "single", "prefix", "suffix", "whole")
_LENGTHS = re.compile(r"([0-9]{1,6})\.\.([0-9]{1,6})")
_RANGE = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
ALL_MODULES = "all"
"""What tables call all modules together, and all stacks."""


class Site(NamedTuple):
    """What a variant switches as one in every layer.

    Attributes:
        name: its name, in figures and tables.
        path: of a tuned module, its name inside the layer.
        sublayer: ``attention`` or ``ffn``; empty if the name says neither.
        adapter: of a model with several active adapters, the one that it is of.
    """

    name: str
    path: str
    sublayer: str
    adapter: str = ""


SITES = tuple(Site(name, name, name) for name in SUBLAYERS)
"""The sites of a layer unless tuned modules are switched one by one."""


def choose_sites(sites: str, of_layer: Sequence[Site] = SITES) -> list[int]:
    """The numbers of some of a layer's sites.

    Args:
        sites: ``both``, or names and patterns with ``*``, separated by commas: of a sublayer, or of a module
            as PEFT's ``target_modules`` takes it, the end of its name in the layer.
        of_layer: the sites of a layer.

    Raises:
        ResultsError: one of them matches no site.
    """
    chosen: set[int] = set()
    for pattern in map(str.strip, sites.strip(", ").split(",")):
        found = [n for n, own in enumerate(of_layer) if pattern in (own.name, own.path)]
        found = found or [n for n, own in enumerate(of_layer) if pattern in ("both", own.sublayer)]
        found = found or [n for n, own in enumerate(of_layer) if ends_with(own.path, pattern)]
        if not found:
            listed = ", ".join(own.name for own in of_layer)
            raise ResultsError(
                f"--sites {shown(pattern)} matches none of what is tuned: {listed}; give some of these, "
                "patterns with *, or both, attention or ffn"
            )
        chosen.update(found)
    return sorted(chosen)


def ends_with(path: str, pattern: str) -> bool:
    """Whether a module's name, or its end after a dot, matches a pattern."""
    names = path.split(".")
    return any(fnmatchcase(".".join(names[n:]), pattern) for n in range(len(names)))


class Stack(NamedTuple):
    """Layers that a model numbers together, such as those of its encoder; a single stack has no name."""

    name: str
    n_layers: int


@dataclass(frozen=True, order=True)
class Span:
    """A contiguous run of layers, both ends inclusive, counted from 0 in its stack.

    Attributes:
        first, last: its ends.
        stack: name of the stack of layers; empty in a model that has one.
    """

    first: int
    last: int
    stack: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"a span needs 0 <= first <= last, got {self.first}-{self.last}")

    @property
    def n_layers(self) -> int:
        """Number of layers in the span."""
        return self.last - self.first + 1

    def __str__(self) -> str:
        return f"{self.stack} {self.first}-{self.last}".lstrip()


def as_span(layers: Span | tuple[int, int] | int) -> Span:
    """A span that is given as such, as its first and last layer, or as one layer.

    Raises:
        TypeError, ValueError: it is nothing of these.
    """
    if isinstance(layers, Span):
        return layers
    first, last = (layers, layers) if np.ndim(layers) == 0 else layers  # type: ignore[misc]
    return Span(operator.index(first), operator.index(last))


def contiguous_spans(n_layers: int) -> list[Span]:
    """All n(n+1)/2 spans of an n-layer model, ordered by first, then last layer."""
    return [Span(first, last) for first in range(n_layers) for last in range(first, n_layers)]


def check_choice(spans: str) -> None:
    """Refuse a set of spans that no model has; see `choose_spans`.

    Raises:
        ResultsError: it is neither a set nor a range of lengths.
    """
    lengths = _LENGTHS.fullmatch(spans)
    if spans not in SPAN_SETS and not (lengths and 1 <= int(lengths[1]) <= int(lengths[2])):
        raise ResultsError(
            f"--spans {shown(spans)} is neither {', '.join(SPAN_SETS)} nor a range of lengths such as 1..4, "
            "from 1 layer and not decreasing"
        )


def studied_layers(n_layers: int, layers: str = "") -> Span:
    """The layers of a study, ``8-23``; "" for all of the model.

    Raises:
        ResultsError: `layers` is not a range of the model's layers.
    """
    found = _RANGE.fullmatch(layers or f"0-{n_layers - 1}")
    if found is None or int(found[1]) > int(found[2]):
        raise ResultsError(f"--layers {shown(layers)} is no range of layers; the model has 0-{n_layers - 1}")
    if int(found[2]) >= n_layers:
        raise ResultsError(f"--layers {layers}: the model has layers 0-{n_layers - 1}")
    return Span(int(found[1]), int(found[2]))


def choose_spans(
    n_layers: int, spans: str = "all", group: int = 1, layers: str = ""
) -> tuple[Span, list[Span]]:
    """The layers of a study, and its spans, ordered by first, then last layer.

    Args:
        n_layers: layers of the model.
        spans: ``all`` contiguous ones, every ``single`` layer, those that begin at the lowest layer
            (``prefix``), those that end at the highest (``suffix``), the one of all layers (``whole``), or
            ``1..4``, all of these lengths.
        group: this many layers are switched together, counted from the lowest; what is left over at the top
            makes a smaller group. Lengths of spans count groups.
        layers: see `studied_layers`. Other layers always stay on.

    Raises:
        ResultsError: `layers` is not a range of the model's layers, a group is larger, or no span is chosen.
    """
    check_choice(spans)
    part = studied_layers(n_layers, layers)
    if not 1 <= group <= part.n_layers:
        raise ResultsError(f"--group {group}: a group has 1 to {part.n_layers} layers, those of {part}")
    begins = list(range(part.first, part.last + 1, group))
    ends = [min(begin + group - 1, part.last) for begin in begins]
    lengths = _LENGTHS.fullmatch(spans)
    every = (len(begins) if spans == "whole" else 1, 1 if spans == "single" else len(begins))
    fewest, most = map(int, lengths.groups()) if lengths else every
    chosen = [
        Span(begins[unit.first], ends[unit.last])
        for unit in contiguous_spans(len(begins))
        if fewest <= unit.n_layers <= most
        and (spans != "prefix" or unit.first == 0)
        and (spans != "suffix" or unit.last == len(begins) - 1)
    ]
    if not chosen:
        raise ResultsError(f"--spans {spans} selects no span of layers {part}; give smaller lengths")
    return part, chosen


@dataclass(frozen=True)
class VariantSet:
    """The variants that an ablation compares.

    Attributes:
        names: one name per row: ``intact``, ``none`` or the span as ``first-last``.
        spans: the row's span, or None for the reference rows.
        masks: bool ``[variants, sites]``; True = the site's adapter is on. Row 0 is the intact model.
        stacks: name of the stack in which alone the row switches; empty for the intact model and where all
            stacks are off. None if the model has one stack.
        begins: by stack, the number of layers before it.
        parts: what `stacks` names: name, number of layers, and of adapters the number of layers before these.
        modules: in a map of layers and modules, the one that the row switches, or `ALL_MODULES`; empty for
            the reference rows. None in a study of spans.
        sites: the sites of every layer.
    """

    names: tuple[str, ...]
    spans: tuple[Span | None, ...]
    masks: np.ndarray
    stacks: tuple[str, ...] | None = None
    begins: Mapping[str, int] = field(default_factory=lambda: {"": 0})
    modules: tuple[str, ...] | None = None
    sites: tuple[Site, ...] = SITES
    parts: tuple[tuple[str | int, ...], ...] = ()

    def rows(self, kept: Sequence[int]) -> VariantSet:
        """Some of the variants."""
        names, spans = (tuple(own[row] for row in kept) for own in (self.names, self.spans))
        stacks, modules = (
            None if own is None else tuple(own[row] for row in kept) for own in (self.stacks, self.modules)
        )
        masks = self.masks[list(kept)]
        return replace(self, names=names, spans=spans, masks=masks, stacks=stacks, modules=modules)


def effective_variants(variants: VariantSet, has_adapter: np.ndarray) -> VariantSet:
    """The variants adjusted to a model: sites without an adapter are always on.

    A span without any adapter is left out, and of a stack's spans that switch the same adapters the shortest
    stays. Spans of two stacks may have one mask, such as all of each kept on: both stay. So do a layer and
    all layers in a map of layers and modules.

    Args:
        variants: the intact model first.
        has_adapter: bool ``[sites]``.
    """
    masks = variants.masks | ~has_adapter
    switched = (~masks).any(axis=0).reshape(-1, len(variants.sites))  # [layers, sites of a layer]
    names, modules = [site.name for site in variants.sites], variants.modules
    tightest: dict[tuple[object, ...], tuple[int, int]] = {}  # by stack and mask: layers and row
    for row, span in enumerate(variants.spans):
        begin = 0 if span is None else variants.begins[span.stack]
        own = slice(None)
        if modules is not None and modules[row] in names:
            own = slice(names.index(modules[row]), names.index(modules[row]) + 1)
        if span is not None and switched[begin + span.first : begin + span.last + 1, own].any():
            what = masks[row].tobytes() if modules is None else (modules[row], span.first, span.last)
            size, key = (span.n_layers, row), (span.stack, what)
            tightest[key] = min(size, tightest.get(key, size))
    chosen = {row for _, row in tightest.values()}
    owners = variants.stacks or ("",) * len(variants.spans)
    there = {"", *(owners[row] for row in chosen)}  # a stack without any span has no reference either
    kept = [
        row
        for row, span in enumerate(variants.spans)
        if row in chosen or (span is None and owners[row] in there)
    ]
    return replace(variants, masks=masks).rows(kept)


def in_model(stacks: Sequence[Stack], span: Span, what: str = "span") -> Span:
    """A span by the numbers of its layers in the whole model, where those of earlier stacks come first.

    Args:
        stacks: the stacks of the model.
        span: the span.
        what: what a message calls it.

    Raises:
        ResultsError: the span names no stack in a model with several, an unknown one, or layers that are not
            there.
    """
    names = [one.name for one in stacks]
    if span.stack not in names:
        listed = ", ".join(f"'{name} {span.first}-{span.last}'" for name in names if name)
        told = (
            f"one of its stacks before the layers, {listed}"
            if listed
            else f"layers alone, {span.first}-{span.last}"
        )
        raise ResultsError(f"{what} {shown(str(span))} does not name layers of the model; give {told}")
    begin = sum(one.n_layers for one in stacks[: names.index(span.stack)])
    n_layers = stacks[names.index(span.stack)].n_layers
    if span.last >= n_layers:
        of = f" of the {span.stack}" if span.stack else ""
        raise ResultsError(
            f"{what} {shown(str(span))} exceeds the model, whose layers{of} are 0 to {n_layers - 1}"
        )
    return Span(begin + span.first, begin + span.last)


def choose_stacks(stacks: Sequence[Stack], stack: str = "both") -> tuple[Stack, ...]:
    """The stacks of a study: the one of this name, or with ``both`` every one.

    Raises:
        ResultsError: the model has no such stack, or only one, so that there is none to choose.
    """
    if stack == "both":
        return tuple(stacks)
    if len(stacks) == 1:
        raise ResultsError(
            f"--stack {shown(stack)}: the model has one stack of layers with adapters; omit it"
        )
    chosen = tuple(one for one in stacks if one.name == stack)
    if not chosen:
        names = ", ".join(one.name for one in stacks)
        raise ResultsError(
            f"--stack must be one of {names}, both, the stacks of this model, not {shown(stack)}"
        )
    return chosen


def join_stacks(
    stacks: Sequence[Stack], found: Mapping[str, VariantSet], of: Mapping[str, str] | None = None
) -> VariantSet:
    """The variants of several stacks as those of one model, whose other stacks stay on.

    Where several stacks are studied, a last row ``none`` has everything off in all of them.

    Args:
        stacks: all stacks of the model, in the order of the sites.
        found: by name, the variants of a stack on its own, the intact model first.
        of: where the names are of adapters in a stack, its name.
    """
    names_of_stacks = [one.name for one in stacks]
    begins = dict(zip(names_of_stacks, np.cumsum([0, *(one.n_layers for one in stacks)]).tolist()))
    parts: list[tuple[str | int, ...]] = [tuple(one) for one in stacks]
    if of is not None:
        begins = {name: begins[stack] for name, stack in of.items()}
        parts = [
            (name, stacks[names_of_stacks.index(stack)].n_layers, begins[name]) for name, stack in of.items()
        ]
    sites = next(iter(found.values())).sites
    n_sites = len(sites) * sum(one.n_layers for one in stacks)
    names, spans, owners = ["intact"], [None], [""]  # type: tuple[list[str], list[Span | None], list[str]]
    masks, modules = [np.ones((1, n_sites), dtype=bool)], [""]
    for name, own in found.items():
        begin, rows = len(sites) * begins[name], np.ones((len(own.names) - 1, n_sites), dtype=bool)
        rows[:, begin : begin + own.masks.shape[1]] = own.masks[1:]
        masks.append(rows)
        names += [f"{name} {row}" for row in own.names[1:]]
        spans += [None if span is None else replace(span, stack=name) for span in own.spans[1:]]
        owners += [name] * len(rows)
        modules += (own.modules or own.names)[1:]
    if len(found) > 1:
        masks.append(np.concatenate(masks).all(axis=0)[None])
        names, spans, owners, modules = [*names, "none"], [*spans, None], [*owners, ""], [*modules, ""]
    by_module = any(own.modules for own in found.values())
    return VariantSet(
        tuple(names), tuple(spans), np.concatenate(masks), tuple(owners), begins,
        tuple(modules) if by_module else None, sites, tuple(parts),
    )  # fmt: skip


def span_variants(
    n_layers: int,
    sites: str = "both",
    complement: bool = False,
    spans: str = "all",
    group: int = 1,
    layers: str = "",
    *,
    by: Unit = "span",
    of_layer: Sequence[Site] = SITES,
    adapter: str = "",
) -> VariantSet:
    """The intact model, then every chosen span switched off (or, with `complement`, only it left on).

    Where no span does it, a last row ``none`` has everything off that the study switches: the floor that
    the spans are read against.

    Args:
        n_layers: layers of the model.
        sites: which of a layer's sites the study switches, see `choose_sites`; the others always stay on.
        complement: keep only the span's chosen sites on and switch the other layers' off.
        spans: choice of spans, see `choose_spans`.
        group: see there.
        layers: see there.
        by: any unit but ``span`` switches every chosen site of every layer, that site in all layers, the
            chosen sites of every layer, and all of them; `spans` is not used then.
        of_layer: the sites of a layer.
        adapter: switch the sites of this adapter alone; empty for all.

    Raises:
        ResultsError: see `choose_spans` and `choose_sites`.
    """
    part, switched = choose_spans(n_layers, "single" if by != "span" else spans, group, layers)
    kinds, n = choose_sites(sites, of_layer), len(of_layer)
    kinds = [kind for kind in kinds if adapter in ("", of_layer[kind].adapter)]
    pairs: list[tuple[int | None, Span]] = [(None, span) for span in switched]
    if by != "span":
        pairs = [(kind, span) for kind in (*kinds, None) for span in dict.fromkeys([*switched, part])]
    layer_of_site, kind_of_site = np.repeat(np.arange(n_layers), n), np.arange(n_layers * n) % n
    chosen = (part.first <= layer_of_site) & (layer_of_site <= part.last) & np.isin(kind_of_site, kinds)
    inside = np.array(
        [
            (s.first <= layer_of_site) & (layer_of_site <= s.last) & (kind is None or kind_of_site == kind)
            for kind, s in pairs
        ]
    )
    off = chosen & (~inside if complement else inside)
    rows = [np.zeros_like(chosen)[None], off]
    modules = [ALL_MODULES if kind is None else of_layer[kind].name for kind, _ in pairs]
    said = [f"{module} " if by != "span" else "" for module in modules]
    spoken = [f"{module}{span}" for module, (_, span) in zip(said, pairs)]
    names, row_spans, modules = ["intact", *spoken], [None, *(span for _, span in pairs)], ["", *modules]
    if complement or not (off == chosen).all(axis=1).any():
        rows.append(chosen[None])
        names, row_spans, modules = [*names, "none"], [*row_spans, None], [*modules, ""]
    return VariantSet(
        tuple(names), tuple(row_spans), ~np.concatenate(rows),
        modules=tuple(modules) if by != "span" else None, sites=tuple(of_layer),
    )  # fmt: skip
