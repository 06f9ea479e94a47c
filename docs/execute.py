"""Execute the notebooks for the documentation: `python docs/execute.py OUT [--tiny]`.

A notebook is kept in the tree without outputs. Each is executed in a new kernel in a temporary folder, so
that it can rely on nothing but itself, and written to OUT as Markdown with its pictures. One whose metadata
name a package under `needs` that is not installed is written without outputs.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))
DEMO, TINY = "adapter-probe demo", "adapter-probe demo --tiny"
SECONDS_PER_CELL = 1800


def missing(path: Path) -> list[str]:
    """The packages that a notebook needs and that are not installed."""
    needed = nbformat.read(path, as_version=4).metadata.get("needs", [])
    return [name for name in needed if find_spec(name) is None]


def execute(path: Path, *, tiny: bool = False) -> nbformat.NotebookNode:
    """The notebook with its outputs; a cell that raises ends it.

    Args:
        path: of the notebook.
        tiny: run the demo on so few sentences that it takes seconds and means nothing.
    """
    notebook = nbformat.read(path, as_version=4)
    if tiny:
        for cell in notebook.cells:
            cell.source = cell.source.replace(DEMO, TINY)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        client = NotebookClient(
            notebook, timeout=SECONDS_PER_CELL, kernel_name="python3", resources=resources,
            on_cell_execute=lambda cell, cell_index: print(
                f"  cell {cell_index + 1} of {len(notebook.cells)}: {cell.source.splitlines()[0]}", flush=True
            ),
        )  # fmt: skip
        scripts = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        client.execute(env={**os.environ, "PATH": scripts})
    return notebook


def write(notebook: nbformat.NotebookNode, name: str, out: Path) -> None:
    """``name.md`` and the pictures in ``name_files``."""
    from nbconvert import MarkdownExporter

    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_noise(output)]
    text, resources = MarkdownExporter().from_notebook_node(
        notebook, {"output_files_dir": f"{name}_files", "unique_key": name}
    )
    for picture, content in resources["outputs"].items():
        (out / picture).parent.mkdir(parents=True, exist_ok=True)
        (out / picture).write_bytes(content)
    (out / f"{name}.md").write_text(text, "utf-8")


def _is_noise(output: nbformat.NotebookNode) -> bool:
    """Warnings and progress bars, which differ from machine to machine."""
    shown = output.get("data", {}).get("text/plain", "")
    return output.get("name") == "stderr" or (output.output_type == "display_data" and "%|" in shown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="run the demo on a few sentences")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        print(f"executing {path.name}", flush=True)
        if lacking := missing(path):
            print(f"  not executed: {', '.join(lacking)} is not installed", flush=True)
        own = nbformat.read(path, as_version=4) if lacking else execute(path, tiny=arguments.tiny)
        write(own, path.stem, arguments.out)
