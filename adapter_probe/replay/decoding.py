"""Texts that a model writes under many on/off masks: those of Transformers' own `generate`.

`generate` runs on a row for every pair of a variant and a prompt, and decides what it always decides: caches,
positions, processors of logits, ends. The forward that it calls computes less. Before a layer, two pairs have
the same states if their prompts and the texts written so far are equal and their masks agree up to there; of
such pairs one row is computed, and its results serve all. So every layer has rows of its own, more of them
from layer to layer, and its part of the cache has the same rows; where texts part, rows of the cache are
copied, and those of finished texts are dropped. The adapters of a layer are switched by rows, see `variants`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from adapter_probe.errors import ModelError

from .checking import coarsest, compare, refused, tried_masks
from .recording import Inputs, base_of, changed, configurations, without_records
from .replay import Replay
from .sharing import sharing
from .stacks import Layer, in_copy
from .steps import Path, Step, Unshared, mapped
from .switches import Switches
from .variants import Plan, Rows, together

_CHECKED_TOKENS = 4
# Settings of `generate` that read all tokens of a row, and their values without effect.
_OF_ALL_TOKENS = {
    "min_length": 0, "repetition_penalty": 1.0, "encoder_repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
}  # fmt: skip
# Those of other ways to choose tokens, and of drawing them, likewise.
_OF_SEARCH = {
    "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1, "penalty_alpha": None, "max_time": None,
}  # fmt: skip
_OF_DRAWING = {
    "do_sample": False, "temperature": 1.0, "top_p": 1.0, "top_k": None, "min_p": None, "typical_p": 1.0,
    "epsilon_cutoff": 0.0, "eta_cutoff": 0.0, "top_h": None,
}  # fmt: skip
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
        stops: the same from the tokens of some prompts and their texts, ``[rows, tokens]``, for stop strings
            of the model's own.
        each_step: called before every step.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    ends: Callable[[list[list[int]]], Sequence[bool]] | None = None
    stops: Callable[[Tensor], Tensor] | None = None
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
        "prompt_lookup_num_tokens": None, "max_time": None,
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


def not_followed(model: Any, temperature: float = 0.0) -> list[str]:
    """The model's own settings of `generate` that would write other texts and are left out, such as beams.

    Args:
        model: the model.
        temperature: at which the study draws tokens; 0 if it takes the likeliest.
    """
    config = getattr(model, "generation_config", None)  # which a model of one's own may lack
    own: dict[str, Any] = {} if config is None else vars(config)
    neutral = {**_OF_SEARCH, **(_OF_DRAWING if own.get("do_sample") else {})}
    done = {"do_sample": temperature > 0, "temperature": temperature}
    return [
        f"{name}={own[name]}"
        for name, value in neutral.items()
        if own.get(name) not in (None, value, done.get(name, value))
    ]


def counts_padding(model: Any) -> bool:
    """Whether the model's own settings of `generate` treat padding before a prompt as a part of it."""
    own = vars(model.generation_config)
    return any((own.get(name) or neutral) != neutral for name, neutral in _OF_ALL_TOKENS.items())


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
        if self._how.stops is not None:
            ended |= self._how.stops(ids).cpu().numpy()
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


class Decoder:
    """A language model, prepared to write under many masks.

    Args:
        model: the model in evaluation mode, a causal one or an encoder and a decoder.
        layers: the layer of every call in a forward.
        switches: how adapters are switched.
        replay: the same model, prepared on an example; None if it does not run layer by layer.
        example: at least three prompts of one length with the padding before them, see `texts`.

    Attributes:
        shared: how rows are shared: ``states`` as this module says; ``rows``, a row in every layer for each
            pair; ``none``, a `generate` for every variant.
        reason: why rows are not shared, or not states; empty if they are.
    """

    def __init__(
        self, model: nn.Module, layers: Sequence[Layer], switches: Switches, replay: Replay | None,
        example: Inputs, reason: str = "",
    ):  # fmt: skip
        self._whole, self._switches, self._replay = model, switches, replay
        self.model: Any = base_of(model)
        self.layers = list(layers)
        self.has_adapter = np.array([bool(part) for layer in self.layers for part in layer.parts])
        self._axes: dict[tuple[int, Path], tuple[int, int] | None] = {}
        self.shared, self.reason = "none", reason
        if replay is None:
            return
        try:
            self._plans = [_switched_alone(plan) for plan in replay.plans]
            if len({layer.module for layer in self.layers}) < len(self.layers):
                raise Unshared("a layer is called several times")
            with refused(preparing=True, how="with rows of its own in every layer"):
                self._measure(example)
        except ModelError as error:
            self.reason = str(error)
            return
        for shared in ("states", "rows"):
            self.shared = shared
            try:
                with refused(preparing=True, how="with rows of its own in every layer"):
                    self.check(example)
                return
            except ModelError as error:
                self.reason = self.reason or str(error)
        self.shared = "none"

    def twin(self) -> Decoder:
        """The same for a copy of the model that shares its tensors and has switches of its own."""
        other = copy(self)
        other._replay = None if self._replay is None else self._replay.twin()
        whole: Any = sharing(self._whole) if other._replay is None else other._replay.model
        other._whole = whole
        other.model = base_of(whole)
        other.layers = in_copy(self.layers, self._whole, whole)
        return other

    def texts(
        self, prompts: Inputs, masks: np.ndarray, how: Decoding, examples: np.ndarray | None = None
    ) -> np.ndarray:
        """The tokens that follow every prompt under every mask, int32 ``[variants, prompts, new tokens]``.

        `NO_TOKEN` follows the end of a text.

        Args:
            prompts: token ids and attention mask, padded on the left, or of an encoder on the right.
            masks: bool ``[variants, columns]``, True = on.
            examples: int ``[prompts]``, numbers that the noise depends on.
        """
        distinct, variant = np.unique(masks | ~self.has_adapter, axis=0, return_inverse=True)
        examples = np.arange(len(prompts["input_ids"])) if examples is None else examples
        found = self._written(prompts, distinct, how, examples)[0]
        return found[variant.reshape(-1)]

    def check(self, prompts: Inputs) -> float:
        """Compare with `generate` for each variant: intact, all off, and two random masks.

        The logits of every step are compared, up to the first token that rounding decides otherwise.

        Raises:
            ModelError: they differ by more than rounding.
        """
        masks = tried_masks(len(self.has_adapter)) | ~self.has_adapter
        how, largest = Decoding(_CHECKED_TOKENS), 0.0
        every = np.arange(len(prompts["input_ids"]))
        ours, our_logits = self._written(prompts, masks, how, every, logits=True)
        for number, mask in enumerate(masks):
            own, own_logits = self._alone(prompts, mask, how, every, logits=True)
            for example in every:
                parted = np.flatnonzero(ours[number, example] != own[example])
                steps = min(parted[0] + 1 if len(parted) else len(own[example]), len(own_logits))
                steps = min(steps, int((own[example] >= 0).sum()) + bool(len(parted)), len(our_logits))
                row = number * len(every) + int(example)
                found = torch.stack([x[row] for x in our_logits[:steps]])
                expected = torch.stack([x[example] for x in own_logits[:steps]])
                largest = max(largest, compare(found, expected, coarsest(self.model)))
        return largest

    def _written(
        self, prompts: Inputs, masks: np.ndarray, how: Decoding, examples: np.ndarray, logits: bool = False
    ) -> tuple[np.ndarray, list[Tensor]]:
        if self.shared == "none":
            found = [self._alone(prompts, mask, how, examples, logits) for mask in masks]
            return np.stack([tokens for tokens, _ in found]), []
        assert self._replay is not None, "rows are shared by its plans"
        step = Step(self, masks, len(examples))
        every = {k: x.repeat(len(masks), *[1] * (x.dim() - 1)) for k, x in prompts.items()}
        stop = Stop(self.model, how, len(masks) * len(examples), step)
        with self._replay.kept(), step.instead():
            made = self._generate(every, how, stop, np.tile(examples, len(masks)), logits)
        return stop.tokens(made[0]).reshape(len(masks), len(examples), -1), made[1]

    def _alone(
        self, prompts: Inputs, mask: np.ndarray, how: Decoding, examples: np.ndarray, logits: bool = False
    ) -> tuple[np.ndarray, list[Tensor]]:
        """The tokens ``[prompts, new tokens]`` of one variant by `generate`."""
        stop = Stop(self.model, how, len(examples))
        with switched_by(self.layers, self._switches, mask), refused(how="through its own generate"):
            made = self._generate(prompts, how, stop, examples, logits)
        return stop.tokens(made[0]), made[1]

    def _generate(
        self, prompts: Inputs, how: Decoding, stop: Stop, examples: np.ndarray, logits: bool
    ) -> tuple[Tensor, list[Tensor]]:
        noise = [Noise(how, examples)] if how.temperature else []
        quiet = without_records(configurations(self.model), cache=True)
        own, asked = self.model.generation_config, configuration(self.model, how, logits)
        asked.stop_strings = None  # `Decoding.stops` has them, since `generate` wants a tokenizer for them
        self.model.generation_config = asked  # of which `generate` fills what is None in the given one
        try:
            with torch.no_grad(), quiet:
                made = self.model.generate(
                    **prompts, generation_config=asked, logits_processor=noise, stopping_criteria=[stop]
                )
        finally:
            self.model.generation_config = own
        return (made["sequences"], list(made["logits"])) if logits else (made, [])

    def called(
        self, call: int, on: np.ndarray, forward: Callable[..., Any], args: tuple, kwargs: dict
    ) -> Any:
        """What a layer returns for rows whose sites are on or off, bool ``[rows, sites]``."""
        assert self._replay is not None, "rows are shared by its plans"
        if (on == on[0]).all():
            self._replay.switch(call, on[0].tolist())
            return forward(*args, **kwargs)
        plan = self._plans[call]
        self._replay.switch(call, [True] * on.shape[1])
        rows = Rows(np.arange(len(on)), on, {}, all_at_once=True)
        with together(self.layers[call].module, plan, rows, self._replay.set):
            return forward(*args, **kwargs)

    def axis_of(self, call: int, path: Path, x: Tensor) -> tuple[int, int] | None:
        """The batch axis of a layer's argument, and how many entries of it belong to a row."""
        return self._axes.get((call, path), (0, 1) if x.dim() > 1 else None)

    def _measure(self, example: Inputs) -> None:
        """Find the batch axes of what the layers are given, by two prompts and by three."""
        shapes: list[dict[tuple[int, Path], tuple[int, ...]]] = []
        for n in (2, 3):
            seen: dict[tuple[int, Path], tuple[int, ...]] = {}

            prompts = {k: x[-n:] for k, x in example.items()}
            noted = {la.module: _noting(k, la.module.forward, seen) for k, la in enumerate(self.layers)}
            stop = Stop(self.model, Decoding(2), n)
            with changed(noted):
                self._generate(prompts, Decoding(2), stop, np.arange(n), False)
            shapes.append(seen)
        two, three = shapes
        for key in two.keys() & three.keys():
            longer = [i for i, (a, b) in enumerate(zip(two[key], three[key])) if a != b]
            if len(longer) > 1 or any(3 * two[key][i] != 2 * three[key][i] for i in longer):
                raise Unshared(f"an argument of layer {key[0]} has no batch axis")
            self._axes[key] = (longer[0], two[key][longer[0]] // 2) if longer else None


def _noting(call: int, forward: Callable[..., Any], seen: dict[Any, Any]) -> Callable[..., Any]:
    """A layer's forward that notes the shapes that it is given first."""

    def called(*args: Any, **kwargs: Any) -> Any:
        mapped((args, kwargs), lambda path, x: seen.setdefault((call, path), tuple(x.shape)))
        return forward(*args, **kwargs)

    return functools.wraps(forward)(called)


def _switched_alone(plan: Plan) -> Plan:
    """A plan's modules that are switched; the others get all rows, because a cache may be in them.

    Raises:
        Unshared: the whole layer has to be called for each kind of variants.
    """
    if plan.whole:
        raise Unshared("a layer's adapters cannot be switched by rows")
    return Plan((), tuple(part for part in plan.parts if part.switched), plan.switched)


@contextmanager
def switched_by(layers: Sequence[Layer], switches: Switches, mask: np.ndarray) -> Iterator[None]:
    """Inside, the modules of all layers are switched as a mask says; afterwards all are on."""
    modules = [(site, m) for site, part in enumerate(p for la in layers for p in la.parts) for m in part]
    needed = [(p, p.requires_grad) for layer in layers for p in layer.module.parameters()]
    try:
        for site, module in modules:
            switches.set(module, bool(mask[site]))
        yield
    finally:
        for _, module in modules:
            switches.set(module, True)
        for parameter, grad in needed:  # which PEFT changes with its switches
            parameter.requires_grad_(grad)
