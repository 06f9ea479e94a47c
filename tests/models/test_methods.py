from __future__ import annotations

import json

import pytest
from refusals import names, refused

from adapter_probe.errors import AdapterProbeError, ModelError, quote
from adapter_probe.models.methods import (
    METHOD_NAMES,
    Adapters,
    Biases,
    FullFineTuning,
    HeadOnly,
    LayerNormOnly,
    Method,
    PeftMethod,
    TopLayers,
    check_depth,
    method_from_json,
)
from adapter_probe.records import RecordError

METHODS: tuple[Method, ...] = (
    Adapters(),
    Adapters(1, 1e-7, activation="tanh", train_pooler=True),
    Adapters(512, 1.0, activation="relu", sites="ffn", placement="parallel", interaction="multiply"),
    Adapters(norm="batchnorm", hidden_layers=3, sites="attention"),
    Adapters(norm="layernorm"),
    TopLayers(0),
    TopLayers(12),
    LayerNormOnly(),
    FullFineTuning(),
    HeadOnly(),
    Biases(),
    PeftMethod('{"peft_type": "LORA", "r": 4}', 1e-3),
)


def test_the_defaults_are_the_papers():
    assert Adapters() == Adapters(
        size=64, init_std=1e-2, activation="gelu", train_pooler=False, sites="both",
        placement="sequential", interaction="add", norm="none", hidden_layers=1,
    )  # fmt: skip


def test_the_names_are_those_of_the_tables():
    own = ("adapters", "top_layers", "layernorm_only", "full", "head_only", "bitfit", "peft")
    assert own == METHOD_NAMES


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_json_brings_a_method_back(method: Method):
    record = method.to_json()
    assert record["name"] in METHOD_NAMES
    back = method_from_json(json.loads(json.dumps(record)))
    assert back == method
    assert type(back) is type(method)


def test_a_record_from_before_the_variants_opens():
    record = {"name": "adapters", "size": 8, "init_std": 0.5, "activation": "relu", "train_pooler": True}
    assert method_from_json(record) == Adapters(8, 0.5, activation="relu", train_pooler=True)
    assert (
        Adapters(8, 0.5, activation="relu", train_pooler=True).to_json() == record
    )  # so what is hashed from it stays the same
    assert Adapters(8, 0.5, activation="relu", train_pooler=True, norm="layernorm").to_json() == record | {
        "norm": "layernorm"
    }


@pytest.mark.parametrize(
    ("field", "value", "facts"),
    [
        ("size", 0, ("adapter size", "1 to 16,384", "0")),
        ("size", -3, ("adapter size", "1 to 16,384", "-3")),
        ("size", 16_385, ("adapter size", "1 to 16,384", "16385")),
        ("init_std", 0.0, ("init_std", "positive", "0.0")),
        ("init_std", -1e-2, ("init_std", "1e-12 to 100", "-0.01")),
        ("init_std", 1e-13, ("init_std", "1e-12 to 100", "1e-13")),
        ("init_std", 101.0, ("init_std", "1e-12 to 100", "101.0")),
        ("activation", "elu", ("gelu, gelu_tanh, relu, swish, tanh", "elu")),
        ("hidden_layers", 0, ("hidden_layers", "1 to 16", "0")),
        ("hidden_layers", 17, ("hidden_layers", "1 to 16", "17")),
        *(("skip_layers", own, ("skip_layers", "ascending", str(own))) for own in ([1, 1], [-1], [2, 0])),
    ],
)
def test_a_value_out_of_range_is_named(field: str, value: object, facts: tuple[str, ...]):
    assert names(refused(Adapters, **{field: value}, error=ModelError), *facts)
    assert names(refused(method_from_json, document(**{field: value}), error=AdapterProbeError), *facts)


@pytest.mark.parametrize(
    ("field", "value", "facts"),
    [
        ("size", 2.5, ("adapter size", "1 to 16,384", "2.5")),
        ("size", "64", ("adapter size", "1 to 16,384", "'64'")),
        ("size", True, ("adapter size", "1 to 16,384", "True")),
        ("init_std", float("nan"), ("init_std", "1e-12 to 100", "nan")),
        ("init_std", float("inf"), ("init_std", "1e-12 to 100", "inf")),
        ("init_std", "0.1", ("init_std", "1e-12 to 100", "'0.1'")),
        ("skip_layers", 1, ("skip_layers", "ascending", "not 1")),
        ("hidden_layers", 1.0, ("hidden_layers", "1 to 16", "1.0")),
        ("sites", "all", ("--sites", "both, attention, ffn", "'all'")),
        ("placement", "before", ("--placement", "sequential, parallel", "'before'")),
        ("interaction", "gate", ("--interaction", "add, multiply", "'gate'")),
        ("norm", "rms", ("--norm", "none, layernorm, batchnorm", "'rms'")),
    ],
)
def test_an_unfit_value_is_named(field: str, value: object, facts: tuple[str, ...]):
    assert names(refused(Adapters, **{field: value}, error=ModelError), *facts)
    message = refused(method_from_json, document(**{field: value}), "a.method", error=AdapterProbeError)
    assert names(message, f"a.method.{field}", quote(value))


def test_the_limits_themselves_are_allowed():
    for method in (Adapters(16_384), Adapters(1), Adapters(init_std=1e-12), Adapters(init_std=100.0)):
        check_depth(method, 1)


def test_a_layernorm_over_a_single_number_is_refused():
    said = refused(Adapters, 1, norm="layernorm", error=ModelError)
    assert names(said, "adapter size 1", "'layernorm'")
    assert Adapters(2, norm="layernorm").size == 2
    assert Adapters(1, norm="batchnorm").size == 1


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"name": "lora"}, ("method.name", "'lora'", "adapters, top_layers, layernorm_only, full")),
        ({"name": None}, ("method.name", "None")),
        ({"name": ["adapters"]}, ("method.name", "['adapters']")),
        ({"width": 3}, ("'method.width'", "activation", "train_pooler")),
        ({"init_std": "small"}, ("method.init_std", '"small"', "number")),
        ({"name": "top_layers"}, ("'method.activation'", "k")),
        ({"skip_layers": ["0"]}, ("method.skip_layers[0]", '"0"', "whole number")),
        ({"skip_layers": 1}, ("method.skip_layers", "1", "list")),
    ],
)
def test_a_document_that_does_not_fit_is_refused(changes: dict, facts: tuple[str, ...]):
    assert names(refused(method_from_json, document(**changes), error=RecordError), *facts)


@pytest.mark.parametrize("record", [None, [], "adapters", 3])
def test_what_is_no_record_is_refused(record: object):
    said = refused(method_from_json, record, error=RecordError)
    assert names(said, repr(record), "object")


@pytest.mark.parametrize("k", [-1, 2.0, "2", True, None])
def test_a_k_that_is_no_number_of_layers_is_refused(k: object):
    assert names(refused(TopLayers, k, error=ModelError), "k", "0", repr(k))
    refused(method_from_json, {"name": "top_layers", "k": k}, error=AdapterProbeError)


def test_a_k_above_the_depth_is_refused_and_the_depth_named():
    said = refused(check_depth, TopLayers(13), 12, error=ModelError)
    assert names(said, "k 13", "12 layers", "0 to 12")
    for method in (TopLayers(12), FullFineTuning(), Adapters()):
        check_depth(method, 12)
    said = refused(check_depth, Adapters(skip_layers=(0, 3)), 3, error=ModelError)
    assert names(said, "skip_layers [0, 3]", "3 layers", "0 to 2")


def document(**changes: object) -> dict:
    return {**Adapters().to_json(), **changes}
