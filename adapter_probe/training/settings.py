"""The settings of one training run, and its learning rate schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from adapter_probe.errors import AdapterProbeError, TrainingError
from adapter_probe.settings import Dtype, Settings, setting

MAX_LEARNING_RATE = 1e30  # larger rates overflow float32 within a step; any sensible rate is far below


@dataclass(frozen=True, kw_only=True)
class StepSettings(Settings):
    """What a training and every trial of a sweep have in common.

    A setting that is added here is an option of both, a key of every table of a suite, and part of the
    identity of what is trained.
    """

    panel = "Training"
    error: ClassVar[type[AdapterProbeError]] = TrainingError

    batch_size: int = setting(32, "training batch size.", least=1)
    warmup: float = setting(0.1, "fraction of training steps used for warm-up.")
    dtype: Dtype = setting(
        "float32",
        "precision of the frozen base and of matrix products in training; trained parameters stay in "
        "float32.",
    )  # fmt: skip
    accumulate: int = setting(
        1, "number of parts that a batch is computed in, one after the other, their gradients added up: less "
        "memory for the same batch size.", least=1,
    )  # fmt: skip
    checkpointing: bool = setting(
        False, "whether to compute the states inside the layers again in the backward pass instead of "
        "keeping them: less memory, more time.",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.warmup <= 1:
            raise TrainingError(f"--warmup {self.warmup} is not a fraction from 0 to 1")


def _refuse_rate(flag: str, rate: float) -> None:
    if not 0 < rate <= MAX_LEARNING_RATE:
        raise TrainingError(f"{flag} {rate} is not a positive number of at most {MAX_LEARNING_RATE:g}")


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(StepSettings):
    """Training settings. Defaults are those of the paper if it gives a single value.

    Source: Houlsby et al. 2019 (arXiv 1902.00751), section 3.1: Adam, batch 32, the learning rate raised
    linearly over the first 10 % of the steps and then lowered linearly to zero; learning rates tried
    there: 3e-5, 3e-4, 3e-3.
    """

    recorded_always = frozenset(("epochs", "batch_size", "learning_rate", "warmup", "seed", "dtype"))

    epochs: int = setting(3, "number of passes over the training set.", least=1)
    learning_rate: float = setting(3e-4, "peak learning rate.")
    seed: int = setting(0, "random seed of the initialisation, data order and dropout.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _refuse_rate("--learning-rate", self.learning_rate)
        if not 0 <= self.seed < 2**63:
            raise TrainingError(f"--seed {self.seed} is not a whole number from 0 to 2**63 - 1")

    def n_steps(self, n_examples: int) -> int:
        """Number of optimiser steps of the training; the last batch of an epoch may be smaller."""
        return self.epochs * -(-n_examples // self.batch_size)

    def rate_at(self, step: int, n_steps: int) -> float:
        """The learning rate of step `step` (from 0) of `n_steps`; the last warm-up step has the peak."""
        rise = round(self.warmup * n_steps)
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        return self.learning_rate * (n_steps - step) / (n_steps - rise)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SweepSettings(StepSettings):
    """Training settings of a sweep: every combination of learning rate, epochs and seed is a trial."""

    learning_rates: Sequence[float] = setting(
        (3e-4,), "peak learning rates to try; the best is chosen on validation data (by the number of seeds "
        "that did not diverge, then by mean score).", text="3e-4",
    )  # fmt: skip
    epochs: Sequence[int] = setting(
        (3,), "numbers of epochs to try; the best is chosen on validation data with the learning rate."
    )
    seeds: int = setting(3, "number of runs per setting, with seeds 0, 1, ...", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        for rate in self.learning_rates:
            _refuse_rate("--learning-rates", rate)
