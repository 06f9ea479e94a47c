from __future__ import annotations

import json

import pytest

from adapter_probe.errors import ModelError
from adapter_probe.models import bottleneck
from adapter_probe.models.methods import ACTIVATIONS, Adapters


def test_the_defaults_are_the_papers():
    assert Adapters() == Adapters(size=64, init_std=1e-2, activation="gelu", train_pooler=False)


@pytest.mark.parametrize("method", [Adapters(), Adapters(1, 1e-7, "tanh", True), Adapters(512, 1.0, "relu")])
def test_json_brings_a_method_back(method: Adapters):
    assert Adapters.from_json(json.loads(json.dumps(method.to_json()))) == method
    assert method.to_json()["name"] == "adapters"


def test_every_activation_named_can_be_computed():
    assert set(ACTIVATIONS) == set(bottleneck._ACTIVATIONS)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("size", 0, "adapter size 0"),
        ("size", -3, "adapter size -3"),
        ("size", 2.5, "adapter size 2.5"),
        ("size", "64", "adapter size '64'"),
        ("size", True, "adapter size True"),
        ("init_std", 0.0, "init_std 0.0"),
        ("init_std", -1e-2, "init_std -0.01"),
        ("init_std", float("nan"), "init_std nan"),
        ("init_std", float("inf"), "init_std inf"),
        ("activation", "elu", "gelu, gelu_tanh, relu, swish, tanh"),
    ],
)
def test_a_value_out_of_range_is_named(field: str, value: object, words: str):
    for make in (lambda: Adapters(**{field: value}), lambda: Adapters.from_json(document(**{field: value}))):
        with pytest.raises(ModelError) as caught:
            make()
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "lora"}, "method 'lora' is not one of adapters"),
        ({"name": None}, "method None is not one of adapters"),
        ({"width": 3}, "width"),
        ({"init_std": "small"}, "init_std"),
    ],
)
def test_a_document_that_does_not_fit_is_refused(changes: dict, words: str):
    with pytest.raises(ModelError) as caught:
        Adapters.from_json(document(**changes))
    assert words in str(caught.value)


def document(**changes: object) -> dict:
    return {**Adapters().to_json(), **changes}
