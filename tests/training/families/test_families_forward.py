"""What trains in every encoder computes what Transformers' own modules with adapters written out compute."""

from __future__ import annotations

import pytest
import torch
from encoder_families import own_logits, plain_model, random_examples, separate, token_logits, trained_model
from exact import assert_close_in_float64 as close
from torch.nn import functional as F
from training_models import trained

from adapter_probe.data.encoding import Encoded
from adapter_probe.data.packing import pack
from adapter_probe.models.methods import Adapters, FullFineTuning
from adapter_probe.training.model import TrainingModel

LENGTHS = (5, 12, 1, 5, 40, 3)
ALL_ON = [True] * 6


def outputs(model: TrainingModel, encoded: Encoded) -> torch.Tensor:
    """In the dataset's order."""
    batch = pack(encoded, range(len(encoded)))
    return model(batch)[torch.from_numpy(batch.index).argsort()]


@pytest.mark.usefixtures("in_float64")
def test_padded_rows_give_what_every_text_gives(family: str):
    encoded, model = random_examples(LENGTHS), trained_model(family)
    alone = separate(family, model)
    with torch.no_grad():
        intact = own_logits(plain_model(family), encoded, padded=False)
        logits = outputs(model, encoded)
    assert intact.std(dim=0).max() > 0.05
    assert (logits - intact).abs().max() > 0.1
    for padded in (False, True):
        close(logits, alone.run(encoded, ALL_ON, padded=padded))


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("method", [Adapters(5, 0.3, activation="tanh"), FullFineTuning()], ids=str)
def test_gradients_equal_those_of_every_text_alone(family: str, method: object):
    model, encoded = trained_model(family, method), random_examples(LENGTHS)
    alone, labels = separate(family, model), torch.arange(len(encoded)) % 3
    own = dict(alone.plain.named_parameters()) | {n: t.requires_grad_() for n, t in alone.adapters.items()}
    wanted = trained(model)
    assert wanted.keys() <= own.keys()
    ours = torch.autograd.grad(
        F.cross_entropy(outputs(model.train(), encoded), labels), list(wanted.values()), allow_unused=True
    )
    others = torch.autograd.grad(
        F.cross_entropy(alone.run_with_gradient(encoded), labels), [own[n] for n in wanted], allow_unused=True
    )
    used = 0
    for name, one, other in zip(wanted, ours, others):
        assert (one is None) == (other is None), name
        if one is not None:
            used += 1
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12, msg=name)
    assert used > 0.9 * len(wanted)


@pytest.mark.usefixtures("in_float64")
def test_a_span_head_reads_every_token(span_family: str):
    model, encoded = trained_model(span_family, spans=True), random_examples(LENGTHS)
    batch = pack(encoded, range(len(encoded)))
    with torch.no_grad():
        close(model(batch), token_logits(model.base, encoded, batch.index))
    head = {name for role, name, _ in model.named_roles() if role == "head"}
    encoder = {name for name, _ in model.base.base_model.named_parameters(model.base.base_model_prefix)}
    assert head == {name for name, _ in model.base.named_parameters()} - encoder


@pytest.mark.usefixtures("in_float64")
def test_a_tag_head_reads_every_token(tag_family: str):
    model, encoded = trained_model(tag_family, tags=True), random_examples(LENGTHS)
    batch = pack(encoded, range(len(encoded)))
    with torch.no_grad():
        close(model(batch), token_logits(model.base, encoded, batch.index))
