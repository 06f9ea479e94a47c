"""The gallery of figures: every case of `gallery_cases.py` on one HTML page, for whoever changes a figure.

`make gallery`, or `python docs/gallery.py OUT [--before REVISION] [--only NAME ...] [--all-styles]`. With
`--before`, an earlier commit draws the same results, or its own if it cannot read them, and what has changed
stands beside how it was.
"""

from __future__ import annotations

import argparse
import html
import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
sys.path.insert(0, str(DOCS))
from gallery_cases import CASES, Case  # noqa: E402

STYLES = ("paper", "talk")
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Gallery of figures</title><style>
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em; color: #1b1b1f; background: #f4f3ef; }
section { border-top: 1px solid #ccc; padding: .5em 0 1.5em; }
h2 { margin: .3em 0; }
code { background: #e8e6e0; padding: 1px 5px; }
.row { display: flex; gap: 14px; align-items: start; }
figure { margin: 6px 0; min-width: 0; }
figcaption { font-size: 12px; color: #5c5d66; max-width: 640px; }
img { background: #fff; max-width: 100%; }</style>"""


def draw(out: Path, results: Path, cases: list[Case], every_style: bool) -> int:
    """Draw the cases with the package that this interpreter imports: ``OUT/CASE/STYLE/*.png``.

    Returns:
        how many cases could not be drawn: an earlier package may be unable to read today's results.
    """
    import adapter_probe
    from adapter_probe.figures.venues import VENUES

    failed = 0
    for case in cases:
        try:
            studies, arguments = case.studies(results), case.arguments(results)
        except adapter_probe.AdapterProbeError as error:
            print(f"{case.name} is not drawn: {error}", file=sys.stderr)
            failed += 1
            continue
        for style in VENUES if every_style and case.every_style else STYLES:
            adapter_probe.draw(studies, out=out / case.name / style, style=style, formats="png", **arguments)
        print(case.name, file=sys.stderr)
    return failed


def draw_as(revision: str, out: Path, arguments: list[str]) -> None:
    """Draw with the code of a commit, on the results that today's code has written or, unread, on its own."""
    packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
    source = out / "source"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(source, filter="data")
    package = out / "package" / "adapter_probe"
    package.mkdir(parents=True)
    for part in (*(source / "adapter_probe").iterdir(), source / "cli", source / "figures"):
        (package / part.name).symlink_to(part)
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, str(DOCS / "gallery.py"), str(out), "--draw", *arguments]
    if subprocess.run(command, env=environment).returncode:
        own = [sys.executable, str(source / "docs" / "gallery.py"), str(out / "own"), *arguments]
        subprocess.run(own, env=environment)  # which may not have these cases
        for case in (out / "own" / "now").glob("*"):
            if not (out / case.name).exists():
                case.rename(out / case.name)


def page(out: Path, cases: list[Case], before: str = "") -> str:
    """The HTML of the page; pictures as links to files next to it."""
    names = "".join(f'<a href="#{case.name}">{case.name}</a> ' for case in cases)
    parts = [_PAGE, f"<h1>Gallery of figures</h1><nav>{names}</nav>"]
    for case in cases:
        parts.append(f'<section id="{case.name}"><h2>{case.name}</h2><p>{html.escape(case.shows)}</p>')
        for style in sorted(path.name for path in (out / "now" / case.name).iterdir()):
            parts.append(f"<p><code>{html.escape(case.command(style))}</code></p>")
            pictures = sorted((out / "now" / case.name / style).glob("*.png"))
            parts += [_row(out, picture, before) for picture in pictures]
        parts.append("</section>")
    return "\n".join(parts)


def markdown(drawn: Path, folder: str) -> str:
    """The page of the documentation, of what is drawn; `folder` is where its pictures are, from the page."""
    parts = [
        "# Gallery of figures\n",
        "Every kind of figure, for a column of a paper and for a slide, with the command that draws it from"
        " results folders. The pictures are drawn while this page is built, from results of"
        " [the studies](../studies/index.md) and from made-up ones.\n",
    ]
    for case in CASES:
        parts += [f"## {case.name.replace('-', ' ').capitalize()}\n", f"{case.shows}\n"] * (
            drawn / case.name
        ).is_dir()
        for style in STYLES:
            pictures = sorted((drawn / case.name / style).glob("*.png"))
            parts += [f"```\n{case.command(style)}\n```\n"] if pictures else []
            parts += [_picture(path, f"{folder}/{path.relative_to(drawn).as_posix()}") for path in pictures]
    return "\n".join(parts)


def _picture(path: Path, link: str) -> str:
    return f"![{path.stem}]({link}){{ width={_width(path)} }}\n"


def _row(out: Path, picture: Path, before: str) -> str:
    """A picture with its caption, and on its left, if it has changed, how it was."""
    caption = html.escape(picture.with_suffix(".txt").read_text("utf-8"))
    earlier = out / "before" / picture.relative_to(out / "now")
    shown = [(picture, f"{picture.stem}. {caption}")]
    if before and not earlier.is_file():
        shown.insert(0, (None, f"{before}: not drawn"))
    elif before and earlier.read_bytes() != picture.read_bytes():
        shown.insert(0, (earlier, f"{before}: {html.escape(earlier.with_suffix('.txt').read_text('utf-8'))}"))
    figures = [
        f"<figure>{_image(path, out) if path else ''}<figcaption>{words}</figcaption></figure>"
        for path, words in shown
    ]
    return f'<div class="row">{"".join(figures)}</div>'


def _image(path: Path, out: Path) -> str:
    place, width = path.relative_to(out).as_posix(), _width(path)
    return f'<img src="{place}" width="{width}" loading="lazy" alt="{path.stem}">'


def _width(path: Path) -> int:
    """The width at which a picture of 300 dots per inch is half as large again as in print."""
    return int.from_bytes(path.read_bytes()[16:20], "big") * 144 // 300


def main(given: list[str]) -> int:
    """Draw and write the page; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--before", default="", metavar="REVISION", help="a commit that draws the same cases")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="names of cases")
    parser.add_argument("--all-styles", action="store_true", help="of the main figures, those of every venue")
    parser.add_argument("--draw", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(given)
    cases = [case for case in CASES if not asked.only or case.name in asked.only]
    if not cases:
        parser.error(f"no such case; there are {', '.join(case.name for case in CASES)}")
    out = asked.out.resolve()
    if asked.draw:
        return int(draw(out, out.parent / "results", cases, asked.all_styles) > 0)
    for old in (out / "results", out / "before", *(out / "now" / case.name for case in cases)):
        shutil.rmtree(old, ignore_errors=True)
    from gallery_results import write  # which needs today's code

    write(out / "results", [name for case in cases for name in case.results])
    arguments = ["--only", *(case.name for case in cases), *["--all-styles"] * asked.all_styles]
    if asked.before:
        draw_as(asked.before, out / "before", arguments)
    if draw(out / "now", out / "results", cases, asked.all_styles):
        return 1
    (out / "index.html").write_text(page(out, cases, asked.before), "utf-8")
    print(out / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
