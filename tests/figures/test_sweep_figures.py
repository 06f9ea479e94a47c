"""The figures of init sweeps and trade-offs: what is drawn is what the tables say, and it fits."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from refusals import names, refuses, says

from adapter_probe.analysis import sweeps
from adapter_probe.analysis.published import published_init_sweep, published_tradeoff
from adapter_probe.analysis.study_records import SweepRecord, TradeoffRecord
from adapter_probe.errors import ResultsError
from adapter_probe.figures import aggregate
from adapter_probe.figures import init_sweep as sweep_figure
from adapter_probe.figures import tradeoff as tradeoff_figure
from adapter_probe.figures.curves import METHODS, mark_far_below
from adapter_probe.figures.init_sweep import draw as draw_sweep
from adapter_probe.figures.init_sweep import init_sweep, sweep_series
from adapter_probe.figures.tradeoff import tradeoff, tradeoff_series
from adapter_probe.figures.tradeoff_panel import draw, frontier
from adapter_probe.figures.venues import PAPER, FigureOptions


@pytest.fixture(scope="module")
def draw_all(sweep_trials, tradeoff_trials):
    """Every figure of sweeps, by name, in a look."""

    def draw(options: FigureOptions, tasks=("cola", "mnli")) -> dict[str, object]:
        first, second = sweep_trials(tasks), tradeoff_trials(tasks)
        overall = sweeps.aggregate_table(second)
        studies = [
            SweepRecord(Path("s"), sweeps.init_sweep_table(first), first, {}),
            TradeoffRecord(
                Path("t"), sweeps.tradeoff_table(second), overall, sweeps.size_table(second), second, {}
            ),
        ]
        kinds = {
            "init": sweep_figure.drawings,
            "tradeoff": tradeoff_figure.drawings,
            "aggregate": aggregate.drawings,
            "sizes": aggregate.sizes_drawings,
        }
        return {name: next(drawings(studies, options)) for name, drawings in kinds.items()}

    return draw


@pytest.fixture(scope="module")
def drawn(draw_all):
    return draw_all(FigureOptions(PAPER))


def lines_of(ax, colour: str) -> list[tuple[list[float], list[float]]]:
    return [
        (list(line.get_xdata()), list(line.get_ydata()))
        for line in ax.lines
        if line.get_color() == colour and line.get_marker() not in ("None", "", None)
    ]


def test_the_sweeps_line_is_its_means(drawn, sweep_trials):
    trials = sweep_trials(("cola", "mnli"))
    by_hand = trials.groupby(["task", "init_std"])["score"].mean()
    (ax,) = drawn["init"].figure.axes
    found = [y for line in ax.containers for y in [line[0].get_ydata()]]
    for task, y in zip(("cola", "mnli"), found):
        assert list(y) == pytest.approx((100 * by_hand[task]).tolist())
    for index, container in enumerate(ax.containers):
        sem = trials.groupby(["task", "init_std"])["score"].sem()[("cola", "mnli")[index]]
        lengths = [np.ptp(np.array(s)[:, 1]) for s in container[2][0].get_segments() if len(s)]
        assert lengths == pytest.approx(2 * 100 * sem.dropna().to_numpy())


def test_diverged_trials_are_counted_at_the_foot(drawn):
    (ax,) = drawn["init"].figure.axes
    assert [t.get_text().strip() for t in ax.texts if "/" in t.get_text()] == ["2/3", "2/3"]
    assert says(drawn["init"].caption, "diverged", "4 trials")


def test_the_tradeoffs_marks_are_the_tables_means(drawn, tradeoff_trials):
    trials = tradeoff_trials(("cola", "mnli"))
    best = trials[trials["learning_rate"] == 3e-4]
    panels = [ax for ax in drawn["tradeoff"].figure.axes if ax.get_xscale() == "log"]
    for ax, task in zip(panels, ("cola", "mnli")):
        counted = best[(best["task"] == task) & (best["trained_parameters_without_head"] > 0)]
        for method in ("adapters", "top_layers", "layernorm_only", "head_only"):
            own = best[(best["task"] == task) & (best["method"] == method)]
            means = own.groupby("trained_parameters_without_head")["score"].mean()
            lines = lines_of(ax, METHODS[method].colour)
            scores = pytest.approx((100 * means).tolist())
            if method == "head_only":  # no parameters without the head: it stands left of all others
                least = [counted["trained_parameters_without_head"].min()]
                assert [x < least for x, y in lines if y == scores] == [True]
            else:
                assert (means.index.tolist(), scores) in lines


def test_the_frontier_is_what_nothing_smaller_beats(tradeoff_trials):
    table = sweeps.tradeoff_table(tradeoff_trials(("cola",)))
    x, y = frontier(table)
    brute = {
        (row.trained_parameters, row.mean)
        for row in table[["trained_parameters", "mean"]].itertuples()
        if not ((table["trained_parameters"] <= row.trained_parameters) & (table["mean"] > row.mean)).any()
    }
    assert {(int(a), b) for a, b in zip(x, y)} <= brute
    assert {b for _, b in brute} == set(y)


def test_the_aggregate_is_of_the_differences_to_full_fine_tuning(drawn, tradeoff_trials):
    trials = tradeoff_trials(("cola", "mnli"))
    best = trials[trials["learning_rate"] == 3e-4]
    means = best.groupby(["task", "method", "size", "k"], dropna=False)["score"].mean().reset_index()
    full = means[means["method"] == "full"].set_index("task")["score"]
    sixty_four = means[means["size"] == 64].set_index("task")["score"]
    expected = np.median(100 * (sixty_four - full))
    frame = drawn["aggregate"].frame
    assert frame.loc[frame["size"] == 64, "p50_points"].item() == pytest.approx(expected)
    drawn_at = [
        y for line in lines_of(drawn["aggregate"].figure.axes[0], METHODS["adapters"].colour) for y in line[1]
    ]
    assert any(y == pytest.approx(expected) for y in drawn_at)


def test_sizes_are_the_means_over_tasks(drawn, tradeoff_trials):
    trials = tradeoff_trials(("cola", "mnli"))
    best = trials[(trials["learning_rate"] == 3e-4) & (trials["method"] == "adapters")]
    expected = best.groupby(["size", "task"])["score"].mean().groupby("size").mean()
    (ax,) = drawn["sizes"].figure.axes
    (container,) = ax.containers
    assert list(container[0].get_xdata()) == expected.index.tolist()
    assert list(container[0].get_ydata()) == pytest.approx((100 * expected).tolist())


@pytest.mark.slow
def test_the_papers_curves_stand_beside_on_request(draw_all):
    theirs = draw_all(FigureOptions(PAPER, paper=True))
    ax = theirs["init"].figure.axes[0]
    paper = (100 * published_init_sweep("cola")["mean"]).tolist()
    assert any(
        len(line.get_ydata()) == len(paper) and list(line.get_ydata()) == pytest.approx(paper)
        for line in ax.lines
    )
    panel = next(ax for ax in theirs["tradeoff"].figure.axes if ax.get_xscale() == "log")
    adapters = published_tradeoff("cola").query("method == 'adapters'")
    whole = published_tradeoff("cola")["trained_parameters"].max()  # each in percent of its own base
    shares = (100 * adapters["trained_parameters"] / whole).tolist()
    assert any(list(line.get_xdata()) == pytest.approx(shares) for line in panel.lines)
    assert panel.get_xlim()[1] < 200
    for drawing in theirs.values():
        assert "Houlsby et al. (2019)" in drawing.caption
        assert (drawing.frame["source"] == "Houlsby et al. 2019").any()


def test_the_papers_curve_needs_the_same_score(sweep_trials):
    trials = sweep_trials(("cola",), metric="mcc")
    (series,) = sweep_series(sweeps.init_sweep_table(trials), trials, paper=True)
    assert series.published is None


def test_every_figure_comes_with_its_numbers_and_caption(drawn, tmp_path):
    for drawing in drawn.values():
        paths = drawing.write(tmp_path, FigureOptions(PAPER, formats=("png",)))
        assert [path.name for path in paths] == [f"{drawing.stem}.{end}" for end in ("png", "csv", "txt")]
        assert len(pd.read_csv(paths[1])) == len(drawing.frame)
        assert paths[2].read_text(encoding="utf-8") == f"{drawing.caption}\n"


def test_the_majority_class_is_named_in_the_legend(drawn):
    words = [text.get_text() for text in drawn["init"].figure.legends[0].get_texts()]
    assert {"majority class, 69.1%", "majority class, 35.4%"} <= set(words)


def test_the_tradeoff_marks_the_majority_class(drawn, tradeoff_trials):
    """In every panel: a line and a word in the legend where the axis reaches it, the score in the notes."""
    drawing = drawn["tradeoff"]
    assert "majority class" not in [text.get_text() for text in drawing.figure.legends[0].get_texts()]
    assert says(drawing.caption, "majority class", "CoLA 69.1%, MNLI-m 35.4%")
    panels = [ax for ax in drawing.figure.axes if ax.get_xscale() == "log"]
    for ax, score in zip(panels, (69.1, 35.4)):
        assert f"majority {score}%" in ax.get_title("left")
        levels = [line.get_ydata()[0] for line in ax.lines if len(set(line.get_ydata())) == 1]
        assert any(abs(level - score) < 1e-9 for level in levels)
        assert ax.get_ylim()[0] > score  # so far below that it would press the scores flat
    figure = plt.figure()
    for loss in (0.08, 0.2):  # near the scores, and above those of a model that learned nothing
        trials = tradeoff_trials(("cola",))
        trials["score"] -= loss
        table = sweeps.tradeoff_table(trials)
        (curve,) = tradeoff_series(TradeoffRecord(Path(), table, None, None, trials, {}), False)
        ax = draw(curve, figure.add_subplot())
        assert ax.get_ylim()[0] < 69.1 < ax.get_ylim()[1]
        assert "majority class" in [text.get_text() for text in ax.get_legend().get_texts()]


@pytest.mark.parametrize("height", [0.6, 3.0])
def test_a_value_far_below_stands_above_the_axis_however_low(height):
    figure = plt.figure(figsize=(3, height))
    ax = figure.add_subplot()
    mark_far_below(ax, ["head_only"], np.array([0.2]), np.array([70.6]), 1)
    figure.draw_without_rendering()
    (text,), (mark,) = ax.texts, ax.lines
    assert "70.6" in text.get_text()
    for one in (text, mark):
        assert one.get_window_extent().y0 > ax.bbox.y0


@pytest.mark.filterwarnings("error")
def test_a_single_std_has_an_axis_around_it(sweep_trials):
    trials = sweep_trials(("cola",))
    trials = trials[trials["init_std"] == trials["init_std"].min()].head(1)
    ax = plt.figure().add_subplot()
    draw_sweep(sweep_series(sweeps.init_sweep_table(trials), trials, False), ax)
    low, high = ax.get_xlim()
    assert low < trials["init_std"].item() < high


def test_on_the_users_own_axes(sweep_trials, tradeoff_trials, tmp_path):
    first, second = sweep_trials(("cola",)), tradeoff_trials(("cola", "mnli"))
    sweep = SweepRecord(tmp_path, sweeps.init_sweep_table(first), first, {})
    trade = TradeoffRecord(tmp_path, sweeps.tradeoff_table(second), None, None, second, {})
    before = dict(plt.rcParams)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
    assert init_sweep(sweep, left) is left
    plt.sca(right)
    assert tradeoff(trade, task="mnli", paper=True) is right
    assert dict(plt.rcParams) == before
    figure.draw_without_rendering()
    assert left.get_legend().get_texts()
    assert right.get_legend().get_title().get_text().startswith("MNLI-m")
    refuses(ResultsError, ("'rte'", "cola, mnli"), tradeoff, trade, task="rte")
    refuses(ResultsError, ("cola, mnli",), tradeoff, trade)


@pytest.mark.slow
@pytest.mark.parametrize("tasks", [("cola", "mnli"), ("cola", "mnli", "mrpc", "rte", "sst2")])
def test_panels_have_their_notes_above_them_within_the_figure(draw_all, tasks):
    figure = draw_all(FigureOptions(PAPER), tasks)["tradeoff"].figure
    panels = [ax for ax in figure.axes if ax.get_xscale() == "log"]
    names = ["CoLA ", "MNLI-m ", "MRPC ", "RTE ", "SST-2 "]
    for ax, name in zip(panels, names):
        assert ax.get_legend() is None
        title = ax.get_title(loc="left").replace("\n", " ")
        assert title.startswith(name)
        assert "majority " in title
        assert ax._left_title.get_window_extent().x1 <= figure.bbox.width
    assert len(panels) == len(tasks)
    assert len({ax.get_xlim() for ax in panels}) == 1  # one scale of parameters


def test_scores_stand_against_what_the_trials_cost(tradeoff_trials):
    trials = tradeoff_trials(("cola",))
    trials["trial"] = [f"t{number}" for number in range(len(trials))]
    seconds = 0.1 + 1e-9 * trials["trained_parameters"].to_numpy(float)
    costs = pd.DataFrame({"trial": trials["trial"], "seconds_per_step": seconds})
    record = TradeoffRecord(Path(), sweeps.tradeoff_table(trials), None, None, trials, {}, costs)
    figure = plt.figure()
    ax = tradeoff(record, figure.add_subplot(), x="seconds")
    assert names(ax.get_xlabel(), "seconds", "step")
    drawn = {round(float(x), 9) for line in ax.lines for x in line.get_xdata() if line.get_marker() != "None"}
    expected = 0.1 + 1e-9 * record.tradeoff["trained_parameters"].to_numpy(float)
    assert set(expected.round(9)) <= drawn
