"""Models of any modality in memory: every span equal to a loop of whole forwards with PEFT's switches."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mask_loop import switched
from peft.tuners.tuners_utils import BaseTunerLayer
from refusals import naming, refuses
from tiny_families import family, ids, lora

import adapter_probe as ap
from adapter_probe.analysis.score_changes import row_scores
from adapter_probe.data.batches import _fingerprint
from adapter_probe.replay.stacks import find_layers
from adapter_probe.replay.switches import Switches

STACKS = {
    "clip": {"vision": 3, "text": 3},
    "whisper": {"encoder": 3, "decoder": 3},
    "t5 (labels)": {"encoder": 3, "decoder": 3},
    "llava (last layer)": {"vision": 3, "language": 4},
}
CASES: dict[str, tuple[str | Callable[[Any], torch.Tensor], str]] = {
    "vit": ("logits", "classification"),
    "wav2vec2": ("logits", "classification"),
    "clip": (lambda out: (out.image_embeds * out.text_embeds).sum(-1), "regression"),
    "whisper": (lambda out: out.logits[:, -1, :3], "classification"),
    "t5 (labels)": (lambda out: out.logits[:, 0, :3], "classification"),
    "llava (last layer)": (lambda out: out.logits[:, -1, :3], "classification"),
}


def batches_of(x: dict[str, Any], n: int = 4) -> list[dict[str, Any]]:
    """Batches of 3, of which the others are the first one's with noise."""
    generator = torch.Generator().manual_seed(0)
    return [
        {
            k: v + 0.3 * torch.randn(v.shape, generator=generator).to(v) if v.is_floating_point() else v
            for k, v in x.items()
        }
        for _ in range(n)
    ]


def loop(model: torch.nn.Module, batches: list[dict[str, Any]], read: Any, masks: np.ndarray) -> np.ndarray:
    """Outputs ``[variants, examples, outputs]`` by whole forwards, for masks of two columns a call."""
    whole, called = copy.deepcopy(model).eval(), []
    for layer in find_layers(whole, Switches()):
        layer.module.register_forward_hook(lambda module, _, __: called.append(module))
    with torch.no_grad():
        whole(**batches[0])
    layers = called[:]
    found = []
    for mask in masks[:, ::2]:
        for layer, on in zip(layers, mask.tolist(), strict=True):
            switched([m for m in layer.modules() if isinstance(m, BaseTunerLayer)], on)
        with torch.no_grad():
            outs = [whole(**batch) for batch in batches]
        values = torch.cat([read(out) if callable(read) else out[read] for out in outs])
        found.append(values[:, None] if values.dim() == 1 else values)
    return torch.stack(found).numpy()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "vit" else pytest.mark.slow) for name in CASES]
)
def test_every_span_equals_the_loop(name: str):
    read, kind = CASES[name]
    base, x = family(name)
    model, batches = lora(base).train(), batches_of(x)
    n = 3 * len(batches)
    labels = np.arange(n) % 3 if kind == "classification" else np.linspace(0, 1, n)
    study = ap.ablate(
        model, batches=iter(batches), labels=labels, read=read, precision="float64", progress=False
    )
    expected = loop(model, batches, read, study.results.masks)
    np.testing.assert_allclose(study.results.outputs, expected, atol=1e-6 * np.abs(expected).max())
    assert np.ptp(study.results.outputs, axis=0).max() > 1e-4
    assert study.results.kind == kind
    assert model.training
    assert dict(study.results.settings.get("stacks", [])) == STACKS.get(name, {})
    if kind == "classification":
        score = (expected.argmax(-1) == labels).mean(axis=-1)
        names = list(study.results.row_names)
        for row in study.spans.itertuples():
            span = f"{getattr(row, 'stack', '')} {row.first}-{row.last}".lstrip()
            assert row.score == pytest.approx(score[names.index(span)])


def written(name: str) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]]]:
    """A language model and batches with the tokens that it should write, some left out."""
    base, x = family(name)
    generator, batches = torch.Generator().manual_seed(0), []
    for batch in batches_of({k: v for k, v in x.items() if not k.startswith(("decoder", "labels"))}, 2):
        shape = batch["input_ids"].shape if name == "llama" else (3, 6)
        batch["labels"] = torch.randint(5, 40, shape, generator=generator)
        batch["labels"][0, :3] = -100
        batch["labels"][1, 5:] = -100
        if name == "llama":  # no token is predicted at a padded position, nor scored after one
            there = batch["attention_mask"]
            batch["labels"][(there == 0) | (there.roll(1, dims=1) == 0)] = -100
            batch["labels"][1, 4] = 7
        batches.append(batch)
    return lora(base), batches


@pytest.mark.slow
@pytest.mark.parametrize("name", ["whisper", "t5 (labels)", "llama"])
def test_tokens_in_the_batches_of_language_models_are_scored_as_by_their_loss(name: str):
    model, batches = written(name)
    given = {"batches": batches, "precision": "float64", "progress": False}
    study = ap.ablate(model, **given)
    assert (study.summary.metric, study.results.kind) == ("nll", "causal")

    def losses(out: Any) -> torch.Tensor:  # that of a batch, by the model itself
        return out["loss"].repeat(3)

    whole = loop(model, batches, losses, study.results.masks)[:, ::3, 0]  # [variants, batches]
    counts = study.results.scored.counts[:, 0, 0].reshape(2, 3)
    sums = study.results.outputs[..., 0].reshape(-1, 2, 3).sum(-1)
    np.testing.assert_allclose(-sums / counts.sum(-1), whole, rtol=1e-6)
    right = ap.ablate(model, metric="token_accuracy", spans="single", **given)
    shift = int(name == "llama")
    labels = torch.cat([batch["labels"] for batch in batches])[:, shift:]

    def chosen(out: Any) -> torch.Tensor:
        return out["logits"].argmax(-1)[:, : labels.shape[1]].double()

    said = loop(model, batches, chosen, right.results.masks)
    there = (labels != -100).numpy()
    expected = ((said == labels.numpy()) & there).sum((1, 2)) / there.sum()
    scores = dict(zip(right.results.row_names, expected))
    for row in right.spans.itertuples():
        span = f"{getattr(row, 'stack', '')} {row.first}-{row.last}".lstrip()
        assert row.score == pytest.approx(scores[span])


@pytest.mark.parametrize("name", ["llama", pytest.param("t5 (labels)", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_tokens_in_batches_are_compared_with_the_intact_models(name: str):
    model, batches = written(name)
    given = {"batches": batches, "spans": "single", "precision": "float64", "progress": False}
    study = ap.ablate(model, metric="kl", **given)
    shift = int(name == "llama")
    there = (torch.cat([batch["labels"] for batch in batches]) != -100)[:, shift:].numpy()
    shares = loop(model, batches, lambda out: out["logits"].log_softmax(-1), study.results.masks)
    shares = shares[:, :, : there.shape[1]]  # [variants, examples, positions, vocabulary]
    apart = (np.exp(shares[0]) * (shares[0] - shares)).sum(-1)
    same = shares.argmax(-1) == shares[0].argmax(-1)
    for column, own in enumerate((apart, same)):
        np.testing.assert_allclose(
            study.results.scored.differences[..., column], (own * there).sum(-1), atol=1e-9
        )
    assert apart[1:].max() > 1e-3
    assert not same.all()
    rises = (apart * there).sum((1, 2)) / there.sum()
    np.testing.assert_allclose(row_scores(study.results), rises, rtol=1e-6)


def packed(texts: list[torch.Tensor], labels: list[torch.Tensor]) -> dict[str, Any]:
    """A batch of texts in a single row, with the arguments that TRL 1.16.0 gives its model for it."""
    ends = torch.tensor([0, *(len(text) for text in texts)]).cumsum(0).to(torch.int32)
    places = [torch.arange(len(text)) for text in texts]
    own = [label.where(place > 0, -100) for label, place in zip(labels, places)]
    numbers = [torch.full_like(place, n).to(torch.int32) for n, place in enumerate(places)]
    return {
        "input_ids": torch.cat(texts)[None], "labels": torch.cat(own)[None],
        "position_ids": torch.cat(places)[None], "seq_idx": torch.cat(numbers)[None],
        "cu_seq_lens_q": ends, "cu_seq_lens_k": ends.clone(),
        "max_length_q": int(ends.diff().max()), "max_length_k": int(ends.diff().max()),
    }  # fmt: skip


@pytest.mark.slow
def test_texts_of_packed_rows_are_scored_as_alone():
    model = lora(family("llama")[0])
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(5, 40, (n,), generator=generator) for n in (5, 9, 1, 7, 5, 3)]
    labels = [text.clone() for text in texts]
    for label, n in zip(labels, (2, 4, 0, 3, 5, 1)):
        label[:n] = -100
    batches = [packed(texts[:4], labels[:4]), packed(texts[4:], labels[4:])]
    study = ap.ablate(model, batches=batches, spans="single", precision="float64", progress=False)
    scored = [0, 1, 3, 5]  # of the others no token is predicted
    alone = [{"input_ids": texts[n][None], "labels": labels[n][None]} for n in scored]
    sums = [
        loop(model, [one], lambda out: out["loss"].view(1, 1), study.results.masks)[:, 0, 0]
        * (one["labels"][:, 1:] != -100).sum().item()
        for one in alone
    ]
    np.testing.assert_allclose(-study.results.outputs[..., 0], np.stack(sums, axis=1), rtol=1e-6)


@pytest.mark.slow
def test_examples_without_a_token_to_score_are_left_out_and_counted():
    model, batches = written("t5 (labels)")
    given = {"spans": "single", "precision": "float64", "progress": False}
    batches[0]["labels"][1] = -100
    study = ap.ablate(model, batches=batches, **given)
    assert "1 left out, in which no token is labelled" in "".join(study.question)
    kept = [{k: v[[0, 2]] for k, v in batches[0].items()}, batches[1]]
    expected = ap.ablate(model, batches=kept, **given)
    np.testing.assert_array_equal(study.results.outputs, expected.results.outputs)


def test_another_part_of_the_output_is_another_study(tmp_path):
    base, x = family("vit", torch.float32)
    model = lora(base)
    given: dict[str, Any] = {"batches": batches_of(x), "labels": np.arange(12) % 3, "spans": "whole"}
    given["out"] = tmp_path / "out"
    for read in (lambda out: -out["logits"], lambda out: 2 * out["logits"]):
        ap.ablate(model, progress=False, **given)
        with pytest.raises(ap.AdapterProbeError, match=naming(str(tmp_path / "out"), "another run", "data")):
            ap.ablate(model, progress=False, **{**given, "read": read})
        shutil.rmtree(tmp_path / "out")
        given["read"] = read


def test_another_metric_of_tokens_reads_the_same_parts(tmp_path):
    model, batches = written("t5 (labels)")
    given = {"batches": batches, "out": tmp_path / "out", "spans": "single", "progress": False}
    ap.ablate(model, **given)
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "parts").iterdir()}
    right = ap.ablate(model, metric="token_accuracy", **given)
    alone = ap.ablate(model, metric="token_accuracy", **{**given, "out": tmp_path / "alone"})
    assert right.spans["score"].tolist() == alone.spans["score"].tolist()
    assert {path: path.stat().st_mtime_ns for path in parts} == parts


@pytest.mark.slow
def test_a_metric_of_your_own_and_batches_of_several_shapes():
    model = lora(family("bert")[0])
    batches = [
        dict(ids(n=3, s=9, seed=1)),
        dict(ids(n=2, s=6, pad=None, seed=2)),
        dict(ids(n=3, s=9, seed=3)),
    ]
    n_labels = model.get_base_model().config.num_labels
    labels = np.arange(8) % n_labels
    batches = [
        {**batch, "labels": torch.tensor(labels[start : start + len(batch["input_ids"])])}
        for batch, start in zip(batches, (0, 3, 5))
    ]

    def worst(labels: np.ndarray, predictions: np.ndarray) -> float:
        return min(float((predictions == labels)[labels == label].mean()) for label in set(labels.tolist()))

    study = ap.ablate(
        model, batches=batches, metric=worst, spans="single", precision="float64", progress=False
    )
    plain = [{k: v for k, v in batch.items() if k != "labels"} for batch in batches]
    expected = loop(model, plain, "logits", study.results.masks)
    np.testing.assert_allclose(study.results.outputs, expected, atol=1e-6)
    assert study.summary.metric == "custom:worst (share)"


def packed_otherwise() -> tuple[torch.nn.Module, dict[str, Any]]:
    batch = packed([torch.tensor([5, 6, 7])] * 2, [torch.tensor([5, 6, 7])] * 2)
    return lora(family("llama")[0]), {"batches": [batch | {"inputs_embeds": torch.zeros(2, 3)}]}


def tokens(
    asked: dict[str, Any] | None = None, labels: int | None = None, some: tuple[int, int] | None = None
) -> tuple[torch.nn.Module, dict[str, Any]]:
    """Batches with the same token as every label, or as those of one example of one batch."""
    model, batches = written("t5 (labels)")
    for number, batch in enumerate(batches):
        if labels is not None and (some is None or some[0] == number):
            batch["labels"][slice(None) if some is None else some[1]] = labels
    return model, {"batches": batches, **(asked or {})}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": [0, 1]}, ("labels", "12")),
        ({"labels": None}, ("labels",)),
        ({"labels": [0] * 11 + [3]}, ("labels", "0 to 2", "3")),
        ({"labels": [0.5] * 11 + [float("nan")]}, ("label", "example 11", "finite")),
        ({"labels": ["LABEL_0"] * 11 + ["cat"]}, ("labels", "LABEL_0, LABEL_1, LABEL_2", "'cat'")),
        ({"batches": []}, ("batches",)),
        ({"batches": iter(())}, ("iterator",)),
        ({"batches": [{"pixels": torch.zeros(2, 3)}]}, ("'pixels'",)),
        ({"batches": [[1, 2]]}, ("batch 0",)),
        ({"batches": 3}, ("batches",)),
        ({"batches": [{"pixel_values": torch.zeros(2, 3)}], "labels": [0, 1]}, ("batches",)),
        ({"read": "embeddings"}, ("read='embeddings'", "logits")),
        ({"read": lambda out: out.logits[:, None, None]}, ("read",)),
        ({"data": [{"text": "a", "label": 0}]}, ("data", "batches")),
        ({"precision": "mixed"}, ("'mixed'",)),
        ({"against": [{"text": "a", "label": 0}]}, ("against",)),
        ({"metric": "nll"}, ("'nll'", "classification")),
        ({"max_examples": 6}, ("max_examples", "texts", "batches")),
        ({"label_names": ("a", "b", "c")}, ("label_names", "texts", "batches")),
        ({"num_fewshot": 3}, ("num_fewshot", "texts", "batches")),
        ({"split": "test"}, ("split", "texts", "batches")),
        (packed_otherwise, ("batch 0", "'inputs_embeds'", "packing")),
        (lambda: tokens({"metric": "accuracy"}), ("'accuracy'", "'completion'", "kl")),
        (lambda: tokens(labels=-100), ("labels", "any example")),
        (lambda: tokens(labels=4000, some=(0, 0)), ("index out of range",)),
    ],
)
def test_what_does_not_fit_is_one_line(change, words):
    if callable(change):
        model, given = change()
    else:
        base, x = family("vit", torch.float32)
        model, given = lora(base), {"batches": batches_of(x), "labels": np.arange(12) % 3} | change
    refuses(ap.AdapterProbeError, words, ap.ablate, model, progress=False, **given)


def test_long_plain_values_tell_batches_apart():
    sizes = [(336, 336)] * 20
    found = {_fingerprint([{"x": torch.ones(2), "sizes": [*sizes, last]}]) for last in ((1, 2), (2, 1))}
    assert len(found) == 2
