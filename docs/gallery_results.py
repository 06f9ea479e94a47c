"""The results that the cases of the gallery are drawn from: of this repository's studies, or made up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis import sweeps
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.attribution import shares
from adapter_probe.analysis.ranks import rank_summary, rank_table, spectra_table
from adapter_probe.analysis.strengths import joined, strength_summary, strength_table
from adapter_probe.analysis.summary import summarise
from adapter_probe.kinds.table import scored_of
from adapter_probe.records import to_record
from adapter_probe.results.ablation_files import save_predictions, write_spans
from adapter_probe.results.atomic import make_folder, write_csv, write_json, write_text
from adapter_probe.results.trial_files import claim_study
from adapter_probe.spans import Site, Stack, join_stacks, span_variants

STUDIES = Path(__file__).resolve().parent / "studies"
_LONG = "-of-customer-messages-to-an-airline-2015-to-2019"
_TOLD = {  # of the documentation's sweeps: the base, and numbers of examples to train and to validate on
    "tradeoff": ("all-MiniLM-L6-v2", (1_600, 400), {"corporate_messaging": (1_600, 311)}),
    "methods": (
        "gte-small",
        (4_000, 1_464),
        {"cola": (8_551, 1_043), "mrpc": (4_076, 1_725), "sst2": (4_000, 872), "stsb": (4_000, 1_500)},
    ),
    "init-sweep": ("gte-small", (1_600, 400), {"corporate_messaging": (1_600, 311)}),
    "init-sweep/lora": ("gte-small", (4_000, 1_464), {"sst2": (4_000, 872)}),
}
_MODELS = {  # of ablations that were measured
    "classification": "gte-small, adapters of size 64",
    "causal": "SmolLM2-135M-Instruct, LoRA of rank 8",
}
_RESAMPLES = 400  # of made-up results, whose intervals need not be exact


def write(root: Path, names: Iterable[str]) -> None:
    """Write results, by their names in `FOLDERS`, below a folder; those that are there stay."""
    for name in names:
        if not (root / name).exists():
            FOLDERS[name](root / name)


def made_up(
    n_layers: int = 12, *, seed: int = 0, task: str = "cola", n_examples: int = 300,
    stacks: Sequence[Stack] = (), useless: int = 0, harmful: float = 0.0, undefined: Sequence[int] = (),
    data: str = "", spread: float = 0.12, metric: str = "accuracy", **variants: Any,
) -> AblationResults:  # fmt: skip
    """An ablation of which deeper layers matter more; equal arguments give equal results.

    Args:
        n_layers: layers of each stack.
        seed: of the training; examples and layers are the same for all seeds.
        task: name of the task.
        n_examples: number of examples.
        stacks: stacks of layers; none for a model with one.
        useless: how many of the lowest layers change nothing.
        harmful: how much the model gains without the layers of the lower third.
        undefined: rows without a score.
        data: name of the evaluated data, if it is not the task's own.
        spread: of what single variants do to single examples.
        metric: ``accuracy`` of two classes, ``margin`` of preferences, or ``cosine`` of embeddings.
        variants: see `adapter_probe.spans.span_variants`; and the `modules` of a layer, by name.
    """
    draw, own = np.random.default_rng(len(task) + len(data)), np.random.default_rng(seed)
    modules = [Site(name, name, "") for name in variants.pop("modules", ())]
    own_sites = {"of_layer": modules} if modules else {}
    chosen = span_variants(n_layers, **variants, **own_sites)
    if stacks:
        parts = {one.name: span_variants(one.n_layers, **variants, **own_sites) for one in stacks}
        chosen = join_stacks(stacks, parts)
    n_all = chosen.masks.shape[1] // len(chosen.sites)
    weights = np.where(np.arange(n_all) < useless, 0.0, (0.15 + np.arange(n_all) / n_all) ** 2)  # [layers]
    weights[: n_all // 3] -= harmful
    weights = weights / np.abs(weights).sum() * (1 + 0.08 * own.normal(size=n_all))
    off = ~chosen.masks.reshape(len(chosen.masks), n_all, -1)  # [variants, layers, sites]
    kinds = np.linspace(0.1, 1.0, len(chosen.sites)) ** 2 / 2 if modules else None
    lost = (off.any(axis=2) if kinds is None else off @ kinds) @ weights  # [variants]
    margins = (
        draw.normal(1.0, 0.9, n_examples) - 1.1 * lost[:, None] - 0.5 * np.maximum(lost, 0)[:, None] ** 2
    )
    margins = margins + spread * own.normal(size=margins.shape) * (lost != 0)[:, None]
    truth = draw.choice(2, n_examples, p=(0.32, 0.68))
    said = np.where(margins > 0, truth, 1 - truth)
    outputs = np.eye(2, dtype=np.float32)[said]
    kind = {"margin": "pairwise", "cosine": "embedding"}.get(metric, "classification")
    if kind == "pairwise":
        outputs = np.stack([margins, -margins], axis=-1).astype(np.float32)
    elif kind == "embedding":
        cosines = np.clip(1 - np.abs(margins - margins[0]) / 4, -1, 1)
        outputs = np.stack([cosines > 0.9, cosines], axis=-1).astype(np.float32)
    truth = truth if kind == "classification" else np.ones_like(truth)
    outputs[list(undefined)] = np.nan
    settings = {"task": task, "split": "validation", "site_parameters": [49_536] * chosen.masks.shape[1]}
    settings |= {"base": "bert-base-uncased", "method": {"name": "adapters", "size": 64}}
    settings |= {name: value for name, value in variants.items() if name != "spans"}
    settings |= {"site_names": [site.name for site in modules]} if modules else {}
    settings |= {"stacks": [list(one) for one in stacks]} if stacks else {}
    others = {"stacks": chosen.stacks, "modules": chosen.modules}
    names = ("unacceptable", "acceptable") if kind == "classification" else ()
    return AblationResults(
        chosen.masks, np.array([(s.first, s.last) if s else (-1, -1) for s in chosen.spans]), chosen.names,
        scored_of(kind, metric, names, {"outputs": outputs, "scored_with": truth}),
        identity={
            "checkpoint": {"delta_sha256": f"seed {seed}"}, "data": {"name": data or task},
            "settings": settings,
        },
        settings=settings | ({"data": data} if data else {}),
        **{name: np.array(own) for name, own in others.items() if own},
    )  # fmt: skip


def ablation(path: Path, **facts: Any) -> None:
    """Write a made-up ablation; see `made_up`."""
    results = made_up(**facts)
    tested = results.metric == "margin"  # by the bootstrap, whose p-values are shares of the resamples
    tables = ablation_tables(results, 10 * _RESAMPLES if tested else _RESAMPLES)
    make_folder(path)
    write_spans(path, tables.spans)
    write_csv(path / "layers.csv", tables.layers)
    write_csv(path / "removable.csv", tables.removable)
    save_predictions(path, results)
    write_json(path / "summary.json", summarise(results, tables).to_dict())
    write_json(path / "manifest.json", {"identity": results.identity})


def measured(
    path: Path, table: str, task: str, n_layers: int, metric: str = "accuracy", majority: float | None = None,
    data: str | None = None, kind: str = "classification",
) -> None:  # fmt: skip
    """Write an ablation that the studies of the documentation measured, from its table of spans."""
    spans = pd.read_csv(STUDIES / table)
    whole, scores = spans.loc[spans["n_layers"].idxmax()], spans["score"] - spans["delta_points"] / 100
    comparing = metric in ("kl", "agreement")
    summary = {
        "task": task, "split": "validation", "study": "ablated", "metric": metric, "kind": kind, "data": data,
        "n_examples": int(spans["n_examples"].iloc[0]), "n_layers": n_layers, "majority_score": majority,
        "intact_score": 0.0 if comparing else float(scores.iloc[0]), "removed_score": float(whole["score"]),
        "removed_delta_points": float(whole["delta_points"]), "model": _MODELS[kind],
    }  # fmt: skip
    make_folder(path)
    spans.to_csv(path / "spans.csv", index=False)
    write_json(path / "summary.json", summary)
    if spans.duplicated("first").any():  # a grid
        ends = np.unique(spans["first"]), np.unique(spans["last"])
        grid = np.full((len(ends[0]), len(ends[1])), np.nan)
        grid[tuple(np.searchsorted(*pair) for pair in zip(ends, (spans["first"], spans["last"])))] = -spans[
            "delta_points"
        ]
        single = spans[spans["n_layers"] == spans["n_layers"].min()].rename(
            columns={"first": "layer", "last": "last_layer"}
        )
        names = [
            name
            for name in ("layer", "last_layer", "delta_points", "ci_low_points", "ci_high_points", "p_holm")
            if name in single
        ]
        layers = single[names].assign(share_points=shares(grid))
        write_csv(
            path / "layers.csv",
            layers if (layers["layer"] < layers["last_layer"]).any() else layers.drop(columns="last_layer"),
        )


def ranks(path: Path, n_spans: int, largest: int = 16) -> None:
    """Write a made-up study of ranks, of all adapters and of some spans alone."""
    by_rank = {}
    for rank in (1, 2, 4, 8):
        results = made_up(max(n_spans, 6), spans="single" if n_spans else "whole", n_examples=400)
        n_off = (~results.masks).sum(axis=1, keepdims=True)
        share = 0.3 / rank**1.5 * n_off / n_off.max()
        wrong = np.random.default_rng(rank).random((len(results.masks), 400)) < share
        outputs = np.where(wrong[..., None], results.outputs[:1, :, ::-1], results.outputs[:1])
        outputs[0] = results.outputs[0]
        identity = {**results.identity, "settings": {**results.settings, "rank": rank}}
        scored = replace(results.scored, outputs=outputs.astype(np.float32))
        by_rank[float(rank)] = replace(results, scored=scored, identity=identity)
    together, variants = joined(by_rank)
    decay = np.random.default_rng(0).uniform(0.5, 1.5, (12, 2))
    values = [
        (
            *("", layer, "attention", f"layers.{layer}.{name}"),
            (layer + 3) * np.arange(1, largest + 1.0) ** -decay[layer, number],
        )
        for layer in range(max(n_spans, 6))
        for number, name in enumerate(("q_proj", "v_proj"))
    ]
    spectra = spectra_table(values)
    make_folder(path)
    write_csv(path / "ranks.csv", rank_table(together, variants, spectra, largest))
    write_csv(path / "spectra.csv", spectra)
    write_json(path / "summary.json", to_record(rank_summary(together, variants, spectra, largest, 1.0)))


def strengths(path: Path, n_spans: int) -> None:
    """Write a made-up study of strengths, of all adapters and of some spans alone."""
    spans = "single" if n_spans else "whole"
    by_strength = {}
    for strength in (0.0, 0.5, 1.5, 2.0):
        results = made_up(max(n_spans, 6), spans=spans, n_examples=400, harmful=0.25)
        n_rows = len(results.masks)
        wrong = np.random.default_rng(round(10 * strength)).random((n_rows, 400)) < 0.04 * (strength - 1) ** 2
        outputs = np.where((wrong | (strength == 1))[..., None], results.outputs[:1], results.outputs)
        if strength > 1:
            outputs = np.where(wrong[..., None], outputs[..., ::-1], results.outputs[:1])
        outputs[0] = results.outputs[0]
        identity = {**results.identity, "settings": {**results.settings, "strength": strength}}
        scored = replace(results.scored, outputs=outputs.astype(np.float32))
        by_strength[strength] = replace(results, scored=scored, identity=identity)
    together, variants = joined(by_strength)
    make_folder(path)
    write_csv(path / "strengths.csv", strength_table(together, variants))
    write_json(path / "summary.json", to_record(strength_summary(together, variants)))


def init_sweep(path: Path, source: str = "init-sweep", seeds: int | None = None, equal: bool = False) -> None:
    """Write an initialisation sweep of the documentation, perhaps of fewer seeds or with equal scores."""
    if seeds is None and not equal:
        copied = "sweep.csv" if source == "init-sweep" else "init-sweep.csv"
        table = pd.read_csv(STUDIES / source / copied)
        trials = pd.read_csv(STUDIES / source / "trials.csv")
    else:
        trials = _typed(pd.read_csv(STUDIES / source / "trials.csv"))
        trials = trials[(trials["seed"] < (seeds or 99)) & (trials["task"] == trials["task"].iloc[0])]
        trials = trials.assign(score=0.54, majority_score=np.nan) if equal else trials
        table = sweeps.init_sweep_table(trials)
    _write_sweep(path, source, {"trials.csv": trials, "sweep.csv": table})


def tradeoff(
    path: Path,
    source: str = "tradeoff",
    tasks: Sequence[str] = (),
    seeds: int | None = None,
    long: bool = False,
) -> None:
    """Write a trade-off of the documentation, perhaps of some tasks and of fewer seeds."""
    trials = _typed(pd.read_csv(STUDIES / source / "trials.csv"))
    if tasks:
        trials = trials[trials["task"].isin(tasks)]
    if seeds is not None:
        trials = trials[trials["seed"] < seeds]
    if long:
        trials = trials.assign(task=trials["task"] + _LONG)
    tables = {"trials.csv": trials, "tradeoff.csv": sweeps.tradeoff_table(trials)}
    tables["aggregate.csv"] = sweeps.aggregate_table(trials)
    if len(table := sweeps.size_table(trials)):
        tables["sizes.csv"] = table
    _write_sweep(path, source, tables)


def _write_sweep(path: Path, source: str, tables: Mapping[str, pd.DataFrame]) -> None:
    """Write the tables of a sweep, and what the study's page says of its base and its examples."""
    base, usual, others = _TOLD[source]
    own = {
        task: others.get(task.removesuffix(_LONG), usual) for task in tables["trials.csv"]["task"].unique()
    }
    examples = {task: {"train": train, "validation": validation} for task, (train, validation) in own.items()}
    make_folder(path)
    claim_study(path, source, {}, {task: {} for task in own}, {"base": base, "examples": examples})
    for name, table in tables.items():
        write_csv(path / name, table)


def overlay(path: Path) -> None:
    """Write results of other people, of many methods and sizes, as a table."""
    rows = [
        f"{method},{size},{1200 * size * (1 + 3 * index) + 40000},{0.79 + index / 100 - 0.04 / size},{task},0"
        for task in ("airline", "cola")
        for index, method in enumerate(("lora", "dora", "vera", "Prefix tuning", "randlora"))
        for size in (4, 16, 64)
    ]
    write_text(path, "\n".join(["method,size,parameters,score,task,seed", *rows, ""]))


def _typed(trials: pd.DataFrame) -> pd.DataFrame:
    return trials.astype({"size": "Int64", "k": "Int64", "init_std": "float64"})


_ENCODER_DECODER = (Stack("encoder", 6), Stack("decoder", 6))
_OF_BERT = ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense")
_OF_LLAMA = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_BY_MODULE = {"by": "module", "modules": _OF_BERT}
FOLDERS: dict[str, Callable[[Path], None]] = {
    "cola": partial(measured, table="heatmap/cola-seed-0.csv", task="cola", n_layers=12, majority=0.691),
    "mnli": partial(measured, table="heatmap/gte-mnli-seed-0.csv", task="mnli", n_layers=12, majority=0.354),
    "arc": partial(
        measured, table="smollm2/arc/heatmap.csv", task="arc_easy", n_layers=30, kind="causal", majority=0.25
    ),
    "arc-suffix": partial(
        measured, table="smollm2/suffix/curve.csv", task="arc_easy", n_layers=30, kind="causal", majority=0.25
    ),
    "sentences": partial(
        measured, table="smollm2-strength/sentences.csv", task="texts", n_layers=30, metric="kl",
        data="sentences.jsonl", kind="causal",
    ),
    "layers-24": partial(ablation, n_layers=24, useless=4),
    "layers-30": partial(ablation, n_layers=30, useless=8),
    "gains": partial(ablation, harmful=0.7),
    "small-gains": partial(ablation, n_layers=6, harmful=0.5, spread=0.5),
    "undefined": partial(ablation, n_layers=6, undefined=(3, 9)),
    "preferences": partial(ablation, task="preferences", metric="margin"),
    "embeddings": partial(ablation, task="texts", metric="cosine"),
    "one-layer": partial(ablation, n_layers=1),
    "stacks": partial(ablation, n_layers=6, stacks=_ENCODER_DECODER, task="xsum"),
    "stacks-single": partial(ablation, n_layers=6, stacks=_ENCODER_DECODER, task="xsum", spans="single"),
    "kept": partial(ablation, n_layers=12, complement=True),
    **{f"modules-{n}": partial(ablation, seed=n, **_BY_MODULE) for n in range(2)},
    "modules-30": partial(
        ablation, n_layers=30, by="module", modules=_OF_LLAMA, harmful=0.3, undefined=(40,)
    ),
    "modules-groups": partial(ablation, n_layers=12, group=4, **_BY_MODULE),
    "modules-stacks": partial(
        ablation, n_layers=6, stacks=_ENCODER_DECODER, task="xsum", by="module",
        modules=("SelfAttention.q", "EncDecAttention.q", "wo"),
    ),
    "single": partial(ablation, n_layers=24, spans="single", undefined=(5,)),
    **{f"cola-seed-{seed}": partial(ablation, n_layers=12, seed=seed) for seed in range(3)},
    **{f"deep-seed-{seed}": partial(ablation, n_layers=24, seed=seed) for seed in range(2)},
    "other-data": partial(ablation, n_layers=12, data="blimp.jsonl", harmful=0.3),
    "strength": partial(strengths, n_spans=0),
    "strength-layers": partial(strengths, n_spans=12),
    "ranks": partial(ranks, n_spans=0),
    "ranks-layers": partial(ranks, n_spans=12),
    "init-sweep": init_sweep,
    "init-sweep-lora": partial(init_sweep, source="init-sweep/lora"),
    "init-sweep-one-seed": partial(init_sweep, seeds=1),
    "init-sweep-equal": partial(init_sweep, equal=True),
    "tradeoff": tradeoff,
    "tradeoff-one-task": partial(tradeoff, tasks=("airline",), seeds=1),
    "tradeoff-two-tasks": partial(tradeoff, source="methods", tasks=("airline", "cola")),
    "tradeoff-long-names": partial(tradeoff, tasks=("airline", "cola"), long=True),
    "results-of-the-method-comparison.csv": overlay,
}  # fmt: skip
