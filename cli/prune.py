"""`adapter-probe prune`: a checkpoint without a span's adapters, with what that saves and costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from adapter_probe.errors import ResultsError
from adapter_probe.models.device import choose_device

from .console import command, show, show_json
from .wording import columns, points, score_text

if TYPE_CHECKING:
    from adapter_probe.probe.prune import Pruned
    from adapter_probe.spans import Span


@command
def prune(
    checkpoint: Annotated[Path, typer.Argument(help="Folder of a trained checkpoint.", show_default=False)],
    out: Annotated[Path, typer.Option(help="Folder of the new checkpoint.", show_default=False)],
    span: Annotated[
        str | None, typer.Option(help="Layers whose adapters go, such as 0-4.", show_default=False)
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            help="The longest span that costs at most this many points, by the ablation in the checkpoint.",
            show_default=False,
        ),
    ] = None,
    basis: Annotated[
        Literal["estimate", "interval"],
        typer.Option(help="For --within: the drop as measured, or the worse end of its 95 % interval."),
    ] = "estimate",
    base: Annotated[
        str | None, typer.Option(help="Folder or hub id of the base, if it has moved.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    json: Annotated[bool, typer.Option("--json", help="Outcome as JSON.")] = False,
) -> None:
    """Leave a span's adapters out of a checkpoint for good; the result opens like any other.

    Says what that saves in parameters and time, and what it costs on the validation set.
    """
    from adapter_probe.probe.prune import prune_checkpoint
    from adapter_probe.probe.request import AblationSettings, prepare_ablation

    if (span is None) == (within is None):
        raise ResultsError("give either --span FIRST-LAST or --within POINTS")
    chosen = _parse(span) if span is not None else _removable(checkpoint, within, basis)
    request = prepare_ablation(checkpoint, AblationSettings(), choose_device(device), base=base)
    report = _report(prune_checkpoint(request, checkpoint, chosen, out), out)
    show_json(report) if json else show(_text(report))


def _parse(text: str) -> Span:
    """``0-4``, or ``3`` for a single layer."""
    from adapter_probe.spans import Span

    first, dash, last = text.partition("-")
    try:
        return Span(int(first), int(last if dash else first))
    except ValueError:
        raise ResultsError(
            f"--span {text!r} is not allowed; give first and last layer, such as 0-4"
        ) from None


def _removable(checkpoint: Path, within: float, basis: Literal["estimate", "interval"]) -> Span:
    """The longest removable span by the ablation that lies in the checkpoint's folder.

    Raises:
        ResultsError: there is no ablation with statistics, or no such span.
    """
    from adapter_probe.analysis.removable import longest_removable
    from adapter_probe.results.ablation import read_spans
    from adapter_probe.results.schema import SPANS_CSV
    from adapter_probe.spans import Span

    if not within >= 0:
        raise ResultsError(f"--within {within} is not allowed; give 0 or more points")
    folder = checkpoint / "ablation"
    spans = read_spans(folder) if (folder / SPANS_CSV).exists() else None
    if spans is None or "ci_low_points" not in spans:
        raise ResultsError(
            f"{folder} holds no ablation with intervals; run `adapter-probe ablate {checkpoint}` first, or "
            "give --span"
        )
    found = longest_removable(spans, within, basis)
    if found is None:
        judged = "by the estimate" if basis == "estimate" else "by the 95 % interval"
        raise ResultsError(f"{folder}: no span can go within {within:g} points {judged}")
    return Span(int(found["first"]), int(found["last"]))


def _report(pruned: Pruned, out: Path) -> dict[str, Any]:
    from adapter_probe.analysis.deltas import row_scores
    from adapter_probe.analysis.tables import ablation_tables

    results = pruned.results
    row = ablation_tables(results).spans.iloc[0]
    before, after = row_scores(results).tolist()
    interval = [row["ci_low_points"], row["ci_high_points"]]
    return {
        "span": {"first": pruned.span.first, "last": pruned.span.last},
        "metric": results.metric,
        "n_examples": len(results.labels),
        "score_before": before,
        "score_after": after,
        "delta_points": row["delta_points"],
        "delta_interval_points": interval,
        "p_value": row["p_value"],
        "adapter_parameters_before": pruned.adapters_before,
        "adapter_parameters_after": pruned.adapters_after,
        "seconds_before": pruned.seconds_before,
        "seconds_after": pruned.seconds_after,
        "checkpoint": str(out),
    }


def _text(report: dict[str, Any]) -> str:
    first, last = report["span"]["first"], report["span"]["last"]
    low, high = report["delta_interval_points"]
    gone = report["adapter_parameters_before"] - report["adapter_parameters_after"]
    saved = 1 - report["seconds_after"] / report["seconds_before"]
    metric = report["metric"]
    before, after = (score_text(report[f"score_{when}"], metric) for when in ("before", "after"))
    return columns(
        [
            (
                "pruned",
                f"adapters of layer {first}" if first == last else f"adapters of layers {first}-{last}",
            ),
            ("score", f"{before} to {after} ({metric}, {report['n_examples']:,} examples)"),
            ("costs", f"{points(report['delta_points'])}, 95 % interval {low:+.1f} to {high:+.1f}"),
            ("saves", f"{gone:,} of {report['adapter_parameters_before']:,} adapter parameters"),
            ("time", f"{100 * saved:.1f} % less for an evaluation on this machine"),
            ("checkpoint", report["checkpoint"]),
        ]
    )
