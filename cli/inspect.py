"""`adapter-probe inspect`: the layers, sites, sizes and parameter counts of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from adapter_probe.studies.summaries import columns, method_text

from . import options
from .console import command, show, show_json

if TYPE_CHECKING:
    from adapter_probe.checkpoints.headers import Contents
    from adapter_probe.checkpoints.native import OpenedCheckpoint
    from adapter_probe.models.adapters.imported import ImportedMethod
    from adapter_probe.models.methods import Method


@command
def inspect(
    checkpoint: options.Checkpoint,
    base: options.MovedBase = None,
    json: Annotated[bool, typer.Option("--json", help="Print machine-readable output (JSON).")] = False,
) -> None:
    """Show a checkpoint's layers, sites, sizes and parameter counts, whichever library wrote it."""
    from adapter_probe.checkpoints.headers import read_contents

    contents = read_contents(checkpoint, base)
    if contents is None:
        from adapter_probe.checkpoints.opening import open_checkpoint

        contents = contents_of(open_checkpoint(checkpoint, base))
    facts = _facts(contents)
    show_json(facts) if json else show(_text(facts))


def contents_of(opened: OpenedCheckpoint) -> Contents:
    """The facts about an open checkpoint that the command prints."""
    from adapter_probe.checkpoints.headers import Contents

    model = opened.model
    # As in sweeps: parameters that the base lacks count as head; percentages of the base leave the head out.
    body = [(r, n, p.numel()) for r, n, p in model.named_roles() if r != "head" and n not in opened.missing]
    return Contents(
        opened.description,
        model.base.config.model_type,
        len(model.layers),
        model.hidden_size,
        int(model.has_adapter.sum()),
        model.parameter_counts(),
        sum(p.numel() for _, name, p in model.named_roles() if name in opened.trained),
        sum(size for _, name, size in body if name in opened.trained),
        sum(size for role, _, size in body if role != "adapters"),
        opened.notes,
    )


def _facts(contents: Contents) -> dict[str, Any]:
    description, counts = contents.description, contents.counts
    return {
        "base": description.base.name,
        "family": contents.family,
        "task": description.task.name,
        "metric": description.task.metric,
        "scores": description.scores,
        "n_layers": contents.n_layers,
        "n_sites": contents.n_sites,
        "hidden_size": contents.hidden_size,
        "method": _method(description.method),
        "parameters": counts,
        "trained_parameters": contents.trained,
        "trained_parameters_without_head": contents.trained_body,
        "percent_of_base": 100 * contents.trained_body / contents.pretrained,
        "adapters_percent_of_base": 100 * counts["adapters"] / contents.pretrained,
        "notes": list(contents.notes),
    }


def _method(method: Method | ImportedMethod) -> dict[str, Any]:
    """The method's record; for other libraries, whose record lists every adapter, its summary."""
    from adapter_probe.models.adapters.imported import ImportedMethod

    return method.summary() if isinstance(method, ImportedMethod) else method.to_json()


def _text(facts: dict[str, Any]) -> str:
    method, counts = facts["method"], facts["parameters"]
    scores = ", ".join(
        f"{name} {'undefined' if value is None else f'{value:.3f}'}"
        for name, value in facts["scores"].items()
    )
    rows = [
        ("base", f"{facts['base']} ({facts['family']})"),
        ("task", f"{facts['task']}, {scores}" if scores else facts["task"]),
        (
            "layers",
            f"{facts['n_layers']}, adapters at {facts['n_sites']} sites, hidden size {facts['hidden_size']}",
        ),
        ("method", method_text(method)),
        *((f"  {name}", f"{counts[name]:>12,} parameters") for name in counts),
        (
            "trained",
            f"{facts['trained_parameters']:>12,} parameters, "
            f"{facts['trained_parameters_without_head']:,} without the head, "
            f"{facts['percent_of_base']:.2f} % of the base",
        ),
    ]
    return "\n".join([columns(rows), *(f"\n{note}" for note in facts["notes"])])
