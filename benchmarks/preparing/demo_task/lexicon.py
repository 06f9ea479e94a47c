"""The words of the generated task, and their division between training and validation.

Every content word is in exactly one list, and every third word of a list is held out for validation,
so no noun, name, verb or adjective of the validation set is ever seen in training. Closed-class words
(determiners, pronouns, auxiliaries, complementisers, prepositions) are part of the phenomena and shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

WordSplit = Literal["train", "validation"]
Word = TypeVar("Word")
_VOWELS = "aeiou"
_SIBILANTS = ("s", "x", "z", "ch", "sh")
_HELD_OUT_EVERY = 3


@dataclass(frozen=True)
class Noun:
    """A countable noun; `forms[number]` is its singular (0) or plural (1)."""

    forms: tuple[str, str]


@dataclass(frozen=True)
class Verb:
    """A verb's forms; `present[number]` agrees with a third-person subject, singular (0) or plural (1)."""

    present: tuple[str, str]
    past: str
    participle: str
    gerund: str

    @property
    def base(self) -> str:
        """The bare infinitive."""
        return self.present[1]


@dataclass(frozen=True)
class Adjective:
    """A gradable adjective that compares with -er."""

    plain: str
    comparative: str


# A noun is written as its singular, with "/plural" where the plural is irregular.
_PEOPLE = """baker farmer teacher pilot nurse lawyer painter singer doctor driver dancer writer hunter
guard judge clerk tailor barber sailor soldier poet actor artist author banker builder captain chef
dentist editor engineer gardener historian inventor janitor journalist knight librarian mayor mechanic
merchant miner musician cousin plumber professor reporter scientist senator shepherd student surgeon
tourist champion tutor visitor wizard lawmaker officer detective butcher worker"""
_MALE_NAMES = """John Peter Robert Thomas David Michael George Henry Frank Paul Simon Daniel Edward
Richard Jack Walter Kevin Martin Charles Oliver Samuel Philip Andrew Joseph"""
_FEMALE_NAMES = """Mary Anna Susan Laura Helen Emma Alice Sarah Julia Karen Linda Rachel Emily Nancy Diana
Jessica Martha Ruth Lucy Sophie Clara Maria Barbara Jane"""
_THINGS = """vase lamp book letter chair table box knife/knives bottle mirror basket ring coat clock
statue carpet ladder bell boat wagon bicycle camera cup curtain diary drum envelope flag guitar hammer
helmet jacket jar kettle key magazine map newspaper pencil photo piano pillow pot radio rope shirt sofa
sword ticket umbrella violin wallet bucket candle necklace suitcase"""
_PLACES = """garden kitchen station market church museum library castle forest village park hotel school
stadium airport valley tower bridge temple factory lake river palace mountain"""
_PERSONAL_ADJECTIVES = """tall/taller short/shorter old/older young/younger kind/kinder strong/stronger
brave/braver wise/wiser clever/cleverer proud/prouder calm/calmer rich/richer poor/poorer smart/smarter
loud/louder quiet/quieter bold/bolder rude/ruder nice/nicer weak/weaker slow/slower happy/happier
lazy/lazier friendly/friendlier quick/quicker strange/stranger"""
_THING_ADJECTIVES = """large/larger small/smaller heavy/heavier cheap/cheaper clean/cleaner dirty/dirtier
light/lighter bright/brighter dark/darker plain/plainer rare/rarer round/rounder shiny/shinier soft/softer
hard/harder thick/thicker thin/thinner new/newer dusty/dustier wide/wider long/longer"""

# Person and thing verbs need an object, embedding ones take "that" or a wh-word.
# A verb is written as its base, with "/past/participle/gerund" where these do not follow the regular rules.
_PERSON_VERBS = """praise blame thank greet insult ignore rescue punish accuse convince reward arrest
betray defend escort invite mock tease pity flatter contact summon hire tackle welcome condemn"""
_THING_VERBS = """destroy repair abandon seek/sought/sought/seeking mention describe lift
take/took/taken/taking acquire bury inspect obtain purchase borrow collect grab/grabbed/grabbed/grabbing
seize remove replace damage conceal wear/wore/worn/wearing carry hold/held/held/holding examine
drag/dragged/dragged/dragging retrieve polish"""
_EMBEDDING_VERBS = """say/said/said/saying know/knew/known/knowing guess hear/heard/heard/hearing predict
reveal announce learn remember report discover confirm"""


@dataclass(frozen=True)
class Lexicon:
    """The words that one split may use, by class."""

    people: tuple[Noun, ...]
    male_names: tuple[str, ...]
    female_names: tuple[str, ...]
    things: tuple[Noun, ...]
    places: tuple[Noun, ...]
    personal_adjectives: tuple[Adjective, ...]
    thing_adjectives: tuple[Adjective, ...]
    person_verbs: tuple[Verb, ...]
    thing_verbs: tuple[Verb, ...]
    embedding_verbs: tuple[Verb, ...]


def lexicon(split: WordSplit) -> Lexicon:
    """The words of `split`; the two splits share none."""

    def words(make: Callable[[str], Word], listing: str) -> tuple[Word, ...]:
        every = listing.split()
        held_out = every[_HELD_OUT_EVERY - 1 :: _HELD_OUT_EVERY]
        return tuple(make(word) for word in every if (word in held_out) == (split == "validation"))

    return Lexicon(
        people=words(_noun, _PEOPLE),
        male_names=words(str, _MALE_NAMES),
        female_names=words(str, _FEMALE_NAMES),
        things=words(_noun, _THINGS),
        places=words(_noun, _PLACES),
        personal_adjectives=words(_adjective, _PERSONAL_ADJECTIVES),
        thing_adjectives=words(_adjective, _THING_ADJECTIVES),
        person_verbs=words(_verb, _PERSON_VERBS),
        thing_verbs=words(_verb, _THING_VERBS),
        embedding_verbs=words(_verb, _EMBEDDING_VERBS),
    )


def _adjective(entry: str) -> Adjective:
    return Adjective(*entry.split("/"))


def _noun(entry: str) -> Noun:
    singular, _, plural = entry.partition("/")
    return Noun((singular, plural or _with_s(singular)))


def _verb(entry: str) -> Verb:
    base, *irregular = entry.split("/")
    past, participle, gerund = irregular or _regular_forms(base)
    return Verb((_with_s(base), base), past, participle, gerund)


def _regular_forms(base: str) -> tuple[str, str, str]:
    """Past, participle and gerund of a verb that follows the rules and doubles no consonant."""
    if base.endswith("e"):
        return base + "d", base + "d", base[:-1] + "ing"
    past = base[:-1] + "ied" if _ends_in_consonant_y(base) else base + "ed"
    return past, past, base + "ing"


def _with_s(word: str) -> str:
    """The plural of a regular noun, or the third person singular of a verb."""
    if _ends_in_consonant_y(word):
        return word[:-1] + "ies"
    return word + ("es" if word.endswith(_SIBILANTS) else "s")


def _ends_in_consonant_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in _VOWELS
