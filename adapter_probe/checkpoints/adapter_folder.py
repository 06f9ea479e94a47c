"""Where an adapter is, in a folder or on the hub, what lies beside it, and its file (without torch)."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adapter_probe.errors import CheckpointError, listed, shown
from adapter_probe.results.atomic import make_folder, write_bytes, write_json

from .files import COMMIT, CONFIG, DESCRIPTION, first_file, first_of, read_json_file, read_tensors

if TYPE_CHECKING:
    from torch import Tensor

LIBRARY = "peft"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
"""The beginning of the names in a file of PEFT."""
_DEEPEST = 4  # of the folders below one that holds no adapter itself
_TRAINING = "checkpoint-"  # of transformers' Trainer: earlier states of the adapter above
# torch.compile, FSDP, its checkpointing of activations, Lightning; DistributedDataParallel and DeepSpeed.
_WRAPPERS = re.compile(
    r"(?<![^.])(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\."
)
_PARALLEL = re.compile(rf"\A(?:module\.)*({re.escape(PREFIX)})?(?:module\.)*")
# Initialisations that take a part out of the base's weights, which is missing where the adapter is off, and
# the folders in which PEFT's examples and LLaMA-Factory keep the start, the end and the plain LoRA of one.
CHANGE_THE_BASE = ("pissa", "olora", "loftq", "corda", "lora_ga")
_KINDS = "|".join((*CHANGE_THE_BASE, "loft"))
_SIDE = re.compile(rf"(?:{_KINDS})_(?:init|backup)")
_CONVERTED = re.compile(rf"(?:{_KINDS})_(?:converted|lora)")
_TIMEOUT = 10.0  # seconds
_READ = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_READ += ["adapter_model.bin", "pytorch_adapter.bin", "pytorch_model_head.bin"]
"""Files that opening a checkpoint can read."""
_ABOVE = ["*adapter_config.json", "tokenizer*", "special_tokens_map.json", "vocab.*", "merges.txt", "*.jinja"]
_IN_CACHE = re.compile(r"/models--(?:[^/]*--)?([^/]+)/snapshots/[^/]+((?:/[^/]+)*)\Z")
_SAME = ("base_model_name_or_path", "r", "target_modules")


def adapters_below(folder: Path) -> list[str]:
    """The names of the adapters in subfolders, by their paths, those of the nearest level that has any."""
    for depth in range(1, _DEEPEST + 1):
        if found := sorted(folder.glob("/".join(["*"] * depth + [CONFIG]))):
            return [path.parent.relative_to(folder).as_posix() for path in found]
    return []


def note_on_others(folder: Path) -> list[str]:
    """What to say of adapters below one that is opened, apart from earlier states of its own training."""
    others = [name for name in adapters_below(folder) if not name.startswith(_TRAINING)]
    if not others:
        return []
    return [f"Further adapters in the folder are not used: {listed(others)}; --adapter NAME chooses one."]


def choose_adapter(folder: Path, name: str | None) -> Path:
    """The folder of one of several adapters below a checkpoint's folder; without a name the folder itself."""
    if name is None:
        return folder
    place = folder / name
    with suppress(OSError, ValueError):  # what cannot be a path is no name of an adapter
        inside = folder.resolve() in place.resolve().parents
        if inside and any((place / one).is_file() for one in (CONFIG, DESCRIPTION)):
            return place
    there = adapters_below(folder)
    has = f"it has {listed(there)}" if there else "it has none in subfolders"
    raise CheckpointError(f"--adapter {shown(name)}: checkpoint {folder} has no adapter of this name; {has}")


def only_adapter(folder: Path) -> Path | None:
    """The only subfolder with an adapter, or None; several, and one further below, are refused."""
    names = adapters_below(folder)
    if len(names) == 1 and "/" not in names[0]:
        return folder / names[0]
    if names:
        raise CheckpointError(
            f"{folder} has no adapter itself, but {len(names)} below: {listed(names)}; choose one with "
            f"--adapter NAME, such as --adapter {names[0]}"
        )
    return None


def refuse_changed_base(folder: Path, document: Mapping[str, Any], base: Path | None) -> None:
    """Refuse an adapter whose start took a part out of the base, where the folders beside it show this.

    The configuration does not: it says ``init_lora_weights: true``, so that loading draws no start again. The
    base that belongs to the adapter is the residual one, in whose folder the start is kept.
    """
    folder = folder.resolve()
    sides = _named(base, _SIDE) if base is not None else []
    if sides or document.get("peft_type") != "LORA" or _CONVERTED.fullmatch(folder.name):
        return
    near = [folder, *_named(folder, _SIDE), *_named(folder.parent, _SIDE)]
    near = [one for one in near if _SIDE.fullmatch(one.name) and _alike(one, document)]
    if near:
        used = base or document.get("base_model_name_or_path")
        raise CheckpointError(
            f"checkpoint {folder} was trained from an initialisation that takes a part out of the base's "
            f"weights, as {near[0]} shows, and base {used} has it; give the residual base, whose folder has "
            f"{near[0].name}, with --base{plain_lora(folder, near[0].name)}"
        )


def plain_lora(folder: Path, start: str) -> str:
    """What to open in place of an adapter that needs a residual base, as the end of a sentence."""
    if found := [*_named(folder, _CONVERTED), *_named(folder.resolve().parent, _CONVERTED)]:
        return f", or open the converted adapter {found[0]}"
    if start.startswith("loft"):  # which PEFT cannot convert
        return ""
    return ", or convert it with PEFT's save_pretrained(path_initial_model_for_weight_conversion=...)"


def _named(folder: Path, names: re.Pattern[str]) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"*/{CONFIG}") if names.fullmatch(path.parent.name))


def _alike(folder: Path, document: Mapping[str, Any]) -> bool:
    """Whether another adapter is of the same base, rank and modules."""
    other = read_json_file(folder / CONFIG)
    pairs = [
        [set(map(str, v)) if isinstance(v, list) else v for v in (other.get(k), document.get(k))]
        for k in _SAME
    ]
    return all(one == two for one, two in pairs)


def weights_in(folder: Path, names: Sequence[str] = WEIGHTS) -> Path:
    """The file with an adapter's tensors, the first of these."""
    if (file := first_file(folder, names)) is None:
        raise CheckpointError(f"checkpoint {folder} contains no weights: neither {' nor '.join(names)}")
    return file


def read_adapter(folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors of an adapter under PEFT's names, and what to say of names that were changed for this.

    Raises:
        CheckpointError: there is no file, it is damaged, or two of its names are the same without wrappers.
    """
    file = weights_in(folder)
    tensors = read_tensors(file, as_stored=True)
    names = {name: plain_name(name) for name in tensors}
    if not (wrapped := [name for name, plain in names.items() if name != plain]):
        return tensors, []
    if twice := [name for name, n in Counter(names.values()).items() if n > 1]:
        raise CheckpointError(
            f"{file} contains {first_of(twice)} twice, with the name of a wrapper and without"
        )
    parts = sorted({part for name in wrapped for part in {*name.split(".")} - {*names[name].split(".")}})
    said = f"Names of tensors are read without {', '.join(parts)}, which a wrapper of the training left."
    return {names[name]: tensor for name, tensor in tensors.items()}, [said]


def write_adapter(
    out: Path, tensors: Mapping[str, Tensor], document: Mapping[str, Any], tokenizer: Any = None
) -> None:
    """Write a folder that PEFT loads: the configuration, which makes it one, is written last."""
    import safetensors.torch

    make_folder(out)
    if tokenizer is not None:
        tokenizer.save_pretrained(out)
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(out / WEIGHTS[0], safetensors.torch.save(plain, metadata={"format": "pt"}))
    write_json(out / CONFIG, document)


def hash_contents(files: Iterable[Path]) -> str:
    """SHA-256 of the names, sizes and bytes of a checkpoint's files, in their order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def plain_name(name: str) -> str:
    """A tensor's name without the wrappers that were around the model when it was saved."""
    return _PARALLEL.sub(r"\1", _WRAPPERS.sub("", name), count=1)


def ask_hub(name: str, revision: str | None) -> str | None:
    """The commit of a revision, or None if the hub does not answer; asked once, without retries."""
    from huggingface_hub import HfApi

    try:
        return HfApi().model_info(name, revision=revision, timeout=_TIMEOUT).sha
    except Exception:  # no network, no such name, no access: what the cache holds still counts
        return None


def fetch_checkpoint(name: str, revision: str | None = None, adapter: str | None = None) -> Path:
    """The folder of a checkpoint on the hub: in the local cache, into which it is downloaded if necessary.

    Args:
        name: ``owner/name``.
        revision: commit, branch or tag; by default the newest commit of the main branch. A full commit that
            is in the cache is not asked for.
        adapter: the only subfolder to download, with the tokenizer above it and the small configurations of
            the other adapters, by which `adapter_folder` tells what it is.
    """
    from huggingface_hub import snapshot_download

    patterns = _READ if adapter is None else [*_ABOVE, *(f"{adapter}/{one}" for one in _READ)]
    ignored = [] if (adapter or "").startswith(_TRAINING) else [f"{_TRAINING}*/*"]
    known, found = revision is not None and COMMIT.fullmatch(revision) is not None, None
    for cached in (True, False) if known else (False, True):
        commit = revision if cached else ask_hub(name, revision)
        if not cached and commit is None:
            continue
        with suppress(Exception):  # of the network, of the cache, or because there is no such revision
            found = Path(
                snapshot_download(
                    name, revision=commit, local_files_only=cached, allow_patterns=patterns,
                    ignore_patterns=ignored,
                )
            )  # fmt: skip
            if adapter is None or (found / adapter).is_dir():  # a cache may have another adapter of a commit
                break
    if found is not None:
        return found
    at = "" if revision is None else f" at revision {shown(revision)}"
    raise CheckpointError(
        f"checkpoint {name}: no such folder, and the Hugging Face Hub could not provide it{at} (no network "
        "and no cached copy, or no such name, or no access)"
    )


def name_of_checkpoint(folder: Path) -> str:
    """What a checkpoint is called: its folder, or in the hub's cache its name without the owner."""
    return name_in_cache(folder) or folder.resolve().name


def name_in_cache(folder: Path) -> str | None:
    """The name, without the owner, of a checkpoint in the hub's cache, with that of one of its adapters.

    None of any other folder.
    """
    found = _IN_CACHE.search(folder.resolve().as_posix())
    return None if found is None else "-".join(filter(None, (found[1], *found[2].split("/"))))
