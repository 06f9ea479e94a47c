"""Words with tags and lists of labels: how they are read, counted and scored."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from refusals import naming

import adapter_probe as ap
from adapter_probe.analysis.resampling import draw_weights
from adapter_probe.analysis.weighted_scores import weighted_scorer
from adapter_probe.data.labels import label_sets
from adapter_probe.data.rows import Rows
from adapter_probe.data.tagged import Words, assemble_tagged, count_tags, refuse_unscorable
from adapter_probe.data.task_spec import Columns, TaskSpec
from adapter_probe.metrics import score

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LABELS = ("kind", "long", "old")
SPEC = TaskSpec("ner", "tokens", "entity_f1", TAGS, Columns("tokens", None, "tags"), {}, {})
ROW = {"tokens": ["a", "dog"], "tags": ["O", "B-PER"]}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"tags": ["O", "B-DOG"]}, ("row 1", "'B-DOG'", "'O', 'B-PER', 'I-PER', 'B-LOC', 'I-LOC'")),
        ({"tags": ["O"]}, ("row 1", "2 tokens", "1 tags")),
        ({"tags": "O O"}, ("row 1", "2 tokens", "'O O'")),
        ({"tags": ["O", 5]}, ("row 1", "tag 5", "'O', 'B-PER'")),
        ({"tags": ["O", None]}, ("row 1", "tag None", "'O', 'B-PER'")),
        ({"tokens": []}, ("row 1", "tokens", "list", "[]")),
        ({"tokens": "a dog"}, ("row 1", "tokens", "list", "'a dog'")),
    ],
)
def test_tags_that_do_not_fit_are_one_line(row, words):
    rows = Rows("rows", ("tokens", "tags"), [ROW | row], ["row 1"])
    with pytest.raises(ap.DataError, match=naming(*words)):
        assemble_tagged(SPEC, "validation", rows)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([["old", "kind"], []], [[1, 0, 1], [0, 0, 0]]),
        ([[2, 0], [1]], [[1, 0, 1], [0, 1, 0]]),
        ([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]], [[1, 0, 1], [0, 1, 0]]),
        ([[True, False, True], [False, False, False]], [[1, 0, 1], [0, 0, 0]]),
        ([[1, 0, 1], [0, 1, 0]], [[1, 0, 1], [0, 1, 0]]),
        ([["1", "0", "1"], ["0", "0", "0"]], [[1, 0, 1], [0, 0, 0]]),
    ],
)
def test_lists_of_labels(values, expected):
    rows = Rows("rows", ("labels",), [{"labels": value} for value in values], ["row 1", "row 2"])
    assert label_sets(rows, "labels", LABELS).tolist() == expected


@pytest.mark.parametrize(
    ("values", "names", "words"),
    [
        ([["old"], ["new"]], LABELS, ("row 2", "'new'", "'kind', 'long', 'old'")),
        ([["old"], "kind"], LABELS, ("row 2", "labels", "list", "'kind'")),
        ([[0, 3], [1]], LABELS, ("row 1", "label 3", "'kind', 'long', 'old'")),
        ([[["old"]], [1]], LABELS, ("row 1", "['old']", "'kind', 'long', 'old'")),
        ([[0, 1], [1, 0]], LABELS[:2], ("labels [0, 1]", "0 and 1", "0.0 and 1.0", "names")),
        ([["old"], ["a"]], ("0", "1"), ("row 1", "'old'", "'0', '1'", "--label-names")),
    ],
)
def test_labels_that_do_not_fit_are_one_line(values, names, words):
    rows = Rows("rows", ("labels",), [{"labels": value} for value in values], ["row 1", "row 2"])
    with pytest.raises(ap.DataError, match=naming(*words)):
        label_sets(rows, "labels", names)


def test_entity_f1_needs_entities_and_seqeval(monkeypatch):
    with pytest.raises(ap.DataError, match=naming("entity_f1", "'NN'")):
        refuse_unscorable("entity_f1", ("NN", "VB"))
    monkeypatch.setitem(sys.modules, "seqeval", None)
    monkeypatch.setitem(sys.modules, "seqeval.metrics", None)
    with pytest.raises(ap.DataError, match=naming("seqeval", "'tags'", "--metric tag_accuracy")):
        refuse_unscorable("entity_f1", TAGS)
    refuse_unscorable("tag_accuracy", TAGS)


@pytest.mark.slow
def test_the_program_finds_seqeval_which_needs_a_library_that_it_hides():
    """It hides scikit-learn from libraries that import it for nothing."""
    pytest.importorskip("seqeval")
    script = (
        "from adapter_probe.startup import unneeded_libraries_hidden as hidden\n"
        "with hidden():\n"
        "    from adapter_probe.data.tagged import refuse_unscorable\n"
        "    refuse_unscorable('entity_f1', ('O', 'B-PER'))\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_counts_of_random_tags_are_those_of_seqeval():
    """Also of tags that begin in the middle of an entity; a tag that is not there leaves no score."""
    seqeval = pytest.importorskip("seqeval.metrics")
    generator = np.random.default_rng(0)
    gold = [generator.integers(0, 5, generator.integers(1, 9)) for _ in range(60)]
    words = Words(tuple(np.arange(len(one)) for one in gold), tuple(gold))
    logits = np.zeros((3, 60, 8, 5))
    logits[
        np.arange(3)[:, None, None],
        np.arange(60)[:, None],
        np.arange(8),
        generator.integers(0, 5, (3, 60, 8)),
    ] = 1
    logits[2, 7, 0, 1] = np.nan
    tags = words.predicted(np.arange(60), logits)
    counted, labels = count_tags("entity_f1", words, TAGS, tags)
    scores = score("entity_f1", counted.reshape(3, 60, 2, 2).astype(float), labels)
    true = [[TAGS[tag] for tag in one.tolist()] for one in gold]
    for number in range(2):
        said = [[TAGS[tag] for tag in row[: len(one)].tolist()] for row, one in zip(tags[number], gold)]
        assert scores[number] == pytest.approx(seqeval.f1_score(true, said), abs=1e-12)
    assert np.isnan(scores[2])
    assert np.isnan(counted[2]).any(axis=-1).nonzero()[0].tolist() == [7]


def test_the_bootstrap_draws_sentences_and_texts_as_if_written_out():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, (9, 3))
    predictions = generator.integers(0, 2, (4, 9, 3))
    counted = np.stack([predictions * labels, predictions], axis=-1)
    for metric, given in (("micro_f1", predictions), ("macro_f1", predictions), ("entity_f1", counted)):
        ((counts, _),) = draw_weights(9, 20, 1, 20, whole=True)
        found = weighted_scorer(metric, given, labels)(counts)
        for row, drawn in zip(found, counts.astype(int)):
            examples = np.repeat(np.arange(9), drawn)
            np.testing.assert_allclose(row, score(metric, given[:, examples], labels[examples]), atol=1e-12)
