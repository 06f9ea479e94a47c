"""The paper's own grids, to be set beside a new one."""

from __future__ import annotations

from importlib import resources

import pandas as pd

from adapter_probe.errors import DataError

PUBLISHED_TASKS = ("mnli", "cola")


def published_ablation(task: str) -> pd.DataFrame:
    """Fig. 6 of Houlsby et al. 2019 (arXiv 1902.00751), left (MNLI-m) or centre (CoLA): BERT-base, size 64.

    Read off the paper's vector graphics, to about 0.1 point for MNLI and 0.03 for CoLA. The paper's
    "relative decrease" is in percentage points of validation accuracy.

    Returns:
        Columns `first`, `last`, `n_layers`, `delta_points`, 78 rows sorted by first, then last layer. The
        paper gives no scores, so there is no such column.

    Raises:
        DataError: the task is none of `PUBLISHED_TASKS`.
    """
    if task not in PUBLISHED_TASKS:
        raise DataError(f"no published ablation of {task!r}; there are {', '.join(PUBLISHED_TASKS)}")
    source = resources.files("adapter_probe.reference") / f"houlsby2019_fig6_{task}.csv"
    with source.open(encoding="utf-8") as file:
        frame = pd.read_csv(file)
    frame.insert(2, "n_layers", frame["last"] - frame["first"] + 1)
    return frame.sort_values(["first", "last"], ignore_index=True)
