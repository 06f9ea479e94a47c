"""The settings of a race, which decides about spans without all examples; without NumPy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

from .errors import AdapterProbeError, ResultsError, must_be
from .settings import Settings, flag_of, setting

SPANS, LONGEST, LEAST = "spans", "longest", "least"
"""Goals: a verdict on every span; the longest span within the tolerance; the layers that cost least."""
GOAL = (
    "spans (is the drop of each span within the tolerance?), longest (which is the longest such span?) or "
    "least:K (which K layers cost least, up to the tolerance? with --spans single)."
)
_GOAL = re.compile(rf"{SPANS}|{LONGEST}|{LEAST}:([1-9]\d{{0,3}})")


@dataclass(frozen=True, kw_only=True)
class RaceOptions(Settings):
    """With which certainty a race decides."""

    panel = "Race"
    error: ClassVar[type[AdapterProbeError]] = ResultsError

    risk: float = setting(
        0.05, "probability that any verdict of the race is wrong, over the random order of the examples.",
        metavar="P", slug="risk{:g}",
    )  # fmt: skip
    race_seed: int = setting(
        0, "seed of the random order in which a race reads the examples.", least=0, slug="seed{}"
    )
    assume_monotone: bool = setting(
        False, "try a span only if all studied spans inside it are within the tolerance, which assumes that "
        "no span costs less than its parts.", slug="monotone",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.risk < 0.5:
            raise ResultsError(must_be("--risk", "a probability above 0 and below 0.5", self.risk))


@dataclass(frozen=True, kw_only=True)
class RaceSettings(RaceOptions):
    """What a race decides, and with which certainty."""

    goal: str = setting(
        "", f"decide without all examples for all spans: {GOAL}",
        metavar="GOAL", flags=("--race",), slug="{}",
    )  # fmt: skip
    within: float = setting(
        1.0, "the tolerated drop of a race, in percentage points.", metavar="POINTS", slug="within{:g}"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.goal and not _GOAL.fullmatch(self.goal):
            raise ResultsError(
                must_be("--race", f"{SPANS}, {LONGEST} or {LEAST}:K, such as least:4", self.goal)
            )
        if not 0 < self.within <= 100:
            raise ResultsError(
                f"{must_be('--within', 'above 0 and at most 100 points in a race', self.within)}: a drop of "
                "exactly 0 can only be told by all examples"
            )
        if self.assume_monotone and self.n_least:
            raise ResultsError(f"--assume-monotone is about spans inside others; --race {self.goal} has none")
        if not self.goal and (given := self.slugs()):
            raise ResultsError(f"{flag_of(next(iter(given)))} applies only to a race; add --race")

    @property
    def n_least(self) -> int:
        """How many layers are asked for that cost least; 0 for another goal."""
        found = _GOAL.fullmatch(self.goal)
        return int(found[1] or 0) if found else 0

    def to_json(self) -> dict[str, Any]:
        """All settings, part of a race's identity."""
        return {"schema": 1, **vars(self)}
