"""Summaries of studies as files hold them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from adapter_probe.errors import DataError, ResultsError
from adapter_probe.metrics import metric_label
from adapter_probe.records import RecordError, from_record

Summary = TypeVar("Summary", bound="StoredSummary")


class StoredSummary:
    """A summary of scores by one metric, which ``summary.json`` holds."""

    metric: str

    @classmethod
    def from_dict(cls: type[Summary], found: Mapping[str, Any], path: Path) -> Summary:
        """The summary from what is in a file.

        Raises:
            ResultsError: it, read from `path`, is damaged.
        """
        try:
            summary = from_record(cls, found)
            metric_label(summary.metric)
            return summary
        except (RecordError, DataError, ResultsError) as error:
            raise ResultsError(f"{path} is damaged: {error}") from None
