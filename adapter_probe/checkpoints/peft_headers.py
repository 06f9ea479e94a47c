"""The contents of a checkpoint of PEFT, from JSON and tensor headers, without torch.

Only names and shapes are read. Whether the tensors fit the configuration is known when PEFT loads them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from adapter_probe.data.spec import Columns, TaskSpec
from adapter_probe.errors import CheckpointError
from adapter_probe.metrics import Kind, default_metric
from adapter_probe.models.adapters.imported import ImportedMethod, InnerKind, InnerSpec
from adapter_probe.models.methods import ParameterRole

from .adapter_folder import WEIGHTS as WEIGHTS
from .adapter_folder import note_on_others, plain_name, refuse_changed_base, weights_in
from .description import Description, read_description
from .files import (
    CONFIG,
    DESCRIPTION,
    read_json_file,
    read_tensors,
    refuse_irregular,
    refuse_unreadable,
)
from .headers import Contents, stored_in, weights_of
from .hub import name_of_checkpoint
from .identity import BaseIdentity, config_settings
from .kinds import HEADS, class_of_own_code, head_of_class, note_on_code
from .peft_fields import refuse_unswitched
from .peft_fits import fits_tensors
from .quantised import method_of

LIBRARY = "peft"
HEAD_MODULES = ("classifier", "score", "qa_outputs", "classification_head", "logits_proj")
_LAYER = re.compile(r"(.*?(?:^|\.)\d+)\.([^.]+(?:\.\d+)?)(?:\.|$)")
_STATES = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", ".SCB", ".weight_format")
_MOST_NAMED = 5
_NORM = re.compile(r"norm|ln_|layer_?norm", re.IGNORECASE)
_WIDTHS = ("hidden_size", "d_model", "n_embd", "dim")
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class _Adapter:
    """An adapter's tensors, by what they are.

    Attributes:
        modules: the modules with tuners, with the shapes of their parts.
        whole: trained tensors of the base, by their names in it.
    """

    modules: dict[str, Shapes]
    whole: Shapes


def read_peft_contents(folder: Path, base: str | None = None, opened: bool = False) -> Contents | None:
    """The contents of a checkpoint of PEFT, or None if files alone cannot tell.

    Args:
        folder: the checkpoint.
        base: folder or hub id to use instead of the recorded base.
        opened: whether PEFT has loaded it, so that what is unexpected here is no error.

    Raises:
        CheckpointError: the configuration is damaged, or of a type without a switch in the layers.
    """
    path = folder / CONFIG
    if not path.is_file():
        return None
    document = read_json_file(path)
    if "peft_type" not in document:
        return None
    refuse_unswitched(folder, document)
    name, revision = base or document.get("base_model_name_or_path"), document.get("revision")
    if not isinstance(name, str) or not isinstance(revision, str | None):
        return None
    try:
        place = _place(name, None if base else revision)
        if place is None:
            return None
        refuse_unreadable(place)
        refuse_changed_base(folder, document, place)
        fields = read_json_file(place / "config.json")
        stored = _counted(place, fields)
        shapes = _tensors(folder)
        plain = {plain_name(name).removeprefix("base_model.model."): one for name, one in shapes.items()}
        adapter = _sorted_out(plain, stored, document.get("modules_to_save") or ())
        inside = {name.rpartition(".")[0] for name in stored if _LAYER.match(name)}
        if not opened and not (
            all(name == plain_name(name) for name in shapes)
            and _is_plain(document, fields, stored, adapter)
            and fits_tensors(document, adapter.modules, inside)
        ):
            return None
    except CheckpointError:
        raise
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None  # opening the checkpoint will report what is wrong
    identity = BaseIdentity(str(place), None, "", 0, _width(fields), 0, config_settings(fields))
    head = HEADS.get(document.get("task_type") or "") or _head(document, fields, adapter.whole)
    kinds: dict[str | None, Kind] = {"causal": "causal", "seq2seq": "causal", "extractive": "extractive"}
    kinds |= {"tokens": "tokens", "features": "embedding"}
    kind, columns = kinds.get(head, "classification"), Columns("", None, "")
    task = TaskSpec(name_of_checkpoint(folder), kind, default_metric(kind), (), columns, {}, {})
    inner = tuple(_spec(name, parts, document) for name, parts in sorted(adapter.modules.items()))
    said = Description(ImportedMethod(LIBRARY, (_kind(document),), inner=inner), identity, task, 1, "")
    if (folder / DESCRIPTION).is_file():  # of a training by this project
        record = read_description(folder)
        changed = record.delta_sha256 != hash_files((path, weights_in(folder)))
        if not opened and (changed or record.base.config != identity.config):
            return None
        said = replace(said, task=record.task, scores=record.scores)
    bias = document.get("bias") or "none"
    layers, sites = _places(adapter.modules, stored)
    return Contents(
        said,
        str(fields.get("model_type")),
        len(layers),
        identity.hidden_size,
        sites,
        *_counts(adapter, stored),
        (
            *notes_on([name for name in adapter.modules if not _LAYER.match(f"{name}.")], bias),
            *note_on_code(fields),
            *note_on_others(folder),
        ),
        quantised=method_of(fields) or "",
        stacks=_stacks(layers, fields),
    )


def hash_files(files: Iterable[Path]) -> str:
    """SHA-256 of the names, sizes and bytes of a checkpoint's files."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def notes_on(outside: Sequence[str], bias: str) -> list[str]:
    """What to say of modules with an adapter outside the layers, and of trained biases."""
    notes = []
    if outside:
        more = f" and {len(outside) - _MOST_NAMED} more" if len(outside) > _MOST_NAMED else ""
        names = ", ".join(outside[:_MOST_NAMED])
        notes.append(f"Changes to {names}{more} are outside the layers and always stay on.")
    if bias != "none":
        notes.append("Trained biases of the base always stay on.")
    return notes


def _place(name: str, revision: Any) -> Path | None:
    """The base's folder, its own or that in the hub's cache."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder.resolve()
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent if isinstance(found, str) else None


def _tensors(folder: Path) -> Shapes:
    """The shapes in an adapter's file, by name."""
    file = weights_in(folder)
    if file.suffix == ".safetensors":
        refuse_irregular(file)
        return {name: one.shape for name, one in stored_in(file)}
    return {name: tuple(tensor.shape) for name, tensor in read_tensors(file, as_stored=True).items()}


def _is_plain(
    document: Mapping[str, Any], fields: Mapping[str, Any], base: Mapping[str, int], adapter: _Adapter
) -> bool:
    """Whether all is as usual: a class with the head of the task, and tensors of the base's sizes.

    Anything else, such as a grown vocabulary, is told apart from what does not fit by opening the checkpoint.
    """
    head, own = HEADS.get(document.get("task_type") or ""), _own_head(fields)
    if class_of_own_code(document) or (head in ("causal", "seq2seq") and own not in (None, head)):
        return False
    if head is None and own is None and adapter.modules.keys() <= {n.rpartition(".")[0] for n in base}:
        return False  # as in a model without a head
    if document.get("trainable_token_indices") or document.get("bias") not in (None, "none"):
        return False
    whole = {name: shape for name, shape in adapter.whole.items() if not name.startswith(HEAD_MODULES)}
    sizes = {name: math.prod(shape) for name, shape in whole.items()}  # heads may be for other labels
    for name, parts in adapter.modules.items():
        down, up = parts.get("lora_A.weight", ()), parts.get("lora_B.weight", ())
        if len(down) == len(up) == 2:
            sizes[f"{name}.weight"] = down[1] * up[0]
        if "lora_embedding_A" in parts:
            sizes[f"{name}.weight"] = parts["lora_embedding_A"][1] * parts["lora_embedding_B"][0]
    return all(base[name] == size for name, size in sizes.items() if name in base)


def _counted(place: Path, fields: Mapping[str, Any]) -> dict[str, int]:
    """The base's parameters with their numbers of elements, those of packed quantised tensors unpacked."""
    stored = dict(weights_of(place))
    bits = (fields.get("quantization_config") or {}).get("bits")
    counts = {}
    for name, one in stored.items():
        if (
            name.endswith(_STATES)
            or ".quant_state." in name
            or name.endswith((".scales", ".qzeros", ".g_idx"))
        ):
            continue
        size = math.prod(one.shape)
        if any(f"{name}.quant_state.bitsandbytes__{kind}" in stored for kind in ("nf4", "fp4")):
            size *= 2  # two to the byte
        if name.endswith(".qweight") and isinstance(bits, int):
            size = size * 32 // bits
        counts[name] = size
    return counts


def _sorted_out(tensors: Shapes, base: Iterable[str], saved: Iterable[str]) -> _Adapter:
    """Which tensors are parts of tuners in modules of the base, and which are whole tensors of it."""
    names = set(base)
    modules = {name.rpartition(".")[0] for name in names}
    modules |= {".".join(name.split(".")[:end]) for name in names for end in range(1, name.count("."))}
    found: dict[str, Shapes] = {}
    whole: Shapes = {}
    for key, shape in tensors.items():
        plain = key.replace(".base_layer.", ".").replace(".modules_to_save.", ".")
        parts = plain.split(".")
        if plain in names or ".".join(parts[1:]) in names or {*saved, *HEAD_MODULES} & set(parts):
            whole[plain] = shape
            continue
        known = (end for end in range(len(parts) - 1, 0, -1) if _is_module(parts[:end], modules))
        end = next(known, max(1, len(parts) - 2))
        found.setdefault(".".join(parts[:end]), {})[".".join(parts[end:])] = shape
    return _Adapter(found, whole)


def _is_module(parts: list[str], modules: set[str]) -> bool:
    """Whether the base, which may be stored without its head, has a module of this name."""
    return ".".join(parts) in modules or (len(parts) > 1 and ".".join(parts[1:]) in modules)


def _places(modules: Iterable[str], base: Iterable[str]) -> tuple[set[str], int]:
    """The layers in the lists that have adapters, and the number of their children with adapters."""
    matches = [match for name in modules if (match := _LAYER.match(f"{name}."))]
    lists = {match[1].rpartition(".")[0] for match in matches}
    ends = tuple(lists | {name.partition(".")[2] for name in lists})
    layers = {
        match[1] for name in base if (match := _LAYER.match(name)) and match[1].rpartition(".")[0] in ends
    }
    return layers, len({match.groups() for match in matches})


def _stacks(layers: Iterable[str], fields: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of layers by stack, named as in `adapter_probe.replay.stacks`; empty for a single one."""
    parts = [name for name, one in fields.items() if name.endswith("_config") and isinstance(one, dict)]
    counted = Counter(tuple(part for part in name.split(".") if not part.isdecimal()) for name in layers)
    columns = list(zip(*counted))
    own = next((column for column in columns if len(set(column)) > 1), ())
    names = [name.removesuffix("_model").removesuffix("_tower") for name in own]
    if not (fields.get("is_encoder_decoder") or parts) or len(set(names)) < len(counted):
        return {}
    found = dict(zip(names, counted.values()))
    return {name: found[name] for name in sorted(found, key=lambda name: (name == "decoder", name))}


def _counts(
    adapter: _Adapter, base: Mapping[str, int]
) -> tuple[dict[ParameterRole, int], dict[ParameterRole, int], int, int]:
    """Parameters by role, those in the checkpoint, in it without the head, and of the base without a head."""
    counts: dict[ParameterRole, int] = dict.fromkeys(get_args(ParameterRole), 0)
    counts["adapters"] = sum(
        math.prod(shape) for parts in adapter.modules.values() for shape in parts.values()
    )
    heads = {name: math.prod(shape) for name, shape in adapter.whole.items() if name.startswith(HEAD_MODULES)}
    counts["head"] = sum(heads.values())
    trained, pretrained = dict(counts), 0
    for name, size in base.items():
        if name.startswith(HEAD_MODULES):
            counts["head"] += size if name not in heads else 0
            continue
        pretrained += size
        counts[_role(name)] += size
    for name, shape in adapter.whole.items():
        trained[_role(name)] += math.prod(shape) if name not in heads else 0
    return counts, trained, sum(trained.values()) - sum(heads.values()), pretrained


def _role(name: str) -> ParameterRole:
    """The role of a parameter of the base."""
    if _NORM.search(name.rpartition(".")[0].rpartition(".")[2]):
        return "layernorms"
    return "pooler" if "pooler." in name else "base"


def _head(document: Mapping[str, Any], fields: Mapping[str, Any], whole: Iterable[str]) -> str | None:
    mapping = document.get("auto_mapping")
    trained = mapping.get("base_model_class") if isinstance(mapping, dict) else None
    both = bool(fields.get("is_encoder_decoder"))
    heads = any(name.startswith(HEAD_MODULES) for name in whole)
    return head_of_class(trained, both) or ("classification" if heads else _own_head(fields))


def _own_head(fields: Mapping[str, Any]) -> str | None:
    """What the class computes that a base was saved from."""
    made_for, both = fields.get("architectures"), bool(fields.get("is_encoder_decoder"))
    return head_of_class(made_for[0], both) if isinstance(made_for, list) and made_for else None


def _width(fields: Mapping[str, Any]) -> int:
    text = fields.get("text_config")
    places = (fields, text if isinstance(text, Mapping) else {})
    return next((int(of[name]) for of in places for name in _WIDTHS if isinstance(of.get(name), int)), 0)


def _kind(document: Mapping[str, Any]) -> str:
    return "dora" if document.get("use_dora") else str(document["peft_type"]).lower()


def _spec(name: str, parts: Shapes, document: Mapping[str, Any]) -> InnerSpec:
    kind: InnerKind = "tuner"
    if document["peft_type"] == "LORA":
        kind = "decomposed" if document.get("use_dora") else "low_rank"
    down = next((shape for part, shape in parts.items() if part.startswith("lora_A")), None)
    return InnerSpec(name, kind, rank=down[0] if down and len(down) == 2 else 0)
