"""Labelled rows from the Hugging Face Hub, through the optional `datasets` library."""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType

import numpy as np

from adapter_probe.data.rows import Rows
from adapter_probe.errors import DataError, install_extra, one_line
from adapter_probe.reads import report_unknown

_ENTRY = re.compile(
    r"hub:(?P<dataset>[^:@]+)(:(?P<config>[^:@]+))?:(?P<split>[^:@]+)(@(?P<revision>[^:@]+))?"
)
_COMMIT = re.compile("[0-9a-f]{40}")
_TIMEOUT = 10.0  # seconds


@dataclass(frozen=True)
class HubSplit:
    """One split of a dataset on the Hugging Face Hub.

    It is written, in a task's files, as ``hub:<dataset>[:<config>]:<split>[@<revision>]``, for example
    ``hub:nyu-mll/glue:cola:validation@bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c``.

    Attributes:
        dataset: id of the dataset on the hub.
        config: configuration of the dataset, if it has several.
        split: the hub's name of the split.
        revision: commit, which fixes the rows; None for the newest.
    """

    dataset: str
    config: str | None
    split: str
    revision: str | None = None

    def __str__(self) -> str:
        parts = (self.dataset, self.config, self.split)
        at = f"@{self.revision}" if self.revision else ""
        return f"hub:{':'.join(part for part in parts if part is not None)}{at}"

    @classmethod
    def parse(cls, entry: str) -> HubSplit | None:
        """Read back what `str` wrote; None for anything else, such as a path."""
        match = _ENTRY.fullmatch(entry)
        return None if match is None else cls(**match.groupdict())


def newest_commit(dataset: str) -> str | None:
    """The current commit of a dataset; None if the hub is unreachable or does not know the name."""
    _library(dataset)
    return _ask_hub(dataset)[0]


def read_hub(source: HubSplit) -> Rows:
    """Download a split, or read the copy in the cache of `datasets`; labels are names of classes.

    There are no retries: without a network, or with HF_HUB_OFFLINE set, the cached copy is read at once.
    """
    datasets = _library(str(source))
    if not _COMMIT.fullmatch(source.revision or ""):
        report_unknown()
    _, silence = _ask_hub(source.dataset)
    try:
        with _offline(datasets) if silence else contextlib.nullcontext():
            table = datasets.load_dataset(
                source.dataset, source.config, split=source.split, revision=source.revision
            )
    except Exception as error:  # of datasets, pyarrow, the hub's library, or the file system
        reason = (
            f"{silence}, and no copy of it is cached on this machine; give a folder with its files"
            if silence
            else one_line(error)
        )
        raise DataError(f"{source}: cannot be read from the Hugging Face Hub: {reason}") from error
    columns = {name: _values(table, name) for name in table.column_names}
    records = [dict(zip(columns, values)) for values in zip(*columns.values())]
    return Rows.numbered(str(source), "row", records)


def _library(wanted: str) -> ModuleType:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise DataError(
            f"{wanted}: reading from the Hugging Face Hub needs the datasets library; "
            f"{install_extra('hub')}, or give a folder with the task's files"
        ) from error


@lru_cache
def _ask_hub(dataset: str) -> tuple[str | None, str]:
    """The newest commit, or the reason why it is unknown. The hub is asked once; `datasets` would retry.

    The reason is empty if the hub answers but has no such dataset; the error of `datasets` is complete then.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        return HfApi().dataset_info(dataset, timeout=_TIMEOUT).sha, ""
    except OfflineModeIsEnabled:
        return None, "HF_HUB_OFFLINE is set"
    except RepositoryNotFoundError:
        return None, ""
    except Exception as error:  # the HTTP library's own classes, which differ between versions
        return None, f"it cannot be reached ({one_line(error)})"


@contextlib.contextmanager
def _offline(datasets: ModuleType) -> Iterator[None]:
    """Make `datasets` use its cache at once; by default it would try the hub for 20 seconds."""
    logger = logging.getLogger("datasets")  # it warns for every split that the cache is used
    before, level = datasets.config.HF_HUB_OFFLINE, logger.level
    datasets.config.HF_HUB_OFFLINE = True
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before
        logger.setLevel(level)


def _values(table: object, name: str) -> list[object]:
    """One column, class numbers replaced by the classes' names (hidden labels are -1 and stay)."""
    feature, values = table.features[name], list(table[name][:])
    names = getattr(feature, "names", None)
    if names is None:
        # As written in the original files: 3.8, not the nearest float32, 3.799999952316284.
        is_short = getattr(feature, "dtype", None) == "float32"
        return [float(str(np.float32(value))) for value in values] if is_short else values
    return [names[value] if value is not None and 0 <= value < len(names) else value for value in values]
