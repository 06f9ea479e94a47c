"""The demo's task, word order: minimal pairs in the manner of BLiMP (Warstadt et al. 2020).

A small grammar generates pairs of sentences of the same words in two orders, one acceptable and one not. It
exists so that a first run needs no data set; it does not replace human judgements. The validation set
is written with nouns, names, verbs and adjectives that the training set does not contain, so it cannot be
memorised. Both members of a pair are in the same split, so exactly half of each split is acceptable and
always giving one answer scores 50 %.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice

from . import clauses
from .lexicon import WordSplit, lexicon
from .words import Pair, WordSampler

_WRITERS = (
    clauses.adjunct_island,
    clauses.relative_clause_island,
    clauses.coordinate_structure,
    clauses.left_branch,
    clauses.adverb_placement,
    clauses.inversion,
    clauses.negative_polarity,
)

PHENOMENA = {writer.__name__: writer for writer in _WRITERS}
ACCEPTABLE, UNACCEPTABLE = "acceptable", "unacceptable"


@dataclass(frozen=True)
class Example:
    """One generated sentence, its label (``acceptable`` or ``unacceptable``) and what it tests."""

    sentence: str
    label: str
    phenomenon: str


def generate(n_train: int, n_validation: int, seed: int) -> dict[str, list[Example]]:
    """Generate both splits: the same numbers and seed give the same sentences everywhere.

    Phenomena alternate, so their counts differ by at most one pair. A split depends only on its size and
    the seed. No sentence occurs twice, within a split or across the two.

    Args:
        n_train: training sentences; even, as half are acceptable.
        n_validation: validation sentences; even.
        seed: a non-negative integer.
    """
    sizes: dict[WordSplit, int] = {"train": n_train, "validation": n_validation}
    return {split: _examples(split, size // 2, seed) for split, size in sizes.items()}


def minimal_pairs(split: WordSplit, n_pairs: int, seed: int) -> Iterator[tuple[str, Pair]]:
    """Yield `n_pairs` phenomena and pairs, alternating between phenomena; no sentence occurs twice."""
    # The splits use different random streams; otherwise they would share the sentences' structure.
    words = WordSampler(lexicon(split), random.Random(2 * seed + (split == "validation")))
    seen: set[str] = set()  # only used for membership tests, because its order is not reproducible
    for phenomenon, writer in islice(cycle(PHENOMENA.items()), n_pairs):
        pair = _drawn(words, writer)
        while not seen.isdisjoint(pair):
            pair = _drawn(words, writer)
        seen.update(pair)
        yield phenomenon, pair


def _drawn(words: WordSampler, writer: Callable[[WordSampler], Pair]) -> Pair:
    """A pair of a phenomenon, beginning with capitals."""
    words.start_pair()
    return Pair(*(sentence[0].upper() + sentence[1:] for sentence in writer(words)))


def _examples(split: WordSplit, n_pairs: int, seed: int) -> list[Example]:
    """Both members of every pair, in random order."""
    examples = [
        Example(sentence, label, phenomenon)
        for phenomenon, pair in minimal_pairs(split, n_pairs, seed)
        for sentence, label in zip(pair, (ACCEPTABLE, UNACCEPTABLE), strict=True)
    ]
    order = random.Random(f"{seed} {split}")
    return sorted(examples, key=lambda _: order.random())
