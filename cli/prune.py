"""`adapter-probe prune`: remove a span's adapters and report the savings and the drop."""

from __future__ import annotations

from typing import Any

from adapter_probe.analysis.summary_text import aligned_columns, change_interval_text, plain_text, score_text
from adapter_probe.studies.checkpoint_arguments import Prune
from adapter_probe.wording import RETRAINED, done_text, is_distance, is_percentage, layers_text

from . import options
from .console import command, show, show_json


@command
def prune(asked: Prune, json: options.Json = False) -> None:
    """Remove the adapters of a span of layers and write the smaller checkpoint.

    With --strength, the adapters are scaled in the new checkpoint instead; with --rank, or --ranks and
    --within, they keep the largest of their directions.

    Reports the parameters and time saved and the drop on the validation set. With --within, the span is
    chosen on a fixed random half of the examples and its drop is measured on the other half; with --race
    too, by a race, and measured on the examples that its verdict did not need.

    Example: adapter-probe prune my-checkpoint --within 1 --out smaller
    """
    from adapter_probe.results.fingerprints import to_plain
    from adapter_probe.studies.prune import prune as run

    pruned = run(**vars(asked))
    plain = {
        **vars(pruned),
        "span": {k: v for k, v in vars(pruned.span).items() if v != ""},
        "checkpoint": str(pruned.checkpoint),
    }
    record: Any = to_plain(plain)
    show_json(record) if json else show(_text(record))


def _outcome(metric: str, cost: str, scores: str, examples: str) -> list[tuple[str, str]]:
    """What pruning changed: a score, or the distance from the outputs before it."""
    if is_distance(metric):
        return [("difference", f"{cost} ({examples}, compared with the outputs before)")]
    return [("score", f"{scores} ({metric}, {examples})"), ("cost", cost)]


def _text(pruned: dict[str, Any]) -> str:
    first, last = pruned["span"]["first"], pruned["span"]["last"]
    of = f" of the {pruned['span']['stack']}" if "stack" in pruned["span"] else ""
    metric, others = pruned["metric"], "other " if pruned["chosen_on"] in ("half", "race") else ""
    before, after = (score_text(pruned[f"score_{when}"], metric) for when in ("before", "after"))
    cost = change_interval_text(pruned["delta_points"], pruned["delta_interval_points"], metric)
    held = pruned["adapter_parameters_before"]
    saved = 1 - pruned["seconds_after"] / pruned["seconds_before"]
    how = {
        "half": f"a fixed random half of the examples ({pruned['n_examples_chosen_on'] or 0:,})",
        "race": f"{pruned['n_examples_chosen_on'] or 0:,} examples, after which a race was sure of it",
        "all": "the examples that are also scored, so the measured change is optimistic",
    }
    layers = plain_text(layers_text(first, last))
    saved_rows = [
        ("removed", f"{held - pruned['adapter_parameters_after']:,} of {held:,} adapter parameters"),
        ("time", f"{100 * abs(saved):.1f}% {'less' if saved > 0 else 'more'} per evaluation on this machine"),
    ]
    rank, strength = pruned["rank"] or 0, pruned["strength"]
    done = done_text("ablated", strength, rank) if strength or rank else "pruned"
    rows = [
        (plain_text(done), f"adapters of {layers}{of}"),
        ("chosen on", how.get(pruned["chosen_on"], "")),
        *_outcome(metric, cost, f"{before} to {after}", f"{pruned['n_examples']:,} {others}examples"),
        *([] if strength else saved_rows),
        ("checkpoint", pruned["checkpoint"]),
    ]
    text = aligned_columns([row for row in rows if row[1]])
    tested = pruned["chosen_on"] and not strength and not rank and is_percentage(metric)
    paragraphs = [pruned["warning"], text, RETRAINED if tested else None]
    return "\n\n".join(paragraph for paragraph in paragraphs if paragraph)
