"""Regular expressions of other people, matched in bounded time: the only place that runs them.

A pattern may take exponential time, or time that grows with a high power of a name's length. Here a match has
a time limit; where PEFT itself will match, without one, the pattern is tried beforehand.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import regex

from adapter_probe.errors import CheckpointError, DataError, one_line, shown

from .files import quote

_PATTERNS = (
    "target_modules",
    "exclude_modules",
    "layers_pattern",
    "feedforward_modules",
    "target_parameters",
)
_MATCH_SECONDS, _TRIAL_SECONDS = 0.5, 3
_MATCHER = """
import json, re, sys
pattern, names, seconds = json.load(sys.stdin)
try:
    from resource import RLIMIT_CPU, setrlimit
    setrlimit(RLIMIT_CPU, (seconds, seconds))
except ImportError:
    pass
for name in names:
    re.match(pattern, name)
"""


class Extractor:
    """What a pattern finds in texts: its first group, or all that matches where it has none.

    Args:
        flag: the option that gives it.
    """

    def __init__(self, pattern: str, flag: str):
        self._said = f"{flag} {quote(pattern)}"
        try:
            self._pattern = regex.compile(pattern)
        except (regex.error, OverflowError, RecursionError) as error:
            raise DataError(f"{self._said} is not a regular expression: {one_line(error)}") from None

    def found_in(self, text: str) -> str | None:
        """What is found first; None if nothing is."""
        try:
            match = self._pattern.search(text, timeout=_MATCH_SECONDS)
        except TimeoutError:
            raise DataError(
                f"{self._said} takes more than {_MATCH_SECONDS} s on the text {shown(text)}; simplify it"
            ) from None
        if match is None:
            return None
        found: str | None = match.group(1) if self._pattern.groups else match.group(0)
        return found


def refuse_slow_patterns(path: Path, document: Mapping[str, Any], modules: Iterable[str]) -> None:
    """Refuse a configuration of PEFT whose patterns take long on names of modules, where PEFT would hang.

    Only what is repeated twice, or a repeated group, can take long. Such a pattern is tried in a process of
    its own, which can be stopped, as PEFT matches it: a text has to match the whole name, and what stands in
    a list or chooses ranks the end of it.
    """
    given = [document.get(name) or () for name in _PATTERNS]
    ends = [one for value in given if isinstance(value, list) for one in value if isinstance(one, str)]
    ends += [key for name in ("rank_pattern", "alpha_pattern") for key in document.get(name) or ()]
    tried = {text: rf"({text})\Z" for text in given if isinstance(text, str)}
    names = list(modules)
    for pattern, whole in {**tried, **{end: rf"(.*\.)?({end})$" for end in ends}}.items():
        try:
            re.compile(whole)
        except (re.error, OverflowError, RecursionError) as error:
            said = f"{path}: {quote(pattern)} is not a regular expression: {one_line(error)}"
            raise CheckpointError(said) from error
        several = len(re.findall(r"[*+{]", pattern)) > 1 or re.search(r"\)[*+{]", pattern)
        if several and _takes_long(whole, names):
            raise CheckpointError(f"{path}: matching {quote(pattern)} takes too long; simplify the pattern")


def _takes_long(pattern: str, names: list[str]) -> bool:
    # The system ends it after so many seconds of processor time: also where the processor is busy with other
    # things, and where this process was killed meanwhile. Windows can only wait.
    wait = _TRIAL_SECONDS if sys.platform == "win32" else None
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _MATCHER],
            input=json.dumps([pattern, names, _TRIAL_SECONDS]), text=True, timeout=wait, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True
    return done.returncode < 0
