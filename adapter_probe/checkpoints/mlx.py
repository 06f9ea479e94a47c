"""Adapters of MLX-LM, translated into a folder as PEFT would have written it, which any engine opens.

The format is that of `mlx_lm.tuner` (before March 2025 in `mlx-examples`): `adapters.safetensors` has
``lora_a [inputs, rank]`` and ``lora_b [rank, outputs]`` of every module, and ``m [outputs]`` with DoRA, under
MLX's names of the modules, which are those of transformers but for their beginning. The change is
``scale (x lora_a) lora_b``. `num_layers` in `adapter_config.json` counts from the top.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import CheckpointError
from adapter_probe.results.atomic import write_bytes

from .adapter_folder import PREFIX, name_of_checkpoint, write_adapter
from .files import CONFIG, first_of, number_field, quote, read_json_file, read_tensors, whole_number_field

if TYPE_CHECKING:
    from torch import Tensor

WEIGHTS = "adapters.safetensors"
_PART = re.compile(r"(.+)\.(lora_a|lora_b|m)")
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block)\.(\d+)\.")
_NOT_TEXT = re.compile(r"(?:^|\.)(?:vision|visual|audio|multi_modal|mm_)")
_QUANTISED = re.compile(r"-(?:mlx-)?(?:\d+bit|mxfp\d|nvfp\d|dwq)(?:-|$)", re.IGNORECASE)
_FOLDERS: list[TemporaryDirectory[str]] = []  # removed at exit
_VISION = "was written by MLX-VLM for a model of texts and images, whose adapters are not supported"


def is_mlx(document: Mapping[str, Any]) -> bool:
    """Whether an ``adapter_config.json`` is of MLX-LM, or of MLX-VLM, which is refused later."""
    if "peft_type" in document or "config" in document:
        return False
    return bool({"lora_parameters", "fine_tune_type", "lora_layers"} & set(document)) or _of_vision(document)


def _of_vision(document: Mapping[str, Any]) -> bool:
    return {"rank", "alpha"} <= set(document)


def as_peft(given: Path, base: str | None = None) -> tuple[Path, tuple[str, ...]]:
    """A folder that PEFT loads: the folder itself, or the translation of MLX-LM's files in it.

    Returns:
        the folder, which exists as long as the program runs; and remarks on the translation, if it is one.

    Raises:
        CheckpointError: the files are damaged, of another kind of tuning, or do not fit the base.
    """
    folder = given
    if not (folder / CONFIG).is_file() and len(below := sorted(folder.glob(f"*/{CONFIG}"))) == 1:
        folder = below[0].parent
    if not (folder / CONFIG).is_file() or not is_mlx(read_json_file(folder / CONFIG)):
        return given, ()
    files = (folder / CONFIG, folder / WEIGHTS)
    stamps = tuple((path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.is_file())
    return _translated(folder.resolve(), base, stamps)


@cache
def _translated(folder: Path, base: str | None, stamps: tuple[Any, ...]) -> tuple[Path, tuple[str, ...]]:
    document = read_json_file(folder / CONFIG)
    _refuse(folder, document)
    tensors = read_tensors(folder / WEIGHTS, as_stored=True)
    parts = _parts(folder / WEIGHTS, tensors)
    names, n_layers = _names(folder, document, base, parts)
    rank, scale, notes = _scale(folder / CONFIG, document)
    made = {
        f"{PREFIX}{names[module]}.{name}": tensor
        for module, own in parts.items()
        for name, tensor in _peft_parts(folder / WEIGHTS, module, own, rank, names[module]).items()
    }
    _FOLDERS.append(TemporaryDirectory(prefix="adapter-probe-"))
    place = Path(_FOLDERS[-1].name, name_of_checkpoint(folder))
    write_adapter(place, made, {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "inference_mode": True,
        "base_model_name_or_path": document.get("model") or base, "r": rank, "lora_alpha": scale * rank,
        "use_dora": any("m" in own for own in parts.values()), "target_modules": sorted(names.values()),
    })  # fmt: skip
    for extra in folder.iterdir():  # a tokenizer or a chat template that was saved with it
        if extra.is_file() and extra.suffix in (".json", ".jinja", ".model", ".txt") and extra.name != CONFIG:
            write_bytes(place / extra.name, extra.read_bytes())
    layers = sorted({number for module in parts if (number := _layer_of(module)) is not None})
    notes += _count_of_layers(folder / CONFIG, document, layers, n_layers)
    said = f"Translated from MLX-LM's format: rank {rank}, scale {scale:g}, in layers {_ranges(layers)}."
    return place, (said, *notes)


@contextmanager
def naming(translated: Path, given: Path) -> Iterator[None]:
    """Name the given folder in errors, and not that of its translation."""
    try:
        yield
    except CheckpointError as error:
        raise type(error)(str(error).replace(str(translated), str(given))) from error


def _refuse(folder: Path, document: Mapping[str, Any]) -> None:
    path = folder / CONFIG
    if "lora_parameters" not in document and _of_vision(document):
        raise CheckpointError(f"checkpoint {folder} {_VISION}")
    kind = document.get("fine_tune_type", "lora")
    if kind == "full":
        raise CheckpointError(
            f"checkpoint {folder} is a full fine-tuning by MLX-LM (fine_tune_type 'full'), without adapters"
        )
    if kind not in ("lora", "dora"):
        raise CheckpointError(f"{path}: fine_tune_type is {quote(kind)}, expected one of lora, dora")
    if not isinstance(document.get("lora_parameters"), Mapping):
        raise CheckpointError(
            f"{path}: lora_parameters is {quote(document.get('lora_parameters'))}, expected an object with "
            "rank and scale"
        )
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(f"checkpoint {folder} contains no weights: no {WEIGHTS}")


def _parts(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if _NOT_TEXT.search(name) or name.endswith((".A", ".B")):
            raise CheckpointError(f"checkpoint {path.parent} {_VISION} ({name})")
        match = _PART.fullmatch(name)
        if match is None:
            raise CheckpointError(
                f"{path} contains {quote(name)}, expected lora_a, lora_b and m of modules only"
            )
        if tensor.dim() != (1 if match[2] == "m" else 2):
            what = (
                "of experts, which PEFT has no LoRA for" if tensor.dim() == 3 else "which no version writes"
            )
            raise CheckpointError(f"{path}: {name} has shape {list(tensor.shape)}, {what}")
        found.setdefault(match[1], {})[match[2]] = tensor
    dora = any("m" in own for own in found.values())
    wanted = {"lora_a", "lora_b", "m"} if dora else {"lora_a", "lora_b"}
    for module, own in found.items():
        if lacking := sorted(wanted - own.keys()):
            raise CheckpointError(f"{path} lacks {module}.{lacking[0]}")
    if not found:
        raise CheckpointError(f"{path} contains no tensors")
    return found


def _peft_parts(
    path: Path, module: str, own: Mapping[str, Tensor], rank: int, name: str
) -> dict[str, Tensor]:
    """A module's tensors by PEFT's names: A ``[rank, inputs]``, B ``[outputs, rank]``."""
    a, b = own["lora_a"], own["lora_b"]
    if a.shape[1] != rank or b.shape[0] != rank:
        raise CheckpointError(
            f"{path}: {module} has lora_a {list(own['lora_a'].shape)} and lora_b "
            f"{list(own['lora_b'].shape)}, but {CONFIG} has rank {rank}"
        )
    if re.search(r"(?:embed_tokens|wte|embedding)$", name):
        if "m" in own:
            raise CheckpointError(
                f"{path}: {module} is an embedding with DoRA, which PEFT computes otherwise"
            )
        return {"lora_embedding_A": a.T, "lora_embedding_B": b.T}
    magnitude = {"lora_magnitude_vector": own["m"]} if "m" in own else {}
    return {"lora_A.weight": a.T, "lora_B.weight": b.T, **magnitude}


def _scale(path: Path, document: Mapping[str, Any]) -> tuple[int, float, tuple[str, ...]]:
    """Rank, factor of the change, and a remark where versions of MLX-LM disagree on it.

    Until 2 June 2024 the factor was ``scale alpha / rank``; since then `alpha`, which the configurations had
    until March 2025, has no effect. `use_dora` came on 16 May 2024, and `num_layers` was `lora_layers` until
    30 September 2024.
    """
    given = document["lora_parameters"]
    rank = whole_number_field(path, "lora_parameters.rank", given.get("rank"), 1)
    scale = number_field(path, "lora_parameters.scale", given.get("scale"))
    if (
        given.get("alpha") is None
        or not {"lora_layers", "use_dora"} & set(document)
        or "num_layers" in document
    ):
        return rank, scale, ()
    older = scale * number_field(path, "lora_parameters.alpha", given["alpha"]) / rank
    if "use_dora" not in document and "fine_tune_type" not in document:
        return rank, older, ()
    if older == scale:
        return rank, scale, ()
    return rank, scale, (
        f"The configuration has an alpha and is of 2024: a version of MLX-LM before June 2024 would scale by "
        f"{older:g}; later ones, as here, by {scale:g}.",
    )  # fmt: skip


def _layer_of(module: str) -> int | None:
    """The layer that a module is in; None for one outside the layers."""
    found = _LAYER.search(f"{module}.")
    return None if found is None else int(found[1])


def _names(
    folder: Path, document: Mapping[str, Any], base: str | None, modules: Iterable[str]
) -> tuple[dict[str, str], int]:
    """The names in transformers of MLX's modules, and the base's number of layers."""
    from .base_config import find_any_base, place_of_base
    from .model_class import choose_class, modules_of

    recorded = document.get("model")
    if base is None and isinstance(recorded, str) and _QUANTISED.search(recorded):
        raise CheckpointError(_quantised(folder, recorded))
    found = find_any_base(*place_of_base(folder, recorded, None, base))
    if "quantization" in found.fields:
        raise CheckpointError(_quantised(folder, found.name))
    names: dict[str, str] = {}
    cls = choose_class(found.name, found.config, "causal", modules)
    there = [name for name in modules_of(cls, found.config) if not _NOT_TEXT.search(name)]
    endings = Counter(ending for name in there for ending in _endings(name))
    whole = {ending: name for name in there for ending in _endings(name) if endings[ending] == 1}
    for module in modules:
        name = next((whole[ending] for ending in _endings(module) if ending in whole), None)
        if name is None or _layer_of(name) != _layer_of(module):
            raise CheckpointError(
                f"{folder / WEIGHTS} has an adapter of {module}, which base {found.name} does not have"
            )
        names[module] = name
    if twice := [name for name, n in Counter(names.values()).items() if n > 1]:
        raise CheckpointError(f"{folder / WEIGHTS} has several adapters of {first_of(twice)}")
    return names, int(getattr(found.config.get_text_config(), "num_hidden_layers", 0) or 0)


def _endings(name: str) -> list[str]:
    """A module's name and its endings after a dot, the longest first."""
    return [name, *(name[dot.end() :] for dot in re.finditer(r"\.", name))]


def _quantised(folder: Path, name: str) -> str:
    return (
        f"checkpoint {folder} was trained on {quote(name)}, which is quantised in MLX's own format, and "
        "transformers cannot read that; give the model that it was made from with --base, which is another "
        "model"
    )


def _count_of_layers(
    path: Path, document: Mapping[str, Any], layers: list[int], n_layers: int
) -> tuple[str, ...]:
    """A remark where the number of layers from the top is not that of the file."""
    given = document.get("num_layers", document.get("lora_layers"))
    if given is None or not layers:
        return ()
    if not isinstance(given, int) or isinstance(given, bool):
        raise CheckpointError(f"{path}: num_layers is {quote(given)}, expected a whole number")
    expected = list(range(max(0, n_layers - given) if given > 0 else 0, n_layers))
    if set(layers) <= set(expected) and layers[0] == expected[0]:
        return ()
    return (
        f"num_layers is {given}, which are layers {_ranges(expected)} of {n_layers}, but the file has "
        f"adapters in layers {_ranges(layers)}, which are used.",
    )


def _ranges(numbers: list[int]) -> str:
    """``0-3, 8`` for 0, 1, 2, 3, 8."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in found) or "none"
