"""What the files say of a task, what overrides it, and the labelled rows that come of it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import names, refused
from row_files import jsonl

from adapter_probe.data.tasks import Columns, TaskSpec, find_task, load_split

HEADER = "text,label\n"
BINARY = f"{HEADER}a,0\nb,1\n"
COLA_GOOD = "gj04\t1\t\tThey sang.\n"
COLA = f"{COLA_GOOD}ks08\t0\t*\tThem sang.\ngj04\t1\t\tShe sang.\n"


def labelled(*labels):
    return jsonl(*({"text": f"text {i}", "label": label} for i, label in enumerate(labels)))


def test_a_classification_folder(folder):
    here = folder(train_jsonl=labelled("no", "yes", "no"), dev_jsonl=labelled("yes", "no"))
    task = find_task(here)
    assert (task.name, task.kind, task.metric) == (here.name, "classification", "accuracy")
    assert task.label_names == ("no", "yes")
    assert task.columns == Columns("text", None, "label")
    assert task.files == {"train": (f"{here}/train.jsonl",), "validation": (f"{here}/dev.jsonl",)}
    train = load_split(task, "train", expect_fingerprint=True)
    assert (train.name, len(train), train.texts_b) == ("train", 3, None)
    assert train.texts == ("text 0", "text 1", "text 2")
    assert train.labels.dtype == np.int64
    assert train.labels.tolist() == [0, 1, 0]
    assert train.fingerprint == task.fingerprints["train"] != task.fingerprints["validation"]


def test_a_regression_folder(folder):
    rows = [("a", "b", 2.5), ("c", "d", 5), ("e", "f", 0.0)]
    task = find_task(
        folder(train_csv="sentence1,sentence2,score\n" + "".join(f"{a},{b},{y}\n" for a, b, y in rows))
    )
    assert (task.kind, task.metric, task.label_names) == ("regression", "spearman", ())
    train = load_split(task, "train")
    assert train.texts_b == ("b", "d", "f")
    assert train.labels.dtype == np.float64
    assert train.labels.tolist() == [2.5, 5.0, 0.0]


def test_raw_cola(folder):
    here = folder(in_domain_train_tsv=COLA, in_domain_dev_tsv=COLA, out_of_domain_dev_tsv=COLA_GOOD)
    task = find_task(here)
    assert task.label_names == ("unacceptable", "acceptable")
    assert task.columns == Columns("3", None, "1")
    validation = load_split(task, "validation")
    assert validation.texts == ("They sang.", "Them sang.", "She sang.", "They sang.")
    assert validation.labels.tolist() == [1, 0, 1, 1]


def test_colas_codes_mean_the_same_in_another_format(folder, tmp_path_factory):
    task = find_task(folder(train_tsv=COLA))
    other = tmp_path_factory.mktemp("other") / "train.jsonl"
    rows = zip(("They sang.", "Them sang.", "She sang."), (1, 0, 1))
    other.write_text(jsonl(*({"sentence": text, "label": label} for text, label in rows)))
    moved = replace(task, files={"train": (str(other),)}, columns=Columns("sentence", None, "label"))
    assert load_split(moved, "train", expect_fingerprint=True).labels.tolist() == [1, 0, 1]


def test_another_column_of_raw_cola_is_no_acceptability(folder):
    task = find_task(folder(train_tsv=COLA), reads=("text=3", "label=0"))
    assert task.label_names == ("gj04", "ks08")


def test_explicit_files_are_read_in_the_given_order(folder):
    here = folder(
        b_jsonl=labelled("x", "y"), a_csv="text,label\nfrom a,y\n", c_tsv="text\tlabel\nc\tx\nd\ty\n"
    )
    task = find_task(train=[here / "b.jsonl", here / "a.csv"], validation=str(here / "c.tsv"), name="mine")
    assert task.name == "mine"
    assert load_split(task, "train").texts == ("text 0", "text 1", "from a")
    assert load_split(task, "train").labels.tolist() == [0, 1, 1]


def test_named_files_replace_those_of_the_folder(folder):
    here = folder(
        train_csv="text,label\na,1\nb,0\n", train_big_csv="text,label\nc,1\nd,0\n", dev_jsonl=labelled(1, 0)
    )
    said = refused(find_task, here)
    assert names(said, "train.csv", "train_big.csv", "split")
    task = find_task(here, train=here / "train_big.csv")
    assert load_split(task, "train").texts == ("c", "d")
    assert list(task.files) == ["train", "validation"]


def test_relative_paths_become_absolute_and_links_keep_their_names(folder, monkeypatch):
    here = folder(blob_jsonl=labelled(0, 1))
    (here / "5f3a").write_bytes((here / "blob.jsonl").read_bytes())
    (here / "train.jsonl").symlink_to(here / "5f3a")
    monkeypatch.chdir(here)
    assert find_task(train="train.jsonl").files == {"train": (f"{here}/train.jsonl",)}


SCORED = "premise,hypothesis,label,score,note"


@pytest.mark.parametrize(
    ("header", "reads", "expected"),
    [
        ("sentence,label", (), ("sentence", None, "label")),
        ("id,Text,Labels", (), ("Text", None, "Labels")),
        ("premise,hypothesis,label", (), ("premise", "hypothesis", "label")),
        ("index,question,sentence,label", (), ("question", "sentence", "label")),
        ("id,qid1,qid2,question1,question2,is_duplicate", (), ("question1", "question2", "is_duplicate")),
        ("gold_label,sentence1_parse,sentence1,sentence2", (), ("sentence1", "sentence2", "gold_label")),
        ("text_a,text_b,stars", (), ("text_a", "text_b", "stars")),
        ("review,sentiment", (), ("review", None, "sentiment")),
        ("passage,label,question", (), ("question", "passage", "label")),
        ("text_pair,label,text", (), ("text", "text_pair", "label")),
        # Named columns are read in place of those with usual names.
        (SCORED, ("premise", "hypothesis", "score"), ("premise", "hypothesis", "score")),
        (SCORED, ("text=hypothesis", "label"), ("text", None, "label")),
        (SCORED, ("text_a=note", "text_b=premise", "label"), ("text_a", "text_b", "label")),
    ],
)
def test_usual_and_named_columns(folder, header, reads, expected):
    rows = [",".join(f"{name} {i}" for name in header.split(",")) for i in (0, 1)]
    task = find_task(folder(train_csv="\n".join([header, *rows])), reads=reads)
    train, old = load_split(task, "train"), dict(one.partition("=")[::2] for one in reads)
    assert task.columns == Columns(*expected)
    for column, values in zip(expected, (train.texts, train.texts_b, task.label_names)):
        own = old.get(column) or column
        assert values == (None if column is None else (f"{own} 0", f"{own} 1"))


def test_numbers_name_the_columns_of_a_file_without_header(folder):
    task = find_task(folder(train_csv="pos,Good.\nneg,Bad.\n"), reads=("text=1", "label=0"))
    assert load_split(task, "train").texts == ("Good.", "Bad.")
    assert task.label_names == ("neg", "pos")


@pytest.mark.parametrize(
    ("labels", "kind", "names"),
    [
        ([2, 10, 1], "classification", ("1", "2", "10")),
        (["2", "10", "1"], "classification", ("1", "2", "10")),
        (["2", "10", "b"], "classification", ("10", "2", "b")),
        ([1.0, 0.0], "classification", ("0", "1")),
        ([10**400, 0], "classification", ("0", str(10**400))),
        (["1.0", 0], "classification", ("0", "1")),
        ([True, False], "classification", ("false", "true")),
        ([-1, 0, 1], "classification", ("-1", "0", "1")),
        (["+", "-"], "classification", ("+", "-")),
        ([" yes ", "no"], "classification", ("no", "yes")),
        (["acceptable", "unacceptable"], "classification", ("unacceptable", "acceptable")),  # CoLA's order
        (["nan", "inf"], "classification", ("inf", "nan")),
        ([0, 1, 0.5], "regression", ()),
        (["0", "1e-3"], "regression", ()),
        (
            [f"class {i % 30}" for i in range(60)],
            "classification",
            tuple(sorted(f"class {i}" for i in range(30))),
        ),
    ],
)
def test_kind_and_label_names(folder, labels, kind, names):
    task = find_task(folder(train_jsonl=labelled(*labels)))
    assert (task.kind, task.label_names) == (kind, names)


def test_classes_of_equal_numbers_have_one_order(folder):
    labels = ["+1", "1", "01", "1.5e0", "001"]
    assert find_task(folder(train_jsonl=labelled(*labels)), kind="classification").label_names == (
        "+1", "001", "01", "1", "1.5e0",
    )  # fmt: skip


@pytest.mark.parametrize("labels", [[str(i) for i in range(21)], [f"title {i}" for i in range(31)]])
def test_many_different_labels_need_a_word_on_their_kind(folder, labels):
    here = folder(train_jsonl=labelled(*labels))
    message = refused(find_task, here)
    counts = f"{len(labels)} different labels", f"{len(labels)} rows"
    assert names(message, f"{here}/train.jsonl", *counts, "--kind classification", "--kind regression")
    assert len(find_task(here, kind="classification").label_names) == len(labels)


def test_kind_and_metric_can_be_said(folder):
    here = folder(train_jsonl=labelled(1, 2, 5))
    task = find_task(here, kind="regression", metric="pearson")
    assert (task.kind, task.metric) == ("regression", "pearson")
    assert load_split(task, "train").labels.tolist() == [1.0, 2.0, 5.0]
    assert find_task(here, metric="mcc").metric == "mcc"


def test_classes_come_from_the_train_split_or_else_from_validation(folder):
    here = folder(train_jsonl=labelled("a", "b", "c"), dev_jsonl=labelled("c", "a"))
    assert find_task(here).label_names == ("a", "b", "c")
    assert find_task(validation=here / "dev.jsonl").label_names == ("a", "c")


@pytest.mark.parametrize(
    ("train", "test"),
    [
        (BINARY, "index,text\n0,a\n"),
        (BINARY, "text,label\na,-1\nb,-1\n"),
        (BINARY, "text,label\na,\n"),
        (BINARY, "text,label\na,-\n"),
        (COLA, "index\tsentence\n0\tThey sang.\n"),  # GLUE's test file beside raw CoLA
    ],
)
def test_a_folders_test_split_without_labels_is_left_out(folder, train, test):
    suffix = "tsv" if train == COLA else "csv"
    here = folder({f"train.{suffix}": train, f"test.{suffix}": test})
    task = find_task(here)
    assert list(task.files) == list(task.fingerprints) == ["train"]
    assert names(refused(load_split, task, "test"), repr(here.name), "split 'test'", "train")
    assert f"test.{suffix}" in refused(find_task, here, test=here / f"test.{suffix}")


def test_a_test_split_may_hold_one_class(folder):
    here = folder(train_jsonl=labelled(0, 1), test_jsonl=labelled(1, 1))
    assert load_split(find_task(here), "test").labels.tolist() == [1, 1]


pairs = st.lists(st.tuples(st.text("ab", max_size=2), st.text("ab", max_size=2)), min_size=2, max_size=3)


@given(one=pairs, other=pairs)
def test_fingerprints_differ_where_rows_differ(one, other, tmp_path_factory):
    folder, prints = tmp_path_factory.mktemp("prints"), []
    for texts in (one, other):
        rows = ({"text": a, "text_b": b, "label": i % 2} for i, (a, b) in enumerate(texts))
        (folder / "train.jsonl").write_text(jsonl(*rows))
        prints.append(find_task(folder).fingerprints["train"])
    assert (prints[0] == prints[1]) == (one == other)


def test_changed_rows_are_noticed(folder):
    here = folder(train_jsonl=labelled(0, 1, 1))
    task = find_task(here)
    folder(train_jsonl=labelled(0, 1, 0))
    load_split(task, "train")
    said = refused(load_split, task, "train", expect_fingerprint=True)
    before = f"fingerprint {task.fingerprints['train'][:8]} ->"
    assert names(said, f"{here}/train.jsonl", repr(here.name), before)


def test_max_examples_takes_a_nested_sample_in_file_order(folder):
    labels = [i // 50 for i in range(100)]  # sorted by class, as files may be
    task = find_task(folder(train_jsonl=labelled(*labels)))
    whole = load_split(task, "train")
    samples = {
        n: load_split(task, "train", max_examples=n, expect_fingerprint=True) for n in (1, 20, 60, 100, 500)
    }
    chosen = {n: [whole.texts.index(text) for text in sample.texts] for n, sample in samples.items()}
    for n, rows in chosen.items():
        assert rows == sorted(set(rows))
        assert len(rows) == min(n, 100)
        assert samples[n].labels.tolist() == [labels[i] for i in rows]
    assert set(chosen[1]) < set(chosen[20]) < set(chosen[60])
    assert 4 <= samples[20].labels.sum() <= 16
    assert samples[20].fingerprint != whole.fingerprint == samples[500].fingerprint
    assert load_split(task, "train", max_examples=20).fingerprint == samples[20].fingerprint
    assert names(refused(load_split, task, "train", max_examples=0), "examples", "1", "0")


def both(row):
    """The same four rows to train and to validate on."""
    return dict.fromkeys(("train_jsonl", "validation_jsonl"), jsonl(*[row] * 4))


COLA_OF_ONE = {"train_tsv": COLA, "in_domain_dev_tsv": COLA_GOOD, "out_of_domain_dev_tsv": COLA_GOOD}
OF_NO_NUMBER = "finite number; regression; --kind; --columns"


@pytest.mark.parametrize(
    ("files", "options", "facts"),
    [
        ("title,label\na,1\n", {}, "train.csv; 'title', 'label'; --columns text=title,label"),
        ("text,note\na,1\n", {}, "train.csv; 'text', 'note'; --columns text,label=COLUMN; label=0"),
        (f"{HEADER}a,1\n", {"reads": ("text", "label=y")}, "train.csv; 'y'; label; 'text', 'label'"),
        (f"{HEADER}a,1\n", {"reads": ("label=text",)}, "train.csv; text column; 'label'; --columns"),
        ("chosen,rejected\na,b\n", {}, "train.csv; preferences; reward model"),
        ("input_ids,label\n5,1\n", {}, "train.csv; input_ids; batches="),
        ("text,Label\na,1\nb,0\n", {"reads": ("text=0", "label=1")}, "train.csv line 1; 'Label'; header"),
        ("a,1\nb,0\n", {"reads": ("text=2", "label=1")}, "train.csv; '2'; text"),
        (f"{HEADER}a,1\nb,\n", {}, "train.csv line 3; label; empty"),
        (f"{HEADER}a,1\nb,1\n", {}, "train.csv; every; '1'; two"),
        (f"{HEADER}a,0.5\nb,0.5\n", {}, "train.csv; every; '0.5'; two"),
        (f"{HEADER}a,1\nb,-1\nc,0\nd,2\n", {}, "train.csv line 3; '-1'; '0', '1', '2'"),
        (f"{HEADER}a,x\nb,-\nc,y\n", {}, "train.csv line 3; label '-'; 'x', 'y'"),
        (f"{HEADER}a,-1\nb,-1\n", {}, "train.csv line 2; label '-1'"),
        (f"{HEADER}a,0.5\nb,high\n", {}, f"train.csv line 3; 'high'; {OF_NO_NUMBER}"),
        (f"{HEADER}a,0.5\nb,inf\n", {}, f"train.csv line 3; 'inf'; {OF_NO_NUMBER}"),
        (BINARY, {"metric": "auc"}, "'auc'; classification; accuracy, mcc, f1, macro_f1"),
        (BINARY, {"metric": "f1_macro"}, "'f1_macro'; classification; 'macro_f1'; accuracy, mcc, f1"),
        (f"{BINARY}c,2\n", {"metric": "f1"}, "'f1'; 3 labels; accuracy, mcc"),
        (BINARY, {"metric": ""}, "--metric is empty"),
        (BINARY, {"kind": "sorting"}, "'sorting'; classification, regression"),
        (BINARY, {"validation_share": 1.5}, "--validation-share; 0; 1; 1.5"),
        (f"{BINARY}c,0\nd,1\n", {"validation_share": 0.01}, "0.01; 4 rows; validate"),
        (f"{BINARY}c,0\nd,1\n", {"validation_share": 0.99}, "0.99; 4 rows; train"),
        (
            {"train_csv": BINARY, "dev_csv": BINARY}, {"validation_share": 0.5},
            "validation share; train, validation",
        ),
        (both({"prompt": "a", "chosen": "b", "rejected": "c"}), {}, "train.jsonl; DPOTrainer; ablate"),
        (both({"query": "a", "positive": "b"}), {}, "train.jsonl; sentence-transformers; ablate"),
        (
            both({"anchor": "a", "positive": "b", "negative": "c"}), {},
            "train.jsonl; sentence-transformers; ablate",
        ),
        *(
            (
                {"train_jsonl": labelled(0, 1) + f'{{"text": "c", "label": {label}}}\n'}, {},
                f"train.jsonl line 3; label; {shown}; string; finite number",
            )
            for label, shown in (("null", "None"), ("[1, 2]", "[1, 2]"), ("NaN", "nan"), ("Infinity", "inf"))
        ),
        (COLA_OF_ONE, {}, "in_domain_dev.tsv,; out_of_domain_dev.tsv; validation; '1'; two"),
    ],
)  # fmt: skip
def test_refused_files(folder, files, options, facts):
    files = files if isinstance(files, dict) else {"train_csv": files}
    assert names(refused(find_task, folder(**files), **options), *facts.split("; "))


def test_columns_by_number_are_offered_only_where_a_file_may_have_no_header(folder):
    for file, by_number in (
        ({"train_csv": "text,note\na,1\n"}, True),
        ({"train_tsv": "text\tnote\na\t1\n"}, True),
        ({"train_jsonl": '{"text": "a", "note": 1}\n'}, False),
        ({"train_json": '[{"text": "a", "note": 1}]'}, False),
    ):
        here = folder(**file)
        said = refused(find_task, here)
        next(here.iterdir()).unlink()
        assert names(said, "--columns text,label=COLUMN")
        assert ("text=1,label=0 of a file without a header" in said) == by_number, file


@pytest.mark.parametrize(("label", "is_hidden"), [("maybe", False), (-1, True), (2, False)])
def test_unknown_labels_name_file_row_and_the_allowed(folder, label, is_hidden):
    here = folder(train_jsonl=labelled("no", "yes"), dev_jsonl=labelled("no", "yes"))
    (here / "more.jsonl").write_text("\n" + labelled("no", label))
    message = refused(find_task, here, validation=[here / "dev.jsonl", here / "more.jsonl"])
    assert names(message, f"{here}/more.jsonl line 3", repr(str(label)), "'no', 'yes'")
    assert ("hidden" in message) == is_hidden


def test_no_data_at_all(tmp_path):
    assert names(refused(find_task), "no data", "folder", "train", "validation")
    assert refused(find_task, train=[]) == refused(find_task)
    path = tmp_path / "train.csv"
    assert names(refused(find_task, train=path), str(path), os.strerror(errno.ENOENT))


def test_files_that_went_away(folder):
    here = folder(train_jsonl=labelled(0, 1))
    task = find_task(here)
    (here / "train.jsonl").unlink()
    assert names(refused(load_split, task, "train"), str(here / "train.jsonl"), os.strerror(errno.ENOENT))


RECORD = {
    "name": "t",
    "kind": "classification",
    "metric": "accuracy",
    "label_names": ["no", "yes"],
    "columns": {"text": "text", "text_b": None, "label": "label"},
    "files": {"train": ["/t/train.csv"]},
    "fingerprints": {"train": "5f3a"},
}


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"name": None}, "name; null; string"),
        ({"name": "a\0b"}, "name; 'a\\x00b'; 1 to 255 bytes"),
        ({"name": "a\ud800b"}, "name; 'a\\ud800b'; 1 to 255 bytes"),
        ({"name": "é" * 128}, "name; …; 1 to 255 bytes"),
        ({"files": {"train": []}}, "files; {'train': ()}; one"),
        ({"kind": "sorting"}, 'kind; "sorting"; classification, regression'),
        ({"metric": "pearson"}, "'pearson'; classification; accuracy, mcc"),
        ({"label_names": "no"}, 'label_names; "no"; list'),
        ({"label_names": ["no", 1]}, "label_names[1]; 1; string"),
        ({"label_names": ["no", "no"]}, "label_names; ['no', 'no']; two; different"),
        ({"label_names": ["no"]}, "label_names; ['no']; two; different"),
        ({"kind": "regression", "metric": "pearson"}, "label_names; none; regression"),
        ({"columns": []}, "columns; []; object"),
        ({"columns": {"text": "a"}}, "'columns.text_b'; missing"),
        ({"columns": {**RECORD["columns"], "text_b": 3}}, "columns.text_b; 3; string"),
        ({"files": {"train": "a.csv"}}, 'files.train; "a.csv"; list'),
        ({"files": {}}, "files; []; train, validation, test"),
        ({"files": {"eval": ["a.csv"]}}, "files; ['eval']; train, validation, test"),
        ({"fingerprints": {}}, "fingerprints; []; files"),
        ({"fingerprints": {"train": 3}}, "fingerprints.train; 3; string"),
        ({"preset": 3}, "preset; 3; string"),
        ({"preset": "rte2"}, "preset; 'rte2'; cola, sst2; rte, squad"),
        ({"kind": "extractive", "metric": "squad_f1"}, "label_names; none; question answering"),
    ],
)
def test_edited_records_are_refused(change, facts):
    TaskSpec.from_json(RECORD, "c.json")
    found = refused(TaskSpec.from_json, RECORD | change, "c.json")
    assert names(found, "c.json", *facts.split("; "))
    assert names(refused(TaskSpec.from_json, [], "c.json"), "c.json", "[]", "object")


def test_records_from_before_there_were_presets_are_read():
    assert TaskSpec.from_json(RECORD).preset is None
    assert TaskSpec.from_json(RECORD | {"preset": "rte"}).preset == "rte"


def test_tasks_need_neither_torch_nor_transformers():
    code = "import sys, adapter_probe.data.tasks, adapter_probe.data.encoding; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "adapter_probe.data.encoding" in loaded
    assert not {"torch", "transformers", "pandas", "scipy"} & set(loaded)


TWEETS = ("text", None, "label")
PAIRS = ("sentence1", "sentence2", "label")
REAL = {
    # folder: classes (none of numbers), columns, rows a split; as the sets' sources state them
    "cola": ("unacceptable acceptable", ("3", None, "1"), (8551, 1043)),
    "mnli": ("contradiction entailment neutral", ("premise", "hypothesis", "label"), (8999, 9815)),
    "sst2": ("0 1", ("sentence", None, "label"), (67349, 872)),
    "mrpc": ("0 1", PAIRS, (4076, 1725)),
    "stsb": ("", PAIRS, (5749, 1500)),
    "crowdflower_airline": ("negative neutral positive", TWEETS, (11712, 1464, 1464)),
    "crowdflower_corporate_messaging": ("Action Dialogue Exclude Information", TWEETS, (2496, 311, 311)),
    "crowdflower_disasters": ("Not_Relevant Relevant", TWEETS, (8688, 1086, 1086)),
    "crowdflower_global_warming": ("No Yes", TWEETS, (3381, 422, 422)),
}


def real_folder(shared_dir: Path, name: str) -> Path:
    folder = shared_dir / "data" / name
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}")
    return folder


@pytest.mark.real_data
@pytest.mark.parametrize("name", REAL)
def test_real_folders(shared_dir, name):
    classes, columns, sizes = REAL[name]
    kind = "classification" if classes else "regression"
    label_names = tuple(one.replace("_", " ") for one in classes.split())
    task = find_task(real_folder(shared_dir, name))
    assert (task.name, task.kind, task.label_names) == (name, kind, label_names)
    assert task.columns == Columns(*columns)
    loaded = {split: load_split(task, split, expect_fingerprint=True) for split in task.files}
    assert [(split, len(rows)) for split, rows in loaded.items()] == list(
        zip(("train", "validation", "test"), sizes)
    )
    assert task.metric == ("spearman" if kind == "regression" else "accuracy")
    assert all((rows.texts_b is None) == (columns[1] is None) for rows in loaded.values())


@pytest.mark.real_data
def test_real_cola_rows(shared_dir):
    validation = load_split(find_task(real_folder(shared_dir, "cola")), "validation")
    assert int(validation.labels.sum()) == 719  # GLUE's validation majority, 68.9 %
    assert validation.texts[0] == "The sailors rode the breeze clear of the rocks."
    assert validation.texts[527] == "Somebody just left - guess who."


@pytest.mark.real_data
def test_real_scores_lie_between_0_and_5(shared_dir):
    labels = load_split(find_task(real_folder(shared_dir, "stsb")), "validation").labels
    assert (labels.min(), labels.max()) == (0.0, 5.0)


def test_a_share_of_the_training_rows_to_validate_on(folder):
    here = folder(train_jsonl=labelled(*(["no", "yes"] * 20)), test_jsonl=labelled("no", "yes"))
    task = find_task(here, validation_share=0.25)
    train, validation = load_split(task, "train"), load_split(task, "validation")
    assert (len(train), len(validation), len(load_split(task, "test"))) == (30, 10, 2)
    assert sorted(train.texts + validation.texts) == sorted(f"text {i}" for i in range(40))
    again = TaskSpec.from_json(json.loads(json.dumps(task.to_json())))
    assert again == task
    assert load_split(again, "validation", expect_fingerprint=True).texts == validation.texts


def test_a_share_over_several_files(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text(labelled(*(["no", "yes"] * 10)).replace("text ", f"{name} "))
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    task = find_task(train=files, validation_share=0.5)
    whole = load_split(find_task(train=files), "train")
    parts = load_split(task, "train").texts + load_split(task, "validation").texts
    assert sorted(parts) == sorted(whole.texts)
    assert len(load_split(task, "validation")) == 20


def test_an_encoding_is_remembered(tmp_path):
    (tmp_path / "train.csv").write_bytes(f"{HEADER}café,0\nthé,1\n".encode("latin-1"))
    task = find_task(tmp_path, encoding="latin-1")
    assert task.to_json()["encoding"] == "latin-1"
    assert load_split(TaskSpec.from_json(task.to_json()), "train").texts == ("café", "thé")
    assert "encoding" not in replace(task, encoding="utf-8").to_json()


def test_two_data_sets_in_one_folder_have_two_names(tmp_path):
    for name in ("trec-train.csv", "MR_train.csv", "train.csv", "reviews.csv"):
        (tmp_path / name).write_text(BINARY)
    names = {path.name: find_task(train=path).name for path in tmp_path.iterdir()}
    assert names == {
        "trec-train.csv": "trec", "MR_train.csv": "MR", "train.csv": tmp_path.name, "reviews.csv": "reviews",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("first", "second"),
    [("question", "context"), ("context", "question"), ("sentence", "sentence2"), ("Text", "Answer")],
)
def test_half_of_a_pair_is_not_read_as_the_whole_text(folder, first, second):
    rows = [{first: f"a {n}", second: f"b {n}", "label": n % 2} for n in range(4)]
    here = folder(train_jsonl=jsonl(*rows))
    single = second if first == "context" else first
    other = first if first == "context" else second
    said = refused(find_task, here)
    assert names(said, repr(single), repr(other), "pair")
    both = find_task(here, reads=(f"text_a={first}", f"text_b={second}", "label"))
    assert load_split(both, "train").texts_b[0] == rows[0][second]
    assert load_split(find_task(here, reads=(f"text={single}", "label")), "train").texts[0] == rows[0][single]
    empty = [{**row, other: None} for row in rows]
    assert find_task(folder(train_jsonl=jsonl(*empty))).columns == Columns(single, None, "label")


def test_a_class_may_be_called_as_columns_of_labels_are(folder):
    found = find_task(folder(train_csv="text,label\na,sentiment\nb,topic\nc,topic\n"))
    assert found.label_names == ("sentiment", "topic")
