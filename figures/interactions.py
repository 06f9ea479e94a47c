"""The grid of interactions: the part of each span's drop that shorter spans do not explain.

Defined in `adapter_probe.analysis.attribution`.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from adapter_probe.analysis.study_records import AblationRecord
from adapter_probe.errors import ResultsError
from adapter_probe.wording import cell_text, drop_text, unit_name

from .ablation_words import study_label
from .grid import Cells, draw_cells
from .levels import DIVERGING_EDGES, DivergingScale, draw_colorbar
from .marks import write_notes
from .style import escape_mathtext


def shares_of(record: AblationRecord) -> pd.DataFrame:
    """The table of layer shares.

    Raises:
        ResultsError: there is none; shares require an ablation of every span with defined scores.
    """
    if record.shares is None:
        raise ResultsError(
            f"{record.folder}: layer shares are not available; they require an ablation of every span,"
            " with all scores defined"
        )
    return record.shares


def total_drop(record: AblationRecord) -> float:
    """The drop of all layers together: the sum of their shares, in points."""
    return float(shares_of(record)["share_points"].sum(skipna=False))


def interaction_map(
    record: AblationRecord,
    ax: Axes | None = None,
    *,
    colorbar: bool = True,
    scale: DivergingScale | None = None,
) -> Axes:
    """Draw the grid of interactions: the part of each span's drop that shorter spans do not explain.

    An interaction counts as clear if its interval excludes 0, or without intervals if it is at least half a
    point. Clear interactions show their value where it fits; the others are small squares.

    Args:
        record: an ablation with the column `interaction_points`, and optionally its interval; NaN is crossed
            out.
        ax: Axes to draw on; by default the current Axes. A colour bar takes its room from it.
        colorbar: whether to draw one.
        scale: colour levels; by default the smallest scale that covers the record.
    """
    ax = plt.gca() if ax is None else ax
    frame, about = record.spans, record.summary
    cells = Cells.of(frame)
    values = frame["interaction_points"].to_numpy(float)
    scale = DivergingScale.spanning(values) if scale is None else scale
    clear = is_clear(frame)
    texts = [cell_text(value, record.summary.metric) if sure else "" for value, sure in zip(values, clear)]
    draw_cells(cells, values, ax, scale=scale, texts=texts, studied=about.done, small=~clear)
    said = [escape_mathtext(study_label(record))]
    if record.shares is not None:
        said.append(f"{about.removed}: {drop_text(total_drop(record), about.metric)}")
    if "interaction_low_points" in frame and not clear[~np.isnan(values)].all():
        said.append("small: 95% interval includes 0")
    write_notes(ax, said + ["crossed out: undefined"] * bool(np.isnan(values).any()), cells)
    if colorbar:
        draw_colorbar(scale, [ax], interaction_label(about.metric))
    return ax


def interaction_label(metric: str | None) -> str:
    """Label of the colour bar of interactions."""
    return f"interaction ({unit_name(metric)})"


def is_clear(frame: pd.DataFrame) -> np.ndarray:
    """Whether an interaction differs from 0 by its interval, or by size without one, bool `[rows]`."""
    if "interaction_low_points" not in frame:
        return frame["interaction_points"].abs().to_numpy(float) >= DIVERGING_EDGES[0]
    low, high = (frame[f"interaction_{end}_points"].to_numpy(float) for end in ("low", "high"))
    return (low > 0) | (high < 0)
