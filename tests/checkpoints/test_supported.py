"""The sections in the documentation are those that the readers make."""

from __future__ import annotations

import re
from pathlib import Path

from adapter_probe.checkpoints.supported import BEGIN, END, support_sections, update

DOCUMENT = Path(__file__).parents[2] / "docs" / "guides" / "peft-adapterhub.md"


def test_the_documentation_is_up_to_date():
    shown = DOCUMENT.read_text(encoding="utf-8").split(BEGIN)[1].split(END)[0].strip()
    assert shown == support_sections(), "run adapter_probe.checkpoints.supported.update on it"


def test_every_other_library_says_what_it_refuses():
    sections = support_sections().split("### ")[1:]
    assert len(sections) == 5
    native, refusing = ["Files", "Opened"], ["Files", "Opened", "Refused, by name"]
    alone = ["Model types of the base", "Formats that `convert` writes"]
    found = [re.findall(r"^- \*\*(.+?):\*\* \S", section, re.MULTILINE) for section in sections]
    assert found == [native, refusing, refusing, refusing, alone]


def test_update_changes_the_sections_alone(tmp_path: Path):
    path = tmp_path / "page.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    update(path)
    text = path.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert support_sections() in text
