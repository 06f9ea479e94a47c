"""Phenomena of what a predicate asks for: objects, complements, verb forms, case, tense, degree.

Each function draws one minimal pair by crossing two contexts with two forms, each form being right in one
context only, so that neither the form nor the context alone gives the label away.
"""

from __future__ import annotations

from .words import Pair, Words

_PRONOUNS = (("he", "him"), ("she", "her"), ("they", "them"), ("we", "us"), ("I", "me"))
_PAST_TIMES = ("yesterday", "last week", "last night", "a year ago", "two days ago")
_FUTURE_TIMES = ("tomorrow", "next week", "next month", "in a few days", "two days from now")


def _crossed(words: Words, clause: str, right_if_first: tuple[str, str], first: bool) -> Pair:
    """Fill the clause's ``{}`` with the two forms; the first one is right in the first context."""
    good, bad = words.swap_if(not first, right_if_first)
    return Pair(clause.format(good), clause.format(bad))


def transitivity(words: Words) -> Pair:
    """The baker praised / sneezed the pilot; the baker sneezed / praised."""
    verb, complement = words.verb_and_object()
    forms = (verb.past, words.fresh(words.lexicon.intransitive_verbs).past)
    has_object = words.coin()
    complement = f" {complement}" if has_object else ""
    return _crossed(words, f"{words.named_or_person()} {{}}{complement}{words.tail()}.", forms, has_object)


def passive(words: Words) -> Pair:
    """The baker was praised / sneezed; the baker had sneezed / praised."""
    number, is_passive = words.number(), words.coin()
    forms = (words.person_verb().participle, words.fresh(words.lexicon.intransitive_verbs).participle)
    auxiliary = ("was", "were")[number] if is_passive else "had"
    adverb = f" {words.frequency_adverb()}" if words.coin(0.3) else ""
    return _crossed(
        words, f"{words.person(number)} {auxiliary}{adverb} {{}} {words.place()}.", forms, is_passive
    )


def animacy(words: Words) -> Pair:
    """The baker feared the vase / the vase feared the baker; the vase amused the baker / the reverse."""
    person, thing = words.named_or_person(), words.thing()
    person_is_subject = words.coin()
    verbs = (
        words.lexicon.experiencer_subject_verbs
        if person_is_subject
        else words.lexicon.experiencer_object_verbs
    )
    verb, tail = words.fresh(verbs).past, words.tail()
    orders = (f"{person} {verb} {thing}{tail}.", f"{thing} {verb} {person}{tail}.")
    return Pair(*words.swap_if(not person_is_subject, orders))


def complementiser(words: Words) -> Pair:
    """The baker thought that / whether the pilot slept; the baker wondered whether / that the pilot slept."""
    declarative = words.coin()
    verbs = words.lexicon.declarative_verbs if declarative else words.lexicon.interrogative_verbs
    subject, verb, inner = words.named_or_person(), words.fresh(verbs).past, words.named_or_person()
    action, complement = words.verb_and_object()
    clause = f"{subject} {verb} {{}} {inner} {action.past} {complement}{words.tail()}."
    return _crossed(words, clause, ("that", "whether"), declarative)


def gerund_or_infinitive(words: Words) -> Pair:
    """The baker enjoyed praising / to praise the pilot; the baker decided to praise / praising the pilot."""
    gerund = words.coin()
    verbs = words.lexicon.gerund_verbs if gerund else words.lexicon.infinitive_verbs
    subject, verb = words.named_or_person(), words.fresh(verbs).past
    action, complement = words.verb_and_object()
    clause = f"{subject} {verb} {{}} {complement}{words.tail()}."
    return _crossed(words, clause, (action.gerund, f"to {action.base}"), gerund)


def verb_form(words: Words) -> Pair:
    """The baker has taken / taking / take the vase, after has, is or a modal."""
    number = words.number()
    auxiliaries = (
        ("has", "have")[number],
        ("is", "are")[number],
        words.choose(("will", "must", "can", "should")),
    )
    verb, complement = words.verb_and_object()
    forms = (verb.participle, verb.gerund, verb.base)
    kind = words.choose((0, 1, 2))
    wrong = (kind + words.choose((1, 2))) % 3
    adverb = f" {words.frequency_adverb()}" if words.coin(0.25) else ""
    clause = f"{words.person(number)} {auxiliaries[kind]}{adverb} {{}} {complement}."
    return Pair(clause.format(forms[kind]), clause.format(forms[wrong]))


def pronoun_case(words: Words) -> Pair:
    """He / Him praised the baker; the baker praised him / he."""
    other, verb, tail = words.named_or_person(), words.person_verb().past, words.tail()
    subject_clause = f"{{}} {verb} {other}{tail}."
    object_clause = f"{other} {verb} {{}}{tail}."
    is_subject = words.coin()
    clause = subject_clause if is_subject else object_clause
    if words.coin():
        clause = f"{words.named_or_person()} thought that {clause}"
    return _crossed(words, clause, words.choose(_PRONOUNS), is_subject)


def tense_and_time(words: Words) -> Pair:
    """The baker praised the pilot yesterday / tomorrow; the baker will praise the pilot tomorrow / yesterday."""
    past, first = words.coin(), words.coin()
    verb, complement = words.verb_and_object()
    event = f"{words.named_or_person()} {verb.past if past else f'will {verb.base}'} {complement}"
    clause = f"{{}} {event}." if first else f"{event} {{}}."
    return _crossed(words, clause, (words.choose(_PAST_TIMES), words.choose(_FUTURE_TIMES)), past)


def comparative(words: Words) -> Pair:
    """The baker is taller / tall than the pilot; the baker is as tall / taller as the pilot."""
    number, than = words.number(), words.coin()
    adjective = words.fresh(words.lexicon.personal_adjectives)
    subject, other = words.person(number), words.named_or_person()
    copula = words.choose((("is", "are"), ("was", "were")))[number]
    clause = f"{subject} {copula} {{}} than {other}." if than else f"{subject} {copula} as {{}} as {other}."
    return _crossed(words, clause, (adjective.comparative, adjective.plain), than)
