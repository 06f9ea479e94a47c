"""What every test shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Set before anything imports transformers: no test may reach for a hub, and the tokenizers' own threads
# must not outlive a fork.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of real data and weights beside the checkout; tests that use it are marked `real_data`."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real data and weights at {folder}")
    return folder
