"""Settings: frozen dataclasses whose fields are the one declaration of what a user can choose."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar

from .records import to_record


class Settings:
    """Base class of the settings that determine a study's numbers.

    Attributes:
        recorded_always: the fields of the first version, which every record names. A later field is left out
            of records and identities at its default, so that adding one changes no hash and no older folder.
    """

    recorded_always: ClassVar[frozenset[str]] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """The settings as plain JSON: part of an identity, and of what a study records."""
        later = {f.name: f.default for f in fields(self) if f.name not in self.recorded_always}  # type: ignore[arg-type]
        record = to_record(self)
        return {k: v for k, v in record.items() if k not in later or later[k] != getattr(self, k)}
