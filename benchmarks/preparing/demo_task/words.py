"""Random draws from the lexicon: the building blocks of the phenomena."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from .lexicon import Lexicon, Noun, Verb

T = TypeVar("T")

SINGULAR, PLURAL = 0, 1
_FREQUENCY_ADVERBS = ("often", "always", "sometimes", "usually", "rarely", "never")
_PREPOSITIONS = ("near", "behind", "beside", "in front of")


class Pair(NamedTuple):
    """A minimal pair: two sentences that differ in one small edit."""

    good: str
    bad: str


def crossed(clause: str, forms: tuple[str, str], first_is_right: bool) -> Pair:
    """The clause with its ``{}`` filled by either form, the right one first."""
    good, bad = forms if first_is_right else forms[::-1]
    return Pair(clause.format(good), clause.format(bad))


class WordSampler:
    """Draws words of one split. No word is drawn twice for the same pair.

    Only `random.Random.random` is used, the one stream that Python promises never to change, so the same
    seed gives the same sentences on every version and platform.
    """

    def __init__(self, lexicon: Lexicon, generator: random.Random) -> None:
        self.lexicon = lexicon
        self._generator = generator
        self._used: list[object] = []

    def start_pair(self) -> None:
        """Make every word available again."""
        self._used = []

    def choose(self, options: Sequence[T]) -> T:
        """One of `options`, uniformly."""
        return options[int(self._generator.random() * len(options))]

    def coin(self, probability: float = 0.5) -> bool:
        """True with the given probability."""
        return self._generator.random() < probability

    def number(self) -> int:
        """SINGULAR or PLURAL, uniformly: an index into a word's pair of forms."""
        return self.choose((SINGULAR, PLURAL))

    def fresh(self, words: Sequence[T]) -> T:
        """One of `words` that this pair has not used yet."""
        word = self.choose([word for word in words if word not in self._used])
        self._used.append(word)
        return word

    def nominal(self, noun: Noun, number: int) -> str:
        """The noun, one time in ten with an adjective that suits it."""
        is_thing = noun in self.lexicon.things
        listed = self.lexicon.thing_adjectives if is_thing else self.lexicon.personal_adjectives
        adjective = f"{self.fresh(listed).plain} " if self.coin(0.1) else ""
        return adjective + noun.forms[number]

    def person(self, number: int | None = None) -> str:
        """A definite noun phrase for people, of the given or a random number."""
        return self._definite(self.lexicon.people, number)

    def thing(self) -> str:
        """A definite noun phrase for things, of a random number."""
        return self._definite(self.lexicon.things, None)

    def _definite(self, nouns: Sequence[Noun], number: int | None) -> str:
        number = self.number() if number is None else number
        return f"the {self.nominal(self.fresh(nouns), number)}"

    def named_or_person(self) -> str:
        """A name or a definite noun phrase for people: any subject whose number does not matter."""
        if self.coin(0.3):
            return self.fresh(self.choose((self.lexicon.male_names, self.lexicon.female_names)))
        return self.person()

    def place(self) -> str:
        """A prepositional phrase of place."""
        return f"{self.choose(_PREPOSITIONS)} the {self.fresh(self.lexicon.places).forms[SINGULAR]}"

    def frequency_adverb(self) -> str:
        """An adverb that goes between an auxiliary and its verb."""
        return self.choose(_FREQUENCY_ADVERBS)

    def person_verb(self) -> Verb:
        """A verb that needs an object, which may be a person."""
        return self.fresh(self.lexicon.person_verbs)

    def verb_and_object(self) -> tuple[Verb, str]:
        """A verb that needs an object, and an object for it."""
        if self.coin():
            return self.person_verb(), self.named_or_person()
        return self.fresh(self.lexicon.thing_verbs), self.thing()
