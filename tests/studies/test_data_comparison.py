"""What a span costs on a task and gives back on other data: `ap.compare_data` and `ablate --against`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from typer.testing import CliRunner

import adapter_probe as ap
from adapter_probe.cli.main import app
from adapter_probe.figures.joint import data_comparison as draw


@pytest.fixture(scope="module")
def both(checkpoint, tiny_task, tmp_path_factory) -> ap.Ablation:
    out = tmp_path_factory.mktemp("both") / "ablation"
    return ap.ablate(checkpoint, out=out, against=tiny_task / "train.jsonl", progress=False)


@pytest.mark.slow
def test_both_sides_are_the_ablations_own(both, checkpoint, tiny_task, tmp_path):
    alone = ap.ablate(checkpoint, data=tiny_task / "train.jsonl", out=tmp_path, progress=False)
    spans = ap.compare_data(both, both.against).spans
    for side, study in (("task", both), ("other", alone)):
        for ours, theirs in (("points", "delta_points"), ("low_points", "ci_low_points")):
            np.testing.assert_array_equal(spans[f"{side}_{ours}"], study.spans[theirs])


def test_the_frontier_is_what_nothing_beats(both):
    spans = ap.compare_data(both, both.against).spans
    points = [*spans[["task_points", "other_points"]].itertuples(index=False, name=None), (0.0, 0.0)]
    for row, on in zip(points, spans["on_frontier"]):
        beaten = any(p[0] >= row[0] and p[1] >= row[1] and p != row for p in points)
        assert on == (not beaten)


@pytest.mark.slow
def test_what_is_no_second_measure_of_the_model_is_refused(both, other, checkpoint, tiny_task, tmp_path):
    with pytest.raises(ap.ResultsError, match="checkpoint"):
        ap.compare_data(both, other)
    kept = ap.ablate(checkpoint, complement=True, out=tmp_path, progress=False)
    with pytest.raises(ap.ResultsError, match="settings"):
        ap.compare_data(both, kept)


@pytest.mark.slow
def test_the_command_draws_both_and_says_the_frontier(checkpoint, tiny_task, tmp_path):
    arguments = [
        "ablate",
        str(checkpoint),
        "--against",
        str(tiny_task / "train.jsonl"),
        "--out",
        str(tmp_path),
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    assert "frontier" in done.stdout
    (line,) = (line for line in done.stdout.splitlines() if "train.jsonl: " in line)
    assert line.startswith("intact ")
    assert line.count("% accuracy, ") == 2
    for name in (
        "data-comparison.pdf",
        "data-comparison.csv",
        "data-comparison.txt",
        "against-train/spans.csv",
    ):
        assert (tmp_path / name).is_file()
    report = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert Path(report["files"]["data-comparison_png"]).is_file()
    assert report["against"]["n_examples"] != report["n_examples"]


def test_a_user_may_draw_it_anywhere(both):
    from matplotlib import pyplot as plt

    _, axes = plt.subplots(1, 2)
    compared = ap.compare_data(both, both.against)
    assert compared.plot(ax=axes[1]) is axes[1]
    assert "on train.jsonl" in axes[1].get_ylabel()
    plt.close("all")
    assert "frontier" in repr(compared)


def test_points_have_the_colours_of_the_legend(both):
    record = ap.compare_data(both, both.against).record
    for spans in (record.spans, record.spans[record.spans["n_layers"] == 1]):
        ax = draw(replace(record, spans=spans), Figure().add_subplot())
        points = next(one for one in ax.collections if len(one.get_offsets()) == len(spans))
        legend = ax.get_legend()
        handles = dict(zip((text.get_text() for text in legend.get_texts()), legend.legend_handles))
        for n in {spans["n_layers"].min(), spans["n_layers"].max()}:
            shown = points.get_facecolors()[spans["n_layers"] == n]
            wanted = to_rgba(handles[f"{n} layer{'' if n == 1 else 's'} switched off"].get_color())
            np.testing.assert_allclose(shown, np.broadcast_to(wanted, shown.shape))
