"""Every named task in every layout that its set is passed around in, and from a stand-in for the hub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from refusals import names, refused
from row_files import answer, jsonl, squad

from adapter_probe.data.presets import find_preset
from adapter_probe.data.tasks import TaskSpec, find_task, load_split, locate_task
from adapter_probe.known_tasks import KNOWN_TASKS, known_task
from adapter_probe.metrics import check_metric

YES_NO = ("entailment", "not_entailment")
CLASSES = ("entailment", "neutral", "contradiction")
# What the sets' own papers and GLUE's say: metric, classes with 0 first.
PUBLISHED = {
    "cola": ("accuracy", ("mcc",), ("unacceptable", "acceptable")),
    "sst2": ("accuracy", ("accuracy",), ("negative", "positive")),
    "mrpc": ("f1", ("f1",), ("not_equivalent", "equivalent")),
    "stsb": ("spearman", ("spearman",), ()),
    "qqp": ("f1", ("f1",), ("not_duplicate", "duplicate")),
    "mnli": ("accuracy", ("accuracy",), CLASSES),
    "mnli-mm": ("accuracy", ("accuracy",), CLASSES),
    "qnli": ("accuracy", ("accuracy",), YES_NO),
    "rte": ("accuracy", ("accuracy",), YES_NO),
    "squad": ("squad_f1", ("squad_f1", "exact_match"), ()),
}
SINGLE = ("cola", "sst2")

INFERENCE = "\tlabel\n0\tUno.\tDos.\tnot_entailment\n1\tTres.\tCuatro.\tentailment\n"
PAIR = "sentence1,sentence2,label\nUno.,Dos.,1\nTres.,Cuatro.,0\n"


NLI = "premise,hypothesis,label\nUno.,Dos.,{}\nTres.,Cuatro.,{}\n"

RAW_COLA = "gj04\t1\t\tUno.\nks08\t0\t*\tTres.\n"

# (task, files); every one holds the same two pairs (or texts), with the second class first.
LAYOUTS = [
    ("cola", {"train.tsv": RAW_COLA}),
    ("cola", {"in_domain_train.tsv": RAW_COLA}),
    ("cola", {"train.jsonl": jsonl({"sentence": "Uno.", "label": 1}, {"sentence": "Tres.", "label": 0})}),
    ("sst2", {"train.tsv": "sentence\tlabel\nUno.\t1\nTres.\t0\n"}),
    ("sst2", {"train.csv": "idx,sentence,label\n0,Uno.,positive\n1,Tres.,negative\n"}),
    ("mrpc", {"train.csv": PAIR}),
    ("stsb", {"train.csv": PAIR.replace(",1\n", ",3.8\n")}),
    ("qqp", {"train.csv": PAIR.replace("sentence", "question")}),
    ("mnli", {"train.csv": NLI.format(1, 2)}),
    ("mnli", {"train.csv": NLI.format("neutral", "contradiction")}),
    ("mnli-mm", {"train.csv": NLI.format(1, 2)}),
    ("qnli", {"train.tsv": f"index\tquestion\tsentence{INFERENCE}"}),
    ("qnli", {"train.csv": "question,sentence,label\nUno.,Dos.,1\nTres.,Cuatro.,0\n"}),
    ("rte", {"train.tsv": f"index\tsentence1\tsentence2{INFERENCE}"}),
    ("rte", {"train.csv": PAIR}),
]


@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "squad"])
def test_every_layout_gives_the_same_rows(tmp_path, name):
    prints = set()
    for number, files in enumerate(files for task, files in LAYOUTS if task == name):
        here = tmp_path / str(number)
        here.mkdir()
        for file, content in files.items():
            (here / file).write_text(content, encoding="utf-8")
        task = find_task(here, preset=name)
        metric, _, classes = PUBLISHED[name]
        assert (task.name, task.preset, task.metric, task.label_names) == (name, name, metric, classes)
        assert task.kind == ("classification" if classes else "regression")
        train = load_split(task, "train", expect_fingerprint=True)
        assert train.texts == ("Uno.", "Tres.")
        assert train.texts_b == (None if name in SINGLE else ("Dos.", "Cuatro."))
        first_last = [3.8, 0.0] if name == "stsb" else [1, 2] if name.startswith("mnli") else [1, 0]
        assert train.labels.tolist() == first_last
        assert TaskSpec.from_json(json.loads(json.dumps(task.to_json()))) == task
        prints.add(task.fingerprints["train"])
    assert len(prints) == 1


def test_presets_are_what_is_published():
    assert list(KNOWN_TASKS) == list(PUBLISHED)
    for task in KNOWN_TASKS.values():
        assert (task.metric, task.table_metrics, task.label_names) == PUBLISHED[task.name]
        for metric in (task.metric, *task.table_metrics):
            check_metric(metric, task.kind, len(task.label_names) or None)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *((name, name) for name in PUBLISHED),
        *((f"glue/{name}", name) for name in PUBLISHED if name != "squad"),
        ("CoLA", "cola"),
        ("nyu-mll/glue/cola", "cola"),
        ("SST-2", "sst2"),
        ("STS-B", "stsb"),
        ("glue/mnli_mismatched", "mnli-mm"),
        ("mnli_matched", "mnli"),
        ("MNLI-m", "mnli"),
        ("rajpurkar/squad", "squad"),
        ("glue/squad", None),
        ("rajpurkar/cola", None),
        ("./cola", None),
        ("/data/cola", None),
        ("cola/", None),
        ("wnli", None),
        ("", None),
    ],
)
def test_names(written, name):
    preset = known_task(written)
    assert (preset and preset.name) == name
    if name is None:
        assert names(refused(find_preset, written), repr(written), ", ".join(PUBLISHED))


def test_a_name_a_folder_or_both(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "rte").mkdir()
    assert locate_task("glue/cola") == ("cola", None)
    assert locate_task("CoLA", tmp_path) == ("cola", tmp_path)
    assert locate_task("mine") == (None, Path() / "mine")
    assert locate_task("rte") == ("rte", Path() / "rte")
    assert locate_task("./rte") == (None, Path() / "rte")
    assert locate_task(tmp_path / "rte") == (None, tmp_path / "rte")
    assert locate_task(None, "mine") == (None, Path() / "mine")
    assert locate_task(None) == (None, None)
    known = ", ".join(PUBLISHED)
    assert names(refused(locate_task, "nowhere"), "'nowhere'", "folder", known)
    said = refused(locate_task, "mine", tmp_path)
    assert names(said, "'mine'", known)
    assert "folder" not in said


@pytest.mark.parametrize(("name", "own"), [("mnli", "matched"), ("mnli-mm", "mismatched")])
def test_mnli_is_validated_on_its_own_genres(folder, name, own):
    other, rows = {"matched": "mismatched", "mismatched": "matched"}[own], NLI.format(0, 1)
    here = folder({f"dev_{genres}.csv": rows for genres in (own, other)} | {"train.csv": rows})
    task = find_task(here, preset=name)
    assert task.files["validation"] == (f"{here}/dev_{own}.csv",)
    (here / f"dev_{own}.csv").unlink()
    assert names(refused(find_task, here, preset=name), f"{here}/dev_{other}.csv", repr(name), other)


def test_labels_that_a_named_task_does_not_have(folder):
    here = folder({"train.csv": NLI.format("neutral", "maybe")})
    allowed = "'entailment', 'neutral', 'contradiction', '0', '1', '2'"
    assert names(refused(find_task, here, preset="mnli"), f"{here}/train.csv line 3", "'maybe'", allowed)


def test_what_is_said_overrides_a_preset(folder):
    here = folder({"train.csv": "a,b,label,y\nUno.,Dos.,1,0\nTres.,Cuatro.,0,1\n"})
    said = refused(find_task, here, preset="rte")
    expected = "sentence1, sentence2, label"
    assert names(said, f"{here}/train.csv", "rte", expected, "'a', 'b', 'label', 'y'")
    reads = ("sentence1=a", "sentence2=b", "label=y")
    task = find_task(here, reads=reads, preset="rte", metric="mcc", name="mine")
    assert (task.columns.label, task.metric, task.name) == ("label", "mcc", "mine")
    assert load_split(task, "train").labels.tolist() == [0, 1]
    said = refused(find_task, here, preset="rte", kind="regression")
    assert names(said, "'rte'", "classification", "--kind regression")
    said = refused(find_task, here, reads=reads, preset="rte", metric="pearson")
    assert names(said, "'pearson'", "classification", "accuracy, mcc")


def test_a_checkpoints_task_reads_other_files_by_the_same_conventions(folder, tmp_path_factory):
    task = find_task(folder({"train.csv": PAIR}), preset="rte")
    other = tmp_path_factory.mktemp("other") / "dev.csv"
    other.write_text(PAIR.replace(",1\n", ",not_entailment\n"))
    moved = replace(task, files={"validation": (str(other),)})
    assert load_split(moved, "validation").labels.tolist() == [1, 0]


def test_squad_by_name_and_by_its_layout(folder):
    asked = ("Uno.", {"Dos?": [answer("Uno", 0)]})
    here = folder(squad(asked, file="train-v1.1.json") | squad(asked, file="dev-v1.1.json"))
    named, guessed = find_task(here, preset="squad"), find_task(here)
    for task in (named, guessed):
        assert (task.kind, task.metric, task.label_names) == ("extractive", "squad_f1", ())
        assert load_split(task, "validation", expect_fingerprint=True).questions == ("Dos?",)
    assert (named.preset, guessed.preset) == ("squad", None)
    assert named.fingerprints == guessed.fingerprints


@pytest.mark.real_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_real_folders_by_name(shared_dir, name):
    """Their sizes are compared in test_tasks and test_questions."""
    folder = shared_dir / "data" / name
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    task = find_task(folder, preset=name)
    for split in ("train", "validation"):
        load_split(task, split, expect_fingerprint=True)
    assert (task.metric, task.label_names) == (PUBLISHED[name][0], PUBLISHED[name][2])
