"""The packed forward and the prefix tree against transformers' own forward, in every family."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from exact import assert_close_in_float32
from exact import assert_close_in_float64 as close
from refusals import naming
from torch.nn import functional as F

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.errors import ModelError
from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.methods import Adapters, FullFineTuning
from adapter_probe.probe.pairs import forward_pairs
from adapter_probe.probe.tree import forward_variants
from adapter_probe.spans import span_variants

LENGTHS = (5, 12, 1, 5, 40, 3)
FEW = (5, 12, 1, 5)
ALL_ON = [True] * 6
MASKS = np.concatenate([span_variants(3).masks, np.eye(6, dtype=bool), ~np.eye(6, dtype=bool)])


def packed(model: AdaptedModel, encoded: Encoded) -> torch.Tensor:
    """In the dataset's order."""
    batch = pack(encoded, range(len(encoded)))
    return model(batch)[torch.from_numpy(batch.index).argsort()]


@pytest.mark.usefixtures("in_float64")
def test_intact_and_under_adapters_it_is_the_models_own(
    family: str,
    plain_model: Callable,
    adapted_model: Callable,
    separate: Callable,
    own_logits: Callable,
    random_examples: Callable,
):
    encoded, ways = random_examples(LENGTHS), (False, True)
    plain = plain_model(family)
    model = adapted_model(family)
    alone = separate(family, model)
    with torch.no_grad():
        intact = own_logits(plain, encoded, padded=False)
        assert intact.std(dim=0).max() > 0.05
        for padded in ways:
            close(own_logits(plain, encoded, padded=padded), intact)
        close(packed(AdaptedModel(plain), encoded), intact)
        logits = packed(model, encoded)
        assert (logits - intact).abs().max() > 0.1
        for padded in ways:
            close(logits, alone.run(encoded, ALL_ON, padded=padded))
            close(logits, own_logits(model.base, encoded, padded=padded))  # through the engine's own hooks


def test_lower_precisions_are_near(family: str, adapted_model: Callable, random_examples: Callable):
    model, encoded = adapted_model(family), random_examples(LENGTHS)
    with torch.no_grad():
        exact = packed(model, encoded)
        assert_close_in_float32(packed(model.float(), encoded), exact, layers=3)
        low = packed(model.to(torch.bfloat16), encoded).double()
    assert (low - exact).abs().max() < 0.3 * exact.std()


@pytest.mark.usefixtures("in_float64")
def test_every_mask_equals_a_run_of_its_own(
    family: str,
    adapted_model: Callable,
    separate: Callable,
    random_examples: Callable,
    monkeypatch: pytest.MonkeyPatch,
):
    model, encoded = adapted_model(family), random_examples(FEW)
    alone = separate(family, model)
    expected = torch.stack([alone.run(encoded, mask, padded=True) for mask in MASKS])
    distances = torch.cdist(expected.flatten(1), expected.flatten(1))
    same = [(mask == MASKS).all(axis=1).sum() for mask in MASKS]
    assert ((distances < 1e-3).sum(dim=1).numpy() == same).all()  # no variant can pass for another
    batch = pack(encoded, range(len(encoded)))
    order = torch.from_numpy(batch.index).argsort()
    for tokens_per_pass, added in ((1, 0), (80, 7), (10**9, 0)):  # rows that belong to no example, too
        monkeypatch.setattr(AdaptedModel, "_rows_added", lambda *_, n=added: n)
        logits = forward_variants(model, batch, MASKS, tokens_per_pass=tokens_per_pass)
        close(logits[:, order], expected)
    pairs = np.random.default_rng(0).permutation(len(encoded) * len(MASKS))[: 2 * len(MASKS)]
    pairs = np.append(pairs, np.arange(len(encoded)))  # every example occurs
    rows, places = np.divmod(pairs, len(encoded))
    for tokens_per_pass in (1, 60, 10**9):
        logits = forward_pairs(model, batch, places, MASKS[rows], tokens_per_pass=tokens_per_pass)
        close(logits, expected[rows, batch.index[places]])


@pytest.mark.usefixtures("in_float64")
def test_pretrained_norms_follow_the_sites_that_are_off(
    encoder: str,
    plain_model: Callable,
    adapted_model: Callable,
    separate: Callable,
    random_examples: Callable,
):
    model, encoded = adapted_model(encoder), random_examples(FEW)
    alone = separate(encoder, model, plain_model(encoder).state_dict())
    expected = torch.stack([alone.run(encoded, mask) for mask in MASKS])
    batch = pack(encoded, range(len(encoded)))
    logits = forward_variants(model, batch, MASKS, tokens_per_pass=10**9, norms="pretrained")
    close(logits[:, torch.from_numpy(batch.index).argsort()], expected)
    trained = forward_variants(model, batch, MASKS, tokens_per_pass=10**9)
    assert (logits - trained).abs().max() > 0.05


def test_norms_before_the_sublayers_cannot_be_put_back(adapted_model: Callable, random_examples: Callable):
    model = adapted_model("modernbert")
    with pytest.raises(
        ModelError, match=naming("--layernorm pretrained", "modernbert", "--layernorm trained")
    ):
        forward_variants(model, pack(random_examples([3]), [0]), MASKS, tokens_per_pass=9, norms="pretrained")


@pytest.mark.usefixtures("in_float64")
def test_a_span_head_reads_every_token(span_family: str, adapted_model: Callable, random_examples: Callable):
    model, encoded = adapted_model(span_family, spans=True), random_examples(LENGTHS)
    batch = pack(encoded, range(len(encoded)))
    rows = []
    with torch.no_grad():
        for example in batch.index:
            out = model.base(input_ids=torch.from_numpy(encoded.input_ids[example])[None])
            rows.append(torch.stack([out.start_logits[0], out.end_logits[0]], dim=1))
        close(model(batch), torch.cat(rows))
        masks = np.array([ALL_ON])
        close(forward_variants(model, batch, masks, tokens_per_pass=100)[0], torch.cat(rows))
    head = {name for role, name, _ in model.named_roles() if role == "head"}
    encoder = {name for name, _ in model.base.base_model.named_parameters(model.base.base_model_prefix)}
    assert head == {name for name, _ in model.base.named_parameters()} - encoder


@pytest.mark.usefixtures("in_float64")
def test_a_tag_head_reads_every_token(tag_family: str, adapted_model: Callable, random_examples: Callable):
    model, encoded = adapted_model(tag_family, tags=True), random_examples(LENGTHS)
    batch = pack(encoded, range(len(encoded)))
    with torch.no_grad():
        rows = [model.base(torch.from_numpy(encoded.input_ids[i])[None]).logits[0] for i in batch.index]
        close(model(batch), torch.cat(rows))
        masks = np.array([ALL_ON])
        close(forward_variants(model, batch, masks, tokens_per_pass=100)[0], torch.cat(rows))


@pytest.mark.usefixtures("in_float64")
def test_a_pre_norm_parallel_adapter_reads_the_stream(
    adapted_model: Callable, own_logits: Callable, random_examples: Callable
):
    """Both forwards agree, and with what the definition gives for the first sublayer."""
    model = adapted_model("modernbert", Adapters(5, 0.3, placement="parallel"))
    encoded = random_examples([7, 4])
    batch = pack(encoded, [0, 1])
    with torch.no_grad():
        close(packed(model, encoded), own_logits(model.base, encoded, padded=False))
        hidden = model.embed(batch)
        x, residual = model.layers[0].attention(hidden, batch.groups)
        assert torch.equal(residual, hidden)
        adapter = model.sites[0].adapter
        close(model.sites[0].finish(x, residual), x + adapter.change(x, hidden) + hidden)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("method", [Adapters(5, 0.3), FullFineTuning()], ids=str)
def test_gradients_equal_those_of_the_models_own_forward(
    family: str,
    method: object,
    adapted_model: Callable,
    own_logits: Callable,
    random_examples: Callable,
):
    model, encoded = adapted_model(family, method), random_examples(LENGTHS)
    labels = torch.arange(len(encoded)) % 3
    trained = model.train().choose_trained(frozenset())
    ours, own = (
        torch.autograd.grad(F.cross_entropy(logits, labels), list(trained.values()), allow_unused=True)
        for logits in (packed(model, encoded), own_logits(model.base, encoded, padded=False))
    )
    used = 0
    for name, one, other in zip(trained, ours, own):
        assert (one is None) == (other is None), name
        if one is not None:
            used += 1
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)
    assert used > 0.9 * len(trained)


@pytest.mark.usefixtures("in_float64")
def test_every_dropout_acts_in_training_and_only_there(
    family: str, adapted_model: Callable, random_examples: Callable, families: dict
):
    model, encoded = adapted_model(family), random_examples([8, 8, 11])
    model.train()
    places = [(n, m, "p") for n, m in model.base.named_modules() if isinstance(m, torch.nn.Dropout)]
    for name, module in model.base.named_modules():
        for attribute in ("attention_dropout", "dropout"):
            if isinstance(getattr(module, attribute, None), float):
                places.append((name, module, attribute))
    with torch.no_grad():
        still = packed(model, encoded)
        silent = []
        for name, module, attribute in places:
            setattr(module, attribute, 0.5)
            torch.manual_seed(0)
            if torch.allclose(packed(model, encoded), still, atol=1e-3):
                silent.append(name)
            close(packed(model.eval(), encoded), still)
            model.train()
            setattr(module, attribute, 0.0)
    # Transformers makes these and uses them nowhere.
    unused = {"albert": ".albert_layers.0.dropout"}
    assert all(name.endswith(unused.get(families[family].model_type, "none")) for name in silent)
    assert len(places) > len(silent)
