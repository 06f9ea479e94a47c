"""Options shared by several commands, and the parsing of lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from adapter_probe.errors import AdapterProbeError, TrainingError
from adapter_probe.hub_names import is_hub_name, is_missing

OUTPUT, RUNNING = "Output", "Running"  # headings of the help


_MISSING = {
    "checkpoint": "checkpoint {}: no such folder",
    "checkpoint or name": "checkpoint {}: no such folder",
    "results": "{}: no such folder; give results folders",
    "ablation": "--ablation {}: no such folder; give the results folder of an ablation",
    "file": "{}: cannot be read (no such file)",
    "overlay": "--overlay {}: no such file or folder",
}


def refuse_missing(place: str, given: object) -> None:
    """Refuse paths to nothing, before anything is loaded; `place` is what declares them, see `setting`."""
    for path in given if isinstance(given, (list, tuple)) else (given,):
        on_hub = place == "checkpoint or name" and is_hub_name(path)
        elsewhere = on_hub or str(path).startswith("lm-eval:")
        if isinstance(path, Path) and not elsewhere and is_missing(path):
            raise AdapterProbeError(_MISSING[place].format(path))


Json = Annotated[
    bool,
    typer.Option("--json", help="Print a machine-readable summary (JSON).", rich_help_panel=OUTPUT),
]
DryRun = Annotated[
    bool,
    typer.Option("--dry-run", help="Estimate the cost without running the study.", rich_help_panel=RUNNING),
]


def texts(text: str, option: str) -> list[str]:
    """``pdf,svg`` as texts; none of an empty text."""
    return [part.strip() for part in text.split(",")] if text.strip() else []


def pairs(given: Sequence[str], option: str) -> dict[str, str | bool]:
    """``["mem=16G", "exclusive"]`` as a mapping from names to values; a name alone is switched on.

    Raises:
        TrainingError: a name is given twice with different values.
    """
    found: dict[str, str | bool] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if found.setdefault(name.strip(), value if equals else True) != (value if equals else True):
            raise TrainingError(f"{option} {text} is given, and {option} {name}={found[name.strip()]}, too")
    return found


def whole_numbers(text: str, option: str) -> list[int]:
    """``1,2,4`` as whole numbers without duplicates, in the order given.

    Raises:
        TrainingError: anything else.
    """
    try:
        return list(dict.fromkeys(int(part) for part in text.split(",") if text.strip()))
    except ValueError:
        raise TrainingError(f"{option} {text!r} is not a list of whole numbers such as 1,2,4") from None


def numbers(text: str, option: str) -> list[float]:
    """``1e-3,3e-4`` as numbers, or ``1e-7:1`` as one number per decade, both ends included.

    Raises:
        TrainingError: anything else.
    """
    try:
        if ":" in text:
            low, high = (float(part) for part in text.split(":"))
            steps = round(math.log10(high / low))
            if steps < 1 or not math.isclose(low * 10**steps, high):
                raise ValueError
            return [float(f"{low * 10**k:.12g}") for k in range(steps + 1)]
        return list(dict.fromkeys(float(part) for part in text.split(",") if text.strip()))
    except (ValueError, ArithmeticError):
        raise TrainingError(
            f"{option} {text!r} is neither a list of numbers such as 1e-3,1e-2 nor a range of whole decades "
            "such as 1e-7:1"
        ) from None
