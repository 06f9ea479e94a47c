"""The settings of one training run, and its learning rate schedule."""

from __future__ import annotations

from dataclasses import dataclass

from adapter_probe.errors import TrainingError
from adapter_probe.settings import Settings

DTYPES = ("float32", "bfloat16")
MAX_LEARNING_RATE = 1e30  # larger rates overflow float32 within a step; any sensible rate is far below


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """Training settings. Defaults are those of the paper if it gives a single value.

    Source: Houlsby et al. 2019 (arXiv 1902.00751), section 3.1: Adam, batch 32, the learning rate raised
    linearly over the first 10 % of the steps and then lowered linearly to zero; learning rates tried
    there: 3e-5, 3e-4, 3e-3.

    Attributes:
        epochs: number of passes over the training set.
        batch_size: training batch size.
        learning_rate: peak learning rate.
        warmup: fraction of training steps used for warm-up.
        seed: random seed of the initialisation, data order and dropout.
        dtype: precision of the frozen base and of matrix products in training; trained parameters stay in
            float32.
    """

    recorded_always = frozenset(("epochs", "batch_size", "learning_rate", "warmup", "seed", "dtype"))

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 3e-4
    warmup: float = 0.1
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise TrainingError(f"{name} {getattr(self, name)} is not allowed; give at least 1")
        if not 0 < self.learning_rate <= MAX_LEARNING_RATE:
            raise TrainingError(
                f"learning_rate {self.learning_rate} is not allowed; give a positive number of at most "
                f"{MAX_LEARNING_RATE:g}"
            )
        if not 0 <= self.warmup <= 1:
            raise TrainingError(f"warmup {self.warmup} is not allowed; give a fraction between 0 and 1")
        if not 0 <= self.seed < 2**63:
            raise TrainingError(f"seed {self.seed} is not allowed; give a whole number from 0 to 2**63 - 1")
        if self.dtype not in DTYPES:
            raise TrainingError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")

    def n_steps(self, n_examples: int) -> int:
        """Number of optimiser steps of the training; the last batch of an epoch may be smaller."""
        return self.epochs * -(-n_examples // self.batch_size)

    def rate_at(self, step: int, n_steps: int) -> float:
        """The learning rate of step `step` (from 0) of `n_steps`; the last warm-up step has the peak."""
        rise = round(self.warmup * n_steps)
        if step < rise:
            return self.learning_rate * (step + 1) / rise
        return self.learning_rate * (n_steps - step) / (n_steps - rise)
