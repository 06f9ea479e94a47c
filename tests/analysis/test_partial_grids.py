"""Tables of studies that switch some spans only: what needs the others is empty, and never wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from ablation_facts import changed

from adapter_probe.ablation_results import AblationResults
from adapter_probe.analysis.ablation_tables import ablation_tables
from adapter_probe.analysis.score_changes import span_units
from adapter_probe.analysis.summary import summarise
from adapter_probe.spans import VariantSet, span_variants

NUMBERS = ["score", "delta_points", "ci_low_points", "ci_high_points", "p_value", "p_holm"]
INTERACTION = ["interaction_points", "interaction_low_points", "interaction_high_points"]


def part_of(results: AblationResults, spans: str) -> AblationResults:
    """The rows that a smaller study would have had."""
    variants = span_variants(results.masks.shape[1] // 2, spans=spans)
    whole = {mask.tobytes(): row for row, mask in enumerate(results.masks)}
    return with_rows(results, variants, [whole[mask.tobytes()] for mask in variants.masks])


def with_rows(results: AblationResults, variants: VariantSet, rows: list[int]) -> AblationResults:
    spans = [(-1, -1) if span is None else (span.first, span.last) for span in variants.spans]
    return changed(
        results, masks=variants.masks, spans=np.array(spans, np.int64), row_names=variants.names,
        outputs=results.outputs[rows],
    )  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("spans", ["single", "prefix", "suffix", "1..2", "2..3"])
def test_what_is_known_is_as_in_the_whole_study(make_results, spans):
    whole = make_results(5)
    tables, some = (ablation_tables(r, n_draws=200) for r in (whole, part_of(whole, spans)))
    both = tables.spans.merge(some.spans, on=["first", "last"], suffixes=("", "_some"))
    assert len(both) == len(some.spans)
    for name in NUMBERS[:-1]:  # Holm's correction is for fewer tests
        np.testing.assert_array_equal(both[name], both[f"{name}_some"])
    for name in INTERACTION:
        known = both[f"{name}_some"].notna()
        np.testing.assert_allclose(both[name][known], both[f"{name}_some"][known], rtol=1e-12)
    assert some.spans["interaction_points"].notna().any() == (spans != "2..3")
    assert some.layers["share_points"].isna().all()
    assert some.layers["layer"].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.filterwarnings("error")
def test_groups_are_the_layers_of_a_smaller_model(make_results):
    small = make_results(3)
    grouped = with_rows(small, span_variants(6, group=2), list(range(7)))
    expected, found = (ablation_tables(results, n_draws=300) for results in (small, grouped))
    assert found.spans["last"].tolist() == (2 * expected.spans["last"] + 1).tolist()
    same = [*NUMBERS, *INTERACTION, "non_monotone"]
    pd.testing.assert_frame_equal(found.spans[same], expected.spans[same])
    assert found.layers["layer"].tolist() == [0, 2, 4]
    assert found.layers["last_layer"].tolist() == [1, 3, 5]
    same = ["delta_points", "p_holm", "share_points", "share_low_points", "share_high_points"]
    pd.testing.assert_frame_equal(found.layers[same], expected.layers[same])
    told, small_told = summarise(grouped, found), summarise(small, expected)
    single = small_told.largest_single_layer_drop
    first = 2 * single.layer
    assert told.largest_single_layer_drop == replace(single, layer=first, last_layer=first + 1)
    assert (told.n_layers, small_told.n_layers) == (6, 3)


def test_a_range_of_layers_is_a_model_of_its_own(make_results):
    small = make_results(3)
    ranged = with_rows(small, span_variants(6, layers="2-4"), list(range(7)))
    expected, found = (ablation_tables(results, n_draws=300) for results in (small, ranged))
    pd.testing.assert_frame_equal(found.spans[INTERACTION], expected.spans[INTERACTION])
    shares = found.layers["share_points"]
    np.testing.assert_array_equal(shares[2:5], expected.layers["share_points"])
    assert shares[[0, 1, 5]].isna().all()


def test_what_no_layer_was_studied_by_itself_for_has_no_single_layer(make_results):
    whole = make_results(4)
    for spans in ("prefix", "suffix", "2..3"):
        some = part_of(whole, spans)
        assert summarise(some, ablation_tables(some, n_draws=50)).single_layer is None
        assert span_units(ablation_tables(some, n_draws=50).spans) is None


def test_everything_off_is_in_every_study(make_results):
    whole = make_results(4)
    expected = summarise(whole).removed_score
    for spans in ("single", "prefix", "suffix", "2..3"):
        assert summarise(part_of(whole, spans)).removed_score == expected
