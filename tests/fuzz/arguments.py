"""Calls of the public functions with one or two arguments replaced by something odd.

Runs in a child of `program`: exit code 2 and one line, as the commands give, or the call goes through. What
an ablation then holds is compared with the undisturbed one.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

CIRCULAR: list[Any] = []
CIRCULAR.append(CIRCULAR)
HUGE = (10**30, 10**400, 1e300)
"""Not given where they are a lawful wish that only takes for ever, such as a number of epochs."""
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 1.5, float("nan"), float("inf"), *HUGE, "", "x", "nonsense", "a\0b", "x" * 300,
    "\ud800", "9" * 5000, "٣", "/dev/zero", b"x", [], [None], ["x", 3], {}, {"x": 1}, (), set(), object(),
    lambda: 0.0, lambda labels, predictions: 0.5, lambda labels, predictions: "x", Path("nowhere"),
    Path("/dev/null"), np.array([1.0]), np.array(3), np.int64(1), pd.DataFrame(),
    pd.DataFrame({"text": ["a"]}),
    CIRCULAR, [CIRCULAR], iter(()), slice(1), [("a", "b")], (["fine"], ["positive"]), "out", ["out", "other"],
    np.ones(6, bool), (0, 1), range(3), complex(1, 1),
)  # fmt: skip
TEXTS = ["the cat saw a dog", "fine", "a bird was cruel"]

Call = tuple[Callable[..., Any], dict[str, Any]]


def calls() -> dict[str, Call]:
    """Every function with arguments that are right; paths are those of the subject's folder."""
    import adapter_probe as ap

    def method(owner: Callable[[], Any], name: str) -> Callable[..., Any]:
        return lambda **given: getattr(owner(), name)(**given)

    def opened() -> Any:
        return ap.open("checkpoint", base="base")

    place = {"base": "base", "task": "task", "progress": False}
    sweep = {"seeds": 1, "epochs": 1, "learning_rates": 0.01, "max_train": 16, "workers": 1}
    source = {"base": "base", "data": "rows.jsonl"}
    rows = {**source, "progress": False}
    return {
        "ablate": (ap.ablate, {"checkpoint": "checkpoint", "out": "new", "metric": "accuracy", **rows}),
        "plan": (ap.ablate.plan, {"checkpoint": "checkpoint", **rows}),
        "open": (ap.open, {"checkpoint": "checkpoint", "base": "base", "device": "cpu", "dtype": "float32"}),
        "logits": (method(opened, "logits"), {"texts": TEXTS, "off": (0, 1)}),
        "variants": (method(opened, "variants"), {"texts": TEXTS, "masks": np.ones((2, 6), bool)}),
        "use": (method(opened, "use"), {"checkpoint": "checkpoint"}),
        "inspect": (ap.inspect, {"checkpoint": "checkpoint", "base": "base", "adapter": None}),
        "load": (ap.load, {"folder": "out"}),
        "heatmap": (method(lambda: ap.load("out"), "heatmap"), {"tolerance": 1.0, "style": "paper"}),
        "save": (
            method(lambda: ap.load("out"), "save"),
            {"folder": "drawn", "formats": "svg", "only": "heatmap", "labels": "a", "tolerance": 1.0},
        ),
        "compare": (ap.compare, {"a": "out", "b": "other"}),
        "average": (ap.average, {"studies": ["out", "seed1"]}),
        "compare_data": (ap.compare_data, {"task": "out", "other": "other"}),
        "report": (ap.report, {"folders": ["out", "sweep"], "out": "page.html", "tolerance": 1.0}),
        "model_card": (ap.model_card, {"folders": "out", "out": "card.md", "tolerance": 1.0}),
        "prune": (
            ap.prune,
            {"checkpoint": "checkpoint", "out": "pruned", "span": (0, 0), **source},
        ),
        "convert": (
            ap.convert,
            {"source": "checkpoint", "out": "converted", "to": "adapterhub", "base": "base"},
        ),
        "init_sweep": (ap.init_sweep.plan, {"out": "sweep", "stds": [0.1], "size": 2, **place, **sweep}),
        "tradeoff": (ap.tradeoff.plan, {"out": "tradeoff", "sizes": [2], "top_k": [1], **place, **sweep}),
        "suite": (ap.suite.plan, {"file": "suite.toml", "out": "suite", "progress": False}),
    }  # fmt: skip


def draw(name: str, generator: random.Random) -> tuple[dict[str, Any], str]:
    """The arguments of a call, some of them odd, and what was replaced, in words."""
    _, given = calls()[name]
    # One that is left out counts as an argument that nobody knows.
    names = [one for one in given if one != "progress"]
    chosen = generator.sample(names, min(len(names), generator.choice((1, 1, 2))))
    odd = {one: generator.choice(ODD) for one in chosen}
    endless = ("epochs", "seeds", "max_train", "workers", "sizes", "size", "top_k", "learning_rates")
    odd = {one: value for one, value in odd.items() if not (one in endless and _is_huge(value))}
    words = ", ".join(f"{one}={_words(value)}" for one, value in odd.items())
    return {**given, **odd}, f"{name}: {words or 'unchanged'}"


def _is_huge(value: Any) -> bool:
    return any(value is one for one in HUGE)


def _words(value: Any) -> str:
    try:
        return ascii(value).replace("\n", " ")[:60]
    except Exception:
        return f"a {type(value).__name__}"


def run(name: str, seed: str) -> None:
    """Make the call, and end the process as a command would.

    Raises:
        SystemExit: always, with the command's exit code.
    """
    import adapter_probe as ap

    function, _ = calls()[name]
    given, _ = draw(name, random.Random(seed))
    try:
        made = function(**given)
    except ap.AdapterProbeError as error:
        print(f"adapter-probe: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    if isinstance(made, ap.Ablation) and name == "ablate":
        np.save("intact.npy", made.results.outputs[0])
    raise SystemExit(0)
