"""The commands about checkpoints themselves: `inspect`, `prune` and `convert`."""

from __future__ import annotations

from typing import Any

import adapter_probe
from adapter_probe.analysis.summary_text import aligned_columns, change_interval_text, plain_text, score_text
from adapter_probe.progress import print_message
from adapter_probe.studies.checkpoint_arguments import Prune
from adapter_probe.studies.inspect_convert import Convert, Inspect, method_text
from adapter_probe.wording import (
    RETRAINED,
    done_text,
    is_distance,
    is_percentage,
    layers_text,
    named_score,
    percent_text,
    rounded,
)

from . import options
from .console import command, show, show_json


@command
def inspect(asked: Inspect, json: options.Json = False) -> None:
    """Show a checkpoint's layers, adapters, sizes and parameter counts, whichever library wrote it.

    Example: adapter-probe inspect my-checkpoint
    """
    facts = adapter_probe.inspect(**vars(asked))
    show_json(facts) if json else show(_inspected(facts))


def _inspected(facts: dict[str, Any]) -> str:
    method, counts, trained = facts["method"], facts["parameters"], facts["trained_by_role"]
    scores = ", ".join(named_score(value, name) for name, value in facts["scores"].items())
    stacks = [f"{n} in the {name}" for name, n in facts["stacks"].items()]
    layers = " and ".join(stacks) or facts["n_layers"]
    rows = [
        ("base", f"{facts['base']} ({', '.join(filter(None, (facts['family'], facts['quantised'])))})"),
        ("task", f"{facts['task']}, {scores}" if scores else facts["task"]),
        (
            "layers",
            f"{layers}, adapters in {facts['n_sites']} places, hidden size {facts['hidden_size']}",
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


@command
def prune(asked: Prune, json: options.Json = False) -> None:
    """Remove the adapters of a span of layers and write the smaller checkpoint.

    With --strength, the adapters are scaled in the new checkpoint instead; with --rank, they keep the largest
    of their directions.

    Reports the parameters and time saved and the drop on the validation set. With --within, the span is
    chosen on a fixed random half of the examples and its drop is measured on the other half.

    Example: adapter-probe prune my-checkpoint --within 1 --out smaller
    """
    from adapter_probe.results.fingerprints import to_plain

    pruned = adapter_probe.prune(**vars(asked))
    plain = {
        **vars(pruned),
        "span": {k: v for k, v in vars(pruned.span).items() if v != ""},
        "checkpoint": str(pruned.checkpoint),
    }
    record: Any = to_plain(plain)
    show_json(record) if json else show(_pruned(record))


def _pruned(pruned: dict[str, Any]) -> str:
    first, last = pruned["span"]["first"], pruned["span"]["last"]
    of = f" of the {pruned['span']['stack']}" if "stack" in pruned["span"] else ""
    metric, others = pruned["metric"], "other " if pruned["chosen_on"] else ""
    before, after = (score_text(pruned[f"score_{when}"], metric) for when in ("before", "after"))
    cost = change_interval_text(pruned["delta_points"], pruned["delta_interval_points"], metric)
    examples = f"{pruned['n_examples']:,} {others}examples"
    outcome = [("score", f"{before} to {after} ({metric}, {examples})"), ("cost", cost)]
    if is_distance(metric):
        outcome = [("difference", f"{cost} ({examples}, compared with the outputs before)")]
    kind = {"adapters": "adapter", "changes": "changed"}[pruned["parts"]]
    held = pruned["adapter_parameters_before"]
    saved = 1 - pruned["seconds_after"] / pruned["seconds_before"]
    chosen = f"a fixed random half of the examples ({pruned['n_examples_chosen_on'] or 0:,})"
    layers = plain_text(layers_text(first, last))
    saved_rows = [
        ("removed", f"{held - pruned['adapter_parameters_after']:,} of {held:,} {kind} parameters"),
        (
            "time",
            f"{rounded(100 * abs(saved))}% {'less' if saved > 0 else 'more'} per evaluation on this machine",
        ),
    ]
    rank, strength = pruned["rank"] or 0, pruned["strength"]
    done = done_text("ablated", strength, rank) if strength or rank else "pruned"
    rows = [
        (plain_text(done), f"{pruned['parts']} of {layers}{of}"),
        ("chosen on", chosen if pruned["chosen_on"] else ""),
        *outcome,
        *([] if strength else saved_rows),
        ("checkpoint", pruned["checkpoint"]),
    ]
    text = aligned_columns([row for row in rows if row[1]])
    tested = pruned["chosen_on"] and not strength and not rank and is_percentage(metric)
    paragraphs = [pruned["warning"], text, RETRAINED if tested else None]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)


@command
def convert(asked: Convert) -> None:
    """Convert a checkpoint to another format; a lossy conversion is refused unless --lossy is given.

    The project's own format (native) represents every supported checkpoint but those of causal language
    models. AdapterHub's format represents bottleneck adapters but not trained LayerNorms. PEFT's format
    represents LoRA, DoRA, (IA)³ and tuned LayerNorms.

    Example: adapter-probe convert my-checkpoint peft-copy --to peft
    """
    for what in adapter_probe.convert(**vars(asked)):
        print_message(f"{what} are left out" if what.endswith("s") else f"{what} is left out")
    show(str(asked.out))
