"""`adapter-probe convert`: a checkpoint in another library's format, or in this project's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from . import options
from .console import command, say, show


@command
def convert(
    source: Annotated[Path, typer.Argument(help="Folder of a checkpoint.", show_default=False)],
    out: Annotated[Path, typer.Argument(help="Folder of the new one.", show_default=False)],
    to: Annotated[
        Literal["adapterhub", "native", "peft"], typer.Option(help="Format to write.", show_default=False)
    ],
    base: options.MovedBase = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="Labelled validation examples, for a checkpoint that remembers none; repeatable.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    lossy: Annotated[
        bool, typer.Option("--lossy", help="Leave out what the format has no place for.")
    ] = False,
) -> None:
    """Write a checkpoint in another format; what would be lost is named and refused.

    This project's own format (native) holds all that can be opened. AdapterHub's holds this project's
    bottleneck adapters, but not trained LayerNorms: without --lossy they are not dropped. PEFT's holds LoRA,
    DoRA, (IA)³ or tuned LayerNorms.
    """
    from adapter_probe.checkpoints.converting import to_adapterhub, to_native, to_peft
    from adapter_probe.checkpoints.opening import open_checkpoint
    from adapter_probe.probe.given_data import with_data

    opened = open_checkpoint(source, base)
    if to == "native":
        if data:
            opened = with_data(source, opened, data, "validation")
        to_native(opened, out)
    elif to == "peft":
        to_peft(opened, out, source)
    else:
        for what in to_adapterhub(opened, out, lossy):
            say(f"{what} are left out" if what.endswith("s") else f"{what} is left out")
    show(str(out))
