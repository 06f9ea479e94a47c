"""`adapter-probe convert`: a checkpoint in another library's format, or in this project's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import options
from .console import command, say, show


@command
def convert(
    source: Annotated[Path, typer.Argument(help="Checkpoint folder.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Output folder.", show_default=False)],
    to: Annotated[
        Literal["adapterhub", "native", "peft"],
        typer.Option(help="Format of the output.", show_default=False),
    ],
    base: options.MovedBase = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="File of labelled validation examples, for a checkpoint that records no task; repeatable.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Drop what the output format cannot represent.")
    ] = False,
) -> None:
    """Convert a checkpoint to another format; a lossy conversion is refused unless --lossy is given.

    The project's own format (native) represents every supported checkpoint but those of causal language
    models. AdapterHub's format represents bottleneck adapters but not trained LayerNorms. PEFT's format
    represents LoRA, DoRA, (IA)³ and tuned LayerNorms.
    """
    from adapter_probe.checkpoints.converting import to_adapterhub, to_native, to_peft
    from adapter_probe.checkpoints.opening import open_checkpoint
    from adapter_probe.data.given import given_task

    opened = open_checkpoint(source, base)
    if to == "native":
        if data:
            opened = opened.with_task(given_task(opened.description.task, data, "validation", source))
        to_native(opened, out)
    elif to == "peft":
        to_peft(opened, out, source)
    else:
        for what in to_adapterhub(opened, out, lossy):
            say(f"{what} are left out" if what.endswith("s") else f"{what} is left out")
    show(str(out))
