"""Where a pretrained base model is, a folder or the Hugging Face Hub, and its configuration."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig
from transformers import __version__ as transformers_version
from transformers import logging as transformers_logging

from adapter_probe.errors import AdapterProbeError, CheckpointError, ModelError, one_line, reason_of
from adapter_probe.reads import report, report_base, report_unknown
from adapter_probe.results.fingerprints import describe_changes

from .adapter_folder import ask_hub
from .files import COMMIT, base_files, cached_base, folder_of_base, quote, read_json_file, refuse_unreadable
from .identity import config_settings, forward_settings
from .places import places_in
from .quantised import twin_of

_MOST_LABELS = 1_000_000  # transformers makes a name for each
_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "dim", "n_layers", "n_heads", "n_embd", "n_layer", "n_head",
)  # fmt: skip


@contextlib.contextmanager
def naming_base(what: str, name: str) -> Iterator[None]:
    """Turn any failure of loading into one line that names the base, and suppress whatever else is printed.

    Used only around calls of other libraries, which may raise anything on files with wrong contents. Missing
    weights, which transformers would report, are handled here.
    """
    try:
        with silent_transformers():
            yield
    except AdapterProbeError:
        raise
    except Exception as error:
        said = one_line(error)
        raise CheckpointError(f"base {name}: its {what} cannot be loaded: {said}") from error


@contextlib.contextmanager
def silent_transformers() -> Iterator[None]:
    """Suppress bars, warnings and messages, such as a whole configuration that does not suit."""
    verbosity, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    if verbosity != logging.CRITICAL:  # setting it makes all loggers forget their levels, which takes long
        transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        if verbosity != logging.CRITICAL:
            transformers_logging.set_verbosity(verbosity)
        if bars:
            transformers_logging.enable_progress_bar()


def resolve_base(name: str, revision: str | None = None) -> tuple[str, str | None]:
    """Location of a base: (absolute path, None) for an existing folder, else (hub id, commit).

    The hub is asked once for the commit; without a network, the local cache is used.

    Raises:
        CheckpointError: no such folder, and neither the hub nor the cache knows the name.
    """
    if not name.strip():
        raise CheckpointError(f"base {name!r} is empty; give a folder or a hub id, or omit --base")
    with contextlib.suppress(OSError, RuntimeError, ValueError):  # an invalid name is refused below
        report_base(name, revision)
        if (known := folder_of_base(name, revision)) is None:
            report_unknown()
        else:
            report("base", lambda: base_files(known))
    try:
        folder = Path(name).expanduser()
        if folder.is_dir():
            return str(folder.resolve()), None
        is_file = folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # too long, no such user, a null character
        raise CheckpointError(f"base {quote(name)} is not a valid folder name: {reason_of(error)}") from error
    if is_file:
        raise CheckpointError(f"base {name} is a file; a folder with config.json and weights is needed")
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise CheckpointError(f"base {name}: no such folder")
    cached = cached_base(name, revision)
    commit = cached.name if cached else None
    if not (commit and revision and COMMIT.fullmatch(revision)):
        commit = ask_hub(name, revision) or commit
    if commit is None:
        raise CheckpointError(
            f"base {name!r} is not a folder on this machine, and the Hugging Face Hub could not provide it "
            "(no network and no cached copy, or no such name, or no access); give a folder"
        )
    return name, commit


def place_of_base(folder: Path, recorded: Any, revision: Any, given: str | None) -> tuple[str, str | None]:
    """Place and revision of the base of another library's checkpoint; see `resolve_base`.

    Args:
        recorded: name of the base in the checkpoint, if any; not yet known to be a string.
        revision: its revision, if recorded; the same.
        given: the folder or hub id that the user gave instead.

    Raises:
        CheckpointError: no base is named, or it cannot be found.
    """
    if given is not None:
        return resolve_base(given)
    if not recorded:
        raise CheckpointError(f"checkpoint {folder} does not name its base; give it with --base")
    for what, value in (("base", recorded), ("base's revision", revision)):
        if not isinstance(value, str | None):
            raise CheckpointError(
                f"checkpoint {folder}: the {what} that its configuration names is {quote(value)}, expected a "
                "string; give the base with --base"
            )
    try:
        return resolve_base(recorded, revision)
    except CheckpointError as error:
        twin = twin_of(recorded)
        unquantised = f"; --base {twin} is its unquantised twin, which is another model" if twin else ""
        raise CheckpointError(
            f"checkpoint {folder} was trained on {quote(recorded)}, which is not a folder on this machine "
            f"and not available from the Hugging Face Hub; give the base with --base{unquantised}"
        ) from error


@dataclass(frozen=True)
class AnyBase:
    """A base that was found and whose configuration transformers knows; its weights have not been read.

    Attributes:
        name: absolute folder or hub id.
        revision: commit on the hub, or None for a folder.
        fields: contents of its config.json.
        config: its configuration, with defaults filled in.
    """

    name: str
    revision: str | None
    fields: dict[str, Any]
    config: PretrainedConfig


def layers_of(name: str) -> tuple[str, ...]:
    """A name for every layer of a base, the same for layers that share their weights."""
    found = find_any_base(name)
    with contextlib.suppress(ModelError):  # a family whose layers are not known by name
        return places_in(found.config).layer_names(found.config)
    return tuple(map(str, range(int(getattr(found.config.get_text_config(), "num_hidden_layers", 0)))))


def find_any_base(name: str, revision: str | None = None) -> AnyBase:
    """Find a base of any kind that transformers has a class for, quantised or not.

    Raises:
        CheckpointError: no such base, files that git-LFS never downloaded, a damaged configuration, or one
            that needs code from elsewhere, which is never run.
    """
    name, revision, fields = read_fields(name, revision)
    family = fields.get("model_type")
    if family not in CONFIG_MAPPING:
        code = fields.get("auto_map")
        why = (
            "needs Python code from its own repository (auto_map), which is never run; from Python, load the "
            "model yourself, with PEFT, and give it to adapter_probe.ablate in place of the checkpoint"
            if code
            else f"is not a model that transformers {transformers_version} knows"
        )
        raise CheckpointError(f"base {name}: model_type {quote(family)} in its config.json {why}")
    with naming_base("configuration", name):
        config = AutoConfig.from_pretrained(name, revision=revision, trust_remote_code=False)
    return AnyBase(name, revision, fields, config)


def read_fields(name: str, revision: str | None = None) -> tuple[str, str | None, dict[str, Any]]:
    """Place and revision of a base, see `resolve_base`, and the fields of its config.json.

    Raises:
        CheckpointError: no such base, files that git-LFS never downloaded, or a damaged configuration.
    """
    name, revision = resolve_base(name, revision)
    if (folder := Path(name)).is_dir():
        if not (folder / "config.json").is_file():
            raise CheckpointError(f"base {name} has no config.json; a transformers model folder is needed")
        refuse_unreadable(folder)
    with naming_base("configuration", name):
        fields = (
            read_json_file(folder / "config.json")
            if folder.is_dir()
            else PretrainedConfig.get_config_dict(name, revision=revision)[0]
        )
        _refuse_config(name, fields)
    return name, revision, fields


def _refuse_config(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse configurations that transformers would fail on or change silently."""
    try:
        json.dumps(fields, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"base {name}: its config.json contains NaN or infinite values") from error
    for size in _SIZES:
        value = fields.get(size, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise CheckpointError(
                f"base {name}: {size} in its config.json is {quote(value)}, expected a whole number of at "
                "least 1"
            )
    if isinstance(labels := fields.get("num_labels"), (int, float)) and labels > _MOST_LABELS:
        raise CheckpointError(
            f"base {name}: num_labels in its config.json is {quote(labels)}, expected at most "
            f"{_MOST_LABELS:,}"
        )
    for key in ("dtype", "torch_dtype"):
        value = fields.get(key)
        dtype = getattr(torch, value.removeprefix("torch."), None) if isinstance(value, str) else None
        if value not in (None, "auto") and not isinstance(dtype, torch.dtype):
            raise CheckpointError(
                f"base {name}: {key} in its config.json is {quote(value)}, expected a torch dtype"
            )


def config_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Differences between the `config_settings` of two bases, with defaults filled in and without dropout.

    Returns:
        one ``name: old -> new`` per setting.
    """
    family = new["model_type"]
    if old.get("model_type") != family:
        return [f"model_type: {old.get('model_type')} -> {family}"]
    try:
        with silent_transformers():
            configs = [CONFIG_MAPPING[family].from_dict(dict(settings)) for settings in (old, new)]
    except Exception:  # one of them is invalid, for which a configuration may raise anything
        return describe_changes(old, new)
    return describe_changes(*(forward_settings(config_settings(config.to_dict())) for config in configs))
