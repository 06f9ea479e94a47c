"""The sweeps from Python: the command's own tables, frames in memory as on disk, a figure on given Axes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from docs_scripts import DOCS
from refusals import names, naming, refuses, value_of

from adapter_probe.errors import DataError, JobsDetached, ModelError, ResultsError, TrainingError
from adapter_probe.jobs.resources import Resources
from adapter_probe.jobs.trials import say_if_slow
from adapter_probe.studies.cost_plan import SuitePlan
from adapter_probe.studies.init_sweep import InitSweep, init_sweep
from adapter_probe.studies.load import load
from adapter_probe.studies.sweep_trials import TaskOptions, find_one_task, majority_rows
from adapter_probe.studies.tradeoff import Tradeoff, tradeoff
from adapter_probe.training.settings import TrainingSettings

pytestmark = pytest.mark.usefixtures("in_this_process")


@pytest.fixture(scope="module")
def two_tasks(tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = []
    for name, n_rows in (("first", 64), ("second", 40)):
        folder = tmp_path_factory.mktemp("tasks") / name
        folder.mkdir()
        for split in ("train", "validation"):
            lines = (tiny_task / f"{split}.jsonl").read_text().splitlines()
            (folder / f"{split}.jsonl").write_text("\n".join(lines[:n_rows]))
        folders.append(folder)
    return folders


@pytest.fixture(scope="module")
def sweep(tiny_base: Callable[..., Path], two_tasks, tmp_path_factory) -> InitSweep:
    return init_sweep(
        tiny_base("bert"), two_tasks[0], tmp_path_factory.mktemp("sweep") / "s", stds=(0.01, 0.1), size=2,
        seeds=2, learning_rates=(0.01,), epochs=(1,), warmup=0, threads=1, progress=False,
    )  # fmt: skip


def same_frames(one, other) -> None:
    for name in ("table", "trials"):
        pd.testing.assert_frame_equal(getattr(one, name), getattr(other, name), check_dtype=False)
    assert one.record.identity == other.record.identity


def test_an_init_sweep(sweep, capfd):
    assert list(sweep.table["init_std"]) == [0.01, 0.1]
    assert (sweep.table["n"] == 2).all()
    for _, point in sweep.table.iterrows():
        own = sweep.trials[sweep.trials["init_std"] == point["init_std"]]
        assert point["mean"] == pytest.approx(own["score"].mean())
    again = load(sweep.folder)
    assert isinstance(again, InitSweep)
    same_frames(sweep, again)
    assert repr(sweep) == repr(again)
    assert "std 0.01" in repr(sweep)
    assert "majority class" in repr(sweep)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_sweep_of_a_lora_has_initialisations_by_name(tiny_base, two_tasks, tmp_path):
    study = init_sweep(
        tiny_base("bert"), two_tasks[0], tmp_path / "sweep", stds=(0.1,), method="lora:r=2",
        inits=("kaiming", "gaussian"), seeds=1, learning_rates=(0.01,), epochs=(1,),
        threads=1, progress=False,
    )  # fmt: skip
    table = study.table.set_index("init")
    assert list(table["method"]) == ["lora"] * 3
    assert table["init_std"].to_dict() == pytest.approx(
        {"": 0.1, "gaussian": np.nan, "kaiming": np.nan}, nan_ok=True
    )
    scores = {one["method"]: one["score"] for _, one in study.trials.iterrows() if np.isnan(one["init_std"])}
    assert scores == {
        "lora": table["mean"]["kaiming"], "lora:init_lora_weights=gaussian": table["mean"]["gaussian"]
    }  # fmt: skip
    same_frames(study, load(study.folder))
    assert {"std 0.1", "gaussian", "kaiming"} <= {name for name, _ in study.rows()}
    ax = study.plot(plt.figure().add_subplot())
    assert [text.get_text() for text in ax.get_xticklabels(minor=True)] == ["gaussian", "kaiming"]
    (gaussian, kaiming) = ax.get_xticks(minor=True)
    marks = [tuple(xy) for line in ax.lines for xy in line.get_xydata()]
    assert (gaussian, 100 * table["mean"]["gaussian"]) in marks
    assert (kaiming, 100 * table["mean"]["kaiming"]) in marks
    plt.close("all")


@pytest.mark.slow
def test_a_figure_on_given_axes(sweep, tmp_path):
    figure, axes = plt.subplots(1, 2)
    assert sweep.plot(axes[1]) is axes[1]
    assert axes[1].lines
    assert not axes[0].lines
    assert sweep._repr_html_().startswith("<img")
    paths = sweep.save(tmp_path / "figures", formats=("pdf",))
    assert {path.suffix for path in paths} >= {".pdf", ".csv"}
    plt.close(figure)


@pytest.mark.slow
def test_a_tradeoff_over_two_tasks(tiny_base, two_tasks, tmp_path):
    study = tradeoff(
        tiny_base("bert"), two_tasks, tmp_path / "t", sizes=(2,), top_k=(0, 1), head_only=True, seeds=1,
        learning_rates=(0.01, 0.001), epochs=(1,), progress=False,
    )  # fmt: skip
    assert sorted(study.table["label"].unique()) == [
        "LayerNorm only", "adapters 2", "full fine-tuning", "head only", "pooler and head", "top layer"
    ]  # fmt: skip
    assert len(study.trials) == 2 * 6 * 2
    assert (study.trials.query("method == 'full'")["percent_of_base"] == 100).all()
    for _, point in study.table.iterrows():
        own = study.trials[
            (study.trials["task"] == point["task"])
            & (study.trials["method"] == point["method"])
            & (study.trials["k"].fillna(-1) == (-1 if pd.isna(point["k"]) else point["k"]))
        ]
        assert point["mean"] == pytest.approx(own["score"].max())  # of one seed, the best rate's score
    again = load(study.folder)
    assert isinstance(again, Tradeoff)
    same_frames(study, again)
    for name in ("aggregate", "sizes"):
        one, other = (getattr(of, name).astype({"size": "Int64"}) for of in (study, again))
        pd.testing.assert_frame_equal(one, other, check_dtype=False)
    drawn = [{p.name: p.read_bytes() for p in of.save(tmp_path / n, formats=("svg",))}
             for n, of in (("memory", study), ("disk", again))]  # fmt: skip
    assert drawn[0] == drawn[1] != {}
    refuses(ResultsError, ("first, second",), study.plot)
    axes = study.plot(plt.figure().subplots(), task="second")
    assert names(axes.get_xlabel(), "trained parameters")
    assert axes.get_legend() is not None
    plt.close("all")
    assert "second: majority class" in repr(study)
    assert study._repr_html_().startswith("<img")


def test_the_plan_says_what_every_trial_is(tiny_base, two_tasks, tmp_path, monkeypatch):
    """Zero layers on top are named, and no trial by its id."""
    monkeypatch.setattr("adapter_probe.jobs.trials.seconds_of_start", lambda: 1.0)
    monkeypatch.setattr(
        "adapter_probe.jobs.trials.estimate_seconds", lambda trials, device: {t.id: 2.0 for t in trials}
    )
    plan = tradeoff.plan(
        tiny_base("bert"), two_tasks[0], tmp_path / "s", sizes=(), top_k=(0,), layernorm=False, full=False,
        head_only=True, learning_rates=(0.01,), epochs=(1,), seeds=1, workers=1,
    )  # fmt: skip
    top, words = repr(plan).splitlines()[:2]
    assert names(top, "top k layers", "k 0", "lr 0.01", "1 epoch", "seed 0", "2 s")
    assert names(words, "head only", "2 s")
    assert not any(trial["trial"] in repr(plan) for trial in plan.trials)  # ids are for programs
    assert [trial["learning_rate"] for trial in plan.trials] == [0.01, 0.01]
    assert (plan.done, plan.left, plan.workers, plan.folder) == (0, 2, 1, tmp_path / "s")
    assert plan.seconds_left == 1 + (2 * 2 + 1) + 3  # this program, both trials in one worker, the figures
    assert not plan.folder.exists()
    whole = SuitePlan(plan, None, [tmp_path / "<b>"])
    assert list(whole.to_dict()) == ["tradeoff", "checkpoints"]
    assert repr(whole) == f"tradeoff\n{plan!r}\n\ncheckpoints\n  {tmp_path / '<b>'}"
    shown = whole._repr_html_()
    assert shown.count("<tr>") == len(plan.rows()) + 1
    assert "&lt;b&gt;" in shown


def test_ids_of_trials_that_look_like_numbers_stay_texts(tiny_base, two_tasks, tmp_path):
    study = init_sweep(
        tiny_base("bert"), two_tasks[0], tmp_path, stds=(0.1,), size=2, seeds=1, learning_rates=(0.01,),
        epochs=(1,), threads=1, progress=False,
    )  # fmt: skip
    (path,) = tmp_path.glob("trials.csv")
    (tmp_path / "study.json").unlink()
    (identity,) = study.trials["trial"]
    path.write_text(path.read_text().replace(identity, "00e1234567890123"))
    assert load(tmp_path).trials["trial"].tolist() == ["00e1234567890123"]


@pytest.mark.parametrize(("dtype", "told"), [("bfloat16", 1), ("float32", 0)])
def test_a_sweep_in_slow_bfloat16_says_what_would_be_faster(dtype, told, monkeypatch, capfd):
    monkeypatch.setattr("adapter_probe.device.bfloat16_speed", lambda _: 0.25)
    trial = SimpleNamespace(request=SimpleNamespace(settings=TrainingSettings(dtype=dtype)))
    say_if_slow([trial], Resources())
    assert capfd.readouterr().err.count("--dtype float32") == told


@pytest.mark.slow
def test_what_it_would_cost(tiny_base, two_tasks, tmp_path):
    plan = init_sweep.plan(
        tiny_base("bert"), two_tasks[0], tmp_path / "s", stds=(0.1,), size=2, learning_rates=(0.01,),
        epochs=(1,), seeds=3, workers=1,
    )  # fmt: skip
    trained = sum(trial["seconds"] for trial in plan.trials)
    assert (plan.left, plan.workers) == (3, 1)
    assert plan.seconds_left > trained + 0.5  # no worker starts in less
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"stds": ()}, TrainingError, ("stds",)),
        ({"seeds": 0}, TrainingError, ("seeds must", "1", "0")),
        ({"learning_rates": ()}, TrainingError, ("learning_rates",)),
        ({"task": "no-such-task"}, DataError, ("no-such-task",)),
        ({"method": "bitfit"}, ModelError, ("method=", "bitfit", "lora:r=8")),
        ({"method": "lora:r=2", "size": 8}, ModelError, ("size=8", "rank", "method=")),
    ],
)
def test_bad_arguments(change, error, words, tiny_base, two_tasks, tmp_path):
    arguments = {"base": tiny_base("bert"), "task": two_tasks[0], "out": tmp_path / "s", **change}
    refuses(error, words, init_sweep, **arguments)
    assert not (tmp_path / "s").exists()


def test_a_tradeoff_of_no_method_names_the_options(tiny_base, two_tasks, tmp_path):
    none = {"sizes": (), "top_k": (), "layernorm": False, "full": False}
    with pytest.raises(TrainingError, match=naming("sizes=", "top_k=", "full=True")):
        tradeoff(tiny_base("bert"), two_tasks[0], tmp_path / "t", **none)
    with pytest.raises(ModelError, match=naming("top_layers", "top_k=")):
        tradeoff(tiny_base("bert"), two_tasks[0], tmp_path / "t", method="top_layers")
    assert not (tmp_path / "t").exists()


def test_jobs_that_nobody_waits_for(tiny_base, two_tasks, tmp_path, monkeypatch):
    from adapter_probe.jobs import running
    from adapter_probe.jobs.resources import SlurmOptions
    from adapter_probe.jobs.slurm import Submission

    monkeypatch.setattr(running.SlurmArray, "submit", lambda self, jobs: Submission((), tuple(jobs), ()))
    arguments = {"stds": (0.1,), "size": 2, "seeds": 2, "epochs": (1,), "progress": False}
    with pytest.raises(JobsDetached) as caught:
        init_sweep(tiny_base("bert"), two_tasks[0], tmp_path, cluster=SlurmOptions(detach=True), **arguments)
    assert (caught.value.report["jobs"], caught.value.report["sent_now"]) == (2, 2)
    assert (tmp_path / "trials.csv").exists()


def test_points_no_better_than_the_majority_class():
    point = {"task": "a", "metric": "accuracy", "majority_score": 0.5, "mean": 0.5}
    told = value_of(majority_rows([point, {**point, "mean": 0.7}, {**point, "mean": None}]), "majority class")
    assert names(told, "50.0%", "2 of 3 points")
    assert majority_rows([{**point, "majority_score": None}]) == []


def test_a_sweep_without_validation_files_in_another_encoding(tmp_path):
    rows = [f"café {i},{'yes' if i % 2 else 'no'}" for i in range(20)]
    (tmp_path / "train.csv").write_bytes("\n".join(["text,label", *rows]).encode("latin-1"))
    task = find_one_task(str(tmp_path), None, TaskOptions(encoding="latin-1", validation_share=0.25), False)
    assert (task.encoding, task.validation_share, list(task.files)) == (
        "latin-1",
        0.25,
        ["train", "validation"],
    )


def test_what_trains_in_the_head_alone_has_its_parameters_counted():
    """The committed trade-off of nine tasks has heads on unadapted features."""
    study = load(DOCS / "studies" / "tradeoff")
    heads = study.table[study.table["method"] == "head_only"]["trained_parameters"]
    told = [said for name, said in study.rows() if "head only" in name]
    assert len(told) == len(heads) == 9
    assert all(f" {count:,} parameters" in said for count, said in zip(heads, told))
    assert not any(", 0 parameters" in said for _, said in study.rows())
