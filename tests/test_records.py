"""Records read back as they were written, and every misfit told by its field."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from adapter_probe.records import RecordError, from_record, to_record

finite = st.floats(allow_nan=False, allow_infinity=False)


@dataclass(frozen=True)
class Inner:
    weight: float
    tag: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str
    count: int
    flag: bool
    inner: Inner
    sizes: tuple[int, ...] = ()
    scores: dict[str, float | None] | None = None
    anything: Any = None


inners = st.builds(Inner, finite, st.sampled_from("ab"))
outers = st.builds(
    Outer,
    st.text(),
    st.integers(),
    st.booleans(),
    inners,
    st.lists(st.integers()).map(tuple),
    st.none() | st.dictionaries(st.text(), st.none() | finite),
    st.none() | st.text() | st.lists(st.integers()),
)


@given(outers)
def test_round_trip_through_json(value):
    assert from_record(Outer, json.loads(json.dumps(to_record(value)))) == value


GOOD = {"name": "n", "count": 1, "flag": True, "inner": {"weight": 1.5}}


def test_defaults_and_a_whole_number_for_a_number():
    read = from_record(Outer, {**GOOD, "inner": {"weight": 2}})
    assert read == Outer("n", 1, True, Inner(2.0))
    assert isinstance(read.inner.weight, float)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": 5}, ["name", "5", "string"]),
        ({"count": True}, ["count", "true", "whole number"]),
        ({"count": 1.5}, ["count", "1.5", "whole number"]),
        ({"flag": 1}, ["flag", "1", "true", "false"]),
        ({"inner": []}, ["inner", "[]", "object"]),
        ({"inner": {"weight": "x"}}, ["inner.weight", '"x"', "number"]),
        ({"inner": {"weight": float("nan")}}, ["inner.weight", "NaN"]),
        ({"inner": {"weight": 1.0, "tag": "c"}}, ["inner.tag", '"c"', "a, b"]),
        ({"inner": {}}, ["'inner.weight'", "missing"]),
        ({"inner": {"weight": 1.0, "extra": 1}}, ["'inner.extra'", "weight, tag"]),
        ({"sizes": [1, "2"]}, ["sizes[1]", '"2"']),
        ({"sizes": 3}, ["sizes", "3", "list"]),
        ({"scores": {"f1": "high"}}, ["scores.f1", '"high"']),
        ({"scores": [1]}, ["scores", "[1]", "object"]),
        ({"colour": "red"}, ["'colour'", "name, count"]),
        ({"name": ["long"] * 50}, ["…"]),
    ],
)
def test_a_misfit_is_named(change, words):
    refuses(RecordError, words, from_record, Outer, {**GOOD, **change})


@pytest.mark.parametrize("record", [None, [], "text", 3])
def test_a_record_is_an_object(record):
    refuses(RecordError, (json.dumps(record), "object"), from_record, Outer, record)


def test_a_field_with_its_own_reader():
    read = from_record(Outer, {**GOOD, "inner": 4}, readers={"inner": lambda value: Inner(float(value))})
    assert read.inner == Inner(4.0)
