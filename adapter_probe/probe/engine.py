"""The engine that runs the variants of an ablation on the requested device, in the requested precision."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch

from adapter_probe.data.packing import cut_by_tokens
from adapter_probe.data.prompts import EncodedPrompts
from adapter_probe.device import is_out_of_memory, peak_memory, return_memory, size_for, threads_for_few_rows
from adapter_probe.errors import AdapterProbeError, CheckpointError, ModelError
from adapter_probe.results.atomic import read_json, write_json
from adapter_probe.results.fingerprints import hash_json
from adapter_probe.results.schema import GUARD

from .guard import Guard, doubts, least_certain, margin_errors, margins, sampled
from .lanes import Lanes
from .outputs import Arrays, joined, refuse_nonfinite_intact
from .plan import (
    MEASURED_LAYERS,
    MEASURED_SECONDS,
    MEASURED_TOKENS,
    choose_tokens_per_pass,
    cut_batches,
    cut_by_length,
    cut_evenly,
    nodes_by_site,
    typical_tokens,
)
from .request import AblationRequest
from .runners import ModelRunner, model_runners
from .written import WritingRunner

ProgressCallback = Callable[[int], None]
ERROR = "error"
_FEWEST_AT_ONCE = 32  # pairs repeated between two estimates of the band
_RUN = "run_sha256"


class Engine:
    """Runs the variants of a request on any of its examples.

    In mixed precision the prefix tree runs in bfloat16, and every (example, variant) pair whose margin is
    within the guard band is repeated in float32; see `adapter_probe.probe.guard`.

    Args:
        folder: folder in which the guard's measurements are saved for a later run; None saves nothing.
    """

    def __init__(self, request: AblationRequest, folder: Path | None = None):
        self._request, self._folder = request, folder
        self._masks = request.variants.masks
        device, model = request.device.type, request.model
        self._mixed = request.settings.precision == "mixed"
        self._precisions = ("bfloat16", "float32") if self._mixed else (request.settings.precision,)
        self._tokens = {
            name: choose_tokens_per_pass(
                request.tokens_per_pass, device, model.inner_size, getattr(torch, name).itemsize
            )
            for name in self._precisions
        }
        self._first = dict(self._tokens)
        self.tokens_per_pass = self._tokens[self._precisions[0]]
        self._lanes = Lanes(device)
        self._runners: dict[str, SimpleQueue[ModelRunner | WritingRunner]] = {}  # by precision, one per lane
        self._packs = False  # whether texts of several lengths share a pass
        self._sampled: np.ndarray | None = None
        self._notes: list[str] = []

    def outputs(
        self, parts: Sequence[np.ndarray], report: ProgressCallback, masks: np.ndarray | None = None
    ) -> Generator[Arrays, None, None]:
        """Yield the outputs of every variant for the items of each part; see `ModelRunner.outputs`.

        In mixed precision they include ``error`` ``[variants, items]``: the error of the fast pass for pairs
        repeated in float32 (infinite if a logit is not finite), NaN for the other pairs.

        Args:
            parts: int ``[items]`` for each part.
            report: called with the number of new tokens after every batch.
            masks: bool ``[variants, sites]``, other variants than those of the request, the intact model
                first; not in mixed precision.

        Raises:
            CheckpointError: an output of the intact model is NaN or infinite.
        """
        lengths = self._request.encoded.lengths
        compute = partial(self._tree, self._precisions[0], masks=masks)
        if self._mixed:
            compute = partial(self._mixed_outputs, self._first_band())
        n_tokens = int(lengths.sum())  # of finished parts too, so that a resumed run has the same batches
        self._prepare()
        together = self._request.encoded.in_trees or self._packs
        cutting = cut_batches if together else cut_by_length
        if isinstance(self._request.encoded, EncodedPrompts):  # a part is what is written together
            cut = [[part] for part in parts]
        else:
            cut = [cutting(lengths, p, self.tokens_per_pass, self._lanes.n, n_tokens) for p in parts]
        with closing(self._side_by_side(compute, chain.from_iterable(cut))) as computed:
            for batches in cut:
                done = []
                for batch, arrays in zip(batches, computed):
                    refuse_nonfinite_intact(self._request, arrays)
                    done.append(arrays)
                    report(int(lengths[batch].sum()))
                yield joined(done)

    def _mixed_outputs(self, band: float, items: np.ndarray) -> Arrays:
        arrays = self._tree(self._precisions[0], items)
        logits = arrays["logits"]
        arrays[ERROR] = np.full(logits.shape[:2], np.nan, np.float32)
        chosen = np.nonzero(doubts(logits, band))
        _take(arrays, chosen, self._pairs("float32", items, chosen))
        return arrays

    def _pairs(self, precision: str, items: np.ndarray, chosen: tuple[np.ndarray, ...]) -> np.ndarray:
        """Logits ``[pairs, labels]`` of the chosen pairs, (variants, positions in `items`)."""
        variants, columns = chosen
        rows = self._tokens[precision]
        try:
            with self._runner(precision) as runner:
                return runner.pairs(items[columns], self._masks[variants], rows, self._lanes.check)
        except RuntimeError as error:
            self._use_fewer_rows(error, precision, rows, items[columns])
        halves = zip(*(np.array_split(part, min(2, len(variants))) for part in chosen))
        return np.concatenate([self._pairs(precision, items, half) for half in halves])

    def _side_by_side(
        self, function: Callable[[np.ndarray], Arrays], batches: Iterable[np.ndarray]
    ) -> Generator[Arrays, None, None]:
        self._prepare()
        return self._lanes.map(function, batches)

    def _prepare(self) -> None:
        """Create one runner per lane in every precision that is used, the first of which is the fast one."""
        first: ModelRunner | WritingRunner | None = None
        for precision in self._precisions:
            if precision not in self._runners:
                runners = self._runners[precision] = SimpleQueue()
                known = first if isinstance(first, ModelRunner) else None
                model, dtype = self._request.model.module, getattr(torch, precision)
                try:
                    with threads_for_few_rows(model):
                        for runner in model_runners(self._request, dtype, self._lanes.n, known):
                            runners.put(runner)
                            self._notes.append(runner.note)
                            if first is None:
                                first, self._packs = runner, runner.packs
                except RuntimeError as error:
                    if not is_out_of_memory(error):
                        raise
                    raise ModelError(
                        f"the model in {precision} does not fit into the memory of {self._request.device}; "
                        "give --device-map auto, which spreads it over all devices, --precision bfloat16 or "
                        "--device cpu"
                    ) from error

    @contextmanager
    def _runner(self, precision: str) -> Iterator[ModelRunner | WritingRunner]:
        runner = self._runners[precision].get()
        try:
            yield runner
        finally:
            self._runners[precision].put(runner)

    def repeat_doubtful_pairs(self, arrays: Arrays) -> dict[str, Any] | None:
        """Repeat further pairs in float32 until none is within the final guard band, in place.

        The pairs repeated so far describe the errors better than the sample does, so the band is estimated
        again from both. The pairs within the new band are repeated as well, those with the smallest margins
        first, half as many as are known at a time, until there are none left.

        Args:
            arrays: the outputs of all examples, in the dataset's order.

        Returns:
            The statistics of the errors; None if the precision is not mixed.
        """
        if not self._mixed:
            return None
        logits, errors = arrays["logits"], arrays[ERROR]
        sample, band = self._sample_errors(), self._first_band()
        while True:
            open_ = np.isnan(errors)
            guard = Guard.of(np.concatenate([sample, errors[~open_]]))
            needed = max(band, guard.band(margins(logits[open_])))
            chosen = np.nonzero(doubts(logits, needed) & open_)
            if not len(chosen[0]):
                chance = float(guard.exceeded(margins(logits[open_])).sum())
                return {
                    **asdict(guard),
                    "band": needed,
                    "sampled_pairs": sample.size,
                    "decided_in_float32": float(np.mean(~open_)),
                    "chance": chance,
                }
            chosen = least_certain(logits, chosen, max(_FEWEST_AT_ONCE, guard.pairs // 2))
            repeated = margins(logits[chosen])
            band = max(band, float(repeated[np.isfinite(repeated)].max(initial=0.0)))
            lengths = self._request.encoded.lengths
            order = np.argsort(lengths[chosen[1]], kind="stable")
            shares = cut_evenly(lengths[chosen[1]][order], self._tokens["float32"], self._lanes.n)
            pairs = [tuple(part[order[share]] for part in chosen) for share in shares]
            exact = self._side_by_side(partial(self._pairs, "float32", np.arange(len(lengths))), pairs)
            for part, repeats in zip(pairs, exact):
                _take(arrays, part, repeats)

    def _tree(self, precision: str, items: np.ndarray, masks: np.ndarray | None = None) -> Arrays:
        masks, rows = self._masks if masks is None else masks, self._tokens[precision]
        if len(items) == 1 or not self._are_too_many(precision, items):
            try:
                with self._runner(precision) as runner:
                    return runner.outputs(items, masks, rows, self._lanes.check)
            except RuntimeError as error:
                self._use_fewer_rows(error, precision, rows, items)
        halves = np.array_split(items, min(2, len(items)))
        return joined([self._tree(precision, half, masks) for half in halves])

    def _are_too_many(self, precision: str, items: np.ndarray) -> bool:
        """Whether a batch was cut for more rows per pass than fit into memory."""
        rows = self._tokens[precision]
        return rows < self._first[precision] and 2 * self._request.encoded.lengths[items].sum() > rows

    def _use_fewer_rows(self, error: RuntimeError, precision: str, rows: int, items: np.ndarray) -> None:
        """Where a device is out of memory, half as many rows per pass from now on, which change no result.

        Raises:
            ModelError: one example alone is too large.
            RuntimeError: the error is another one.
        """
        device, longest = self._request.device, int(self._request.encoded.lengths[items].max())
        if not is_out_of_memory(error):
            raise error
        if len(set(items.tolist())) == 1 and rows <= longest:
            raise ModelError(
                f"{device} is out of memory with one example of {longest} tokens at a time; give --precision "
                "bfloat16, or --device-map auto, which spreads the model over all devices"
            ) from error
        self._tokens[precision] = min(self._tokens[precision], max(1, rows // 2))
        return_memory(device)

    def _first_band(self, estimate: bool = False) -> float:
        n = len(self._masks) * len(self._request.encoded.lengths)
        return Guard.of(self._sample_errors()).first_band(n, estimate)

    def _sample_errors(self) -> np.ndarray:
        """The finite errors of a random sample of pairs, measured once per folder."""
        if self._sampled is None:
            path = None if self._folder is None else self._folder / GUARD
            self._sampled = self._kept_sample(path)
        if self._sampled is None:
            fast, exact = map(self._sample_logits, self._precisions)
            errors = margin_errors(fast, exact)
            self._sampled = errors[np.isfinite(errors)]
            if not self._sampled.size and np.isfinite(exact).all(axis=-1).any():
                raise CheckpointError(
                    "the model's outputs are NaN or infinite in bfloat16 for every sampled example, because "
                    "its weights or states exceed what bfloat16 holds; give --precision float32"
                )
            if path is not None:
                run = hash_json(self._request.identity)
                write_json(path, {"errors": self._sampled.tolist(), _RUN: run})
        return self._sampled

    def _sample_logits(self, precision: str) -> np.ndarray:
        """Logits ``[pairs, labels]`` of the sample, computed on all lanes."""
        items, lanes = np.arange(len(self._request.encoded.lengths)), self._lanes.n
        sample = sampled(len(self._masks), len(items))
        shares = [tuple(part[lane::lanes] for part in sample) for lane in range(lanes)]
        return np.concatenate(list(self._side_by_side(partial(self._pairs, precision, items), shares)))

    def _kept_sample(self, path: Path | None) -> np.ndarray | None:
        """The measurements that the same run saved in this folder earlier; None if there are none."""
        try:
            kept = {} if path is None else read_json(path)
            fits = kept.get(_RUN) == hash_json(self._request.identity)
            return np.array(kept["errors"], dtype=float) if fits else None
        except (AdapterProbeError, KeyError, TypeError, ValueError):  # missing or damaged: measured again
            return None

    def seconds_per_token(self) -> float:
        """Estimated time per token, for all variants.

        It is measured on one batch per lane of examples of typical length. In mixed precision, it includes
        the pairs repeated in float32: their share in these batches, by an
        estimate of the band, at the sample's speed.
        """
        seconds, measured = self._measured(self._precisions[0])
        if not self._mixed:
            return seconds
        band = self._first_band(estimate=True)
        repeated = np.mean(np.concatenate([doubts(a["logits"], band).ravel() for a in measured]))
        start = time.perf_counter()
        self._sample_logits("float32")
        lengths = self._request.encoded.lengths
        sampled_tokens = float(lengths[sampled(len(self._masks), len(lengths))[1]].sum())
        per_pair = (time.perf_counter() - start) / sampled_tokens
        return seconds + len(self._masks) * float(repeated) * per_pair

    def _measured(self, precision: str) -> tuple[float, list[Arrays]]:
        """Seconds per token for all variants, and the outputs that were measured."""
        lengths = self._request.encoded.lengths
        order = np.argsort(lengths, kind="stable")
        longer = order[len(order) // 2 :]
        most = size_for(MEASURED_TOKENS, self._request.device.type)
        tokens = min(
            most, typical_tokens(self.tokens_per_pass, self._lanes.n, 2 * int(lengths[longer].sum()))
        )
        typical = cut_by_tokens(lengths, longer, tokens)[: self._lanes.n]

        def measured(masks: np.ndarray) -> tuple[float, list[Arrays]]:
            start = time.perf_counter()
            outputs = list(self._side_by_side(partial(self._tree, precision, masks=masks), typical))
            return time.perf_counter() - start, outputs

        two = self._masks[:2]
        seconds, outputs = measured(two)  # includes set-up costs
        most = self._passes(two) * (MEASURED_SECONDS / max(seconds, 1e-9) - 1)
        if most < self._passes(two):  # so slow that nothing more is measured
            masks = two
        else:
            most, step = min(most, 2 * MEASURED_LAYERS), 1  # every step-th variant
            while self._passes(masks := self._masks[::step]) > most and len(masks) > 2:
                step += (step + 1) // 2
            seconds, outputs = measured(masks)
        share = self._passes(masks) / self._passes(self._masks)
        return seconds / share / float(sum(lengths[batch].sum() for batch in typical)), outputs

    def _passes(self, masks: np.ndarray) -> int:
        """Number of sublayer passes per batch; see `nodes_by_site`."""
        return sum(nodes_by_site(masks, self._request.model.forks_early))

    @property
    def note(self) -> str:
        """What a user should know of how the variants were computed; empty for nothing."""
        fewer = self._tokens[self._precisions[0]]
        if fewer < self.tokens_per_pass:
            return (
                f"{self._request.device} was out of memory, so {fewer:,} rows passed a layer together, and "
                f"not {self.tokens_per_pass:,}; --tokens-per-pass {fewer} begins with that."
            )
        return next((note for note in self._notes if note), "")

    def peak_memory(self) -> int | None:
        """Peak memory of the process, or of the accelerator, in bytes; None if it is not known."""
        if self._request.device.type != "cpu":
            return peak_memory(self._request.device)
        if sys.platform == "win32":
            return None
        status = Path("/proc/self/status")
        if status.exists():  # Linux, where `resource` counts the process that started this one, too
            found = re.search(r"VmHWM:\s*(\d+)", status.read_text())
            return None if found is None else 1024 * int(found[1])
        import resource  # Unix only

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _take(arrays: Arrays, chosen: tuple[np.ndarray, ...], exact: np.ndarray) -> None:
    """Replace logits of the fast pass by those of float32, ``[pairs, labels]``, and record the errors."""
    arrays[ERROR][chosen] = margin_errors(arrays["logits"][chosen], exact)
    arrays["logits"][chosen] = exact
