"""Bases with new tokens, whose rows are in the file of an adapter alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain, count
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, one_line

from .adapter_folder import PREFIX
from .base import AnyLoaded

# The axis of the tokens in what a file has of an embedding.
_AXES = {
    **dict.fromkeys(("weight", "base_layer.weight", "token_adapter.base_layer.weight", "lora_B.weight"), 0),
    "lora_embedding_A": 1,
}


@dataclass(frozen=True)
class Grown:
    """A base with new rows that its own file does not have, NaN until an adapter's file fills them.

    Attributes:
        old, rows: numbers of tokens before and now.
        width: inputs of the output embeddings; 0 without any.
    """

    old: int
    rows: int
    width: int

    @property
    def note(self) -> str:
        """What to say of it."""
        return (
            f"The base was grown from {self.old:,} to {self.rows:,} tokens, as for the adapter's training; "
            "the rows of the new ones are in the adapter's file."
        )

    @torch.no_grad()
    def refuse_empty(self, model: PeftModel, path: Path) -> None:
        """Refuse a model that reads a new row which no file has; rows that it does not read become zero."""
        base = model.get_base_model()
        pair, read = (base.get_input_embeddings(), base.get_output_embeddings()), {}
        wrappers = [m for m in base.modules() if isinstance(m, AuxiliaryTrainingWrapper | BaseTunerLayer)]
        inside = {id(one) for m in wrappers for one in m.modules() if one is not m}
        new = torch.arange(self.old, self.rows, device=model.device)
        for name, module in base.named_modules():
            if id(module) in inside:
                continue
            if module is pair[1]:
                some = torch.ones(1, self.width, dtype=model.dtype, device=model.device)
                read[name] = module(some)[:, self.old : self.rows]
            elif module is pair[0] or getattr(module, "num_embeddings", 0) == self.rows:
                read[name] = module(new)
        if empty := [name for name, values in read.items() if values.isnan().any()]:
            raise _without_rows(path, empty[0], self.old, self.rows)
        for tensor in chain.from_iterable((*m.parameters(), *m.buffers()) for m in pair if m is not None):
            if tensor.is_floating_point():
                tensor.nan_to_num_()


def grow(
    loaded: AnyLoaded, config: PeftConfig, tensors: Mapping[str, Tensor], path: Path
) -> tuple[AnyLoaded, Grown | None]:
    """A base with as many tokens as an adapter's file has rows for; it never loses any.

    Raises:
        CheckpointError: the base cannot be grown, or a trained token leaves a gap behind the base's.
    """
    model = loaded.model
    ends = [one for one in (model.get_input_embeddings(), model.get_output_embeddings()) if one is not None]
    old = int(ends[0].weight.shape[0])
    rows = [old]
    for name in [name for name, module in model.named_modules() if module in ends]:
        keys = {f"{PREFIX}{name}.{part}": axis for part, axis in _AXES.items()}
        rows += [
            int(tensors[k].shape[axis]) for k, axis in keys.items() if k in tensors and tensors[k].dim() == 2
        ]
    trained = getattr(config, "trainable_token_indices", None) or []
    every = [*chain.from_iterable(trained.values())] if isinstance(trained, dict) else list(trained)
    beyond = {token for token in every if isinstance(token, int) and token >= max(rows)}
    if beyond:
        if max(beyond) - max(rows) >= len(beyond):  # a gap
            first = next(row for row in count(max(rows)) if row not in beyond)
            raise _without_rows(path, "the embeddings", first, min(row for row in beyond if row > first))
        rows.append(max(beyond) + 1)
    if max(rows) == old:
        return loaded, None
    grown = Grown(old, max(rows), int(ends[1].weight.shape[1]) if len(ends) > 1 else 0)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            _resize(loaded, ends, grown)
    except Exception as error:  # of a quantised embedding, or a class that transformers cannot resize
        said = one_line(error)
        raise CheckpointError(
            f"{path} has rows for {grown.rows:,} tokens, and base {loaded.identity.name}, which has {old:,}, "
            f"cannot be grown: {said}"
        ) from error
    return replace(loaded, identity=replace(loaded.identity, vocab_size=grown.rows)), grown


def _resize(loaded: AnyLoaded, ends: list[nn.Module], grown: Grown) -> None:
    for end in ends if loaded.shared else ():  # Transformers writes into the old tensors
        for name, one in end.named_parameters(recurse=False):
            setattr(end, name, nn.Parameter(one.detach().clone(), requires_grad=False))
    loaded.model.resize_token_embeddings(grown.rows, mean_resizing=False)
    for end in (loaded.model.get_input_embeddings(), loaded.model.get_output_embeddings()):
        for tensor in end.parameters() if end is not None else ():
            tensor[grown.old :] = torch.nan


def _without_rows(path: Path, where: str, first: int, end: int) -> CheckpointError:
    rows = f"row {first}" if end - first == 1 else f"rows {first} to {end - 1}"
    return CheckpointError(
        f"neither {path} nor the base has {rows} of {where}, although the vocabulary was grown for the "
        "training, so they would be random; save the grown base of the training too, and give it with --base"
    )
