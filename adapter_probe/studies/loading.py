"""Read a finished study back from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from adapter_probe.analysis.studies import AblationRecord, SweepRecord, load_record
from adapter_probe.errors import ResultsError
from adapter_probe.results.schema import find_results

from .ablation import Ablation
from .checked import checked

if TYPE_CHECKING:
    from .init_sweep import InitSweep
    from .tradeoff import Tradeoff


@checked
def load(folder: str | Path) -> Ablation | InitSweep | Tradeoff:
    """Read the study in a results folder, without torch.

    Args:
        folder: results folder of a study, or a checkpoint with one ablation.

    Raises:
        ResultsError: the folder does not exist, contains no or several studies, or a table is damaged.
    """
    folders = find_results([folder])
    if len(folders) > 1:
        names = ", ".join(str(path) for path in folders)
        raise ResultsError(f"{folder} contains {len(folders)} studies; give one of {names}")
    record = load_record(folders[0])
    if isinstance(record, AblationRecord):
        return Ablation(record)
    if isinstance(record, SweepRecord):
        from .init_sweep import InitSweep

        return InitSweep(record)
    from .tradeoff import Tradeoff

    return Tradeoff(record)
