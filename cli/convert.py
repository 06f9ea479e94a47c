"""`adapter-probe convert`: a checkpoint in another library's format, or in this project's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from adapter_probe.progress import print_message

from . import options
from .console import command, show


@command
def convert(
    source: options.Checkpoint,
    out: Annotated[Path, typer.Argument(help="Output folder.", metavar="FOLDER")],
    to: Annotated[
        Literal["adapterhub", "native", "peft"],
        typer.Option(help="Format of the output.", rich_help_panel=options.OUTPUT),
    ],
    base: options.MovedBase = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of labelled validation examples, for a checkpoint that records no task. Repeatable.",
            metavar="FILE",
            rich_help_panel=options.DATA,
        ),
        options.PLACES["file"],
    ] = None,
    label_names: options.LabelNames = None,
    lossy: Annotated[
        bool,
        typer.Option(
            "--lossy", help="Drop what the output format cannot represent.", rich_help_panel=options.OUTPUT
        ),
    ] = False,
) -> None:
    """Convert a checkpoint to another format; a lossy conversion is refused unless --lossy is given.

    The project's own format (native) represents every supported checkpoint but those of causal language
    models. AdapterHub's format represents bottleneck adapters but not trained LayerNorms. PEFT's format
    represents LoRA, DoRA, (IA)³ and tuned LayerNorms.

    Example: adapter-probe convert my-checkpoint peft-copy --to peft
    """
    from adapter_probe.studies.checkpoints import convert as write

    given = {"base": base, "data": data or (), "label_names": label_names or (), "lossy": lossy}
    for what in write(source, out, to, **given):
        print_message(f"{what} are left out" if what.endswith("s") else f"{what} is left out")
    show(str(out))
