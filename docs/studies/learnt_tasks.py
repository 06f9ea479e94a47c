"""Draws the aggregate of a trade-off over some of its tasks: `python learnt_tasks.py STUDY OUT TASK ...`.

Averages over tasks mean little where nothing was learnt: there every method is at the majority class, and all
differences are 0. STUDY is the folder of the trade-off; OUT gets `tradeoff-aggregate` as CSV, PNG and
caption.
"""

import sys
from pathlib import Path

import adapter_probe as ap
from adapter_probe.analysis.study_records import TradeoffRecord
from adapter_probe.analysis.sweeps import aggregate_table, tradeoff_table
from adapter_probe.studies.tradeoff import Tradeoff


def main(study: str, out: str, tasks: list[str]) -> None:
    """Write the figure of the named tasks."""
    whole = ap.load(study).record
    if unknown := set(tasks) - set(whole.trials["task"]):
        raise SystemExit(f"{study} has no task {', '.join(sorted(unknown))}")
    trials = whole.trials[whole.trials["task"].isin(tasks)]
    identity = {**whole.identity, "tasks": sorted(tasks)}
    some = TradeoffRecord(
        Path(study), tradeoff_table(trials), aggregate_table(trials), None, trials, identity
    )
    Tradeoff(some).save(out, formats=["png"], only=["tradeoff-aggregate"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
