"""Texts of one request as a tree of tokens, which has every distinct beginning once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from adapter_probe.data.encoding import add_arrays

Text = tuple[list[int], list[int]]
"""Tokens of a context and of what is scored after it."""


@dataclass(frozen=True, eq=False)
class TokenTree:
    """The texts of one request, every distinct beginning once.

    Attributes:
        tokens: int64 ``[states]``, each beginning's last token; a beginning comes before its extensions.
        parents: int64 ``[states]``, which beginning each one extends; -1 for none.
        read: int64 ``[read]``, the beginnings after which a token is scored.
        after, targets: int64 ``[scored]``, what is scored: a token `targets` after beginning ``read[after]``.
        scored: per continuation int64 ``[tokens]``, its tokens among those scored.
        source: int64 ``[tokens]``, the context, which an encoder reads; None where the texts contain it.
    """

    tokens: np.ndarray
    parents: np.ndarray
    read: np.ndarray
    after: np.ndarray
    targets: np.ndarray
    scored: tuple[np.ndarray, ...]
    source: np.ndarray | None = None

    @property
    def is_one_text(self) -> bool:
        """Whether every token follows all before it."""
        return bool((self.parents == np.arange(len(self.parents)) - 1).all())

    @property
    def sees(self) -> np.ndarray:
        """Bool ``[states, states]``, which tokens each one follows, itself included."""
        sees = np.eye(len(self.parents), dtype=bool)
        for state, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                sees[state] |= sees[parent]
        return sees


def grow_tree(texts: Sequence[Text], max_length: int) -> TokenTree:
    """Lay out texts so that common prefixes occur once; texts that are too long lose their start.

    The last token of a text is scored and not read.
    """
    states: dict[tuple[int, int], int] = {}  # (prefix, next token) -> the extended prefix
    scored: dict[tuple[int, int], int] = {}  # (prefix, scored token) -> index among the scored tokens
    chosen = []
    for context, continuation in texts:
        whole = (context + continuation)[-(max_length + 1) :]
        first_scored, state, own = len(whole) - len(continuation), -1, []
        for place, token in enumerate(whole):
            if place >= first_scored:
                own.append(scored.setdefault((state, token), len(scored)))
            if place < len(whole) - 1:
                state = states.setdefault((state, token), len(states))
        chosen.append(np.array(own, dtype=np.int64))
    parents, tokens = np.array(list(states), dtype=np.int64).T
    beginnings, targets = np.array(list(scored), dtype=np.int64).T
    read, after = np.unique(beginnings, return_inverse=True)
    return TokenTree(tokens.copy(), parents.copy(), read, after, targets.copy(), tuple(chosen))


def sequences_of(tree: TokenTree) -> list[tuple[list[int], int]]:
    """Every continuation of a tree with the tokens before it, and the number of its own tokens."""
    found = []
    for own in tree.scored:
        last = int(own[-1])
        state, tokens = int(tree.read[tree.after[last]]), [int(tree.targets[last])]
        while state >= 0:
            tokens.append(int(tree.tokens[state]))
            state = int(tree.parents[state])
        found.append((tokens[::-1], len(own)))
    return found


def fingerprint_of_trees(trees: Sequence[TokenTree], example: Sequence[int]) -> str:
    """SHA-256 of trees, and of which example each one is."""
    digest = hashlib.sha256(np.array(example, dtype="<i8").tobytes())
    for tree in trees:
        source = () if tree.source is None else (tree.source,)
        add_arrays(
            digest, (tree.tokens, tree.parents, tree.read, tree.after, tree.targets, *tree.scored, *source)
        )
    return digest.hexdigest()
