"""The cases of the gallery of figures: which results, and what to draw of them.

`docs/gallery.py` draws them for people to look at; `tests/figures` draws the same cases and checks them. An
earlier commit draws them as well, so nothing is imported here but the public names; `gallery_results.py`
writes the results.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Case:
    """Some results and how they are drawn.

    Attributes:
        name: name of the folder of its pictures.
        shows: what there is to look at.
        folders: names of the results, see `gallery_results.FOLDERS`.
        options: arguments of `adapter_probe.draw`.
        how: ``figures``, or what draws several ablations together: ``compare`` or ``against``.
        every_style: whether every venue is drawn, and not the default and slides alone.
    """

    name: str
    shows: str
    folders: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    how: str = "figures"
    every_style: bool = False

    @property
    def results(self) -> list[str]:
        """The names of all results that it is drawn from."""
        return [*self.folders, *filter(None, [self.options.get("overlay")])]

    def studies(self, root: Path) -> list[Any]:
        """The studies to draw, whose folders `gallery_results.write` has written below `root`."""
        import adapter_probe

        paths = [root / name for name in self.folders]
        if self.how == "figures":
            return (
                [adapter_probe.average(paths)]
                if self.options.get("average")
                else list(map(adapter_probe.load, paths))
            )
        joint = adapter_probe.compare if self.how == "compare" else adapter_probe.compare_data
        return [joint(*paths)]

    def arguments(self, root: Path) -> dict[str, Any]:
        """The arguments of `adapter_probe.draw` besides the studies."""
        own = {name: value for name, value in self.options.items() if name != "average"}
        return own | ({"overlay": root / own["overlay"]} if "overlay" in own else {})

    def command(self, style: str) -> str:
        """What a reader types to get the figure from their own results."""
        names = " ".join(self.folders)
        look = [] if style == "paper" else [f"--style {style}"]
        if self.how == "against":
            return f"adapter-probe ablate CHECKPOINT --against OTHER_DATA --out {self.folders[0]}"
        if self.how == "compare":
            return " ".join([f"adapter-probe compare {names}", *look])
        for name, value in self.options.items():
            flag = {"labels": "--label", "formats": "--format"}.get(name, f"--{name}")
            given = value if isinstance(value, (list, tuple)) else [value]
            look += [flag] if value is True else [f"{flag} {shlex.quote(str(one))}" for one in given]
        return " ".join([f"adapter-probe figures {names}", *look])


_SEEDS = ("cola-seed-0", "cola-seed-1", "cola-seed-2")
_LABELS = ("CoLA, adapters of size 64 in both sublayers", "MNLI-m, gte-small, third training seed")
_DEEP = ("deep-seed-0", "deep-seed-1")
CASES = (
    Case("ablation", "CoLA on 12 layers: drops, and their attribution.", ("cola",), every_style=True),
    Case("paper", "The same beside what Houlsby et al. (2019) published.", ("cola",), {"paper": True}),
    Case("two-tasks", "Two ablations as panels, with long labels.", ("cola", "mnli"), {"labels": _LABELS}),
    Case("layers-24", "24 layers: numbers where they fit.", ("layers-24",)),
    Case("layers-30", "30 layers.", ("layers-30",)),
    Case("groups", "30 layers in groups of three, of a language model.", ("arc",)),
    Case("gains", "Layers without which the model is better.", ("gains",)),
    Case("small-gains", "Small gains, not significant.", ("small-gains",)),
    Case("undefined", "Two spans without a score.", ("undefined",)),
    Case("preferences", "The margin of chosen and rejected answers, in nats.", ("preferences",)),
    Case("embeddings", "Embeddings without labels: the cosine to the intact ones.", ("embeddings",)),
    Case("one-layer", "One layer: one span, one share, one value on the colour bar.", ("one-layer",)),
    Case("stacks", "An encoder and a decoder.", ("stacks",)),
    Case("stacks-single", "An encoder and a decoder, single layers.", ("stacks-single",)),
    Case("kept", "Spans kept on, all others off.", ("kept",)),
    Case("curve", "Spans up to the last layer, of a language model.", ("arc-suffix",), every_style=True),
    Case("single", "Single layers, one of them without a score.", ("single",)),
    Case("divergence", "A divergence instead of a score.", ("sentences",)),
    Case("two-units", "Accuracy and a divergence: a figure each.", ("cola", "sentences")),
    Case("average", "The mean over three seeds.", _SEEDS, {"average": True}, every_style=True),
    Case("average-deep", "24 layers: the spread in a second grid.", _DEEP, {"average": True}),
    Case("comparison", "The difference of two ablations.", _SEEDS[:2], how="compare", every_style=True),
    Case("data-comparison", "Every span on the task and on other data.", ("cola-seed-0", "other-data"),
         how="against", every_style=True),
    Case("modules", "Layers by modules.", ("modules-0",), every_style=True),
    Case("modules-30", "30 layers by seven modules, with gains and a cell without a score.", ("modules-30",)),
    Case("modules-groups", "Groups of layers by modules.", ("modules-groups",)),
    Case("modules-stacks", "An encoder and a decoder by modules.", ("modules-stacks",)),
    Case("modules-comparison", "The difference of two ablations by module.", ("modules-0", "modules-1"),
         how="compare"),
    Case("strength", "Score against the strength of the adapters.", ("strength",), every_style=True),
    Case("strength-layers", "The same, and each of 12 layers alone.", ("strength-layers",)),
    Case("ranks", "Score against the directions of the adapters, and spectra.", ("ranks",), every_style=True),
    Case("ranks-layers", "The same, and each of 12 layers alone.", ("ranks-layers",)),
    Case("init-sweep", "The initialisation of adapters, three seeds.", ("init-sweep",), every_style=True),
    Case("init-sweep-lora", "The initialisation of LoRA, with PEFT's by name.", ("init-sweep-lora",)),
    Case("init-sweep-one-seed", "One seed: no mean, no error.", ("init-sweep-one-seed",)),
    Case("init-sweep-equal", "All scores equal.", ("init-sweep-equal",)),
    Case("tradeoff", "Nine tasks: by parameters, over all, and by size.", ("tradeoff",), every_style=True),
    Case("tradeoff-one-task", "One task, one seed.", ("tradeoff-one-task",)),
    Case("tradeoff-methods", "Eight methods on two tasks.", ("tradeoff-two-tasks",)),
    Case("tradeoff-long-names", "Tasks with long names.", ("tradeoff-long-names",), every_style=True),
    Case("overlay", "Results of other people, five methods in three sizes.", ("tradeoff-two-tasks",),
         {"overlay": "results-of-the-method-comparison.csv"}),
)  # fmt: skip
