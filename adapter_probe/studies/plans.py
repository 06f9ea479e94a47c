"""What a study would take: the plans that `ap.ablate.plan` and the like return."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from adapter_probe.wording import count_text

from .terminal_text import aligned_columns, duration_text, method_text

_DEEP = 16
"""Number of layers from which the text of an ablation's plan lists other choices of spans."""


class Plan:
    """Base class of the plans: a table in a notebook, and aligned columns as text."""

    def rows(self) -> list[tuple[str, str]]:
        """The plan as (name, value) pairs of text."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The values as a dictionary, which the commands print with ``--dry-run --json``."""
        return dict(vars(self))

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The rows under their titles; an empty title is not shown."""
        return [("", self.rows())]

    def __repr__(self) -> str:
        return "\n\n".join(
            f"{title}\n{aligned_columns(rows)}".lstrip("\n") for title, rows in self._sections()
        )

    def _repr_html_(self) -> str:
        tables = []
        for title, rows in self._sections():
            lines = "".join(
                f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in rows
            )
            tables.append(f"<table><caption>{title}</caption>{lines}</table>")
        return "".join(tables)


@dataclass(frozen=True, eq=False, repr=False)
class AblationPlan(Plan):
    """The estimated cost of an ablation; what `adapter_probe.ablate.plan` returns.

    Attributes:
        n_variants: number of variants, the intact model included.
        n_distinct: number of variants that differ.
        n_examples: number of examples.
        n_tokens: number of tokens of all examples.
        layer_evaluations: layer passes per batch, with every shared prefix computed once: of the attention
            sublayer and of the feed-forward sublayer.
        separate_layer_evaluations: layer passes per batch with one run per variant.
        choices: other choices of spans: `spans` and `group` as in `adapter_probe.ablate`, `n_spans`,
            `layer_evaluations`, and the `seconds` that the whole study would take to compute.
        n_spans: number of spans.
        parts_done: number of parts that the results folder contains already.
        parts: number of parts that the examples are divided into.
        tokens_per_pass: maximum number of rows (variants x tokens) per pass through a layer.
        seconds_left: estimated time in seconds, including start-up and figures.
        peak_memory_bytes: estimated peak memory; None if it is unknown.
        device: compute device.
        engine: the engine that runs the model, and why.
        folder: results folder.
        seconds_computing: the part of `seconds_left` in which the model computes.
        n_strengths: number of strengths, for each of which all variants are computed.
    """

    n_variants: int
    n_distinct: int
    n_examples: int
    n_tokens: int
    layer_evaluations: tuple[int, int]
    separate_layer_evaluations: int
    choices: Sequence[dict[str, Any]]
    n_spans: int
    parts_done: int
    parts: int
    tokens_per_pass: int
    seconds_left: float
    peak_memory_bytes: float | None
    device: str
    engine: str
    folder: Path
    seconds_computing: float
    n_strengths: int = 1

    def rows(self) -> list[tuple[str, str]]:
        """See `Plan.rows`; other choices of spans are listed for models with many layers."""
        attention, ffn = self.layer_evaluations
        memory = self.peak_memory_bytes
        strengths = f" at each of {self.n_strengths} strengths" if self.n_strengths > 1 else ""
        rows = [
            ("variants", f"{self.n_variants} ({self.n_spans} spans){strengths}"),
            ("examples", f"{self.n_examples:,} ({self.n_tokens:,} tokens)"),
            ("layer passes, separate runs", f"{self.separate_layer_evaluations:,} per batch"),
            ("layer passes, shared", f"{ffn:,} per batch ({attention:,} of the attention sublayer)"),
            ("parts done", f"{self.parts_done} of {self.parts}"),
            ("tokens per pass", f"{self.tokens_per_pass:,}"),
            ("time left, estimated", duration_text(self.seconds_left)),
            (
                "peak memory, estimated",
                "unknown" if memory is None else f"{memory / 1e9:.1f} GB on {self.device}",
            ),
            ("engine", self.engine),
            ("results folder", str(self.folder)),
        ]
        deep = self.separate_layer_evaluations // self.n_variants >= _DEEP
        return [*rows, *map(_choice_row, self.choices)] if deep else rows


def _choice_row(choice: dict[str, Any]) -> tuple[str, str]:
    """The estimated cost of another choice of spans, as text."""
    group = f" --group {choice['group']}" if choice["group"] > 1 else ""
    passes, seconds = choice["layer_evaluations"][1], duration_text(choice["seconds"])
    cost = f"{choice['n_spans']} spans, {passes:,} layer passes per batch, about {seconds}"
    return f"with --spans {choice['spans']}{group}", cost


@dataclass(frozen=True, eq=False, repr=False)
class SweepPlan(Plan):
    """The trials of a sweep; what `init_sweep.plan` and `tradeoff.plan` return.

    Attributes:
        trials: one dictionary per trial: `trial` (its id), `task`, `method`, `learning_rate`, `epochs`,
            `seed`, `done`, and the `seconds` that it is estimated to take, None for those that are done.
        done: number of finished trials.
        left: number of trials still to train.
        workers: number of trials that train at the same time.
        seconds_left: estimated time in seconds, including start-up and figures.
        folder: output folder.
    """

    trials: Sequence[dict[str, Any]]
    done: int
    left: int
    workers: int
    seconds_left: float
    folder: Path

    def rows(self) -> list[tuple[str, str]]:
        """See `Plan.rows`."""
        return [
            *map(_trial_row, self.trials),
            ("trials", f"{len(self.trials)}, {self.done} done, {self.workers} in parallel"),
            ("time left, estimated", duration_text(self.seconds_left)),
            ("folder", str(self.folder)),
        ]


def _trial_row(trial: dict[str, Any]) -> tuple[str, str]:
    """A trial's settings, and whether it is done, as text; its id is in `to_dict` alone."""
    method = method_text(trial["method"])
    state = "done" if trial["done"] else f"about {duration_text(trial['seconds'])}"
    if trial["learning_rate"] is not None:
        epochs = count_text(trial["epochs"], "epoch")
        method += f"; lr {trial['learning_rate']:g}, {epochs}, seed {trial['seed']}"
    return f"{trial['task']}: {method}", state


@dataclass(frozen=True, eq=False, repr=False)
class SuitePlan(Plan):
    """The studies of a suite; what `adapter_probe.suite.plan` returns.

    Attributes:
        tradeoff: the plan of the trade-off, or None.
        init_sweep: the plan of the initialisation sweep, or None.
        checkpoints: folders of the checkpoints that are trained and ablated. The estimates do not cover them.
    """

    tradeoff: SweepPlan | None
    init_sweep: SweepPlan | None
    checkpoints: Sequence[Path]

    def _sweeps(self) -> dict[str, SweepPlan]:
        plans = {"tradeoff": self.tradeoff, "init-sweep": self.init_sweep}
        return {name: plan for name, plan in plans.items() if plan is not None}

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        sections = [(name, plan.rows()) for name, plan in self._sweeps().items()]
        folders = [("", str(folder)) for folder in self.checkpoints]
        return [*sections, ("checkpoints", folders)] if folders else sections

    def rows(self) -> list[tuple[str, str]]:
        """See `Plan.rows`."""
        return [row for _, rows in self._sections() for row in rows]

    def to_dict(self) -> dict[str, Any]:
        """See `Plan.to_dict`; studies that the file does not contain are left out."""
        plans: dict[str, Any] = {name: plan.to_dict() for name, plan in self._sweeps().items()}
        return {**plans, "checkpoints": list(self.checkpoints)} if self.checkpoints else plans
