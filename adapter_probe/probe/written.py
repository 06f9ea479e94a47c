"""Texts that a language model writes under every variant, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import StopStringCriteria

from adapter_probe.data.prompts import EncodedPrompts
from adapter_probe.data.written_scores import Extractor, scores_of
from adapter_probe.device import available_memory, size_for
from adapter_probe.errors import ModelError, one_line
from adapter_probe.replay.decoding import NO_TOKEN, NOT_FINITE, Decoder, Decoding, counts_padding
from adapter_probe.replay.recording import Inputs, base_of, device_of
from adapter_probe.replay.replay import Replay
from adapter_probe.replay.stacks import in_copy
from adapter_probe.replay.switches import Switches

if TYPE_CHECKING:
    from .request import AblationRequest

Texts = list[list[str | None]]
"""Of every variant, the text of every row; None where a logit was not finite."""
# Pairs of a prompt and a variant that are written together, enough for matrix products at full rate: every
# step reads all weights.
_PAIRS = {"cpu": 1024, "accelerator": 4096}
_MOST_PROMPTS = 64
_SHARE_OF_FREE = 0.25  # of the memory, for the caches of all lanes
_EXAMPLE_TOKENS = 12  # of the prompts on which a model is prepared


def tokens_per_part(encoded: EncodedPrompts, n_variants: int, device_type: str) -> int:
    """Tokens of the prompts that are written together, which are saved together."""
    prompts = max(1, min(_MOST_PROMPTS, size_for(_PAIRS, device_type) // n_variants))
    return prompts * int(encoded.lengths.max())


class WritingRunner:
    """A model of one lane that writes; see `adapter_probe.probe.runners.ModelRunner`."""

    packs = False  # prompts of one length share a pass

    def __init__(self, request: AblationRequest, decoder: Decoder, module: nn.Module, lanes: int):
        self._request, self._decoder, self._module, self._lanes = request, decoder, module, lanes

    @property
    def note(self) -> str:
        """What a user should know of how the variants are computed; empty for nothing."""
        if self._decoder.shared != "none":
            return ""
        return f"the texts are written for one variant after the other: {self._decoder.reason}"

    def twin(self) -> WritingRunner:
        """The same on a copy that shares all weights."""
        return WritingRunner(self._request, self._decoder.twin(), self._module, self._lanes)

    def outputs(
        self, items: np.ndarray, masks: np.ndarray, tokens_per_pass: int, each_pass: Callable[[], None]
    ) -> dict[str, np.ndarray]:
        """The tokens that every variant writes, ``written`` int32 ``[variants, items, new tokens]``."""
        encoded = self._request.encoded
        assert isinstance(encoded, EncodedPrompts), "prompts are written to"
        how, lengths = decoding_of(self._request, each_pass), encoded.lengths[items]
        padded = len(np.unique(lengths)) > 1
        found = np.full((len(masks), len(items), encoded.new_tokens), NOT_FINITE, dtype=np.int32)
        if not (padded and counts_padding(base_of(self._module))):
            found = self._texts(encoded, items, masks, how)
        if padded and (found[0] == NOT_FINITE).any():
            # Some models give NaN where there is padding, in their own forward too.
            for length in np.unique(lengths):
                same = lengths == length
                found[:, same] = self._texts(encoded, items[same], masks, how)
        return {"written": found}

    def _texts(
        self, encoded: EncodedPrompts, items: np.ndarray, masks: np.ndarray, how: Decoding
    ) -> np.ndarray:
        """The tokens of some prompts, in as many batches as memory asks for."""
        pairs = max(1, int(self._room() // int(encoded.lengths[items].max())))
        too_many = len(items) * len(masks) > pairs
        if too_many and len(items) > 1:
            parts = [self._texts(encoded, half, masks, how) for half in np.array_split(items, 2)]
            return np.concatenate(parts, axis=1)
        if too_many and len(masks) > 1:
            return np.concatenate(
                [self._texts(encoded, items, half, how) for half in np.array_split(masks, 2)]
            )
        prompts = padded([encoded.input_ids[item] for item in items], self._module, encoded.reads)
        return self._decoder.texts(prompts, masks, how, items)

    def _room(self) -> float:
        """Tokens of all pairs whose keys and values fit into memory, by an upper bound of their size."""
        config = self._request.model.config
        width = int(getattr(config, "hidden_size", 0) or 1024)
        heads, groups = (
            int(getattr(config, n, 0) or 1) for n in ("num_attention_heads", "num_key_value_heads")
        )
        if 1 < groups <= heads:
            width = width * groups // heads
        size = next(p.itemsize for p in self._module.parameters() if p.is_floating_point())
        per_token = 4 * max(1, len(self._decoder.layers)) * width * size  # keys and values, and their copies
        return _SHARE_OF_FREE * available_memory(self._request.device) / (per_token * self._lanes)


def padded(prompts: Sequence[np.ndarray], module: nn.Module, reads: bool, started: bool = False) -> Inputs:
    """Token ids and attention mask of some prompts, padded on the left.

    If an encoder `reads` them, on the right; and `started`, with a first token for the decoder.
    """
    pad = getattr(getattr(module, "generation_config", None), "pad_token_id", None)
    width, device = max(map(len, prompts)), device_of(module)
    ids = np.full((len(prompts), width), pad if isinstance(pad, int) and pad >= 0 else 0, dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, own, tokens in zip(ids, mask, prompts):
        there = slice(0, len(tokens)) if reads else slice(width - len(tokens), width)
        row[there], own[there] = tokens, 1
    arrays = {"input_ids": ids, "attention_mask": mask}
    arrays |= {"decoder_input_ids": ids[:, :1]} if reads and started else {}
    return {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}


def prepared_runner(request: AblationRequest, module: nn.Module, lanes: int) -> WritingRunner:
    """A model that writes, compared on an example with its own `generate`."""
    encoded = request.encoded
    switches = Switches(request.settings.scale, request.settings.rank)
    assert isinstance(encoded, EncodedPrompts), "prompts are written to"
    base = base_of(module)
    if not hasattr(base, "generation_config"):
        raise ModelError(f"a {type(base).__name__} has no generate of Transformers, so it does not write")
    order = np.argsort(encoded.lengths, kind="stable")  # three short prompts: the ends of real ones
    chosen = [encoded.input_ids[order[i % len(order)]] for i in range(3)]
    prompts = [ids[-max(1, _EXAMPLE_TOKENS - 2 * n) :] for n, ids in enumerate(chosen)]
    one = padded([max(prompts, key=len)], module, encoded.reads, started=True)
    replay, reason = None, ""
    try:
        replay = Replay(module, one, switches=switches, by=request.settings.unit)
    except ModelError as error:
        reason = str(error)
    layers = in_copy(request.model.layers, request.model.module, module)
    example = padded(prompts, module, encoded.reads)
    return WritingRunner(request, Decoder(module, layers, switches, replay, example, reason), module, lanes)


def decoding_of(request: AblationRequest, each_step: Callable[[], None]) -> Decoding:
    """How a request's texts are written."""
    asked: Any = request.generation
    tokenizer: Any = request.checkpoint.tokenizer
    own = getattr(getattr(request.model.module, "generation_config", None), "stop_strings", None)

    def ends(texts: list[list[int]]) -> list[bool]:
        found = tokenizer.batch_decode(texts, skip_special_tokens=True)
        return [any(end in text for end in asked.ends) for text in found]

    return Decoding(
        asked.max_new_tokens,
        asked.temperature,
        asked.seed,
        ends if asked.ends else None,
        _stops_at(own, tokenizer) if own else None,
        each_step,
    )


def _stops_at(own: str | list[str], tokenizer: Any) -> Callable[[Tensor], Tensor]:
    """The model's own stop strings, which may begin in the prompt, as `generate` looks for them.

    Raises:
        ModelError: no tokens can make one of them.
    """
    try:
        found = StopStringCriteria(tokenizer, own)
    except ValueError as error:
        raise ModelError(
            f"stop_strings {own} of the model's generation_config.json: {one_line(error)}"
        ) from None

    def stops(ids: Tensor) -> Tensor:
        done: Tensor = found(ids, None)
        return done

    return stops


def texts_of(request: AblationRequest, written: np.ndarray) -> Texts:
    """The texts of tokens ``[variants, rows, new tokens]``, up to what ends them."""
    tokenizer: Any = request.checkpoint.tokenizer
    asked: Any = request.generation
    found = []
    for variant in written:
        texts: list[str | None] = tokenizer.batch_decode(
            [[t for t in tokens if t > NO_TOKEN] for tokens in variant.tolist()], skip_special_tokens=True
        )
        for row, text in enumerate(texts):
            for end in asked.ends:
                text = str(text).split(end)[0]
            texts[row] = None if variant[row, 0] == NOT_FINITE else text
        found.append(texts)
    return found


def score_texts(request: AblationRequest, texts: Texts) -> tuple[np.ndarray, str]:
    """The scores of texts, float32 ``[variants, rows, 1]``, and what to say of them; empty for nothing.

    Raises:
        DataError: a pattern takes too long, or a function of the user's returns no scores.
    """
    asked: Any = request.generation
    rows, note = request.examples.rows, ""
    scored = texts
    if asked.extract is not None:
        extractor = Extractor(asked.extract, "--extract")
        scored = [[None if text is None else extractor.found_in(text) for text in own] for own in texts]
        if not any(text is not None for own in scored for text in own):
            note = (
                f"--extract {asked.extract!r} matches nothing in any text, so every score is 0; the first "
                f"text of the intact model is {texts[0][0]!r}"
            )
    answers = [row.choices for row in rows.rows]
    if request.score_texts is not None:
        scores = request.score_texts(scored)
    else:
        scores = scores_of(request.metric, scored, answers)
    bad = np.array([[text is None for text in own] for own in texts])
    return np.where(bad, np.float32(np.nan), scores).astype(np.float32)[..., None], note
