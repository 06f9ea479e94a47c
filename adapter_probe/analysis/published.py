"""The paper's numbers, for comparison with new ones.

All are from Houlsby et al. 2019 (arXiv 1902.00751). Values in figures were read off its vector graphics.
Scores are fractions here, as everywhere; differences are in points. What the paper does not have is None.
"""

from __future__ import annotations

from importlib import resources

import pandas as pd

from adapter_probe.analysis.score_changes import without_noise


def published_ablation(task: str) -> pd.DataFrame | None:
    """Fig. 6, left (MNLI-m) or centre (CoLA): BERT-base, size 64.

    Read to about 0.1 point for MNLI and 0.03 for CoLA. The paper's "relative decrease" is in percentage
    points of validation accuracy.

    Returns:
        Columns `first`, `last`, `n_layers`, `delta_points`, 78 rows sorted by first, then last layer. The
        paper gives no scores, so there is no such column.
    """
    if task not in ("mnli", "cola"):
        return None
    frame = _read(f"fig6_{task}")
    frame.insert(2, "n_layers", frame["last"] - frame["first"] + 1)
    return frame.sort_values(["first", "last"], ignore_index=True)


def published_init_sweep(task: str) -> pd.DataFrame | None:
    """Fig. 6, right (MNLI-m and CoLA): BERT-base, validation accuracy against the std of the initialisation.

    At std 1 the figure's axis cuts the points off; they are extended from the segments that lead there.

    Returns:
        Columns `init_std`, `mean`, sorted by std.
    """
    return _rows("fig6_init_sweep", task, mean="accuracy_percent")


def published_tradeoff(task: str) -> pd.DataFrame | None:
    """Fig. 4 (MNLI-m and CoLA, accuracy, BERT-base) or Fig. 5 (SQuAD v1.1, F1, BERT-large), validation.

    The parameters are where the paper plots them: for the top layers in Fig. 4 that is k/12 of the model.

    Returns:
        Columns `method`, `trained_parameters` (with the head), `mean`, `sem` (NaN where none is drawn).
    """
    return _rows("fig4_fig5", task, mean="score_percent", sem="sem_percent")


def published_aggregate(tasks: str) -> pd.DataFrame | None:
    """Figs 1 and 3: percentiles over tasks of the score minus full fine-tuning's.

    Args:
        tasks: ``glue`` (9 tasks, BERT-large) or ``additional`` (17 tasks, BERT-base).

    Returns:
        Columns `method`, `trained_parameters` (with the head), `p20_points`, `p50_points`, `p80_points`.
    """
    return _rows("fig3", tasks)


def published_sizes() -> pd.DataFrame:
    """Section 3.6: mean validation accuracy over eight GLUE tasks (BERT-large) at three adapter sizes.

    Returns:
        Columns `size`, `mean_score`.
    """
    frame = _read("sizes")
    frame["mean_score"] = without_noise(frame.pop("mean_percent") / 100)
    return frame


def published_glue() -> pd.DataFrame:
    """Table 1: GLUE's test server, BERT-large.

    Returns:
        Columns `method`, `total_multiple` (parameters for nine tasks, of the base), `trained_percent` a task,
        then one for each of `adapter_probe.known_tasks`' GLUE tasks, in the first of its `table_metrics`, and
        `total`, all scores in hundredths. The total is GLUE's own, not the mean of the columns.
    """
    return _read("table1")


def published_tasks() -> pd.DataFrame:
    """Table 2: test accuracy on 17 further tasks, BERT-base, with the s.e.m. over runs.

    Returns:
        Columns `task`, `no_bert_baseline`, `fine_tuning`, `variable_fine_tuning`, `adapters` and their
        ``_sem`` in percent (of the variable one ``variable_sem``), `n_train`, `n_val`, `n_test`, `n_classes`.
    """
    return _read("table2")


def _read(name: str) -> pd.DataFrame:
    source = resources.files("adapter_probe.reference") / f"houlsby2019_{name}.csv"
    with source.open(encoding="utf-8") as file:
        return pd.read_csv(file)


def _rows(name: str, of: str, **fractions: str) -> pd.DataFrame | None:
    """The rows of one task or set of tasks, the first column; percentages become fractions of a new name."""
    frame = _read(name)
    frame = frame[frame.pop(frame.columns[0]) == of].reset_index(drop=True)
    for ours, theirs in fractions.items():
        frame[ours] = without_noise(frame.pop(theirs) / 100)
    return None if frame.empty else frame
