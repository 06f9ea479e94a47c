"""The page on families says what the table says, and its example runs.

``python tests/models/families/test_families_page.py`` writes the table of the page.
"""

from __future__ import annotations

import re
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from adapter_probe.models.adapted import AdaptedModel
from adapter_probe.models.bases.anatomy import ANATOMIES
from adapter_probe.models.bases.attention import Attention
from adapter_probe.models.bases.family import Anatomy
from adapter_probe.models.bases.relative import (
    BiasedAttention,
    DisentangledAttention,
    InterleavedDisentangledAttention,
)
from adapter_probe.models.bases.rotary import RotaryAttention

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "families.md"
BETWEEN = re.compile("(?<=<!-- table: begin -->\n).*?(?=<!-- table: end -->)", re.DOTALL)

WORDS = {
    Attention: "plain",
    BiasedAttention: "one bias per distance, shared by all layers",
    DisentangledAttention: "disentangled",
    InterleavedDisentangledAttention: "disentangled",
    RotaryAttention: "rotary",
}


def row(anatomy: Anatomy) -> tuple[str, ...]:
    lost = anatomy.positions_lost or ("padding id + 1" if anatomy.positions_follow_padding else 0)
    notes = [f"`max_position_embeddings` less {lost} positions"] if lost else []
    if anatomy.layer_groups:
        notes.append("layers share weights")
    skipped = {"is_decoder", "add_cross_attention"}
    notes += [f"only `{name}={values[0]!r}`" for name, values in anatomy.allowed if name not in skipped]
    return (
        ", ".join(f"`{name}`" for name in anatomy.model_types),
        "before" if anatomy.pre_norm else "after",
        WORDS[anatomy.attention],
        "yes" if anatomy.token_types else "no",
        ", ".join(f"`{name}`" for name in (*anatomy.norms, anatomy.final_norm) if name),
        "; ".join(notes),
    )


def table() -> str:
    titles = (
        "`model_type`",
        "LayerNorm",
        "attention",
        "token types",
        "other LayerNorms",
        "notes",
    )
    rows = [titles, ("---",) * len(titles), *map(row, ANATOMIES)]
    return "".join("| " + " | ".join(cells) + " |\n" for cells in rows).replace("|  |", "| |")


def test_the_pages_table_is_the_codes():
    assert BETWEEN.findall(PAGE.read_text()) == [table()]


def test_the_pages_example_runs(tmp_path: Path):
    config = AutoConfig.for_model("ernie", vocab_size=35, num_hidden_layers=2, hidden_size=32,
                                  num_attention_heads=4, intermediate_size=64, num_labels=3)  # fmt: skip
    torch.manual_seed(0)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict = {"folder": tmp_path}
    for block in blocks:
        exec(block, names)
    assert isinstance(names["model"], AdaptedModel)
    assert names["own"].shape == (1, 3)


if __name__ == "__main__":
    PAGE.write_text(BETWEEN.sub(lambda _: table(), PAGE.read_text()))
