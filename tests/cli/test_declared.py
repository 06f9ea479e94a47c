"""The options that settings declare: what is given counts, also where it equals the default."""

from __future__ import annotations

import inspect

import pytest
import typer
from typer.testing import CliRunner

import adapter_probe
from adapter_probe.cli.console import command
from adapter_probe.cli.help import records
from adapter_probe.cli.main import app
from adapter_probe.jobs.resources import SlurmOptions
from adapter_probe.studies.checkpoint_arguments import Ablate, Prune
from adapter_probe.studies.ranks import RunRanks
from adapter_probe.studies.strength import RunStrength
from adapter_probe.studies.training_arguments import RunInitSweep, RunSuite, RunTradeoff

COMMANDS = typer.main.get_command(app).commands


@pytest.fixture
def clusters(tmp_path):
    """``clusters(...)`` is the cluster that the options describe, or the line that refuses them."""
    suite = tmp_path / "suite.toml"
    suite.write_text("")

    def read(*given: object) -> SlurmOptions | str | None:
        seen = []

        @command
        def study(asked: RunSuite) -> None:
            seen.append(asked.cluster)

        program = typer.Typer()
        program.command()(study)
        done = CliRunner().invoke(program, [str(suite), "--out", "out", *map(str, given)])
        return seen[0] if seen else done.output

    return read


def test_options_of_sbatch(clusters):
    assert clusters("--slurm") == SlurmOptions()
    assert clusters() is None
    asked = ("--sbatch", "partition=gpu", "--sbatch", "gres=gpu:2,tmp:5G", "--sbatch", "exclusive")
    sbatch = {"partition": "gpu", "gres": "gpu:2,tmp:5G", "exclusive": True}
    assert clusters("--slurm", *asked, "--setup", "true", "--max-parallel", 3) == SlurmOptions(
        sbatch, max_parallel=3, setup=("true",)
    )
    refusal = clusters("--slurm", "--sbatch", "mem=16G", "--sbatch", "mem=8G")
    assert "mem=8G" in refusal
    assert "mem=16G" in refusal


def test_options_of_sbatch_without_slurm_are_refused(clusters):
    refusal = clusters("--sbatch", "time=4:00:00")
    assert "--sbatch" in refusal
    assert "--slurm" in refusal


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_belong_together_are_everywhere(name):
    flags = {flag for parameter in COMMANDS[name].params for flag in parameter.opts}
    for one, other in {"--device": "--threads", "--data": "--encoding", "--threads": "--device"}.items():
        assert one not in flags or other in flags


@pytest.mark.parametrize(
    "function", [one.callback for one in app.registered_commands], ids=lambda f: f.__name__
)
def test_an_option_with_a_metavar_has_its_own_flag(function):
    """Some versions of typer would name it by the metavar."""
    for parameter in inspect.signature(function).parameters.values():
        for told in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(told, typer.models.OptionInfo) and told.metavar:
                assert str(told.default).startswith("-"), parameter.name  # typer's name for the first flag


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_read_and_written_stands_under_data_and_output(name):
    command = COMMANDS[name]
    panels = {
        flag: panel
        for panel, rows in records(command, typer.Context(command, info_name=name)).items()
        for syntax, _ in rows
        for flag in syntax.replace(",", "").split()
    }
    wanted = {"--base": "Data", "--task": "Data", "--data": "Data", "--out": "Output"}
    assert {flag: panels[flag] for flag in wanted if flag in panels} == {
        flag: panel for flag, panel in wanted.items() if flag in panels
    }


@pytest.mark.parametrize(
    ("function", "arguments", "needed"),
    [
        (adapter_probe.ablate, Ablate, {"checkpoint": "c"}),
        (adapter_probe.strength, RunStrength, {"checkpoint": "c"}),
        (adapter_probe.ranks, RunRanks, {"checkpoint": "c"}),
        (adapter_probe.prune, Prune, {"checkpoint": "c", "out": "o", "span": "0-1"}),
        (adapter_probe.init_sweep, RunInitSweep, {"base": "b", "task": "t", "out": "o"}),
        (adapter_probe.tradeoff, RunTradeoff, {"base": "b", "task": "t", "out": "o"}),
    ],
)
def test_a_command_passes_what_its_function_takes(function, arguments, needed):
    assert set(vars(arguments(**needed))) <= set(inspect.signature(function).parameters)
