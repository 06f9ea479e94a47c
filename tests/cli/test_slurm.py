"""Studies on a real cluster of two nodes, as a user starts them, beside the same studies on one machine."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from program import tables
from refusals import names
from slurm_cluster import SlurmCluster

# The waiting command looks more often than it would at home.
HASTY = """
import adapter_probe.jobs.slurm as slurm
slurm.POLL_NOTES, slurm.POLL_QUEUE, slurm.LOST_AFTER = 0.3, 2, 1
"""
SMALL_PARTS = """
import adapter_probe.probe.plan
adapter_probe.probe.plan.TOKENS_PER_PART["cpu"] = 50
"""
STUDIES = Path(__file__).parents[2] / "docs" / "studies"
SLURM = ("--slurm", "--sbatch", "time=30")


@pytest.fixture(scope="module")
def sweep(short_sweep) -> tuple[object, ...]:
    return short_sweep(seeds=3)


def tasks(folder: Path) -> dict[str, str]:
    path = folder / "slurm" / "submitted.json"
    return json.loads(path.read_text())["tasks"] if path.exists() else {}


@pytest.fixture
def on_cluster(program, cluster: SlurmCluster) -> Callable:
    """``on_cluster(...)`` starts a command that finds the cluster."""

    def start(*arguments: object):
        return program.start(*arguments, before=HASTY, **cluster.environment)

    return start


def test_the_command_killed_and_given_again(cluster, on_cluster, sweep, undisturbed, tmp_path):
    first = on_cluster(*sweep, "--out", tmp_path, *SLURM)
    cluster.wait_until(lambda: len(tasks(tmp_path)) == 3)
    sent = tasks(tmp_path)
    second = on_cluster(*sweep, "--out", tmp_path, *SLURM)  # while the first one waits
    assert names(second.result().refusal, str(tmp_path), "in use")
    first.kill()
    assert first.result().code == -signal.SIGKILL
    outcome = on_cluster(*sweep, "--out", tmp_path, *SLURM).result()
    assert outcome.code == 0, outcome.stderr
    assert "jobs submitted: 0" in outcome.stderr
    assert tasks(tmp_path) == sent
    assert tables(tmp_path) == tables(undisturbed)
    assert "trials.csv" in tables(tmp_path)


def test_a_suite_is_the_same_on_a_cluster(on_cluster, program, tiny_base, tiny_task, tmp_path):
    (tmp_path / "base").symlink_to(tiny_base("bert"))
    (tmp_path / "task").symlink_to(tiny_task)
    file = Path(shutil.copy(STUDIES / "tiny.toml", tmp_path))
    here, there = tmp_path / "here", tmp_path / "there"
    assert program("suite", file, "--out", here, "--workers", 2).code == 0
    outcome = on_cluster("suite", file, "--out", there, *SLURM).result(600)
    assert outcome.code == 0, outcome.stderr
    names = {str(path.relative_to(here)) for path in here.rglob("*.csv")}
    assert {"parameters.csv", "tradeoff/trials.csv", "ablations/my task/seed-1/spans.csv"} <= names
    measured = {name for name in names if name.endswith("costs.csv")}  # seconds and bytes of memory
    assert measured == {"tradeoff/costs.csv"}
    for name in names - measured:
        assert (there / name).read_bytes() == (here / name).read_bytes(), name


def test_detached_failed_in_part_and_collected(cluster, on_cluster, sweep, undisturbed, tmp_path):
    detached = (*sweep, "--out", tmp_path, *SLURM, "--max-parallel", 1, "--detach", "--json")
    for node in cluster.node_states():
        cluster.set_node(node, "drain")  # or on a slow machine the last task starts before it is held
    report = json.loads(on_cluster(*detached).result().stdout)
    assert (report["jobs"], report["done"], report["sent_now"], report["sent_earlier"]) == (3, 0, 3, 0)
    lost, task = list(tasks(tmp_path).items())[-1]
    cluster.call("scontrol", "hold", task)
    for node in cluster.node_states():
        cluster.set_node(node, "resume")
    again = on_cluster(*detached).result()
    assert again.code == 0
    assert json.loads(again.stdout)["sent_now"] == 0
    cluster.call("scancel", task)
    cluster.wait_until(
        lambda: len(list(tmp_path.glob("trials/*/trial.json"))) == 2 and not cluster.queue(), 120
    )
    again = on_cluster(*detached).result()
    report = json.loads(again.stdout)
    assert (report["done"], report["sent_now"], report["sent_earlier"]) == (2, 1, 0)
    facts = Path(lost).name, "again", f"task {task}"
    assert any(names(line, *facts) for line in again.stderr.splitlines())
    outcome = on_cluster(*sweep, "--out", tmp_path, *SLURM).result()
    assert outcome.code == 0, outcome.stderr
    assert tables(tmp_path) == tables(undisturbed)
    cluster.wait_until(lambda: not cluster.queue(), 120)  # a task ends after the file that the run waits for
    third = on_cluster(*sweep, "--out", tmp_path, *SLURM, "--detach").result()  # nothing is left to send
    assert str(tmp_path / "sweep.csv") in third.stdout
    assert not cluster.queue()


@pytest.fixture(scope="module")
def long(short_sweep) -> tuple[object, ...]:
    """One trial of some seconds."""
    return short_sweep(epochs=12, batch_size=4, learning_rates=0.001)


@pytest.fixture(scope="module")
def long_undisturbed(program, long, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("long-undisturbed")
    assert program(*long, "--out", folder, "--workers", 1).code == 0
    return folder


@pytest.mark.slow
def test_a_preempted_training_resumes(cluster, on_cluster, long, long_undisturbed, tmp_path):
    out = tmp_path / "there"
    command = on_cluster(*long, "--out", out, *SLURM)
    notes: list[tuple[str, int]] = []

    def look(*states: str) -> bool:
        for path in out.glob("slurm/notes/*.json"):
            note = json.loads(path.read_text())
            notes.append((note["state"], note["step"]))
        return bool(notes) and notes[-1][0] in states and notes[-1][1] > 0

    cluster.wait_until(lambda: look("running"), 120)
    cluster.call("sbatch", "--partition=urgent", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 1")
    cluster.wait_until(lambda: look("stopped"), 60)
    stopped_at = notes[-1][1]
    notes.clear()
    cluster.wait_until(lambda: look("done", "running") and notes[-1][1] != stopped_at, 120)
    assert min(step for state, step in notes if step) >= stopped_at
    outcome = command.result()
    assert outcome.code == 0, outcome.stderr
    assert tables(out) == tables(long_undisturbed)


def test_an_ablation_in_shards(cluster, on_cluster, program, trained, tmp_path):
    checkpoint = shutil.copytree(trained, tmp_path / "checkpoint")
    here = ("ablate", trained, "--out", tmp_path / "here", "--threads", 1)
    assert program(*here, before=SMALL_PARTS).code == 0
    command = ("ablate", checkpoint.name, "--out", "there", *SLURM, "--max-parallel", 2, "--threads", 1)

    def start(*more: object):
        return program.start(
            *command, *more, before=SMALL_PARTS + HASTY, folder=tmp_path, **cluster.environment
        )

    report = json.loads(start("--detach", "--json").result().stdout)
    assert (report["jobs"], report["sent_now"]) == (2, 2)
    lost = tasks(tmp_path / "there")["shards/shard-001"]
    cluster.call("scancel", lost)
    outcome = start("--json").result()
    if outcome.code == 2:  # it was still on its way out of the queue
        assert any(names(line, "1 of 2", "shard-001") for line in outcome.stderr.splitlines())
        outcome = start("--json").result()
    assert outcome.code == 0, outcome.stderr
    for name in ("spans.csv", "layers.csv", "removable.csv", "predictions.npz"):
        assert (tmp_path / "there" / name).read_bytes() == (tmp_path / "here" / name).read_bytes(), name
    assert not (tmp_path / "there" / "shards").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sbatch", "partition=gpu"], ["--sbatch", "--slurm"]),
        (["--detach"], ["--detach", "--slurm"]),
        (["--slurm", "--sbatch", "time=soon"], ["time", "'soon'", "1:30:00"]),
    ],
)
def test_bad_options(options, words, program, sweep, tmp_path):
    assert names(program(*sweep, "--out", tmp_path / "s", *options).refusal, *words)
    assert not (tmp_path / "s").exists()


@pytest.mark.slow
def test_a_dry_run_for_a_cluster(program, sweep, tmp_path):
    lab = ("--slurm", "--sbatch", "partition=long", "--sbatch", "account=lab", "--max-parallel", 2)
    outcome = program(*sweep, "--out", tmp_path / "s", *lab, "--dry-run", "--json")
    assert outcome.code == 0, outcome.stderr
    plan = json.loads(outcome.stdout)
    assert (len(plan["trials"]), plan["done"], plan["left"], plan["workers"]) == (3, 0, 3, 2)
    assert plan["seconds_left"] > 0
    assert not (tmp_path / "s").exists()
