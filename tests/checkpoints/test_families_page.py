"""The page on families says what the table says.

``python tests/checkpoints/test_families_page.py`` writes the table of the page.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from adapter_probe.checkpoints.places import FAMILIES, Places

PAGE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "families.md"
BETWEEN = re.compile("(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)


def row(families: list[str], places: Places) -> tuple[str, ...]:
    before, inside = places.attention.norm is None, "norm" in places.attention.end
    notes = ["layers share weights"] * (places.layer_groups is not None)
    skipped = {"is_decoder", "add_cross_attention"}
    notes += [f"only `{name}={values[0]!r}`" for name, values in places.allowed if name not in skipped]
    return (
        ", ".join(f"`{name}`" for name in families),
        "before and inside" if before and inside else "before" if before else "after",
        f"`{places.attention.end}`, `{places.ffn.end}`",
        "first" if places.reads_first else "last",
        "; ".join(notes),
    )


def table() -> str:
    titles = ("`model_type`", "LayerNorm", "adapters follow", "the head reads the token", "notes")
    groups = [(list(names), places) for places, names in groupby(FAMILIES, FAMILIES.__getitem__)]
    rows = [titles, ("---",) * len(titles), *(row(names, places) for names, places in groups)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows).replace("|  |", "| |")


def test_the_pages_table_is_the_codes():
    assert BETWEEN.findall(PAGE.read_text()) == [table()]


if __name__ == "__main__":
    PAGE.write_text(BETWEEN.sub(lambda _: table(), PAGE.read_text()))
