"""The program as it is installed: a few calls without the tests' server in between."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from refusals import names
from typer.testing import CliRunner

from adapter_probe import __version__
from adapter_probe.cli.main import app

PROGRAM = Path(sys.executable).parent / "adapter-probe"


def call(*command: object, **env: str | None) -> subprocess.CompletedProcess[str]:
    merged = {**os.environ, "OMP_NUM_THREADS": "1", **env}
    return subprocess.run(
        list(map(str, command)),
        env={name: value for name, value in merged.items() if value is not None},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_version():
    done = call(PROGRAM, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"adapter-probe {__version__}\n", "")


def test_the_module_is_the_program():
    done = call(sys.executable, "-m", "adapter_probe", "ablat")
    assert (done.returncode, done.stdout) == (2, "")
    assert names(done.stderr.splitlines()[-1], "'ablate'", "adapter-probe --help")


def test_a_shell_completes_commands():
    done = call(
        PROGRAM, _ADAPTER_PROBE_COMPLETE="complete_bash", COMP_WORDS="adapter-probe ini", COMP_CWORD="1"
    )
    assert (done.returncode, done.stdout.split()) == (0, ["init-sweep"])


@pytest.mark.parametrize("arguments", [["--help"], ["prune", "-h"]])
def test_a_page_of_help_is_typers_own_without_what_reads_values(arguments):
    code = """
import json, sys
from adapter_probe.cli.main import main
sys.argv = ["adapter-probe", *json.loads(sys.argv[1])]
main()
sys.stderr.write(json.dumps("pydantic" in sys.modules))
"""
    done = call(sys.executable, "-c", code, json.dumps(arguments))
    assert done.stderr == "false"
    own = CliRunner().invoke(app, arguments, prog_name="adapter-probe").stdout  # in lines of other widths
    assert "".join(done.stdout.split()) == "".join(own.split())


@pytest.mark.slow
def test_a_hub_name_without_a_network(train_arguments, tmp_path):
    # Nothing listens there: as without a network, each attempt fails at once. What would take long is
    # waiting between attempts, which is added up here in place of being waited.
    code = """
import json, sys, time
waited = []
time.sleep = waited.append
import adapter_probe.cli.main
sys.argv = ["adapter-probe", *json.loads(sys.argv[1])]
try:
    adapter_probe.cli.main.main()
finally:
    print(json.dumps(sum(waited)))
"""
    arguments = [*map(str, train_arguments), "--out", str(tmp_path / "out")]
    arguments[arguments.index("--base") + 1] = "no-such-model"
    done = call(
        sys.executable,
        "-c",
        code,
        json.dumps(arguments),
        HF_HUB_OFFLINE=None,
        HF_HOME=str(tmp_path / "hub"),
        HF_ENDPOINT="http://127.0.0.1:9",
    )
    assert done.returncode == 2
    lines = [line for line in done.stderr.replace("\r", "\n").split("\n") if line.strip()]
    assert lines[-1].startswith("adapter-probe: base 'no-such-model'")
    assert "Hub" in lines[-1]
    assert len(lines) == 1, done.stderr
    assert json.loads(done.stdout) <= 10  # seconds
