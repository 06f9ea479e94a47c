"""One ablation in memory: every variant with what was scored of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from adapter_probe.kinds.kind import Axes, Scored, check_arrays, taken
from adapter_probe.spans import SITES

ARRAYS: dict[str, tuple[type, Axes]] = {
    "masks": (np.bool_, ("variants", "sites")),
    "spans": (np.int64, ("variants", 2)),
    "groups": (np.str_, ("examples",)),
    "stacks": (np.str_, ("variants",)),
    "modules": (np.str_, ("variants",)),
}
"""The arrays of an ablation of any kind: type of their numbers, and axes."""


@dataclass(frozen=True, eq=False)
class AblationResults:
    """One complete ablation, the input of statistics and figures.

    Attributes:
        masks: bool ``[variants, sites]``; True = the site's adapter was on.
        spans: int64 ``[variants, 2]``: first and last layer, counted in the stack, or -1, -1 for rows that
            are no span.
        row_names: one name per variant.
        scored: the outputs and what they are scored with, as the kind of the task keeps them.
        identity: everything that determines the numbers, as plain JSON.
        settings: settings of the ablation, as plain JSON.
        groups: str ``[examples]``, group of each example; None if the data has no groups.
        stacks: str ``[variants]``, the stack of layers in which alone the variant switches, empty for the
            intact model and where all stacks are off; `settings` has their names and numbers of layers in
            the order of the sites. None of a model with one stack.
        modules: str ``[variants]``, of a map of layers and modules, the module that the variant switches in
            its layers, or ``all``; empty for the other rows. None in a study of spans.
    """

    masks: np.ndarray
    spans: np.ndarray
    row_names: tuple[str, ...]
    scored: Scored
    identity: dict
    settings: dict
    groups: np.ndarray | None = None
    stacks: np.ndarray | None = None
    modules: np.ndarray | None = None

    def __post_init__(self) -> None:
        variants, examples = self.outputs.shape[:2]
        check_arrays(self._own(), ARRAYS, {"variants": variants, "examples": examples})
        if len(self.row_names) != variants:
            raise ValueError(f"{variants} variants have {len(self.row_names)} row names")

    def _own(self) -> dict[str, np.ndarray]:
        """The arrays that there are, but those of the kind."""
        return {name: array for name in ARRAYS if (array := getattr(self, name)) is not None}

    def arrays(self) -> dict[str, np.ndarray]:
        """All arrays that there are, by name."""
        return {**self.scored.arrays(), **self._own()}

    @property
    def metric(self) -> str:
        """Name of the metric."""
        return self.scored.metric

    @property
    def kind(self) -> str:
        """Kind of the task, see `adapter_probe.metrics.Kind`."""
        return self.scored.kind

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names in the order of the outputs; empty where these have none."""
        return self.scored.label_names

    @property
    def outputs(self) -> np.ndarray:
        """Float32 ``[variants, examples, outputs]``, see the kind."""
        return self.scored.outputs

    @property
    def scored_with(self) -> np.ndarray:
        """The `labels` of `metrics.score`: ``[examples]`` or ``[examples, labels]``."""
        return self.scored.scored_with

    @property
    def sites(self) -> tuple[str, ...]:
        """The names of the sites of every layer."""
        return tuple(self.settings.get("site_names") or (site.name for site in SITES))

    @property
    def n_layers(self) -> int:
        """Number of layers of the model."""
        return self.masks.shape[1] // len(self.sites)

    @cached_property
    def switched(self) -> np.ndarray:
        """Bool ``[layers, sites of a layer]``: what some variant switches."""
        return np.reshape((~self.masks).any(axis=0), (self.n_layers, -1))

    @cached_property
    def in_stacks(self) -> dict[str, AblationResults]:
        """Every studied stack of layers as a study of its own, by name; of a single stack this study itself.

        It has the intact model, and the variants that switch in this stack alone.
        """
        if self.stacks is None:
            return {"": self}
        intact, end, found = int(np.argmax(self.masks.all(axis=1))), 0, {}
        for name, n_layers, *of_adapter in self.settings["stacks"]:
            begin = len(self.sites) * of_adapter[0] if of_adapter else end
            end = begin + len(self.sites) * n_layers
            rows = np.array([intact, *np.flatnonzero(self.stacks == name)])
            if len(rows) == 1:
                continue
            settings = {key: x for key, x in self.settings.items() if key != "stacks"} | {"stack": name}
            if counts := settings.get("site_parameters"):
                settings["site_parameters"] = counts[begin:end]
            own = self.rows(rows)
            found[name] = replace(own, masks=own.masks[:, begin:end], settings=settings, stacks=None)
        return found

    def rows(self, kept: Sequence[int]) -> AblationResults:
        """Some of the variants."""
        return self._taken("variants", kept, row_names=tuple(self.row_names[row] for row in kept))

    def of_examples(self, chosen: np.ndarray) -> AblationResults:
        """The ablation restricted to some examples, int ``[chosen]``."""
        return self._taken("examples", chosen)

    def _taken(
        self, axis: str, chosen: Sequence[int] | np.ndarray, row_names: tuple[str, ...] | None = None
    ) -> AblationResults:
        return replace(
            self, scored=self.scored.taken(axis, chosen), row_names=row_names or self.row_names,
            **taken(self._own(), ARRAYS, axis, chosen),
        )  # fmt: skip

    @property
    def units(self) -> np.ndarray:
        """What resamples draw as one, int ``[examples]``: the questions on a paragraph, else each example."""
        return self.scored.drawn_as_one()

    @property
    def n_examples(self) -> int:
        """Number of examples."""
        return len(self.scored_with)

    @cached_property
    def nonfinite(self) -> np.ndarray:
        """Int64 ``[variants]``: examples with an output that is NaN or infinite.

        A variant with any has no score.
        """
        return (~self.scored.finite()).sum(axis=1)

    @cached_property
    def predictions(self) -> np.ndarray:
        """The `predictions` of `metrics.score`, ``[variants, examples]``: see there.

        -1 or NaN where an output is not finite.
        """
        return self.scored.predicted(int(np.argmax(self.masks.all(axis=1))))

    @property
    def taken_by_metric(self) -> np.ndarray:
        """What the metric takes: the predictions or, if it is one of the user's own of outputs, these."""
        return self.outputs if getattr(self.metric, "of_outputs", False) else self.predictions

    @cached_property
    def are_right(self) -> np.ndarray | None:
        """Whether all that is predicted of each example is right, bool ``[variants, examples]``.

        An answer is right if it matches a correct answer exactly, a sentence if all its tags are right, and a
        text with several labels if its set of labels is. None for regressions, losses and comparisons.
        """
        return self.scored.outcomes(self.predictions)

    @property
    def chance_score(self) -> float:
        """The score of guessing: of the most frequent class, or of a random choice; else NaN."""
        return self.scored.chance_score()


def of_variants(parts: Sequence[AblationResults], row_names: tuple[str, ...]) -> AblationResults:
    """The variants of several ablations on the same examples as one, with the intact model of the first.

    Args:
        row_names: the names of all rows.
    """

    def joined(arrays: Sequence[dict[str, np.ndarray]], axes: dict[str, tuple[type, Axes]]) -> dict:
        return {
            name: np.concatenate([first[:1], *(own[name][1:] for own in arrays)])
            for name, first in arrays[0].items()
            if axes[name][1][0] == "variants"
        }

    first = parts[0]
    scored = joined([one.scored.arrays() for one in parts], dict(first.scored.ARRAYS))
    own = joined([one._own() for one in parts], ARRAYS)
    return replace(first, row_names=row_names, scored=replace(first.scored, **scored), **own)
