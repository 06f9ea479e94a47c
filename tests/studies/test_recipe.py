"""The configuration that an ablation suggests for the next LoRA, built by PEFT."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
from peft.tuners.lora.layer import LoraLayer
from peft_folders import KV, saved
from refusals import naming
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import adapter_probe as ap
from adapter_probe.analysis.peft_settings import ranks_by_share
from adapter_probe.errors import AdapterProbeError
from adapter_probe.spans import Span

LAYERS, RANK, ALPHA = 4, 4, 8
TEXTS = ["ab", "cd ab ba", "x y ab", "a longer one"]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> ap.Ablation:
    """Of a LoRA whose layer 2 does nothing."""
    folder = tmp_path_factory.mktemp("recipe")
    settings = KV | {"num_hidden_layers": LAYERS}
    checkpoint = saved(folder, "llama", settings, "CAUSAL_LM", ["v_proj", "down_proj"])
    model = peft.PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(folder / "base"), checkpoint, is_trainable=True
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".layers.2." in name and "lora_B" in name:
                parameter.zero_()
    model.save_pretrained(checkpoint)
    return ap.ablate(checkpoint, data=TEXTS, metric="kl", progress=False, out=checkpoint / "ablation")


def built(recipe: Path, study: ap.Ablation) -> dict[int, set[tuple[int, float]]]:
    """By layer, the ranks and scales of its LoRA in the model that PEFT makes of a recipe."""
    base = AutoModelForCausalLM.from_pretrained(study.folder.parent.parent / "base")
    model = peft.get_peft_model(base, peft.LoraConfig.from_pretrained(str(recipe)))
    found: dict[int, set[tuple[int, float]]] = {}
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            layer = int(name.split(".layers.")[1].split(".")[0])
            found.setdefault(layer, set()).add((module.r["default"], module.scaling["default"]))
    assert any(parameter.requires_grad for parameter in model.parameters())
    return found


def changed(study: ap.Ablation, folder: Path, name: str, other: str, **fields: object) -> Path:
    """A copy of the checkpoint with other names of its tensors and other fields of its configuration."""
    own = study.folder.parent
    tensors = load_file(own / "adapter_model.safetensors")
    save_file({n.replace(name, other): t for n, t in tensors.items()}, folder / "adapter_model.safetensors")
    config = json.loads((own / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**config, **fields}))
    return folder


@pytest.mark.parametrize("choice", [{"rank": 4}, {"keep": [0, 1]}])
def test_numbered_modules_inside_layers_are_refused(choice, study, tmp_path):
    """PEFT takes the number of an expert for that of the layer."""
    place = changed(study, tmp_path, "mlp.down_proj", "mlp.experts.1.down_proj")
    with pytest.raises(AdapterProbeError, match=naming("layers.0.mlp.experts.1.down_proj")) as caught:
        study.recipe(tmp_path / "out", checkpoint=place, **choice)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_ranks_of_the_checkpoints_own_pattern_are_not_told_by_layers(study, tmp_path):
    place = changed(study, tmp_path, "", "", rank_pattern={r"1\.mlp\.down_proj": 2})
    recipe = study.recipe(tmp_path / "out", checkpoint=place)
    assert (recipe.layers, recipe.ranks) == (tuple(range(LAYERS)), ())


def test_the_needed_layers_get_adapters(study, tmp_path):
    recipe = study.recipe(tmp_path, keep="needed", within=1e-4)
    assert recipe.removed == Span(2, 2)
    assert built(tmp_path, study) == {layer: {(RANK, 1.0 * ALPHA / RANK)} for layer in (0, 1, 3)}
    assert (recipe.layers, recipe.ranks) == ((0, 1, 3), (RANK,) * 3)
    told = (tmp_path / "README.md").read_text()
    assert "Without adapters: layer 2, the longest span within 1e-06 nats" in told
    assert "Nothing has been trained with this configuration" in told


@pytest.mark.parametrize("rank", [RANK, 6])
def test_ranks_follow_the_shares_and_scales_stay(study, rank, tmp_path):
    recipe = study.recipe(tmp_path, rank=rank)
    assert study.results.settings["lora_rank"] == RANK
    shares = study.layers["share_points"].tolist()
    assert list(recipe.ranks) == ranks_by_share(shares, rank)
    assert sum(recipe.ranks) == rank * LAYERS
    assert len(set(recipe.ranks)) > 1
    assert recipe.ranks[2] == 1
    scales = {layer: {(own, 1.0 * ALPHA / RANK)} for layer, own in zip(recipe.layers, recipe.ranks)}
    assert built(tmp_path, study) == scales
    assert f"The mean rank is {rank}.0; it was {RANK}." in (tmp_path / "README.md").read_text()


@pytest.mark.parametrize("rank", [None, 3])
def test_as_many_layers_as_asked_have_the_largest_shares(study, rank, tmp_path):
    recipe = study.recipe(tmp_path, keep=2, rank=rank)
    best = study.layers.nlargest(2, "share_points")
    assert recipe.layers == tuple(sorted(best["layer"])) == tuple(built(tmp_path, study))
    assert sum(recipe.ranks) == 2 * (rank or RANK)
    told = (tmp_path / "README.md").read_text()
    assert all(f"| {layer} |" in told for layer in recipe.layers)


def test_both_at_once_and_layers_by_number(study, tmp_path):
    recipe = study.recipe(tmp_path, rank=5, keep=[3, 0])
    assert recipe.layers == (0, 3)
    assert sum(recipe.ranks) == 10
    found = built(tmp_path, study)
    assert {layer: own for layer, ((own, _),) in found.items()} == dict(zip((0, 3), recipe.ranks))


def test_a_study_that_shows_nothing_chooses_nothing(study, tmp_path):
    summary = replace(study.summary, warning="It shows nothing.")
    empty = copy.copy(study)
    empty.__dict__["record"] = replace(study.record, summary=summary)
    for choice in ({"keep": "needed"}, {"keep": 2}, {"rank": 4}, {"rank": 4, "keep": [0, 3]}):
        with pytest.raises(AdapterProbeError, match=naming(str(study.folder), "It shows nothing.")):
            empty.recipe(tmp_path / "out", **choice)
    assert empty.recipe(tmp_path / "out", keep=[3, 0]).layers == (0, 3)


def test_rank_stabilised_scales_stay(study, tmp_path):
    checkpoint = tmp_path / "lora"
    checkpoint.mkdir()
    config = json.loads((study.folder.parent / "adapter_config.json").read_text())
    (checkpoint / "adapter_config.json").write_text(json.dumps({**config, "use_rslora": True}))
    study.recipe(tmp_path / "out", rank=6, checkpoint=checkpoint)
    for ((_, scale),) in built(tmp_path / "out", study).values():
        assert scale == pytest.approx(ALPHA / math.sqrt(RANK))


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"keep": "some"}, ["keep", "all, needed", "'some'"]),
        ({"keep": 0}, ["keep", "from 1 to 4", "0"]),
        ({"keep": 5}, ["keep", "from 1 to 4", "5"]),
        ({"keep": [1, 9]}, ["keep", "0, 1, 2, 3", "[1, 9]"]),
        ({"keep": []}, ["keep", "0, 1, 2, 3", "[]"]),
        ({"keep": "needed", "within": 1e9}, ["within"]),
        ({"keep": "needed", "within": -1.0}, ["within", "0 or more points", "-1.0"]),
        ({"rank": 0}, ["rank", "at least 1", "0"]),
        ({"checkpoint": "nowhere"}, ["nowhere", "adapter_config.json", "checkpoint"]),
    ],
)
def test_bad_input_is_refused_in_one_line(study, arguments, facts, tmp_path):
    with pytest.raises(AdapterProbeError, match=naming(*facts)) as caught:
        study.recipe(tmp_path / "out", **arguments)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    with pytest.raises(AdapterProbeError, match=naming(str(study.folder.parent))):
        study.recipe(study.folder.parent)


def test_patterns_that_a_recipe_would_replace_are_refused(study, tmp_path):
    config = json.loads((study.folder.parent / "adapter_config.json").read_text())
    for change, arguments, facts in (
        ({"rank_pattern": {"q": 2}}, {"rank": 4}, ["rank_pattern", "rank"]),
        ({"target_modules": ".*v_proj"}, {"keep": [0]}, ["layers_to_transform", "target_modules"]),
        ({"peft_type": "IA3"}, {}, [str(study.folder), "LoRA"]),
    ):
        (tmp_path / "adapter_config.json").write_text(json.dumps(config | change))
        with pytest.raises(AdapterProbeError, match=naming(*facts)):
            study.recipe(tmp_path / "out", checkpoint=tmp_path, **arguments)
