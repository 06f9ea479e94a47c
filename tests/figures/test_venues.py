from __future__ import annotations

from dataclasses import replace

import pytest
from tueplots import figsizes

from adapter_probe.figures.venues import PAPER, VENUES, FigureOptions
from adapter_probe.settings import FIGURE_FORMATS


@pytest.mark.parametrize(
    ("name", "full", "half"),
    [
        ("icml", figsizes.icml2024_full, figsizes.icml2024_half),
        ("aaai", figsizes.aaai2024_full, figsizes.aaai2024_half),
        ("neurips", figsizes.neurips2024, None),
        ("jmlr", figsizes.jmlr2001, None),
        ("tmlr", figsizes.tmlr2023, None),
    ],
)
def test_widths_are_those_of_tueplots(name, full, half):
    venue = VENUES[name]
    assert venue.full == pytest.approx(full()["figure.figsize"][0])
    if half:
        assert venue.half == pytest.approx(half()["figure.figsize"][0])
    else:
        assert 2 * venue.half < venue.full  # two fit side by side


def test_where_no_venue_is_named_the_sizes_are_those_of_icml():
    assert replace(VENUES["icml"], name="paper") == PAPER


def test_acl_by_its_style_file():
    assert VENUES["acl"].half * 2.54 == pytest.approx(7.7)
    assert VENUES["acl"].full * 2.54 == pytest.approx(16)


def test_letters_can_be_read():
    for venue in VENUES.values():
        assert venue.label >= venue.tick >= 7
        assert venue.half < venue.full


def test_a_figure_takes_the_width_it_prefers_unless_told():
    assert FigureOptions(PAPER).width("full") == PAPER.full
    assert FigureOptions(PAPER, "half").width("full") == PAPER.half
    assert set(FigureOptions(PAPER).formats) < set(FIGURE_FORMATS)
