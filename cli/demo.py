"""`adapter-probe demo`: the main job on data and a base that are at hand offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .console import command


@command
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the data, the checkpoint and the results.")] = Path(
        "demo"
    ),
) -> None:
    """Train adapters on a generated task, ablate every span of layers, draw the heatmap."""
    raise NotImplementedError
