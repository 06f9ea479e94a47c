"""What an ablation suggests for the next training, as a configuration of PEFT with its evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from safetensors import safe_open

from adapter_probe.analysis.peft_settings import (
    kept_layers,
    of_layers,
    of_rank,
    pattern_of,
    shares_by_layer,
    studied_lora,
)
from adapter_probe.analysis.removable import longest_removable, spans_with_adapters
from adapter_probe.checkpoints.adapter_folder import WEIGHTS
from adapter_probe.checkpoints.files import CONFIG, read_json_file
from adapter_probe.errors import ResultsError, must_be
from adapter_probe.results.atomic import make_folder, write_json, write_text
from adapter_probe.settings import as_points
from adapter_probe.spans import Span
from adapter_probe.wording import (
    RETRAINED,
    count_text,
    drop_text,
    examples_text,
    interval_text,
    layers_text,
    metric_name,
    number_text,
    rounded,
    tolerance_text,
    unit_name,
)

if TYPE_CHECKING:
    import pandas as pd

    from adapter_probe.ablation_results import AblationResults
    from adapter_probe.analysis.study_records import AblationRecord, RankRecord

CARD = "README.md"
_UNTRAINED = (
    "Nothing has been trained with this configuration. The ablation tells which of the trained adapters the "
    f"model uses on these examples, without retraining. {RETRAINED} Whether that holds here is not known "
    "before the LoRA is trained and evaluated."
)
Keep = Literal["all", "needed"]


@dataclass(frozen=True)
class Recipe:
    """A configuration for the next training.

    Attributes:
        folder: holds ``adapter_config.json`` for PEFT, and the evidence as ``README.md``.
        layers: the layers that get adapters.
        ranks: the rank in each of them; empty where the checkpoint has a ``rank_pattern`` of its own.
        removed: the span that gets no adapters, by ``keep="needed"``; else None.
    """

    folder: Path
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    removed: Span | None


def write_recipe(
    study: AblationRecord,
    results: AblationResults,
    out: str | Path,
    rank: int | None,
    keep: Keep | int | Sequence[int],
    within: float,
    checkpoint: str | Path | None,
) -> Recipe:
    """Write the recipe of a study; see `Ablation.recipe`."""
    if study.summary.strength:  # it does not say what is missed without the adapters
        raise ResultsError(
            f"{study.folder} has adapters {study.summary.done}, which does not tell what a layer is needed "
            "for; give an ablation without --strength"
        )
    found, config = _configuration(study.folder, checkpoint)
    studied = studied_lora(results)
    if config.get("peft_type") != "LORA" or studied is None:
        raise ResultsError(
            f"{study.folder}: a recipe needs an ablation of whole layers of a LoRA of PEFT, in one stack of "
            "layers"
        )
    derived = isinstance(keep, (str, int)) or rank is not None
    if derived and not study.summary.is_informative:
        raise ResultsError(
            f"{study.folder}: no recipe can be derived from this study. {study.summary.warning}"
        )
    _, adapted, ranked = studied
    span = removed = None
    if keep == "needed":
        within = as_points("within", within)
        held = np.array([bool(n) for n in study.summary.layer_parameters or ()])
        span = longest_removable(spans_with_adapters(study.spans, held), within)
        if span is None:
            limit = tolerance_text(within, study.summary.metric)
            raise ResultsError(f"{study.folder}: every span costs more than {limit}; give a larger within")
        removed = Span(int(span["first"]), int(span["last"]))
        layers = kept_layers(adapted, removed)
        if not layers:
            raise ResultsError(f"{study.folder}: no layer would keep an adapter; give a smaller within")
    elif isinstance(keep, int):
        if not 1 <= keep <= len(adapted):
            raise ResultsError(must_be("keep", f"from 1 to {len(adapted)} layers", keep))
        every = _shares(study, adapted, ranked)
        layers = sorted(sorted(every, key=lambda layer: -every[layer])[:keep])
    elif isinstance(keep, str):
        if keep != "all":
            raise ResultsError(must_be("keep", "all, needed, how many layers, or a list of layers", keep))
        layers = list(adapted)
    else:
        if not keep or not set(keep) <= set(adapted):
            raise ResultsError(must_be("keep", f"layers out of {', '.join(map(str, adapted))}", list(keep)))
        layers = sorted(set(keep))
    shares = _shares(study, layers, ranked) if isinstance(keep, int) or rank is not None else None
    if rank is not None or layers != list(adapted):
        _refuse_numbered(found)
    changed = of_layers(found / CONFIG, config, layers, adapted, rank, shares)
    by_layer = (changed["rank_pattern"].get(pattern_of(layer), changed["r"]) for layer in layers)
    ranks = () if config.get("rank_pattern") else tuple(by_layer)
    recipe = Recipe(Path(out), tuple(layers), ranks, removed)
    _write(out, found, changed, _card(study, found, config, recipe, span, within, shares, rank, len(adapted)))
    return recipe


def write_rank_recipe(study: RankRecord, out: str | Path, checkpoint: str | Path | None) -> Path:
    """Write the recipe of a study of ranks; see `Ranks.recipe`."""
    said, (found, config) = study.summary, _configuration(study.folder, checkpoint)
    if config.get("peft_type") != "LORA":
        raise ResultsError(f"{found}: a recipe of ranks needs a LoRA of PEFT, not {config.get('peft_type')}")
    needed = said.needed
    rows = study.ranks[study.ranks["whole"]].sort_values("rank")
    lines = [
        f"| {row.rank} | {drop_text(-row.delta_points, said.metric)} | {100 * row.energy:.0f}% |"
        for row in rows.itertuples(index=False)
    ]
    card = [
        f"# A LoRA of rank {needed} in place of {said.largest}", "",
        f"{metric_name(said.metric)} on {said.data}, {examples_text(said.n_examples, said.metric)}. "
        f"Directions needed: {said.verdict}.", "",
        "| directions kept | against all | share of the energy |", "| --- | --- | --- |", *lines, "",
        "Nothing has been trained with this configuration. The study cuts down a LoRA that was trained with "
        "more directions. Whether one that is trained with so few does as well is not known before it is "
        "trained and evaluated.", "",
    ]  # fmt: skip
    _write(out, found, of_rank(config, needed), "\n".join(card))
    return Path(out)


def _configuration(results: Path, checkpoint: str | Path | None) -> tuple[Path, dict[str, Any]]:
    """The checkpoint of a study, by default the folder around its results, and PEFT's configuration in it."""
    found = Path(results.resolve().parent if checkpoint is None else checkpoint)
    if not (found / CONFIG).is_file():
        raise ResultsError(f"{found} contains no {CONFIG}; give the checkpoint of the study with checkpoint=")
    return found, read_json_file(found / CONFIG)


def _write(out: str | Path, checkpoint: Path, config: Mapping[str, Any], card: str) -> None:
    """Write a recipe, but not over the configuration of its checkpoint."""
    folder = make_folder(Path(out))
    if folder.resolve() == checkpoint.resolve():
        raise ResultsError(f"{out} is the checkpoint itself; give another folder for the recipe")
    write_json(folder / CONFIG, config)
    write_text(folder / CARD, card)


def _refuse_numbered(checkpoint: Path) -> None:
    """Refuse modules with a number after the layer's, such as experts: PEFT would take it for the layer."""
    try:
        with safe_open(checkpoint / WEIGHTS[0], "numpy") as file:
            names = list(file.keys())
    except FileNotFoundError:  # an older checkpoint of torch.save
        return
    numbered = (name for name in names if sum(part.isdecimal() for part in name.split(".")) > 1)
    if name := next(numbered, None):
        raise ResultsError(
            f"{checkpoint}: PEFT does not tell the layer's number in {name} from the other one, so neither "
            "layers nor ranks can be chosen by layers"
        )


def _shares(study: AblationRecord, layers: Sequence[int], ranked: Sequence[int]) -> dict[int, float]:
    """Each kept layer's share of the drop, in points."""
    table = study.layers
    found = {} if table is None else shares_by_layer(table).reindex(layers).to_dict()
    if not set(layers) <= set(ranked) or any(math.isnan(found.get(layer, math.nan)) for layer in layers):
        raise ResultsError(
            f"{study.folder}: ranks need each layer's share of the drop, from an ablation of every span of "
            "layers with adapters; ablate with --spans all, or omit rank"
        )
    return found


def _card(
    study: AblationRecord,
    checkpoint: Path,
    config: Mapping[str, Any],
    recipe: Recipe,
    span: pd.Series | None,
    within: float,
    shares: Mapping[int, float] | None,
    rank: int | None,
    n_adapted: int,
) -> str:
    """The evidence, as Markdown."""
    said = study.summary
    own = checkpoint.name
    named = f"{said.task}, {said.evaluated}; {metric_name(said.metric)}"
    data = f"{examples_text(said.n_examples, said.metric)} ({named})"
    lines = [
        f"# A LoRA to train after the ablation of {own}",
        "",
        f"`{CONFIG}` configures PEFT's LoRA with adapters in {count_text(len(recipe.layers), 'layer')}: "
        f"{', '.join(map(str, recipe.layers))}. It is the configuration of {own} except for the layers and "
        f"ranks, which follow from an ablation on {data}.",
        "",
        _UNTRAINED,
    ]
    if span is not None:
        off = layers_text(int(span["first"]), int(span["last"]))
        interval = ""
        if "ci_low_points" in span and not math.isnan(span["ci_low_points"]):
            low, high = (-span[f"ci_{end}_points"] for end in ("high", "low"))
            interval = f" (95% interval {interval_text(low, high, said.metric)})"
        limit, cost = tolerance_text(within, said.metric), drop_text(-span["delta_points"], said.metric)
        lines += [
            "",
            f"Without adapters: {off}, the longest span within {limit}. Switched off without retraining: "
            f"{cost}{interval}. The span was chosen on these examples, so the number is optimistic.",
        ]
    if shares is not None and recipe.ranks:
        rows = zip(recipe.layers, recipe.ranks)
        lines += [
            "",
            f"The layers with the largest shares of the change with all adapters off, of {n_adapted}."
            if rank is None
            else "Ranks follow each layer's share of the change with all adapters off; every layer keeps its "
            f"scale (`alpha_pattern`). The mean rank is {rounded(float(np.mean(recipe.ranks)))}; it was "
            f"{config['r']}.",
            "",
            f"| layer | share ({unit_name(said.metric)}) | rank |",
            "|---:|---:|---:|",
            *(f"| {layer} | {number_text(shares[layer], said.metric)} | {own} |" for layer, own in rows),
        ]
    return "\n".join([*lines, ""])
