from __future__ import annotations

import json
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pandas as pd
import pytest

from adapter_probe.analysis.published import published_ablation
from adapter_probe.results.ablation import write_spans
from adapter_probe.results.atomic import write_csv, write_json

PROGRAM = "from adapter_probe.cli.main import main; main()"
# Nothing that `figures` needs may load a model library.
WITHOUT_TORCH = """
import sys
try:
    from adapter_probe.cli.main import main
    main()
finally:
    loaded = [name for name in ("torch", "transformers", "scipy") if name in sys.modules]
    print("LOADED", loaded, file=sys.stderr)
"""


def run(*arguments: object, program: str = PROGRAM, folder: Path | None = None):
    return subprocess.run(
        [sys.executable, "-c", program, "figures", *map(str, arguments)],
        capture_output=True, text=True, encoding="utf-8", timeout=300, cwd=folder,
    )  # fmt: skip


def write_ablation(folder: Path, task: str) -> Path:
    """The published grid as a folder that `ablate` could have written."""
    folder.mkdir(parents=True)
    frame = published_ablation("mnli" if task == "mnli" else "cola")
    frame = frame.assign(
        score=0.8 + frame["delta_points"] / 100, n_examples=1000, p_holm=0.01, significant=True
    )
    write_spans(folder, frame)
    summary = {
        "task": task, "split": "validation", "study": "ablated", "metric": "accuracy", "n_examples": 1000,
        "intact_score": 0.8, "removed_delta_points": -13.5, "majority_score": 0.69,
    }  # fmt: skip
    write_json(folder / "summary.json", summary)
    write_json(folder / "manifest.json", {"identity": {"data": f"hash of {task}"}})
    row = {"tolerance_points": 1.0, "basis": "estimate", "first": 0, "last": 2, "n_layers": 3,
           "delta_points": -0.5, "ci_low_points": -1.5}  # fmt: skip
    write_csv(folder / "removable.csv", pd.DataFrame([row]))
    return folder


@pytest.fixture(scope="module")
def ablations(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("results")
    return [write_ablation(folder / task, task) for task in ("cola", "mnli")]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory, ablations):
    """Every format of both ablations, drawn twice in processes of their own."""
    folders = [tmp_path_factory.mktemp("drawn") for _ in range(2)]
    done = [
        run(*ablations, "--format", "pdf,svg,png,pgf", "--out", folder, program=WITHOUT_TORCH)
        for folder in folders
    ]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    return folders, done[0]


def test_no_model_library_is_loaded(drawn):
    assert drawn[1].stderr.splitlines()[-1] == "LOADED []"


def test_the_same_results_give_the_same_bytes(drawn):
    (one, other), _ = drawn
    names = sorted(path.name for path in one.iterdir())
    assert {"heatmap.pdf", "heatmap.pgf", "attribution.svg", "table-removable-cola.tex"} <= set(names)
    assert names == sorted(path.name for path in other.iterdir())
    for name in names:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def test_what_is_written_is_listed(drawn):
    (folder, _), done = drawn
    listed = set()
    for line in done.stdout.splitlines():
        stem, _, endings = line.rpartition(".")
        listed |= {f"{stem}.{ending}" for ending in endings.strip("{}").split(",")}
    assert listed == {str(path) for path in folder.iterdir()}


def test_no_font_is_type_3(drawn):
    for path in drawn[0][0].glob("*.pdf"):
        data = path.read_bytes()
        streams = re.findall(rb"stream\r?\n(x.*?)\r?\nendstream", data, re.DOTALL)
        everything = b"\n".join([data, *map(zlib.decompress, streams)])
        assert b"/Type3" not in everything
        assert b"/FontFile2" in everything


def test_every_file_says_what_determined_it(drawn, ablations):
    identity = json.loads((ablations[0] / "manifest.json").read_text())["identity"]["data"]
    for ending in ("pdf", "svg", "png", "pgf"):
        data = (drawn[0][0] / f"heatmap.{ending}").read_bytes()
        assert identity.encode() in data.replace(b"\\", b""), ending


def test_json(tmp_path, ablations):
    done = run(ablations[0], "--json", "--format", "png", "--out", tmp_path)
    report = json.loads(done.stdout)
    assert report["folder"] == str(tmp_path)
    assert [made["figure"] for made in report["figures"]] == ["heatmap", "attribution"]
    assert [made["table"] for made in report["tables"]] == ["table-removable"]
    for made in (*report["figures"], *report["tables"]):
        assert made["caption"].endswith(".")
        assert all(Path(path).exists() for path in made["files"])


def test_by_default_one_result_is_drawn_in_its_own_folder(tmp_path):
    folder = write_ablation(tmp_path / "a", "cola")
    assert run(folder, "--format", "png").returncode == 0
    assert (folder / "heatmap.png").exists()


def test_and_several_in_a_folder_called_figures(tmp_path, ablations):
    assert run(*ablations, "--format", "png", folder=tmp_path).returncode == 0
    assert (tmp_path / "figures" / "heatmap.png").exists()


def test_column_and_style_set_the_width(tmp_path, ablations):
    import struct

    from adapter_probe.figures.style import PNG_DPI

    for style, column, inches in (("acl", "half", 7.7 / 2.54), ("acl", "full", 16 / 2.54)):
        out = tmp_path / column
        run(ablations[0], "--style", style, "--column", column, "--format", "png", "--out", out)
        width = struct.unpack(">I", (out / "heatmap.png").read_bytes()[16:20])[0]
        assert width == pytest.approx(inches * PNG_DPI, abs=1)


def test_nothing_published_is_said(tmp_path):
    done = run(write_ablation(tmp_path / "a", "my task"), "--paper", "--format", "png")
    assert done.returncode == 0
    assert "the paper has no values for these tasks" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--format", "gif"], ("'gif'", "pdf, svg, png, pgf")),
        (["--format", ","], ("','", "pdf, svg, png, pgf")),
        (["--style", "cvpr"], ("cvpr", "neurips")),
        (["--column", "third"], ("third", "half")),
        (["--tolerance", "-1"], ("-1", "0 or more")),
        (["--tolerance", "nan"], ("nan", "0 or more")),
    ],
)
def test_bad_options(ablations, tmp_path, arguments, words):
    done = run(ablations[0], *arguments, "--out", tmp_path / "new")
    assert done.returncode == 2
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_bad_folders(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("empty", "file", "missing"):
        done = run(tmp_path / name)
        assert done.returncode == 2
        (line,) = done.stderr.splitlines()
        assert str(tmp_path / name) in line
