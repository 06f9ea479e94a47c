"""The estimated duration of a training."""

import math

import pytest
import torch
from trainings import request_of

from adapter_probe.models.methods import Adapters, Biases, FullFineTuning, HeadOnly, LayerNormOnly, TopLayers
from adapter_probe.training.loop import seconds_of
from adapter_probe.training.request import load_inputs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "method",
    [Adapters(4), HeadOnly(), Biases(),
     *(pytest.param(m, marks=pytest.mark.slow) for m in (TopLayers(1), LayerNormOnly(), FullFineTuning()))],
)  # fmt: skip
def test_every_method_is_estimated_in_both_precisions(method, dtype, tiny_base, short_task):
    request = request_of(tiny_base("bert"), short_task, method, dtype=dtype, batch_size=32)
    inputs = load_inputs(request)
    before = {name: tensor.clone() for name, tensor in inputs.base.model.state_dict().items()}
    assert 0 < seconds_of(request, inputs, torch.device("cpu")) < math.inf
    after = inputs.base.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
