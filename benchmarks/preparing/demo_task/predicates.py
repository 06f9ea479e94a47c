"""Phenomena of predicates: objects, verb forms, case, tense, degree.

Each function draws one minimal pair by crossing two contexts with two forms, each form being right in one
context only, so that neither the form nor the context alone gives the label away.
"""

from __future__ import annotations

from .words import BE, Pair, WordSampler, crossed

_PRONOUNS = (("he", "him"), ("she", "her"), ("they", "them"), ("we", "us"), ("I", "me"))
_PAST_TIMES = ("yesterday", "last week", "last night", "a year ago", "two days ago")
_FUTURE_TIMES = ("tomorrow", "next week", "next month", "in a few days", "two days from now")


def transitivity(words: WordSampler) -> Pair:
    """The baker praised / sneezed the pilot; the baker sneezed / praised."""
    verb, complement = words.verb_and_object()
    forms = (verb.past, words.fresh(words.lexicon.intransitive_verbs).past)
    has_object = words.coin()
    complement = f" {complement}" if has_object else ""
    return crossed(f"{words.named_or_person()} {{}}{complement}{words.tail()}.", forms, has_object)


def verb_form(words: WordSampler) -> Pair:
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


def pronoun_case(words: WordSampler) -> Pair:
    """He / Him praised the baker; the baker praised him / he."""
    other, verb, tail = words.named_or_person(), words.person_verb().past, words.tail()
    is_subject = words.coin()
    clause = f"{{}} {verb} {other}{tail}." if is_subject else f"{other} {verb} {{}}{tail}."
    if words.coin():
        clause = f"{words.named_or_person()} thought that {clause}"
    return crossed(clause, words.choose(_PRONOUNS), is_subject)


def tense_and_time(words: WordSampler) -> Pair:
    """The baker took it yesterday / tomorrow; the baker will take it tomorrow / yesterday."""
    past, first = words.coin(), words.coin()
    verb, complement = words.verb_and_object()
    event = f"{words.named_or_person()} {verb.past if past else f'will {verb.base}'} {complement}"
    clause = f"{{}} {event}." if first else f"{event} {{}}."
    return crossed(clause, (words.choose(_PAST_TIMES), words.choose(_FUTURE_TIMES)), past)


def comparative(words: WordSampler) -> Pair:
    """The baker is taller / tall than the pilot; the baker is as tall / taller as the pilot."""
    number, than = words.number(), words.coin()
    adjective = words.fresh(words.lexicon.personal_adjectives)
    subject, other = words.person(number), words.named_or_person()
    copula = words.choose(BE)[number]
    degree = "{} than" if than else "as {} as"
    clause = f"{subject} {copula} {degree} {other}."
    return crossed(clause, (adjective.comparative, adjective.plain), than)
