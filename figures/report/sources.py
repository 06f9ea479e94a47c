"""What a results folder holds: an ablation, or the tables of a sweep."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from adapter_probe.errors import ResultsError
from adapter_probe.results.ablation import SPANS

SWEEP_TABLES = ("sweep.csv", "tradeoff.csv", "aggregate.csv", "sizes.csv", "trials.csv")


def is_ablation(folder: Path) -> bool:
    """Whether the folder holds an ablation's table of spans."""
    return (folder / SPANS).is_file()


def is_sweep(folder: Path) -> bool:
    """Whether the folder holds a table of a sweep."""
    return any((folder / name).is_file() for name in SWEEP_TABLES)


def find_results(folders: Iterable[str | Path]) -> list[Path]:
    """The results folders among `folders`; one that holds none stands for its subfolders that do.

    So the folder of a checkpoint stands for the ablations inside it. Each folder comes once, as first met.

    Raises:
        ResultsError: a folder does not exist, or neither it nor a subfolder holds results.
    """
    found: dict[Path, Path] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise ResultsError(f"{folder}: no such folder; give folders of results")
        here = [folder] if _holds(folder) else [path for path in sorted(folder.iterdir()) if _holds(path)]
        if not here:
            names = ", ".join((SPANS, *SWEEP_TABLES))
            raise ResultsError(
                f"{folder} holds no results: there is none of {names} in it or one folder below"
            )
        for path in here:
            found.setdefault(path.resolve(), path)
    return list(found.values())


def _holds(folder: Path) -> bool:
    return is_ablation(folder) or is_sweep(folder)


def short_name(folder: Path) -> str:
    """The last two parts of a folder's path: they tell it apart, and not whose machine it is on."""
    return "/".join(folder.resolve().parts[-2:]).lstrip("/") or "/"
