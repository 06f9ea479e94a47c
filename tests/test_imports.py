"""The import direction, torch-free parts, and who may print: held against the source files themselves."""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import adapter_probe

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "adapter_probe"

# A unit may import the units named here and whatever those may import; nothing else of ours.
DIRECTLY_BELOW = {
    "version": (),
    "startup": (),
    "errors": (),
    "records": ("errors",),
    "settings": ("records",),
    "progress": ("python_words",),
    "hub_names": (),
    "reads": (),
    "device": ("errors",),
    "reference": (),
    "units": (),
    "spans": ("errors", "units"),
    "argument_checks": ("python_words",),
    "ablation_settings": ("spans", "settings"),
    "figure_settings": ("settings",),
    "formulas": (),
    "custom_metric": ("errors", "formulas"),
    "metrics": ("custom_metric",),
    "python_words": ("settings", "metrics"),
    "kinds": ("metrics",),
    "ablation_results": ("kinds", "spans"),
    "known_tasks": ("metrics",),
    "results": ("ablation_results", "records", "version"),
    "wording": ("known_tasks", "kinds"),
    "analysis": ("results", "reference", "wording", "ablation_settings", "startup"),
    "figures": ("analysis",),
    "data": ("spans", "kinds", "known_tasks", "settings", "progress", "reads", "startup"),
    "models": ("data",),
    "replay": ("spans", "device"),
    "checkpoints": ("models", "replay", "results", "hub_names"),
    "probe": ("checkpoints", "analysis"),
    "training": ("checkpoints",),
    "jobs": ("probe", "training", "startup"),
    "studies": ("jobs", "figures", "figure_settings", "argument_checks"),
    "cli": ("studies",),
    "__main__": ("cli",),
}
TORCH_FREE = (
    "version",
    "startup",
    "errors",
    "reads",
    "hub_names",
    "records",
    "settings",
    "argument_checks",
    "python_words",
    "ablation_settings",
    "figure_settings",
    "units",
    "spans",
    "formulas",
    "custom_metric",
    "metrics",
    "kinds",
    "ablation_results",
    "known_tasks",
    "wording",
    "reference",
    "results",
    "analysis",
    "figures",
)
HEAVY = ("torch", "transformers", "matplotlib", "pandas")
FACE = (
    "errors",
    "jobs",
    "studies",
    "version",
)  # what the package's own names stand for, loaded when they are used
# What reads the tables and predictions of finished studies.
READERS = {"find_results", "load_ablation", "read_spans", "read_summary"}
INSTALLED_ELSEWHERE = ("cli", "figures")  # stand at the top of the tree, install under the package


def allowed_units(unit: str) -> set[str]:
    """The unit itself and everything below it in the table."""
    return {unit}.union(*(allowed_units(below) for below in DIRECTLY_BELOW[unit]))


def source_files() -> list[Path]:
    return sorted(path for top in (PACKAGE, *INSTALLED_ELSEWHERE) for path in (ROOT / top).rglob("*.py"))


def module_name(path: Path) -> str:
    """The name under which a source file is imported: cli/main.py is adapter_probe.cli.main."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == PACKAGE else (PACKAGE, *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit_of(module: str) -> str | None:
    """`adapter_probe.data.tasks` -> `data`; None for the bare package and for everybody else's modules."""
    top, _, rest = module.partition(".")
    return rest.split(".")[0] or None if top == PACKAGE else None


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Every node of a source, which several tests look at."""
    return tuple(ast.walk(ast.parse(source)))


def imported_modules(source: str, module: str, is_package: bool) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import, at any depth. `from a import b` gives both a and a.b."""
    package = module if is_package else module.rpartition(".")[0]
    for node in nodes_of(source):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def wrong_imports(source: str, module: str, is_package: bool = False) -> list[str]:
    """One line for each import that the table, or the torch-free rule, does not allow."""
    unit = unit_of(module)
    allowed = allowed_units(unit) if unit else set(FACE)
    wrong = []
    for line, name in imported_modules(source, module, is_package):
        target, top = unit_of(name), name.split(".")[0]
        if (
            (target in DIRECTLY_BELOW and target not in allowed)
            or top in INSTALLED_ELSEWHERE
            or (unit in TORCH_FREE and top in ("torch", "transformers"))
            or (unit != "cli" and top == "typer")
        ):
            wrong.append(f"{module}:{line} imports {name}")
    return wrong


def prints_and_exits(source: str) -> list[int]:
    """Lines that print, exit, or reach for stdout."""
    lines = []
    for node in nodes_of(source):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            banned = node.func.id in ("print", "exit", "quit")
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            banned = (node.value.id, node.attr) in {("sys", "exit"), ("os", "_exit"), ("sys", "stdout")}
        else:
            banned = isinstance(node, ast.Name) and node.id == "SystemExit"
        if banned:
            lines.append(node.lineno)
    return sorted(set(lines))


def run_python(code: str, *arguments: str) -> dict:
    """Run code in a fresh interpreter and read the JSON object on the last line of its stdout."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_source_file_has_a_place_in_the_table():
    units = {unit_of(module_name(path)) for path in source_files()} - {None}
    assert units == set(DIRECTLY_BELOW)


def test_imports_follow_the_table():
    wrong = [
        line
        for path in source_files()
        for line in wrong_imports(path.read_text("utf-8"), module_name(path), path.name == "__init__.py")
    ]
    assert wrong == []


def test_no_cycles_between_files():
    """Imports inside functions and for types count; those of the package itself, of all names, do not."""
    names = {module_name(path) for path in source_files()} - {PACKAGE}
    graph = {
        module.removeprefix(f"{PACKAGE}."): {
            name.removeprefix(f"{PACKAGE}.")
            for _, name in imported_modules(path.read_text("utf-8"), module, path.name == "__init__.py")
            if name in names and not (ROOT / name.replace(".", "/")).is_dir() and name != module
        }
        for path in source_files()
        if (module := module_name(path)) in names
    }
    graphlib.TopologicalSorter(graph).prepare()  # names a circle, if there is one


def test_torch_free_units_rest_on_torch_free_units():
    assert {below for unit in TORCH_FREE for below in allowed_units(unit)} == set(TORCH_FREE)


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("from adapter_probe.cli import main", "adapter_probe.probe.forward"),
        ("def f():\n    from ..probe import forward", "adapter_probe.data.tasks"),
        ("from adapter_probe import analysis", "adapter_probe.results.rundir"),
        ("import adapter_probe.models.adapters.bottleneck", "adapter_probe.data.tasks"),
        ("from ..probe.rows import rows_of", "adapter_probe.training.loop"),
        ("from . import probe", "adapter_probe"),
        ("import figures.heatmap", "adapter_probe.cli.studies"),
        ("def f():\n    import torch", "adapter_probe.figures.heatmap"),
        ("from transformers import AutoModel", "adapter_probe.metrics"),
        ("import typer", "adapter_probe.training.loop"),
    ],
)
def test_a_wrong_import_is_noticed(source: str, module: str):
    assert wrong_imports(source, module, is_package=module == PACKAGE)


def test_a_right_import_is_let_through():
    source = (
        "import torch\nfrom adapter_probe.version import __version__\nfrom ..results.atomic import write_json"
    )
    assert wrong_imports(source, "adapter_probe.checkpoints.ours") == []


def test_torch_free_modules_import_without_torch():
    modules = [name for name in map(module_name, source_files()) if unit_of(name) in TORCH_FREE]
    code = """
import importlib, json, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "transformers"):
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocker())
failures = {}
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        failures[name] = str(error)
print(json.dumps({"failures": failures, "imported": len(sys.argv) - 1}))
"""
    assert run_python(code, *modules) == {"failures": {}, "imported": len(modules)}


def test_help_is_light():
    code = """
import json, sys
from typer.main import get_command
from adapter_probe.cli.main import app, main

def paths(command, path=()):
    yield path
    for name, child in getattr(command, "commands", {}).items():
        yield from paths(child, (*path, name))

report, seen = {}, set()
for path in ("--version",), (), *((*path, "--help") for path in paths(get_command(app))):
    sys.argv = ["adapter-probe", *path]
    try:
        code = main()
    except SystemExit as stop:
        code = stop.code
    heavy = {name for name in sys.modules if name in HEAVY} - seen
    seen |= heavy
    report[" ".join(path)] = [code or 0, sorted(heavy)]
print()
print(json.dumps(report))
"""
    report = run_python(f"HEAVY = {(*HEAVY, 'numpy', 'scipy', 'safetensors', 'tqdm')!r}\n{code}")
    assert {"", "--version", "--help", "ablate --help", "demo --help", "train --help"} <= set(report)
    assert report == {path: [0 if path else 2, []] for path in report}


def test_commands_call_public_functions():
    """What a command calls is public, and imports of the studies are types, texts and reports."""
    called = set()
    for path in sorted((ROOT / "cli").glob("*.py")):
        for node in nodes_of(path.read_text("utf-8")):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == PACKAGE:
                called.add(node.attr)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "study":
                called.add(ast.literal_eval(node.args[0]))
        for _, name in imported_modules(
            path.read_text("utf-8"), module_name(path), path.name == "__init__.py"
        ):
            unit, _, rest = name.removeprefix(f"{PACKAGE}.").partition(".")
            assert unit not in ("probe", "training", "models", "checkpoints"), f"{path.name} imports {name}"
            _, _, function = rest.partition(".")
            if unit == "studies" and not function.endswith(("_report", "_text")):
                called.add(function)
    functions = {name for name in called if name and not name[0].isupper()}
    assert {"ablate", "init_sweep", "tradeoff", "suite"} <= functions <= set(adapter_probe.__all__)


def names_in(source: str) -> set[str]:
    """Every name that a source file imports or uses, alone or as an attribute."""
    nodes = nodes_of(source)
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    used |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return used | {name.name for node in nodes if isinstance(node, ast.ImportFrom) for name in node.names}


@pytest.mark.parametrize(
    ("names", "modules"),
    [
        (READERS, {"studies.load"}),
        ({"describe_changes"}, {"checkpoints.base_config", "checkpoints.native"}),  # of a base's settings
    ],
)
def test_what_is_done_in_one_place(names: set[str], modules: set[str]):
    """Finished studies are read back behind `load` alone, and identities are compared by `refuse_changes`."""
    found: dict[str, set[str]] = {}
    for path in source_files():
        unit, used = unit_of(module_name(path)), names_in(path.read_text("utf-8")) & names
        if used and unit != "results" and "results" in allowed_units(unit or "cli"):
            found[module_name(path).removeprefix(f"{PACKAGE}.")] = used
    assert set(found) == modules
    assert set().union(*found.values()) == names


@pytest.mark.parametrize(
    "source",
    [
        "from ..results.ablation_files import load_ablation",
        "from ..results.ablation_files import load_ablation as read",
        "from adapter_probe.studies import load\nload.find_results([])",
        "def f():\n    return read_spans",
    ],
)
def test_a_reader_is_noticed(source: str):
    assert names_in(source) & READERS


def test_only_the_command_line_prints_or_exits():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in source_files()
        if unit_of(module_name(path)) != "cli"
        for line in prints_and_exits(path.read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "print('x')",
        "import sys\nsys.exit(2)",
        "from sys import exit\nexit(2)",
        "raise SystemExit(2)",
        "sys.stdout.write('x')",
    ],
)
def test_a_print_or_exit_is_noticed(source: str):
    assert prints_and_exits(source) == [source.count("\n") + 1]


def test_words_about_printing_are_let_through():
    assert prints_and_exits('"""print(x)"""\npprint = fingerprint(1)\nself.exit()\nprint_level = 2') == []
