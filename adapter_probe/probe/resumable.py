"""A span ablation in its results folder: saved in parts, and resumable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.data.prompts import EncodedPrompts
from adapter_probe.device import size_for
from adapter_probe.results.rundir import RunDirectory

from .engine import Engine, ProgressCallback
from .outputs import Arrays, assemble_results
from .plan import TOKENS_PER_PART, cut_parts
from .request import AblationRequest
from .written import Texts, score_texts, texts_of, tokens_per_part


class AblationRun(RunDirectory):
    """An ablation in its folder, which ``with`` enters: finished parts, missing parts, their computation.

    Args:
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
        place = device_type or request.device.type
        per_part = size_for(TOKENS_PER_PART, place)
        if isinstance(request.encoded, EncodedPrompts):
            per_part = tokens_per_part(request.encoded, len(request.variants.masks), place)
        super().__init__(out, request.identity, {"tokens_per_part": per_part} if plan is None else plan)
        self._request, self._engine = request, Engine(request, self.path)
        self._texts: Texts | None = None
        self._note = ""

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

    def compute(self, report: ProgressCallback, numbers: Iterable[int] | None = None) -> None:
        """Compute parts.

        Args:
            report: called with the number of new tokens after every batch.
            numbers: of the parts; by default those that are missing.

        Raises:
            ResultsError: a part cannot be written.
        """
        numbers = self.missing() if numbers is None else list(numbers)
        parts = [self._parts[number] for number in numbers]
        with closing(self._engine.outputs(parts, report)) as computed:
            for number, part, arrays in zip(numbers, parts, computed):
                self.write_part(number, {"index": part, **arrays})

    def results(self) -> AblationResults:
        """All parts as one."""
        parts = [self.read_part(number) for number in range(len(self._parts))]
        order = np.argsort(np.concatenate([part.pop("index") for part in parts]))
        arrays: Arrays = {
            name: np.concatenate([part[name] for part in parts], axis=1)[:, order] for name in parts[0]
        }
        guard, scores = self._engine.repeat_doubtful_pairs(arrays), None
        if self._request.generation is not None:
            self._texts = texts_of(self._request, arrays["written"])
            scores, self._note = score_texts(self._request, self._texts)
        return assemble_results(self._request, self._request.variants, arrays, guard, scores)

    @property
    def texts(self) -> Texts | None:
        """What every variant writes to every row, once there are `results`; None if nothing is written."""
        return self._texts

    @property
    def notes(self) -> list[str]:
        """What a user should know of how the results came about, one sentence each."""
        return [note for note in (self._engine.note, self._note) if note]
