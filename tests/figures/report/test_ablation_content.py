"""The section of an ablation against the files it was made from: numbers, steps, places, words."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from changed_files import edit
from refusals import names
from rounding import printed
from span_tables import span_grid

from adapter_probe.analysis.removable import removable_table, tolerance_border
from adapter_probe.analysis.score_changes import drop_points
from adapter_probe.figures.ablation_words import Words
from adapter_probe.figures.levels import drop_scale
from adapter_probe.figures.report.ablation_section import _single
from adapter_probe.figures.report.page import map_studies
from adapter_probe.figures.report.span_section import (
    MapStudy,
    content,
    interactions_of,
    section,
    slider_steps,
)
from adapter_probe.figures.table_layouts import lay_out_removable
from adapter_probe.metrics import score
from adapter_probe.results.ablation_files import load_ablation, read_spans, write_spans
from adapter_probe.results.atomic import write_csv, write_json
from adapter_probe.studies.load import load


@pytest.fixture(scope="module")
def study_of(reported: Callable) -> Callable[..., MapStudy]:
    """``study_of(folder, ...) -> study``, ready for the page."""
    return lambda folder, **more: map_studies([reported(folder, **more)])[0]


@pytest.fixture(scope="module")
def folder(make_ablation: Callable[..., Path]) -> Path:
    """The usual ablation, of four layers."""
    return make_ablation(n_layers=4)


@pytest.fixture(scope="module")
def study(study_of: Callable, folder: Path) -> MapStudy:
    """The usual ablation, ready for the page."""
    return study_of(folder)


@pytest.fixture(scope="module")
def content_of(study_of: Callable) -> Callable[..., dict]:
    """``content_of(folder, ...) -> content`` as the script reads it."""
    return lambda folder, **more: json.loads(
        json.dumps(content(study_of(folder, **more), 0), allow_nan=False)
    )


SITES = {"attention": "attention", "ffn": "feed-forward"}


def facts_of(found: dict, head: str) -> list:
    return [row[found["facts"]["heads"].index(head)] for row in found["facts"]["rows"]]


def cells_of(svg: str) -> dict[int, tuple[float, ...]]:
    """Place and size of the shape over each span, by row."""
    root = ElementTree.fromstring(svg)
    shapes = [node.attrib for node in root.iter("rect") if node.get("class") == "cell"]
    return {int(a["data-row"]): tuple(float(a[n]) for n in ("x", "y", "width", "height")) for a in shapes}


def test_every_span_has_its_numbers(study: MapStudy, folder: Path):
    frame, results, found = read_spans(folder), load_ablation(folder), content(study, 0)
    drop, interaction = found["views"]
    assert found["spans"] == [tuple(pair) for pair in frame[["first", "last"]].to_numpy().tolist()]
    said = results.outputs.argmax(-1)
    for row, given in frame.iterrows():
        variant = results.row_names.index(f"{given['first']:.0f}-{given['last']:.0f}")
        was, now = (said[v] == results.scored_with for v in (0, variant))
        number, _, interval, _, places, _ = drop["rows"][row]
        assert number == printed(-given["delta_points"])
        assert interval == f"{printed(-given['ci_high_points'])} to {printed(-given['ci_low_points'])} points"
        assert places == sorted(places)
        assert interaction["rows"][row][0] == printed(given["interaction_points"])
        assert facts_of(found, "score")[row][0].startswith(printed(100 * given["score"]))
        counts = [int(n) for n in re.findall(r"\d+", facts_of(found, "examples")[row][0])]
        assert counts == [sum(was & ~now), sum(~was & now)]
        removed = 250 * (given["last"] - given["first"] + 1)
        assert facts_of(found, "removed")[row][0].startswith(f"{removed:,.0f} ")


def test_places_on_the_axis_are_to_scale(study: MapStudy, folder: Path):
    frame, (drop, _) = read_spans(folder), content(study, 0)["views"]
    values = np.concatenate([-frame[name] for name in ("ci_high_points", "delta_points", "ci_low_points")])
    places = np.array([row[4] for row in drop["rows"]]).T.ravel()
    slope, start = np.polyfit(values, places, 1)
    np.testing.assert_allclose(slope * values + start, places, atol=0.06)
    assert slope * 0 + start == pytest.approx(drop["zero"], abs=0.06)
    assert (slope > 0, places.min() >= 0, places.max() <= 100) == (True, True, True)


def test_the_csv_is_the_table(study: MapStudy, folder: Path):
    got, frame = pd.read_csv(io.StringIO(content(study, 0)["csv"])), read_spans(folder)
    pd.testing.assert_frame_equal(got, frame, check_dtype=False, rtol=1e-9)


@pytest.mark.parametrize("n_layers", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 6, 16))])
@pytest.mark.slow
def test_every_cell_has_its_shape_over_it(study_of, make_ablation: Callable[..., Path], n_layers: int):
    """Row by row and column by column, all of one size, and none outside the drawing."""
    study = study_of(make_ablation(n_layers=n_layers))
    for view in study.views:
        cells = cells_of(view.map.svg)
        assert sorted(cells) == list(range(n_layers * (n_layers + 1) // 2))
        _, _, wide, high = (float(n) for n in ElementTree.fromstring(view.map.svg).get("viewBox").split())
        sides = np.array([cell[2:] for cell in cells.values()])
        np.testing.assert_allclose(sides, sides[0, 0], atol=0.15)
        size, corner = sides[0, 0], np.array(cells[n_layers - 1][:2]) - [(n_layers - 1) * sides[0, 0], 0]
        for row, (first, last) in enumerate(study.pairs):
            np.testing.assert_allclose(cells[row][:2], corner + size * np.array([last, first]), atol=0.6)
        assert min(corner) >= 0
        assert corner[0] + n_layers * size <= wide
        assert corner[1] + n_layers * size <= high


def test_the_drawing_is_the_projects_figure(study: MapStudy):
    """Its cells have the colours of the levels, and under each shape lies the cell of that colour."""
    drops = drop_points(study.spans["delta_points"])
    colours = drop_scale(drops).colours(drops)
    root = ElementTree.fromstring(study.views[0].map.svg)
    painted = {}
    for node in root.iter("path"):
        corner = re.match(r"M([\d.]+) ([\d.]+)H", node.get("d", ""))
        if corner and node.get("fill") in colours:
            painted[tuple(float(n) for n in corner.groups())] = node.get("fill")
    for row, (x, y, *_) in cells_of(study.views[0].map.svg).items():
        (near,) = [
            fill for (left, top), fill in painted.items() if abs(left - x) < 0.2 and abs(top - y) < 0.2
        ]
        assert near == colours[row]


def test_an_svg_has_no_style_and_no_foreign_reference(study: MapStudy):
    ids: set[str] = set()
    for view in study.views:
        nodes = list(ElementTree.fromstring(view.map.svg).iter())
        own = {node.get("id") for node in nodes if node.get("id")}
        assert not own & ids, "ids are unique in the page"
        ids |= own
        assert not any("style" in node.attrib or node.tag == "style" for node in nodes)
        values = [value for node in nodes for value in node.attrib.values()]
        assert not any(value.startswith(("http", "data:")) for value in values)
        assert {found for value in values for found in re.findall(r"^(?:url\()?#(m[\w-]+)", value)} <= own


@pytest.mark.parametrize("complement", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_slider_shows_the_best_span_and_the_border_at_each_step(
    study_of, make_ablation, study, folder, complement: bool
):
    if complement:
        folder = make_ablation(complement=True)
        study = study_of(folder)
    frame = read_spans(folder)
    spans, steps = list(frame.itertuples()), study.steps
    cells = cells_of(study.views[0].map.svg)
    size, (x0, y0) = cells[0][2], cells[0][:2]
    tolerances = [step["tolerance"] for step in steps]
    assert tolerances == sorted({*tolerances, 0.0, 0.5, 1.0, 1.9, 2.0})
    for step in steps:
        for basis, column in (("estimate", "delta_points"), ("bound", "bound_low_points")):
            fits = [s for s in spans if round(-getattr(s, column), 9) <= step["tolerance"]]
            sign = 1 if complement else -1
            best = min(
                fits, key=lambda s: (sign * s.n_layers, round(-s.delta_points, 9), s.first), default=None
            )
            assert step[basis] == (None if best is None else best.Index)
        drops = drop_points(span_grid(frame))
        assert step["within"] == np.nansum(drops <= step["tolerance"])
        edges = set()
        for x, y, way, end in re.findall(r"M([\d.]+) ([\d.]+)([VH])([\d.]+)", step["line"]):
            ends = (x, end) if way == "V" else (end, y)
            edges.add(
                tuple(
                    (round((float(a) - x0) / size), round((float(b) - y0) / size)) for a, b in ((x, y), ends)
                )
            )
        assert edges == set(tolerance_border(drops, step["tolerance"]))


@pytest.mark.slow
def test_studies_of_the_same_spans_have_the_same_steps(reported, make_ablation: Callable[..., Path]):
    studies = map_studies([reported(make_ablation(seed=seed)) for seed in (0, 1)])
    one, two = ([step["tolerance"] for step in study.steps] for study in studies)
    assert one == two
    assert studies[0].title != studies[1].title


def test_layers_without_adapters_do_not_make_a_span_longer(reported, make_ablation: Callable[..., Path]):
    """As in the table of removable spans: of two spans, the one with more adapters is the longer one."""
    spans = reported(make_ablation()).record.spans
    pairs = list(zip(spans["first"], spans["last"]))
    cost = np.array([{(0, 3): -0.2, (4, 5): -0.3}.get(pair, -50.0) for pair in pairs])
    spans = spans.assign(delta_points=cost, bound_low_points=cost)
    for parameters, longest in ((None, (0, 3)), ((9,) * 6, (0, 3)), ((9, 0, 0, 0, 9, 9), (4, 5))):
        steps = slider_steps(spans, Words("accuracy"), 1.0, parameters=parameters)
        (step,) = (step for step in steps if step["tolerance"] == 1)
        assert [pairs[step[basis]] for basis in ("estimate", "bound")] == [longest] * 2


def test_a_table_without_statistics_and_no_predictions_is_enough(study_of, make_ablation):
    folder = make_ablation(n_layers=3, statistics=False)
    (folder / "predictions.npz").unlink()
    study = study_of(folder)
    found = content(study, 0)
    assert (found["confusion"], found["examples"]) == (None, None)
    assert found["facts"]["heads"] == ["score", "removed"]
    assert all(step["bound"] is None for step in found["steps"])
    assert section(study, 0).count("<table>") == 1


@pytest.mark.slow
def test_an_undefined_delta_is_said_to_be_undefined(content_of, make_ablation: Callable[..., Path]):
    folder = make_ablation(n_layers=3)
    frame = read_spans(folder)
    frame.loc[1, ["score", "delta_points", "ci_low_points", "ci_high_points"]] = np.nan
    write_spans(folder, frame)
    found = content_of(folder)
    assert found["views"][0]["rows"][1][0] == "undefined"
    assert found["views"][0]["rows"][1][4] == [None] * 3


@pytest.mark.parametrize(
    ("sites", "expected"),
    [
        ("both", 500),
        *(pytest.param(*own, marks=pytest.mark.slow) for own in (("attention", 200), ("ffn", 300))),
    ],
)
@pytest.mark.slow
def test_parameters_are_those_of_the_switched_sites(study_of, make_ablation, sites: str, expected: int):
    study = study_of(make_ablation(n_layers=2, sites=sites))
    where = "in 2 layers" if sites == "both" else f"in 2 layers, {SITES[sites]} only"
    assert ("adapter parameters", f"{expected:,}", where) in study.tiles
    assert any("that the study switches" in row[1] for row in facts_of(content(study, 0), "removed")) == (
        sites != "both"
    )
    assert any(step["prune"] for step in study.steps) == (sites == "both")


@pytest.mark.slow
def test_settings_say_what_made_the_numbers_but_not_where_it_lay(study_of, make_ablation):
    record = {
        "method": {"name": "adapters", "size": 64},
        "base": {"name": "/home/somebody/models/gte-small", "revision": None},
        "task": {"files": {"train": ["/home/somebody/private.tsv"]}},
    }
    made = section(study_of(make_ablation(), checkpoint=record), 0)
    for name, value in (("checkpoint.method.size", "64"), ("checkpoint.base.name", "gte-small")):
        assert f"<dt>{name}</dt><dd>{value}</dd>" in made
    assert "somebody" not in made


@pytest.mark.slow
def test_groups_of_layers_stand_side_by_side(study_of, tmp_path: Path):
    units = [(2, 3), (4, 5), (6, 7)]  # layers 0 and 1 have no adapters
    rows_of = [(units[i][0], units[j][1]) for i in range(3) for j in range(i, 3)]
    frame = pd.DataFrame(rows_of, columns=["first", "last"])
    frame = frame.assign(
        n_layers=frame["last"] - frame["first"] + 1,
        score=0.8,
        delta_points=[0.0, -2, -3, 0, -4, 0],
        n_examples=9,
    )
    write_spans(tmp_path, frame)
    summary = {
        "task": "t", "split": "validation", "study": "ablated", "metric": "accuracy", "n_examples": 9,
        "n_layers": 8, "intact_score": 0.8, "removed_delta_points": -3.0, "majority_score": 0.5,
    }  # fmt: skip
    write_json(tmp_path / "summary.json", summary)
    study = study_of(tmp_path)
    cells = cells_of(study.views[0].map.svg)
    size, (x0, y0) = cells[0][2], cells[0][:2]
    places = [
        (round((y - y0) / size), round((x - x0) / size)) for x, y, *_ in (cells[row] for row in range(6))
    ]
    assert places == [(i, j) for i in range(3) for j in range(i, 3)]
    (step,) = (step for step in study.steps if step["tolerance"] == 1)
    assert (step["estimate"], step["within"]) == (0, 3)

    # Its table of groups names both ends.
    first, last = zip(*units)
    shares = {"layer": first, "last_layer": last, "delta_points": [0.0, 0, 0], "share_points": [1.0, 1, 1]}
    write_csv(tmp_path / "layers.csv", pd.DataFrame(shares))
    said = section(study_of(tmp_path), 0)
    table = said[said.index("3 groups of layers") :]
    assert re.findall(r"<t[hd][^>]*>(\d)</t[hd]><t[hd][^>]*>(\d)</t[hd]>", table)[:3] == [
        (str(a), str(b)) for a, b in units
    ]


def test_kept_layers_are_counted_among_those_of_the_study():
    """Of 6 layers, 2 to 5 are studied: where layer 4 alone is kept, three others are off, 0 and 1 on."""
    pairs = [(i, j) for i in range(2, 6) for j in range(i, 6)]
    frame = pd.DataFrame(pairs, columns=["first", "last"])
    frame = frame.assign(n_layers=frame["last"] - frame["first"] + 1, delta_points=-9.0)
    frame.loc[(frame["first"] == 4) & (frame["last"] == 4), "delta_points"] = 0.0
    counts = [0, 0, 100, 100, 100, 100]
    steps = slider_steps(frame, Words("accuracy", "kept"), 1.0, parameters=counts, partly=True)
    (said,) = next(step["advice"] for step in steps if step["tolerance"] == 1)
    assert said[3] == "layer 4"
    assert "without 3 of 4 layers, 300 of 400 parameters that the study switches (75%)" in said[4]


def test_groups_are_single_where_nothing_is_inside_them():
    pairs = [(0, 1), (0, 3), (0, 4), (2, 3), (2, 4), (4, 4)]
    frame = pd.DataFrame(pairs, columns=["first", "last"])
    frame = frame.assign(n_layers=frame["last"] - frame["first"] + 1, interaction_points=2.0)
    said = interactions_of(frame, Words("accuracy")).notes
    alone = {(0, 1): "group of layers", (2, 3): "group of layers", (4, 4): "layer"}
    for pair, note in zip(pairs, said):
        assert names(note, alone[pair]) if pair in alone else names(note, "shorter spans inside")
    assert _single(frame)[1] == "one group"
    assert _single(frame.query("first == last"))[1] == "single layer"


@pytest.mark.slow
def test_a_warning_of_the_summary_comes_along(study_of, make_ablation):
    folder = make_ablation(n_layers=2)
    assert study_of(folder).warning is None
    edit(folder / "summary.json", warning="The spans mean nothing.")
    study = study_of(folder)
    assert "The spans mean nothing." in section(study, 0)
    assert not any(step["prune"] or step["estimate"] is not None for step in study.steps)
    assert all(one[2] is None for step in study.steps for one in step["advice"])
    table = lay_out_removable(removable_table(read_spans(folder)), load(folder).record)
    assert "no better than the majority class" in table.caption


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "unit"), [("nll", " nats"), ("bits_per_byte", " bits"), ("perplexity", "")]
)
def test_a_loss_rises_in_its_own_unit(study_of, make_loss: Callable[[str], Path], metric: str, unit: str):
    folder = make_loss(metric)
    study, frame, results = study_of(folder), read_spans(folder), load_ablation(folder)
    scores = score(metric, results.predictions, results.scored_with)
    drop = content(study, 0)["views"][0]
    for row, rise in enumerate(scores[1:] - scores[0]):
        assert drop["rows"][row][:2] == [f"{rise:.3f}", unit]
        low, high = (-frame[name][row] / 100 for name in ("ci_high_points", "ci_low_points"))
        assert drop["rows"][row][2] == f"{low:.3f} to {high:.3f}{unit}".replace("-", "−")
    off = next(row for row, mask in enumerate(results.masks) if not mask.any())
    assert f"{scores[off]:.3f}{unit}" in [value for _, value, _ in study.tiles]
    assert drop["lead"] == "rise"
    words = section(study, 0) + json.dumps(content(study, 0)["steps"])
    assert not re.search(r">[^<]*\b(drop|points?)\b", re.sub(r"<svg.*?</svg>", "", words, flags=re.S))


@pytest.mark.parametrize(
    "order", ["prefix", *(pytest.param(own, marks=pytest.mark.slow) for own in ("suffix", "apart"))]
)
def test_spans_in_a_line_are_strips_of_a_curve(study_of, make_ablation, order: str):
    folder = make_ablation()
    frame = read_spans(folder)
    chosen = {"prefix": frame["first"] == 0, "suffix": frame["last"] == 5, "apart": frame["n_layers"] == 1}
    write_spans(folder, frame[chosen[order]].reset_index(drop=True))
    study = study_of(folder)
    (view,) = study.views
    strips = np.array([cell for _, cell in sorted(cells_of(view.map.svg).items())])
    np.testing.assert_allclose(np.diff(strips[:, 0]), strips[:-1, 2], atol=0.15)
    heights = {
        step["tolerance"]: float(re.match(r"M[\d.]+ ([\d.]+)H", step["line"])[1])
        for step in study.steps
        if step["line"]
    }
    slope, at_zero = np.polyfit(list(heights), list(heights.values()), 1)  # a straight scale, a loss upwards
    np.testing.assert_allclose([slope * t + at_zero for t in heights], list(heights.values()), atol=0.1)
    assert slope < 0
    assert strips[0, 1] <= heights[0.0] <= strips[0, 1] + strips[0, 3]


@pytest.mark.slow
def test_a_label_distinguishes_equal_names(reported, make_ablation):
    one = reported(make_ablation(n_layers=2))
    labelled = replace(one.record, label="by hand")
    assert map_studies([replace(one, record=labelled)])[0].title == "by hand"


@pytest.mark.parametrize(
    ("counts", "where"),
    [([0, 500], "in 1 layer"), pytest.param([500, 500, 0], "in 2 layers", marks=pytest.mark.slow)],
)
def test_only_layers_with_adapters_are_counted(study_of, make_ablation, counts: list[int], where: str):
    folder = make_ablation(n_layers=len(counts))
    edit(folder / "summary.json", layer_parameters=counts)
    assert ("adapter parameters", f"{sum(counts):,}", where) in study_of(folder).tiles
