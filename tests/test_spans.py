from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.spans import Span, contiguous_spans, span_variants

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
    with pytest.raises(ValueError, match=f"0 <= first <= last, got {ends[0]}-{ends[1]}"):
        Span(*ends)


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
    assert variants.masks.shape == (len(expected), 2 * n_layers)
    assert variants.masks.dtype == bool
    for row, off in zip(variants.masks.tolist(), expected.values()):
        for layer in range(n_layers):
            for kind, on in zip(("attention", "ffn"), row[2 * layer : 2 * layer + 2]):
                assert on == (kind not in off.get(layer, ()))


@given(st.integers(1, 8), st.sampled_from(list(SITES)), st.booleans())
def test_rows_are_named_by_their_spans(n_layers: int, sites: str, complement: bool):
    variants = span_variants(n_layers, sites, complement)
    assert len(variants.names) == len(variants.spans) == len(variants.masks)
    named = {name: span for name, span in zip(variants.names, variants.spans) if span is not None}
    assert named == {f"{span.first}-{span.last}": span for span in contiguous_spans(n_layers)}
    assert variants.masks[0].all()
    assert variants.spans[0] is None


def test_the_paper_studies_78_spans_of_twelve_layers():
    assert len(span_variants(12).names) == 1 + 78
    assert len(span_variants(24).names) == 1 + 300
    both, floor = span_variants(12).masks, span_variants(12, complement=True).masks[-1]
    assert not both[11 + 1].any()  # 0-11 switches off everything
    assert not floor.any()


def test_complement_of_a_span_is_its_opposite():
    plain, kept = span_variants(5).masks[1:], span_variants(5, complement=True).masks[1:-1]
    assert np.array_equal(plain, ~kept)
