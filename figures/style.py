"""Style of all figures: fonts, widths, palettes that work in greyscale, and reproducible files."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib import font_manager
from matplotlib.cbook import is_math_text
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from adapter_probe.errors import AdapterProbeWarning, shown
from adapter_probe.results.atomic import make_folder, write_bytes
from adapter_probe.results.fingerprints import canonical_json
from adapter_probe.version import __version__

from .venues import DEFAULT_FORMATS, PAPER, Venue

INK, WHITE, GREEN = "#000000", "#ffffff", "#009e73"  # green: Okabe and Ito's, safe for colour-blind readers
GRID, FAINT = "#e4e4e4", "#666666"
FILLS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7")  # areas: Okabe and Ito's as well
BORDER, BORDER_HALO = 1.2, 2.2  # units: the tolerance line, and its white halo on dark cells
_BLANK = re.compile(r"(?<![=\s])\s+(?![=\s])")  # where lines may be broken: not in `n = 200`
SMALLEST_SIZE = 6.0  # points: the smallest font size for any venue
PNG_DPI = 300

# Fonts that ship with Matplotlib rather than a system's Times or Helvetica: the same results give the same
# bytes and the same line breaks on every machine. Letters that both lack come from what is installed.
SERIF, SANS = "STIXGeneral", "DejaVu Sans"
_OTHER_SCRIPTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans SC", "PingFang SC",
    "Hiragino Sans", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "WenQuanYi Zen Hei",
    "Noto Sans Devanagari", "Noto Sans Bengali", "Noto Sans Thai", "Nirmala UI",
)  # fmt: skip
_UNIT_LABEL = 8.0  # points: the label size at which a unit is a point
_STYLE = {
    "axes.grid": False,
    "pdf.fonttype": 42,  # TrueType: text stays text, and submission systems refuse Type 3
    # Outlines, not text: browsers lack STIX, and a substitute font would move the numbers in the cells. The
    # text remains in the file's description.
    "svg.fonttype": "path",
    "svg.hashsalt": "adapter-probe",
    "savefig.dpi": PNG_DPI,
    "savefig.bbox": None,  # a "tight" box would change the width that the venue requires
    "savefig.facecolor": WHITE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.solid_capstyle": "butt",
    "figure.constrained_layout.h_pad": 0.04,
    "figure.constrained_layout.w_pad": 0.02,
}


@contextmanager
def paper_style(venue: Venue = PAPER) -> Iterator[None]:
    """Draw with this project's settings only: the user's matplotlibrc is ignored, and restored afterwards."""
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")  # `save` says it once
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        matplotlib.rcParams.update(_venue_style(venue))
        yield


@cache
def _other_scripts() -> tuple[str, ...]:
    """Fonts for what the style's own lacks, as far as they are installed; DejaVu comes with Matplotlib."""
    return (SANS, *sorted(set(_OTHER_SCRIPTS) & set(font_manager.get_font_names())))


def _venue_style(venue: Venue) -> dict[str, object]:
    unit = venue.label / _UNIT_LABEL
    lines = dict.fromkeys(("axes.linewidth", "xtick.major.width", "ytick.major.width"), 0.6 * unit)
    lengths = dict.fromkeys(
        ("xtick.major.size", "ytick.major.size", "xtick.major.pad", "ytick.major.pad"), 2.0 * unit
    )
    minor = {"xtick.minor.size": 1.2 * unit, "xtick.minor.width": 0.4 * unit}
    ticks = dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), venue.tick)
    return {
        "font.family": [SANS if venue.sans else SERIF, *_other_scripts()],
        "mathtext.fontset": "dejavusans" if venue.sans else "stix",
        "font.size": venue.label,
        "axes.labelsize": venue.label,
        "lines.linewidth": 1.1 * unit,
        "lines.markersize": 3.4 * unit,
        "axes.labelpad": 2.0 * unit,
        **ticks,
        **lines,
        **lengths,
        **minor,
    }


def label_size() -> float:
    """Points, in the style in force."""
    return size_in_points("axes.labelsize")


def tick_size() -> float:
    """Points, in the style in force: of tick labels, notes and legends."""
    return size_in_points("xtick.labelsize")


def size_in_points(size: str) -> float:
    """A size of the style in force, such as ``axes.labelsize``, in points; its words are relative."""
    return FontProperties(size=matplotlib.rcParams[size]).get_size_in_points()


def line_colour() -> str:
    """Colour of lines on the axes' background: black, unless the style in force is dark."""
    return str(matplotlib.rcParams["text.color"])


def grid_props() -> dict[str, object]:
    """Lines of a grid behind data: faint on a light and on a dark background."""
    return {"color": line_colour(), "alpha": 0.11, "linewidth": 0.5 * scale_factor()}


def dashed(colour: str, width: float) -> dict[str, object]:
    """A dashed line, `width` in units."""
    return {"color": colour, "linewidth": width * scale_factor(), "linestyle": (0, (4, 2))}


def scale_factor() -> float:
    """Scale factor of gaps, lines and marks with the font size: 1 for axis labels of 8 points."""
    return label_size() / _UNIT_LABEL


def save(
    figure: Figure,
    folder: str | Path,
    stem: str,
    *,
    title: str,
    identity: Mapping[str, object],
    formats: Sequence[str] = DEFAULT_FORMATS,
) -> tuple[Path, ...]:
    """Writes `folder/stem.format` for every format; equal figures and identities give equal bytes.

    Each file carries the title and the identity as canonical JSON: PDF `Title` and `Subject`, SVG Dublin Core
    `title` and `description`, PNG `Title` and `Description`, PGF two comments. None carries a date.
    """
    folder = make_folder(folder)
    if lost := without_glyphs("".join(text.get_text() for text in figure.findobj(Text))):
        _warn_of_boxes(lost)
    paths = []
    for name in formats:
        paths.append(folder / f"{stem}.{name}")
        write_bytes(paths[-1], render(figure, name, title, canonical_json(identity)))
    return tuple(paths)


def without_glyphs(text: str) -> str:
    """The characters of a text that none of the style's fonts has."""
    with paper_style():
        fonts = [
            get_font(findfont(FontProperties(family=name))) for name in matplotlib.rcParams["font.family"]
        ]
    printed = sorted({character for character in text if character.isprintable()})
    return "".join(one for one in printed if not any(font.get_char_index(ord(one)) for font in fonts))


@cache
def _warn_of_boxes(lost: str) -> None:
    words = f"no installed font has {shown(lost)}, shown as boxes in figures; install a font for this script"
    warnings.warn(words, AdapterProbeWarning, stacklevel=4)


def render(figure: Figure, name: str, title: str, identity: str) -> bytes:
    """The contents of a file in the format of this name, with its metadata."""
    with paper_style():
        if name == "pgf":
            from .pgf import pgf_picture

            return pgf_picture(figure, title, identity).encode("utf-8")
        buffer, creator = io.BytesIO(), f"adapter-probe {__version__}"
        said: dict[str, dict[str, str | None]] = {
            "pdf": {"Title": title, "Subject": identity, "Creator": creator, "CreationDate": None},
            "svg": {"Title": title, "Description": identity, "Creator": creator, "Date": None},
            "png": {"Title": title, "Description": identity, "Creator": creator},
        }
        figure.savefig(buffer, format=name, metadata=said[name])
        return buffer.getvalue()


def luminance(colour: str) -> float:
    """Relative luminance, 0 (black) to 1 (white), as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(colour: str, other: str) -> float:
    """WCAG 2 contrast ratio of two colours, 1 to 21; text needs at least 4.5."""
    bright, dark = sorted((luminance(colour), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def text_colour(background: str) -> str:
    """Black or white, whichever has the higher contrast."""
    return max((INK, WHITE), key=lambda ink: contrast(ink, background))


def in_force() -> dict[str, object]:
    """The settings of the current style that sizes depend on, for a later `matplotlib.rc_context`."""
    names = (
        "font.family",
        "mathtext.fontset",
        "text.color",
        "font.size",
        "axes.labelsize",
        "xtick.labelsize",
    )
    return {name: matplotlib.rcParams[name] for name in names}


@lru_cache(maxsize=4096)
def _relative_width(text: str, family: tuple[str, ...]) -> float:
    font = FontProperties(family=list(family), size=100)
    return text_to_path.get_text_width_height_descent(text, font, ismath=bool(is_math_text(text)))[0] / 100


def text_width(text: str, size: float) -> float:
    """Width of one line at a font size, both in points, in the style's font; independent of any device."""
    return size * _relative_width(text, tuple(matplotlib.rcParams["font.family"]))


def escape_mathtext(text: str) -> str:
    """Text escaped so that Matplotlib prints it literally and not as a formula."""
    return text.replace("$", r"\$")


def wrap_text(text: str, size: float, width: float) -> str:
    """The text in lines no wider than `width` points, if possible broken before a unit and after a semicolon.

    Lines of one part have about the same width, so that no word stands alone; `n = 200` stays whole.
    Words that are too wide, such as names of files, are broken after hyphens and the like.
    """
    if text_width(text, size) <= width:
        return text
    parts = in_lines(text.replace(" (", "\n(").replace("; ", ";\n").split("\n"), size, width).split("\n")
    return "\n".join(
        _evenly([piece for word in _BLANK.split(part) for piece in _pieces(word, size, width)], size, width)
        for part in map(str.strip, parts)
    )


def _pieces(word: str, size: float, width: float) -> list[str]:
    """The parts of a word, each as long as fits, that end in a hyphen or the like; a narrow word is whole."""
    pieces = [""]
    for part in re.split(r"(?<=[-_/])", word) if text_width(word, size) > width else [word]:
        if pieces[-1] and text_width(pieces[-1] + part, size) > width:
            pieces.append("")
        pieces[-1] += part
    return pieces


def _evenly(words: Sequence[str], size: float, width: float) -> str:
    """The words in as few lines as fit the width, the longest line as short as that allows."""
    found = in_lines(words, size, width)
    n_lines = found.count("\n")
    for narrower in np.arange(width, 0.3 * width, -0.04 * width):
        shorter = in_lines(words, size, float(narrower))
        if shorter.count("\n") > n_lines:
            break
        found = shorter
    return found


def in_lines(pieces: Sequence[str], size: float, width: float) -> str:
    """The pieces, which stay whole, in as few lines of at most `width` points as possible."""
    lines = list(pieces[:1])
    for piece in pieces[1:]:
        longer = f"{lines[-1]} {piece}"
        lines[-1:] = [longer] if text_width(longer, size) <= width else [lines[-1], piece]
    return "\n".join(lines)
