"""Mixed precision: float32's predictions, whatever the fast pass gets wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from refusals import naming
from tiers import slow_unless
from where import DEVICE

from adapter_probe.ablation_results import AblationResults
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.errors import CheckpointError, ResultsError
from adapter_probe.probe import engine, guard
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.probe.runners import ModelRunner
from adapter_probe.replay.packing import _MOST_ADDED
from adapter_probe.results.schema import GUARD


@pytest.fixture(scope="module")
def prepared(random_checkpoint: Callable[..., Path], tiny_task: Path) -> Callable[[str], AblationRequest]:
    folder = random_checkpoint(tiny_task, 20)

    def prepare(precision: str) -> AblationRequest:
        settings = AblationSettings(precision=precision)
        return prepare_ablation(AblationArguments(str(folder), settings, tokens_per_pass=200), DEVICE)

    return prepare


@pytest.fixture
def few_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_SAMPLE", 60)
    monkeypatch.setattr(
        "adapter_probe.probe.resumable.TOKENS_PER_PART", dict.fromkeys(("cpu", "accelerator"), 60)
    )


def run(request: AblationRequest, out: Path) -> AblationResults:
    with AblationRun(request, out) as ablation:
        ablation.compute(lambda _: None)
        return ablation.results()


@contextmanager
def changed_head(request: AblationRequest, value: float) -> Iterator[AblationRequest]:
    """The request while one bias of its model's head has another value."""
    bias = request.checkpoint.model.classifier.bias
    kept = bias.detach().clone()
    with torch.no_grad():
        bias[0] = value
    try:
        yield request
    finally:
        with torch.no_grad():
            bias.copy_(kept)


def test_predictions_are_those_of_float32(prepared: Callable, few_sampled: None, tmp_path: Path):
    exact, mixed = run(prepared("float32"), tmp_path / "exact"), run(prepared("mixed"), tmp_path / "mixed")
    assert np.array_equal(mixed.predictions, exact.predictions)
    noted = mixed.settings["guard"]
    assert 0 <= noted["chance"] <= guard.CHANCE
    assert 0 < noted["threshold"] < noted["band"]
    assert noted["sampled_pairs"] == 60 < noted["pairs"]
    decided = np.isclose(mixed.outputs, exact.outputs, rtol=0, atol=2e-6).all(-1)
    assert decided.mean() >= noted["decided_in_float32"]
    assert not decided.all()  # the fast pass was at work
    outside = guard.margins(mixed.outputs) > noted["band"]
    assert decided[~outside].all()


@pytest.mark.slow
def test_a_fast_pass_that_errs_more_than_its_sample_widens_the_band(
    prepared: Callable, few_sampled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Errors far beyond what the sample showed, on all other pairs: the decided ones give them away."""
    exact = run(prepared("float32"), tmp_path / "exact")
    real, calls = engine.Engine._tree, []

    def shaken(self: engine.Engine, precision: str, items: np.ndarray) -> dict:
        arrays = real(self, precision, items)
        calls.append(len(items))
        noise = np.random.default_rng(len(calls)).normal(size=arrays["logits"].shape)
        arrays["logits"] = (arrays["logits"] + 0.1 * noise).astype(np.float32)
        return arrays

    monkeypatch.setattr(engine.Engine, "_tree", shaken)
    mixed = run(prepared("mixed"), tmp_path / "mixed")
    sample = json.loads((tmp_path / "mixed" / GUARD).read_text())
    noted = mixed.settings["guard"]
    assert noted["largest_error"] > 5 * max(sample["errors"])
    assert noted["band"] > 5 * max(sample["errors"])
    assert noted["pairs"] > 60
    assert np.array_equal(mixed.predictions, exact.predictions)


@pytest.mark.slow
def test_an_estimate_includes_what_is_repeated(prepared, few_sampled, tokens_passed, monkeypatch):
    monkeypatch.setattr(engine, "MEASURED_SECONDS", np.inf)
    request = prepared("mixed")
    masks = request.variants.masks
    fast = sum(len(np.unique(masks[:, : 2 * n], axis=0)) for n in (1, 2, 3))
    alone = 3 * len(masks)  # every variant by itself through every layer
    padded = request.encoded.lengths.max() / request.encoded.lengths.mean()  # at most, in a batch of pairs
    for band, least, most in ((-1.0, fast, fast), (np.inf, fast + 0.7 * alone, fast + 1.1 * alone * padded)):
        monkeypatch.setattr(engine.Engine, "_first_band", lambda _, estimate=False, band=band: band)
        one = engine.Engine(request)
        one._prepare()  # which compares with the model's own forward, as do some batches later
        # in bfloat16, a row has some positions without a text
        assert least * (1 - 1e-9) <= one.seconds_per_token() <= most * (1 + _MOST_ADDED)


@pytest.mark.slow
def test_a_resumed_run_keeps_its_guard(prepared: Callable, few_sampled: None, tmp_path: Path):
    request = prepared("mixed")
    whole = run(request, tmp_path / "whole")
    with AblationRun(request, tmp_path / "half") as half:
        half.compute(lambda _: None, half.missing()[:2])
    written = (tmp_path / "half" / GUARD).stat().st_mtime_ns
    resumed = run(request, tmp_path / "half")
    assert (tmp_path / "half" / GUARD).stat().st_mtime_ns == written
    assert np.array_equal(resumed.outputs, whole.outputs)
    assert resumed.settings == whole.settings


def test_what_has_no_classes_is_refused(random_checkpoint: Callable[..., Path], tmp_path: Path):
    rows = [f'{{"text": "w{n}", "label": {n / 7}}}\n' for n in range(12)]
    for split in ("train", "validation"):
        (tmp_path / f"{split}.jsonl").write_text("".join(rows))
    folder = random_checkpoint(tmp_path, 20)
    with pytest.raises(ResultsError, match=naming("--precision mixed", "regression")):
        prepare_ablation(AblationArguments(str(folder), AblationSettings(precision="mixed")), DEVICE)


@pytest.mark.timeout(120)  # without an end it would go on for ever
@pytest.mark.parametrize("in_both", [True, False])
@pytest.mark.slow
def test_a_variant_that_is_not_finite_ends_and_widens_nothing(
    prepared: Callable, few_sampled: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_both: bool
):
    """NaN where the last layer's adapters are off: in bfloat16 alone, float32 mends it; in both, it stays."""
    exact = run(prepared("float32"), tmp_path / "exact")
    tree_rows, chosen_pairs = engine.Engine._tree, ModelRunner.pairs
    spoilt_rows = ~exact.masks[:, -1]

    def spoilt_tree(self: engine.Engine, precision: str, items: np.ndarray) -> dict:
        arrays = tree_rows(self, precision, items)
        if in_both or precision == "bfloat16":
            arrays["logits"][spoilt_rows] = np.nan
        return arrays

    def spoilt_pairs(self: ModelRunner, items: np.ndarray, masks: np.ndarray, *options) -> np.ndarray:
        logits = chosen_pairs(self, items, masks, *options)
        if in_both or self._dtype == torch.bfloat16:
            logits[~masks[:, -1]] = np.nan
        return logits

    monkeypatch.setattr(engine.Engine, "_tree", spoilt_tree)
    monkeypatch.setattr(ModelRunner, "pairs", spoilt_pairs)
    mixed = run(prepared("mixed"), tmp_path / "mixed")
    assert np.array_equal(mixed.nonfinite > 0, spoilt_rows & in_both)
    rows = ~spoilt_rows if in_both else slice(None)
    assert np.array_equal(mixed.predictions[rows], exact.predictions[rows])
    assert 0 < mixed.settings["guard"]["largest_error"] < 1


@pytest.mark.parametrize("precision", slow_unless("mixed".__eq__, ["float32", "mixed"]))
def test_an_intact_model_that_is_not_finite_is_refused(prepared: Callable, tmp_path: Path, precision: str):
    words = r"\d+ of \d+"
    with (
        changed_head(prepared(precision), float("nan")) as request,
        pytest.raises(CheckpointError, match=words),
    ):
        run(request, tmp_path)


@pytest.mark.slow
def test_weights_that_bfloat16_does_not_hold_are_refused(prepared: Callable, tmp_path: Path):
    """Finite in float32, infinite in bfloat16: float32 scores them, `mixed` says what to give."""
    words = naming("bfloat16", "--precision float32")
    with changed_head(prepared("mixed"), 3.4e38) as request, pytest.raises(CheckpointError, match=words):
        run(request, tmp_path / "mixed")
    with changed_head(prepared("float32"), 3.4e38) as request:
        assert np.isfinite(run(request, tmp_path / "exact").outputs).all()


@pytest.mark.slow
def test_another_runs_guard_is_measured_again(prepared: Callable, few_sampled: None, tmp_path: Path):
    request = prepared("mixed")
    whole = run(request, tmp_path / "whole")
    for number, content in enumerate(['{"run_sha256": "0", "errors": [0.0]}', "{", "[]"]):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / GUARD).write_text(content)
        assert run(request, folder).settings == whole.settings
