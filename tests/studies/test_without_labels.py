"""Ablations without labels: KL divergence and agreement against loops with PEFT, and what is said of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from ablation_facts import changed
from exact import Float64, assert_close_in_float64, to_float64
from mask_loop import over_variants
from peft_folders import KV, TOKENIZER, reference, saved, written
from refusals import names, naming, refuses
from scipy.special import rel_entr, softmax
from torch.nn import functional as F

import adapter_probe as ap
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.comparing import average_ablations
from adapter_probe.analysis.score_changes import row_scores
from adapter_probe.analysis.summary_text import average_rows
from adapter_probe.errors import AdapterProbeError
from adapter_probe.figures import joint
from adapter_probe.figures.venues import PAPER, FigureOptions
from adapter_probe.metrics import check_metric
from adapter_probe.studies.model_card import model_card
from adapter_probe.studies.prune import prune
from adapter_probe.studies.report import report

MODELS = {"llama": ["v_proj", "down_proj"], "olmo2": ["q_proj", "down_proj"]}
"""One with bottlenecks, and one of PEFT."""
TEXTS = ["ab", "a longer text that fills more than one window of what the model reads at once", "cd ab ba"]
MOST = KV["max_position_embeddings"]
CLAIMS = re.compile(r"\b(better|worse|gains?|improves?|significant(ly)?|labelled|accuracy)\b", re.IGNORECASE)
"""Words that a comparison with the intact model allows nobody to say."""


def windows(row: dict) -> Iterator[tuple[list[int], int]]:
    """The token ids that are run together, and how many of the last ones are scored."""
    bos = [TOKENIZER.bos_token_id]
    if "completion" in row:
        before = TOKENIZER.encode(row["prompt"]) or bos
        whole = TOKENIZER.encode(row["prompt"] + row["completion"])
        yield before + whole[len(before) :], len(whole) - len(before)
        return
    ids = TOKENIZER.encode(row["text"])
    for begin in range(0, len(ids), MOST):
        own = ids[begin : begin + MOST]
        yield (bos + ids[: begin + len(own)])[-(MOST + 1) :] if begin else bos + own, len(own)


def loop(checkpoint: Path, study: ap.Ablation, rows: list[dict]) -> np.ndarray:
    """Float64 ``[variants, rows, 2]``: summed divergences and agreeing tokens, each window run alone."""
    model = to_float64(reference(checkpoint, "CAUSAL_LM"))
    pieces = [list(windows(row)) for row in rows]

    def predictions() -> list[list[torch.Tensor]]:
        with Float64():
            return [
                [model(torch.tensor([ids[:-1]])).logits[0, -n:].log_softmax(-1) for ids, n in own]
                for own in pieces
            ]

    intact, *_ = variants = over_variants(model, study, predictions)
    return np.array([
        [
            [
                sum(float(F.kl_div(b, a, log_target=True, reduction="sum")) for a, b in zip(*pair)),
                sum(int((a.argmax(-1) == b.argmax(-1)).sum()) for a, b in zip(*pair)),
            ]
            for pair in zip(intact, own)
        ]
        for own in variants
    ])  # fmt: skip


ROWS = {
    "texts": [{"text": text} for text in TEXTS],
    "completions": [{"prompt": "ab", "completion": " cd ab"}, {"prompt": "a b a", "completion": " cd"}],
}
CHOICES = [
    {"question": "ab", "choices": [" cd", " ab a", " b"], "answer": 2},
    {"question": "cd a", "choices": [" x", " yes no"], "answer": 0},
    {"question": "b", "choices": [" b", " bb", " ab cd", " x"], "answer": 1},
]
slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("llama", "texts"),
        pytest.param("llama", "completions", marks=slow),
        pytest.param("olmo2", "texts", marks=slow),
        pytest.param("olmo2", "completions", marks=slow),
    ],
)
def test_divergence_and_agreement_of_a_language_model_are_those_of_a_loop(kind, rows, tmp_path):
    checkpoint, data = saved(tmp_path, kind, KV, "CAUSAL_LM", MODELS[kind]), TEXTS
    if rows != "texts":
        data = written(tmp_path, ROWS[rows])
    study = ap.ablate(checkpoint, data=data, metric="kl", precision="float64", progress=False)
    results = study.results
    wanted = loop(checkpoint, study, ROWS[rows])
    n = np.array([sum(scored for _, scored in windows(row)) for row in ROWS[rows]])
    assert wanted[1:, :, 0].min() > 1e-4  # every variant differs in every text
    np.testing.assert_allclose(results.scored.differences[..., 0], wanted[..., 0], atol=1e-7)
    assert np.array_equal(results.scored.differences[..., 1], wanted[..., 1])
    assert 0 < wanted[1:, :, 1].sum() < n.sum() * len(wanted[1:])
    assert np.array_equal(results.scored_with, n)
    np.testing.assert_allclose(row_scores(results), wanted[..., 0].sum(axis=1) / n.sum(), atol=1e-7)
    agreement = row_scores(changed(results, metric="agreement"))
    np.testing.assert_allclose(agreement, wanted[..., 1].sum(axis=1) / n.sum(), rtol=1e-12)
    table = ablation_tables(results.of_examples(np.arange(2))).spans.set_index(["first", "last"])
    row = table.loc[tuple(results.spans[1])]
    assert np.isnan(row["ci_low_points"])  # texts are drawn, and not tokens: two bear no interval
    assert np.isnan(row["ci_high_points"])
    assert row["delta_points"] == pytest.approx(-100 * wanted[1, :2, 0].sum() / n[:2].sum())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"), "llama", KV, "CAUSAL_LM", MODELS["llama"])


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("bert"), "bert", KV, "SEQ_CLS", ["query", "value"])


@pytest.mark.slow
def test_a_classifier_is_compared_on_texts_alone(classifier, tmp_path):
    texts = ["ab", "cd ab", "a longer one", "x"]
    found = {
        metric: ap.ablate(
            classifier, data=texts, metric=metric, precision="float64", out=tmp_path / metric, progress=False
        )
        for metric in ("kl", "agreement")
    }
    logits = found["kl"].results.outputs.astype(float)  # as a test of its own compares with PEFT
    own, other = (torch.from_numpy(x).log_softmax(-1) for x in (logits[:1], logits))
    wanted = (own.exp() * (own - other)).sum(-1).numpy()
    assert wanted[1:].max() > 1e-5
    assert_close_in_float64(found["kl"].results.predictions, wanted)
    same = (logits.argmax(-1) == logits[0].argmax(-1)).astype(float)
    assert np.array_equal(found["agreement"].results.predictions, same)
    labelled = written(tmp_path, [{"text": text, "label": "never seen"} for text in texts])
    again = ap.ablate(
        classifier, data=labelled, metric="kl", precision="float64", out=tmp_path / "more", progress=False
    )
    assert np.array_equal(again.results.outputs, found["kl"].results.outputs)


def test_choices_are_compared_as_distributions(checkpoint, tmp_path):
    data, found = written(tmp_path, CHOICES), {}
    for metric in ("accuracy", "kl", "agreement"):
        study = ap.ablate(checkpoint, data=data, metric=metric, precision="float64", progress=False)
        found[metric] = study.results
    sums = found["accuracy"].outputs.astype(float)
    for number, row in enumerate(CHOICES):
        p = softmax(sums[:, number, : len(row["choices"])], axis=-1)
        np.testing.assert_allclose(found["kl"].predictions[:, number], rel_entr(p[0], p).sum(-1), atol=1e-9)
        same = p.argmax(-1) == p[0].argmax(-1)
        assert np.array_equal(found["agreement"].predictions[:, number], same)
    assert found["kl"].predictions[1:].mean(axis=1).min() > 1e-6
    scores = row_scores(found["kl"])
    np.testing.assert_allclose(scores, found["kl"].predictions.mean(axis=1), rtol=1e-12)


@pytest.mark.parametrize(
    ("metric", "precision", "said"),
    [("kl", "bfloat16", True), ("kl", "float32", False), ("agreement", "bfloat16", False)],
)
def test_small_divergences_in_bfloat16_are_remarked_on(classifier, metric, precision, said, tmp_path, capsys):
    given = {"metric": metric, "precision": precision, "spans": "whole", "out": tmp_path}
    ap.ablate(classifier, data=["ab", "cd"], **given)
    lines = capsys.readouterr().err.splitlines()
    assert any(names(line, "bfloat16", "rounding", "precision='float32'") for line in lines) == said


@slow  # every figure, the report and the card
@pytest.mark.parametrize("metric", ["kl", "agreement"])
@pytest.mark.parametrize("data", [TEXTS, CHOICES], ids=["texts", "choices"])
def test_nothing_that_is_said_calls_a_difference_better_or_worse(checkpoint, metric, data, tmp_path):
    study = ap.ablate(checkpoint, data=data, metric=metric, out=tmp_path / "study", progress=False)
    told = [repr(study), str(study.rows()), json.dumps(study.summary.to_dict())]
    assert "significant" not in study.spans
    paths = [Path(path) for path in study.save(tmp_path / "figures", formats=("svg",))]
    told += [path.read_text() for path in paths if path.suffix in (".txt", ".md", ".tex")]
    told.append(model_card(study, tmp_path / "card.md"))
    page = report(study, tmp_path / "page.html").path
    told.append(re.sub(r"<(script|style).*?</\1>", "", Path(page).read_text(), flags=re.DOTALL))
    told += _average(study)
    for text in told:
        assert not (claim := CLAIMS.search(text)), text[max(0, claim.start() - 80) : claim.end() + 80]
    name = {"kl": "KL divergence", "agreement": "disagreement"}[metric]
    assert all(name in text for text in (told[0], told[1], told[-1])), told


def _average(study: ap.Ablation) -> list[str]:
    """The words of an average with another seed, and of its figure."""
    other = changed(study.results, identity={**study.results.identity, "checkpoint": "another seed"})
    record = average_ablations([study.results, other], ["a", "b"])
    drawing = next(joint.drawings([record], FigureOptions(PAPER)))
    return [drawing.title, drawing.caption, str(average_rows(record))]


@slow
def test_pruning_may_choose_by_divergence(tmp_path):
    checkpoint = saved(tmp_path, "llama", KV, "CAUSAL_LM", MODELS["llama"])
    data = written(tmp_path, [{"text": text} for text in TEXTS * 2])
    study = ap.ablate(checkpoint, data=data, metric="kl", progress=False)
    assert study.folder.name == "ablation-data-rows-kl"
    cost = -study.spans["delta_points"].min()
    pruned = prune(checkpoint, tmp_path / "smaller", within=cost, data=data, ablation=study, progress=False)
    assert pruned.metric == "kl"
    assert pruned.score_before == 0 < pruned.score_after
    assert pruned.delta_points == pytest.approx(-100 * pruned.score_after)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"data": ["ab", "rows.jsonl"]}, ("data", "'rows.jsonl'")),
        ({"data": ["ab"], "metric": "accuracy"}, ()),
        ({"data": ["ab"], "precision": "mixed"}, ("precision='mixed'",)),
        ({"data": ["ab", ""]}, ()),
    ],
)
def test_bad_input_is_refused_in_one_line(checkpoint, arguments, said, tmp_path):
    with pytest.raises(AdapterProbeError, match=naming(*said)) as caught:
        ap.ablate(checkpoint, **{"metric": "kl", "out": tmp_path, "progress": False, **arguments})
    assert "\n" not in str(caught.value)


def test_metrics_that_need_an_intact_model_belong_to_ablations_of_classes_and_tokens(classifier, tmp_path):
    with pytest.raises(AdapterProbeError, match=naming("precision='mixed'", "metric='kl'")):
        ap.ablate(classifier, data=["ab", "cd"], metric="kl", precision="mixed", out=tmp_path, progress=False)
    rows = written(tmp_path, [{"text": "ab"}, {"words": "cd"}])
    with pytest.raises(AdapterProbeError, match=naming("'text'")):
        ap.ablate(classifier, data=rows, metric="kl", out=tmp_path / "a", progress=False)
    with pytest.raises(AdapterProbeError, match=naming("'kl'", "classification")):
        check_metric("kl", "classification")  # of a task, which is trained on labels
    refuses(AdapterProbeError, ("'kl'", "regression"), check_metric, "kl", "regression", compared=True)
