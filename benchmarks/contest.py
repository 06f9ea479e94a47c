"""One case: its contenders side by side, in alternation, and what came of it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Case
from environments import OWN, SCRATCH, python_of
from processes import Process

BATCH_SIZE, MAX_LENGTH = 32, 512  # of the peers: what their users' scripts have
PRODUCT_SIZE = 2048


@dataclass(frozen=True)
class Player:
    """How a contender is started: its environment, its script, and its own settings."""

    environment: str
    script: str
    settings: dict[str, Any]
    label: str


PLAYERS = {
    "tree": Player(OWN, "prefix_tree.py", {"precision": "float32"}, "prefix tree"),
    "tree-bfloat16": Player(OWN, "prefix_tree.py", {"precision": "bfloat16"}, "prefix tree, bfloat16"),
    "tree-mixed": Player(OWN, "prefix_tree.py", {"precision": "mixed"}, "prefix tree, mixed"),
    "loop": Player(OWN, "plain_loop.py", {}, "plain loop, own model"),
    "hooks": Player(OWN, "hooked_loop.py", {"by_length": True}, "plain loop, hooks, by length"),
    "adapters": Player("adapters", "adapters_library.py", {"by_length": False}, "adapters, file order"),
    "adapters-sorted": Player("adapters", "adapters_library.py", {"by_length": True}, "adapters, by length"),
    "peft-sorted": Player("peft", "peft_library.py", {"by_length": True}, "PEFT, by length"),
}


@dataclass(frozen=True)
class Setting:
    """What all contenders have in common."""

    threads: int
    rounds: int
    environments: Mapping[str, Path]
    product_size: int = PRODUCT_SIZE


def contest(case: Case, contenders: tuple[str, ...], setting: Setting) -> dict[str, Any]:
    """Run the contenders in alternation.

    In every round each contender runs once, and each time another one begins. The tree runs whole, the others
    run a share of their variants, another in each round, so that after the last round each has run all that
    are measured; as every variant costs them the same, a round's seconds are scaled to the whole grid.

    Returns:
        Raw numbers: ``about`` and ``memory`` by contender; ``rounds``, each with every contender's seconds
        for the whole grid and the machine's ``rate`` beside it; ``outputs``, files by contender.
    """
    scratch = SCRATCH / "running" / case.name
    scratch.mkdir(parents=True, exist_ok=True)
    raw: dict[str, Any] = {"about": {}, "memory": {}, "rounds": [], "outputs": {}}
    with ExitStack() as stack:
        processes = {}
        for name in contenders:
            processes[name] = stack.enter_context(_start(name, setting, scratch))
            raw["about"][name] = processes[name].ask("open", **_settings(name, case, setting, scratch))
            print(f"{case.name}: {name} is open", file=sys.stderr)
        rate = stack.enter_context(
            Process("rate", python_of(OWN, {}), "product_rate.py", setting.threads, scratch / "rate.log")
        )
        rate.ask("open", threads=setting.threads, size=setting.product_size)
        for number in range(setting.rounds):
            raw["rounds"].append(_round(number, processes, rate, raw["about"], setting))
            print(f"{case.name}: round {number + 1} of {setting.rounds} is done", file=sys.stderr)
        rate.ask("close", out=None)
        for name, process in processes.items():
            raw["outputs"][name] = scratch / f"{name}.npz"
            raw["memory"][name] = process.ask("close", out=str(raw["outputs"][name]))
    _check_same_tokens(raw["about"])
    return raw


def _start(name: str, setting: Setting, scratch: Path) -> Process:
    player = PLAYERS[name]
    python = python_of(player.environment, setting.environments)
    return Process(name, python, player.script, setting.threads, scratch / f"{name}.log")


def _settings(name: str, case: Case, setting: Setting, scratch: Path) -> dict[str, Any]:
    return {
        "case": str(case.folder),
        "threads": setting.threads,
        "every": case.every,
        "batch_size": BATCH_SIZE,
        "max_length": MAX_LENGTH,
        "scratch": str(scratch / f"{name}-results"),
        **PLAYERS[name].settings,
    }


def _round(
    number: int, processes: Mapping[str, Process], rate: Process, about: Mapping[str, Any], setting: Setting
) -> dict[str, Any]:
    """Every contender once, with the machine's rate measured before each."""
    names = list(processes)
    turn = number % len(names)
    found: dict[str, Any] = {}
    for name in names[turn:] + names[:turn]:
        before = rate.ask("run", share=0, shares=1)["rate"]
        reply = processes[name].ask("run", share=number, shares=setting.rounds)
        after = rate.ask("run", share=0, shares=1)["rate"]
        if not reply["variants"]:
            continue  # fewer variants than rounds
        seconds = reply["seconds"] * about[name]["variants"] / reply["variants"]
        found[name] = {"seconds": seconds, "measured": reply["seconds"], "rate": (before + after) / 2}
    return found


def _check_same_tokens(about: Mapping[str, Any]) -> None:
    """All contenders must have read the same texts.

    Raises:
        RuntimeError: they have not.
    """
    counts = {name: (one["examples"], one["tokens"], one["variants"]) for name, one in about.items()}
    if len(set(counts.values())) > 1:
        raise RuntimeError(f"the contenders differ in (examples, tokens, variants): {counts}")


def agreement(reference: Path, other: Path) -> dict[str, Any]:
    """How far two contenders' outputs differ, over the variants that both have run."""
    first, second = np.load(reference), np.load(other)
    rows = np.searchsorted(first["variants"], second["variants"])
    ours, theirs = first["logits"][rows], second["logits"]
    return {
        "differing": int((ours.argmax(-1) != theirs.argmax(-1)).sum()),
        "compared": int(np.prod(ours.shape[:2])),
        "largest_logit_difference": float(np.abs(ours - theirs).max()),
        "class_shares": np.bincount(ours.argmax(-1).ravel(), minlength=ours.shape[-1]).tolist(),
    }
