"""From a base on disk through training to an ablation, in every family."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from encoder_families import FAMILIES, Separate, plain_model
from exact import assert_close_in_float32
from refusals import refuses
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.checkpoints.tokenizer import load_tokenizer
from adapter_probe.data.encoding import Encoded, encode
from adapter_probe.data.tasks import find_task, load_split
from adapter_probe.errors import ModelError
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import prepare_ablation
from adapter_probe.probe.resumable import AblationRun
from adapter_probe.probe.runners import model_runners
from adapter_probe.training.checkpoint import train_checkpoint
from adapter_probe.training.request import TrainingRequest
from adapter_probe.training.settings import TrainingSettings

CPU = torch.device("cpu")
WORDS = (
    "the", "a", "cat", "dog", "bird", "saw", "met", "was", "fine", "bright", "warm", "foul", "dim", "cold",
)  # fmt: skip


@pytest.fixture
def save_base(tmp_path: Path) -> Callable[[str], Path]:
    """A folder with the encoder alone and a tokenizer that knows no padding token and frames nothing."""

    def save(name: str, **changes: object) -> Path:
        folder = tmp_path / "base"
        model = plain_model(name, **changes)
        encoder: AutoModel = model.base_model
        encoder.float().save_pretrained(folder)
        vocabulary = {word: number for number, word in enumerate(("<none>", "<0>", "<unk>", *WORDS))}
        inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
        inner.pre_tokenizer = pre_tokenizers.Whitespace()
        PreTrainedTokenizerFast(
            tokenizer_object=inner, unk_token="<unk>", model_input_names=["input_ids", "attention_mask"]
        ).save_pretrained(folder)
        return folder

    return save


def train(base: Path, task: Path, out: Path, method: object, max_length: int | None = None) -> None:
    settings = TrainingSettings(epochs=1, learning_rate=1e-2, batch_size=32)
    request = TrainingRequest(
        str(base), find_task(task), method, settings, max_train=64, max_length=max_length
    )
    train_checkpoint(request, out, CPU, lambda _: None)


def some(encoded: Encoded, which: Sequence[int]) -> Encoded:
    return Encoded(tuple(encoded.input_ids[i] for i in which), None, "")


def weights(base: Path, checkpoint: Path) -> tuple[PretrainedConfig, dict[str, torch.Tensor], dict]:
    """The configuration, and all weights with and without those of the checkpoint, from the files alone."""
    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    before = dict(plain.state_dict())
    return plain.config, {**before, **load_file(checkpoint / "delta.safetensors")}, before


@pytest.mark.quick("albert, two groups")
def test_a_checkpoint_is_trained_opened_and_ablated(kind, save_base, tiny_task, tmp_path):
    base = save_base(kind)
    train(base, tiny_task, tmp_path / "c", Adapters(4, 0.5, activation="tanh"))
    config, tensors, _ = weights(base, tmp_path / "c")
    alone = Separate(kind, config, tensors)
    request = prepare_ablation(AblationArguments(str(tmp_path / "c")), CPU)
    with AblationRun(request, tmp_path / "out") as ablation:
        ablation.compute(lambda _: None)
        results = ablation.results()
    encoded = encode(load_tokenizer(str(base)), load_split(find_task(tiny_task), "validation"), 40)
    which = range(0, len(encoded), 8)
    expected = np.stack([alone.run(some(encoded, which), mask).numpy() for mask in results.masks])
    assert np.ptp(expected, axis=0).max() > 0.003
    assert_close_in_float32(results.outputs[:, ::8], expected, layers=3)


@pytest.mark.quick("deberta-v3")
def test_the_norms_of_the_base_return_with_a_switch(kind, save_base, tiny_task, tmp_path):
    base = save_base(kind)
    train(base, tiny_task, tmp_path / "c", Adapters(4, 0.5, activation="tanh"))
    arguments = AblationArguments(str(tmp_path / "c"), AblationSettings(layernorm="pretrained"))
    if FAMILIES[kind].pre_norm:
        refuses(ModelError, ("--layernorm", "pretrained"), prepare_ablation, arguments, CPU)
        return
    request = prepare_ablation(arguments, CPU)
    which = np.arange(0, len(request.encoded), 8)
    alone = Separate(kind, *weights(base, tmp_path / "c"))
    masks = np.random.default_rng(0).random((6, 6)) < 0.5
    expected = np.stack([alone.run(some(request.encoded, which), mask).numpy() for mask in masks])
    runner = next(model_runners(request, torch.float32, 1))
    found = runner.outputs(which, masks, 256, lambda: None)
    assert_close_in_float32(found["logits"], expected, layers=3)
