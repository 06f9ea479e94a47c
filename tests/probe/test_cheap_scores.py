"""Cheap scores against finite differences and plain loops over the transformers model."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from random_checkpoints import random_checkpoint  # noqa: F401 (fixture)
from trainings import regression_task  # noqa: F401 (fixture)

from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.data.examples import load_examples
from adapter_probe.data.packing import pack
from adapter_probe.models.layer import Site
from adapter_probe.probe.cheap_scores import site_scores


@pytest.fixture(scope="module", params=["classification", "regression"])
def opened(request, random_checkpoint, tiny_task, regression_task):  # noqa: F811
    task = tiny_task if request.param == "classification" else regression_task
    found = open_checkpoint(random_checkpoint(task, 24), dtype=torch.float64)
    about = found.description
    return found.model, load_examples(found.tokenizer, about.task, "validation", 24, max_examples=20)


def margins(model, examples) -> np.ndarray:
    """One example at a time."""
    found = []
    for item in range(len(examples)):
        logits = model(pack(examples.encoded, [item]))[0].detach().numpy()
        label = examples.labels[item]
        if len(logits) == 1:
            found.append(-((logits[0] - label) ** 2))
        else:
            found.append(logits[label] - max(np.delete(logits, label)))
    return np.array(found)


def test_an_effect_is_the_margins_derivative_by_a_gate(opened, monkeypatch):
    model, examples = opened
    scores = site_scores(model, examples)
    np.testing.assert_allclose(scores.margins, margins(model, examples), rtol=1e-6, atol=1e-6)
    finish, step = Site.finish, 1e-5
    for number, site in enumerate(model.sites):

        def gated(self, *args, gate: float, one: Site = site):
            on = finish(self, *args)
            if self is not one:
                return on
            with self.switched(False):
                off = finish(self, *args)
            return off + gate * (on - off)

        at = []
        for gate in (1 - step, 1 + step):
            monkeypatch.setattr(Site, "finish", lambda *args, gate=gate: gated(*args, gate=gate))
            at.append(margins(model, examples))
        monkeypatch.setattr(Site, "finish", finish)
        expected = (at[1] - at[0]) / (2 * step)
        np.testing.assert_allclose(scores.effects[:, number], expected, rtol=2e-5, atol=1e-6)
    assert np.abs(scores.effects).max() > 1e-2


def run_with_hooks(encoder, ids) -> tuple[list[list[torch.Tensor]], list[list[torch.Tensor]]]:
    """What each layer's two adapters read, and what enters and leaves each layer, ``[tokens, hidden]``."""
    layers = encoder.encoder.layer
    seen: list[list[torch.Tensor]] = [[] for _ in layers]
    ends: list[list[torch.Tensor]] = [[] for _ in layers]

    def read(into: list[torch.Tensor]) -> Callable:
        return lambda _module, args: into.append(args[0][0])

    def leave(into: list[torch.Tensor]) -> Callable:
        return lambda _m, _args, out: into.append((out if isinstance(out, torch.Tensor) else out[0])[0])

    handles = []
    for layer, reads, passes in zip(layers, seen, ends):
        for part in (layer.attention.output, layer.output):
            handles.append(part.dropout.register_forward_pre_hook(read(reads)))
        handles += [layer.register_forward_pre_hook(read(passes)), layer.register_forward_hook(leave(passes))]
    with torch.no_grad():
        encoder(input_ids=torch.from_numpy(ids)[None])
    for handle in handles:
        handle.remove()
    return seen, ends


def test_changes_and_turns_are_means_over_tokens(opened):
    """By hooks on the transformers model: what adapters read and give, what enters and leaves each layer."""
    model, examples = opened
    scores = site_scores(model, examples)
    layers = model.base.base_model.encoder.layer
    changes, turns = np.zeros((len(layers), 2)), np.zeros(len(layers))
    n_tokens = sum(len(ids) for ids in examples.encoded.input_ids)
    last = len(layers) - 1
    for ids in examples.encoded.input_ids:
        seen, ends = run_with_hooks(model.base.base_model, ids)
        with torch.no_grad():
            for number, layer in enumerate(layers):
                keep = slice(0, 1) if number == last else slice(None)  # what the head reads of the last layer
                for kind, part in enumerate((layer.attention.output, layer.output)):
                    x = seen[number][kind][keep]
                    change = part.adapter.up(torch.tanh(part.adapter.down(x)))
                    changes[number, kind] += float((change.norm(dim=-1) / x.norm(dim=-1)).sum())
                before, after = (state[keep] for state in ends[number])
                turns[number] += float((1 - torch.cosine_similarity(before, after, dim=-1)).sum())
    rows = np.array([len(examples) if number == last else n_tokens for number in range(len(layers))])
    np.testing.assert_allclose(scores.change.reshape(-1, 2), changes / rows[:, None], rtol=1e-6)
    np.testing.assert_allclose(scores.turn, turns / rows, rtol=1e-6)
    norms = [
        float((site.adapter.up.weight @ site.adapter.down.weight).square().sum().sqrt())
        for site in model.sites
    ]
    np.testing.assert_allclose(scores.weight_norm, norms, rtol=1e-6)
