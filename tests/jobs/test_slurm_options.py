"""What a SLURM job asks for, from flags and from a file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import naming

from adapter_probe.errors import TrainingError
from adapter_probe.jobs.resources import SlurmOptions, choose_options, minutes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", 90),
        ("90:00", 90),
        ("90:01", 91),
        ("1:30:00", 90),
        ("0:00:01", 1),
        ("1-0", 1440),
        ("1-12", 2160),
        ("2-01:30", 2970),
        ("2-01:30:30", 2971),
    ],
)
def test_slurms_notations_of_time(text, expected):
    assert minutes(text) == expected


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_days_hours_minutes_seconds(days, hours, mins, seconds):
    total = ((days * 24 + hours) * 60 + mins) * 60 + seconds
    if total:
        assert minutes(f"{days}-{hours}:{mins}:{seconds}") == -(-total // 60)


@pytest.mark.parametrize("text", ["soon", "", "1:2:3:4", "-5", "1.5", "0", "0:00:00", "1-"])
def test_no_time(text):
    with pytest.raises(TrainingError, match="time"):
        minutes(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "lab.toml"
    path.write_text(
        'partition = "long"\ngpus-per-task = 1\ntime = 90\nmem = "16G"\nmax-parallel = 5\n'
        'setup = ["module load cuda", "nvidia-smi"]\n[sbatch]\naccount = "lab"\nexclusive = true\n'
    )
    return path


def test_a_file(file):
    assert choose_options(file, {}) == SlurmOptions(
        partition="long", gpus_per_task=1, time="90", mem="16G", max_parallel=5,
        setup=("module load cuda", "nvidia-smi"), sbatch={"account": "lab", "exclusive": True},
    )  # fmt: skip


def test_sbatch_options_with_underscores(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text("mem = 500\n[sbatch]\ncpus_per_task = 4\n")
    assert choose_options(path, {}) == SlurmOptions(mem="500", sbatch={"cpus-per-task": 4})


def test_flags_come_before_the_file(file):
    given = {"partition": "short", "max_parallel": 2, "mem": None, "setup": ("true",), "time": None}
    options = choose_options(file, given)
    assert (options.partition, options.max_parallel, options.mem) == ("short", 2, "16G")
    assert (options.setup, options.time) == (("true",), "90")
    assert choose_options(file, {"gpus_per_task": 0}).gpus_per_task == 0


def test_no_file():
    assert choose_options(None, {"partition": None, "setup": ()}) == SlurmOptions()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partitoin = 'x'", ["'partitoin'", "partition", "max-parallel", "mem"]),
        ("gpus-per-task = 'one'", ["gpus-per-task", "'one'", "whole number"]),
        ("gpus-per-task = true", ["gpus-per-task", "True", "whole number"]),
        ("max-parallel = 0", ["--max-parallel", "at least 1", "0"]),
        ("time = 'soon'", ["time", "'soon'", "1:30:00", "1-12"]),
        ("mem = 'much'", ["mem", "'much'", "16G", "500M"]),
        ("setup = [1.5]", ["1.5", "text", "number"]),
        ("[sbatch]\naccount = ['a']", ["['a']", "text", "number"]),
        ("partition = ", ["TOML"]),
        ("time = 04:00:00", ["time", "datetime.time(4, 0)", "quotes"]),  # which TOML takes for a time of day
        # The tasks would not be found again.
        ("[sbatch]\njob_name = 'mine'", ["[sbatch] job-name", "not allowed"]),
        ("[sbatch]\narray = '0-3'", ["[sbatch] array", "not allowed"]),
        ("[sbatch]\ntime = 90", ["[sbatch] time", "not allowed", "outside"]),
        ('partition = "a\\n#SBATCH --uid=0"', ["'partition'", "one line", r"'a\n#SBATCH --uid=0'"]),
        ('partition = "gpu\\r"', ["'partition'", "one line", r"'gpu\r'"]),
        ('partition = "a\\u001b[31m"', ["'partition'", "one line", r"'a\x1b[31m'"]),
        ('[sbatch]\naccount = "a\\ntouch stolen"', ["'account'", "one line", r"'a\ntouch stolen'"]),
        ('[sbatch]\n"comment=x\\ntouch stolen" = 1', [r"'comment=x\ntouch stolen'", "one line", "1"]),
        (f"a = {'[' * 5000}{']' * 5000}", ["nested"]),
    ],
)
def test_an_unfit_file(text, words, tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text(text)
    with pytest.raises(TrainingError, match=naming(str(path), *words)):
        choose_options(path, {})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("gpus_per_task", "x", ["whole number"]),
        ("max_parallel", True, ["whole number"]),
        ("time", 90, ["string"]),
        ("mem", 16, ["string"]),
        ("partition", 1, ["string"]),
        ("setup", "module load cuda", ["list", "strings"]),
        ("setup", (1,), ["list", "strings"]),
        ("sbatch", ["account"], ["mapping", "option", "value"]),
        ("sbatch", {"account": ["a", "b"]}, ["account", "value on one line", "['a', 'b']"]),
        ("detach", "no", ["True", "False"]),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_in_one_line(name, value, allowed):
    said = allowed if isinstance(value, dict) else [*allowed, repr(value)]
    with pytest.raises(TrainingError, match=naming(name, *said)):
        SlurmOptions(**{name: value})


def test_options_that_the_command_sets_are_refused_from_python_too():
    for name, words in (
        ("job-name", ["job-name", "not allowed"]),
        ("cpus_per_task", ["cpus_per_task", "name"]),
    ):
        with pytest.raises(TrainingError, match=naming(*words)):
            SlurmOptions(sbatch={name: 4})


def test_no_such_file(tmp_path):
    with pytest.raises(TrainingError, match=naming(str(tmp_path / "none.toml"), os.strerror(errno.ENOENT))):
        choose_options(tmp_path / "none.toml", {})
