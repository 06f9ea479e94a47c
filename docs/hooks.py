"""What mkdocs cannot read from docs/: the CLI reference, galleries, notebooks, pages at the tree's root.

All of it is made while the site is built, so that no copy can go stale.
"""

from __future__ import annotations

import html
import logging
import os
import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from adapter_probe.cli.help import records, split_help
from adapter_probe.cli.main import app

sys.path.insert(0, str(Path(__file__).parent))
import gallery as figure_gallery

ROOT = Path(__file__).resolve().parents[1]
DOCS, NOTEBOOKS, DRAWN = ROOT / "docs", ROOT / "build" / "notebooks", ROOT / "build" / "gallery" / "now"
ROOT_PAGES = {  # in the tree -> in the site
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "benchmarks/NOTES.md": "project/benchmarks.md",
    "benchmarks/LOG.md": "project/benchmarks-log.md",
}
FIGURES, PICTURES = "reference/gallery.md", "reference/gallery"
GALLERY, CLI = "studies/index.md", "reference/cli.md"
STUDIES_NAV = "Studies"
_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCED = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)$", re.DOTALL | re.MULTILINE)
_PARAGRAPH = re.compile(r"^(?![#!|<`*-])\S.*?(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
_TABLE = re.compile(r"studies/.*/table-[^/]+\.md")
_log = logging.getLogger("mkdocs.hooks")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the studies that are there into the navigation, under the gallery."""
    studies = next(entry for entry in config.nav or [] if STUDIES_NAV in entry)
    studies[STUDIES_NAV] = [GALLERY, *(page.relative_to(DOCS).as_posix() for page in study_pages())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and what stands at the root of the tree."""
    made = {CLI: cli_reference(), GALLERY: gallery()}
    made |= {page: (ROOT / source).read_text("utf-8") for source, page in ROOT_PAGES.items()}
    if (page := files.get_file_from_path("studies/README.md")) is not None:
        files.remove(page)  # it opens the gallery
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    for source in sorted((DOCS / "notebooks").glob("*.ipynb")):
        _add_notebook(source.stem, files, config)
    _add_figures(files, config)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ at the site's own pages; name other files of the tree by their path."""
    site_path = page.file.src_uri
    if _TABLE.fullmatch(site_path):
        page.meta["search"] = {"exclude": True}  # a table that a study links to, not a page to land on
    source = next((tree for tree, site in ROOT_PAGES.items() if site == site_path), f"docs/{site_path}")
    parts, end = [], 0
    for fence in _FENCED.finditer(markdown):
        parts += [_relink(markdown[end : fence.start()], source, site_path), fence[0]]
        end = fence.end()
    return "".join([*parts, _relink(markdown[end:], source, site_path)])


def on_page_content(content: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark names of options, which must not be broken at their hyphens."""
    return re.sub(r"<code>(--[a-z][a-z-]*)</code>", r'<code class="option">\1</code>', content)


def _relink(text: str, source: str, site_path: str) -> str:
    def replaced(match: re.Match[str]) -> str:
        target, anchor = match["target"], match["anchor"] or ""
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        in_tree = os.path.normpath(PurePosixPath(source).parent / target)
        if in_tree in ROOT_PAGES:
            there = ROOT_PAGES[in_tree]
        elif in_tree.startswith("docs/") and site_path != source.removeprefix("docs/"):
            there = in_tree.removeprefix("docs/")
        elif in_tree.startswith("docs/"):
            return match[0]  # mkdocs checks it
        elif (ROOT / in_tree).exists():
            return match["text"] if "`" in match["text"] else f"`{match['text']}`"
        else:
            _log.warning("%s links to %s, which is not in the tree", source, target)
            return match[0]
        relative = os.path.relpath(there, PurePosixPath(site_path).parent)
        return f"{match['bang']}[{match['text']}]({relative}{anchor})"

    return _LINK.sub(replaced, text)


def cli_reference() -> str:
    """Every command with its arguments and options, from the commands themselves."""
    group: Any = typer.main.get_command(app)
    pages = [
        "# Command-line reference\n",
        "Every command prints its results on standard output and everything else on standard error. It exits "
        "with 0 on success, with 2 after an error that the user can correct (one line that names the value "
        "and what is allowed), and with 130 after an interrupt. This page is generated from the commands; "
        "`adapter-probe COMMAND --help` prints the same text.\n",
        _parameters(group, typer.Context(group, info_name="adapter-probe")),
    ]
    for name, command in group.commands.items():
        context = typer.Context(command, info_name=f"adapter-probe {name}")
        usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
        text, example = split_help(command)
        pages += [f"## adapter-probe {name}\n", f"```\n{usage}\n```\n", _prose(text)]
        pages += [f"```\n{example}\n```\n"] if example else []
        pages.append(_parameters(command, context))
    return "\n".join(pages)


def _prose(text: str) -> str:
    return re.sub(r"(?<![\w-])(--[a-z][a-z-]*|[a-z-]+\.(?:csv|npz|pdf|json))", r"`\1`", text) + "\n"


def _parameters(command: Any, context: typer.Context) -> str:
    """The arguments and options, one table for each heading of the help."""
    tables = []
    for title, rows in records(command, context).items():
        lines = [f"| {title} | meaning | default |", "| --- | --- | --- |"]
        for record in rows:
            syntax, text = (" ".join(part.split()) for part in record)
            told = re.search(r"\[(?:default: )(.*?)\]$|\[required\]$|\[default: (.*)\]", text)
            default = (told[1] or told[2] or "required") if told else ""
            text = text[: told.start()].strip() if told else text
            meaning = html.escape(text, quote=False).replace("|", "\\|")
            choices = syntax.replace("|", " | ")  # so that a narrow column breaks them
            lines.append(f"| `{choices}` | {meaning} | " + (f"`{default}` |" if told else "|"))
        tables.append("\n".join(lines) + "\n")
    return "\n".join(tables)


def study_pages() -> list[Path]:
    """The studies, in the order in which docs/studies/README.md names them."""
    named = (DOCS / "studies" / "README.md").read_text("utf-8")
    pages = [page for page in sorted((DOCS / "studies").glob("*.md")) if page.name != "README.md"]
    return sorted(pages, key=lambda page: named.find(f"{page.name})") % (len(named) + 1))


def gallery() -> str:
    """The page that opens the studies, and a card for each: its first figure, title and paragraph."""
    cards = []
    for path in study_pages():
        text = path.read_text("utf-8")
        link = os.path.relpath(path, DOCS / "studies").replace(os.sep, "/")
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        first = _PARAGRAPH.search(text, title.end() if title else 0)
        image = re.search(r"!\[[^\]]*\]\(([^)]+\.(?:png|svg))\)", text)
        picture = ""
        if image:
            shown = os.path.relpath(path.parent / image[1], DOCS / "studies").replace(os.sep, "/")
            picture = f"[![Figure of the study: {title[1] if title else path.stem}]({shown})]({link})\n\n    "
        said = _sentences(" ".join(_LINK.sub(r"\g<text>", first[0]).split())) if first else ""
        cards.append(f"-   {picture}**[{title[1] if title else path.stem}]({link})**\n\n    {said}\n")
    readme = DOCS / "studies" / "README.md"
    intro = readme.read_text("utf-8") if readme.exists() else "# Studies\n"
    intro = re.sub(r"^- .*?\n(?=\n)", "", intro, flags=re.DOTALL | re.MULTILINE)  # the cards follow
    return intro + '\n<div class="grid cards" markdown>\n\n' + "\n".join(cards) + "\n</div>\n"


def _sentences(text: str, characters: int = 260) -> str:
    """The first sentences, as many as fit; a sentence that a list was to end is left out."""
    kept = ""
    for sentence in re.findall(r"\S.*?[.?!](?=\s+[A-Z`]|$)", text):
        if kept and len(kept) + len(sentence) > characters:
            break
        kept += f" {sentence}" if kept else sentence
    return kept


def _add_notebook(name: str, files: Files, config: MkDocsConfig) -> None:
    """The notebook as executed by `make docs`, with the notebook itself to download."""
    executed = NOTEBOOKS / f"{name}.md"
    if not executed.is_file():
        _log.warning("notebook %s has not been executed; run `make docs`", name)
        return
    text = executed.read_text("utf-8")
    note = f"\n\n[Download this page as a notebook]({name}.ipynb){{ download }}\n"
    head, _, rest = text.partition("\n\n")
    files.append(File.generated(config, f"notebooks/{name}.md", content=head + note + "\n" + rest))
    for picture in sorted((NOTEBOOKS / f"{name}_files").glob("*")):
        where = f"notebooks/{name}_files/{picture.name}"
        files.append(File.generated(config, where, abs_src_path=str(picture)))


def _add_figures(files: Files, config: MkDocsConfig) -> None:
    """The gallery of figures, as `make docs` drew it."""
    if not DRAWN.is_dir():
        _log.warning("the gallery of figures has not been drawn; run `make docs`")
    files.append(File.generated(config, FIGURES, content=figure_gallery.markdown(DRAWN, "gallery")))
    for style in figure_gallery.STYLES:
        for picture in sorted(DRAWN.glob(f"*/{style}/*.png")):
            where = f"{PICTURES}/{picture.relative_to(DRAWN).as_posix()}"
            files.append(File.generated(config, where, abs_src_path=str(picture)))
