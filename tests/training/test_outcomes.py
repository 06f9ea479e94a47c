"""What a training leaves: the best epoch, the right precision, an error where it diverges."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.stats import spearmanr
from tiers import on_processor
from trainings import request_of

import adapter_probe.training.loop as loop
import adapter_probe.training.objectives as objectives
from adapter_probe.checkpoints.native import read_description
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.packing import pack
from adapter_probe.errors import TrainingError
from adapter_probe.models.methods import Adapters
from adapter_probe.training.model import TrainingModel
from adapter_probe.training.request import load_inputs
from adapter_probe.training.settings import TrainingSettings


def outputs(checkpoint, rows: list[dict]) -> np.ndarray:
    """Logits by the transformers model's own forward, one example at a time."""
    opened = open_any(checkpoint)
    with torch.no_grad():
        return np.concatenate(
            [opened.model(**opened.tokenizer(r["text"], return_tensors="pt")).logits.numpy() for r in rows]
        )


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_learns_and_says_so_truly(tiny_base, tiny_task, train, tmp_path):
    described = train(tiny_base("bert"), tiny_task, tmp_path / "c", epochs=3, learning_rate=2e-2)
    rows = read(tiny_task / "validation.jsonl")
    right = outputs(tmp_path / "c", rows).argmax(1) == [row["label"] == "positive" for row in rows]
    assert described.scores == {"accuracy": right.mean()}
    positive = np.mean([row["label"] == "positive" for row in rows])
    assert described.training["majority_score"] == max(positive, 1 - positive)
    assert right.mean() > 0.8
    assert read_description(tmp_path / "c") == described


@pytest.mark.parametrize(
    ("scores", "best"),
    [([0.5, 0.9, 0.7], 1), ([0.9, 0.9, 0.2], 0), ([0.1, 0.2, 0.3], 2), ([np.nan, -0.5, -0.7], 1)],
)
def test_the_best_epoch_is_kept(scores, best, tiny_base, short_task, train, tmp_path, monkeypatch):
    given, after_epoch = iter(scores), []
    original = TrainingModel.evaluate

    def evaluate(model, encoded):
        after_epoch.append({n: p.detach().cpu().numpy().copy() for _, n, p in model.named_roles()})
        return original(model, encoded)

    monkeypatch.setattr(TrainingModel, "evaluate", evaluate)
    monkeypatch.setattr(objectives.metrics, "score", lambda *_: next(given, 0.5))
    described = train(tiny_base("bert"), short_task, tmp_path / "c", epochs=3)
    assert described.training["validation_scores"] == [None if np.isnan(s) else s for s in scores]
    assert described.scores == {"accuracy": scores[best]}
    delta = load_file(tmp_path / "c" / "delta.safetensors")
    for epoch, tensors in enumerate(after_epoch):
        same = all(np.array_equal(delta[name], tensors[name]) for name in delta)
        assert same == (epoch == best), epoch


def test_scores_that_are_all_undefined(tiny_base, regression_task, train, tmp_path, monkeypatch):
    monkeypatch.setattr(objectives.metrics, "score", lambda *_: np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        described = train(tiny_base("bert"), regression_task, tmp_path / "c")
    assert described.scores == {"spearman": None}
    open_any(tmp_path / "c")


def test_progress_is_reported_after_every_step(tiny_base, short_task, train, tmp_path):
    seen: list[loop.Progress] = []
    described = train(tiny_base("bert"), short_task, tmp_path / "c", seen.append)
    assert [(now.step, now.n_steps) for now in seen] == [(step, 6) for step in range(1, 7)]
    assert [len(now.epoch_scores) for now in seen] == [0, 0, 1, 1, 1, 2]
    assert list(seen[-1].epoch_scores) == described.training["validation_scores"]
    assert all(np.isfinite(now.loss) for now in seen)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_divergence_is_an_error(tiny_base, short_task, train, tmp_path):
    with pytest.raises(TrainingError) as caught:
        train(tiny_base("bert"), short_task, tmp_path / "c", learning_rate=1e30, warmup=0.0)
    for part in ("diverged", "of 6", "1e+30"):
        assert part in str(caught.value)
    assert not (tmp_path / "c" / "adapter_probe.json").exists()


def test_a_regression_learns(tiny_base, regression_task, train, tmp_path):
    described = train(tiny_base("bert"), regression_task, tmp_path / "c", epochs=4, learning_rate=2e-2)
    rows = read(regression_task / "validation.jsonl")
    found, targets = outputs(tmp_path / "c", rows)[:, 0], np.array([row["score"] for row in rows])
    assert described.task.kind == "regression"
    assert described.scores["spearman"] == pytest.approx(spearmanr(found, targets).statistic, abs=1e-9)
    assert np.mean((found - targets) ** 2) < np.var(targets) / 2


def test_bfloat16_keeps_what_trains_in_float32(tiny_base, short_task, train, tmp_path, monkeypatch):
    seen: dict[str, set[torch.dtype]] = {"trained": set(), "frozen": set()}
    original = loop.Trainer._step

    def step(self, indices):
        loss = original(self, indices)
        for name, parameter in self._model.base.named_parameters():
            seen["trained" if name in self._trained else "frozen"].add(parameter.dtype)
        seen["trained"] |= {p.grad.dtype for p in self._trained.values()}
        return loss

    monkeypatch.setattr(loop.Trainer, "_step", step)
    base = tiny_base("bert")
    train(base, short_task, tmp_path / "c", dtype="bfloat16")
    assert seen == {"trained": {torch.float32}, "frozen": {torch.bfloat16}}
    delta = load_file(tmp_path / "c" / "delta.safetensors")
    assert {tensor.dtype for tensor in delta.values()} == {np.dtype("float32")}
    # 16 bits of a float32 are always zero in a tensor that was rounded to bfloat16 on its way
    assert all((t.view(np.uint32) & 0xFFFF).any() for name, t in delta.items() if "adapter.down" in name)

    state = open_any(tmp_path / "c").model.state_dict()
    for name, tensor in load_file(base / "model.safetensors").items():
        if f"bert.{name}" not in delta:  # the opened base is the whole one, not the rounded one
            assert np.array_equal(state[f"bert.{name}"].numpy(), tensor), name


@pytest.mark.slow
def test_bfloat16_trains_nearly_the_same(tiny_base, tiny_task, train, tmp_path):
    described = train(tiny_base("bert"), tiny_task, tmp_path / "c", dtype="bfloat16", learning_rate=2e-2)
    assert described.scores["accuracy"] > 0.8


def test_only_bfloat16_trains_by_own_attention():
    rows = torch.zeros(1, 2, 8, 4, requires_grad=True)
    for dtype in ("float32", "bfloat16"):
        with loop.precision_of(TrainingSettings(dtype=dtype), torch.device("cpu")):
            attended = torch.nn.functional.scaled_dot_product_attention(rows, rows, rows)
        assert ("ScaledDotProduct" in type(attended.grad_fn).__name__) is (dtype == "float32")


@on_processor("it runs the model by hand, under the processor's autocast")
def test_bfloat16_products_are_of_the_weights_as_they_are_now(
    tiny_base, short_task, train, tmp_path, monkeypatch
):
    """What a step computes is what a forward of the same weights computes that begins anew."""
    original, seen = loop.Trainer._step, []

    def step(self, indices):
        batch = pack(self._objective.train, indices)
        self._model.eval()
        logits = self._model(batch).detach()
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
            anew = self._model(batch).detach()
        assert torch.equal(logits, anew), f"step {len(seen)}"
        seen.append(logits)
        return original(self, indices)

    monkeypatch.setattr(loop.Trainer, "_step", step)
    train(tiny_base("bert"), short_task, tmp_path / "c", dtype="bfloat16", learning_rate=3e-2)
    assert len(seen) == 6


def test_the_global_generators_are_left_as_found(tiny_base, short_task, train, tmp_path):
    torch.manual_seed(7)
    np.random.seed(7)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    train(tiny_base("bert"), short_task, tmp_path / "a")
    assert torch.get_rng_state().equal(before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    torch.manual_seed(8)  # and they do not matter
    train(tiny_base("bert"), short_task, tmp_path / "b")
    assert (tmp_path / "a/delta.safetensors").read_bytes() == (tmp_path / "b/delta.safetensors").read_bytes()


def test_seeds_differ(tiny_base, short_task, train, tmp_path):
    for seed in (0, 1):
        train(tiny_base("bert"), short_task, tmp_path / str(seed), seed=seed)
    first, second = (load_file(tmp_path / str(seed) / "delta.safetensors") for seed in (0, 1))
    assert all(not np.array_equal(first[name], second[name]) for name in first)


def test_dropout_is_on(tiny_base, short_task, train, tmp_path, monkeypatch):
    losses: dict[bool, list[float]] = {True: [], False: []}
    for dropout in losses:
        with monkeypatch.context() as patch:
            if not dropout:
                patch.setattr(torch.nn.functional, "dropout", lambda x, *_, **__: x)
            train(
                tiny_base("bert"),
                short_task,
                tmp_path / str(dropout),
                lambda now, found=losses[dropout]: found.append(now.loss),
                method=Adapters(size=4, init_std=0.1),
            )
    assert abs(losses[True][0] - losses[False][0]) > 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("kind", ["labels", "answers"])
def test_outputs_that_are_not_finite_have_no_score(kind, bad, tiny_base, short_task, monkeypatch):
    objective = load_inputs(request_of(tiny_base("bert"), short_task, "adapters")).objective
    if kind == "answers":
        monkeypatch.setattr(objectives, "decode_windows", lambda *_: pytest.fail("decoded"))
        objective.score = objectives.AnswerObjective.score.__get__(objective)
    logits = np.zeros((len(objective.validation), 2), np.float32)
    logits[3, 1] = bad
    assert np.isnan(objective.score(SimpleNamespace(evaluate=lambda _: logits)))
