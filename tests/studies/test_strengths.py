"""Studies of strengths against loops with PEFT's own `set_scale`, and what is said and drawn of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from exact import Float64, to_float64
from mask_loop import layers_of
from peft_folders import KV, TOKENIZER, reference, saved
from refusals import names, naming, refuses, says, value_of

import adapter_probe as ap
from adapter_probe.analysis.summary_text import ablation_rows
from adapter_probe.errors import AdapterProbeError

STRENGTHS = (-1.0, 0.0, 0.5, 1.0, 2.0)
WORDS = ["ab", "cd ab", "a longer one", "x", "ba ba", "one two three", "ab ab ab", "c"]
TEXTS = [f"{text} {n}" for n, text in enumerate(WORDS * 2)]
ROWS = [{"text": text, "label": n % 2} for n, text in enumerate(TEXTS)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("bert"), "bert", KV, "SEQ_CLS", ["query", "value"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"), "llama", KV, "CAUSAL_LM", ["v_proj", "down_proj"])


def study_of(checkpoint: Path, out: Path, strengths: tuple[float, ...] = STRENGTHS) -> ap.Strengths:
    return ap.strength(
        checkpoint, data=[{"text": text} for text in TEXTS], metric="nll", strengths=strengths,
        spans="single", precision="float64", out=out, progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def study(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ap.Strengths:
    return study_of(checkpoint, tmp_path_factory.mktemp("study"))


def losses(checkpoint: Path, strength: float, layers: range) -> np.ndarray:
    """Float64 ``[2, texts]``: summed losses by PEFT's own model with these layers scaled, and tokens."""
    model, rows = to_float64(reference(checkpoint, "CAUSAL_LM")), []
    found = layers_of(model)
    for module in (module for number in layers for module in found[number]):
        module.set_scale("default", strength)
    with torch.no_grad(), Float64():
        for text in TEXTS:
            ids = torch.tensor([[TOKENIZER.bos_token_id, *TOKENIZER.encode(text)]])
            said = model(ids[:, :-1]).logits[0].log_softmax(-1).gather(1, ids[0, 1:, None])
            rows.append((-float(said.sum()), ids.shape[1] - 1))
    return np.array(rows).T


def test_scores_and_the_best_strength_are_those_of_a_loop(study, checkpoint):
    def score(found: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> float:
        return float(np.divide(*found[:, chosen]).mean())  # a text's loss per token, over texts

    table = study.table
    assert [*table["strength"].unique()] == sorted(STRENGTHS)
    found = {s: losses(checkpoint, s, range(3)) for s in STRENGTHS}
    rows = table[table["whole"]].set_index("strength")
    for s, own in found.items():
        assert rows.loc[s, "score"] == pytest.approx(score(own), abs=1e-6)
        change = -100 * (score(own) - score(found[1.0]))
        assert rows.loc[s, "delta_points"] == pytest.approx(change, abs=1e-4)
    assert rows["delta_points"].abs().max() > 0.5
    assert rows.loc[1.0, ["delta_points", "ci_low_points", "ci_high_points"]].tolist() == [0, 0, 0]
    single = table[~table["whole"]].set_index(["strength", "first"])
    one = losses(checkpoint, 2.0, range(1, 2))
    assert single.loc[(2.0, 1), "score"] == pytest.approx(score(one), abs=1e-6)
    assert len(single) == 3 * len(STRENGTHS)
    first = np.zeros(len(TEXTS), dtype=bool)
    first[np.random.default_rng(0).permutation(len(TEXTS))[: len(TEXTS) // 2]] = True
    best = min(STRENGTHS, key=lambda s: score(found[s], first))
    said = study.summary
    assert (said.best, said.chosen_on, said.n_judged) == (best, "half", len(TEXTS) // 2)
    gain = -100 * (score(found[best], ~first) - score(found[1.0], ~first))
    assert said.delta_points == pytest.approx(gain, abs=1e-4)
    assert said.interval_points[0] <= gain <= said.interval_points[1]
    assert value_of(study.rows(), "too strong") == said.verdict.replace("−", "-")


@pytest.mark.slow
def test_it_is_read_back_resumed_and_drawn(study, checkpoint, tmp_path):
    again = ap.load(study.folder)
    assert again.summary == study.summary
    np.testing.assert_array_equal(again.table.to_numpy(float), study.table.to_numpy(float))
    parts = {path: path.stat().st_mtime_ns for path in study.folder.glob("strength-*/parts/*")}
    assert len(parts) == len(STRENGTHS) - 1
    paths = study.save(tmp_path, formats="svg")
    assert {path.name for path in paths} == {"strength.svg", "strength.csv", "strength.txt"}
    assert says((tmp_path / "strength.txt").read_text(), "thin lines", "3 spans")
    more = study_of(checkpoint, study.folder, (*STRENGTHS, 3.0))
    assert {path: path.stat().st_mtime_ns for path in parts} == parts
    assert 3.0 in more.table["strength"].tolist()
    with pytest.raises(AdapterProbeError, match=naming(str(study.folder), "another study")):
        ap.strength(checkpoint, data=TEXTS, metric="kl", out=study.folder, progress=False)


@pytest.mark.slow
def test_the_plan_counts_every_strength(classifier, tmp_path):
    plan = ap.strength.plan(
        classifier, data=ROWS, strengths=(0.5, 2.0), out=tmp_path / "study", progress=False
    )
    assert not (tmp_path / "study").exists()
    assert (plan.n_strengths, plan.parts_done, plan.parts, plan.n_examples) == (2, 0, 2, len(ROWS))
    assert "2 strengths" in repr(plan)


@pytest.mark.slow
def test_another_ability_at_the_same_strengths(classifier, tmp_path):
    asked = {"strengths": (0.5, 2.0), "progress": False}
    both = {**asked, "data": ROWS, "against": ROWS[:10], "out": tmp_path / "both"}
    found = ap.strength(classifier, **both)
    alone = ap.strength(classifier, data=ROWS[:10], out=tmp_path / "alone", **asked)
    pd.testing.assert_frame_equal(found.against.table, alone.table)
    assert f"accuracy on {found.against.summary.data}" in dict(found.rows())["strength 2"]
    again = ap.strength(classifier, **both)
    assert (again.summary, again.against.summary) == (found.summary, found.against.summary)
    done = ap.strength.plan(classifier, **both)
    assert done.parts_done == done.parts == 2


def test_the_folder_of_another_study_is_refused_before_anything_is_computed(classifier, tmp_path):
    asked = {"out": tmp_path / "study", "progress": False, "spans": "whole"}
    first = ap.strength(classifier, data=ROWS, strengths=(0.5,), **asked)
    with pytest.raises(AdapterProbeError, match=naming(str(first.folder), "another study", "data")):
        ap.strength(classifier, data=ROWS[:8], strengths=(0.25,), **asked)
    assert not (first.folder / "strength-0.25").exists()
    more = ap.strength(classifier, data=ROWS, strengths=(0.25, 0.5), **asked)
    assert {0.25, 0.5} <= set(more.table["strength"])


@pytest.mark.slow
def test_an_ablation_by_degrees_says_so(classifier, tmp_path):
    found = ap.ablate(
        classifier, data=ROWS, strength=0.5, spans="prefix", out=tmp_path / "half", progress=False
    )
    said = [name for name, _ in ablation_rows(found.summary)]
    assert any(names(name, "all", "0.5") for name in said)
    assert not any("off" in name for name in said)
    assert found.summary.strength == 0.5
    assert found.identity["settings"]["strength"] == 0.5
    (curve,) = (path for path in found.save(tmp_path / "drawn", formats="svg") if path.name == "curve.txt")
    assert says(curve.read_text(), "layer on the axis", "scaled by 0.5")
    assert "switched off" not in (tmp_path / "drawn" / "table-removable.md").read_text()
    off = ap.ablate(classifier, data=ROWS, spans="prefix", out=tmp_path / "off", progress=False)
    refuses(AdapterProbeError, ("0.5",), ap.compare, off, found)


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"strengths": ()}, ("strengths must", "at least one", "1", "[]")),
        ({"strengths": (float("nan"), 0.5)}, ("strengths must", "finite number", "float32", "nan")),
        ({"strengths": (1e39,)}, ("strengths must", "finite number", "float32", "1e+39")),
    ],
)
def test_bad_strengths(settings, facts, classifier):
    refuses(AdapterProbeError, facts, ap.strength, classifier, data=ROWS, **settings)
