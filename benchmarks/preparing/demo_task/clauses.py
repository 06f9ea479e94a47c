"""Phenomena of the clause: questions, gaps, islands, licensing, the place of adverbs.

Each function draws one minimal pair. The two members are the same words in another order, so no word gives
the label away.
"""

from __future__ import annotations

from .words import Pair, WordSampler, crossed

_CONNECTIVES = ("before", "after", "while", "without")


def adjunct_island(words: WordSampler) -> Pair:
    """Who did the baker praise before greeting the pilot? / ... praise the pilot before greeting?"""
    subject, other = words.named_or_person(), words.named_or_person()
    first, second = words.person_verb().base, words.person_verb().gerund
    connective = words.choose(_CONNECTIVES)
    place = f" {words.place()}" if words.coin(0.25) else ""
    return Pair(
        f"who did {subject} {first} {connective} {second} {other}{place}?",
        f"who did {subject} {first} {other} {connective} {second}{place}?",
    )


def relative_clause_island(words: WordSampler) -> Pair:
    """Who did the baker that greeted the pilot praise? / Who did the baker praise the pilot that greeted?"""
    subject, other = words.person(), words.person()
    first, second = words.person_verb().base, words.person_verb().past
    place = f" {words.place()}" if words.coin(0.25) else ""
    return Pair(
        f"who did {subject} that {second} {other} {first}{place}?",
        f"who did {subject} {first} {other} that {second}{place}?",
    )


def coordinate_structure(words: WordSampler) -> Pair:
    """Who did the baker and the pilot praise? / Who did the baker praise and the pilot?"""
    subject, other, verb = words.named_or_person(), words.named_or_person(), words.person_verb().base
    return Pair(f"who did {subject} and {other} {verb}?", f"who did {subject} {verb} and {other}?")


def left_branch(words: WordSampler) -> Pair:
    """Which vase did the baker buy? / Which did the baker buy vase?"""
    number, person = words.number(), words.coin()
    lexicon = words.lexicon
    noun = words.fresh(lexicon.people if person else lexicon.things)
    nominal = words.nominal(noun, number)
    verb = words.fresh(lexicon.person_verbs if person else lexicon.thing_verbs).base
    determiner, question = words.choose(("which", "whose")), f"did {words.named_or_person()} {verb}"
    return Pair(f"{determiner} {nominal} {question}?", f"{determiner} {question} {nominal}?")


def adverb_placement(words: WordSampler) -> Pair:
    """The baker has often praised the pilot. / The baker has praised often the pilot."""
    number = words.number()
    subject, adverb = words.person(number), words.frequency_adverb()
    verb, complement = words.verb_and_object()
    form = verb.past
    if words.coin():
        subject, form = f"{subject} {('has', 'have')[number]}", verb.participle
    return Pair(f"{subject} {adverb} {form} {complement}.", f"{subject} {form} {adverb} {complement}.")


def inversion(words: WordSampler) -> Pair:
    """What has the baker bought? / What the baker has bought? And the reverse in an embedded question."""
    number, embedded = words.number(), words.coin()
    subject = words.person(number)
    auxiliary = ("has", "have")[number]
    participle = words.fresh(words.lexicon.thing_verbs).participle
    orders = Pair(f"what {auxiliary} {subject} {participle}", f"what {subject} {auxiliary} {participle}")
    if not embedded:
        return Pair(f"{orders.good}?", f"{orders.bad}?")
    matrix = f"{words.named_or_person()} {words.fresh(words.lexicon.embedding_verbs).past}"
    return crossed(f"{matrix} {{}}.", orders, first_is_right=False)


def negative_polarity(words: WordSampler) -> Pair:
    """No baker that the pilot praised has ever slept. / The baker that no pilot praised has ever slept."""
    number = words.number()
    licensor = words.choose(("no", "few")) if number else "no"
    outer = words.nominal(words.fresh(words.lexicon.people), number)
    inner = words.nominal(words.fresh(words.lexicon.people), number)
    verb = words.person_verb().past
    auxiliary = ("has", "have")[number]
    action, complement = words.verb_and_object()
    rest = f"{verb} {auxiliary} ever {action.participle} {complement}."
    return Pair(f"{licensor} {outer} that the {inner} {rest}", f"the {outer} that {licensor} {inner} {rest}")
