"""The table in the documentation is the one that the readers make."""

from __future__ import annotations

from pathlib import Path

from adapter_probe.checkpoints.supported import BEGIN, END, support_table, update

DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "peft-adapterhub.md"


def test_the_documentation_is_up_to_date():
    shown = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    assert shown == support_table(), "run adapter_probe.checkpoints.supported.update on it"


def test_every_row_has_four_cells():
    rows = [line for line in support_table().splitlines() if line.startswith("|")]
    assert len(rows) == 6
    assert {row.count(" | ") for row in rows} == {3}


def test_update_changes_the_table_alone(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    update(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert support_table() in text
