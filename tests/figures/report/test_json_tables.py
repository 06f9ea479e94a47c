from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.figures.report.json_tables import (
    json_cell,
    json_table,
    round_significant,
    settings_rows,
    short_name,
)


@given(st.floats())
def test_a_number_is_json_and_near(value: float):
    got = json_cell(value)
    json.dumps(got, allow_nan=False)
    if math.isfinite(value):
        assert got == pytest.approx(value, abs=5.1e-7, rel=1e-12)
    else:
        assert got is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (pd.NA, None),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        ("a", "a"),
    ],
)
def test_other_cells(value: object, expected: object):
    got = json_cell(value)
    assert got == expected
    assert type(got) is type(expected)


def test_no_minus_zero():
    assert math.copysign(1, json_cell(-1e-12)) == 1


@given(st.floats(1e-300, 1e300))
def test_tiny_numbers_keep_their_digits(value: float):
    assert round_significant(value) == pytest.approx(value, rel=5.1e-3)
    assert len(f"{round_significant(value):.17g}".lower().replace("e", "")) > 0
    assert round_significant(round_significant(value)) == round_significant(value)


def test_a_table_keeps_order_and_drops_what_is_missing():
    frame = pd.DataFrame({"b": [1.0, math.nan], "a": ["x", "y"], "p_value": [1.23456e-9, 0.5]})
    assert json_table(frame, ("a", "nothing", "p_value", "b")) == {
        "columns": ["a", "p_value", "b"],
        "rows": [["x", 1.23e-9, 1.0], ["y", 0.5, None]],
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("/home/a/b", "b"),
        ("C:\\Users\\a\\b", "b"),
        ("owner/name", "owner/name"),
        ("/", "/"),
        (["/x/y", "z"], "y, z"),
    ],
)
def test_settings_do_not_tell_where_things_lay(value: object, expected: str):
    assert settings_rows({"a": value}) == [["a", expected]]


def test_settings_are_flat_and_in_order():
    record = {"b": {"y": 1, "x": [1, 2.5]}, "a": None, "c": "", "d": True, "e": {}, "f": 0, "g": False}
    assert settings_rows(record) == [
        ["b.y", "1"], ["b.x", "1, 2.5"], ["d", "yes"], ["f", "0"], ["g", "no"],
    ]  # fmt: skip


def test_a_name_tells_no_more_than_two_parts_of_the_path(tmp_path):
    folder = tmp_path / "checkpoint" / "ablation"
    folder.mkdir(parents=True)
    assert short_name(folder) == short_name(folder / ".." / "ablation") == "checkpoint/ablation"
