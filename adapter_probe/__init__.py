"""Which adapters earn their keep: ablation and trade-off studies for parameter-efficient transfer learning.

    import adapter_probe as ap

    study = ap.ablate("checkpoint/")      # switch adapters off over every contiguous span of layers
    study.spans                           # a DataFrame
    study.heatmap()                       # matplotlib Axes

Names are loaded when they are first used: importing the package loads neither torch nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from .version import __version__

if TYPE_CHECKING:
    from .errors import (
        AdapterProbeError,
        AdapterProbeWarning,
        CheckpointError,
        DataError,
        JobsDetached,
        ModelError,
        ResultsError,
        TrainingError,
    )
    from .jobs.slurm_options import SlurmOptions
    from .studies.ablating import ablate
    from .studies.ablation import Ablation
    from .studies.checkpoints import convert, inspect
    from .studies.comparison import Average, Comparison, Exchange, average, compare, exchange
    from .studies.gallery import draw
    from .studies.init_sweep import InitSweep, init_sweep
    from .studies.loading import load
    from .studies.model import Model
    from .studies.model import open_model as open
    from .studies.model_card import model_card
    from .studies.planning import AblationPlan, SuitePlan, SweepPlan
    from .studies.pruning import prune
    from .studies.reporting import report
    from .studies.suite import Suite, suite
    from .studies.tradeoff import Tradeoff, tradeoff
    from .studies.training import Training, train

_MODULES = {
    "studies.ablating": ("ablate",),
    "studies.ablation": ("Ablation",),
    "studies.checkpoints": ("convert", "inspect"),
    "studies.comparison": ("Average", "Comparison", "Exchange", "average", "compare", "exchange"),
    "studies.gallery": ("draw",),
    "studies.init_sweep": ("InitSweep", "init_sweep"),
    "studies.loading": ("load",),
    "studies.model": ("Model", "open"),
    "studies.model_card": ("model_card",),
    "studies.planning": ("AblationPlan", "SuitePlan", "SweepPlan"),
    "studies.pruning": ("prune",),
    "studies.reporting": ("report",),
    "studies.suite": ("Suite", "suite"),
    "studies.tradeoff": ("Tradeoff", "tradeoff"),
    "studies.training": ("Training", "train"),
    "jobs.slurm_options": ("SlurmOptions",),
    "errors": ("AdapterProbeError", "AdapterProbeWarning", "CheckpointError", "DataError", "JobsDetached",
               "ModelError", "ResultsError", "TrainingError"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
_NAMES_THERE = {"open": "open_model"}  # Python's `open` stays available in the package's modules

__all__ = [
    "Ablation", "AblationPlan", "AdapterProbeError", "AdapterProbeWarning", "Average", "CheckpointError",
    "Comparison", "DataError", "Exchange", "InitSweep", "JobsDetached", "Model", "ModelError",
    "ResultsError", "SlurmOptions", "Suite", "SuitePlan", "SweepPlan", "Tradeoff", "Training",
    "TrainingError", "__version__", "ablate", "average", "compare", "convert", "draw", "exchange",
    "init_sweep", "inspect", "load", "model_card", "open", "prune", "report", "suite", "tradeoff",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), _NAMES_THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
