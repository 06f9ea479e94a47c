"""The span ablation in its results folder: saved in parts, and resumable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adapter_probe.results.ablation_files import AblationResults
from adapter_probe.results.rundir import MANIFEST, RunDirectory
from adapter_probe.spans import effective_variants, studied_layers

from .engine import Engine, ProgressCallback
from .outputs import Arrays, assemble_results
from .plan import TOKENS_PER_PART, count_work, cut_parts
from .request import AblationRequest


class AblationRun(RunDirectory):
    """An ablation in its folder, which ``with`` enters: finished parts, missing parts, their computation.

    Args:
        request: the request.
        out: the folder.
        plan: how the examples are divided into parts; by default by the device.
        device_type: device type of the computing machines, if other than this one.
    """

    def __init__(
        self,
        request: AblationRequest,
        out: Path,
        *,
        plan: Mapping[str, object] | None = None,
        device_type: str | None = None,
    ):
        per_part = TOKENS_PER_PART.get(device_type or request.device.type, TOKENS_PER_PART["cpu"])
        super().__init__(out, request.identity, {"tokens_per_part": per_part} if plan is None else plan)
        self._request, self._engine = request, Engine(request, self.path)

    @cached_property
    def _parts(self) -> list[np.ndarray]:
        """By the plan of the folder, if there is one: not to be asked for before it is entered."""
        return cut_parts(self._request.encoded.lengths, int(self.plan["tokens_per_part"]))

    @property
    def tokens_total(self) -> int:
        """Total number of tokens, the unit of progress."""
        return int(self._request.encoded.lengths.sum())

    @property
    def tokens_done(self) -> int:
        """Tokens of the finished parts."""
        return sum(map(self.tokens_of, self._done()))

    def tokens_of(self, part: int) -> int:
        """Tokens of one part."""
        return int(self._request.encoded.lengths[self._parts[part]].sum())

    def parts_done(self) -> tuple[int, int]:
        """Number of finished parts and of all parts."""
        return len(self._done()), len(self._parts)

    def missing(self) -> list[int]:
        """Numbers of the parts still to do."""
        return sorted(set(range(len(self._parts))) - self._done())

    def _done(self) -> set[int]:
        return {i for i in self.finished() if i < len(self._parts)}

    def compute(self, report: ProgressCallback) -> AblationResults:
        """Compute the missing parts, then join all parts.

        Args:
            report: called with the number of new tokens after every batch.

        Raises:
            ResultsError: a part cannot be written.
        """
        self.compute_parts(self.missing(), report)
        return self._collect()

    def compute_parts(self, numbers: Iterable[int], report: ProgressCallback) -> None:
        """Compute some parts; see `compute`."""
        numbers = list(numbers)
        parts = [self._parts[number] for number in numbers]
        with closing(self._engine.outputs(parts, report)) as computed:
            for number, part, arrays in zip(numbers, parts, computed):
                self.write_part(number, {"index": part, **arrays})

    def _collect(self) -> AblationResults:
        parts = [self.read_part(number) for number in range(len(self._parts))]
        order = np.argsort(np.concatenate([part.pop("index") for part in parts]))
        arrays: Arrays = {
            name: np.concatenate([part[name] for part in parts], axis=1)[:, order] for name in parts[0]
        }
        guard = self._engine.repeat_doubtful_pairs(arrays)
        return assemble_results(self._request, self._request.variants, arrays, guard)


def plan_ablation(request: AblationRequest, folder: Path) -> dict[str, Any]:
    """The estimated cost of an ablation; nothing is written.

    Returns:
        The attributes of `adapter_probe.AblationPlan` but ``seconds_left``. ``seconds_computing`` is measured
        with some of the variants on one small batch per lane, and scaled by tokens and layer passes;
        ``peak_memory_bytes`` is measured meanwhile, and can be somewhat more with more variants.

    Raises:
        ResultsError: the folder belongs to another run, or is in use.
    """
    run = AblationRun(request, folder)
    if (folder / MANIFEST).exists():
        with run:  # to see which parts are there, and how the examples are divided
            pass
    engine = Engine(request)
    masks = request.variants.masks
    per_token = engine.seconds_per_token()
    seconds = per_token * (run.tokens_total - run.tokens_done)
    done, parts = run.parts_done()
    work = count_work(masks, request.encoded.lengths, request.model.forks_early)
    per_pass = per_token * run.tokens_total / sum(work.layer_evaluations)
    return {
        **asdict(work),
        "choices": _other_choices(request, per_pass),
        "n_spans": sum(span is not None for span in request.variants.spans),
        "parts_done": done,
        "parts": parts,
        "tokens_per_pass": engine.tokens_per_pass,
        "seconds_computing": seconds,
        "peak_memory_bytes": engine.peak_memory(),
        "device": str(request.device),
        "engine": f"{request.engine.name}: {request.engine.reason}",
        "folder": folder,
    }


_CHOICES = (("all", 1), ("all", 3), ("single", 1), ("prefix", 1), ("suffix", 1))
"""Spans and group of alternative choices whose cost is estimated too."""


def _other_choices(request: AblationRequest, seconds_per_pass: float) -> list[dict[str, Any]]:
    """Spans, group, number of spans, layer passes and seconds of other choices on the same examples."""
    model, settings = request.model, request.settings
    found = []
    studied = studied_layers(len(model.layers), settings.layers)
    for spans, group in _CHOICES:
        if (spans, group) == (settings.spans, settings.group) or group > studied.n_layers:
            continue
        variants = replace(settings, spans=spans, group=group).variants(len(model.layers))
        variants = effective_variants(variants, model.has_adapter)
        passes = count_work(variants.masks, request.encoded.lengths, model.forks_early).layer_evaluations
        n_spans = sum(span is not None for span in variants.spans)
        seconds = seconds_per_pass * sum(passes)
        found.append({"spans": spans, "group": group, "n_spans": n_spans, "layer_evaluations": passes,
                      "seconds": seconds})  # fmt: skip
    return found
