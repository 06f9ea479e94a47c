"""The span ablation in its results folder: saved in parts, and resumable."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
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


class AblationRun:
    """An ablation in its folder: finished parts, missing parts, and their computation.

    Args:
        request: the request.
        run: the open folder of the run.
    """

    def __init__(self, request: AblationRequest, run: RunDirectory):
        self._request, self._run = request, run
        self._parts = cut_parts(request.encoded.lengths, int(run.plan["tokens_per_part"]))
        self._engine = Engine(request, run.path)

    @staticmethod
    def folder(request: AblationRequest, out: Path, device_type: str | None = None) -> RunDirectory:
        """The folder of a request, to be entered with ``with``.

        Args:
            request: the request.
            out: the folder.
            device_type: device type of the computing machines, if other than this one; parts are sized for
                it.
        """
        per_part = TOKENS_PER_PART.get(device_type or request.device.type, TOKENS_PER_PART["cpu"])
        return RunDirectory(out, request.identity, {"tokens_per_part": per_part})

    @property
    def tokens_total(self) -> int:
        """Total number of tokens, the unit of progress."""
        return int(self._request.encoded.lengths.sum())

    @property
    def tokens_done(self) -> int:
        """Tokens of the finished parts."""
        return sum(map(self.tokens_of, self._finished()))

    def tokens_of(self, part: int) -> int:
        """Tokens of one part."""
        return int(self._request.encoded.lengths[self._parts[part]].sum())

    def parts_done(self) -> tuple[int, int]:
        """Number of finished parts and of all parts."""
        return len(self._finished()), len(self._parts)

    def missing(self) -> list[int]:
        """Numbers of the parts still to do."""
        return sorted(set(range(len(self._parts))) - self._finished())

    def _finished(self) -> set[int]:
        return {i for i in self._run.finished() if i < len(self._parts)}

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
                self._run.write_part(number, {"index": part, **arrays})

    def _collect(self) -> AblationResults:
        parts = [self._run.read_part(number) for number in range(len(self._parts))]
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
    run = AblationRun.folder(request, folder)
    if (folder / MANIFEST).exists():
        with run:
            ablation = AblationRun(request, run)
    else:
        ablation = AblationRun(request, run)
    engine = Engine(request)
    masks = request.variants.masks
    per_token = engine.seconds_per_token()
    seconds = per_token * (ablation.tokens_total - ablation.tokens_done)
    done, parts = ablation.parts_done()
    work = count_work(masks, request.encoded.lengths, request.model.forks_early)
    per_pass = per_token * ablation.tokens_total / sum(work.layer_evaluations)
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
