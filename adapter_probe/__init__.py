"""Which adapters earn their keep: ablation and trade-off studies for parameter-efficient transfer learning.

    import adapter_probe as ap

    study = ap.ablate("checkpoint/")      # switch adapters off over every contiguous span of layers
    study.spans                           # a DataFrame
    study.heatmap()                       # matplotlib Axes

Names are loaded when they are first used: importing the package loads neither torch nor matplotlib.
"""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .version import __version__ as __version__

if TYPE_CHECKING:  # the one list of public names, which `_public_names` reads
    from .errors import AdapterProbeError as AdapterProbeError
    from .errors import AdapterProbeWarning as AdapterProbeWarning
    from .errors import CheckpointError as CheckpointError
    from .errors import DataError as DataError
    from .errors import JobsDetached as JobsDetached
    from .errors import ModelError as ModelError
    from .errors import ResultsError as ResultsError
    from .errors import TrainingError as TrainingError
    from .jobs.resources import SlurmOptions as SlurmOptions
    from .studies.ablate import ablate as ablate
    from .studies.ablation_study import Ablation as Ablation
    from .studies.comparison import Average as Average
    from .studies.comparison import Comparison as Comparison
    from .studies.comparison import DataComparison as DataComparison
    from .studies.comparison import average as average
    from .studies.comparison import compare as compare
    from .studies.comparison import compare_data as compare_data
    from .studies.cost_plan import AblationPlan as AblationPlan
    from .studies.cost_plan import SuitePlan as SuitePlan
    from .studies.cost_plan import SweepPlan as SweepPlan
    from .studies.draw import draw as draw
    from .studies.init_sweep import InitSweep as InitSweep
    from .studies.init_sweep import init_sweep as init_sweep
    from .studies.inspect_convert import convert as convert
    from .studies.inspect_convert import inspect as inspect
    from .studies.load import load as load
    from .studies.model_card import model_card as model_card
    from .studies.open_model import Model as Model
    from .studies.open_model import open_model as open  # noqa: F401 (Python's `open` stays there under its name)
    from .studies.prune import prune as prune
    from .studies.ranks import Ranks as Ranks
    from .studies.ranks import ranks as ranks
    from .studies.report import report as report
    from .studies.strength import Strengths as Strengths
    from .studies.strength import strength as strength
    from .studies.suite import Suite as Suite
    from .studies.suite import suite as suite
    from .studies.tradeoff import Tradeoff as Tradeoff
    from .studies.tradeoff import tradeoff as tradeoff
    from .studies.train import Training as Training
    from .studies.train import train as train


def _public_names() -> dict[str, tuple[str, str]]:
    """Module and name there of every public name, from the imports above, which only type checkers run."""
    tree = ast.parse(Path(__file__).read_text("utf-8"))
    imports = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.asname or alias.name: (f".{node.module}", alias.name)
        for node in imports.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


_PUBLIC = _public_names()
__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, there = _PUBLIC[name]
    value = getattr(import_module(module, __name__), there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
