"""Trials on disk: records, their table, and the claim that keeps two studies apart."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil

import pandas as pd
import pytest
from changed_files import LACKS, edit
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from adapter_probe.errors import ResultsError
from adapter_probe.results.manifests import read_study
from adapter_probe.results.trial_files import (
    TRIAL_COLUMNS,
    ParameterCounts,
    TrialRecord,
    claim_study,
    read_trial,
    read_trials,
    trial_frame,
    write_trial,
    write_trials,
)

SETTINGS = {"learning_rate": 1e-3, "epochs": 3, "batch_size": 32, "seed": 0}
ADAPTERS = {"name": "adapters", "size": 64, "init_std": 0.01, "activation": "gelu", "train_pooler": False}
RECORD = TrialRecord(
    trial="a" * 16,
    task="CoLA",
    metric="accuracy",
    method=ADAPTERS,
    settings=SETTINGS,
    scores=(0.5, 0.75, 0.75),
    diverged=False,
    majority_score=0.5,
    counts=ParameterCounts(trained=300, trained_without_head=200, base=1000, base_layers=12),
    seconds=1.5,
    versions={"torch": "2"},
)


@pytest.mark.parametrize(
    "record",
    [
        RECORD,
        dataclasses.replace(RECORD, scores=(None, 0.25), majority_score=None),
        dataclasses.replace(RECORD, scores=(), diverged=True, method={"name": "full"}),
    ],
)
def test_round_trip(record, tmp_path):
    folder = tmp_path / record.trial
    folder.mkdir()
    assert read_trial(folder) is None
    write_trial(folder, record)
    assert read_trial(folder) == record


def test_a_record_is_bound_to_its_trial_and_its_bytes(tmp_path):
    ours, other = tmp_path / RECORD.trial, tmp_path / ("b" * 16)
    ours.mkdir()
    write_trial(ours, RECORD)
    shutil.copytree(ours, other)
    refuses(ResultsError, ("trial.json", RECORD.trial), read_trial, other)
    text = (ours / "trial.json").read_text()
    (ours / "trial.json").write_text(text.replace("0.75", "0.85", 1))
    refuses(ResultsError, ("trial.json",), read_trial, ours)


@given(st.lists(st.none() | st.floats(-1, 1), max_size=6), st.booleans())
def test_the_best_epoch_is_the_first_best(scores, diverged):
    best = dataclasses.replace(RECORD, scores=tuple(scores), diverged=diverged).best_epoch
    known = [score for score in scores if score is not None]
    if diverged or not known:
        assert best is None
    else:
        assert scores[best - 1] == max(known)
        assert max(known) not in scores[: best - 1]


def test_the_table():
    top = dataclasses.replace(
        RECORD, trial="b" * 16, method={"name": "top_layers", "k": 2}, scores=(), diverged=True
    )
    one_site = dataclasses.replace(RECORD, trial="c" * 16, method={**ADAPTERS, "size": 8, "sites": "ffn"})
    frame = trial_frame([top, RECORD, one_site])
    assert tuple(frame.columns) == TRIAL_COLUMNS
    assert frame["trial"].str[0].tolist() == ["c", "a", "b"]  # by task, method, size
    assert frame["size"].tolist()[:2] == [8, 64]
    assert frame["sites"].tolist()[:2] == ["ffn", "both"]
    assert pd.isna(frame["size"][2])
    assert frame["k"][2] == 2
    assert frame["score"].tolist()[:2] == [0.75, 0.75]
    assert math.isnan(frame["score"][2])
    assert frame["best_epoch"].tolist()[:2] == [2, 2]
    assert frame["diverged"].tolist() == [False, False, True]
    assert frame["percent_of_base"].tolist() == [20.0, 20.0, 20.0]


def test_the_table_does_not_depend_on_the_order(tmp_path):
    records = [dataclasses.replace(RECORD, trial=c * 16, settings={**SETTINGS, "seed": i})
               for i, c in enumerate("fedcba")]  # fmt: skip
    for name, order in (("one", records), ("two", records[::-1])):
        (tmp_path / name).mkdir()
        write_trials(tmp_path / name, trial_frame(order))
    assert (tmp_path / "one" / "trials.csv").read_bytes() == (tmp_path / "two" / "trials.csv").read_bytes()
    assert trial_frame(records)["seed"].tolist() == list(range(6))


def test_only_finished_trials_are_read(tmp_path):
    for name in ("x", RECORD.trial):
        (tmp_path / "trials" / name).mkdir(parents=True)
    write_trial(tmp_path / "trials" / RECORD.trial, RECORD)
    assert read_trials(tmp_path) == [RECORD]
    assert read_trials(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"schema": 1}, ["schema 1", "schema 2"]),
        ({"scores": "good"}, ["scores", "good"]),
        ({"counts": {"trained": 1}}, ["counts.trained_without_head"]),
        ({"extra": 1}, ["extra"]),
    ],
)
def test_an_edited_record(change, words, tmp_path):
    write_trial(tmp_path, RECORD)
    path = tmp_path / "trial.json"
    edit(path, change)
    refuses(ResultsError, (path, *words), read_trial, tmp_path)


BASE, COLA, MNLI = {"base_sha256": "1" * 64}, {"data": {"train": "2" * 64}}, {"data": {"train": "3" * 64}}


def test_tasks_may_be_added_to_a_study(tmp_path):
    claim_study(tmp_path, "tradeoff", BASE, {"CoLA": COLA})
    claim_study(tmp_path, "tradeoff", BASE, {"MNLI": MNLI})
    claim_study(tmp_path, "tradeoff", BASE, {"CoLA": COLA})
    assert json.loads((tmp_path / "study.json").read_text())["tasks"] == {"CoLA": COLA, "MNLI": MNLI}


@pytest.mark.parametrize(
    ("study", "base", "tasks", "changed"),
    [
        ("init-sweep", BASE, {"CoLA": COLA}, "study: tradeoff -> init-sweep"),
        ("tradeoff", {"base_sha256": "9" * 64}, {"CoLA": COLA}, "base_sha256"),
        ("tradeoff", BASE, {"CoLA": MNLI, "MNLI": MNLI}, "tasks.CoLA.data.train"),
    ],
)
def test_another_study_is_refused(study, base, tasks, changed, tmp_path):
    claim_study(tmp_path, "tradeoff", BASE, {"CoLA": COLA})
    before = (tmp_path / "study.json").read_bytes()
    refuses(ResultsError, (tmp_path, changed, "--out"), claim_study, tmp_path, study, base, tasks)
    assert (tmp_path / "study.json").read_bytes() == before


def test_a_study_that_was_edited_is_refused(tmp_path):
    claim_study(tmp_path, "tradeoff", BASE, {"CoLA": COLA, "MNLI": MNLI})
    path = tmp_path / "study.json"
    assert read_study(path)["tasks"] == {"CoLA": COLA, "MNLI": MNLI}
    edit(path, {"tasks.MNLI": LACKS})
    for read in (read_study, lambda _: claim_study(tmp_path, "tradeoff", BASE, {"CoLA": COLA})):
        refuses(ResultsError, ("study.json",), read, path)
    edit(path, checksum=LACKS)
    refuses(ResultsError, ("study.json",), read_study, path)
