"""Ablation and pruning of checkpoints that other libraries wrote and that remember no data."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from where import DEVICE

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.checkpoints.native import names_of_outputs
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.data.task_of_files import given_task
from adapter_probe.errors import CheckpointError, DataError
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.request import AblationRequest, prepare_ablation

FIXTURES = Path(__file__).parents[1] / "checkpoints" / "fixtures"
BERT = str(FIXTURES / "bases" / "bert")
NAMES = ("bad", "fair", "good")


def rows(path: Path, labels: list) -> Path:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in draw.integers(0, 48, 3 + n % 4)) for n in range(len(labels))]
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in zip(texts, labels)))
    return path


def request(case: str, data: Path, **settings: object) -> AblationRequest:
    chosen = AblationSettings(**settings)
    arguments = AblationArguments(str(FIXTURES / case), chosen, base=BERT, data=(str(data),))
    return prepare_ablation(arguments, DEVICE)


def labels_of(case: str, data: Path) -> tuple[list[int], tuple[str, ...]]:
    made = request(case, data)
    return made.examples.labels.tolist(), made.checkpoint.description.task.label_names


def test_labels_by_name_in_any_order_and_case(tmp_path: Path):
    data = rows(tmp_path / "d.jsonl", ["good", "Bad".lower(), "fair", "good"])
    assert labels_of("adapterhub/houlsby", data) == ([2, 0, 1, 2], NAMES)
    data = rows(tmp_path / "e.jsonl", ["Good", "Bad", "Fair", "Good"])
    assert labels_of("adapterhub/houlsby", data) == ([2, 0, 1, 2], ("Bad", "Fair", "Good"))


def test_labels_by_number_even_where_not_all_occur(tmp_path: Path):
    data = rows(tmp_path / "d.jsonl", [2, 0, 2, 0])
    assert labels_of("adapterhub/houlsby", data) == ([2, 0, 2, 0], ("0", "1", "2"))
    assert labels_of("peft/lora", data) == ([2, 0, 2, 0], ("0", "1", "2"))


def test_adapters_that_layers_share_are_counted_for_no_layer(tmp_path: Path):
    made = request("adapterhub/houlsby", rows(tmp_path / "d.jsonl", [0, 1, 2]))
    model, stored = made.model, made.checkpoint.tensors
    assert sum(model.site_parameters) == sum(t.numel() for name, t in stored.items() if ".adapter." in name)
    first, second, *_ = (part[0].bottleneck for part in model.site_modules if part)
    second.up = first.up
    assert model.site_parameters is None


def test_low_rank_adapters_that_layers_share_are_counted_for_no_layer(tmp_path: Path):
    made = request("adapterhub/lora", rows(tmp_path / "d.jsonl", [0, 1, 2]))
    model, stored = made.model, made.checkpoint.tensors
    wanted = [
        sum(t.numel() for name, t in stored.items() if f"layer.{n}.attention" in name and ".adapter." in name)
        for n in range(3)
    ]
    assert min(wanted) > 0
    assert model.site_parameters == tuple(count for n in wanted for count in (n, 0))
    first, second, *_ = (part[0] for part in model.site_modules if part)
    second.lora_B = first.lora_B
    assert model.site_parameters is None


def test_labels_that_nothing_orders_are_refused(tmp_path: Path):
    data = rows(tmp_path / "d.jsonl", ["x", "y", "z", "x"])
    refuses(DataError, ("x, y, z", "3", "bad, fair, good"), request, "adapterhub/houlsby", data)
    refuses(DataError, ("--label-names", "0", "2"), request, "peft/lora", data)


def test_names_that_are_given_order_the_labels(tmp_path: Path):
    data = rows(tmp_path / "d.jsonl", ["x", "y", "z", "x"])
    task = open_any(FIXTURES / "peft/lora", BERT).description.task
    for names in (("z", "x", "y"), ("Z", "x", "y")):
        made = given_task(task, [data], "validation", "c", label_names=names)
        assert made.label_names == ("z", "x", "y")
    for names, words in (
        (("x", "y"), ("2", "3")),
        (("x", "y", "y"), ("2",)),
        (("x", "y", "w"), ("x, y, z", "3", "x, y, w")),
    ):
        refuses(DataError, words, given_task, task, [data], "validation", "c", label_names=names)
    native = replace(task, label_names=("a", "b", "c"), files={"train": ("t",), "validation": ("v",)})
    refuses(DataError, ("a, b, c",), given_task, native, (), "validation", "c", label_names=("x", "y", "z"))


@pytest.mark.parametrize(
    ("own", "base", "names"),
    [
        (None, {"0": "bad", "1": "fair", "2": "good"}, NAMES),
        ({"0": "no", "1": "may", "2": "yes"}, {"0": "bad", "1": "fair", "2": "good"}, ("no", "may", "yes")),
        (None, {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, ("0", "1", "2")),
        (None, {"0": "bad", "1": "good"}, ("0", "1", "2")),
        (None, {"0": "bad", "1": "good", "2": "good"}, ("0", "1", "2")),
        (None, ["bad", "fair", "good"], ("0", "1", "2")),
        ({"0": "a", "1": "b"}, {}, ("0", "1", "2")),
    ],
)
def test_real_names_in_the_configuration_name_the_outputs(own, base, names, tmp_path: Path):
    place = tmp_path / "config.json"
    if own is not None:
        place.write_text(json.dumps({"id2label": own}))
    assert names_of_outputs(3, place, {"id2label": base}) == names


def test_sites_without_anything_inside_are_told(tmp_path: Path):
    data = rows(tmp_path / "d.jsonl", [0, 1, 2])
    refuses(CheckpointError, ("--sites ffn", "attention"), request, "peft/lora", data, sites="ffn")
