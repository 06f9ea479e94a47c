"""Files that are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from adapter_probe.data.tasks import Questions, find_task, load_split


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    """Write files into one folder and return it; of a keyword, the last ``_`` stands for the dot."""

    def write(files: Mapping[str, str] | None = None, **named: str) -> Path:
        for name, content in {**(files or {}), **named}.items():
            file = name if name in (files or {}) else ".".join(name.rsplit("_", 1))
            (tmp_path / file).write_text(content, encoding="utf-8")
        return tmp_path

    return write


@pytest.fixture(scope="session")
def real_questions(shared_dir: Path) -> tuple[Any, Questions]:
    """The tokenizer of gte-small, and SQuAD's validation questions."""
    transformers = pytest.importorskip("transformers")
    data, weights = shared_dir / "data" / "squad", shared_dir / "weights" / "gte-small"
    if not (data.is_dir() and weights.is_dir()):
        pytest.skip(f"no real data at {data} or tokenizer at {weights}")
    return transformers.AutoTokenizer.from_pretrained(weights), load_split(find_task(data), "validation")
