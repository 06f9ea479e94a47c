"""Numbers in words: of scores in percent and points, and of a language model's loss in its own unit."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe import wording
from adapter_probe.metrics import PER_TEXT


@pytest.mark.parametrize(
    ("function", "given", "text"),
    [
        (wording.cell_text, (0.04,), "0.0"),
        (wording.cell_text, (-0.04,), "0.0"),
        (wording.cell_text, (9.94,), "9.9"),
        (wording.cell_text, (9.95,), "10.0"),
        (wording.cell_text, (10.4,), "10.4"),
        (wording.cell_text, (-3.25,), "−3.3"),
        (wording.cell_text, (101.0,), "101.0"),
        (wording.cell_text, (np.nan,), ""),
        # A cell of a small divergence shows that it is not zero.
        (wording.cell_text, (0.04, "kl"), "0.04"),
        (wording.cell_text, (0.0095, "kl"), "0.01"),
        (wording.cell_text, (0.0034, "kl"), "3e−3"),
        (wording.cell_text, (-2.5e-5, "kl"), "−3e−5"),
        (wording.cell_text, (0.0, "kl"), "0.0"),
        (wording.cell_text, (0.05, "kl"), "0.1"),
        (wording.cell_text, (12, "kl"), "12.0"),
        (wording.cell_text, (0.034, "cosine"), "0.03"),
        (wording.cell_text, (0.034, "agreement"), "0.0"),
        (wording.amount_text, (0.0352, "cosine"), "0.035 points"),
        (wording.interval_text, (0.012, 0.3, "cosine"), "0.012 to 0.3 points"),
        (wording.cell_text, (0.0034, "agreement"), "0.0"),  # in points like a drop
        (wording.score_text, (3.14e-6, "kl"), "3.1e−6 nats"),
        (wording.amount_text, (0.042, "kl"), "0.00042 nats"),
        (wording.drop_text, (1.7, "kl"), "KL divergence 0.017 nats"),
        (wording.number_text, (0.042, "kl"), "0.042"),
        (wording.amount_text, (0.0, "kl"), "0.000 nats"),
        (wording.amount_text, (0.0003, "nll"), "0.000 nats"),  # beside losses of several nats
        (wording.signed, (-5.06,), "−5.1"),
        (wording.signed, (0.3,), "+0.3"),
        (wording.signed, (-0.04,), "0.0"),
        (wording.signed, (0.0,), "0.0"),
        (wording.metric_name, (f"{PER_TEXT}exact_match,none",), "exact match"),
        (wording.metric_name, (f"{PER_TEXT}exact_match,strict-match",), "exact match, strict-match"),
        (wording.percent_text, (2.2111,), "2.2%"),
        (wording.percent_text, (100.0,), "100%"),
        (wording.percent_text, (0.0351,), "0.035%"),
        (wording.percent_text, (np.nan,), "–"),
        (wording.percent_text, (0.0,), "0%"),
        # Halves away from zero, of the decimal that a float stands for.
        (wording.score_text, (0.8375, "accuracy"), "83.8%"),
        (wording.score_text, (0.83749999999999991, "accuracy"), "83.8%"),
        (wording.score_text, (0.3625, "mcc"), "0.363"),
        (wording.drop_text, (0.25, "accuracy"), "drop 0.3 points"),
        (wording.drop_text, (-0.25, "accuracy"), "gain 0.3 points"),
        (wording.share_text, (2.25,), "2.3"),
        (wording.share_text, (0.0245,), "0.025"),
        (wording.rounded, (float("nan"),), "nan"),
        (wording.rounded, (float("-inf"),), "−inf"),
    ],
)
def test_numbers(function, given, text):
    assert function(*given) == text


@pytest.mark.parametrize(
    ("drop", "text"), [(9.94, "9.9"), (9.95, "10"), (12.5, "13"), (-12.4, "−12"), (0.25, "0.3")]
)
def test_a_cell_without_room_has_no_decimal_from_10_points(drop, text):
    assert wording.cell_text(drop, whole=True) == text


@given(st.decimals(-1000, 1000, places=4), st.integers(0, 3))
def test_every_decimal_is_rounded_half_away_from_zero(number, digits):
    """As `decimal` rounds what is written, also where a sum in floating point comes close to it."""
    exact = number.quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    for value in (float(number), float(number) + 0.1 - 0.1, float(number) / 3 * 3):
        assert wording.number_of(wording.rounded(value, digits)) == float(exact)
        assert "-" not in wording.rounded(value, digits)


@pytest.mark.parametrize(
    ("metric", "unit", "worse", "better"),
    [
        ("nll", " nats", "rise", "fall"),
        ("bits_per_byte", " bits", "rise", "fall"),
        ("perplexity", "", "rise", "fall"),
        ("margin", "", "drop", "gain"),  # log-likelihoods or similarities: no unit of its own
    ],
)
def test_what_has_no_upper_end_changes_in_its_own_unit(metric, unit, worse, better):
    assert wording.unit_name(metric) == (f"0.01{unit}" if unit else "× 100")
    assert wording.drop_name(metric) == worse
    assert wording.drop_text(1.7, metric) == f"{worse} 0.017{unit}"
    assert wording.drop_text(-1.7, metric) == f"{better} 0.017{unit}"
    assert wording.score_text(3.2141, metric) == f"3.214{unit}"
    assert wording.tolerance_text(1.0, metric) == f"0.01{unit}"
    assert wording.significance_test(metric) == "bootstrap"


@pytest.mark.parametrize("metric", ["accuracy", "acc_norm", "acc_bytes"])
def test_choices_are_counted_in_percent(metric):
    assert wording.unit_name(metric) == "percentage points"
    assert wording.score_text(0.5, metric) == "50.0%"
    assert wording.significance_test(metric) == "McNemar"


def test_intervals_and_tests_are_named_as_they_are_computed():
    """By the ways of `interval` and `p_values` on what each of these metrics can do to an example."""
    exact, draws = "by the exact method of Fay and Lumbard (2021)", "by the Bayesian bootstrap over "
    assert wording.interval_method("accuracy") == wording.interval_method("text_match", "accuracy") == exact
    unseen = " and one more that stands for unseen ones (Gaffke 2005)"
    assert wording.interval_method("nll") == wording.interval_method("f1") == f"{draws}examples{unseen}"
    assert wording.interval_method("accuracy", "entity_f1") == f"{exact} or {draws}sentences{unseen}"
    assert wording.interval_method("custom:mine") == f"by the bootstrap over examples{unseen}"
    for metric, parts, unit in (("accuracy", True, "examples"), ("exact_match", False, "paragraphs"),
                                ("pairwise_accuracy", False, "examples")):  # fmt: skip
        said = wording.interval_method(metric, parts=parts)
        assert said.startswith(f"{draws}{unit}{unseen}, exact (Fay and Lumbard 2021) where all {unit}")
        assert wording.named_test(metric, parts).startswith(
            "a two-sided paired test by the Bayesian bootstrap"
        )
        assert f"or the sign test where all {unit}" in wording.named_test(metric, parts)
    assert "McNemar" in wording.named_test("accuracy")
    assert "sign test" not in wording.named_test("mcc")
