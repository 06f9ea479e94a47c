"""The span that `prune` removes, by a race."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from adapter_probe.ablation_settings import LONGEST, RaceOptions
from adapter_probe.analysis.racing import WITHIN, order_of
from adapter_probe.analysis.removable import longest_removable
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.errors import ResultsError
from adapter_probe.spans import Span
from adapter_probe.wording import tolerance_text

from .checkpoint_arguments import Prune
from .race import race
from .race_study import Race

_FEWEST_HELD_OUT = 0.1  # of the examples: if a race leaves fewer, the span is measured on all of them


def race_for(call: Prune, checkpoint: Path, data: Sequence[str]) -> Race:
    """The race that finds the longest span within the tolerance of a call of `prune`."""
    assert call.within is not None
    return race(
        checkpoint, goal=LONGEST, within=call.within, base=call.base, data=data, sites=call.sites,
        strength=call.strength, label_names=call.label_names, encoding=call.encoding,
        dequantise=call.dequantise, device=call.device, threads=call.threads, progress=call.progress,
        **vars(RaceOptions.of(call)), **vars(Prompting.of(call)), **vars(Generation.of(call)),
    )  # fmt: skip


def chosen_in_race(study: Race, within: float) -> tuple[Span, int, np.ndarray | None]:
    """The longest span whose drop is within the tolerance by the verdicts and bounds of a race.

    Returns:
        the span, the number of examples that it was computed on, and the others, int ``[examples]``; None if
        these are too few to measure it on.

    Raises:
        ResultsError: no span is surely within.
    """
    said, frame = study.summary, study.spans
    sure = frame["bound_low_points"] >= -within
    if within >= said.within_points:
        sure |= frame["decision"] == WITHIN
    found = longest_removable(frame[sure].assign(ci_low_points=0.0), float("inf"))
    if found is None:
        raise ResultsError(
            f"{study.folder}: a race within {said.tolerance} was sure of no span that costs at most "
            f"{tolerance_text(within, said.metric)}; give a larger --within"
        )
    span, n = Span(int(found["first"]), int(found["last"]), said.stack or ""), int(found["n_examples"])
    rest = np.sort(order_of(said.n_examples, said.seed)[n:])
    return span, n, None if len(rest) < _FEWEST_HELD_OUT * said.n_examples else rest
