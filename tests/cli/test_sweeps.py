"""The sweeps as a user runs them: side by side or one by one, killed and resumed, refused in one line."""

from __future__ import annotations

import shutil
import time

import pandas as pd
import pytest
from program import tables
from refusals import names


@pytest.fixture(scope="module")
def sweep(short_sweep) -> tuple[object, ...]:
    return short_sweep(stds="1e-2:0.1", seeds=2)


@pytest.mark.slow
def test_two_workers_give_the_same_numbers_as_one(program, sweep, undisturbed, tmp_path):
    assert program(*sweep, "--out", tmp_path, "--workers", 2).code == 0
    assert tables(tmp_path) == tables(undisturbed)
    assert "trials.csv" in tables(undisturbed)


@pytest.mark.slow
def test_a_wider_sweep_repeats_nothing(program, sweep, undisturbed, tmp_path):
    folder = shutil.copytree(undisturbed, tmp_path / "s")
    before = {path: path.stat().st_mtime_ns for path in folder.glob("trials/*/trial.json")}
    wider = [*sweep]
    wider[wider.index("--stds") + 1] = "1e-2,1e-1,0.5"
    outcome = program(*wider, "--out", folder)
    assert outcome.code == 0, outcome.stderr
    assert "trials: 4 of 6 done" in outcome.stderr
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    frame = pd.read_csv(folder / "trials.csv")
    assert sorted(frame["init_std"]) == [0.01, 0.01, 0.1, 0.1, 0.5, 0.5]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"--stds": "0"}, ["init_std", "positive", "0.0"]),
        ({"--stds": "1e-7:3"}, ["--stds", "1e-7:3", "decades"]),
        ({"--stds": "wide"}, ["--stds", "wide"]),
        ({"--stds": ""}, ["empty"]),
        ({"--stds": "1:inf"}, ["--stds", "1:inf", "decades"]),
        ({"--method": "lora", "--inits": "gaussian, other"}, ["--inits", "'other'"]),
        ({"--epochs": "1.5"}, ["--epochs", "1.5"]),
    ],
)
def test_bad_input(change, words, program, sweep, tmp_path):
    arguments = [*sweep]
    for name, value in change.items():
        if name not in arguments:
            arguments += [name, ""]
        arguments[arguments.index(name) + 1] = value
    assert names(program(*arguments, "--out", tmp_path / "s").refusal, *words)
    assert not list(tmp_path.rglob("trial.json"))


@pytest.mark.slow
def test_a_folder_of_another_study(program, sweep, undisturbed):
    other = ("tradeoff", *sweep[1:5], "--sizes", 2, "--seeds", 1, "--epochs", 1, "--out", undisturbed)
    assert "study: init-sweep -> tradeoff" in program(*other).refusal


@pytest.mark.slow
def test_two_sweeps_on_one_folder(program, sweep, tmp_path):
    first = program.start(*sweep, "--out", tmp_path)
    while not (tmp_path / "study.json").exists() and not first.ended:
        time.sleep(0.01)
    second = program(*sweep, "--out", tmp_path)
    assert first.result().code == 0
    assert names(second.refusal, str(tmp_path), "in use")


@pytest.mark.slow
def test_a_worker_killed_by_the_system(program, sweep, undisturbed, tmp_path):
    """One trial's worker dies each time it starts; the others finish, and the next run mends it."""
    victim = sorted(path.name for path in undisturbed.glob("trials/*"))[1]
    deadly = f"""
import subprocess
original = subprocess.Popen.__init__
def start(self, command, *arguments, **options):
    assert command[1:3] == ["-m", "adapter_probe.jobs.worker"]
    code = '''
import os, signal, adapter_probe.jobs.trial_run as trial_run
from adapter_probe.jobs.worker import main
run = trial_run.run_trial
def run_or_die(folder, *rest):
    if folder.name == "{victim}": os.kill(os.getpid(), signal.SIGKILL)
    return run(folder, *rest)
trial_run.run_trial = run_or_die
main()
'''
    original(self, [command[0], "-c", code, *command[3:]], *arguments, **options)
subprocess.Popen.__init__ = start
"""
    refusal = program(*sweep, "--out", tmp_path, before=deadly)
    assert refusal.code == 2
    last = refusal.stderr.replace("\r", "\n").strip().split("\n")[-1]
    for word in ("1 of 4 trials failed", victim, "SIGKILL", "same command"):
        assert word in last
    assert len(list(tmp_path.glob("trials/*/trial.json"))) == 3
    assert program(*sweep, "--out", tmp_path).code == 0
    assert tables(tmp_path) == tables(undisturbed)
