"""The fixtures of these tests, some shared with those of `jobs`."""

import pytest
from random_checkpoints import random_checkpoint  # noqa: F401
from trainings import train  # noqa: F401

from adapter_probe.probe import engine
from adapter_probe.replay.walk import Walk


@pytest.fixture
def tokens_passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every call of a layer, which are also what the engine's clock counts."""
    passed, called = [], Walk._called

    def counted(*arguments) -> list:
        found = called(*arguments)
        passed.append(found[0][1][..., 0].numel())
        return found

    monkeypatch.setattr(Walk, "_called", counted)
    monkeypatch.setattr(engine.time, "perf_counter", lambda: sum(passed))
    return passed
