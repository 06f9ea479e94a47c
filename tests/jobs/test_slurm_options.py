"""What a SLURM job asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from adapter_probe.errors import TrainingError
from adapter_probe.jobs.resources import SlurmOptions, minutes


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


def test_the_usual_limit_and_ones_own():
    assert SlurmOptions().time == "4:00:00"
    assert SlurmOptions(sbatch={"time": 90}).time == "90"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, False),
        ({"gpus-per-task": 1}, True),
        ({"gpus-per-task": "0"}, False),
        ({"gpus": "a100:2"}, True),
        ({"gres": "gpu:1"}, True),
        ({"gres": "license:1"}, False),
    ],
)
def test_whether_jobs_have_gpus(asked, expected):
    assert SlurmOptions(sbatch=asked).gpus is expected


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("time", "soon", ["time", "'soon'", "1:30:00", "1-12"]),
        # The tasks would not be found again.
        ("job-name", "mine", ["'job-name'", "not allowed"]),
        ("array", "0-3", ["'array'", "not allowed"]),
        ("cpus_per_task", 4, ["cpus_per_task", "name"]),
        ("partition", "a\n#SBATCH --uid=0", ["'partition'", "one line", r"'a\n#SBATCH --uid=0'"]),
        ("partition", "gpu\r", ["'partition'", "one line", r"'gpu\r'"]),
        ("partition", "a\x1b[31m", ["'partition'", "one line", r"'a\x1b[31m'"]),
        ("account", "a\ntouch stolen", ["'account'", "one line", r"'a\ntouch stolen'"]),
        ("account", ["a", "b"], ["account", "value on one line", "['a', 'b']"]),
        ("comment=x\ntouch stolen", 1, [r"'comment=x\ntouch stolen'", "one line", "1"]),
    ],
)
def test_an_unfit_option_of_sbatch(name, value, words):
    refuses(TrainingError, words, SlurmOptions, sbatch={name: value})


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("max_parallel", True, ["whole number"]),
        ("setup", "module load cuda", ["list", "strings"]),
        ("setup", (1,), ["list", "strings"]),
        ("sbatch", ["account"], ["mapping", "option", "value"]),
        ("detach", "no", ["True", "False"]),
    ],
)
def test_a_value_of_a_wrong_type_is_refused_in_one_line(name, value, allowed):
    refuses(TrainingError, (name, *allowed, repr(value)), SlurmOptions, **{name: value})
