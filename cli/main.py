"""The `adapter-probe` program: the table of commands, each implemented in another module."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from adapter_probe.figure_settings import Paper
from adapter_probe.progress import print_message
from adapter_probe.startup import collecting_rarely, unneeded_libraries_hidden
from adapter_probe.studies.ranks import RunRanks
from adapter_probe.studies.strength import RunStrength
from adapter_probe.studies.training_arguments import RunInitSweep, RunTradeoff
from adapter_probe.version import __version__

from .checkpoints import convert, inspect, prune
from .console import USER_ERROR, brief
from .demo import demo
from .finished import compare, figures, report
from .help import PanelCommand
from .studies import ablate, study, suite, train

_UsageError = (
    typer.BadParameter.__base__
)  # from click, or from the copy that typer bundles; neither is exported

app = typer.Typer(
    name="adapter-probe",
    help="Ablation and trade-off studies of adapters for parameter-efficient transfer learning.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
for function, short_help in (  # each fits on a line of 80 characters
    (ablate, "Score the model with adapters off over every span of layers."),
    (study("strength", RunStrength), "Score the model with its adapters scaled by several strengths."),
    (study("ranks", RunRanks), "Score the model with the largest directions of its adapters only."),
    (inspect, "Show a checkpoint's layers, adapters, sizes and parameters."),
    (prune, "Remove the adapters of a span of layers from a checkpoint."),
    (convert, "Convert a checkpoint to another format."),
    (compare, "Compare two ablations span by span, with paired intervals."),
    (figures, "Redraw figures and tables from results folders."),
    (report, "Write an interactive HTML report."),
    (train, "Train adapters on a frozen base model, or a baseline."),
    (study("init_sweep", RunInitSweep, Paper), "Retrain adapters over a range of initialisation scales."),
    (study("tradeoff", RunTradeoff, Paper), "Compare scores with numbers of trained parameters."),
    (suite, "Run all studies of a TOML file over tasks, methods and seeds."),
    (demo, "Train on a small task, ablate every span, draw the heatmap."),
):
    app.command(short_help=short_help, cls=PanelCommand)(function)


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


@unneeded_libraries_hidden()
@collecting_rarely()
def main() -> None:
    """Run the program."""
    page = _help_asked(sys.argv[1:])
    if page is not None:
        typer.echo(page)
        return
    try:
        # The explicit name keeps messages the same under `python -m adapter_probe`.
        sys.exit(app(prog_name=app.info.name, standalone_mode=False))
    except _UsageError as error:
        message = error.format_message()
        if "\n" in message:  # the help text, when no command was given
            typer.echo(message, err=True)
        else:
            said = _with_value(message, error)
            page = f"{error.ctx.command_path if error.ctx else app.info.name} --help"
            see = " See" if said.endswith("?") else "; see"
            print_message(f"adapter-probe: {brief(said)}{see} {page}")
        sys.exit(USER_ERROR)


def _help_asked(arguments: list[str]) -> str | None:
    """The page that is asked for with nothing else; what reads values would take nearly as long to load."""
    *named, asked = arguments or [""]
    if asked not in ("-h", "--help") or len(named) > 1:
        return None
    group: Any = typer.main.get_command(app)
    context: Any = typer.Context(group, info_name=app.info.name, **group.context_settings)
    for name in named:
        if name not in group.commands:
            return None
        context = typer.Context(group.commands[name], info_name=name, parent=context)
    return context.get_help()


def _with_value(message: str, error: Exception) -> str:
    """The message with the rejected value, which newer versions of typer leave out."""
    message = message.replace("Value error, ", "").removesuffix(".")
    faults = error.__cause__.errors() if hasattr(error.__cause__, "errors") else []
    value = repr(faults[0]["input"]) if faults else ""
    return message if value in message else f"{message}, not {value}"
