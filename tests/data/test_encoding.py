"""Token ids against hand-made ones, against one text at a time, and on the real tokenizer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import names, naming, refused
from tokenizers import processors
from word_tokenizer import word_tokenizer

from adapter_probe.data.encoding import encode
from adapter_probe.data.tasks import Split, find_task, load_split
from adapter_probe.errors import DataError

CLS, SEP, UNK, A, B, C, D, E = range(1, 9)


@pytest.fixture(scope="module")
def tokenizer():
    return word_tokenizer("abcde")


def split_of(texts, texts_b=None):
    return Split(tuple(texts), texts_b and tuple(texts_b), np.zeros(len(texts), dtype=np.int64), "train", "")


def as_lists(arrays):
    return [array.tolist() for array in arrays]


@pytest.mark.parametrize(
    ("texts", "texts_b", "most", "ids", "types"),
    [
        (["a b c", "", "zebra a"], None, 16, [[CLS, A, B, C, SEP], [CLS, SEP], [CLS, UNK, A, SEP]],
         [[0] * 5, [0] * 2, [0] * 4]),
        (["a b", ""], ["c", "d e"], 16, [[CLS, A, B, SEP, C, SEP], [CLS, SEP, D, E, SEP]],
         [[0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 1]]),
        # Long texts lose their end, and of a pair the longer one first.
        (["a b c d e"], None, 4, [[CLS, A, B, SEP]], [[0] * 4]),
        (["a b c d"], ["e"], 6, [[CLS, A, B, SEP, E, SEP]], [[0, 0, 0, 0, 1, 1]]),
    ],
)  # fmt: skip
def test_hand_made_ids(tokenizer, texts, texts_b, most, ids, types):
    encoded = encode(tokenizer, split_of(texts, texts_b), most)
    assert (as_lists(encoded.input_ids), as_lists(encoded.token_type_ids)) == (ids, types)
    assert {array.dtype for array in (*encoded.input_ids, *encoded.token_type_ids)} == {np.dtype(np.int64)}
    assert (encoded.lengths.dtype, encoded.lengths.tolist()) == (np.int64, [len(one) for one in ids])
    assert len(encoded) == len(texts)
    without = encode(word_tokenizer("abcde", ("input_ids", "attention_mask")), split_of(texts, texts_b), most)
    assert (as_lists(without.input_ids), without.token_type_ids) == (ids, None)


def test_texts_without_any_token_are_refused():
    bare = word_tokenizer("abcde")
    bare.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", pair="$A $B")
    encoded = encode(bare, split_of(["a b", "c"]), max_length=16)
    assert as_lists(encoded.input_ids) == [[A, B], [C]]
    with pytest.raises(DataError, match=naming("train", "2", "3")) as caught:
        encode(bare, split_of(["", "a b", " "]), max_length=16)
    assert "\n" not in str(caught.value)


texts = st.text("abcde z", max_size=12)


@given(pairs=st.lists(st.tuples(texts, texts), min_size=1, max_size=5), max_length=st.integers(5, 12))
def test_together_as_one_by_one(tokenizer, pairs, max_length):
    firsts, seconds = zip(*pairs)
    encoded = encode(tokenizer, split_of(firsts, seconds), max_length)
    backend = tokenizer.backend_tokenizer
    backend.enable_truncation(max_length)
    alone = [backend.encode(a, b) for a, b in pairs]
    assert as_lists(encoded.input_ids) == [one.ids for one in alone]
    assert as_lists(encoded.token_type_ids) == [one.type_ids for one in alone]
    assert encoded.lengths.max() <= max_length


@given(one=st.lists(texts, min_size=1, max_size=3), other=st.lists(texts, min_size=1, max_size=3))
def test_fingerprints_differ_exactly_where_ids_differ(tokenizer, one, other):
    first, second = (encode(tokenizer, split_of(some), 16) for some in (one, other))
    same = as_lists(first.input_ids) == as_lists(second.input_ids)
    assert (first.fingerprint == second.fingerprint) == same


def test_fingerprints_tell_token_types_and_where_examples_end(tokenizer):
    pair, single = split_of(["a"], ["b"]), split_of(["a [SEP] b"])
    as_pair, as_single = encode(tokenizer, pair, 8), encode(tokenizer, single, 8)
    assert as_lists(as_pair.input_ids) == as_lists(as_single.input_ids)
    without = encode(word_tokenizer("abcde", ("input_ids", "attention_mask")), single, 8)
    assert len({as_pair.fingerprint, as_single.fingerprint, without.fingerprint}) == 3
    assert encode(tokenizer, pair, 9).fingerprint == as_pair.fingerprint


@pytest.mark.parametrize(("texts_b", "least"), [(None, 3), (["b"], 5)])
def test_a_limit_without_room_for_the_texts(tokenizer, texts_b, least):
    split = split_of(["a"], texts_b)
    assert encode(tokenizer, split, least).lengths.tolist() == [least]
    said = refused(encode, tokenizer, split, least - 1)
    assert names(said, "maximum length", f"{least} tokens", str(least - 1))


@pytest.mark.real_data
def test_the_real_tokenizer_on_cola(shared_dir):
    from transformers import AutoTokenizer

    weights, data = shared_dir / "weights" / "gte-small", shared_dir / "data" / "cola"
    if not (weights.is_dir() and data.is_dir()):
        pytest.skip(f"no real weights and data at {weights} and {data}")
    tokenizer = AutoTokenizer.from_pretrained(weights)
    split = load_split(find_task(data), "train")
    encoded = encode(tokenizer, split, 128)
    assert encoded.lengths.tolist() == [len(ids) for ids in encoded.input_ids]
    words = tokenizer.convert_ids_to_tokens(encoded.input_ids[0].tolist())
    assert words[:5] == ["[CLS]", "our", "friends", "won", "'"]
    assert words[-1] == "[SEP]"
    for i in (0, 4000, 8550):
        assert encoded.input_ids[i].tolist() == tokenizer(split.texts[i])["input_ids"]
