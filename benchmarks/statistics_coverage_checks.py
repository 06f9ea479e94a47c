"""What is asked of the statistics of simulated studies, for `benchmarks.statistics_coverage`.

A check takes a generator and a number of examples and makes one simulation. It returns, for each statistic,
means over its spans: which share has an interval (`said`), of these which the truth lies in (`covers`) or
below (`too_high`), the `width`, the share of p-values below 0.05, and whether `any` span of it is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pandas as pd

from adapter_probe import metrics
from adapter_probe.analysis import significance
from adapter_probe.analysis.ablation_tables import draws_wanted
from adapter_probe.analysis.attribution import interactions, shares
from adapter_probe.analysis.costs import mean_over_tasks
from adapter_probe.analysis.removable import bounds_of_chosen, longest_removable, non_monotone
from adapter_probe.analysis.resampling import Draws, draw_scores
from adapter_probe.analysis.significance import holm, interval, over_seeds, p_values
from adapter_probe.analysis.sweeps import interquartile_interval, interquartile_mean

from .statistics_coverage_cases import (
    CASES,
    LAYERS,
    RIGHT,
    SPANS,
    Generator,
    Make,
    Study,
    anew,
    chain,
    classes,
    of_seeds,
    texts,
    tokens,
    true_change,
)

N_DRAWS = 1000
SIZES = (30, 100, 300, 1000, 10_000)
NOT_TAKEN = ("randomisation", "bootstrap-t")  # ways that the product was compared with
Found = dict[str, dict[str, float]]
Check = Callable[[Generator, int], Found]
ENDS = np.argwhere(np.triu(np.ones((LAYERS, LAYERS), dtype=bool)))
LENGTHS = np.ptp(ENDS, axis=1) + 1


def _remembering(function: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Exact ends that were computed before are not computed again."""
    known: dict[tuple[float, ...], float] = {}

    def ends(lost: np.ndarray, won: np.ndarray, n: int, tail: np.ndarray | float) -> np.ndarray:
        of_tails = np.broadcast_to(tail, lost.shape).tolist()
        keys = [(*key, n) for key in zip(lost.tolist(), won.tolist(), of_tails)]
        if new := [key for key in dict.fromkeys(keys) if key not in known]:
            pairs = np.array(new).T
            known.update(zip(new, function(pairs[0], pairs[1], n, pairs[2])))
        return np.array([known[key] for key in keys])

    return ends


significance.exact_end = _remembering(significance.exact_end)


def drawn(
    studies: Sequence[Study],
    generator: Generator,
    function: Callable,
    most: Any = 1.0,
    n_draws: int = N_DRAWS,
) -> Draws:
    """Functions of all scores under random weights."""
    return draw_scores(studies, n_draws, int(generator.integers(2**31))).map(function, most)


def changes_of(study: Study, generator: Generator, n_draws: int = N_DRAWS) -> Draws:
    """Changes of every variant against the intact model; exact intervals need no draws."""
    if study.metric == "accuracy":
        n_draws = 1
    scores = draw_scores([study], n_draws, int(generator.integers(2**31)))
    return scores.changes(np.arange(1, len(study.predictions)), 0)


def judged(low: np.ndarray, high: np.ndarray, truth: Any, p: np.ndarray | None = None) -> dict[str, float]:
    """What is asked of intervals ``[spans]``; without one, nothing is missed or covered."""
    said = ~np.isnan(low) & ~np.isnan(high)
    found = {"said": said.mean(), "spans": len(low)}
    if said.any():
        below, above = (truth < low - 1e-9)[said], (truth > high + 1e-9)[said]
        width = (high - low)[said].mean()
        found |= {"covers": 1 - (below | above).mean(), "too_high": below.mean(), "width": width}
    return found if p is None else found | {"p_below_0.05": (p < 0.05).mean()}


def single(make: Make, truth: float | None, generator: Generator, n: int) -> Found:
    """Changes of single variants, whose true change is estimated the closer the more examples there are."""
    truth = true_change(make, max(16, n // 60)) if truth is None else truth
    changes = changes_of(make(generator, n), generator)
    return {"change": judged(*interval(changes), truth, p_values(changes))}


def _parts(function: Callable, own: np.ndarray) -> np.ndarray:
    """Interactions or shares of changes ``[..., spans]``."""
    drops = np.full((*own.shape[:-1], LAYERS, LAYERS), np.nan)
    drops[..., ENDS[:, 0], ENDS[:, 1]] = -own
    found = function(drops)
    return found[..., ENDS[:, 0], ENDS[:, 1]] if function is interactions else found


def _frame() -> pd.DataFrame:
    return pd.DataFrame({"first": ENDS[:, 0], "last": ENDS[:, 1], "n_layers": LENGTHS})


def whole_map(drop: float, redrawn: float, generator: Generator, n: int) -> Found:
    """What is said of a map of accuracy, all spans with the same drop: its parts, and any false claim."""
    study = chain(generator, n, drop, redrawn, ENDS)
    changes, grid = (
        draw_scores([study], N_DRAWS, int(generator.integers(2**31))),
        np.full((LAYERS,) * 2, 100 * drop),
    )
    changes = changes.changes(np.arange(1, len(ENDS) + 1), 0)
    parts = changes.map(partial(_parts, interactions), np.where(LENGTHS > 1, 2.0, 1.0))
    of_layers = changes.map(partial(_parts, shares))
    # A tolerance just below the true drop: every claim is false; and one 2 points above it.
    bounds = bounds_of_chosen(_frame(), lambda tails: interval(changes, tails)[0])
    frame = _frame().assign(delta_points=changes.values.T @ changes.counts / n, bound_low_points=bounds)
    claim = longest_removable(frame, 100 * drop + 2, "interval")
    wrong = {
        "any significant after Holm": (holm(p_values(changes)) < 0.05).any(),
        "any non-monotone": non_monotone(ENDS, changes).any(),
        "any false claim of a removable span": (bounds > -100 * drop + 1e-9).any(),
        "a span claimed within 2 more than it costs": claim is not None,
    }
    return {
        "interaction": judged(*interval(parts), interactions(grid)[ENDS[:, 0], ENDS[:, 1]]),
        "share": judged(*interval(of_layers), shares(grid)),
        **{what: {"any": float(found), "spans": len(ENDS)} for what, found in wrong.items()},
    }


def many_tests(make: Make, effect: bool, generator: Generator, n: int) -> Found:
    """Forty spans, all with an effect or none, of a score that has no exact test, with a study's draws."""
    changes = changes_of(make(generator, n), generator, draws_wanted(SPANS))
    found = holm(p_values(changes)) < 0.05
    if effect:
        return {"power after Holm": {"p_below_0.05": found.mean(), "spans": len(found)}}
    return {"any significant after Holm": {"any": float(found.any()), "spans": len(found)}}


def chosen(generator: Generator, n: int) -> Found:
    """Independent spans, half of which cost just more than the tolerance of 1 point and half nothing."""
    intact = generator.random(n) < RIGHT
    costs = np.arange(len(ENDS)) % 2 == 1
    lost = generator.random((len(ENDS), n)) < (0.02 + 0.0101 * costs[:, None]) / RIGHT
    won = generator.random((len(ENDS), n)) < 0.02 / (1 - RIGHT)
    predictions = np.vstack([intact, np.where(intact, ~lost, won)]).astype(np.int64)
    study = Study("accuracy", "classification", predictions, np.ones(n, dtype=np.int64))
    changes = changes_of(study, generator)
    bounds = bounds_of_chosen(_frame(), lambda tails: interval(changes, tails)[0])
    wrong = {
        "any false claim of a removable span": ((bounds >= -1) & costs).any(),
        "any claim": (bounds >= -1).any(),
        "any false claim by single intervals": ((interval(changes)[0] >= -1) & costs).any(),
    }
    return {what: {"any": float(found), "spans": len(ENDS)} for what, found in wrong.items()}


def chosen_by_means(n_seeds: int, spread: float, generator: Generator, n: int) -> Found:
    """The same by means over seeds, whose effects differ; all spans cost 1 point on average over seeds."""
    studies, deltas = of_seeds(generator, n, n_seeds, spread, 0.01, 0.5)
    changes = drawn(studies, generator, partial(_mean_change, n_seeds), n_draws=4000)
    spans = np.argwhere(np.triu(np.ones((8, 8), dtype=bool)))
    frame, kept = pd.DataFrame(spans, columns=["first", "last"]), np.arange(SPANS) < len(spans)
    changes, deltas = changes.columns(kept), deltas[:, kept]
    frame["n_layers"] = frame["last"] - frame["first"] + 1
    bounds = bounds_of_chosen(frame, lambda tails: over_seeds(changes, deltas, tails)[0])
    wrong = {
        "any false claim of a removable span": (bounds > -1 + 1e-9).any(),
        "a span claimed within 4 more than it costs": (bounds > -5).any(),
    }
    return {what: {"any": float(found), "spans": len(spans)} for what, found in wrong.items()}


def seeds(n_seeds: int, spread: float, drop: float, alike: float, generator: Generator, n: int) -> Found:
    """Means over seeds, whose effects differ by seed and whose examples change alike in part."""
    studies, deltas = of_seeds(generator, n, n_seeds, spread, drop, alike)
    low, high, p = over_seeds(drawn(studies, generator, partial(_mean_change, n_seeds)), deltas)
    some = {"any": float((holm(p) < 0.05).any()), "spans": len(p)}
    found = {"mean over seeds": judged(low, high, -100 * drop, p)}
    return found | ({} if drop else {"any significant after Holm": some})


def _mean_change(n_studies: int, own: np.ndarray) -> np.ndarray:
    """The mean over studies of changes against each study's intact model, which is its first column."""
    columns = own.reshape(*own.shape[:-1], n_studies, -1)
    return (columns[..., 1:] - columns[..., :1]).mean(axis=-2)


def _difference(own: np.ndarray) -> np.ndarray:
    """The changes in the first study less those in the second."""
    columns = own.reshape(*own.shape[:-1], 2, -1)
    changes = columns[..., 1:] - columns[..., :1]
    return changes[..., 0, :] - changes[..., 1, :]


def two_studies(makes: tuple[Make, Make], truth: float, generator: Generator, n: int) -> Found:
    """Differences of two studies on the same examples."""
    a, b = (make(generator, n) for make in makes)
    if a.metric == "accuracy":  # of which only it counts what is right
        for study in (a, b):
            study.predictions = (study.predictions == study.scored_with).astype(np.int64)
            study.scored_with = np.ones(n, dtype=np.int64)
    else:
        b.scored_with = a.scored_with
    changes = drawn([a, b], generator, _difference, 2.0)
    return {"difference": judged(*interval(changes), truth, p_values(changes))}


def guesses(metric: str, generator: Generator, n: int) -> Found:
    """Models without skill against the most frequent class; wrong are those that are called better."""
    labels = generator.integers(0, 2, n)
    constant = metrics.constant_prediction(metric, labels)
    study = Study(metric, "classification", np.vstack([constant, generator.integers(0, 2, (40, n))]), labels)
    changes = changes_of(study, generator)
    better = (p_values(changes) < 0.05) & (changes.values.T @ changes.counts > 0)
    return {"better than the most frequent class": {"p_below_0.05": better.mean(), "spans": 40}}


def rivals(make: Make, truth: float, generator: Generator, n: int) -> Found:
    """Mean changes by the product's bound, by an inverted randomisation test of signs, and by bootstrap-t.

    The test flips the signs of changes less the mean that is tested; it accepts what lies between quantiles
    of the means of random halves.
    """
    n_draws = draws_wanted(SPANS)
    changes = changes_of(make(generator, n), generator, n_draws)
    values = changes.values
    mean, error = values.mean(axis=0), values.std(axis=0, ddof=1) / n**0.5
    inside = generator.integers(0, 2, (n_draws, n)).astype(float)
    halves = inside @ values / np.maximum(inside.sum(axis=1), 1)[:, None]
    weights = generator.multinomial(n, np.full(n, 1 / n), n_draws).astype(float)
    apart = weights @ (values - mean) / n
    squares = weights @ (values - mean) ** 2 / n - apart**2
    t = apart / np.sqrt(np.maximum(squares, 1e-20) / (n - 1))  # long where a resample varies hardly
    lowest, highest = np.quantile(t, [0.025, 0.975], axis=0)
    own = mean / np.maximum(error, 1e-20)
    ways = {"bound": (*interval(changes), p_values(changes))}
    for way, ends, draws, at in (
        (NOT_TAKEN[0], np.quantile(halves, [0.025, 0.975], axis=0), halves, 0.0),
        (NOT_TAKEN[1], (mean - highest * error, mean - lowest * error), t, own),
    ):
        fewer = np.minimum((draws <= at).sum(axis=0), (draws >= at).sum(axis=0))
        ways[way] = (*ends, np.minimum(1, 2 * (fewer + 1) / (n_draws + 1)))
    found = {way: judged(low, high, truth, p) for way, (low, high, p) in ways.items()}
    if truth == 0:
        for way, (_, _, p) in ways.items():
            any_found = float((holm(p) < 0.05).any())
            found[f"any significant after Holm, {way}"] = {"any": any_found, "spans": SPANS}
    return found


def sweep(spreads: np.ndarray, n_seeds: int, generator: Generator, _: int) -> Found:
    """Forty means and interquartile means over tasks and seeds; here there are no examples.

    Args:
        spreads: standard deviations of each task's seeds, and of its reference's, ``[2, tasks]``, in points.
    """
    centres, found = np.linspace(-3, 1, len(spreads[0])), []
    for _ in range(40):
        scores, full = (
            [centre + spread * generator.normal(size=n_seeds) for centre, spread in zip(at, own)]
            for at, own in zip((centres, 0 * centres), spreads)
        )
        found.append((*mean_over_tasks(scores), *interquartile_interval(scores, full)))
    _, low, high, _, iqm_low, iqm_high = np.array(found).T
    truth = _expected_iqm(tuple(map(tuple, spreads)), n_seeds)
    return {
        "mean over tasks": judged(low, high, centres.mean()),
        "interquartile mean": judged(iqm_low, iqm_high, truth),
    }


@lru_cache
def _expected_iqm(spreads: tuple[tuple[float, ...], tuple[float, ...]], n_seeds: int) -> float:
    own, reference = np.array(spreads)[..., None]
    generator, centres = np.random.default_rng(7), np.linspace(-3, 1, len(own))
    apart = centres[:, None] + own * generator.normal(size=(40_000, len(own), n_seeds))
    apart -= reference * generator.normal(size=(40_000, len(own), 1)) / np.sqrt(n_seeds)
    return float(interquartile_mean(apart.reshape(len(apart), -1)).mean())


def checks() -> Iterator[tuple[str, int, Check, float]]:
    """Every case with its number of examples, its check, and what the intervals have to cover."""
    truths = {name: true_change(make) if true is None else true for name, (make, true) in CASES.items()}
    for n in SIZES:
        least = 0.93 if n < 100 else 0.94
        for name, (make, truth) in CASES.items():
            yield f"{name} [{truths[name]:.2f}]", n, partial(single, make, truth), least
        for name, drop, redrawn in (
            ("drop 2, many changes", 0.02, 0.3), ("drop 1, few changes", 0.01, 0.02),
            ("no effect, few changes", 0.0, 0.05), ("no effect, many changes", 0.0, 0.3),
        ):  # fmt: skip
            yield f"map, {name}", n, partial(whole_map, drop, redrawn), least
        yield "chosen among independent spans", n, chosen, least
        for name in (
            "F1 of half, few changes, no effect", "loss, lognormal 1, no effect",
            "loss, lognormal 1.5, no effect", "loss, t3, no effect",
        ):  # fmt: skip
            yield f"40 spans, {name}", n, partial(many_tests, CASES[name][0], False), least
        for tail, effect in (("normal", 0.4), ("normal", 0.8), ("lognormal 1", 0.8), ("lognormal 1", -0.8)):
            check = partial(many_tests, texts("nll", tail, effect), True)
            yield f"40 spans, loss, {tail}, effect {effect:g}", n, check, least
        for n_seeds in (2, 3, 4, 5):
            for spread, drop, alike in (
                (0.0, 0.0, 0.5), (0.01, 0.0, 0.5), (0.03, 0.0, 0.5), (0.01, 0.0, 0.95), (0.01, 0.05, 0.5),
            ):  # fmt: skip
                name = f"mean of {n_seeds} seeds, s.d. {100 * spread:g}, drop {100 * drop:g}, alike {alike:g}"
                yield name, n, partial(seeds, n_seeds, spread, drop, alike), 0.93 if n_seeds == 2 else least
        for n_seeds, spread in ((2, 0.01), (3, 0.01), (5, 0.0), (5, 0.01)):
            name = f"chosen by means of {n_seeds} seeds, s.d. {100 * spread:g}"
            yield name, n, partial(chosen_by_means, n_seeds, spread), least
        for name, makes, truth in _pairs():
            yield f"two studies, {name}", n, partial(two_studies, makes, truth), least
        for metric in ("accuracy", "mcc"):
            yield f"guessing, {metric}", n, partial(guesses, metric), least
    for n in SIZES[:-1]:
        least = 0.93 if n < 100 else 0.94
        for share, worse in itertools.product((0.05, 0.3, 0.9), (0.0, 0.3)):
            make, name = anew(share, worse), f"three ways, {share:.0%} of texts anew, {worse:.0%} worse"
            yield name, n, partial(rivals, make, 0.0 if worse == 0 else true_change(make)), least
        for tail, effect in itertools.product(("normal", "t3", "lognormal 1", "lognormal 1.5"), (0.0, 0.4)):
            check = partial(rivals, texts("nll", tail, effect), -10 * effect)
            yield f"three ways, loss, {tail}, effect {effect:g}", n, check, least
    for n in (2, 3, 4, 5, 6, 8, 10):
        few = ("loss, normal", texts("nll", "normal", 0.0)), ("token accuracy", tokens(0.03, 0.045, 0.5))
        for name, make in few:
            yield f"few texts, {name}", n, partial(single, make, 0.0), 0.93
    for n_tasks, n_seeds in ((1, 2), (1, 3), (1, 4), (1, 5), (2, 2), (2, 3), (5, 3), (9, 3), (9, 5)):
        for one, reference in ((1, 1), (25, 1), (25, 25)) if n_tasks > 1 else ((1, 1),):
            spreads = np.ones((2, n_tasks))
            spreads[:, -1] = one, reference
            what = f", one spreads {one} times as much, its reference {reference}" if one > 1 else ""
            name = f"sweep of {n_tasks} tasks, {n_seeds} seeds{what}"
            yield name, 0, partial(sweep, spreads, n_seeds), 0.93 if n_seeds == 2 else 0.94
        if n_tasks > 1:
            spreads = np.ones((2, n_tasks))
            spreads[:, 1:] = 0.04
            name = f"sweep of {n_tasks} tasks, {n_seeds} seeds, all but one spread a 25th"
            yield name, 0, partial(sweep, spreads, n_seeds), 0.93 if n_seeds == 2 else 0.94


def _pairs() -> Iterator[tuple[str, tuple[Make, Make], float]]:
    """Two studies on the same examples, and the true difference."""
    for name, rates in (
        ("no difference, few changes", (0.01, 0.01)),
        ("no difference", (0.05, 0.05)),
        ("difference 3", (0.02, 0.05)),
    ):
        makes = tuple(classes("accuracy", [0.5, 0.5], rate, 0.0) for rate in rates)
        yield name, makes, 100 * (rates[1] - rates[0])
    yield "losses, no difference", (texts("nll", "lognormal 1", 0.0), texts("nll", "lognormal 1", 0.0)), 0.0
