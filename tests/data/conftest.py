"""Files that are read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from row_files import jsonl

from adapter_probe.data.tasks import Questions, find_task, load_split


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of texts, bytes or rows, one after the other, and return its path."""

    def write(name: str, *content: str | bytes | Mapping[str, Any]) -> Path:
        texts = (jsonl(one) if isinstance(one, Mapping) else one for one in content)
        path = tmp_path / name
        path.write_bytes(b"".join(one if isinstance(one, bytes) else one.encode() for one in texts))
        return path

    return write


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
