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
    from .studies.ranking import Ranking, rank
    from .studies.reporting import report
    from .studies.suite import Suite, suite
    from .studies.tradeoff import Tradeoff, tradeoff
    from .studies.training import Training, train

__version__ = "0.1.0"

_MODULES = {
    "Ablation": "studies.ablation",
    "ablate": "studies.ablating",
    "AblationPlan": "studies.planning",
    "SweepPlan": "studies.planning",
    "SuitePlan": "studies.planning",
    "Average": "studies.comparison",
    "average": "studies.comparison",
    "Comparison": "studies.comparison",
    "compare": "studies.comparison",
    "convert": "studies.checkpoints",
    "draw": "studies.gallery",
    "inspect": "studies.checkpoints",
    "Exchange": "studies.comparison",
    "exchange": "studies.comparison",
    "InitSweep": "studies.init_sweep",
    "init_sweep": "studies.init_sweep",
    "load": "studies.loading",
    "Model": "studies.model",
    "open": "studies.model",
    "model_card": "studies.model_card",
    "prune": "studies.pruning",
    "report": "studies.reporting",
    "Ranking": "studies.ranking",
    "rank": "studies.ranking",
    "Suite": "studies.suite",
    "suite": "studies.suite",
    "Tradeoff": "studies.tradeoff",
    "tradeoff": "studies.tradeoff",
    "Training": "studies.training",
    "train": "studies.training",
    "SlurmOptions": "jobs.slurm_options",
    "AdapterProbeError": "errors",
    "AdapterProbeWarning": "errors",
    "CheckpointError": "errors",
    "DataError": "errors",
    "JobsDetached": "errors",
    "ModelError": "errors",
    "ResultsError": "errors",
    "TrainingError": "errors",
}
_NAMES_THERE = {"open": "open_model"}  # Python's `open` stays available in the package's modules

__all__ = [
    "Ablation", "AblationPlan", "AdapterProbeError", "AdapterProbeWarning", "Average", "CheckpointError",
    "Comparison", "DataError", "Exchange", "InitSweep", "JobsDetached", "Model", "ModelError", "Ranking",
    "ResultsError", "SlurmOptions", "Suite", "SuitePlan", "SweepPlan", "Tradeoff", "Training",
    "TrainingError", "__version__", "ablate", "average", "compare", "convert", "draw", "exchange",
    "init_sweep", "inspect", "load", "model_card", "open", "prune", "rank", "report", "suite", "tradeoff",
    "train",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULES[name]}", __name__), _NAMES_THERE.get(name, name))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
