"""Averages of a trade-off over some of its tasks: `python learnt_tasks.py STUDY OUT TASK ...`.

Averages over tasks mean little where nothing was learnt: there every method is at the majority class, and all
differences are 0. STUDY is the folder of the trade-off, or one with its tables; OUT gets `tradeoff-aggregate`
and `size-robustness` as CSV, PNG and caption, and `table-tasks` and `table-sizes`.
"""

import sys
from copy import deepcopy
from pathlib import Path

import adapter_probe as ap
from adapter_probe.analysis.study_records import TradeoffRecord
from adapter_probe.analysis.sweeps import aggregate_table, size_table, tradeoff_table
from adapter_probe.studies.tradeoff import Tradeoff


def main(study: str, out: str, tasks: list[str]) -> None:
    """Write the figures and tables of the named tasks."""
    whole = ap.load(study).record
    if unknown := set(tasks) - set(whole.trials["task"]):
        raise SystemExit(f"{study} has no task {', '.join(sorted(unknown))}")
    trials = whole.trials[whole.trials["task"].isin(tasks)]
    identity = {**deepcopy(dict(whole.identity)), "tasks": sorted(tasks)}
    examples = identity.get("study", {}).get("told", {}).get("examples", {})
    for left_out in examples.keys() - set(tasks):
        del examples[left_out]
    tables = tradeoff_table(trials), aggregate_table(trials), size_table(trials)
    Tradeoff(TradeoffRecord(Path(study), *tables, trials, identity)).save(
        out, formats=["png"], only=["tradeoff-aggregate", "size-robustness", "table-tasks", "table-sizes"]
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
