"""The training loop: resumable at any step, bit for bit.

Nothing random is carried from step to step: the data order follows from (seed, epoch) and dropout from
(seed, step). So parameters, Adam's two moments and the step number are the whole state.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from adapter_probe import metrics
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.errors import TrainingError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.results.rundir import RunDirectory

from .batches import epoch_batches
from .evaluation import evaluate
from .settings import TrainingSettings

STATE_PART = 0
SECONDS_BETWEEN_SAVES = 60.0
Report = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """Where a training stands, for a progress bar.

    Attributes:
        step: steps done, of `n_steps`.
        loss: the last step's mean loss.
        epoch_scores: the validation score after each finished epoch, as fractions.
    """

    step: int
    n_steps: int
    loss: float
    epoch_scores: tuple[float, ...]


@dataclass(frozen=True)
class LabelledSet:
    """Tokens and labels of one split: int64 class numbers or float64 targets ``[examples]``."""

    encoded: Encoded
    labels: np.ndarray


@dataclass
class _State:
    """All that a resumed run needs. `best` holds the trained tensors after the best epoch so far."""

    step: int = 0
    scores: list[float] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)


class Trainer:
    """Trains the chosen parameters of one model on one task.

    Args:
        model: with adapters installed, on its device.
        trained: the parameters that train, by name.
        train, validation: the two splits.
        kind: ``classification`` or ``regression``.
        metric: what decides which epoch is best.
        settings: how to train.
        run: an entered folder in which the state is kept.
        report: called after every step and every evaluation.
    """

    def __init__(
        self,
        model: AdaptedModel,
        trained: dict[str, nn.Parameter],
        train: LabelledSet,
        validation: LabelledSet,
        *,
        kind: str,
        metric: str,
        settings: TrainingSettings,
        run: RunDirectory,
        report: Report,
    ):
        self._model, self._trained = model, trained
        self._train, self._validation = train, validation
        self._kind, self._metric, self._settings = kind, metric, settings
        self._run, self._report = run, report
        self._optimizer = torch.optim.Adam(trained.values(), lr=settings.learning_rate)
        self._state = _State()
        steps_per_epoch = -(-len(train.labels) // settings.batch_size)
        self._n_steps = settings.epochs * steps_per_epoch
        self._labels = torch.from_numpy(train.labels).to(model.device)

    def train(self) -> tuple[dict[str, Tensor], list[float]]:
        """Train from where the folder's state stands.

        Returns:
            The trained tensors after the best epoch, and every epoch's validation score.

        Raises:
            TrainingError: the loss became NaN or infinite.
        """
        self._restore()
        saved = time.monotonic()
        whole = True  # whether parameters, moments, step and scores belong together
        try:
            with self._seeded_elsewhere(), self._precision():
                for batch_indices, last_of_epoch in self._remaining():
                    whole = False
                    loss = self._step(batch_indices)
                    if last_of_epoch:
                        self._finish_epoch()
                    whole = True
                    if last_of_epoch or time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                        self._save()
                        saved = time.monotonic()
                    self._report(Progress(self._state.step, self._n_steps, loss, tuple(self._state.scores)))
        except KeyboardInterrupt:
            if whole:  # in the middle of a step the last save stands
                self._save()
            raise
        return self._state.best, self._state.scores

    def _remaining(self) -> Iterator[tuple[np.ndarray, bool]]:
        """The batches still to do, each with whether it ends its epoch."""
        settings, lengths = self._settings, self._train.encoded.lengths
        per_epoch = self._n_steps // settings.epochs
        for epoch in range(self._state.step // per_epoch, settings.epochs):
            batches = epoch_batches(lengths, settings.batch_size, settings.seed, epoch)
            for number in range(self._state.step - epoch * per_epoch, per_epoch):
                yield batches[number], number == per_epoch - 1

    def _step(self, indices: np.ndarray) -> float:
        """One optimiser step; the batch's mean loss."""
        state, settings = self._state, self._settings
        self._model.train()
        torch.manual_seed(int(np.random.SeedSequence([settings.seed, state.step]).generate_state(1)[0]))
        batch = pack(self._train.encoded, indices).to(self._model.device)
        loss = self._loss(self._model(batch).float(), self._labels[batch.index])
        value = loss.item()
        if not np.isfinite(value):
            raise TrainingError(
                f"training diverged: the loss is {value} at step {state.step + 1} of {self._n_steps} with "
                f"learning rate {settings.learning_rate}; try a lower one"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = settings.rate_at(state.step, self._n_steps)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self._optimizer.step()
        state.step += 1
        return value

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, or the mean squared error of a regression."""
        if self._kind == "classification":
            return F.cross_entropy(logits, labels)
        return F.mse_loss(logits[:, 0], labels.float())

    def _finish_epoch(self) -> None:
        """Score the validation set; keep the tensors if no epoch was better."""
        logits = evaluate(self._model, self._validation.encoded)
        predictions = metrics.predictions_from_logits(logits, self._kind)
        score = float(metrics.score(self._metric, predictions, self._validation.labels))
        scores = self._state.scores
        if not scores or score > np.nanmax([-np.inf, *scores]):
            self._state.best = {name: p.detach().clone() for name, p in self._trained.items()}
        scores.append(score)

    @contextlib.contextmanager
    def _seeded_elsewhere(self) -> Iterator[None]:
        """Dropout draws from torch's global generators; leave those as they were found."""
        devices = [self._model.device] if self._model.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            yield

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        if self._settings.dtype == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self._model.device.type, dtype=torch.bfloat16)

    def _save(self) -> None:
        arrays = {"about": np.array(json.dumps({"step": self._state.step, "scores": self._state.scores}))}
        for name, parameter in self._trained.items():
            arrays[f"now/{name}"] = parameter.detach().cpu().numpy()
            for moment in ("exp_avg", "exp_avg_sq"):
                if parameter in self._optimizer.state:
                    arrays[f"{moment}/{name}"] = self._optimizer.state[parameter][moment].cpu().numpy()
        arrays |= {f"best/{name}": tensor.cpu().numpy() for name, tensor in self._state.best.items()}
        self._run.write_part(STATE_PART, arrays)

    def _restore(self) -> None:
        if STATE_PART not in self._run.finished():
            return
        arrays = self._run.read_part(STATE_PART)
        about = json.loads(str(arrays["about"]))
        self._state.step, self._state.scores = about["step"], about["scores"]
        device = self._model.device
        for name, parameter in self._trained.items():
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(arrays[f"now/{name}"]))
            if self._state.step:
                self._optimizer.state[parameter] = {
                    "step": torch.tensor(float(self._state.step)),
                    "exp_avg": torch.from_numpy(arrays[f"exp_avg/{name}"]).to(device),
                    "exp_avg_sq": torch.from_numpy(arrays[f"exp_avg_sq/{name}"]).to(device),
                }
            if self._state.scores:
                self._state.best[name] = torch.from_numpy(arrays[f"best/{name}"]).to(device)
