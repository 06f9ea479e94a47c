"""A pruned checkpoint is the one it came from with the span's adapters off, and opens like any other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import assert_close_in_float32
from refusals import refuses
from safetensors.numpy import load_file
from tiers import slow_unless
from where import DEVICE

import adapter_probe as ap
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.checkpoints.native import read_description
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError
from adapter_probe.models.methods import Adapters
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.prune import prune_checkpoint
from adapter_probe.probe.request import prepare_ablation
from adapter_probe.spans import Span

METHODS = [
    Adapters(size=3, init_std=0.3),
    Adapters(size=3, init_std=0.3, norm="batchnorm", placement="parallel"),
    Adapters(size=3, init_std=0.3, sites="ffn"),
]


@pytest.fixture(
    scope="module", params=slow_unless(METHODS[0].__eq__, METHODS), ids=["plain", "variant", "one site"]
)
def checkpoint(request, tiny_base, tiny_task, train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "c"
    train(tiny_base("bert"), tiny_task, folder, method=request.param, epochs=1)
    return folder


def prune(checkpoint: Path, span: Span, out: Path):
    return prune_checkpoint(
        prepare_ablation(AblationArguments(str(checkpoint)), DEVICE), checkpoint, span, out
    )


def test_scaled_adapters_are_the_same_with_their_last_map_scaled(checkpoint, tmp_path):
    settings = AblationSettings(strength=0.5)
    request = prepare_ablation(AblationArguments(str(checkpoint), settings), DEVICE)
    pruned = prune_checkpoint(request, checkpoint, Span(1, 1), tmp_path / "half")
    assert (pruned.strength, pruned.adapters_after) == (0.5, pruned.adapters_before)
    whole, half = (load_file(folder / "delta.safetensors") for folder in (checkpoint, tmp_path / "half"))
    assert whole.keys() == half.keys()
    changed = {name for name in whole if not np.array_equal(whole[name], half[name])}
    assert changed == {name for name in whole if "layer.1." in name and ".adapter.up." in name} != set()
    for name in changed:
        np.testing.assert_array_equal(half[name], 0.5 * whole[name])
    reopened = evaluate_outputs(tmp_path / "half", request)
    np.testing.assert_allclose(reopened, pruned.results.outputs[1], atol=1e-5)
    assert np.abs(reopened - pruned.results.outputs[0]).max() > 1e-4
    ap.convert(checkpoint, tmp_path / "all", to="native", strength=-1.0)
    every = load_file(tmp_path / "all" / "delta.safetensors")
    assert all(np.array_equal(every[n], -t if ".adapter.up." in n else t) for n, t in whole.items())
    assert read_description(tmp_path / "half").training["scaled_layers"] == [[1, 1, 0.5]]


def evaluate_outputs(folder: Path, request) -> np.ndarray:
    """The outputs of a checkpoint with everything on, for the examples of a request."""
    again = dataclasses.replace(request, checkpoint=open_any(folder))
    return prune_checkpoint(again, folder, Span(0, 0), folder.parent / "again").results.outputs[0]


def plain_outputs(model: torch.nn.Module, encoded, off: Span | None = None) -> np.ndarray:
    """The transformers model's own forward, the span's adapters bypassed by hooks."""
    for number in range(off.first, off.last + 1) if off else ():
        layer = model.bert.encoder.layer[number]
        for place in (layer.attention.output, layer.output):
            if hasattr(place, "adapter"):
                place.adapter.bottleneck.register_forward_hook(lambda _module, inputs, _output: inputs[0])
    rows = []
    with torch.inference_mode():
        for ids, types in zip(encoded.input_ids, encoded.token_type_ids):
            inputs = {
                "input_ids": torch.from_numpy(ids)[None],
                "token_type_ids": torch.from_numpy(types)[None],
            }
            rows.append(model(**inputs).logits[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize(
    "span", [Span(1, 2), *(pytest.param(s, marks=pytest.mark.slow) for s in (Span(0, 0), Span(0, 2)))]
)
@pytest.mark.slow
def test_the_outputs_are_those_with_the_span_off(span, checkpoint, tmp_path):
    pruned = prune(checkpoint, span, tmp_path / "p")
    prepared = prepare_ablation(AblationArguments(str(checkpoint)), DEVICE)
    expected = plain_outputs(prepared.checkpoint.model, prepared.encoded, span)
    opened = open_any(tmp_path / "p")
    small = plain_outputs(opened.model, prepared.encoded)
    assert_close_in_float32(small, expected, layers=3)
    assert_close_in_float32(pruned.results.outputs[1], expected, layers=3)
    hits = expected.argmax(1) == prepared.examples.labels
    assert opened.description.scores == {"accuracy": hits.mean()}


@pytest.mark.slow
def test_what_is_left_and_what_is_gone(checkpoint, tmp_path):
    pruned = prune(checkpoint, Span(1, 1), tmp_path / "p")
    before, after = (load_file(folder / "delta.safetensors") for folder in (checkpoint, tmp_path / "p"))
    gone = before.keys() - after.keys()
    assert gone == {name for name in before if ".layer.1." in name and ".adapter." in name}
    assert all(np.array_equal(before[name], after[name]) for name in after)
    parameters = sum(before[name].size for name in gone if "running_" not in name)
    assert pruned.adapters_before - pruned.adapters_after == parameters
    assert pruned.seconds_before > 0
    assert pruned.seconds_after > 0


@pytest.mark.slow
def test_pruning_twice_and_ablating_the_rest(checkpoint, tmp_path):
    prune(checkpoint, Span(2, 2), tmp_path / "one")
    prune(tmp_path / "one", Span(0, 0), tmp_path / "two")
    described = read_description(tmp_path / "two")
    assert described.method.skip_layers == (0, 2)
    assert described.training["pruned_layers"] == [0, 2]
    assert described.method == dataclasses.replace(read_description(checkpoint).method, skip_layers=(0, 2))
    left, full = (
        prepare_ablation(AblationArguments(str(folder)), DEVICE).model.has_adapter
        for folder in (tmp_path / "two", checkpoint)
    )
    assert left.tolist() == [False, False, full[2], full[3], False, False]


def test_what_cannot_be_pruned(checkpoint, tiny_base, tiny_task, tmp_path):
    refuses(CheckpointError, ("1-3", "0 to 2"), prune, checkpoint, Span(1, 3), tmp_path / "p")
    refuses(CheckpointError, ("9",), prune, checkpoint, Span(9, 9), tmp_path / "p")
    prune(checkpoint, Span(0, 0), tmp_path / "p")
    refuses(CheckpointError, (str(tmp_path / "p"),), prune, checkpoint, Span(1, 1), tmp_path / "p")
    refuses(CheckpointError, ("layer 0", "1, 2"), prune, tmp_path / "p", Span(0, 1), tmp_path / "q")
