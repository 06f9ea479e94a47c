"""The contents of a checkpoint of this project, read from JSON and tensor headers, without torch.

Names and shapes determine the role of every parameter. The hash of the base's weights, which the checkpoint
records, verifies that the names were interpreted correctly: it covers names, shapes and values. If anything
is unexpected, there is no result, and the checkpoint has to be opened, which also reports what is wrong.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from adapter_probe.models.methods import Adapters, ParameterRole
from adapter_probe.results.fingerprints import hash_json
from adapter_probe.spans import SITES_PER_LAYER

from .description import Description, read_description
from .files import DELTA, DESCRIPTION, refuse_irregular, refuse_unreadable
from .identity import NOT_ENCODING, config_settings

_ADAPTER, _POOLER = ".adapter.", "pooler."
AVERAGES = ("running_mean", "running_var", "num_batches_tracked")  # of batch normalisation: no parameters
_OLD_NAMES = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@dataclass(frozen=True)
class Contents:
    """The contents of a model with adapters.

    Attributes:
        description: description of the checkpoint, with the base that was found.
        family: the base's `model_type`.
        n_layers, hidden_size: dimensions of the base.
        n_sites: number of sites with an adapter.
        counts: numbers of parameters by role.
        trained: those in the checkpoint.
        trained_body: number of these without the head and other parameters that the base lacks.
        pretrained: number of parameters of the base without a head.
        notes: remarks for the user, one sentence each.
        quantised: the method of the base's quantisation; empty without one.
        stacks: numbers of layers by stack of a model with several; empty for one.
    """

    description: Description
    family: str
    n_layers: int
    hidden_size: int
    n_sites: int
    counts: dict[ParameterRole, int]
    trained: dict[ParameterRole, int]
    trained_body: int
    pretrained: int
    notes: tuple[str, ...] = ()
    quantised: str = ""
    stacks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Stored:
    """One tensor of a safetensors file."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    start: int

    def values(self) -> np.ndarray:
        """Flat, in float32."""
        kind = _DTYPES[self.dtype]
        raw = np.memmap(self.path, kind, "r", self.start, (math.prod(self.shape),))
        if self.dtype == "BF16":  # the upper half of a float32
            return (raw.astype("<u4") << 16).view("<f4")
        return raw.astype("<f4", copy=False)


def read_contents(folder: Path, base: str | None = None) -> Contents | None:
    """The contents of a checkpoint of this project, or None if they cannot be determined from files alone.

    Args:
        folder: the checkpoint.
        base: folder to use instead of the recorded base.

    Raises:
        CheckpointError: its description is damaged.
    """
    if not (folder / DESCRIPTION).is_file():
        return None
    said = read_description(folder)
    try:
        place = Path(said.base.name if base is None else base).expanduser()
        if not isinstance(said.method, Adapters) or said.task.kind == "causal" or not place.is_dir():
            return None
        refuse_irregular(folder / DELTA)
        refuse_unreadable(place)
        data = (folder / DELTA).read_bytes()
        if hashlib.sha256(data).hexdigest() != said.delta_sha256 or not _is_base(place, said):
            return None
        return _contents(said, place.resolve(), dict(stored_in(folder / DELTA)))
    except (OSError, RuntimeError, ValueError, LookupError, TypeError, AttributeError):
        return None  # opening the checkpoint will report what is wrong, such as deeply nested JSON


def _contents(said: Description, place: Path, delta: dict[str, _Stored]) -> Contents | None:
    """The union of the parameters of base and checkpoint, by role."""
    adapters = [name for name in delta if _ADAPTER in name]
    prefix = adapters[0].partition(".")[0] + "."
    encoder = _encoder(place, prefix, said.base.weights_sha256)
    trained = {name: one.shape for name, one in delta.items() if not name.endswith(AVERAGES)}
    sites = {name.partition(_ADAPTER)[0] for name in adapters}
    expected = said.base.n_layers * (SITES_PER_LAYER if said.method.sites == "both" else 1)
    if encoder is None or len(sites) != expected:
        return None
    shapes = {**{prefix + name: one.shape for name, one in encoder.items()}, **trained}
    lacked = {name for name in shapes if name.removeprefix(prefix) not in encoder}
    family = str(said.base.config["model_type"])
    return Contents(
        replace(said, base=replace(said.base, name=str(place), revision=None)),
        family,
        said.base.n_layers,
        said.base.hidden_size,
        len(sites),
        *count_parameters(shapes, trained.keys(), lacked, prefix),
    )


def count_parameters(
    shapes: Mapping[str, tuple[int, ...]], trained: Collection[str], lacked: Collection[str], prefix: str
) -> tuple[dict[ParameterRole, int], dict[ParameterRole, int], int, int]:
    """Numbers of parameters by role, those in the checkpoint, in its body, and in the base's body.

    Args:
        shapes: of all parameters, by name.
        trained: those in the checkpoint.
        lacked: those that the base lacks.
        prefix: of the encoder's names.
    """
    counts: dict[ParameterRole, int] = dict.fromkeys(get_args(ParameterRole), 0)
    changed, body, trained_body = dict(counts), 0, 0
    for name, shape in shapes.items():
        role, size = role_of(name, prefix, shapes), math.prod(shape)
        counts[role] += size
        changed[role] += size if name in trained else 0
        if role == "adapters" or (role != "head" and name not in lacked):
            body += size if role != "adapters" else 0
            trained_body += size if name in trained else 0
    return counts, changed, trained_body, body


def role_of(name: str, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> ParameterRole:
    """A parameter's role, by the prefix of the encoder's names and the shapes of all parameters.

    A norm is the only module whose weight has one axis.
    """
    if _ADAPTER in name:
        return "adapters"
    if not name.startswith(prefix):
        return "head"
    if len(shapes.get(f"{name.rpartition('.')[0]}.weight", (0, 0))) == 1:
        return "layernorms"
    return "pooler" if name.startswith(prefix + _POOLER) else "base"


def _is_base(place: Path, said: Description) -> bool:
    """Whether configuration and tokenizer equal those recorded in the checkpoint."""
    config = json.loads((place / "config.json").read_text(encoding="utf-8"))
    if config_settings(config) != said.base.config:
        return False
    from tokenizers import Tokenizer

    try:
        encoding = json.loads(Tokenizer.from_file(str(place / "tokenizer.json")).to_str())
    except Exception:  # the library raises only this general class
        return False
    told = {name: part for name, part in encoding.items() if name not in NOT_ENCODING and part is not None}
    return {name: hash_json(part) for name, part in told.items()}.items() <= said.tokenizer.items()


def _encoder(place: Path, prefix: str, wanted: str) -> dict[str, _Stored] | None:
    """The encoder's tensors by their names inside it, verified by the hash of all of them."""
    stored = {name: one for name, one in weights_of(place) if one.dtype in _DTYPES}
    inside = {name.removeprefix(prefix): one for name, one in stored.items() if name.startswith(prefix)}
    every = inside or stored
    without_pooler = {name: one for name, one in every.items() if not name.startswith(_POOLER)}
    return next((names for names in (every, without_pooler) if _hash_of(names) == wanted), None)


def _hash_of(tensors: Mapping[str, _Stored]) -> str:
    """The hash of weights, computed as in `adapter_probe.checkpoints.base`."""
    digest = hashlib.sha256()
    for name, one in sorted(tensors.items()):
        digest.update(f"{name} {one.shape}\n".encode())
        digest.update(one.values())
    return digest.hexdigest()


def weights_of(place: Path) -> Iterator[tuple[str, _Stored]]:
    """Every tensor of a base, with old names replaced by those of current transformers."""
    whole, index = place / "model.safetensors", place / "model.safetensors.index.json"
    files = [whole]
    if not whole.is_file():
        named: dict[str, Any] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = [place / name for name in sorted(set(named.values()))]
    for path in files:
        for name, one in stored_in(path):
            for old, new in _OLD_NAMES.items():
                name = name.replace(old, new)
            yield name, one


def stored_in(path: Path) -> Iterator[tuple[str, _Stored]]:
    """The tensors in the header of a safetensors file: eight bytes of length, JSON, then the values."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError(f"{path}: a header longer than the file")
        entries = json.loads(file.read(length))
    for name, entry in entries.items():
        if name != "__metadata__":
            start = 8 + length + entry["data_offsets"][0]
            yield name, _Stored(path, entry["dtype"], tuple(entry["shape"]), start)
