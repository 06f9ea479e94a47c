"""One trial, run or resumed from its folder.

``trials/<id>/trial.json``, written last, contains the result. Before that, the folder contains the state of
the training, so that an interrupted trial can be resumed.
"""

from __future__ import annotations

import contextlib
import gc
import shutil
import time
from pathlib import Path

import safetensors.torch
import torch

from adapter_probe.analysis.score_changes import finite_or_none
from adapter_probe.checkpoints.native import library_versions
from adapter_probe.device import peak_memory
from adapter_probe.errors import Diverged, TrainingError
from adapter_probe.probe.lanes import return_all_free_memory
from adapter_probe.results.atomic import read_json, remove_leftovers, write_json
from adapter_probe.results.rundir import MANIFEST, PARTS, RunDirectory
from adapter_probe.results.trial_files import (
    Cost,
    ParameterCounts,
    TrialRecord,
    read_trial,
    write_trial,
)
from adapter_probe.training.checkpoint import STATE_FOLDER
from adapter_probe.training.loop import OnProgress, Trainer
from adapter_probe.training.model import TrainingModel
from adapter_probe.training.request import (
    build_model,
    identity_of,
    load_inputs,
    read_request,
)

from .trials import REQUEST, trial_id

_PROCESS = Path("/proc/self")
_RESET_PEAK = "5"  # see clear_refs in proc(5)


def run_trial(folder: Path, device: torch.device, report: OnProgress) -> TrialRecord:
    """Run or resume one trial; the record of a finished one is returned unchanged.

    Args:
        folder: folder with ``request.json``.

    Raises:
        AdapterProbeError: the request, the base or the data cannot be used, or the folder cannot be written.
    """
    if (record := read_trial(folder)) is not None:
        return record
    request = read_request(folder / REQUEST)
    task, inputs, state = request.task, load_inputs(request), folder / STATE_FOLDER
    identity = identity_of(request, inputs.fingerprints)
    if folder.name != trial_id(identity) and not (state / MANIFEST).exists():
        raise TrainingError(
            f"trial {folder.name} was planned for another base or other data, which have changed since then; "
            "run the command again"
        )
    with RunDirectory(state, identity, plan={}) as run:
        remove_leftovers(folder)
        clock = _Clock(folder)
        model = build_model(request, inputs.base, device)
        trainer = Trainer(model, inputs.objective, settings=request.settings, run=run, report=report)
        diverged = False
        with PeakMemory(device) as memory, clock:
            try:
                trainer.train()
            except Diverged:
                diverged = True
        record = TrialRecord(
            trial=folder.name,
            task=task.name,
            metric=task.metric,
            method=request.method.to_json(),
            settings=request.settings.to_json(),
            scores=tuple(map(finite_or_none, trainer.scores)),
            diverged=diverged,
            majority_score=inputs.majority_score(task.metric),
            seconds=clock.seconds,
            versions=library_versions(),
            counts=count_parameters(model, inputs.base.missing),
            cost=Cost(trainer.seconds_per_step, memory.n_bytes, bytes_of_checkpoint(model)),
        )
        write_trial(folder, record)
        shutil.rmtree(run.path / PARTS, ignore_errors=True)
    return record


def count_parameters(model: TrainingModel, missing: frozenset[str]) -> ParameterCounts:
    """Count trained parameters and those of the base, from the tensors.

    Args:
        missing: names of parameters that the base lacks; they count as head.
    """
    trained = without_head = base = 0
    for group, name, parameter in model.named_roles():
        of_head = group == "head" or name in missing
        base += parameter.numel() * (not of_head and group != "adapters")
        if parameter.requires_grad:
            trained += parameter.numel()
            without_head += parameter.numel() * (not of_head)
    return ParameterCounts(trained, without_head, base, model.n_layers)


def bytes_of_checkpoint(model: TrainingModel) -> int:
    """Size of the file with the trained tensors, as `adapter_probe.train` writes it."""
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.saved().items()}
    return len(safetensors.torch.save(tensors, metadata={"format": "pt"}))


class _Clock:
    """Seconds spent in the ``with`` block, summed over interruptions in a file of the folder."""

    def __init__(self, folder: Path):
        self._path = folder / STATE_FOLDER / "seconds.json"
        self.seconds = float(read_json(self._path)["seconds"]) if self._path.exists() else 0.0

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._start
        write_json(self._path, {"seconds": self.seconds})


class PeakMemory:
    """The peak of memory in use within the ``with`` block.

    Attributes:
        n_bytes: after the block, the peak in bytes: allocated tensors on an accelerator; on the CPU the
            resident memory of this process, whose peak Linux resets and tells; None elsewhere.
    """

    def __init__(self, device: torch.device):
        self._device = device
        self.n_bytes: int | None = None

    def __enter__(self) -> PeakMemory:
        gc.collect()
        return_all_free_memory()  # what an earlier trial of the same process left to the allocator
        self._known = False
        if self._device.type != "cpu":
            self._known = peak_memory(self._device, begin=True) is not None
        else:
            with contextlib.suppress(OSError):
                (_PROCESS / "clear_refs").write_text(_RESET_PEAK)
                self._known = True
        return self

    def __exit__(self, *_: object) -> None:
        if not self._known:
            return
        if self._device.type != "cpu":
            self.n_bytes = peak_memory(self._device)
            return
        with contextlib.suppress(OSError, ValueError, LookupError):  # where the system does not tell
            lines = (_PROCESS / "status").read_text().splitlines()
            peak = dict(line.partition(":")[::2] for line in lines)["VmHWM"]
            self.n_bytes = int(peak.split()[0]) * 1024  # in kB
