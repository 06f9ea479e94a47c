"""The span ablation on its results folder: kept as it goes, resumed where it stopped."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.results.ablation import AblationResults
from adapter_probe.results.rundir import MANIFEST, RunDirectory

from .outputs import Arrays, assemble, variant_outputs
from .plan import MEASURED_TOKENS, TOKENS_PER_PART, choose_tokens_per_pass, count_work, cut_batches, cut_parts
from .request import AblationRequest

Report = Callable[[int], None]


class AblationRun:
    """An ablation on its folder: what is done, what is left, and the doing of it.

    Args:
        request: what to compute.
        run: its entered folder.
    """

    def __init__(self, request: AblationRequest, run: RunDirectory):
        self._request, self._run = request, run
        self._parts = cut_parts(request.encoded.lengths, int(run.plan["tokens_per_part"]))
        self._engine = _Engine(request)

    @staticmethod
    def folder(request: AblationRequest, out: Path, device_type: str | None = None) -> RunDirectory:
        """The folder of a request, to be entered with ``with``.

        Args:
            request: what to compute.
            out: the folder.
            device_type: of the machines that will compute it, if not this one; parts are cut to suit it.
        """
        per_part = TOKENS_PER_PART.get(device_type or request.device.type, TOKENS_PER_PART["cpu"])
        return RunDirectory(out, request.identity, {"tokens_per_part": per_part})

    @property
    def tokens_total(self) -> int:
        """Tokens of the whole data, the unit of progress."""
        return int(self._request.encoded.lengths.sum())

    @property
    def tokens_done(self) -> int:
        """Tokens of the finished parts."""
        return sum(map(self.tokens_of, self._finished()))

    def tokens_of(self, part: int) -> int:
        """Tokens of one part."""
        return int(self._request.encoded.lengths[self._parts[part]].sum())

    def parts_done(self) -> tuple[int, int]:
        """Finished parts, of how many."""
        return len(self._finished()), len(self._parts)

    def missing(self) -> list[int]:
        """Numbers of the parts still to do."""
        return sorted(set(range(len(self._parts))) - self._finished())

    def _finished(self) -> set[int]:
        return {i for i in self._run.finished() if i < len(self._parts)}

    def compute(self, report: Report) -> AblationResults:
        """Compute the parts that are missing, then put all of them together.

        Args:
            report: called with the tokens newly done, after every batch.

        Raises:
            ResultsError: a part cannot be written.
        """
        self.compute_parts(self.missing(), report)
        return self._collect()

    def compute_parts(self, numbers: Iterable[int], report: Report) -> None:
        """Compute some parts; see `compute`."""
        for number in numbers:
            part = self._parts[number]
            self._run.write_part(number, {"index": part, **self._engine.outputs(part, report)})

    def _collect(self) -> AblationResults:
        parts = [self._run.read_part(number) for number in range(len(self._parts))]
        order = np.argsort(np.concatenate([part.pop("index") for part in parts]))
        arrays = {name: np.concatenate([part[name] for part in parts], axis=1)[:, order] for name in parts[0]}
        return assemble(self._request, self._request.variants, arrays)


class _Engine:
    """The model, ready on its device, and the variants it is run with."""

    def __init__(self, request: AblationRequest):
        self._request = request
        self._masks = request.variants.masks
        self.tokens_per_pass = choose_tokens_per_pass(request.tokens_per_pass, request.device.type)
        self._model: AdaptedModel | None = None

    def _ready_model(self) -> AdaptedModel:
        if self._model is None:
            model, dtype = self._request.checkpoint.model, getattr(torch, self._request.settings.dtype)
            if dtype != torch.float32:
                model = deepcopy(model)  # the checkpoint keeps its own precision
            self._model = model.to(self._request.device, dtype).eval()
        return self._model

    def outputs(self, items: np.ndarray, report: Report) -> Arrays:
        """See `variant_outputs`."""
        model = self._ready_model()
        return variant_outputs(self._request, model, self._masks, items, self.tokens_per_pass, report)

    def seconds_per_token(self) -> float:
        """Measured on a batch of examples of typical length, with every variant."""
        lengths = self._request.encoded.lengths
        order = np.argsort(lengths, kind="stable")
        tokens = MEASURED_TOKENS.get(self._request.device.type, MEASURED_TOKENS["cpu"])
        typical = cut_batches(lengths, order[len(order) // 2 :], 4 * tokens)[0]
        self.outputs(typical[:1], lambda _: None)  # the first pass pays for set-up
        start = time.perf_counter()
        self.outputs(typical, lambda _: None)
        return (time.perf_counter() - start) / float(lengths[typical].sum())

    def peak_memory(self) -> int | None:
        """Most bytes in use so far: of the process, or of the accelerator. None where nothing tells."""
        if self._request.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._request.device)
        if sys.platform == "win32":
            return None
        import resource  # Unix only

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def plan_ablation(request: AblationRequest, folder: Path) -> dict[str, Any]:
    """What an ablation would cost, as plain JSON; nothing is written.

    Returns:
        Counts of the work, ``seconds_left`` (measured on a small batch and scaled by tokens),
        ``peak_memory_bytes`` (measured while that batch ran, which is as large as any), and how many of the
        parts the folder holds already.

    Raises:
        ResultsError: the folder belongs to another run, or is in use.
    """
    run = AblationRun.folder(request, folder)
    if (folder / MANIFEST).exists():
        with run:
            ablation = AblationRun(request, run)
    else:
        ablation = AblationRun(request, run)
    engine = _Engine(request)
    # A site without an adapter is the same on and off, and no reason to fork.
    masks = request.variants.masks | ~request.checkpoint.model.has_adapter
    seconds = engine.seconds_per_token() * (ablation.tokens_total - ablation.tokens_done)
    done, parts = ablation.parts_done()
    return {
        **asdict(count_work(masks, request.encoded.lengths, request.checkpoint.model.forks_early)),
        "n_spans": sum(span is not None for span in request.variants.spans),
        "parts_done": done,
        "parts": parts,
        "tokens_per_pass": engine.tokens_per_pass,
        "seconds_left": seconds,
        "peak_memory_bytes": engine.peak_memory(),
        "device": str(request.device),
        "folder": str(folder),
    }
