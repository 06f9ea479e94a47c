"""How every figure looks and is written: fonts, widths, colours that need no colour, reproducible files."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import matplotlib
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from tueplots import figsizes

from adapter_probe import __version__
from adapter_probe.errors import ResultsError
from adapter_probe.results.atomic import make_folder, write_bytes
from adapter_probe.results.identity import canonical_json

FORMATS = ("pdf", "svg", "png")
HALF_WIDTH: float = figsizes.icml2024_half()["figure.figsize"][0]
FULL_WIDTH: float = figsizes.icml2024_full()["figure.figsize"][0]
"""Inches: one column and both columns of a two-column paper. The labels are set for print at this size."""

LABEL_SIZE, TICK_SIZE, NOTE_SIZE, SMALLEST_SIZE = 8.0, 7.0, 7.0, 5.0  # points
INK, PAPER, GREEN = "#000000", "#ffffff", "#009e73"  # green: Okabe and Ito's, safe for colour-blind readers
BORDER, BORDER_HALO = 1.2, 2.2  # points: the tolerance line, and the white that lifts it off dark cells
PNG_DPI = 300

# STIX rather than a system's Times: it ships with Matplotlib, so the same results give the same bytes and
# the same line breaks on every machine.
FONT = "STIXGeneral"
_STYLE = {
    "font.family": [FONT],
    "font.size": LABEL_SIZE,
    "mathtext.fontset": "stix",
    "axes.labelsize": LABEL_SIZE,
    "axes.linewidth": 0.6,
    "xtick.labelsize": TICK_SIZE,
    "ytick.labelsize": TICK_SIZE,
    "xtick.major.size": 2.0,
    "ytick.major.size": 2.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "pdf.fonttype": 42,  # TrueType: text stays text, and submission systems refuse Type 3
    # Outlines, not text: a browser has no STIX, and a substitute would move every number in the cells. The
    # words remain in the file's description.
    "svg.fonttype": "path",
    "svg.hashsalt": "adapter-probe",
    "savefig.dpi": PNG_DPI,
    "savefig.bbox": None,  # a "tight" box would change the width that the paper asks for
    "savefig.facecolor": PAPER,
}


@contextmanager
def paper_style() -> Iterator[None]:
    """Draw with this project's settings alone: the reader's own matplotlibrc has no say, and is restored."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def save(
    figure: Figure,
    folder: str | Path,
    stem: str,
    *,
    title: str,
    identity: Mapping[str, object],
    formats: Sequence[str] = FORMATS,
) -> tuple[Path, ...]:
    """Writes `folder/stem.format` for every format; equal figures and identities give equal bytes.

    Each file carries the title and the identity as canonical JSON in its metadata: PDF `Title` and
    `Subject`, SVG Dublin Core `title` and `description`, PNG `Title` and `Description`. None carries a date.

    Args:
        figure: drawn within `paper_style`.
        folder: made if missing.
        stem: file name without its ending.
        title: a few words for the file's properties.
        identity: what determines the numbers, as plain JSON.
        formats: out of `FORMATS`.

    Raises:
        ResultsError: an unknown format, or a file cannot be written.
    """
    if unknown := [name for name in formats if name not in FORMATS]:
        raise ResultsError(f"unknown figure format {unknown[0]!r}; allowed: {', '.join(FORMATS)}")
    folder = make_folder(folder)
    paths = []
    for name in formats:
        buffer = io.BytesIO()
        with paper_style():
            figure.savefig(buffer, format=name, metadata=_metadata(name, title, canonical_json(identity)))
        paths.append(folder / f"{stem}.{name}")
        write_bytes(paths[-1], buffer.getvalue())
    return tuple(paths)


def _metadata(name: str, title: str, identity: str) -> dict[str, str | None]:
    creator = f"adapter-probe {__version__}"
    return {
        "pdf": {"Title": title, "Subject": identity, "Creator": creator, "CreationDate": None},
        "svg": {"Title": title, "Description": identity, "Creator": creator, "Date": None},
        "png": {"Title": title, "Description": identity, "Creator": creator},
    }[name]


def luminance(colour: str) -> float:
    """Relative luminance, 0 (black) to 1 (white), as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(colour: str, other: str) -> float:
    """WCAG 2 contrast ratio of two colours, 1 to 21; text wants at least 4.5."""
    bright, dark = sorted((luminance(colour), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def text_colour(background: str) -> str:
    """Black or white, whichever stands out more."""
    return max((INK, PAPER), key=lambda ink: contrast(ink, background))


def text_width(text: str, size: float) -> float:
    """Width of a text at a font size, both in points, in this project's font; independent of any device."""
    return size * _relative_width(text)


@lru_cache(maxsize=4096)
def _relative_width(text: str) -> float:
    if not text.strip():
        return 0.0
    font = FontProperties(family=[FONT], math_fontfamily="stix")
    # The control points bound the curves closely enough, and their exact extents take ten times as long.
    return float(TextPath((0, 0), text, size=100, prop=font).vertices[:, 0].max()) / 100
