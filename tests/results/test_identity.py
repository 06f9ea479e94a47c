from __future__ import annotations

import copy
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.results.fingerprints import (
    canonical_json,
    describe_changes,
    hash_json,
    list_changes,
    shorten,
    to_plain,
)

LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
KEYS = st.text("abcdef", min_size=1, max_size=4)
PLAIN = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=8)
IDENTITIES = st.dictionaries(KEYS, PLAIN, max_size=4)


@given(PLAIN)
def test_plain_values_survive_json(value: object):
    assert json.loads(json.dumps(to_plain(value))) == value
    assert json.loads(canonical_json(value)) == value


def test_tuples_and_numpy_scalars_become_plain():
    given_value = {"a": (1, np.int64(2)), "b": np.float32(0.5), "c": np.bool_(True), "d": np.str_("x")}
    assert to_plain(given_value) == {"a": [1, 2], "b": 0.5, "c": True, "d": "x"}
    assert to_plain([math.nan, np.float64("nan")]) == [None, None]


@pytest.mark.parametrize("value", [{"a": np.zeros(2)}, {1: "a"}, [object()], {"a": {2.0}}])
def test_what_json_cannot_hold_is_a_type_error(value: object):
    with pytest.raises(TypeError, match="JSON"):
        to_plain(value)


def test_infinity_is_a_value_error():
    with pytest.raises(ValueError, match="infinity"):
        to_plain({"a": -math.inf})


@given(IDENTITIES)
def test_hash_json_ignores_the_order_of_keys_only(value: dict):
    assert hash_json(dict(reversed(value.items()))) == hash_json(value)
    assert hash_json([value, 0]) != hash_json([0, value])


def test_hash_json_is_sha256_of_the_canonical_text():
    # printf '{"a":[1,2.5,null],"b":"\\u00e9"}' | sha256sum
    known = "45584828a616e524473fb887d415f828918fb9676efdaa57c062231771111499"
    assert hash_json({"b": "é", "a": (1, 2.5, None)}) == known


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("3f2a" * 16, "3f2a3f2a…"),
        ("bfloat16", "bfloat16"),
        ("two\nlines", "two\\nlines"),
        ("x" * 40, "x" * 40),
        ("x" * 41, "x" * 20 + "…" + "x" * 20),
        (None, "null"),
        (0.5, "0.5"),
        (["a", "b"], '["a","b"]'),
        ("/home/" + "x" * 100 + "/end.csv", "/home/xxxxxxxxxxxxxx…xxxxxxxxxxxx/end.csv"),
    ],
)
def test_shorten(value: object, shown: str):
    assert shorten(value) == shown


def leaf_paths(value: object, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Written apart from the code under test: where a dict of dicts holds something else than a dict."""
    if not isinstance(value, dict) or (path and not value):
        return [path]
    return [found for key in value for found in leaf_paths(value[key], (*path, key))]


@given(IDENTITIES, st.data())
def test_every_changed_key_is_named_and_no_other(old: dict, data: st.DataObject):
    paths = leaf_paths(old)
    changed = data.draw(st.lists(st.sampled_from(paths), unique=True)) if paths else []
    new = copy.deepcopy(old)
    for path in changed:
        inside = new
        for key in path[:-1]:
            inside = inside[key]
        inside[path[-1]] = ["changed", inside[path[-1]]]
    lines = describe_changes(old, new)
    assert [line.partition(":")[0] for line in lines] == [".".join(path) for path in sorted(changed)]
    assert all("\n" not in line for line in lines)


@given(IDENTITIES, IDENTITIES)
def test_no_change_is_described_only_between_equals(old: dict, new: dict):
    assert describe_changes(old, old) == []
    assert bool(describe_changes(old, new)) == (canonical_json(old) != canonical_json(new))


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"data": {"sha": "3f" * 32}}, {"data": {"sha": "9b" * 32}}, ["data.sha: 3f3f3f3f… -> 9b9b9b9b…"]),
        ({"a": 1}, {"b": {"c": 2}}, ["a: 1 -> absent", "b.c: absent -> 2"]),
        ({"a": 1}, {"a": {"b": 1}}, ["a: 1 -> absent", "a.b: absent -> 1"]),
        ({"a": {}}, {}, ["a: {} -> absent"]),
        ({"a": 1}, {"a": True}, ["a: 1 -> true"]),
        ({"a.b": 1}, {"a": {"b": 1}}, ["a.b: absent -> 1", "a.b: 1 -> absent"]),
        ({"a": (1, 2)}, {"a": [1, 2]}, []),
        ({"a": None}, {"a": "null"}, ['a: null -> "null"']),
    ],
)
def test_how_changes_read(old: dict, new: dict, lines: list[str]):
    assert describe_changes(old, new) == lines


@pytest.mark.parametrize(
    ("n", "listed"), [(1, "a0"), (4, "a0; a1; a2; a3"), (5, "a0; a1; a2; a3 and 1 more")]
)
def test_four_changes_are_listed_and_the_others_counted(n: int, listed: str):
    assert list_changes([f"a{i}" for i in range(n)]) == listed


def test_a_change_in_the_middle_of_a_long_value_shows():
    old, new = "x" * 100 + "old" + "y" * 100, "x" * 100 + "new" + "y" * 100
    [line] = describe_changes({"path": old}, {"path": new})
    assert "old" in line
    assert "new" in line
    assert len(line) < 120
    [line] = describe_changes({"sha": "ab" * 31 + "00"}, {"sha": "ab" * 31 + "01"})
    was, _, now = line.removeprefix("sha: ").partition(" -> ")
    assert was != now
