"""A setting that is added later, at its default, changes no record: older folders go on and average."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from refusals import naming, refuses

import adapter_probe as ap
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.errors import ResultsError
from adapter_probe.jobs import trials
from adapter_probe.results import schema
from adapter_probe.results.rundir import PARTS
from adapter_probe.results.trial_files import claim_study
from adapter_probe.studies import ablate as of_ablate
from adapter_probe.training.request import TrainingRequest
from adapter_probe.training.settings import TrainingSettings


@dataclass(frozen=True)
class LaterAblation(AblationSettings):
    """As a later version may define it."""

    gentleness: int = 0


@dataclass(frozen=True)
class LaterTraining(TrainingSettings):
    """As a later version may define it."""

    patience: int = 0


def test_an_older_folder_is_resumed_and_averaged(study, other, copied, checkpoint, tmp_path, monkeypatch):
    parts = sorted((copied / PARTS).glob("*.npz"))
    parts[0].unlink()  # an interrupted run
    kept = {path: path.stat().st_mtime_ns for path in parts[1:]}
    (copied / schema.PREDICTIONS).unlink()
    monkeypatch.setattr(of_ablate, "AblationSettings", LaterAblation)
    resumed = ap.ablate(checkpoint, out=copied, progress=False)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert parts[0].exists()
    np.testing.assert_array_equal(resumed.results.outputs, study.results.outputs)
    predictions = (copied / schema.PREDICTIONS).read_bytes()
    assert predictions == (study.folder / schema.PREDICTIONS).read_bytes()
    mean = ap.average([resumed, other])  # `other` was made before the setting was there
    old = ap.average([study, other])
    np.testing.assert_array_equal(mean.spans["delta_points"], old.spans["delta_points"])


def test_a_later_setting_that_is_chosen_is_another_run(copied, checkpoint, monkeypatch):
    @dataclass(frozen=True)
    class Chosen(AblationSettings):
        gentleness: int = 1

    monkeypatch.setattr(Chosen.__dataclass_fields__["gentleness"], "default", 0)
    monkeypatch.setattr(of_ablate, "AblationSettings", Chosen)
    refuses(ResultsError, ("settings.gentleness", "1"), ap.ablate, checkpoint, out=copied, progress=False)


def test_older_trials_are_not_trained_again(tiny_base, tmp_path, short_task):
    from adapter_probe.data.tasks import find_task
    from adapter_probe.models.methods import Adapters

    task = find_task(short_task)
    old = TrainingRequest(str(tiny_base("bert")), task, Adapters(4), TrainingSettings(epochs=1))
    new = replace(old, settings=LaterTraining(epochs=1))
    (was,), (now,) = trials.plan_trials([old]), trials.plan_trials([new])
    assert was.id == now.id
    claim_study(tmp_path, "tradeoff", *trials.shared_settings([was]))
    claim_study(tmp_path, "tradeoff", *trials.shared_settings([now]))
    # The table of trials has no column for a new setting, so a folder holds one value of it.
    other = replace(old, settings=LaterTraining(epochs=1, patience=2))
    (later,) = trials.plan_trials([other])
    assert later.id != was.id
    with pytest.raises(ResultsError, match=naming("patience", "2")):
        claim_study(tmp_path, "tradeoff", *trials.shared_settings([later]))
