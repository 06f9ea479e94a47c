"""A suite: what its studies would be one by one; strict reading of its file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from refusals import names, naming
from safetensors.torch import load_file

import adapter_probe as ap
from adapter_probe.cli.main import app
from adapter_probe.errors import ResultsError, TrainingError
from adapter_probe.jobs.local import LocalProcesses
from adapter_probe.studies.suite_file import SuiteTask, read_suite

pytestmark = pytest.mark.usefixtures("in_this_process")

DOCUMENTED = Path(__file__).parents[2] / "docs" / "studies"
FILE = """
base = "{base}"

[[tasks]]
task = "{task}"
name = "first"

[[tasks]]
task = "{task}"
name = "second"
max_train = 40

[tradeoff]
sizes = [2]
top_k = []
layernorm = false
seeds = 2
epochs = [1]
learning_rates = [1e-2]
rates = {{ full = [1e-3, 1e-2] }}

[init-sweep]
tasks = ["second"]
stds = [1e-2]
size = 2
seeds = 1
epochs = [1]

[ablation]
tasks = ["first"]
size = 2
seeds = 2
"""


@pytest.fixture(scope="module")
def file(tiny_base, short_task, tmp_path_factory):
    path = tmp_path_factory.mktemp("suite") / "tasks.toml"
    path.write_text(FILE.format(base=tiny_base("bert"), task=short_task))
    return path


@pytest.mark.slow
def test_a_suite_is_its_studies(file, tiny_base, short_task, tmp_path, monkeypatch):
    study = ap.suite(file, tmp_path / "out", progress=False)
    assert study.tradeoff.table.groupby("task")["label"].apply(set).to_dict() == {
        name: {"adapters 2", "full fine-tuning"} for name in ("first", "second")
    }
    alone = ap.tradeoff(
        tiny_base("bert"), short_task, tmp_path / "alone", sizes=(2,), top_k=(), layernorm=False, full=False,
        seeds=1, epochs=(1,), learning_rates=(1e-2,), progress=False,
    )  # fmt: skip
    same = study.tradeoff.trials.query("task == 'first' and method == 'adapters' and seed == 0")
    assert set(same["trial"]) == set(alone.trials["trial"])
    for _, tried in study.tradeoff.trials.query("method == 'full'").groupby("task"):
        first, later = (tried[tried["seed"] == seed].set_index("learning_rate")["score"] for seed in (0, 1))
        assert set(first.index) == set(later.index) == {1e-3, 1e-2}
    assert study.init_sweep.table["task"].unique().tolist() == ["second"]
    assert {task: len(seeds) for task, seeds in study.ablations.items()} == {"first": 2}
    checkpoint = tmp_path / "out/checkpoints/first/seed-1"
    training = json.loads((checkpoint / "adapter_probe.json").read_text())["training"]
    assert (training["learning_rate"], training["epochs"], training["seed"]) == (1e-2, 1, 1)  # as was chosen
    own = ap.ablate(checkpoint, out=tmp_path / "ablation", progress=False)
    pd.testing.assert_frame_equal(own.spans, study.ablations["first"][1].spans)

    counted = study.parameters.set_index("task")
    in_file = sum(t.numel() for t in load_file(checkpoint / "delta.safetensors").values())
    base = sum(t.numel() for t in load_file(tiny_base("bert") / "model.safetensors").values())
    assert counted.loc["first", "in_file"] == in_file
    assert counted.loc["all tasks", "multiple_of_base"] == pytest.approx((base + in_file) / base)

    def never(self, jobs, on_step):
        raise AssertionError(jobs)

    monkeypatch.setattr(LocalProcesses, "run", never)  # all is done
    again = ap.suite(file, tmp_path / "out", progress=False)
    pd.testing.assert_frame_equal(again.tradeoff.table, study.tradeoff.table)
    plan = ap.suite.plan(file, tmp_path / "out")
    assert (plan.tradeoff.left, plan.tradeoff.seconds_left) == (0, 0)

    # A checkpoint that is there and was trained otherwise is not taken for what the file asks for.
    other = tmp_path / "other.toml"
    other.write_text(file.read_text().replace("size = 2\nseeds = 2", "size = 2\nbatch_size = 16\nseeds = 2"))
    with pytest.raises(ResultsError, match=naming("seed-0", "settings.batch_size", "32", "16")):
        ap.suite(other, tmp_path / "out", progress=False)


def test_an_ablation_may_be_of_a_method_of_peft(file, tmp_path):
    from adapter_probe.studies.suite import _read

    own = tmp_path / "own.toml"
    own.write_text(file.read_text().replace("size = 2\nseeds = 2", 'method = "lora:r=2"\nseeds = 2'))
    requests = _read(own)[1]["checkpoints"]
    assert [(one.method.text, one.settings.seed) for one in requests] == [("lora:r=2", 0), ("lora:r=2", 1)]


@pytest.mark.slow
def test_checkpoints_of_peft_are_trained_as_the_trade_off_chose_and_ablated(file, tmp_path):
    text = file.read_text().replace("size = 2\nseeds = 2", 'method = "lora:r=2"\nseeds = 1')
    text = text.replace("sizes = [2]", "sizes = []\nlora_ranks = [2]\nfull = false")
    text = text.replace("rates = { full = [1e-3, 1e-2] }", "rates = { lora = [1e-5, 1e-2] }")
    (tmp_path / "own.toml").write_text(text[: text.index("[init-sweep]")] + text[text.index("[ablation]") :])
    study = ap.suite(tmp_path / "own.toml", tmp_path / "out", progress=False)
    folder = tmp_path / "out/checkpoints/first/seed-0"
    training = json.loads((folder / "adapter_probe.json").read_text())["training"]
    (chosen,) = study.tradeoff.table.query("task == 'first'")["learning_rate"]
    assert training["learning_rate"] == chosen
    own = ap.ablate(folder, out=tmp_path / "ablation", progress=False)
    pd.testing.assert_frame_equal(own.spans, study.ablations["first"][0].spans)
    in_file = sum(t.numel() for t in load_file(folder / "adapter_model.safetensors").values())
    assert study.parameters.set_index("task").loc["first", "in_file"] == in_file


@pytest.mark.slow
def test_the_documented_file_by_the_command(tiny_base, short_task, tmp_path, capsys):
    (tmp_path / "base").symlink_to(tiny_base("bert"))
    (tmp_path / "task").symlink_to(short_task)
    file = Path(shutil.copy(DOCUMENTED / "tiny.toml", tmp_path))
    app(["suite", str(file), "--out", str(tmp_path / "out"), "--json"], standalone_mode=False)
    said = json.loads(capsys.readouterr().out)
    assert {"tradeoff", "init_sweep", "ablations", "parameters", "files"} == said.keys()
    assert {point["task"] for point in said["tradeoff"]} == {"my task"}
    names = {"/".join(Path(path).parts[-2:]) for path in said["files"]}
    wanted = {"tradeoff/tradeoff-tasks.pdf", "tradeoff/table-tasks.tex", "init-sweep/init-sweep.svg"}
    assert wanted | {"seed-0/heatmap.png", "seed-1/heatmap.pdf"} <= names
    assert any(name.startswith("mean/") for name in names)


def test_the_papers_file_is_one():
    about = read_suite(DOCUMENTED / "paper.toml")
    assert len(about.tasks) == 9
    assert about.tradeoff.seeds == 3
    assert (about.ablation.seeds, about.ablation.size) == (1, 64)


@pytest.mark.slow
def test_what_is_to_do_is_told(file, tmp_path, capsys):
    app(["suite", str(file), "--out", str(tmp_path / "out"), "--dry-run", "--json"], standalone_mode=False)
    plan = json.loads(capsys.readouterr().out)
    assert len(plan["tradeoff"]["trials"]) == 2 * (2 + 4)  # adapters, full
    assert len(plan["init-sweep"]["trials"]) == 1
    assert len(plan["checkpoints"]) == 2
    app(["suite", str(file), "--out", str(tmp_path / "out"), "--dry-run"], standalone_mode=False)
    assert capsys.readouterr().out.count("checkpoints") == 3  # the heading, and the folder of each seed
    sweeps = file.read_text().split("[ablation]")[0]
    (file.parent / "sweeps.toml").write_text(sweeps)
    app(
        ["suite", str(file.parent / "sweeps.toml"), "--out", str(tmp_path / "out"), "--dry-run"],
        standalone_mode=False,
    )
    told = capsys.readouterr().out
    assert "checkpoints" not in told
    assert told.count("trials  ") == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("sizes = [2]\n", "sizes = []\nfull = false\n", "tradeoff"),
        ("stds = [1e-2]", "stds = []", "init_sweep"),
    ],
)
def test_a_sweep_of_nothing_is_refused(file, tmp_path, old, new, part):
    text = file.read_text().replace("[init-sweep]", "[init_sweep]")
    (tmp_path / "own.toml").write_text(text.replace(old, new))
    with pytest.raises(TrainingError, match=naming("own.toml", f"[{part}]")):
        ap.suite(tmp_path / "own.toml", tmp_path / "out", progress=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("max_train = 40", "max-train = 40", ("bad.toml", "'tasks[1].max-train'", "max_train")),
        ("full = [", "everything = [", ("bad.toml", "tradeoff.rates", "'everything'", "adapters, full")),
        (
            "size = 2\nseeds = 2",
            'size = 2\nseeds = "2"',
            ("bad.toml", "ablation.seeds", '"2"', "whole number"),
        ),
        ("sizes = [2]", "sizes = 2", ("bad.toml", "tradeoff.sizes", "2", "list")),
        ("[init-sweep]", "[initsweep]", ("bad.toml", "'initsweep'", "init_sweep")),
        ('task = "', 'tusk = "', ("bad.toml", "'tasks[0].tusk'", "task, data")),
        ('base = "', 'bases = "', ("bad.toml", "'bases'", "base, tasks")),
        ("[ablation]", "[ablation", ("bad.toml", "TOML", "line 29")),
        ('tasks = ["first"]', 'tasks = ["third"]', ("ablation.tasks", "'third'", "first, second")),
        ('name = "second"', 'name = "first"', ("tasks[1]", "two", "'first'")),
        ('name = "second"', r'name = "a\u0000b"', ("tasks[1]", "name", r"'a\x00b'", "1 to 255 bytes")),
        ('name = "second"', 'name = "../second"', ("tasks[1]", "name", "'../second'", "folder")),
        ("size = 2\nseeds = 2", "seeds = 0", ("bad.toml", "ablation.seeds", "0", "1 to 100,000")),
        (
            "size = 2\nseeds = 2",
            "seeds = 1000000000",
            ("bad.toml", "ablation.seeds", "1000000000", "1 to 100,000"),
        ),
        ("size = 2\nseeds = 2", 'layers = "0-30"', ("bad.toml", "[ablation]", "0-30", "0-2")),
        ("size = 2\nseeds = 2", 'spans = "9..9"', ("bad.toml", "[ablation]", "9..9", "0-2")),
        ("size = 2\nseeds = 2", "max_examples = 0", ("bad.toml", "ablation.max_examples", "at least 1", "0")),
        ("size = 2\nseeds = 2", "warmup = 2.0", ("bad.toml", "ablation.warmup", "2.0", "0 to 1")),
        ("size = 2\nseeds = 2", 'spans = "x"', ("bad.toml", "ablation.spans", "'x'", "single", "1..4")),
        (
            "max_train = 40",
            "max_train = 40\nvalidation_share = 1.5",
            ("tasks[1]", "validation_share", "between 0 and 1", "1.5"),
        ),
        ("seeds = 2\nepochs", "seeds = 1000000000\nepochs", ("1,000,000,000 trials", "100,000", "--seeds")),
        (
            "size = 2\nseeds = 2",
            'seeds = 2\ndtype = "float16"',
            ("bad.toml", "ablation.dtype", '"float16"', "float32, bfloat16"),
        ),
    ],
)
def test_a_bad_key_is_named_in_one_line(file, tmp_path, old, new, words):
    bad = tmp_path / "bad.toml"
    text = file.read_text()
    assert old in text
    bad.write_text(text.replace(old, new))
    with pytest.raises(ap.AdapterProbeError) as caught:
        ap.suite(bad, tmp_path / "out", progress=False)
    assert names(str(caught.value).replace(str(bad), "bad.toml"), *words), caught.value
    assert not (tmp_path / "out").exists()


def test_paths_are_looked_for_beside_the_file(short_task, tmp_path):
    (tmp_path / "rows").symlink_to(short_task)
    path = tmp_path / "tasks.toml"
    path.write_text('base = "b"\n[[tasks]]\ntask = "rows"\n[tradeoff]\n')
    found = read_suite(path).found(path.parent)
    assert list(found) == ["rows"]


def test_methods_and_strengths_are_looked_for_beside_the_file(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "adapter_config.json").write_text("{}")
    (tmp_path / "s.json").write_text("[1, 0.5]")
    path = tmp_path / "tasks.toml"
    parts = '[tradeoff]\nmethod = ["mine", "ia3"]\n[ablation]\nmethod = "mine"\nstrength = "s.json"\n'
    path.write_text(f'base = "b"\n[[tasks]]\ntask = "t"\n{parts}')
    about, mine = read_suite(path), str(tmp_path / "mine")
    assert tuple(about.tradeoff.method) == (mine, "ia3")
    assert about.ablation.method == mine
    assert about.ablation.strength == "1,0.5"


@pytest.mark.parametrize("key", ["learning_rate", "epochs"])
def test_zero_is_refused_and_not_the_default(key, tmp_path):
    path = tmp_path / "tasks.toml"
    zero = "0.0" if key == "learning_rate" else "0"
    path.write_text(f'base = "b"\n[[tasks]]\ntask = "t"\n[ablation]\n{key} = {zero}\n')
    with pytest.raises(ap.AdapterProbeError, match=naming(key.replace("_", "-"), "0")):
        read_suite(path).ablation.training(SuiteTask(task="t"), 0)


@pytest.mark.parametrize("data", ["", 'data = "cola"\n'])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_known_task_beside_the_file_is_the_same_from_every_folder(data, elsewhere, tmp_path, monkeypatch):
    rows = "".join(f'{{"sentence": "It rains {n}.", "label": {n % 2}}}\n' for n in range(4))
    (tmp_path / "study" / "cola").mkdir(parents=True)
    for split in ("train", "validation"):
        (tmp_path / "study" / "cola" / f"{split}.jsonl").write_text(rows)
    (tmp_path / "study" / "s.toml").write_text(f'base = "b"\n[[tasks]]\ntask = "cola"\n{data}[tradeoff]\n')
    monkeypatch.chdir(tmp_path if elsewhere else tmp_path / "study")
    file = Path("study/s.toml" if elsewhere else "s.toml")
    ((_, spec),) = read_suite(file).found(file.parent).values()
    assert (spec.preset, spec.label_names) == ("cola", ("unacceptable", "acceptable"))
