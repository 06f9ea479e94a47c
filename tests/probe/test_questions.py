"""Question answering ablated, against plain runs of the transformers model and every pair of tokens."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

from adapter_probe.analysis.score_changes import row_scores
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.probe.runners import ModelRunner
from adapter_probe.results.ablation_files import load_ablation, save_predictions
from adapter_probe.training.checkpoint import train_checkpoint
from adapter_probe.training.request import TrainingRequest
from adapter_probe.training.settings import TrainingSettings

CPU = torch.device("cpu")
WORDS = ("fine", "cat", "dog", "bird", "house", "tree", "old", "big", "saw", "met", "and", "cold", "warm")


@pytest.fixture(scope="module")
def squad(tmp_path_factory) -> Path:
    """Contexts of up to 60 words, longer than a window; the answer to "the X" is the word after X."""
    folder, generator = tmp_path_factory.mktemp("squad"), random.Random(0)
    for split, n_paragraphs in (("train", 20), ("validation", 6)):
        paragraphs = []
        for number in range(n_paragraphs):
            words = [generator.choice(WORDS) for _ in range(generator.randint(5, 60))]
            questions = []
            for q in range(2):
                place = generator.randrange(len(words) - 1)
                start = len(" ".join(words[: place + 1])) + 1
                answer = {"text": words[place + 1], "answer_start": start}
                questions.append(
                    {"id": f"{split}-{number}-{q}", "question": f"the {words[place]}", "answers": [answer]}
                )
            paragraphs.append({"context": " ".join(words), "qas": questions})
        document = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
        (folder / f"{split}.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module", params=["bert", pytest.param("roberta", marks=pytest.mark.slow)])
def checkpoint(request, tiny_base, squad, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "c"
    asked = TrainingRequest(
        str(tiny_base(request.param)),
        find_task(squad, preset="squad"),
        Adapters(size=4, init_std=0.5),
        TrainingSettings(epochs=2, learning_rate=1e-2),
    )
    described = train_checkpoint(asked, folder, CPU, lambda _: None)
    assert set(described.scores) == {"squad_f1"}
    return folder


def run(checkpoint: Path, out: Path, **options: object):
    prepared = prepare_ablation(AblationArguments(str(checkpoint), **options), CPU)
    with AblationRun(prepared, out) as ablation:
        ablation.compute(lambda _: None)
        return prepared, ablation.results()


def best_answers(model, encoded, windows, mask) -> list[tuple[int, int]]:
    """Character places of the best pair over all windows of each question, by trying every pair."""
    layers = model.base_model.encoder.layer
    places = [p for layer in layers for p in (layer.attention.output, layer.output)]
    hooks = [
        place.adapter.bottleneck.register_forward_hook(lambda _module, inputs, _output: inputs[0])
        for place, on in zip(places, mask)
        if not on
    ]
    best: dict[int, tuple[float, int, int]] = {}
    for window, ids in enumerate(encoded.input_ids):
        inputs = {"input_ids": torch.from_numpy(ids)[None]}
        if encoded.token_type_ids is not None:
            inputs["token_type_ids"] = torch.from_numpy(encoded.token_type_ids[window])[None]
        with torch.inference_mode():
            out = model(**inputs)
        starts, ends = out.start_logits[0].numpy(), out.end_logits[0].numpy()
        first, stop = windows.context[window]
        pairs = [
            (float(starts[a]) + float(ends[b]), a, b)
            for a, b in itertools.product(range(first, stop), repeat=2)
            if a <= b < a + 30
        ]
        score, a, b = max(pairs)
        question = int(windows.question[window])
        if question not in best or score > best[question][0] + 1e-6:
            offsets = windows.offsets[window]
            best[question] = (score, int(offsets[a - first, 0]), int(offsets[b - first, 1]))
    for hook in hooks:
        hook.remove()
    return [best[question][1:] for question in sorted(best)]


def test_every_answer_equals_a_plain_run(checkpoint, tmp_path):
    prepared, results = run(checkpoint, tmp_path)
    examples = prepared.examples
    assert len(examples.encoded) > len(examples) == 12  # some contexts are cut into windows
    model = open_any(checkpoint).model
    for row, mask in enumerate(results.masks):
        expected = best_answers(model, examples.encoded, examples.windows, mask)
        assert results.scored.answers[row].tolist() == [list(place) for place in expected], results.row_names[
            row
        ]


def test_scores_are_those_of_the_answers(checkpoint, tmp_path):
    prepared, results = run(checkpoint, tmp_path)
    questions = prepared.examples.rows
    for row in range(len(results.masks)):
        for number, (start, end) in enumerate(results.scored.answers[row].tolist()):
            given = questions.contexts[questions.paragraph[number]][start:end].split()
            [true] = {answer.text for answer in questions.answers[number]}
            exact = given == [true]
            overlap = int(true in given)
            f1 = 2 * overlap / (len(given) + 1)
            assert results.outputs[row, number].tolist() == pytest.approx([f1, float(exact)])
    np.testing.assert_allclose(row_scores(results), results.outputs[..., 0].mean(axis=1), rtol=1e-6)
    described = open_any(checkpoint).description
    assert row_scores(results)[0] == pytest.approx(described.scores["squad_f1"], abs=1e-6)


def test_another_metric_and_the_way_to_disk_and_back(checkpoint, tmp_path):
    _, results = run(checkpoint, tmp_path, metric="exact_match")
    np.testing.assert_allclose(row_scores(results), results.outputs[..., 1].mean(axis=1), rtol=1e-6)
    kept = tmp_path / "kept"
    kept.mkdir()
    save_predictions(kept, results)
    again = load_ablation(kept)
    assert np.array_equal(again.scored.answers, results.scored.answers)
    assert np.array_equal(again.predictions, results.predictions)
    assert again.scored_with.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]


@pytest.mark.slow
def test_parts_of_any_size_give_the_same(checkpoint, tmp_path):
    _, whole = run(checkpoint, tmp_path / "one")
    for tokens in (1, 200, 100_000):
        _, other = run(checkpoint, tmp_path / str(tokens), tokens_per_pass=tokens)
        assert np.array_equal(other.scored.answers, whole.scored.answers)


def test_a_question_whose_logits_are_not_finite_has_no_score(checkpoint, tmp_path, monkeypatch):
    """One token's end logit, in one window, under one variant."""
    real = ModelRunner._read

    def spoilt(self, items, out):
        if 0 in items:
            out[2, items.tolist().index(0), 0, 1] = float("inf")
        return real(self, items, out)

    monkeypatch.setattr(ModelRunner, "_read", spoilt)
    _, results = run(checkpoint, tmp_path)
    assert results.nonfinite.tolist() == [0, 0, 1] + [0] * (len(results.masks) - 3)
    assert np.isnan(row_scores(results)).tolist() == (results.nonfinite > 0).tolist()
    assert results.scored.answers[2, 0].tolist() == [-1, -1]
