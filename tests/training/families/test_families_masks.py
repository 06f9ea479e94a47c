"""Every family's adapters under masks, against plain runs with hooks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from encoder_families import Separate, plain_model, random_examples, token_logits
from exact import assert_close_in_float64 as close
from placed_models import Placed, Variants, place
from refusals import naming
from transformers import PreTrainedModel

from adapter_probe.data.encoding import Encoded
from adapter_probe.errors import ModelError
from adapter_probe.models.methods import Adapters
from adapter_probe.spans import span_variants

LENGTHS = (5, 12, 1, 5)
MASKS = np.concatenate([span_variants(3).masks, np.eye(6, dtype=bool), ~np.eye(6, dtype=bool)])


def tensors_of(model: Placed) -> dict[str, torch.Tensor]:
    """All weights, by their names in a checkpoint."""
    return {**model.before, **model.tensors}


def placed(base: PreTrainedModel) -> Placed:
    return place(base.double().eval(), Adapters(5, 0.3, activation="tanh"))


def variants(model: Placed, encoded: Encoded, norms: str = "trained", **options: object) -> Variants:
    return Variants(model, encoded, norms, **options)


@pytest.mark.quick("deberta-v3")
@pytest.mark.usefixtures("in_float64")
def test_every_mask_equals_a_run_of_its_own(family: str):
    model, encoded = placed(plain_model(family)), random_examples(LENGTHS)
    alone = Separate(family, model.base.config, tensors_of(model))
    expected = torch.stack([alone.run(encoded, mask, padded=True) for mask in MASKS])
    distances = torch.cdist(expected.flatten(1), expected.flatten(1))
    same = [(mask == MASKS).all(axis=1).sum() for mask in MASKS]
    assert ((distances < 1e-3).sum(dim=1).numpy() == same).all()  # no variant can pass for another
    run = variants(model, encoded)
    for tokens_per_pass in (1, 80, 10**9):
        close(run(MASKS, tokens_per_pass), expected)
    pairs = np.random.default_rng(0).permutation(len(encoded) * len(MASKS))[: 2 * len(MASKS)]
    rows, places = np.divmod(np.append(pairs, np.arange(len(encoded))), len(encoded))  # every example occurs
    for tokens_per_pass in (1, 10**9):
        close(run.pairs(places, MASKS[rows], tokens_per_pass), expected[rows, places])


@pytest.mark.quick("albert, two groups")
@pytest.mark.usefixtures("in_float64")
def test_pretrained_norms_follow_the_sites_that_are_off(encoder: str):
    model, encoded = placed(plain_model(encoder)), random_examples(LENGTHS)
    alone = Separate(encoder, model.base.config, tensors_of(model), model.before)
    expected = torch.stack([alone.run(encoded, mask) for mask in MASKS])
    logits = variants(model, encoded, "pretrained")(MASKS)
    close(logits, expected)
    assert (logits - variants(model, encoded)(MASKS)).abs().max() > 0.05


def test_norms_before_the_sublayers_cannot_be_put_back():
    with pytest.raises(ModelError, match=naming("--layernorm pretrained", "--layernorm trained")):
        variants(placed(plain_model("modernbert")), random_examples([3]), "pretrained")


@pytest.mark.slow
def test_lower_precisions_are_near(family: str):
    model, encoded = placed(plain_model(family)), random_examples(LENGTHS)
    exact = variants(model, encoded)(MASKS[:3])
    for dtype, part in ((torch.float32, 1e-4), (torch.bfloat16, 0.3)):
        low = variants(model, encoded, dtype=dtype)(MASKS[:3]).double()
        assert 0 < (low - exact).abs().max() < part * exact.std()


@pytest.mark.usefixtures("in_float64")
def test_a_span_head_reads_every_token(span_family: str):
    assert_every_token(placed(plain_model(span_family, spans=True)))


@pytest.mark.usefixtures("in_float64")
def test_a_tag_head_reads_every_token(tag_family: str):
    assert_every_token(placed(plain_model(tag_family, tags=True)))


def assert_every_token(model: Placed) -> None:
    encoded = random_examples(LENGTHS)
    wanted = token_logits(model.base, encoded, range(len(encoded)))
    close(variants(model, encoded)(MASKS[:1], 100)[0], wanted)
