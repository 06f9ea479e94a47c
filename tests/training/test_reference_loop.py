"""The training against a loop written out here, on the transformers model's own forward with padding."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from trainer import still
from trainings import write_task
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from adapter_probe.models.methods import Adapters
from adapter_probe.training.loop import epoch_batches

BATCH, EPOCHS, RATE, SIZE = 16, 2, 3e-3, 4


class Adapter(nn.Module):
    """Houlsby's module, from the paper: down, GELU, up, and a skip around it."""

    def __init__(self, hidden: int):
        super().__init__()
        self.down, self.up = nn.Linear(hidden, SIZE), nn.Linear(SIZE, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.up(nn.functional.gelu(self.down(x)))


class WithAdapter(nn.Module):
    """A sublayer's output projection followed by an adapter, before residual sum and LayerNorm."""

    def __init__(self, dense: nn.Linear, adapter: Adapter):
        super().__init__()
        self.dense, self.adapter = dense, adapter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.adapter(self.dense(x))


def reference_model(folder: Path, start: dict[str, torch.Tensor], n_labels: int) -> nn.Module:
    """The transformers model with adapters, its trained tensors set to `start`, all others frozen."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=n_labels).float()
    named = {}
    for number, layer in enumerate(model.base_model.encoder.layer):
        for place, output in (("attention.output", layer.attention.output), ("output", layer.output)):
            adapter = Adapter(model.config.hidden_size)
            output.dense = WithAdapter(output.dense, adapter)
            prefix = f"{model.base_model_prefix}.encoder.layer.{number}.{place}.adapter"
            named |= {f"{prefix}.{name}": p for name, p in adapter.named_parameters()}
    named |= {name: p for name, p in model.named_parameters() if name in start and name not in named}
    assert named.keys() == start.keys()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    for name, parameter in named.items():
        parameter.data.copy_(start[name])
        parameter.requires_grad_(True)
    model.trained = named
    return model.train()


def rate_at(step: int, n_steps: int) -> float:
    """10 % up, 90 % down, by hand for a number of steps that ten divides."""
    assert n_steps % 10 == 0
    rise = n_steps // 10
    return RATE * (step + 1) / rise if step < rise else RATE * (n_steps - step) / (0.9 * n_steps)


def reference_training(
    model: nn.Module, folder: Path, rows: list[dict], loss_of: Callable, n_epochs: int
) -> dict[int, dict[str, torch.Tensor]]:
    """The trained tensors after every epoch."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    lengths = np.array([len(tokenizer(row["text"])["input_ids"]) for row in rows])
    optimizer = torch.optim.Adam(model.trained.values(), lr=123.0)
    order = [batch for epoch in range(n_epochs) for batch in epoch_batches(lengths, BATCH, 0, epoch)]
    after = {}
    for step, batch in enumerate(order):
        inputs = tokenizer([rows[i]["text"] for i in batch], padding=True, return_tensors="pt")
        loss = loss_of(model(**inputs).logits, [rows[i] for i in batch])
        optimizer.param_groups[0]["lr"] = rate_at(step, len(order))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if (step + 1) % (len(order) // n_epochs) == 0:
            after[len(after)] = copy.deepcopy({k: v.detach() for k, v in model.trained.items()})
    return after


def start_of(train: Callable, *arguments: object, out: Path, **settings: object) -> dict[str, torch.Tensor]:
    """The trained tensors before the first step: those that a training at rate nearly zero ends with."""
    train(*arguments, out, **{**settings, "learning_rate": 1e-30, "epochs": 1})
    return load_file(out / "delta.safetensors")


def of_classes(logits: torch.Tensor, batch: list[dict]) -> torch.Tensor:
    target = torch.tensor([["negative", "positive"].index(row["label"]) for row in batch])
    return -logits.log_softmax(1).gather(1, target[:, None]).mean()


def of_scores(logits: torch.Tensor, batch: list[dict]) -> torch.Tensor:
    assert logits.shape == (len(batch), 1)
    return sum((logits[i, 0] - row["score"]) ** 2 for i, row in enumerate(batch)) / len(batch)


@pytest.mark.parametrize(("data", "loss_of", "family", "options"), [
    ("tiny_task", of_classes, "bert", {}), ("regression_task", of_scores, "bert", {}),
    pytest.param("tiny_task", of_classes, "bert", {"pooler": False}, marks=pytest.mark.slow),
    pytest.param("tiny_task", of_classes, "roberta", {}, marks=pytest.mark.slow),
])  # fmt: skip
def test_what_is_trained_is_that_of_the_loop(
    data, loss_of, family, options, tiny_base, train, tmp_path, request
):
    base = still(tiny_base(family, **options), tmp_path / "base")
    lines = (request.getfixturevalue(data) / "train.jsonl").read_text().splitlines()[:160]
    rows = [json.loads(line) for line in lines]
    task = write_task(tmp_path / "task", rows)
    settings = {"method": Adapters(size=SIZE, init_std=0.1), "batch_size": BATCH}
    start = start_of(train, base, task, out=tmp_path / "start", **settings)
    described = train(base, task, tmp_path / "c", **settings, epochs=EPOCHS, learning_rate=RATE)
    own = reference_model(base, start, 2 if loss_of is of_classes else 1)
    after = reference_training(own, base, rows, loss_of, EPOCHS)
    scores = described.training["validation_scores"]
    best = scores.index(max(scores))
    trained = load_file(tmp_path / "c" / "delta.safetensors")
    assert trained.keys() == after[best].keys()
    for name, tensor in trained.items():
        assert (tensor - after[best][name]).abs().max() < 1e-5, name
        assert (tensor - start[name]).abs().max() > 1e-3, name
