from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from adapter_probe.errors import ResultsError
from adapter_probe.spans import Span, choose_spans, contiguous_spans, effective_variants, span_variants

SITES = {"both": ("attention", "ffn"), "attention": ("attention",), "ffn": ("ffn",)}


@given(st.integers(1, 24))
def test_contiguous_spans_are_every_span_once_in_order(n_layers: int):
    spans = contiguous_spans(n_layers)
    assert len(spans) == n_layers * (n_layers + 1) // 2
    assert spans == sorted(set(spans))
    assert {(s.first, s.last) for s in spans} == {
        (a, b) for a in range(n_layers) for b in range(n_layers) if a <= b
    }


def test_a_span_counts_both_ends():
    assert (Span(2, 4).n_layers, Span(3, 3).n_layers, str(Span(0, 11))) == (3, 1, "0-11")


@pytest.mark.parametrize("ends", [(-1, 2), (3, 2), (-2, -1)])
def test_a_span_without_layers_is_refused(ends: tuple[int, int]):
    refuses(ValueError, (f"{ends[0]}-{ends[1]}",), Span, *ends)


@given(st.integers(1, 8), st.sampled_from(list(SITES)), st.booleans())
def test_span_variants_equal_a_loop_over_layers_and_sites(n_layers: int, sites: str, complement: bool):
    variants = span_variants(n_layers, sites, complement)
    expected = {"intact": {}}
    for first in range(n_layers):
        for last in range(first, n_layers):
            covered = range(first, last + 1)
            expected[f"{first}-{last}"] = {
                layer: SITES[sites] for layer in range(n_layers) if (layer in covered) != complement
            }
    if complement:
        expected["none"] = dict.fromkeys(range(n_layers), SITES[sites])
    assert variants.names == tuple(expected)
    assert variants.spans == (None, *contiguous_spans(n_layers), *[None] * complement)
    assert variants.masks.shape == (len(expected), 2 * n_layers)
    assert variants.masks.dtype == bool
    for row, off in zip(variants.masks.tolist(), expected.values()):
        for layer in range(n_layers):
            for kind, on in zip(("attention", "ffn"), row[2 * layer : 2 * layer + 2]):
                assert on == (kind not in off.get(layer, ()))


def test_sets_of_spans():
    def names(*choice: object, n_layers: int = 6) -> list[str]:
        return list(map(str, choose_spans(n_layers, *choice)[1]))

    assert names() == list(map(str, contiguous_spans(6)))
    assert names("single") == ["0-0", "1-1", "2-2", "3-3", "4-4", "5-5"]
    assert names("prefix") == ["0-0", "0-1", "0-2", "0-3", "0-4", "0-5"]
    assert names("suffix") == ["0-5", "1-5", "2-5", "3-5", "4-5", "5-5"]
    assert names("5..6") == ["0-4", "0-5", "1-5"]
    assert names("2..2", 2) == ["0-3", "2-5"]
    assert names("all", 4) == ["0-3", "0-5", "4-5"]  # the last group is what is left over
    assert names("prefix", 2, "1-5") == ["1-2", "1-4", "1-5"]
    assert names("single", 1, "2-3") == ["2-2", "3-3"]


@given(st.integers(1, 9), st.sampled_from(["all", "single", "prefix", "suffix", "1..2"]), st.integers(1, 4))
def test_every_set_has_the_floor_it_is_read_against(n_layers: int, spans: str, group: int):
    for complement in (False, True):
        variants = span_variants(n_layers, "ffn", complement, spans, min(group, n_layers))
        floor = np.tile([True, False], n_layers)
        assert (variants.masks == floor).all(axis=1).any()
        assert variants.masks[0].all()
        assert len(variants.names) == len(set(variants.names))
        assert (variants.masks[:, 0::2]).all()


def test_layers_that_take_no_part_stay_on():
    for complement in (False, True):
        variants = span_variants(6, "both", complement, layers="2-4")
        assert variants.masks[:, :4].all()
        assert variants.masks[:, 10:].all()
        assert {str(s) for s in variants.spans if s} == {"2-2", "2-3", "2-4", "3-3", "3-4", "4-4"}


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"spans": "some"}, ("--spans 'some'", "all, single, prefix, suffix", "1..4")),
        ({"spans": "3..2"}, ("--spans '3..2'", "1..4")),
        ({"spans": "0..2"}, ("--spans '0..2'", "1..4")),
        ({"spans": "1..٣"}, ("--spans '1..٣'", "1..4")),  # an Arabic-Indic digit, which int() takes
        ({"spans": f"1..{'9' * 5000}"}, ("--spans '1..", "…", "1..4")),  # too long for int()
        ({"group": 0}, ("--group 0", "1 to 6 layers")),
        ({"group": 7}, ("--group 7", "1 to 6 layers")),
        ({"group": 3, "layers": "2-3"}, ("--group 3", "1 to 2 layers")),
        ({"layers": "2-6"}, ("--layers 2-6", "0-5")),
        ({"layers": "4-2"}, ("--layers '4-2'", "0-5")),
        ({"layers": "٠-٣"}, ("--layers '٠-٣'", "0-5")),
        ({"layers": "3"}, ("--layers '3'", "0-5")),
        ({"spans": "7..9"}, ("--spans 7..9", "layers 0-5")),
    ],
)  # fmt: skip
def test_spans_that_are_not_there_are_refused(choice: dict, words: tuple[str, ...]):
    refuses(ResultsError, words, span_variants, 6, **choice)


@pytest.mark.parametrize("complement", [False, True])
@pytest.mark.parametrize("sites", ["both", "attention", "ffn"])
@pytest.mark.parametrize("choice", [{}, {"group": 2}, {"spans": "single"}, {"spans": "prefix"}])
def test_effective_variants_by_their_definition(sites: str, complement: bool, choice: dict):
    has_adapter = np.ones(12, dtype=bool)
    has_adapter[[2, 3, 6, 8, 9]] = False  # none in layers 1 and 4, a feed-forward one alone in layer 3
    whole = span_variants(6, sites, complement, **choice)
    found = effective_variants(whole, has_adapter)
    switched = (~(whole.masks | ~has_adapter)).any(axis=0)
    seen: dict[bytes, Span] = {}
    for span, mask in zip(whole.spans, whole.masks | ~has_adapter):
        if span and switched[2 * span.first : 2 * span.last + 2].any():
            known = seen.get(mask.tobytes())
            seen[mask.tobytes()] = span if known is None or span.n_layers < known.n_layers else known
    assert set(seen.values()) == {span for span in found.spans if span}
    assert sum(span is not None for span in found.spans) == len(seen)
    for name, span, mask in zip(found.names, found.spans, found.masks):
        row = whole.names.index(name)
        assert span == whole.spans[row]
        assert mask.tolist() == (whole.masks[row] | ~has_adapter).tolist()
    assert found.names[0] == "intact"
    assert ("none" in found.names) == ("none" in whole.names)
