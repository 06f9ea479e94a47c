"""Tests on accelerators that are played, see `tests/fixtures/pretend`; `make test-device` runs them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from trainings import short_task  # noqa: F401 (a fixture)

collect_ignore_glob = [] if find_spec("pretend_accelerator") else ["test_*.py"]


@pytest.fixture
def devices():
    """``with devices(count, lacks=, spare=) as machine``: see `pretend_accelerator.devices`."""
    import torch  # noqa: F401 (which loads it)
    from pretend_accelerator import devices as made

    return made


@pytest.fixture(scope="session")
def saved_classifier(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a LoRA on a small BERT with two labels."""
    from peft_folders import KV, saved

    sizes = {**KV, "num_labels": 2, "max_position_embeddings": 40}
    folder = tmp_path_factory.mktemp("classifier")
    return saved(folder, "bert", sizes, "SEQ_CLS", ["query", "value"], noise=0.2)
