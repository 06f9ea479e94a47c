"""The start of this project's programs."""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

_HIDDEN = ("scipy", "sklearn")
_OBJECTS_BETWEEN_COLLECTIONS = 50_000


@contextmanager
def collecting_rarely() -> Iterator[None]:
    """Look for cycles of objects seldom; looking through all that libraries made at import takes a second."""
    before = gc.get_threshold()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def import_needed(name: str) -> Any:
    """Import a module that needs a library of those that `unneeded_libraries_hidden` hides.

    Raises:
        ImportError: it is not installed.
    """
    for hidden in _HIDDEN:
        if hidden in sys.modules and sys.modules[hidden] is None:
            del sys.modules[hidden]
    return import_module(name)


@contextmanager
def unneeded_libraries_hidden() -> Iterator[None]:
    """Import as if some libraries were not installed, to start faster.

    seaborn and transformers import them where they are there, for what nothing here asks of them, which takes
    half a second. What is imported already stays. bitsandbytes, which PEFT imports where it is there, would
    print what else it could use.
    """
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    hidden = [name for name in _HIDDEN if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            if name in sys.modules and sys.modules[name] is None:
                del sys.modules[name]
