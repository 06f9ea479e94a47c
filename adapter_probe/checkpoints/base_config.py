"""Where a pretrained base is, a folder or on the Hub, its configuration, and how it is quantised."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoConfig, GenerationConfig, PretrainedConfig
from transformers import __version__ as transformers_version
from transformers import logging as transformers_logging
from transformers.quantizers.auto import AutoHfQuantizer

from adapter_probe.errors import (
    AdapterProbeError,
    CheckpointError,
    ModelError,
    install_extra,
    one_line,
    reason_of,
)
from adapter_probe.reads import report, report_base, report_unknown
from adapter_probe.results.fingerprints import describe_changes, list_changes

from .adapter_folder import ask_hub
from .files import (
    COMMIT,
    CONFIG,
    base_files,
    cached_base,
    folder_of_base,
    quote,
    read_json_file,
    refuse_unreadable,
)
from .identity import BaseIdentity, config_settings, forward_settings
from .places import places_in

_READERS = ("transformers.configuration_utils", "transformers.modeling_rope_utils")
_PLAIN = {"position_embedding_type": "absolute", "pretraining_tp": 1}
"""Settings of older versions, at the value at which today's code computes the same."""
_NEVER_READ = frozenset((
    "sentence_transformers", "adapters", "matryoshka_dimensions", "pad_token", "eos_token", "bos_token",
    "padding_side", "model_name", "label_smoothing",
    "n_ctx", "n_positions", "n_special", "predict_special_tokens", "tie_weights_", "down_scale_factor",
    "normalize_embedding", "extra_pos_embeddings", "directionality", "pooler_fc_size", "pooler_type",
    "pooler_num_attention_heads", "pooler_num_fc_layers", "pooler_size_per_head", "masked_softmax_fusion",
    "attention_softmax_in_fp32", "seq_length", "n_embed", "is_llama_config", "cls_token_id", "sep_token_id",
    "mask_token_id", "unk_token_id",
))  # fmt: skip
"""What public configurations have and no version made use of."""
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
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with (
            warnings.catch_warnings(),
            _logging_only("transformers", logging.CRITICAL),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        if bars:
            transformers_logging.enable_progress_bar()


@contextlib.contextmanager
def _logging_only(library: str, level: int) -> Iterator[None]:
    """Suppress what a library logs below a level, by its handlers: setting its level is slow."""
    logger, handler = logging.getLogger(library), logging.StreamHandler()
    handlers, propagates = logger.handlers, logger.propagate
    handler.setLevel(level)
    logger.handlers, logger.propagate = [handler], False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagates


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
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            folder.lstat()  # from Python 3.14 on, `is_dir` does not say what is wrong with a name
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
        twin = _OF_UNSLOTH.sub("", recorded)
        said = f"; --base {twin} is its unquantised twin, which is another model" * (twin != recorded)
        raise CheckpointError(
            f"checkpoint {folder} was trained on {quote(recorded)}, which is not a folder on this machine "
            f"and not available from the Hugging Face Hub; give the base with --base{said}"
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
    """Place and revision of a base, see `resolve_base`, and the fields of its config.json."""
    name, revision = resolve_base(name, revision)
    if (folder := Path(name)).is_dir():
        if not (folder / "config.json").is_file():
            _refuse_adapter(folder)
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


def _refuse_adapter(folder: Path) -> None:
    """Refuse an adapter in place of a base."""
    if (folder / CONFIG).is_file():
        below = read_json_file(folder / CONFIG).get("base_model_name_or_path")
        raise CheckpointError(
            f"base {folder} is itself an adapter, of base {below}, and no whole model; merge the two by "
            "PEFT's merge_and_unload(), save the model with its tokenizer, and give that folder with --base"
        )


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


def note_on_config(path: Path, base: BaseIdentity, whole: bool) -> list[str]:
    """What to say of a checkpoint's own configuration of a model, where the base's is another.

    A setting of the training that no weight shows, such as another scale of the positions, is there alone.

    Args:
        whole: whether the checkpoint is a whole model, whose configuration runs.
    """
    try:
        changes = config_changes(base.config, config_settings(read_json_file(path)))
    except (AdapterProbeError, ValueError, KeyError):  # no configuration of a model
        return []
    if not changes:
        return []
    used = "The base's configuration is used, and not the checkpoint's config.json, which differs from it in"
    if whole:
        used = "The checkpoint's config.json is used for every variant; from the base's it differs in"
    return [f"{used}: {list_changes(changes)}."]


def note_on_unread(settings: Mapping[str, Any], model: Any) -> list[str]:
    """What to say of settings in a base's config.json that transformers' code for its type never reads.

    Such as those of an older version, which then computed something else.

    Args:
        settings: the base's `config_settings`.
        model: an object of the class that runs it.
    """
    if settings.get("model_type") != model.config.model_type:  # the class of a part runs alone
        settings = config_settings(settings.get("text_config") or {})
    parts = [name for name in model.config.sub_configs if isinstance(settings.get(name), dict)]
    readers = {type(one).__module__ for one in (*model.modules(), *(getattr(model.config, n) for n in parts))}
    readers |= {type(model.config).__module__, *_READERS}
    code = "".join(inspect.getsource(sys.modules[name]) for name in readers if "transformers." in name)
    read, unread = {*re.findall(r"\w+", code), *GenerationConfig().to_dict(), *_NEVER_READ}, []
    for part in ("", *parts):
        fields = forward_settings(config_settings(settings[part]) if part else settings)
        for name, value in sorted(fields.items()):
            if value and name not in read and name[0] != "_" and _PLAIN.get(name) != value:
                unread.append(f"{part}{'.' * bool(part)}{name}: {json.dumps(value)}")
    if not unread:
        return []
    return [
        f"Transformers {transformers_version} does not read {list_changes(unread)} of the model's "
        "config.json; where the training's version did, this is another model."
    ]


# The module that runs each method, and the package that has it, as transformers 5.23 asks for them.
_PACKAGES = {
    "bitsandbytes": ("bitsandbytes", "bitsandbytes"),
    "torchao": ("torchao", "torchao"),
    "gptq": ("gptqmodel", "gptqmodel"),
    "awq": ("gptqmodel", "gptqmodel"),
    "hqq": ("hqq", "hqq"),
    "quanto": ("optimum.quanto", "optimum-quanto"),
    "compressed-tensors": ("compressed_tensors", "compressed-tensors"),
    "auto-round": ("auto_round", "auto-round"),
    "aqlm": ("aqlm", "aqlm"),
    "vptq": ("vptq", "vptq"),
    "eetq": ("kernels", "kernels"),
}
_IN_EXTRA = ("bitsandbytes", "torchao")
_OUTLIERS = 6.0  # the threshold of LLM.int8() where a configuration gives none
_OF_UNSLOTH = re.compile(r"(?:-unsloth)?-bnb-4bit$", re.IGNORECASE)  # beside the model in full


def method_of(fields: Mapping[str, Any]) -> str | None:
    """The quantisation method in the fields of a base's config.json; None for an unquantised base."""
    config = fields.get("quantization_config")
    if not config:
        return None
    if not isinstance(config, Mapping):
        return "?"
    if config.get("load_in_4bit") or config.get("load_in_8bit"):  # transformers before 4.36 named no method
        return "bitsandbytes"
    named = config.get("quant_method")
    return str(named) if isinstance(named, str) else "?"


def refuse_quantisation(name: str, fields: Mapping[str, Any], runs: bool) -> None:
    """Refuse a quantised base whose method transformers does not know: it would be read as if in full.

    Args:
        runs: whether it is run, so that the method's package must be installed.
    """
    if (method := method_of(fields)) is None:
        return
    config, unquantised = fields["quantization_config"], "give the unquantised model with --base"
    if not isinstance(config, Mapping):
        raise CheckpointError(
            f"base {name}: quantization_config in its config.json is {quote(config)}, expected an object"
        )
    module, package = _PACKAGES.get(method, ("", ""))
    with silent_transformers():
        known = method != "?" and AutoHfQuantizer.supports_quant_method(dict(config))
    if not known and (not module or _installed(module)):
        raise CheckpointError(
            f"base {name}: quant_method in its config.json (quantization_config) is "
            f"{quote(config.get('quant_method'))}, which transformers {transformers_version} does not know; "
            f"{unquantised}, which is another model"
        )
    for needed, of in ((module, package), ("accelerate", "accelerate")) if runs else ():
        if needed and not _installed(needed):
            how = install_extra("quantised") if method in _IN_EXTRA else f"install {of}"
            raise CheckpointError(
                f"base {name} is quantised with {method}, which needs the package {of}; {how}, or "
                f"{unquantised}, which is another model"
            )


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # of a module inside a package that is missing or blocked
        return False


def mixes_examples(fields: Mapping[str, Any]) -> bool:
    """Whether a text's outputs depend on the other texts of its batch.

    With LLM.int8(), a column of the activations is computed in half precision where any text of the batch has
    an outlier, see Dettmers et al. 2022 (arXiv 2208.07339), section 3.2.
    """
    config = fields.get("quantization_config")
    if method_of(fields) != "bitsandbytes" or not isinstance(config, Mapping):
        return False
    return bool(config.get("load_in_8bit")) and float(config.get("llm_int8_threshold", _OUTLIERS)) > 0


@contextlib.contextmanager
def quiet_quantisers() -> Iterator[None]:
    """Import libraries that look for faster code on a network, without that and without their warning.

    bitsandbytes 0.50 asks the package `kernels` at import for a product on the Hugging Face Hub.
    """
    absent = "kernels" not in sys.modules
    if absent:
        sys.modules["kernels"] = None  # type: ignore[assignment]  # an import of it fails
    try:
        with _logging_only("bitsandbytes", logging.ERROR):
            yield
    finally:
        if absent:
            sys.modules.pop("kernels", None)
