"""Tests on accelerators that are played, see `tests/fixtures/pretend`; `make test-device` runs them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from trainings import short_task  # noqa: F401 (a fixture)

collect_ignore_glob = [] if find_spec("pretend_accelerator") else ["test_*.py"]
TEXTS = [{"text": "the cat saw a dog and a bird " * (1 + n % 3), "label": n % 2} for n in range(12)]
PAIRS = [{"sentence_good": f"Cats {v}.", "sentence_bad": f"Cats {v}s."} for v in ("purr", "sleep", "ab")]


@pytest.fixture
def devices():
    """``with devices(count, lacks=, spare=) as machine``: see `pretend_accelerator.devices`."""
    import torch  # noqa: F401 (which loads it)
    from pretend_accelerator import devices as made

    return made


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a LoRA and its rows by their name: "classes" on a BERT, "tokens" on a Llama."""
    from peft_folders import KV, saved, written

    found, sizes = {}, {**KV, "max_position_embeddings": 40, "num_hidden_layers": 4}
    for name, *case, rows in [
        ("classes", "bert", {**sizes, "num_labels": 2}, "SEQ_CLS", ["query", "value"], TEXTS),
        ("tokens", "llama", sizes, "CAUSAL_LM", ["v_proj", "down_proj"], PAIRS),
    ]:
        folder = tmp_path_factory.mktemp(name)
        found[name] = saved(folder, *case, noise=0.2), written(folder, rows)
    return found
