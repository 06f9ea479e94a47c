"""`adapter-probe inspect`: the layers, sites, sizes and parameter counts of a checkpoint."""

from __future__ import annotations

from typing import Any

from adapter_probe.analysis.summary_text import aligned_columns
from adapter_probe.studies.checkpoint_arguments import Inspect
from adapter_probe.studies.inspect_convert import method_text
from adapter_probe.wording import named_score, percent_text

from . import options
from .console import command, show, show_json


@command
def inspect(asked: Inspect, json: options.Json = False) -> None:
    """Show a checkpoint's layers, sites, sizes and parameter counts, whichever library wrote it.

    Example: adapter-probe inspect my-checkpoint
    """
    from adapter_probe.studies.inspect_convert import inspect as read

    facts = read(**vars(asked))
    show_json(facts) if json else show(_text(facts))


def _text(facts: dict[str, Any]) -> str:
    method, counts, trained = facts["method"], facts["parameters"], facts["trained_by_role"]
    scores = ", ".join(named_score(value, name) for name, value in facts["scores"].items())
    stacks = [f"{n} in the {name}" for name, n in facts["stacks"].items()]
    layers = " and ".join(stacks) or facts["n_layers"]
    rows = [
        ("base", f"{facts['base']} ({', '.join(filter(None, (facts['family'], facts['quantised'])))})"),
        ("task", f"{facts['task']}, {scores}" if scores else facts["task"]),
        (
            "layers",
            f"{layers}, adapters at {facts['n_sites']} sites, hidden size {facts['hidden_size']}",
        ),
        ("method", method_text(method)),
        *_parts("trained", trained, percent_text(facts["adapters_percent_of_base"])),
        *_parts("frozen", {name: counts[name] - trained[name] for name in counts}),
    ]
    return "\n".join([aligned_columns(rows), *(f"\n{note}" for note in facts["notes"])])


def _parts(what: str, counts: dict[str, int], of_base: str = "") -> list[tuple[str, str]]:
    """A number of parameters and, below it, the parts that it consists of."""
    notes = {"adapters": f", {of_base} of the base"}
    return [
        (what, f"{sum(counts.values()):>12,} parameters"),
        *((f"  {name}", f"{n:>12,} parameters{notes.get(name, '')}") for name, n in counts.items() if n),
    ]
