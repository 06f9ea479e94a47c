"""The help of every command: headings, values in capitals, an example; missing folders are refused early."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import typer

from adapter_probe.cli.help import PANELS, records, split_help
from adapter_probe.cli.main import app

COMMANDS = typer.main.get_command(app).commands
HEAVY = ("torch", "transformers", "pandas", "numpy", "matplotlib")
FURTHER = {"convert": ["out", "--to", "peft"], "prune": ["--out", "out", "--span", "0-1"],
           "suite": ["--out", "out"], "compare": ["missing-too"]}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("columns", [80, 120])
def test_every_page_of_help(name, columns):
    command = COMMANDS[name]
    context = typer.Context(command, info_name=f"adapter-probe {name}", max_content_width=columns)
    context.terminal_width = columns
    page = command.get_help(context)
    assert max(map(len, page.splitlines())) <= columns or columns == 80  # an example is one line
    assert not re.search(r"<list|\{[a-z]|<(str|int|path|float)>", page)
    assert not re.search(r"[{}]|\.{4}", page.partition("\n\n")[0])  # of several folders: FOLDER...
    _, example = split_help(command)
    assert example.startswith(f"adapter-probe {name} ")
    assert example in page
    found = records(command, context)
    assert set(found) <= set(PANELS)
    assert sum(map(len, found.values())) == len(command.get_params(context))  # none is lost
    for rows in found.values():
        for syntax, text in rows:
            assert re.match(r"[A-Z(]", text), (syntax, text)


def test_options_of_an_ablation_are_grouped():
    context = typer.Context(COMMANDS["ablate"], info_name="adapter-probe ablate")
    found = records(COMMANDS["ablate"], context)
    of = {syntax.split()[0]: panel for panel, rows in found.items() for syntax, _ in rows}
    assert of["--group"] == of["--layers"] == "Spans"
    assert of["--data"] == of["--metric"] == "Data"
    assert of["--sbatch"] == of["--detach"] == "SLURM"
    assert of["--out"] == of["--json"] == "Output"
    assert found["Arguments"][0][0] == "CHECKPOINT"


@pytest.mark.parametrize("name", COMMANDS)
def test_options_stand_in_the_order_of_need(name):
    """Data and metric first; no option is explained by a later one, or by one that the command lacks."""
    context = typer.Context(COMMANDS[name], info_name=f"adapter-probe {name}")
    found = records(COMMANDS[name], context)
    optional = [syntax for syntax, text in found.get("Data", []) if not text.endswith("[required]")]
    needed = [flag for flag in ("--data", "--metric") if any(one.startswith(f"{flag} ") for one in optional)]
    assert [re.match("--[a-z-]+", one)[0] for one in optional[: len(needed)]] == needed
    seen = set()
    for syntax, text in (row for rows in found.values() for row in rows):
        own = set(re.findall("--[a-z][a-z-]*", syntax))
        assert set(re.findall("--[a-z][a-z-]*", text)) <= seen | own, (syntax, text)
        assert "the same way" not in text, (syntax, text)  # as another option, which may come later
        seen |= own


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"ablate", "strength", "ranks", "compare", "demo"}))
def test_nothing_is_called_switched_off_where_nothing_is(name):
    page = COMMANDS[name].get_help(typer.Context(COMMANDS[name], info_name=f"adapter-probe {name}"))
    assert not re.search(r"switch\w*\s+(\w+\s+)?off", page)


def test_missing_folders_are_refused_before_anything_is_loaded(tmp_path):
    names = ("ablate", "inspect", "prune", "convert", "compare", "figures", "report", "suite")
    asked = [[name, "missing", *FURTHER.get(name, [])] for name in names]
    code = f"""
import contextlib, io, sys
from adapter_probe.cli.main import main
for arguments in {asked!r}:
    sys.argv, said = ["adapter-probe", *arguments], io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main()
        except SystemExit as stop:
            print(arguments[0], stop.code, *(one for one in {HEAVY!r} if one in sys.modules))
    assert said.getvalue().count("missing") and said.getvalue().count("\\n") == 1, said.getvalue()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines() == [f"{name} 2" for name in names], done.stderr
    assert not list(tmp_path.iterdir())
