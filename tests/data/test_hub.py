"""The hub through a stand-in for the `datasets` library: what is asked of it, what becomes of its rows."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import RepositoryNotFoundError
from hypothesis import given
from hypothesis import strategies as st
from refusals import names, refused
from row_files import answer, squad

from adapter_probe.data import hub
from adapter_probe.data.hub import HubSplit, newest_commit, read_hub
from adapter_probe.data.tasks import TaskSpec, find_task, load_split, load_with_question

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FLOAT32_3_8 = 3.799999952316284  # the nearest to 3.8


class Table:
    """The part of `datasets.Dataset` that is used: columns that can be gone through, and their features."""

    def __init__(self, names=None, **columns):
        self.column_names = list(columns)
        self.features = {name: SimpleNamespace(dtype="string") for name in columns}
        if names is not None:
            self.features["label"] = SimpleNamespace(dtype="int64", names=names)
        self._columns = columns

    def __getitem__(self, name):
        return self._columns[name]


class Library:
    """A stand-in for `datasets` that holds splits, and keeps account of how it is called."""

    def __init__(self, **splits):
        self.config = SimpleNamespace(HF_HUB_OFFLINE=False)
        self.splits, self.calls, self.offline = splits, [], []

    def load_dataset(self, path, name=None, *, split, revision):
        self.calls.append((path, name, split, revision))
        self.offline.append(self.config.HF_HUB_OFFLINE)
        if split not in self.splits:
            raise ValueError(f'Unknown split "{split}".\nShould be one of {list(self.splits)}.')
        return self.splits[split]


@pytest.fixture(autouse=True)
def ask_anew():
    hub._ask_hub.cache_clear()
    yield
    hub._ask_hub.cache_clear()


@pytest.fixture
def library(monkeypatch):
    """Install a stand-in with these splits."""

    def install(**splits):
        stand_in = Library(**splits)
        monkeypatch.setitem(sys.modules, "datasets", stand_in)
        return stand_in

    return install


@pytest.fixture
def hub_answers(monkeypatch):
    """What the hub itself says: a commit, or an exception."""

    def install(answer):
        asked = []

        def dataset_info(self, dataset, *, timeout):
            asked.append((dataset, timeout))
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(sha=answer)

        monkeypatch.setattr(HfApi, "dataset_info", dataset_info)
        return asked

    return install


def rte():
    return Table(
        names=["entailment", "not_entailment"],
        sentence1=["Uno.", "Tres."],
        sentence2=["Dos.", "Cuatro."],
        label=[1, 0],
        idx=[0, 1],
    )


STSB = Table(sentence1=["a", "b"], sentence2=["c", "d"], label=[FLOAT32_3_8, 5.0])
STSB.features["label"] = SimpleNamespace(dtype="float32")
NLI = Table(
    ["entailment", "neutral", "contradiction"], premise=["a", "b"], hypothesis=["c", "d"], label=[2, 0]
)
NLI_FILE = "premise,hypothesis,label\na,c,2\nb,d,0\n"
CAT = "The cat sat."
SQUAD = Table(
    id=["q1", "q2"], title=["T", "T"], context=[CAT, CAT], question=["Who?", "What?"],
    answers=[{"text": ["The cat", "cat"], "answer_start": [0, 4]}, {"text": ["sat"], "answer_start": [8]}],
)  # fmt: skip
ASKED = (CAT, {"Who?": [answer("The cat", 0), answer("cat", 4)], "What?": [answer("sat", 8)]})
# By its name, where a task is on the hub, its split to validate on, its rows, and the same rows in a file.
ON_HUB = {
    "rte": ("nyu-mll/glue", "rte", "validation", rte(), "train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\tUno.\tDos.\tnot_entailment\n"
            "1\tTres.\tCuatro.\tentailment\n"),
    "mnli": ("nyu-mll/glue", "mnli", "validation_matched", NLI, "train.csv", NLI_FILE),
    "mnli-mm": ("nyu-mll/glue", "mnli", "validation_mismatched", NLI, "train.csv", NLI_FILE),
    # Scores read as the set's own files write them.
    "stsb": ("nyu-mll/glue", "stsb", "validation", STSB, "train.csv",
             "sentence1,sentence2,label\na,c,3.800\nb,d,5.000\n"),
    "squad": ("rajpurkar/squad", "plain_text", "validation", SQUAD, *squad(ASKED).popitem()),
}  # fmt: skip


@pytest.mark.parametrize("name", ON_HUB)
def test_a_named_task_without_files_comes_from_the_hub(library, hub_answers, folder, name):
    place, config, validation, table, file, content = ON_HUB[name]
    stand_in, asked = library(train=table, **{validation: table}), hub_answers(COMMIT)
    task = find_task(preset=name)
    assert task.files == {
        own: (f"hub:{place}:{config}:{split}@{COMMIT}",)
        for own, split in (("train", "train"), ("validation", validation))
    }
    assert stand_in.calls == [(place, config, split, COMMIT) for split in ("train", validation)]
    assert (asked, stand_in.offline) == ([(place, 10.0)], [False, False])
    train = load_split(task, "train", expect_fingerprint=True)
    local = find_task(folder({file: content}), preset=name)
    assert local.fingerprints["train"] == task.fingerprints["train"] == train.fingerprint
    assert load_split(local, "train").labels.tolist() == train.labels.tolist()
    remembered = TaskSpec.from_json(json.loads(json.dumps(task.to_json())))
    assert remembered == task
    assert load_split(remembered, "validation", expect_fingerprint=True).fingerprint == train.fingerprint


def test_any_dataset_of_the_hub_by_its_entry(library, hub_answers):
    table = Table(names=["World", "Sports"], text=["a", "b", "c"], label=[1, 0, 1])
    stand_in = library(train=table, test=table)
    hub_answers(COMMIT)
    task = find_task(train="hub:fancyzhx/ag_news:train", validation=["hub:fancyzhx/ag_news:test"])
    assert stand_in.calls[0] == ("fancyzhx/ag_news", None, "train", None)
    assert (task.name, task.label_names) == ("ag_news", ("Sports", "World"))
    assert load_split(task, "train").labels.tolist() == [0, 1, 0]


def test_columns_of_the_hub_are_named_or_refused_as_those_of_files(library, hub_answers):
    hub_answers(COMMIT)
    texts = {"sentence": ["a", "b", "c"], "label": [0, 1, 1]}
    library(validation=Table(**texts, idx=[5, 6, 7]), test=Table(**texts, gold_label=[1, 1, 0]))
    task = find_task(validation="hub:me/mine:validation")
    assert load_with_question(task, "validation")[1].unread == ("idx",)
    assert names(refused(find_task, validation="hub:me/mine:test"), "label", "gold_label", "--columns")


def test_hidden_labels_stay_hidden(library, hub_answers):
    library(test=Table(names=["no", "yes"], text=["a", "b"], label=[-1, -1]))
    hub_answers(COMMIT)
    rows = read_hub(HubSplit("x", None, "test"))
    assert rows.column("label") == [-1, -1]
    assert rows.places[1] == "hub:x:test row 2"


def test_without_the_library_one_line_says_how_to_get_it(monkeypatch, hub_answers):
    monkeypatch.setitem(sys.modules, "datasets", None)  # importing it now fails
    asked = hub_answers(COMMIT)
    facts = "datasets", "'adapter-probe[hub]'", "'.[hub]'", "folder"
    assert names(refused(find_task, preset="glue/rte"), "nyu-mll/glue", *facts)
    assert names(refused(find_task, train="hub:x/y:train"), "hub:x/y:train", *facts)
    assert asked == []


def test_without_a_network_the_kept_copy_is_read_without_trying_again(library, hub_answers):
    stand_in, asked = library(train=rte(), validation=rte()), hub_answers(OSError("no route to host"))
    task = find_task(preset="rte")
    load_split(task, "train", expect_fingerprint=True)
    assert task.files["train"] == ("hub:nyu-mll/glue:rte:train",)  # which commit it is, nobody can say
    assert stand_in.offline == [True, True, True]
    assert stand_in.config.HF_HUB_OFFLINE is False
    assert len(asked) == 1


UNREACHABLE = OSError("no route to host\nand more")
UNKNOWN = RepositoryNotFoundError("404", response=SimpleNamespace(headers={}, request=None, status_code=404))
AT = f"hub:x/y:z:train@{COMMIT}"


@pytest.mark.parametrize(
    ("answer", "splits", "facts", "offline"),
    [
        (UNREACHABLE, {}, "no route to host; cached; folder", True),
        (COMMIT, {"test": rte()}, 'Unknown split "train".', False),  # the library's first line
        (UNKNOWN, {}, 'Unknown split "train".', False),  # which the library itself says
        (COMMIT, {"train": Table(text=[], label=[])}, "no rows", False),
    ],
)
def test_what_cannot_be_read_is_one_line(library, hub_answers, answer, splits, facts, offline):
    stand_in = library(**splits)
    hub_answers(answer)
    said = refused(read_hub, HubSplit("x/y", "z", "train", COMMIT))
    assert names(said, AT, *facts.split("; "))
    assert "HF_HUB_OFFLINE" not in said
    assert (stand_in.offline, stand_in.config.HF_HUB_OFFLINE) == ([offline], False)
    assert newest_commit("x/y") == (answer if answer == COMMIT else None)


def test_offline_by_wish_the_hub_is_not_asked(library, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    library()
    # Had it been asked, the line would say that it cannot be reached.
    assert names(refused(find_task, preset="rte"), "HF_HUB_OFFLINE", "cached")


hub_names = st.text("abcXYZ019_-./", min_size=1)


@given(hub_names, st.none() | hub_names, hub_names, st.none() | hub_names)
def test_entries_read_back_as_written(dataset, config, split, revision):
    source = HubSplit(dataset, config, split, revision)
    assert HubSplit.parse(str(source)) == source


@pytest.mark.parametrize(
    "entry", ["/data/train.csv", "train.csv", "hub:", "hub:x", "hubs:x:y", "C:\\data\\x.csv", ""]
)
def test_paths_are_no_entries(entry):
    assert HubSplit.parse(entry) is None
