"""A span ablation, or a race of spans, in its results folder: saved in parts, and resumable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import RaceSettings
from adapter_probe.analysis.racing import (
    RaceState,
    example_scores,
    is_whole,
    order_of,
    refuse_no_choice,
    refuse_unraced,
    round_ends,
)
from adapter_probe.data.prompts import EncodedPrompts
from adapter_probe.data.requests_encoding import EncodedRequests
from adapter_probe.errors import ResultsError
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.spans import VariantSet

from .engine import Engine, ProgressCallback
from .outputs import Arrays, assemble_results
from .plan import TOKENS_PER_PART, cut_parts, nodes_by_site
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
        per_part = TOKENS_PER_PART.get(place, TOKENS_PER_PART["cpu"])
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


_NOT_COMPUTED = -1  # in outputs of other examples: finite, no answer to a question, no token of a text


class RaceRun(RunDirectory):
    """A race in its folder, which ``with`` enters; a part holds the scores of one round.

    Args:
        asked: what of the race's settings and of the metric determines the numbers, as plain JSON.

    Attributes:
        intact: float32 ``[examples]``, scores of the intact model in the random order; NaN where not read.
        layer_share: passes through the layers, as a share of those of all spans on all examples.

    Raises:
        ResultsError: the request cannot be raced.
    """

    def __init__(self, request: AblationRequest, settings: RaceSettings, asked: Mapping[str, Any], out: Path):
        _refuse_unfit(request)
        self._request, self._settings, self._n = request, settings, len(request.examples)
        rows = [row for row, span in enumerate(request.variants.spans) if span is not None]
        self.variants = request.variants.rows([0, *rows])
        self._spans = np.array([(span.first, span.last) for span in self.variants.spans if span is not None])
        refuse_no_choice(self._spans, settings)
        super().__init__(out, {**request.identity, "race": asked}, {"round_ends": round_ends(self._n)})
        self._engine = Engine(request, self.path)
        self.intact = np.full(self._n, np.nan, dtype=np.float32)
        self.layer_share = 0.0

    @property
    def n_evaluations(self) -> int:
        """Pairs of a span and an example: the most that the race may compute, and the unit of progress."""
        return self._n * (len(self.variants.names) - 1)

    def compute(self, report: ProgressCallback) -> RaceState:
        """Run the race to its end, from the rounds on disk.

        Args:
            report: called with the number of evaluations that are done or not needed any more.

        Raises:
            CheckpointError: an output of the intact model is NaN or infinite.
            ResultsError: a part cannot be written.
        """
        whole = is_whole(self._request.metric)
        race = RaceState(self._spans, self._n, self._settings, self.plan["round_ends"], whole)
        order = order_of(self._n, self._settings.race_seed)
        early, reported = self._request.model.forks_early, 0
        every = sum(nodes_by_site(self.variants.masks, early))
        for number, one in enumerate(race.rounds()):
            rows, examples = np.append(0, 1 + one.spans), order[one.start : one.stop]
            scores = self._scores(number, rows, examples)
            self.intact[one.start : one.stop] = scores[0]
            race.take(one, scores[0] - scores[1:])
            passes = sum(nodes_by_site(self.variants.masks[rows], early))
            self.layer_share += passes / every * len(examples) / self._n
            done = int(np.where(race.is_open, race.n_read, self._n).sum())
            report(done - reported)
            reported = done
        return race

    def about(self) -> dict[str, Any]:
        """What the summary says of the request."""
        request, stacks = self._request, self._request.model.stacks
        name = (_studied(self.variants) or [""])[0]
        return {
            "task": request.checkpoint.description.task.name,
            "split": request.examples.rows.name,
            "metric": request.metric,
            "n_layers": next(one.n_layers for one in stacks if not name or one.name == name),
            "data": request.data or None,
            "strength": request.settings.strength or None,
            "stack": name or None,
        }

    def chance_score(self) -> float:
        """The score of guessing, see `AblationResults.chance_score`."""
        items = np.arange(1)
        (found,) = self._engine.outputs([items], lambda _: None, self.variants.masks[:1])
        return assemble_results(
            self._request, self.variants.rows([0]), self._among_all(items, found)
        ).chance_score

    def _scores(self, number: int, rows: np.ndarray, examples: np.ndarray) -> np.ndarray:
        """The scores of some variants on some examples, ``[variants, examples]``: a part, or computed now."""
        asked = {"variants": rows, "examples": examples}
        if number in self.finished():
            part = self.read_part(number)
            if all(np.array_equal(part[name], own) for name, own in asked.items()):
                return part["scores"]
        encoded, windows, items = self._request.encoded, self._request.examples.windows, examples
        if (places := getattr(self._request.examples.combine, "places", None)) is not None:
            items = np.unique(places[examples])
            items = items[items >= 0]
        elif isinstance(encoded, EncodedRequests):
            items = np.flatnonzero(np.isin(encoded.example, examples))
        elif windows is not None:
            items = np.flatnonzero(np.isin(windows.question, examples))
        items = items[np.argsort(encoded.lengths[items], kind="stable")]
        variants = self.variants.rows(rows.tolist())
        (found,) = self._engine.outputs([items], lambda _: None, variants.masks)
        results = assemble_results(self._request, variants, self._among_all(items, found))
        scores = example_scores(results)[:, examples].astype(np.float32)
        self.write_part(number, {**asked, "scores": scores})
        return scores

    def _among_all(self, items: np.ndarray, found: Arrays) -> Arrays:
        """Outputs of some items as those of all, of which the others are not looked at."""
        n_items, every = len(self._request.encoded.lengths), {}
        for name, own in found.items():
            every[name] = np.full((len(own), n_items, *own.shape[2:]), _NOT_COMPUTED, dtype=own.dtype)
            every[name][:, items] = own
        return every


def _refuse_unfit(request: AblationRequest) -> None:
    """Refuse what cannot be raced.

    Raises:
        ResultsError: the metric or a setting.
    """
    refuse_unraced(request.metric, request.checkpoint.description.task.kind)
    if request.settings.precision == "mixed":
        raise ResultsError(
            "--race is not possible with --precision mixed, which repeats near-ties after all examples; give "
            "float32 or bfloat16"
        )
    if request.settings.reference == "off":
        raise ResultsError(
            "--race is not possible with --reference off, which needs the model with all adapters off on "
            "every example; give the reference's log-likelihoods in the rows, or --reference none"
        )
    if request.settings.complement:
        raise ResultsError("--race is about spans that are switched off; omit --complement")
    if request.variants.modules is not None:
        raise ResultsError(
            f"--race is about spans of layers, and not about single {request.settings.by}s; omit --by "
            f"{request.settings.by}"
        )
    if len(names := _studied(request.variants)) > 1:
        raise ResultsError(f"--race studies one stack of layers; give --stack {' or --stack '.join(names)}")


def _studied(variants: VariantSet) -> list[str]:
    return [name for name in dict.fromkeys(variants.stacks or ()) if name]
