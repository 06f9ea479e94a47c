"""What lands in a user's site-packages: the whole package, and nothing under a generic name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

import adapter_probe

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where pytest brings the same parser under its older name
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
TOP_FOLDERS = {
    "adapter_probe": "adapter_probe",
    "cli": "adapter_probe/cli",
    "figures": "adapter_probe/figures",
}
PLANTED_CSV = "adapter_probe/reference/planted_for_this_test.csv"


def installed_name(path: Path, root: Path) -> str:
    """Where a file of the tree lands: cli/main.py becomes adapter_probe/cli/main.py."""
    top, *rest = path.relative_to(root).parts
    return str(PurePosixPath(TOP_FOLDERS[top], *rest))


def package_files(root: Path, pattern: str) -> set[str]:
    return {installed_name(path, root) for top in TOP_FOLDERS for path in (root / top).rglob(pattern)}


def read_pyproject() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], Path]:
    """The wheel's file names and the copy of the tree it was built from, so that the checkout stays clean."""
    tree = tmp_path_factory.mktemp("tree")
    for name in TOP_FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    (tree / PLANTED_CSV).write_text("x\n1\n", "utf-8")
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tree / "dist"),
        str(tree),
    ]
    done = subprocess.run(build, capture_output=True, text=True, cwd=tree, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tree / "dist").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist()), tree


@pytest.mark.slow
def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: tuple[set[str], Path]):
    names, tree = wheel
    for ending in ("py", "csv", "html", "css", "js"):
        found = {name for name in names if name.endswith(f".{ending}")}
        assert found == package_files(tree, f"*.{ending}") != set(), ending
    assert {"adapter_probe/cli/main.py", "adapter_probe/figures/heatmap.py", PLANTED_CSV} <= names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"adapter_probe"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_pyproject_lists_every_package_in_the_tree():
    folders = {name.rpartition("/")[0].replace("/", ".") for name in package_files(ROOT, "*.py")}
    assert set(read_pyproject()["tool"]["setuptools"]["packages"]) == folders


def test_every_package_has_an_init_file():
    files = package_files(ROOT, "*.py")
    missing = {
        folder
        for folder in (name.rpartition("/")[0] for name in files)
        if f"{folder}/__init__.py" not in files
    }
    assert missing == set()


def test_the_command_is_the_one_that_the_import_tests_run():
    assert read_pyproject()["project"]["scripts"] == {"adapter-probe": "adapter_probe.cli.main:main"}


def test_the_citation_names_this_version():
    version = (ROOT / "CITATION.cff").read_text("utf-8").partition("\nversion: ")[2].split()[0]
    assert version == adapter_probe.__version__
