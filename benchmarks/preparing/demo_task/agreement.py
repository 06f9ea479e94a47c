"""Phenomena of agreement: subject and verb, determiner and noun, reflexive and antecedent.

Each function draws one minimal pair. The forms that the edit exchanges are right equally often (the number
or gender they have to agree with is drawn uniformly), so that no single word gives the label away.
"""

from __future__ import annotations

from .words import SINGULAR, Pair, WordSampler, crossed

_DEMONSTRATIVES = (("this", "these"), ("that", "those"))
MASCULINE, FEMININE = 0, 1
_REFLEXIVES = ("himself", "herself")


def subject_verb_agreement(words: WordSampler) -> Pair:
    """The baker is / are old."""
    number = words.number()
    return _with_agreeing_verb(words, words.person(number), number)


def agreement_across_phrase(words: WordSampler) -> Pair:
    """The baker near the pilots is / are old."""
    number = words.number()
    subject = words.person(number)
    preposition = words.choose(("near", "behind", "beside"))
    distractor = words.choose((words.person, words.thing))()
    return _with_agreeing_verb(words, f"{subject} {preposition} {distractor}", number)


def agreement_across_relative(words: WordSampler) -> Pair:
    """The baker that the pilots blame is / are old."""
    number, other = words.number(), words.number()
    subject, inner = words.person(number), words.person(other)
    verb = words.person_verb()
    if words.coin():
        relative = f"that {inner} {verb.present[other]}"
    else:
        relative = f"that {verb.present[number]} {inner}"
    return _with_agreeing_verb(words, f"{subject} {relative}", number)


def _with_agreeing_verb(words: WordSampler, subject: str, number: int) -> Pair:
    forms, rest = words.predicate()
    return crossed(f"{subject} {{}}{rest}.", forms, number == SINGULAR)


def determiner_noun_agreement(words: WordSampler) -> Pair:
    """This / These baker smiled."""
    return _with_determiner(words, adjectives=0)


def determiner_adjective_noun_agreement(words: WordSampler) -> Pair:
    """This / These tall young baker smiled."""
    return _with_determiner(words, adjectives=1 + words.coin())


def _with_determiner(words: WordSampler, adjectives: int) -> Pair:
    number, lexicon = words.number(), words.lexicon
    determiners = words.choose(_DEMONSTRATIVES)
    is_object = words.coin()
    nouns = lexicon.things if is_object else lexicon.people
    listed = lexicon.thing_adjectives if is_object else lexicon.personal_adjectives
    nominal = "".join(f"{words.fresh(listed).plain} " for _ in range(adjectives))
    nominal += words.fresh(nouns).forms[number]
    if is_object:
        verb = words.fresh(lexicon.thing_verbs).past
        clause = f"{words.named_or_person()} {verb} {{}} {nominal}{words.tail()}."
    else:
        clause = f"{{}} {nominal} {words.fresh(lexicon.intransitive_verbs).past}{words.tail()}."
    return crossed(clause, determiners, number == SINGULAR)


def reflexive_gender(words: WordSampler) -> Pair:
    """Mary praised herself / himself."""
    gender = words.choose((MASCULINE, FEMININE))
    clause = f"{_gendered(words, gender)}{_modifier(words)} {words.person_verb().past} {{}}{words.tail()}."
    return crossed(clause, _REFLEXIVES, gender == MASCULINE)


def _gendered(words: WordSampler, gender: int) -> str:
    """A singular noun phrase of the given gender."""
    if words.coin():
        return words.fresh((words.lexicon.male_names, words.lexicon.female_names)[gender])
    return f"the {words.nominal(words.fresh((words.lexicon.men, words.lexicon.women)[gender]), SINGULAR)}"


def _modifier(words: WordSampler) -> str:
    """Nothing, or a phrase between the antecedent and the verb, with its leading space."""
    return f" beside {words.thing()}" if words.coin(0.3) else ""
