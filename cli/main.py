"""The `adapter-probe` program: its commands, each in a file of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from adapter_probe import __version__

from .ablate import ablate
from .convert import convert
from .demo import demo
from .figures import figures
from .init_sweep import init_sweep
from .inspect import inspect
from .prune import prune
from .report import report
from .tradeoff import tradeoff
from .train import train
from .worker import worker

app = typer.Typer(
    name="adapter-probe",
    help="Which adapters earn their keep: ablation studies for parameter-efficient transfer learning.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(ablate)
app.command()(inspect)
app.command()(prune)
app.command()(convert)
app.command()(figures)
app.command()(report)
app.command()(train)
app.command()(init_sweep)
app.command()(tradeoff)
app.command()(demo)
app.command(hidden=True)(worker)


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"adapter-probe {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the program."""
    app()
