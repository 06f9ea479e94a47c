r"""A figure as a PGF picture for LaTeX, written without a LaTeX installation.

Matplotlib's own writer asks LaTeX for the size of every text. Here sizes come from the figure's font, and
texts are written as text, anchored at their centre or start, so that they take the
document's font and stay in place. The document only needs ``\usepackage{pgf}``.
"""

from __future__ import annotations

import io
import math
import re

from matplotlib.backend_bases import GraphicsContextBase
from matplotlib.backends.backend_pgf import RendererPgf
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from adapter_probe.version import __version__

# Drawn as a path, because no font that every document has contains it.
_CORNER = (
    r"{\pgfpicture\pgfpathmoveto{\pgfpointorigin}\pgfpathlineto{\pgfpoint{.6em}{0pt}}"
    r"\pgfpathlineto{\pgfpoint{0pt}{.6em}}\pgfpathclose\pgfusepath{fill}\endpgfpicture}"
)
_SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "$": r"\$", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "−": r"\ensuremath{-}", "±": r"\ensuremath{\pm}",
    "×": r"\ensuremath{\times}", "○": r"\ensuremath{\circ}", "•": r"\textbullet{}", "≤": r"\ensuremath{\leq}",
    "≥": r"\ensuremath{\geq}", "–": "--", "↓": r"\ensuremath{\downarrow}", "…": r"\dots{}",
    "σ": r"\ensuremath{\sigma}", "\n": " ", "◣": _CORNER,
}  # fmt: skip
_MATH = re.compile(r"(?<!\\)\$((?:[^$\\]|\\.)+)(?<!\\)\$")
_ANCHOR = {"left": "left", "right": "right", "center": ""}


def escape_latex(text: str) -> str:
    """Plain text escaped for LaTeX, in text mode."""
    return "".join(_SPECIAL.get(character, character) for character in text)


def mathtext_to_latex(text: str) -> str:
    r"""Text as Matplotlib reads it, ``\$`` a dollar and ``$...$`` formulas, for LaTeX."""
    parts = _MATH.split(text)  # plain, formula, plain, ...
    for index, part in enumerate(parts):
        if index % 2:
            bare = re.sub(r"\\mathdefault\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}", r"\1", part)
            parts[index] = rf"\ensuremath{{{bare.replace('−', '-')}}}"
        else:
            parts[index] = escape_latex(part.replace(r"\$", "$"))
    return "".join(parts)


class _Renderer(RendererPgf):
    """Matplotlib's PGF renderer with its own text output."""

    def get_text_width_height_descent(
        self, s: str, prop: FontProperties, ismath: bool
    ) -> tuple[float, float, float]:
        """Pixels, measured in the figure's font."""
        width, height, descent = text_to_path.get_text_width_height_descent(s, prop, ismath)
        scale = self.dpi / 72
        return width * scale, height * scale, descent * scale

    def draw_text(
        self,
        gc: GraphicsContextBase,
        x: float,
        y: float,
        s: str,
        prop: FontProperties,
        angle: float,
        ismath: bool = False,
        mtext: Text | None = None,
    ) -> None:
        """Place the text on Matplotlib's baseline, anchored according to its alignment."""
        anchor = _ANCHOR[mtext.get_horizontalalignment()] if mtext else "left"
        width = self.get_text_width_height_descent(s, prop, ismath)[0]
        along = {"left": 0.0, "": 0.5, "right": 1.0}[anchor] * width  # in the text's direction
        x, y = x + along * math.cos(math.radians(angle)), y + along * math.sin(math.radians(angle))
        size = prop.get_size_in_points()
        place = [f"x={x / self.dpi:f}in", f"y={y / self.dpi:f}in", "base", *([anchor] if anchor else [])]
        place += [f"rotate={angle:f}"] if angle else []
        red, green, blue = gc.get_rgb()[:3]
        self.fh.write(
            f"\\begin{{pgfscope}}%\n\\definecolor{{textcolor}}{{rgb}}{{{red:f},{green:f},{blue:f}}}%\n"
            f"\\pgftext[{','.join(place)}]{{\\color{{textcolor}}\\fontsize{{{size:f}}}{{{1.2 * size:f}}}"
            f"\\selectfont {mathtext_to_latex(s)}}}%\n\\end{{pgfscope}}%\n"
        )


def pgf_picture(figure: Figure, title: str, identity: str) -> str:
    """The picture's code, with the title and the identity (ASCII, one line) in comments."""
    width, height = figure.get_size_inches()
    file = io.StringIO()
    file.write(
        f"% {' '.join(title.split())}\n% adapter-probe {__version__}\n% identity: {identity}\n"
        "% In the preamble: \\usepackage{pgf}. In the text: \\input{this file}\n"
        "\\begingroup%\n\\makeatletter%\n\\begin{pgfpicture}%\n"
        f"\\pgfpathrectangle{{\\pgfpointorigin}}{{\\pgfqpoint{{{width:f}in}}{{{height:f}in}}}}%\n"
        "\\pgfusepath{use as bounding box}%\n"
    )
    figure.draw(_Renderer(figure, file))
    file.write("\\end{pgfpicture}%\n\\makeatother%\n\\endgroup%\n")
    return file.getvalue()
