from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import Result
from docs_scripts import module
from refusals import names
from typer.testing import CliRunner

from adapter_probe.cli.main import app
from adapter_probe.results.atomic import write_json

RESULTS = module("gallery_results")

# Nothing that `figures` needs may load a model library.
WITHOUT_TORCH = """
import sys
try:
    from adapter_probe.cli.main import main
    main()
finally:
    heavy = ("torch", "transformers", "tokenizers", "safetensors")
    loaded = [name for name in heavy if name in sys.modules]
    print("LOADED", loaded, file=sys.stderr)
"""


def run(*arguments: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, ["figures", *map(str, arguments)])


def start(hash_seed: int, *arguments: object) -> subprocess.Popen[str]:
    """The command in a process of its own, which says what it loaded."""
    return subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TORCH, "figures", *map(str, arguments)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8",
    )  # fmt: skip


def write_ablation(folder: Path, task: str) -> Path:
    RESULTS.ablation(folder, task=task)
    write_json(folder / "manifest.json", {"identity": {"data": f"hash of {task}"}})
    return folder


@pytest.fixture(scope="module")
def ablations(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("results")
    return [write_ablation(folder / task, task) for task in ("cola", "mnli")]


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory) -> list[Path]:
    """Of initialisations, and a trade-off."""
    folders = [tmp_path_factory.mktemp(name) for name in ("sweep", "tradeoff")]
    for write, folder in zip((RESULTS.init_sweep, RESULTS.tradeoff), folders):
        write(folder)
    return folders


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, ablations, sweeps):
    """Every figure in every format, drawn twice in processes of their own."""
    folders = [tmp_path_factory.mktemp("drawn") for _ in range(2)]
    started = [
        start(index, ablations[0], *sweeps, "--format", "pdf,svg,png,pgf", "--out", folder)
        for index, folder in enumerate(folders)
    ]
    said = [one.communicate(timeout=300) for one in started]
    assert [one.returncode for one in started] == [0, 0], said
    return folders, *said[0]


def test_no_model_library_is_loaded(drawn):
    said = [line for line in drawn[2].splitlines() if not line.startswith("drawing figures")]
    assert said == ["LOADED []"]


def test_the_same_results_give_the_same_bytes(drawn):
    one, other = drawn[0]
    names = sorted(path.name for path in one.iterdir())
    assert {"heatmap.pdf", "heatmap.pgf", "attribution.svg", "table-removable.tex"} <= set(names)
    assert {"init-sweep.png", "tradeoff-tasks.txt", "tradeoff-aggregate.csv", "table-sizes.md"} <= set(names)
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_what_is_written_is_listed(drawn):
    (folder, _), said, _ = drawn
    listed = set()
    for line in said.splitlines():
        stem, _, endings = line.rpartition(".")
        listed |= {f"{stem}.{ending}" for ending in endings.strip("{}").split(",")}
    assert listed == {str(path) for path in folder.iterdir()}


def test_every_file_says_what_determined_it(drawn, ablations, sweeps):
    ablated = json.loads((ablations[0] / "manifest.json").read_text())["identity"]["data"]
    swept, traded = (
        hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for folder, name in zip(sweeps, ("sweep.csv", "tradeoff.csv"))
    )
    expected = {"heatmap": ablated, "attribution": ablated, "init-sweep": swept, "size-robustness": traded}
    for stem, identity in expected.items():
        for ending in ("pdf", "svg", "png", "pgf"):
            data = (drawn[0][0] / f"{stem}.{ending}").read_bytes()
            assert identity.encode() in data.replace(b"\\", b""), (stem, ending)


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="there is no LaTeX on this machine")
def test_latex_takes_every_picture_and_table(drawn, tmp_path):
    parts = sorted(path for ending in ("pgf", "tex") for path in drawn[0][0].glob(f"*.{ending}"))
    assert len(parts) == 6 + 5
    body = "\n\n".join(rf"\noindent\input{{{path}}}" for path in parts)
    (tmp_path / "paper.tex").write_text(
        r"\documentclass{article}\usepackage{pgf}\usepackage{booktabs}\begin{document}"
        f"\n{body}\n\\end{{document}}\n"
    )
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Missing character" not in (tmp_path / "paper.log").read_text(errors="replace")


def test_json(tmp_path, ablations):
    done = run(ablations[0], "--json", "--format", "PNG, png", "--out", tmp_path)
    report = json.loads(done.stdout)
    assert report["folder"] == str(tmp_path)
    assert [made["figure"] for made in report["figures"]] == ["heatmap", "attribution"]
    assert [made["table"] for made in report["tables"]] == ["table-removable"]
    for made in (*report["figures"], *report["tables"]):
        assert made["caption"].endswith(".")
    named = [path for kind in ("figures", "tables") for made in report[kind] for path in made["files"]]
    assert sorted(named) == sorted(map(str, tmp_path.iterdir()))
    assert {Path(path).suffix for path in named} == {".png", ".csv", ".txt", ".tex", ".md"}


@pytest.mark.slow
def test_by_default_one_result_is_drawn_in_its_own_folder(tmp_path):
    folder = write_ablation(tmp_path / "a", "cola")
    assert run(folder, "--format", "svg").exit_code == 0
    assert (folder / "heatmap.svg").exists()


@pytest.mark.slow
def test_and_several_in_a_folder_called_figures(tmp_path, ablations, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*ablations, "--format", "svg").exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["figures"]
    assert (tmp_path / "figures" / "heatmap.svg").exists()


@pytest.mark.slow
def test_the_papers_values_stand_beside_on_request(tmp_path, ablations):
    done = run(ablations[0], "--paper", "--format", "svg", "--out", tmp_path)
    assert (done.exit_code, done.stderr) == (0, "")
    assert set(pd.read_csv(tmp_path / "heatmap.csv")["grid"]) == {"CoLA", "CoLA (Houlsby et al. 2019)"}


@pytest.mark.slow
def test_nothing_published_is_said(tmp_path):
    done = run(write_ablation(tmp_path / "a", "my task"), "--paper", "--format", "svg")
    assert done.exit_code == 0
    assert any(names(line, "published") for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "gif"], ("'gif'", "pdf, svg, png, pgf")),
        (["--format", ","], ("','", "pdf, svg, png, pgf")),
        (["--tolerance", "-1"], ("-1", "0 or more")),
        (["--tolerance", "nan"], ("nan", "0 or more")),
    ],
)
def test_what_is_not_allowed_is_one_line(ablations, tmp_path, arguments, words):
    done = run(ablations[0], *arguments, "--out", tmp_path / "new")
    assert (done.exit_code, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert all(word in line for word in words)
    assert not (tmp_path / "new").exists()


def test_folders_without_results(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("empty", "file", "missing"):
        done = run(tmp_path / name)
        assert (done.exit_code, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert str(tmp_path / name) in line
