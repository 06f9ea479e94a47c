"""Phenomena of the clause: questions, gaps, islands, licensing, quantifiers.

Each function draws one minimal pair. Either the two members are the same words in another order, or two
contexts are crossed with two forms, each right in one context only: no single word gives the label away.
"""

from __future__ import annotations

from .words import SINGULAR, Pair, Words

_CONNECTIVES = ("before", "after", "while", "without")


def filler_gap(words: Words) -> Pair:
    """The baker knew what / that the pilot bought; the baker knew that / what the pilot bought the vase."""
    gap, human = words.coin(), words.coin()
    subject, verb = words.named_or_person(), words.fresh(words.lexicon.factive_verbs).past
    inner = words.named_or_person()
    if human:
        action, complement = words.person_verb(), words.named_or_person()
    else:
        action, complement = words.fresh(words.lexicon.thing_verbs), words.thing()
    rest = f"{inner} {action.past}{'' if gap else f' {complement}'}{words.tail()}."
    good, bad = words.swap_if(not gap, ("who" if human else "what", "that"))
    return Pair(f"{subject} {verb} {good} {rest}", f"{subject} {verb} {bad} {rest}")


def wh_island(words: Words) -> Pair:
    """Who did the baker learn that / who the pilot praised? Did the baker learn who / that the pilot praised?"""
    extracted = words.coin()
    verb = words.fresh(words.lexicon.factive_verbs).base
    clause = (
        f"did {words.named_or_person()} {verb} {{}} {words.named_or_person()} {words.person_verb().past}?"
    )
    clause = f"who {clause}" if extracted else clause
    good, bad = words.swap_if(not extracted, ("that", "who"))
    return Pair(clause.format(good), clause.format(bad))


def adjunct_island(words: Words) -> Pair:
    """Who did the baker praise before greeting the pilot? / ... praise the pilot before greeting?"""
    subject, other = words.named_or_person(), words.named_or_person()
    first, second = words.person_verb().base, words.person_verb().gerund
    connective = words.choose(_CONNECTIVES)
    place = f" {words.place()}" if words.coin(0.25) else ""
    return Pair(
        f"who did {subject} {first} {connective} {second} {other}{place}?",
        f"who did {subject} {first} {other} {connective} {second}{place}?",
    )


def relative_clause_island(words: Words) -> Pair:
    """Who did the baker that greeted the pilot praise? / Who did the baker praise the pilot that greeted?"""
    subject, other = words.person(), words.person()
    first, second = words.person_verb().base, words.person_verb().past
    place = f" {words.place()}" if words.coin(0.25) else ""
    return Pair(
        f"who did {subject} that {second} {other} {first}{place}?",
        f"who did {subject} {first} {other} that {second}{place}?",
    )


def coordinate_structure(words: Words) -> Pair:
    """Who did the baker and the pilot praise? / Who did the baker praise and the pilot?"""
    subject, other, verb = words.named_or_person(), words.named_or_person(), words.person_verb().base
    return Pair(f"who did {subject} and {other} {verb}?", f"who did {subject} {verb} and {other}?")


def left_branch(words: Words) -> Pair:
    """Which vase did the baker buy? / Which did the baker buy vase?"""
    number, person = words.number(), words.coin()
    lexicon = words.lexicon
    nominal = words.nominal(words.fresh(lexicon.people if person else lexicon.things), number)
    verb = words.fresh(lexicon.person_verbs if person else lexicon.thing_verbs).base
    determiner, subject = words.choose(("which", "whose")), words.named_or_person()
    return Pair(
        f"{determiner} {nominal} did {subject} {verb}?", f"{determiner} did {subject} {verb} {nominal}?"
    )


def adverb_placement(words: Words) -> Pair:
    """The baker has often praised the pilot. / The baker has praised often the pilot."""
    number = words.number()
    subject, adverb = words.person(number), words.frequency_adverb()
    verb, complement = words.verb_and_object()
    start, form = (
        (f"{subject} {('has', 'have')[number]}", verb.participle) if words.coin() else (subject, verb.past)
    )
    return Pair(f"{start} {adverb} {form} {complement}.", f"{start} {form} {adverb} {complement}.")


def inversion(words: Words) -> Pair:
    """What has the baker bought? / What the baker has bought? And the reverse in an embedded question."""
    number, embedded = words.number(), words.coin()
    subject = words.person(number)
    auxiliary = ("has", "have")[number]
    participle = words.fresh(words.lexicon.thing_verbs).participle
    orders = (f"what {auxiliary} {subject} {participle}", f"what {subject} {auxiliary} {participle}")
    good, bad = words.swap_if(embedded, orders)
    if not embedded:
        return Pair(f"{good}?", f"{bad}?")
    matrix = f"{words.named_or_person()} {words.fresh(words.lexicon.factive_verbs).past}"
    return Pair(f"{matrix} {good}.", f"{matrix} {bad}.")


def negative_polarity(words: Words) -> Pair:
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


def existential_quantifier(words: Words) -> Pair:
    """There was a / every baker near the lake; almost every / a baker was near the lake."""
    number, existential = words.number(), words.coin()
    nominal = words.nominal(words.fresh(words.choose((words.lexicon.people, words.lexicon.things))), number)
    weak = ("an" if nominal[0] in "aeiou" else "a") if number == SINGULAR else "some"
    strong = ("every", "all")[number]
    copula, place = ("was", "were")[number], words.place()
    clause = (
        f"there {copula} {{}} {nominal} {place}."
        if existential
        else f"almost {{}} {nominal} {copula} {place}."
    )
    good, bad = words.swap_if(not existential, (weak, strong))
    return Pair(clause.format(good), clause.format(bad))
