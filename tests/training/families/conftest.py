"""Which of the families of `tests/fixtures/encoder_families.py` a test runs for.

A test that asks for `family` runs for each of them, one that asks for `encoder` (with norms after the
sublayers), `span_family` or `tag_family` for these, and one that asks for `kind` for one of those that are
alike. The quick tests are those of `QUICK`; of a test marked ``quick(name)``, that of this one alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from encoder_families import FAMILIES, config_of
from exact import Float64
from tiers import slow_unless
from transformers import MODEL_FOR_QUESTION_ANSWERING_MAPPING, MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING

QUICK = ("albert, two groups", "deberta-v3")
"""Kinds of layers, for the quick tests: norms after the sublayers with weights shared by layers, and
disentangled attention."""


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "quick(name): the only family whose test is among the quick ones")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("quick")
    quick = mark.args if mark else QUICK
    for argument, names in _asked().items():
        if argument in metafunc.fixturenames:
            metafunc.parametrize(argument, slow_unless(quick.__contains__, names))


@cache
def _asked() -> dict[str, list[str]]:
    """The families that a test's argument goes through."""
    return {
        "span_family": [
            name for name in FAMILIES if type(config_of(name)) in MODEL_FOR_QUESTION_ANSWERING_MAPPING
        ],
        "tag_family": [
            name for name in FAMILIES if type(config_of(name)) in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING
        ],
        "family": list(FAMILIES),
        "encoder": [name for name, family in FAMILIES.items() if not family.pre_norm],
        "kind": [
            "distilbert",
            "mpnet",
            "albert",
            "albert, two groups",
            "deberta-v3",
            "deberta",
            "modernbert",
        ],
    }


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Whatever the test computes is in float64, also what a model's own code does in float32."""
    with Float64():
        yield
