"""How a command reads its options, each once, and its help: options under headings, values in capitals."""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import Any

from typer.core import TyperCommand

PANELS = (
    "Arguments", "Data", "Spans", "Sweep", "Methods", "Training", "Adapters", "Prompts", "Generation",
    "Output", "Running", "SLURM", "Options",
)  # fmt: skip
"""The headings in the order in which they are needed."""
_FIRST = (
    "--data", "--metric", "--task", "--base", "--label-names", "--columns", "--max-examples", "--split",
    "--strengths", "--span", "--within", "--rank", "--spans", "--layers", "--group", "--by", "--sites",
    "--generate", "--max-new-tokens", "--until", "--temperature", "--num-fewshot",
    "--stds", "--sizes", "--top-k", "--lora-ranks", "--method", "--k", "--epochs", "--learning-rate",
    "--learning-rates", "--batch-size", "--seed", "--seeds", "--size", "--init-std", "--out", "--dry-run",
)  # fmt: skip
"""What comes first under a heading, after what is required."""


class PanelCommand(TyperCommand):
    """A command whose help shows its options under headings, and of which no value is dropped."""

    def make_parser(self, ctx: Any) -> Any:
        """The parser of the command's options, which refuses a second value of an option that takes one."""
        parser = super().make_parser(ctx)
        for option in {*parser._long_opt.values(), *parser._short_opt.values()}:
            option.process = partial(_take_once, ctx, option, option.process)
        return parser

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the line of usage, without braces around arguments."""
        pieces = super().collect_usage_pieces(ctx)
        return [re.sub(r"[{}]", "", piece).replace("......", "...") for piece in pieces]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does, and an example on a line of its own."""
        text, example = split_help(self)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text(text)
        if example:
            with formatter.section("Example"):
                formatter.write(f"{' ' * formatter.current_indent}{example}\n")

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        for title, rows in records(self, ctx).items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _take_once(context: Any, option: Any, take: Any, value: Any, state: Any) -> None:
    given = option.const if option.action == "store_const" else value
    earlier = state.opts.get(option.dest, given)
    if option.action.startswith("store") and earlier != given:
        flag = "/".join([*option.obj.opts, *option.obj.secondary_opts])
        context.fail(f"{flag} is given twice, as {earlier!r} and as {given!r}, and takes one value")
    take(value, state)


def split_help(command: Any) -> tuple[str, str]:
    """What a command does, and an example of its use."""
    text, _, example = inspect.cleandoc(command.help or "").partition("\n\nExample: ")
    return text, " ".join(example.split())


def records(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """The arguments and options of a command under their headings: how each is written, and what it means."""
    found: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:
            continue
        # A default that is only shown stands in parentheses.
        record = (record[0], re.sub(r"\[default: \((.*)\)\]", r"[default: \1]", record[1]))
        panel = getattr(parameter, "rich_help_panel", None) or "Options"
        if parameter.param_type_name == "argument":
            panel, record = "Arguments", (parameter.metavar or parameter.name.upper(), record[1])
        found.setdefault(panel, []).append(record)
    return {title: sorted(found[title], key=_need) for title in PANELS if title in found}


def _need(record: tuple[str, str]) -> int:
    """The place of an option under its heading; the others follow in the order of their declaration."""
    syntax, text = record
    flags = re.findall(r"--[a-z-]+", syntax)
    place = next((number for number, flag in enumerate(_FIRST) if flag in flags), len(_FIRST))
    return place - 100 * text.endswith("[required]")
