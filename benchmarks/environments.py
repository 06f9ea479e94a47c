"""The peers' own virtual environments, each made once under ``.bench/`` from its pinned requirements."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).resolve().parent
CONTENDERS = HERE / "contenders"
SCRATCH = HERE.parent / ".bench"
STAMP = "installed"
OWN = "own"
PEERS = ("adapters", "peft")


def python_of(name: str, given: Mapping[str, Path]) -> Path:
    """The interpreter of an environment, which is made if need be.

    Args:
        name: one of `PEERS`, or `OWN` for the one that runs this.
        given: environments to use as they are, by name.
    """
    if name == OWN:
        return Path(sys.executable)
    if name in given:
        return given[name] / "bin" / "python"
    folder, requirements = SCRATCH / "environments" / name, CONTENDERS / f"{name}.txt"
    digest = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp = folder / STAMP
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"making the environment of {name} in {folder} (minutes the first time)", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        install = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*install, "install", "-r", str(requirements)], check=True)
        stamp.write_text(digest)
    return folder / "bin" / "python"


def variables(threads: int) -> dict[str, str]:
    """The environment variables that every process gets."""
    fixed = {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
    }
    return {**{k: v for k, v in os.environ.items() if k != "PYTHONPATH"}, **fixed}
