"""Lines for PEFT's configuration, read by Python and by PEFT."""

from __future__ import annotations

import itertools
from operator import itemgetter
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft.utils.other import get_pattern_key

from adapter_probe.analysis.notable_spans import SpanDrop
from adapter_probe.analysis.peft_settings import kept_layers, next_lora, of_rank, pattern_of, rank_pattern
from adapter_probe.spans import Span


def read(line: str) -> dict:
    return eval(f"dict({line})")


def test_the_layers_that_stay():
    assert kept_layers(range(6), Span(2, 4)) == [0, 1, 5]
    assert kept_layers([1, 3, 5], Span(0, 3)) == [5]


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=40), st.integers(1, 64))
def test_ranks_keep_the_budget_and_the_order(shares: list[float], rank: int):
    ranks = list(read(rank_pattern(range(len(shares)), shares, rank))["rank_pattern"].values())
    assert sum(ranks) == rank * len(shares)
    assert min(ranks) >= 1
    order = np.argsort(shares)
    for low, high in itertools.pairwise(order):
        assert ranks[low] <= ranks[high] + 1  # remainders may differ by one between near equals


def test_shares_are_followed():
    line = rank_pattern([0, 1, 2, 3], [1.0, 0.0, -2.0, 3.0], 4)
    assert list(read(line)["rank_pattern"].values()) == [4, 1, 1, 10]


def test_peft_matches_the_patterns():
    other = pytest.importorskip("peft.utils.other")
    patterns = read(rank_pattern([1, 11], [1.0, 3.0], 4))["rank_pattern"]
    for layer in (1, 11):
        for name in (
            f"model.layers.{layer}.self_attn.q_proj",
            f"transformer.h.{layer}.attn.c_attn",
            f"model.layers.{layer}.mlp.experts.{12 - layer}.down_proj",
        ):
            assert other.get_pattern_key(patterns, name) == pattern_of(layer)
    for name in ("model.layers.21.mlp.up_proj", "model.layers.3.mlp.experts.1.up_proj"):
        assert other.get_pattern_key(patterns, name) == name


def studied(settings: dict, switched: np.ndarray) -> SimpleNamespace:
    """What is asked of the results of an ablation: its settings, and the sites that a variant switches."""
    return SimpleNamespace(settings=settings, switched=switched.reshape(-1, 2), modules=None)


def test_only_what_was_studied_is_changed():
    """Of layers 2 to 4 of six, layer 3 may go: the others stay, and ranks are moved among the three."""
    spans = {"longest_removable": {"1": SpanDrop(3, 3, 1, 0.0)}}
    layers = pd.DataFrame({"layer": range(6), "share_points": [np.nan, np.nan, 1.0, 0.0, 5.0, np.nan]})
    settings = {"lora_rank": 4, "site_parameters": [8, 8] * 6}
    switched = np.repeat([False, False, True, True, True, False], 2)
    lines = next_lora(studied(settings, switched), layers, spans)
    assert read(lines["layers_to_transform"]) == {"layers_to_transform": [0, 1, 2, 4, 5]}
    ranks = read(lines["rank_pattern"])["rank_pattern"]
    assert list(ranks) == [pattern_of(layer) for layer in (2, 3, 4)]
    assert sum(ranks.values()) == 3 * 4


@pytest.mark.parametrize(
    ("counts", "lines"), [([8, 8], 0), ([8, 0], 2)], ids=["both sites", "attention only"]
)
def test_settings_of_whole_layers_follow_from_whole_layers_alone(counts: list[int], lines: int):
    spans = {"longest_removable": {"1": SpanDrop(0, 0, 1, 0.0)}}
    layers = pd.DataFrame({"layer": range(2), "share_points": [0.0, 5.0]})
    settings = {"lora_rank": 4, "site_parameters": counts * 2}
    assert len(next_lora(studied(settings, np.array([True, False] * 2)), layers, spans)) == lines


KEYS = ["q", "v", "1.q", "layers.1.q", "layers.2", r"layers.0.*v", r"^\D*\.1\..*", r"layers\.[12]\.q|v"]
MODULES = [f"model.layers.{layer}.{name}" for layer in range(3) for name in "qvo"]


@given(
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 9)), unique_by=itemgetter(0), max_size=4),
    st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 99)), unique_by=itemgetter(0), max_size=4),
    st.integers(1, 9), st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_every_map_keeps_its_scale_at_the_rank_that_it_needs(ranks, alphas, r, needed, rslora):
    config = {
        "r": r, "lora_alpha": 16, "use_rslora": rslora,
        "rank_pattern": dict(ranks), "alpha_pattern": dict(alphas),
    }  # fmt: skip

    def of_module(config: dict, module: str) -> tuple[int, float]:
        rank, alpha = (
            config[name].get(get_pattern_key(config[name], module), config[default])
            for name, default in (("rank_pattern", "r"), ("alpha_pattern", "lora_alpha"))
        )
        return rank, alpha / (rank**0.5 if rslora else rank)

    found = of_rank(config, needed)
    for module in MODULES:
        (old, scale), (new, now) = of_module(config, module), of_module(found, module)
        assert new == min(old, needed)
        assert now == pytest.approx(scale)
