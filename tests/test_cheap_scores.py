"""The study of cheap scores: its script runs, and an effect is the margin's derivative."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from random_checkpoints import random_checkpoint  # noqa: F401 (fixture)

import adapter_probe as ap
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.placed import PlacedAdapter
from adapter_probe.data.examples import load_examples

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "docs" / "studies")


def test_the_script_writes_its_tables(random_checkpoint, tiny_task, tmp_path):  # noqa: F811
    from cheap_scores import main

    checkpoint = random_checkpoint(tiny_task, 24)
    exact = ap.ablate(checkpoint, out=tmp_path / "ablation", progress=False)
    main(tmp_path / "study", [f"tiny={checkpoint},{exact.folder}"])
    drops = pd.read_csv(tmp_path / "study" / "spans.csv").set_index(["first", "last"])["drop_points"]
    expected = exact.spans.set_index(["first", "last"])["delta_points"]
    pd.testing.assert_series_equal(drops, -expected, atol=1e-4, check_names=False)
    table = pd.read_csv(tmp_path / "study" / "agreement.csv").set_index("score")
    assert table.loc["length", "spearman"] == pytest.approx(
        drops.corr((drops.index.get_level_values(1) - drops.index.get_level_values(0)).to_series(drops.index),
                   method="spearman"), abs=1e-4
    )  # fmt: skip
    assert (tmp_path / "study" / "agreement.svg").stat().st_size > 1000


def test_an_effect_is_the_margins_derivative_by_a_gate(
    random_checkpoint,  # noqa: F811
    tiny_task,
):
    from site_scores import norm_of, site_scores

    found = open_any(random_checkpoint(tiny_task, 24), dtype=torch.float64)
    model, task = found.model, found.description.task
    examples = load_examples(found.tokenizer, task, "validation", 24, max_examples=20)

    def margins() -> np.ndarray:
        with torch.no_grad():
            ids = [torch.from_numpy(one)[None] for one in examples.encoded.input_ids]
            logits = torch.cat([model(input_ids=one).logits for one in ids]).numpy()
        own = logits[np.arange(20), examples.labels]
        logits[np.arange(20), examples.labels] = -np.inf
        return own - logits.max(axis=1)

    scores = site_scores(model, examples)
    np.testing.assert_allclose(scores.margins, margins(), rtol=1e-6, atol=1e-6)
    placed = [module for module in model.modules() if isinstance(module, PlacedAdapter)]
    assert len(placed) == scores.effects.shape[1]
    step = 1e-5
    for number, adapter in enumerate(placed):
        norm, kept = norm_of(adapter), {}

        def remember(_module, given, _out, kept=kept):
            kept["sum"] = given[0] + given[1]

        def gated(module, _given, on, kept=kept):
            off = type(module).forward(module, kept["sum"])
            return off + kept["gate"] * (on - off)

        hooks = [adapter.register_forward_hook(remember), norm.register_forward_hook(gated)]
        at = []
        for kept["gate"] in (1 - step, 1 + step):
            at.append(margins())
        for hook in hooks:
            hook.remove()
        expected = (at[1] - at[0]) / (2 * step)
        np.testing.assert_allclose(scores.effects[:, number], expected, rtol=2e-5, atol=1e-6)
    assert np.abs(scores.effects).max() > 1e-2
