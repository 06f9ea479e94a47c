"""The package's face: what is public, and what importing it costs."""

from __future__ import annotations

import errno
import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from refusals import names, naming, refuses

import adapter_probe as ap
from adapter_probe.argument_checks import checked


def test_every_public_name_is_there():
    for name in ap.__all__:
        assert getattr(ap, name) is not None
    assert set(ap.__all__) <= set(dir(ap))
    with pytest.raises(AttributeError, match=naming("'ablat'")):
        _ = ap.ablat


@pytest.mark.slow
def test_importing_loads_nothing_heavy_and_reading_needs_no_torch(study, checkpoint, tmp_path):
    code = """
import json, sys
import adapter_probe as ap
heavy = ("torch", "transformers", "matplotlib", "pandas", "numpy", "seaborn", "scipy")
imported = [name for name in heavy if name in sys.modules]
study = ap.load(sys.argv[1])
study.spans, study.predictions, repr(study)
loaded = [name for name in ("torch", "matplotlib") if name in sys.modules]
page = ap.report(sys.argv[1], sys.argv[2], examples=True, checkpoints=sys.argv[3])
ap.model_card(study)
drawn = [name for name in ("torch", "transformers", "datasets") if name in sys.modules]
print(json.dumps([imported, loaded, drawn, page.n_texts]))
"""
    arguments = [sys.executable, "-c", code, study.folder, tmp_path / "report.html", checkpoint]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [[], [], [], study.summary.n_examples]
    page = (tmp_path / "report.html").read_text()
    assert "checkpoint.method.size" in page
    assert str(checkpoint.parent) not in page  # where all of it lies


def test_every_error_is_one_of_ours(tmp_path):
    for wrong in (
        lambda: ap.ablate(tmp_path / "missing", progress=False),
        lambda: ap.open(tmp_path / "missing"),
        lambda: ap.load(tmp_path),
        lambda: ap.compare(tmp_path, tmp_path),
        lambda: ap.average([]),
        lambda: ap.open(tmp_path, dtype="float8"),
        lambda: ap.open(tmp_path, device="tpu"),
        *(
            lambda name=name: ap.ablate(tmp_path, **{name: "other"})
            for name in ("sites", "layernorm", "precision")
        ),
        lambda: ap.prune(tmp_path, tmp_path, span="0-1"),
        lambda: ap.prune(tmp_path, tmp_path, within=1.0, basis="other"),
    ):
        with pytest.raises(ap.AdapterProbeError) as caught:
            wrong()
        assert "\n" not in str(caught.value)


class Wrong:
    """A value that no argument accepts."""

    def __repr__(self) -> str:
        return "Wrong()"


FUNCTIONS = [getattr(ap, name) for name in ap.__all__ if inspect.isfunction(getattr(ap, name))]
METHODS = [ap.Ablation.heatmap, ap.Ablation.plot, ap.Ablation.attribution, ap.Ablation.save, ap.Tradeoff.plot]
ARGUMENTS = [(function, name) for function in FUNCTIONS for name in inspect.signature(function).parameters]
ARGUMENTS += [
    (of, name)
    for of in METHODS
    for name in list(inspect.signature(of).parameters)[1:]
    if name not in ("ax", "cmap")
]


@pytest.mark.parametrize(("function", "name"), ARGUMENTS, ids=lambda one: getattr(one, "__qualname__", one))
def test_a_value_of_a_wrong_type_is_refused_in_one_line(function, name, tmp_path):
    required = [p.name for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    given = {one: str(tmp_path if one == "checkpoint" else tmp_path / one) for one in required}
    with pytest.raises(ap.AdapterProbeError) as caught:
        function(**{**given, name: Wrong()})
    assert re.match(rf"(--)?{name}\b|data\b.*\bWrong\b", str(caught.value))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "wrong", "facts"),
    [
        (ap.ablate, {"group": "2"}, ("group", "whole number", "'2'")),
        (ap.ablate, {"threads": 1.5}, ("threads", "whole number", "1.5")),
        (ap.prune, {"out": "o", "data": np.array(3)}, ("data", "string", "path", "list", "array(3)")),
        (ap.ablate, {"max_examples": True}, ("max_examples", "whole number", "None", "True")),
        (ap.prune, {"out": "o", "within": "x"}, ("within", "number", "None", "'x'")),
        (ap.ablate, {"complement": "no"}, ("complement", "True", "False", "'no'")),
        (ap.ablate, {"cluster": "gpu"}, ("cluster", "SlurmOptions", "None", "'gpu'")),
        (ap.convert, {"out": "o", "to": "peft", "data": 3}, ("data", "string", "path", "list", "3")),
    ],
)
def test_the_line_names_value_and_types(function, wrong, facts):
    refuses(ap.AdapterProbeError, facts, function, "checkpoint", **wrong)


@pytest.mark.parametrize(
    "function", [ap.ablate, ap.train, ap.init_sweep, ap.tradeoff, ap.suite, ap.suite.plan, ap.prune]
)
def test_an_unknown_keyword_is_answered_with_those_that_exist(function):
    with pytest.raises(TypeError) as caught:
        function(**{"no_such": 1})
    known = ", ".join(inspect.signature(function).parameters)
    assert names(str(caught.value), f"{function.__name__}()", "'no_such'", known)


@pytest.mark.parametrize("function", [ap.ablate, ap.init_sweep, ap.tradeoff, ap.suite])
def test_a_dry_run_from_python_is_the_plan(function):
    with pytest.raises(TypeError, match=rf"{function.__name__}\.plan\(\.\.\.\)"):
        function("x", dry_run=True)


@pytest.mark.parametrize(
    ("name", "words"), [("x" * 300, os.strerror(errno.ENAMETOOLONG)), ("a\0b", "null"), ("a\ud800b", "UTF-8")]
)
def test_a_name_that_no_file_can_have_is_refused_in_one_line(name, words, tmp_path):
    calls = [
        lambda: ap.ablate(tmp_path, out=tmp_path / name),
        lambda: ap.ablate(name),
        lambda: ap.ablate(tmp_path, base=name),
        lambda: ap.ablate(tmp_path, data=name),
        lambda: ap.open(Path(name)),
        lambda: ap.train("base", name, task="cola"),
        lambda: ap.train("base", tmp_path, task=name),
        lambda: ap.report([tmp_path, name]),
        lambda: ap.report(tmp_path, name),
        lambda: ap.suite(name, tmp_path),
        lambda: ap.average([name, tmp_path]),
        lambda: ap.prune(tmp_path, name, within=1.0),
        lambda: ap.convert(tmp_path, name, to="peft"),
    ]
    for call in calls:
        with pytest.raises(ap.AdapterProbeError) as caught:
            call()
        assert words.lower() in str(caught.value).lower()
        assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_every_path_may_be_an_object_of_another_library(tmp_path):
    """py.path, importlib's resources and the like have nothing but ``__fspath__``."""

    class Place:
        def __init__(self, path: Path):
            self.path = path

        def __fspath__(self) -> str:
            return str(self.path)

    @checked
    def given(place: str | Path, base: str | Path | None, several: Sequence[str | Path]) -> tuple:
        return place, base, several

    here = Place(tmp_path)
    assert given(here, here, [here, "a"]) == (str(tmp_path), str(tmp_path), (str(tmp_path), "a"))
    with pytest.raises(ap.AdapterProbeError, match=naming("place")):
        given(type("Bytes", (Place,), {"__fspath__": lambda self: b"a"})(tmp_path), None, [])


def test_numbers_of_numpy_are_numbers():
    @checked
    def given(number: int, share: float, several: Sequence[float], flag: bool = False) -> tuple:
        return number, share, several, flag

    found = given(np.int64(3), np.float32(0.5), np.array([0.25, 1.0]), flag=np.bool_(True))
    assert found == (3, 0.5, (0.25, 1.0), True)
    assert [type(one) for one in (*found, *found[2])] == [int, float, tuple, bool, float, float]
    assert [type(one) for one in given(1, 0, [1])[1:]] == [float, tuple, bool]
    refuses(ap.AdapterProbeError, ("share", "a number"), given, 1, 10**400, [1])
    refuses(TypeError, ("2", "'share'", "'several'"), given, 3)
