"""The training loop: resumable at any step, bit for bit; and an estimate of its duration.

No random state is carried from step to step: the data order depends only on (seed, epoch) and dropout on
(seed, step). Parameters, Adam's two moments and the step number are the complete state.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from adapter_probe.data.packing import pack
from adapter_probe.device import is_out_of_memory, own_draws
from adapter_probe.errors import Diverged, TrainingError
from adapter_probe.models.functional import FasterFunctions, packed_frozen_maps
from adapter_probe.results.rundir import RunDirectory

from .model import TrainingModel
from .objectives import Objective
from .request import TrainingInputs, TrainingRequest, build_model
from .settings import TrainingSettings

STATE_PART = 0
_MOMENTS = ("exp_avg", "exp_avg_sq")  # of Adam, a parameter each
SECONDS_BETWEEN_SAVES = 60.0
# Examples are sorted by length inside pools of this many batches: nearly free of length bias, yet a batch
# holds few different lengths.
POOL_BATCHES = 50
OnProgress = Callable[["Progress"], None]


@dataclass(frozen=True)
class Progress:
    """The progress of a training.

    Attributes:
        step: number of finished steps, of `n_steps`.
        loss: mean loss of the last step.
        epoch_scores: the validation score after each finished epoch, as fractions.
    """

    step: int
    n_steps: int
    loss: float
    epoch_scores: tuple[float, ...]


class Trainer:
    """Trains the chosen parameters of one model on one task.

    Args:
        model: model on its device, with its method installed and its trained parameters chosen.
        run: entered folder in which the state is saved.
        report: called after every step and every evaluation.

    Attributes:
        scores: the validation score after each epoch so far, as fractions.
    """

    def __init__(
        self,
        model: TrainingModel,
        objective: Objective,
        *,
        settings: TrainingSettings,
        run: RunDirectory,
        report: OnProgress,
    ):
        self._model, self._objective, self._settings = model, objective, settings
        self._run, self._report = run, report
        self._trained = {n: p for n, p in model.base.named_parameters() if p.requires_grad}
        self._delta = model.named_delta()  # these, and running averages that training updates
        self._optimizer = torch.optim.Adam(self._trained.values(), lr=settings.learning_rate, fused=True)
        self._at, self._best = 0, dict[str, Tensor]()  # finished steps; the tensors of the best epoch
        self.scores: list[float] = []
        self._n_steps = settings.n_steps(len(objective.train.lengths))
        self._durations: list[float] = []  # of the steps since the last interruption, in seconds

    @property
    def seconds_per_step(self) -> float | None:
        """Mean time of a step since the last interruption; None before the first."""
        return sum(self._durations) / len(self._durations) if self._durations else None

    def train(self) -> tuple[dict[str, Tensor], list[float]]:
        """Train, starting from the state in the folder.

        Returns:
            The trained tensors after the best epoch, and every epoch's validation score.

        Raises:
            Diverged: the loss became NaN or infinite.
            TrainingError: the device is out of memory.
        """
        model = self._model
        self._restore()
        saved = time.monotonic()
        whole = True  # whether parameters, moments, step and scores are consistent
        try:
            precision = precision_of(self._settings, model.device)
            # Dropout draws from torch's global generators, which are restored afterwards.
            with own_draws(model.device), precision, packed_frozen_maps(model.layers):
                for batch_indices, last_of_epoch in self._remaining():
                    whole = False
                    start = time.perf_counter()
                    loss = self._step(batch_indices)
                    self._durations.append(time.perf_counter() - start)
                    if last_of_epoch:
                        self._finish_epoch()
                    whole = True
                    if last_of_epoch or time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
                        self._save()
                        saved = time.monotonic()
                    self._report(Progress(self._at, self._n_steps, loss, tuple(self.scores)))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"{model.device} is out of memory in a step of {self._settings.batch_size} examples; give "
                "--accumulate, --checkpointing, --dtype bfloat16 or a smaller --batch-size"
            ) from error
        except KeyboardInterrupt:
            if whole:  # in the middle of a step, the last saved state is valid
                self._save()
            raise
        return self._best, self.scores

    def _remaining(self) -> Iterator[tuple[np.ndarray, bool]]:
        """The remaining batches, each with whether it ends its epoch."""
        settings, lengths = self._settings, self._objective.train.lengths
        per_epoch = self._n_steps // settings.epochs
        for epoch in range(self._at // per_epoch, settings.epochs):
            batches = epoch_batches(lengths, settings.batch_size, settings.seed, epoch)
            for number in range(self._at - epoch * per_epoch, per_epoch):
                yield batches[number], number == per_epoch - 1

    def _step(self, indices: np.ndarray) -> float:
        """One optimiser step; returns the mean loss of the batch."""
        settings = self._settings
        self._model.train()
        torch.manual_seed(int(np.random.SeedSequence([settings.seed, self._at]).generate_state(1)[0]))
        self._optimizer.zero_grad(set_to_none=True)
        value, whole = 0.0, self._objective.weight(indices)
        for part in np.array_split(indices, min(settings.accumulate, len(indices))):
            batch = pack(self._objective.train, part).to(self._model.device)
            loss = self._objective.loss(self._model(batch).float(), batch)
            share = self._objective.weight(part) / whole
            value += loss.item() * share
            if np.isfinite(value):
                (loss * share).backward()
        if not np.isfinite(value):
            raise Diverged(
                f"training diverged: the loss is {value} at step {self._at + 1} of {self._n_steps} with "
                f"learning rate {settings.learning_rate}; give a lower --learning-rate"
            )
        for group in self._optimizer.param_groups:
            group["lr"] = settings.rate_at(self._at, self._n_steps)
        self._optimizer.step()
        self._at += 1
        return value

    def _finish_epoch(self) -> None:
        """Score the validation set; keep the tensors if no epoch was better.

        A perplexity beyond the range of numbers is noted as undefined: JSON has no infinity.
        """
        score = self._objective.score(self._model)
        score = score if np.isfinite(score) else float("nan")
        sign = self._objective.sign
        if not self.scores or sign * score > np.nanmax([-np.inf, *(sign * one for one in self.scores)]):
            self._best = {name: t.detach().clone() for name, t in self._delta.items()}
        self.scores.append(score)

    def _save(self) -> None:
        about = {"step": self._at, "scores": self.scores}
        arrays = {"about": np.array(json.dumps(about))}
        arrays |= {f"now/{name}": t.detach().cpu().numpy() for name, t in self._delta.items()}
        for name, parameter in self._trained.items():
            for moment in _MOMENTS:
                if parameter in self._optimizer.state:
                    arrays[f"{moment}/{name}"] = self._optimizer.state[parameter][moment].cpu().numpy()
        arrays |= {f"best/{name}": tensor.cpu().numpy() for name, tensor in self._best.items()}
        self._run.write_part(STATE_PART, arrays)

    def _restore(self) -> None:
        if STATE_PART not in self._run.finished():
            return
        arrays = self._run.read_part(STATE_PART)
        about = json.loads(str(arrays["about"]))
        self._at, self.scores = about["step"], about["scores"]
        device = self._model.device
        self._model.restore({name: torch.from_numpy(arrays[f"now/{name}"]) for name in self._delta})
        if self.scores:
            self._best = {n: torch.from_numpy(arrays[f"best/{n}"]).to(device) for n in self._delta}
        step = torch.tensor(float(self._at), device=device)  # fused Adam reads it there
        for name, parameter in self._trained.items():
            if f"{_MOMENTS[0]}/{name}" in arrays:  # none of a parameter that no loss depended on
                moments = {m: torch.from_numpy(arrays[f"{m}/{name}"]).to(device) for m in _MOMENTS}
                self._optimizer.state[parameter] = {"step": step.clone(), **moments}


def epoch_batches(lengths: np.ndarray, batch_size: int, seed: int, epoch: int) -> list[np.ndarray]:
    """Batches of example numbers for one epoch; every example once, the last batch may be smaller.

    Args:
        lengths: int ``[examples]``, tokens of each example.
        seed: together with `epoch` determines the order.
    """
    generator = np.random.default_rng([seed, epoch])
    order = generator.permutation(len(lengths))
    batches: list[np.ndarray] = []
    for start in range(0, len(order), POOL_BATCHES * batch_size):
        pool = order[start : start + POOL_BATCHES * batch_size]
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        batches += [pool[i : i + batch_size] for i in range(0, len(pool), batch_size)]
    return [batches[i] for i in generator.permutation(len(batches))]


@contextlib.contextmanager
def precision_of(settings: TrainingSettings, device: torch.device) -> Iterator[None]:
    """The context in which a training computes on a device, in the precision of its settings."""
    if settings.dtype == "float32":
        yield
        return
    # The autocast cache would keep the first step's rounding of trained matrices for the whole training.
    faster = FasterFunctions() if device.type == "cpu" else contextlib.nullcontext()
    with torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False), faster:
        yield


_STEPS = 3  # the first includes set-up costs and is not counted


def seconds_of(request: TrainingRequest, inputs: TrainingInputs, device: torch.device) -> float:
    """Estimated seconds of a whole training, including evaluations."""
    model = build_model(request, replace(inputs.base, model=deepcopy(inputs.base.model)), device)
    objective, settings = inputs.objective, request.settings
    lengths = objective.train.lengths
    order, n = np.argsort(lengths, kind="stable"), settings.batch_size
    middle = order[max(0, len(order) // 2 - n // 2) :][:n]  # examples of about the median length
    batch = pack(objective.train, middle).to(device)
    precision = precision_of(settings, device)
    with torch.random.fork_rng(devices=[]), precision, packed_frozen_maps(model.layers):
        model.train()
        for number in range(_STEPS):
            if number == 1:
                start = time.perf_counter()
            objective.loss(model(batch).float(), batch).backward()
        step = (time.perf_counter() - start) / (_STEPS - 1)
        model.eval()
        with torch.inference_mode():
            model(batch)
            start = time.perf_counter()
            model(batch)
            forward = time.perf_counter() - start
    tokens, evaluated = float(lengths.sum()), float(objective.validation.lengths.sum())
    return settings.epochs * (tokens * step + evaluated * forward) / float(lengths[middle].sum())
