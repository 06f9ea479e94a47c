from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from docs_scripts import module
from matplotlib.figure import Figure
from matplotlib.text import Text
from span_tables import span_grid

from adapter_probe.analysis import sweeps
from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.published import published_init_sweep, published_tradeoff
from adapter_probe.figures import style
from adapter_probe.results.atomic import write_csv
from adapter_probe.spans import contiguous_spans

RESULTS = module("gallery_results")
BASE = 109_482_240
FULL = {"mnli": 0.844, "cola": 0.818}
MAJORITY = {"mnli": 0.354, "cola": 0.691}


@pytest.fixture(autouse=True)
def _no_figure_stays_open() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def make_frame() -> Callable[..., pd.DataFrame]:
    """A grid of given drops, one a span in order, or of random ones from gains to heavy losses."""

    def make(n_layers: int, drops=None, seed: int = 0) -> pd.DataFrame:
        spans = contiguous_spans(n_layers)
        if drops is None:
            drops = 4 * np.random.default_rng(seed).standard_t(2, size=len(spans)) + 2
        return pd.DataFrame(
            {
                "first": [s.first for s in spans],
                "last": [s.last for s in spans],
                "n_layers": [s.n_layers for s in spans],
                "delta_points": -np.asarray(drops, dtype=float),
            }
        )

    return make


@pytest.fixture(scope="session")
def with_statistics() -> Callable[..., tuple[pd.DataFrame, pd.DataFrame]]:
    """Spans and layers with every column of the statistics: intervals of ± `width`, ring and flag by rule."""

    def add(frame: pd.DataFrame, width: float = 1.0) -> tuple[pd.DataFrame, pd.DataFrame]:
        drops = -span_grid(frame)
        first, last = frame["first"], frame["last"]
        beyond = interactions(drops)[first, last]
        p = np.where(frame["delta_points"].abs() > width, 0.001, 0.4)
        spans = frame.assign(
            ci_low_points=frame["delta_points"] - width,
            bound_low_points=frame["delta_points"] - width,
            ci_high_points=frame["delta_points"] + width,
            p_value=p,
            p_holm=p,
            significant=p < 0.05,
            interaction_points=beyond,
            interaction_low_points=beyond - width,
            interaction_high_points=beyond + width,
            non_monotone=(frame["n_layers"] > 1) & (frame["delta_points"] > 0),
        )
        single = spans[spans["n_layers"] == 1].rename(columns={"first": "layer"})
        layers = single[["layer", "delta_points", "ci_low_points", "ci_high_points", "p_holm"]]
        share = shares(drops)
        layers = layers.reset_index(drop=True).assign(
            share_points=share, share_low_points=share - width, share_high_points=share + width
        )
        return spans, layers

    return add


@pytest.fixture(scope="session")
def ablation_folder(tmp_path_factory) -> Callable[..., Path]:
    """Write the folder of an ablation as of the documentation's gallery; equal ones are copied."""
    made: dict[tuple, Path] = {}

    def write(folder: Path, task: str = "cola", n_layers: int = 6, seed: int = 0) -> Path:
        if (task, n_layers, seed) not in made:
            made[task, n_layers, seed] = tmp_path_factory.mktemp("ablation") / "of"
            RESULTS.ablation(made[task, n_layers, seed], n_layers=n_layers, task=task, seed=seed)
        shutil.copytree(made[task, n_layers, seed], folder)
        return folder

    return write


def _trial(task: str, method: str, seed: int, mean: float, **more: object) -> dict[str, object]:
    """A row of ``trials.csv``, its score invented around a published mean."""
    draw = np.random.default_rng([len(task), len(method), seed, round(1e6 * mean)])
    known = "mnli" if task.startswith("m") else "cola"
    return {
        "trial": f"{len(task)}{seed}", "task": task, "method": method, "size": None, "init_std": None,
        "activation": None, "sites": None, "k": None, "base_layers": 12, "learning_rate": 3e-4, "epochs": 3,
        "batch_size": 32, "seed": seed, "metric": "accuracy", "score": mean + draw.normal(0, 0.002),
        "best_epoch": 3, "diverged": False, "majority_score": MAJORITY[known],
        "trained_parameters": 2_419_970, "trained_parameters_without_head": 2_417_664,
        "base_parameters": BASE, "percent_of_base": 2.2, "seconds": 1.0, **more,
    }  # fmt: skip


def _typed(rows: list[dict[str, object]]) -> pd.DataFrame:
    return pd.DataFrame(rows).astype({"size": "Int64", "k": "Int64", "init_std": "float64"})


@pytest.fixture(scope="session")
def sweep_trials() -> Callable[..., pd.DataFrame]:
    """Trials of a sweep over stds: the published means, invented seeds; the greatest stds partly diverge."""

    def make(tasks: Sequence[str] = ("cola",), seeds: int = 3, metric: str = "accuracy") -> pd.DataFrame:
        rows = []
        for task in tasks:
            known = "mnli" if task.startswith("m") else "cola"
            for point in published_init_sweep(known).itertuples():
                for seed in range(seeds):
                    more = {"size": 64, "init_std": point.init_std, "metric": metric}
                    if point.init_std == 1 and seed > 0:
                        more |= {"score": np.nan, "diverged": True, "best_epoch": None}
                    rows.append(_trial(task, "adapters", seed, point.mean, **more))
        return _typed(rows)

    return make


@pytest.fixture(scope="session")
def tradeoff_trials() -> Callable[..., pd.DataFrame]:
    """Trials of a trade-off: published means of BERT-base, invented seeds, true counts, two rates."""

    def make(tasks: Sequence[str] = ("cola", "mnli"), seeds: int = 2, head: bool = True) -> pd.DataFrame:
        rows = []

        def add(task: str, method: str, count: int, mean: float, **more: object) -> None:
            counts = {
                "trained_parameters": count + 2307,
                "trained_parameters_without_head": count,
                "percent_of_base": 100 * count / BASE,
            }
            for rate, loss in ((3e-4, 0.0), (1e-3, 0.02)):
                for seed in range(seeds):
                    rows.append(_trial(task, method, seed, mean - loss, learning_rate=rate, **counts, **more))

        for task in tasks:
            known = "mnli" if task.startswith("m") else "cola"
            for index, point in enumerate(published_tradeoff(known).itertuples()):
                if point.method == "adapters":
                    size = 2 ** (index - 1)
                    count = 24 * (2 * 768 * size + size + 768) + 38_400
                    add(task, "adapters", count, point.mean, size=size, init_std=0.01)
                elif point.method == "top_layers":
                    k = index - 10
                    add(task, "top_layers", k * 7_087_872 + 590_592, point.mean, k=k)
                else:
                    add(task, "layernorm_only", 38_400, point.mean)
            if head:
                add(task, "head_only", 0, MAJORITY[known] + 0.01)
            add(task, "full", BASE, FULL[known])
        return _typed(rows)

    return make


@pytest.fixture(scope="session")
def sweep_folder(sweep_trials) -> Callable[..., Path]:
    """Write the folder of a sweep of initialisations."""

    def write(folder: Path, **options: object) -> Path:
        folder.mkdir(parents=True)
        trials = sweep_trials(**options)
        write_csv(folder / "trials.csv", trials)
        write_csv(folder / "sweep.csv", sweeps.init_sweep_table(trials))
        return folder

    return write


@pytest.fixture(scope="session")
def tradeoff_folder(tradeoff_trials) -> Callable[..., Path]:
    """Write the folder of a trade-off."""

    def write(folder: Path, **options: object) -> Path:
        folder.mkdir(parents=True)
        trials = tradeoff_trials(**options)
        write_csv(folder / "trials.csv", trials)
        write_csv(folder / "tradeoff.csv", sweeps.tradeoff_table(trials))
        write_csv(folder / "aggregate.csv", sweeps.aggregate_table(trials))
        write_csv(folder / "sizes.csv", sweeps.size_table(trials))
        return folder

    return write


def _texts(figure: Figure) -> list[Text]:
    """Every text that is printed, but the numbers in the cells of a grid."""
    figure.set_dpi(style.PNG_DPI)  # at fewer, letters are rounded to pixels and come out wider than in print
    figure.draw_without_rendering()
    found = list(figure.texts)
    found += [text for legend in figure.legends for text in legend.get_texts()]
    for ax in figure.axes:
        found += [ax.xaxis.label, ax.yaxis.label, ax.title, ax._left_title]
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            # Matplotlib keeps a tick beyond either end, which it does not print.
            found += [t.label1 for t in axis.get_major_ticks() if low <= t.get_loc() <= high]
        found += [text for text in ax.texts if text.get_transform() != ax.transData]
    return [text for text in found if text.get_text().strip() and text.get_visible()]


@pytest.fixture(scope="session")
def assert_tidy() -> Callable[[Figure], None]:
    """No text sticks out of the figure, no two overlap, and the two outer pixels of a PNG are blank."""

    def check(figure: Figure) -> None:
        boxes = [(text.get_text(), text.get_window_extent()) for text in _texts(figure)]
        width, height = figure.bbox.size
        for words, box in boxes:
            inside = box.x0 >= -2 and box.y0 >= -2 and box.x1 <= width + 2 and box.y1 <= height + 2
            assert inside, (words, box, (width, height))
        clashes = [
            (words, others)
            for (words, one), (others, other) in combinations(boxes, 2)
            if one.padded(-2).overlaps(other)
        ]
        assert clashes == []
        figure.canvas.draw()
        ink = (np.asarray(figure.canvas.buffer_rgba())[..., :3] < 250).any(axis=-1)  # [pixels, pixels]
        assert ink.any()
        assert ink.sum() == ink[2:-2, 2:-2].sum()

    return check
