"""Checkpoints of other libraries, against the logits that these libraries computed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from adapter_probe.checkpoints.opening import open_checkpoint
from adapter_probe.data.encoding import seal
from adapter_probe.data.packing import pack
from adapter_probe.probe.tree import forward_variants

FIXTURES = Path(__file__).parent / "fixtures"
CASES = sorted(path.parent.relative_to(FIXTURES).as_posix() for path in FIXTURES.glob("*/*/expected.npz"))


def base_of(folder: Path) -> str:
    config = json.loads((folder / "adapter_config.json").read_text())
    name = config.get("model_name") or config["base_model_name_or_path"]
    return str(FIXTURES / "bases" / name.rpartition("/")[2])


def texts():
    ids = json.loads((FIXTURES / "texts.json").read_text())
    return seal(tuple(np.array(text, dtype=np.int64) for text in ids), None)


def test_there_are_cases():
    assert len(CASES) >= 24


@pytest.mark.parametrize("case", CASES)
def test_logits_are_the_librarys_own(case: str):
    folder = FIXTURES / case
    opened = open_checkpoint(folder, base_of(folder))
    expected = np.load(folder / "expected.npz")
    masks = np.repeat(~expected["skipped"], 2, axis=1)
    encoded = texts()
    batch = pack(encoded, np.arange(len(encoded)))
    for tokens_per_pass in (10_000, 30):
        logits = forward_variants(opened.model, batch, masks, tokens_per_pass=tokens_per_pass)
        wanted = expected["logits"][:, batch.index]
        np.testing.assert_allclose(logits.numpy(), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(opened.model(batch).detach().numpy(), wanted[0], rtol=1e-5, atol=1e-5)
