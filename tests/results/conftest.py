"""What every results test asks of an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from adapter_probe.errors import ResultsError


@contextmanager
def _refused(*words: object) -> Iterator[pytest.ExceptionInfo[ResultsError]]:
    with pytest.raises(ResultsError) as caught:
        yield caught
    line = str(caught.value)
    assert "\n" not in line
    for word in map(str, words):
        assert word in line


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager]:
    """``with refused("words", ...):`` the block raises a ResultsError of one line holding all the words."""
    return _refused
