"""Cheap importance scores of adapters, and their agreement with an exact ablation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from adapter_probe.analysis.ranking import agreement_table, regret_table, span_table, with_drops
from adapter_probe.analysis.studies import section_of
from adapter_probe.errors import ResultsError
from adapter_probe.results.fingerprints import refuse_changes

from .checked import checked
from .rows import as_tuple, check_files

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .ablation import Ablation


@dataclass(frozen=True, eq=False, repr=False)
class Ranking:
    """Scores of layers and spans from one forward and one backward pass; what `adapter_probe.rank` returns.

    Attributes:
        layers: one row per layer with the columns `change`, `weight_norm`, `turn` and `effect`; see
            `adapter_probe.probe.cheap_scores`. `change`, `weight_norm` and `effect` are sums over the layer's
            two sites.
        effects: float ``[examples, layers]``, first-order estimate of what a layer's adapters add to each
            example's margin.
        margins: float ``[examples]``, margins of the intact model.
        seconds: computing time.
        identity: everything that determines the model: checkpoint, base and tokenizer.
    """

    layers: pd.DataFrame
    effects: np.ndarray
    margins: np.ndarray
    seconds: float
    identity: Mapping[str, object] = field(default_factory=dict)

    @cached_property
    def spans(self) -> pd.DataFrame:
        """One row per contiguous span with its scores; lower scores are removed first. See `span_table`."""
        return span_table(self.layers, self.effects, self.margins)

    @checked
    def beside(self, study: Ablation) -> pd.DataFrame:
        """The scores of the spans joined with their exact drops, in points.

        Args:
            study: an ablation of the same checkpoint, with both sites of a layer off; it may use other
                examples.

        Raises:
            ResultsError: the ablation is of another checkpoint or of other sites.
        """
        _refuse_other(self.identity, study)
        return with_drops(self.spans, study.spans)

    @checked
    def agreement(self, study: Ablation) -> pd.DataFrame:
        """One row per score: rank correlations with an ablation, and regret; see `agreement_table`."""
        return agreement_table(self.beside(study))

    @checked
    def regret(self, study: Ablation) -> pd.DataFrame:
        """Points lost by pruning the span that each score selects, by length; see `regret_table`."""
        return regret_table(self.beside(study))

    @checked
    def plot(self, study: Ablation, ax: Axes | None = None) -> Axes:
        """Draw the regret of each score against the number of layers switched off.

        Args:
            study: the exact ablation.
            ax: Axes to draw on; by default the current Axes.
        """
        from adapter_probe.figures.ranking import draw

        return draw(self.regret(study), ax)

    def __repr__(self) -> str:
        return f"Ranking of {len(self.layers)} layers on {len(self.margins)} examples\n{self.layers}"


def _refuse_other(identity: Mapping[str, object], study: Ablation) -> None:
    """Refuse an ablation whose drops are not of what was scored."""
    known, settings = study.identity, section_of(study.identity, "settings")
    refuse_changes(
        {name: known.get(name) for name in identity}, identity,
        f"{study.folder} is an ablation of another checkpoint than the scores",
    )  # fmt: skip
    if settings.get("sites", "both") != "both" or settings.get("complement"):
        raise ResultsError(
            f"{study.folder}: the scores are for both adapters of a layer, switched off, but the ablation "
            f"has sites {settings.get('sites')} and complement {settings.get('complement')}; run ablate with "
            "--sites both and without --complement"
        )


@checked
def rank(
    checkpoint: str | Path,
    *,
    base: str | None = None,
    data: str | Path | Sequence[str | Path] = (),
    split: str = "validation",
    max_examples: int | None = None,
    device: str = "auto",
    threads: int = 0,
) -> Ranking:
    """Score the adapters of every layer without switching any of them off.

    Args:
        checkpoint: folder of a checkpoint for classification or regression, of any format that `ablate`
            opens.
        base: folder or Hugging Face Hub id of the base model, if it differs from the recorded one.
        data: one or several files of labelled examples to use instead of the checkpoint's own task.
        split: split of the checkpoint's own task to evaluate on.
        max_examples: evaluate on a fixed random subset of this many examples.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ...
        threads: number of CPU threads of this process from now on; 0 uses PyTorch's default.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened, or the task is unsupported.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
    """
    import time

    from adapter_probe.device import choose_device, use_threads
    from adapter_probe.probe.arguments import AblationArguments
    from adapter_probe.probe.cheap_scores import site_scores
    from adapter_probe.probe.request import prepare_ablation
    from adapter_probe.spans import SITES_PER_LAYER

    files = tuple(map(str, as_tuple(data)))
    check_files(checkpoint, "utf-8", *files)
    use_threads(threads)
    arguments = AblationArguments(
        str(checkpoint),
        base=base,
        data=files,
        split=split,
        max_examples=max_examples,
    )
    request = prepare_ablation(arguments, choose_device(device))
    model = request.checkpoint.model.to(request.device)
    start = time.perf_counter()
    scores = site_scores(model, request.examples)
    effects = scores.effects.reshape(len(scores.effects), -1, SITES_PER_LAYER).sum(-1)
    layers = pd.DataFrame({
        "layer": np.arange(len(model.layers)),
        "change": scores.change.reshape(-1, SITES_PER_LAYER).sum(-1),
        "weight_norm": scores.weight_norm.reshape(-1, SITES_PER_LAYER).sum(-1),
        "turn": scores.turn,
        "effect": effects.mean(axis=0),
    })  # fmt: skip
    identity = request.checkpoint.description.identity
    return Ranking(layers, effects, scores.margins, time.perf_counter() - start, identity)
