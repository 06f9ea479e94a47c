"""What every results test asks of an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from refusals import names

from adapter_probe.errors import ResultsError


@contextmanager
def _refused(*facts: object) -> Iterator[pytest.ExceptionInfo[ResultsError]]:
    with pytest.raises(ResultsError) as caught:
        yield caught
    assert names(str(caught.value), *map(str, facts)), str(caught.value)


@pytest.fixture
def refused() -> Callable[..., AbstractContextManager]:
    """``with refused("fact", ...):`` the block raises a ResultsError of one line that names all the facts."""
    return _refused
