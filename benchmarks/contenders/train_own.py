"""Our training loop for a number of steps: adapters, LayerNorms and head."""

from __future__ import annotations

import shutil
import time
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from protocol import Contender, serve

from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters
from adapter_probe.results.rundir import RunDirectory
from adapter_probe.training.loop import Progress, Trainer, epoch_batches
from adapter_probe.training.request import TrainingRequest, build_model, load_inputs
from adapter_probe.training.settings import TrainingSettings


class TrainOwn(Contender):
    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(settings["threads"])
        data = Path(settings["case"])
        task = find_task(train=[data / "train.tsv"], validation=[data / "validation.tsv"])
        training = TrainingSettings(epochs=1, batch_size=settings["batch_size"], dtype=settings["dtype"])
        self._request = TrainingRequest(settings["base"], task, Adapters(settings["size"]), training)
        self._inputs = load_inputs(self._request)
        self._first, self._last = settings["warm_up"], settings["warm_up"] + settings["steps"]
        self._scratch = Path(settings["scratch"])
        lengths = self._inputs.objective.train.lengths
        batches = epoch_batches(lengths, training.batch_size, training.seed, epoch=0)
        self._tokens = int(sum(lengths[batch].sum() for batch in batches[self._first : self._last]))
        return {}

    def run(self, share: int, shares: int) -> dict[str, Any]:
        """A training from the start; the steps after the warm-up and before the last are timed."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        base = replace(self._inputs.base, model=deepcopy(self._inputs.base.model))
        model = build_model(self._request, base, torch.device("cpu"))
        moments: dict[int, float] = {}

        def note(progress: Progress) -> None:
            moments[progress.step] = time.perf_counter()

        with RunDirectory(self._scratch, {"training": share}, plan={}) as run:
            settings, objective = self._request.settings, self._inputs.objective
            Trainer(model, objective, settings=settings, run=run, report=note).train()
        shutil.rmtree(self._scratch, ignore_errors=True)
        return {"tokens": self._tokens, "timed": moments[self._last] - moments[self._first]}


if __name__ == "__main__":
    serve(TrainOwn())
