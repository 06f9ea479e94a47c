"""How `generate` writes: its settings, what ends a text, and the noise of draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .steps import Step

NO_TOKEN, NOT_FINITE = -1, -2
"""In place of a token after the end of a text, and of all tokens of one with a logit that is NaN."""


@dataclass(frozen=True)
class Decoding:
    """How texts are written.

    Attributes:
        max_new_tokens: the most tokens of a text.
        temperature: what logits are divided by before noise is added to them, the same for all variants; 0
            takes the likeliest token.
        seed: of the noise.
        ends: from the tokens of some texts, whether each is finished, beside those that end with the model's
            own last token; None for no other ends.
        each_step: called before every step.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ends: Callable[[list[list[int]]], Sequence[bool]] | None = None
    each_step: Callable[[], None] = lambda: None


def configuration(model: Any, how: Decoding, logits: bool) -> Any:
    """The model's own settings of `generate`, without beams and drawing."""
    own = deepcopy(model.generation_config)
    changes = {
        "do_sample": False, "num_beams": 1, "num_return_sequences": 1, "max_new_tokens": how.max_new_tokens,
        "max_length": None, "temperature": None, "top_p": None, "top_k": None, "min_p": None,
        "typical_p": None,
        "epsilon_cutoff": None, "eta_cutoff": None, "penalty_alpha": None, "use_cache": True,
        "length_penalty": None, "early_stopping": None, "num_beam_groups": None, "diversity_penalty": None,
        "cache_implementation": None, "return_dict_in_generate": logits, "output_logits": logits,
        "output_scores": False, "output_attentions": False, "output_hidden_states": False,
    }  # fmt: skip
    for name, value in changes.items():
        if value is not None or getattr(own, name, None) is not None:
            setattr(own, name, value)
    if own.pad_token_id is None or own.pad_token_id < 0:
        last = own.eos_token_id
        own.pad_token_id = last[0] if isinstance(last, list) else last or 0
    return own


class Stop:
    """Which texts are finished; `generate` asks after every token.

    Args:
        model: the model, whose own last tokens end a text.
        how: how texts are written.
        n: number of rows.
        step: the rows of the layers, which need not compute finished texts.
    """

    def __init__(self, model: Any, how: Decoding, n: int, step: Step | None = None):
        last = model.generation_config.eos_token_id
        self._last = list(last) if isinstance(last, (list, tuple)) else [] if last is None else [int(last)]
        self._how, self._step, self._start = how, step, -1
        self._length = np.zeros(n, dtype=np.int64)
        self._finite = np.ones(n, dtype=bool) if step is None else step.finite

    def __call__(self, ids: Tensor, scores: Any, **_: Any) -> Tensor:
        """Whether each row is finished, bool ``[rows]``."""
        self._how.each_step()
        if self._start < 0:
            self._start = ids.shape[1] - 1
        n = ids.shape[1] - self._start
        ended = np.isin(ids[:, -1].cpu().numpy(), self._last) | ~self._finite
        done = self._length > 0
        if self._how.ends is not None and (waits := np.flatnonzero(~done & ~ended)).size:
            new = ids[:, self._start :].cpu().numpy()[waits]
            texts, place = np.unique(new, axis=0, return_inverse=True)
            ended[waits] = np.asarray(self._how.ends(texts.tolist()), dtype=bool)[place.reshape(-1)]
        self._length[ended & ~done] = n
        done = self._length > 0
        if self._step is not None and not done.all():  # some loops go on for a step or two
            self._step.alive = ~done
        return torch.from_numpy(done).to(ids.device)

    def tokens(self, sequences: Tensor) -> np.ndarray:
        """The new tokens ``[rows, new tokens]`` of each text, as `Decoder.texts` says."""
        new = sequences[:, self._start :].cpu().numpy().astype(np.int32)
        found = np.full((len(new), self._how.max_new_tokens), NO_TOKEN, dtype=np.int32)
        found[:, : new.shape[1]] = new
        length = np.where(self._length > 0, self._length, new.shape[1])
        found[np.arange(found.shape[1]) >= length[:, None]] = NO_TOKEN
        found[~self._finite] = NOT_FINITE
        return found


class Noise:
    """Draws tokens: the largest of logits plus Gumbel noise, which is that of a softmax (Gumbel 1954).

    The noise depends on the seed, the example and the number of the token, and not on the variant, so that
    variants with the same distributions write the same.
    """

    def __init__(self, how: Decoding, examples: np.ndarray):
        self._how, self._examples, self._start = how, examples, -1

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Logits ``[rows, tokens]`` whose largest ones are the tokens that are drawn."""
        if self._start < 0:
            self._start = ids.shape[1]
        own, place = np.unique(self._examples, return_inverse=True)
        noise = []
        for example in own.tolist():
            seed = np.random.SeedSequence([self._how.seed, example, ids.shape[1] - self._start])
            generator = torch.Generator().manual_seed(int(seed.generate_state(1, np.uint64)[0]) >> 1)
            uniform = torch.rand(scores.shape[1], generator=generator, dtype=torch.float64)
            noise.append(-torch.log(-torch.log(uniform.clamp(1e-300, 1 - 1e-16))))
        table = torch.stack(noise).to(scores)[torch.from_numpy(place.reshape(-1)).to(scores.device)]
        return scores / self._how.temperature + table
