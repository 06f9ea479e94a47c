"""The estimated duration of a training."""

import math

import pytest
import torch

from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters, Biases, FullFineTuning, HeadOnly, LayerNormOnly, TopLayers
from adapter_probe.training.loop import seconds_of
from adapter_probe.training.request import TrainingRequest, load_inputs
from adapter_probe.training.settings import TrainingSettings


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "method",
    [Adapters(4), HeadOnly(), Biases(),
     *(pytest.param(m, marks=pytest.mark.slow) for m in (TopLayers(1), LayerNormOnly(), FullFineTuning()))],
)  # fmt: skip
def test_every_method_is_estimated_in_both_precisions(method, dtype, tiny_base, short_task):
    request = TrainingRequest(
        str(tiny_base("bert")), find_task(str(short_task)), method, TrainingSettings(dtype=dtype)
    )
    inputs = load_inputs(request)
    before = {name: tensor.clone() for name, tensor in inputs.base.model.state_dict().items()}
    assert 0 < seconds_of(request, inputs, torch.device("cpu")) < math.inf
    after = inputs.base.model.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
