"""Trials on disk: one record per training run, and the table of all trials."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.metrics import sign_of
from adapter_probe.records import from_record, to_record
from adapter_probe.results.atomic import read_json, write_csv, write_json
from adapter_probe.results.fingerprints import hash_json, sha256_of, to_plain
from adapter_probe.results.manifests import begin_study, read_study, write_study
from adapter_probe.results.schema import STUDY, SWEEP_CSV, TRADEOFF_CSV, TRIAL, TRIALS_CSV, TRIALS_FOLDER

SCHEMA = 1  # of study.json
_TRIAL_SCHEMA = 2  # of trial.json
_TOLD = "told"
_METHOD_FIELDS = ("size", "init_std", "activation", "sites", "k")
_DEFAULT_SITES = "both"
TRIAL_COLUMNS = (
    "trial", "task", "method", *_METHOD_FIELDS, "base_layers", "learning_rate", "epochs", "batch_size",
    "seed", "metric", "score", "best_epoch", "diverged", "majority_score", "trained_parameters",
    "trained_parameters_without_head", "base_parameters", "percent_of_base",
)  # fmt: skip
_ORDER = ("task", "method", *_METHOD_FIELDS, "learning_rate", "epochs", "batch_size", "seed", "trial")


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters of a trial, counted from the tensors.

    Attributes:
        trained_without_head: trained parameters without the head and other parts that the base lacks.
        base: parameters of the pretrained model, without head and adapters.
    """

    trained: int
    trained_without_head: int
    base: int
    base_layers: int


@dataclass(frozen=True)
class Cost:
    """What a trial cost, apart from its parameters.

    Attributes:
        seconds_per_step: mean time of an optimiser step, without evaluation; of the steps since the last
            interruption.
        peak_memory_bytes: the most memory in use during the training: allocated on an accelerator, or else
            resident in the process, libraries included; None where the system does not tell.
        checkpoint_bytes: size of the file with the trained tensors, as `adapter_probe.train` writes it.
    """

    seconds_per_step: float | None
    peak_memory_bytes: int | None
    checkpoint_bytes: int


@dataclass(frozen=True)
class TrialRecord:
    """One finished training run.

    Attributes:
        trial: hash of everything that determines it.
        method: training method, in the form of its `to_json`.
        scores: the validation score after each epoch, as fractions; None where undefined. A run that diverged
            has those of the epochs before.
        diverged: whether the loss became NaN or infinite.
        majority_score: the score of always predicting the most frequent class; None if undefined.
        seconds: time of training and evaluation, summed over interruptions.
        cost: what it cost; None if it was not recorded.
    """

    trial: str
    task: str
    metric: str
    method: dict[str, Any]
    settings: dict[str, Any]
    scores: tuple[float | None, ...]
    diverged: bool
    majority_score: float | None
    counts: ParameterCounts
    seconds: float
    versions: dict[str, str] = field(default_factory=dict)
    cost: Cost | None = field(default=None, compare=False)

    @property
    def best_epoch(self) -> int | None:
        """The first epoch, from 1, with the best score; None for a run that diverged or has no score."""
        known = [score for score in self.scores if score is not None]
        best = min if sign_of(self.metric) < 0 else max
        return None if self.diverged or not known else self.scores.index(best(known)) + 1


def write_trial(folder: str | Path, record: TrialRecord) -> None:
    """Write ``trial.json``, which marks the trial as finished."""
    content = to_plain(to_record(record))
    write_json(Path(folder) / TRIAL, {"schema": _TRIAL_SCHEMA, **content, "checksum": hash_json(content)})


def read_trial(folder: str | Path) -> TrialRecord | None:
    """A trial's record, or None if it is not finished.

    Raises:
        ResultsError: the record is damaged, edited, of another trial, or of another schema.
    """
    path = Path(folder) / TRIAL
    if not path.exists():
        return None
    document = read_json(path)
    if (schema := document.pop("schema", None)) != _TRIAL_SCHEMA:
        raise ResultsError(
            f"{path}: schema {schema!r}; this version reads schema {_TRIAL_SCHEMA} only; choose another "
            "--out or remove the folder"
        )
    checksum = document.pop("checksum", None)
    try:
        record = from_record(TrialRecord, document)
    except AdapterProbeError as error:
        raise ResultsError(f"{path}: {error}") from error
    wrong = None
    if checksum != hash_json(document):
        wrong = "was edited: its checksum does not match"
    elif record.trial != path.parent.name:
        wrong = f"is the record of another trial, {record.trial}"
    if wrong:
        raise ResultsError(f"{path} {wrong}; remove it and run the same command to train the trial again")
    return record


def claim_study(
    folder: str | Path,
    study: str,
    shared: Mapping[str, Any],
    tasks: Mapping[str, Any],
    told: Mapping[str, Any] | None = None,
) -> None:
    """Write, or check against, ``study.json``: what all trials of a folder have in common.

    Tasks may be added; what is there may not change.

    Args:
        folder: folder of the study, which this process has claimed.
        tasks: everything that determines a task, by the task's name, as plain JSON.
        told: names and numbers for captions, which determine nothing: ``base``, and ``examples`` by task.

    Raises:
        ResultsError: the folder holds another study, or the same task name with other data.
    """
    path = Path(folder) / STUDY
    new = to_plain({"schema": SCHEMA, "study": study, **shared, "tasks": tasks})
    if path.exists():
        before = read_study(path)
        known = before.get("tasks")
        known = known if isinstance(known, dict) else {}
        now = {name: new["tasks"].get(name, known[name]) for name in known}
        same = {_TOLD: before[_TOLD]} if _TOLD in before else {}
        begin_study(path.parent, {**new, "tasks": now, **same})  # refuses other settings
        new["tasks"] = {**known, **new["tasks"]}
        told = _both_told(before.get(_TOLD), told)
    write_study(path, new | ({_TOLD: to_plain(told)} if told else {}))


def _both_told(before: Any, now: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What is told of a study that has more tasks now."""
    if not isinstance(before, Mapping) or now is None:
        return now or before
    return {**before, **now, "examples": {**before.get("examples", {}), **now["examples"]}}


def study_identity(table: Path) -> dict[str, object]:
    """The shared settings of a study's trials, and the hash of its table, which has been written."""
    folder = table.parent
    study = read_study(folder / STUDY) if (folder / STUDY).is_file() else {"folder": folder.resolve().name}
    return {"study": study, f"{table.stem}_sha256": sha256_of(table)}


def trial_frame(records: Iterable[TrialRecord]) -> pd.DataFrame:
    """All trials as a table, in an order that depends only on the trials.

    Returns:
        Columns `TRIAL_COLUMNS`; `size`, `init_std`, `activation` and `sites` are empty where there are no
        adapters, `k` where the method is not the top layers; `score` is NaN where the run diverged;
        `percent_of_base` refers to the trained parameters without the head.
    """
    frame = pd.DataFrame([_row(record) for record in records], columns=list(TRIAL_COLUMNS))
    frame = frame.astype({"size": "Int64", "k": "Int64", "best_epoch": "Int64"})
    frame = frame.fillna({"activation": "", "sites": ""})  # as a table read back has them
    return frame.sort_values(list(_ORDER), ignore_index=True, kind="stable")


def _row(record: TrialRecord) -> dict[str, object]:
    counts, settings, best = record.counts, record.settings, record.best_epoch
    method = {"sites": _DEFAULT_SITES, **record.method} if "activation" in record.method else record.method
    majority = record.majority_score
    return {
        "trial": record.trial,
        "task": record.task,
        "method": method.get("family", method["name"]),
        **{name: method.get(name) for name in _METHOD_FIELDS},
        "base_layers": counts.base_layers,
        **{name: settings[name] for name in ("learning_rate", "epochs", "batch_size", "seed")},
        "metric": record.metric,
        "score": math.nan if best is None else record.scores[best - 1],
        "best_epoch": best,
        "diverged": record.diverged,
        "majority_score": math.nan if majority is None else majority,
        "trained_parameters": counts.trained,
        "trained_parameters_without_head": counts.trained_without_head,
        "base_parameters": counts.base,
        "percent_of_base": 100 * counts.trained_without_head / counts.base,
    }


def read_trials(folder: str | Path) -> list[TrialRecord]:
    """Every finished trial of a study's folder, by id.

    Raises:
        ResultsError: a record is damaged or of another schema.
    """
    found = (read_trial(path.parent) for path in sorted(Path(folder).glob(f"{TRIALS_FOLDER}/*/{TRIAL}")))
    return [record for record in found if record is not None]


def cost_frame(records: Iterable[TrialRecord]) -> pd.DataFrame | None:
    """What the trials cost as a table, ``costs.csv``; None if none recorded it.

    A table of its own: times differ from run to run, and nothing else is made from them.
    """
    rows = [{"trial": one.trial, **vars(one.cost)} for one in records if one.cost is not None]
    if not rows:
        return None
    counts = {"peak_memory_bytes": "Int64", "checkpoint_bytes": "Int64"}
    return pd.DataFrame(rows)[["trial", "seconds_per_step", *counts]].astype(counts)


def write_trials(folder: str | Path, frame: pd.DataFrame) -> Path:
    """Write ``trials.csv``; tables of other trials, which were made from an earlier one, are removed."""
    path = Path(folder) / TRIALS_CSV
    before = path.read_bytes() if path.is_file() else None
    write_csv(path, frame)
    if path.read_bytes() != before:
        for name in (SWEEP_CSV, TRADEOFF_CSV):
            (Path(folder) / name).unlink(missing_ok=True)
    return path
