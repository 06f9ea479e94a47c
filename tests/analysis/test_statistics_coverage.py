"""The benchmark of the statistics: every case can be simulated, and an interrupted run goes on."""

import json

import numpy as np
import pandas as pd
import pytest

from benchmarks import statistics_coverage as coverage
from benchmarks.statistics_coverage_checks import checks


@pytest.mark.slow
def test_every_case_simulates():
    few = [one for one in checks() if one[1] == 30]
    assert len(few) > 100
    for name, n, check, least in few:
        for statistic, found in check(np.random.default_rng(0), n).items():
            assert {"said", "any", "p_below_0.05"} & {*found}, (name, statistic)
            assert 0 <= found.get("covers", 1.0) <= 1, (name, statistic)
            assert least >= 0.93


def test_a_run_goes_on_where_an_earlier_one_ended(tmp_path, monkeypatch):
    """Simulations that are read back give the rows of those that were made."""
    monkeypatch.setattr(coverage, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(coverage, "OUT", tmp_path / "table.csv")

    def check(generator, n):
        covers = generator.random() < 0.95
        return {"change": {"said": 1.0, "spans": 40, "covers": float(covers), "width": 1.0}}

    cell, again = (coverage.Cell("case", 30, check, 0.93) for _ in range(2))
    for _ in range(20):
        cell.simulate("abc")
    for line in (tmp_path / "kept").read_text().splitlines():
        again.add(*json.loads(line)[2:])
    assert again.rows() == cell.rows()
    assert again.rows()[0]["covers"] == np.mean([one["change"]["covers"] for one in cell.found])
    coverage.write([again])
    assert pd.read_csv(tmp_path / "table.csv")["simulations"].tolist() == [20]
