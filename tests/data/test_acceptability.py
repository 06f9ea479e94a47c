"""The generated task: pairs, splits, held-out words, no giveaways, right labels by independent rules."""

import hashlib
import json
import re
from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder

from adapter_probe.data.acceptability import PHENOMENA, generate, minimal_pairs, write
from adapter_probe.data.acceptability.lexicon import lexicon
from adapter_probe.errors import DataError


def word_forms(split):
    """Every inflected form of every content word, in lower case."""
    for word in chain.from_iterable(vars(lexicon(split)).values()):
        for part in [word] if isinstance(word, str) else vars(word).values():
            yield from map(str.lower, [part] if isinstance(part, str) else part)


def listed(words):
    return set(words.split())


# Written out by hand, independently of the grammar: the words that both splits may use.
CLOSED_CLASS = listed(
    """the a an some every all this these that those which whose who what no few than as and to from in
    of near behind beside front before after while without there almost ever never often always
    sometimes usually rarely is are was were has have had did will must can should he him she her
    they them we us i me himself herself thought yesterday tomorrow last next week night month year
    ago two days now"""
)
# The contrasts in which the edit moves words and changes none.
REORDERED = {
    "adjunct_island",
    "relative_clause_island",
    "coordinate_structure",
    "left_branch",
    "adverb_placement",
    "inversion",
    "negative_polarity",
}


@pytest.fixture(scope="module")
def task():
    return generate(n_train=6000, n_validation=2000, seed=0)


@pytest.fixture(scope="module")
def pairs():
    found = {name: [] for name in PHENOMENA}
    for split in ("train", "validation"):
        for name, pair in minimal_pairs(split, 100 * len(PHENOMENA), seed=11):
            found[name].append((tokens(pair.good), tokens(pair.bad)))
    return found


def tokens(sentence):
    return re.findall(r"[a-z]+", sentence.lower())


def is_acceptable(examples):
    return np.array([example.label == "acceptable" for example in examples])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_counts_balance_and_phenomena(task, split):
    examples = task[split]
    assert len(examples) == {"train": 6000, "validation": 2000}[split]
    assert Counter(example.label for example in examples) == {
        "acceptable": len(examples) // 2,
        "unacceptable": len(examples) // 2,
    }
    assert len(PHENOMENA) >= 12
    counts = Counter((example.phenomenon, example.label) for example in examples)
    assert set(counts) == {(name, label) for name in PHENOMENA for label in ("acceptable", "unacceptable")}
    assert max(counts.values()) - min(counts.values()) <= 1


def test_no_sentence_twice(task):
    sentences = [example.sentence.lower() for examples in task.values() for example in examples]
    assert len(set(sentences)) == len(sentences) == 8000


def test_same_bytes_everywhere():
    text = json.dumps(
        {
            split: [[e.sentence, e.label, e.phenomenon] for e in examples]
            for split, examples in generate(200, 80, seed=3).items()
        }
    )
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "fa7c5ac2e38141465fa7e0f91cc266222e70e42a0a19e9c2d5eaff2ca5b0aec1"


def test_seed_and_sizes_matter_only_where_they_should():
    assert generate(40, 40, seed=1)["train"] != generate(40, 40, seed=2)["train"]
    assert generate(40, 40, seed=1)["validation"] == generate(400, 40, seed=1)["validation"]


def test_validation_words_are_held_out(task):
    seen = {
        split: {word for example in examples for word in tokens(example.sentence)}
        for split, examples in task.items()
    }
    assert seen["train"] & seen["validation"] <= CLOSED_CLASS
    assert len(seen["validation"] - CLOSED_CLASS) > 200


def test_every_word_is_listed_once():
    listed = Counter(
        entry
        for split in ("train", "validation")
        for words in vars(lexicon(split)).values()
        for entry in words
    )
    assert max(listed.values()) == 1
    forms = {split: set(word_forms(split)) for split in ("train", "validation")}
    assert not forms["train"] & forms["validation"]
    assert not (forms["train"] | forms["validation"]) & CLOSED_CLASS


def test_inflection():
    lexicons = [lexicon("train"), lexicon("validation")]
    verbs = {
        verb.base: (verb.present[0], verb.past, verb.participle, verb.gerund)
        for words in lexicons
        for listed in (words.person_verbs, words.thing_verbs, words.intransitive_verbs, words.embedding_verbs)
        for verb in listed
    }
    assert verbs["punish"] == ("punishes", "punished", "punished", "punishing")
    assert verbs["carry"] == ("carries", "carried", "carried", "carrying")
    assert verbs["betray"] == ("betrays", "betrayed", "betrayed", "betraying")
    assert verbs["seize"] == ("seizes", "seized", "seized", "seizing")
    assert verbs["take"] == ("takes", "took", "taken", "taking")
    plurals = dict(n.forms for words in lexicons for n in (*words.people, *words.women, *words.things))
    assert [plurals[n] for n in ("box", "knife", "lady", "key", "princess", "woman")] == [
        "boxes",
        "knives",
        "ladies",
        "keys",
        "princesses",
        "women",
    ]


def test_pairs_differ_in_a_small_edit(pairs):
    for name, found in pairs.items():
        for good, bad in found:
            only_good, only_bad = Counter(good) - Counter(bad), Counter(bad) - Counter(good)
            assert good != bad, name
            if name in REORDERED:
                assert Counter(good) == Counter(bad), (name, good, bad)
            elif name == "tense_and_time":  # the edit is a phrase: "yesterday" against "in a few days"
                assert only_good.total() <= 4
                assert only_bad.total() <= 4
            else:
                assert only_good.total() == only_bad.total() == 1, (name, good, bad)
                assert sum(a != b for a, b in zip(good, bad, strict=True)) == 1


def test_a_bag_of_words_stays_near_chance(task):
    vectoriser = CountVectorizer(token_pattern=r"\w+|[.?]")
    train = vectoriser.fit_transform(e.sentence for e in task["train"])
    validation = vectoriser.transform(e.sentence for e in task["validation"])
    for strength in (0.01, 1.0):
        model = LogisticRegression(C=strength, max_iter=2000).fit(train, is_acceptable(task["train"]))
        assert model.score(validation, is_acceptable(task["validation"])) < 0.6


def test_length_and_punctuation_stay_near_chance(task):
    def shape(examples):
        return [(len(e.sentence), len(e.sentence.split()), e.sentence[-1]) for e in examples]

    encoder = OneHotEncoder(handle_unknown="ignore")
    model = LogisticRegression(max_iter=2000)
    model.fit(encoder.fit_transform(shape(task["train"])), is_acceptable(task["train"]))
    score = model.score(encoder.transform(shape(task["validation"])), is_acceptable(task["validation"]))
    assert score < 0.55


def test_no_single_word_gives_the_label_away():
    examples = generate(20000, 2, seed=5)["train"]
    present, acceptable = Counter(), Counter()
    for example in examples:
        for word in set(tokens(example.sentence)):
            present[word] += 1
            acceptable[word] += example.label == "acceptable"
    common = [word for word, count in present.items() if count >= 400]
    assert len(common) > 25
    for word in common:
        assert 0.4 < acceptable[word] / present[word] < 0.6, word


# Independent rules, one a phenomenon: each decides a sentence from its words alone.
def both(word_class):
    """The words of one class, of both splits."""
    return [word for split in ("train", "validation") for word in getattr(lexicon(split), word_class)]


COMPARATIVES = {adjective.comparative for adjective in both("personal_adjectives")}
PLURALS = {noun.forms[1] for noun in both("people") + both("things")}
NOUNS = PLURALS | {noun.forms[0] for noun in both("people") + both("things")}
BASES = {verb.base for verb in both("person_verbs")}
INTRANSITIVE = {verb.past for verb in both("intransitive_verbs")}
NP_STARTS = {"the", *(name.lower() for name in both("male_names") + both("female_names"))}
VERB_FORMS = {}
for verb in both("person_verbs") + both("thing_verbs"):
    VERB_FORMS |= {verb.participle: "have", verb.gerund: "be", verb.base: "modal"}
NEEDED_FORM = {"has": "have", "have": "have", "is": "be", "are": "be"}
NEEDED_FORM |= dict.fromkeys(("will", "must", "can", "should"), "modal")
FEMININE = listed(
    """mary anna susan laura helen emma alice sarah julia karen linda rachel emily nancy diana jessica martha
    ruth lucy sophie clara maria barbara jane girl woman mother sister daughter aunt queen princess
    grandmother niece wife bride nun lady duchess girlfriend actress granddaughter"""
)
FREQUENCY = listed("often always sometimes usually rarely never")
AFTER_INTRANSITIVE = listed("near behind beside in yesterday last two")


def after(words, kind):
    """The words from the first one of a kind on."""
    return words[next(i for i, word in enumerate(words) if word in kind) :]


def agrees(words):
    """The last auxiliary agrees with the first noun."""
    auxiliary = after(words[::-1], {"is", "are", "was", "were", "has", "have"})[0]
    return (auxiliary in {"are", "were", "have"}) == (after(words, NOUNS)[0] in PLURALS)


def determiner_agrees(words):
    determiner, *rest = after(words, {"this", "these", "that", "those"})
    return (determiner in {"these", "those"}) == (after(rest, NOUNS)[0] in PLURALS)


def object_fits(words):
    """An intransitive verb is followed by nothing, a place or a time; any other verb by its object."""
    irregular = {"slept", "wept", "knelt", "took", "sought", "wore", "held"}
    verb, *rest = after(words, {word for word in words[1:] if word.endswith("ed")} | irregular)
    return (not rest or rest[0] in AFTER_INTRANSITIVE) == (verb in INTRANSITIVE)


def auxiliary_fits(words):
    auxiliary, *rest = after(words, NEEDED_FORM)
    return VERB_FORMS[after(rest, VERB_FORMS)[0]] == NEEDED_FORM[auxiliary]


def pronoun_fits(words):
    clause = words[words.index("that") + 1 :] if "that" in words else words
    is_nominative = bool(set(clause) & {"he", "she", "they", "we", "i"})
    return is_nominative == (clause[0] in {"he", "she", "they", "we", "i", "him", "her", "them", "us", "me"})


def time_fits(words):
    return bool({"tomorrow", "next", "few", "from"} & set(words)) == ("will" in words)


def adjunct_verb_has_object(words):
    _, *rest = after(words, {word for word in words if word.endswith("ing")})
    return rest[:1] != [] and rest[0] in NP_STARTS


RULES = {
    "subject_verb_agreement": agrees,
    "agreement_across_phrase": agrees,
    "agreement_across_relative": agrees,
    "determiner_noun_agreement": determiner_agrees,
    "determiner_adjective_noun_agreement": determiner_agrees,
    "reflexive_gender": lambda words: ("herself" in words) == bool(FEMININE & set(words)),
    "transitivity": object_fits,
    "verb_form": auxiliary_fits,
    "pronoun_case": pronoun_fits,
    "tense_and_time": time_fits,
    "comparative": lambda words: ("than" in words) == bool(COMPARATIVES & set(words)),
    "wh_island": lambda words: (words[0] == "who") != ("who" in words[1:]),
    "adjunct_island": adjunct_verb_has_object,
    "relative_clause_island": lambda words: after(words, {"that"})[2:3] == ["the"],
    "coordinate_structure": lambda words: words[words.index("and") - 1] not in BASES,
    "left_branch": lambda words: words[1] != "did",
    "adverb_placement": lambda words: after(words, FREQUENCY)[1] not in NP_STARTS,
    "inversion": lambda words: (after(words, {"what"})[1] in {"has", "have"}) == (words[0] == "what"),
    "negative_polarity": lambda words: words[0] in {"no", "few"},
    "existential_quantifier": lambda words: (words[0] == "there") == bool({"a", "an", "some"} & set(words)),
}


@pytest.mark.parametrize("name", PHENOMENA)
def test_labels_follow_an_independent_rule(pairs, name):
    for good, bad in pairs[name]:
        assert RULES[name](good), good
        assert not RULES[name](bad), bad


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**40), half_train=st.integers(1, 60), half_validation=st.integers(1, 60))
def test_any_seed_and_size(seed, half_train, half_validation):
    task = generate(2 * half_train, 2 * half_validation, seed)
    assert [len(examples) for examples in task.values()] == [2 * half_train, 2 * half_validation]
    for examples in task.values():
        assert is_acceptable(examples).mean() == 0.5
        for example in examples:
            assert re.fullmatch(r"[A-Z][A-Za-z]*( [A-Za-z]+)*[.?]", example.sentence), example.sentence


def test_write_is_an_ordinary_jsonl_task(tmp_path):
    paths = write(tmp_path / "generated", 40, 20, seed=0)
    rows = [json.loads(line) for line in paths["train"].read_bytes().decode().splitlines()]
    assert [tuple(row) for row in rows] == [("sentence", "label", "phenomenon")] * 40
    assert [row["sentence"] for row in rows] == [e.sentence for e in generate(40, 20, seed=0)["train"]]
    assert paths["validation"] == tmp_path / "generated" / "validation.jsonl"
    assert len(paths["validation"].read_text().splitlines()) == 20


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot write the generated task to .*file"):
        write(tmp_path / "file", 2, 2, seed=0)
