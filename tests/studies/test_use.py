"""`ap.open` and `model.use`: another checkpoint on the base in memory is what it would be by itself."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from mask_loop import switched
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import write_adapter, write_base
from peft_folders import HEADS, IDS, KV, TOKENIZER
from refusals import refuses
from training_models import load_plain, moved, with_method
from transformers import AutoModelForSequenceClassification, BertConfig, RoFormerForSequenceClassification

import adapter_probe as ap
from adapter_probe.checkpoints.native import Description, save_checkpoint
from adapter_probe.data.tasks import find_task
from adapter_probe.models.methods import Adapters, FullFineTuning, LayerNormOnly, Method, TopLayers

TEXTS = ["the cat saw a dog", "fine", "a bird was cruel and the house was big", "the dog met the bad cat"]
METHODS = (
    Adapters(4, 0.3),
    LayerNormOnly(),
    FullFineTuning(),
    Adapters(6, 0.3, train_pooler=True),
    TopLayers(1),
)


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``write(base, task folder, method, seed)``: a checkpoint whose tensors are moved at random."""

    def make(base: Path, task_folder: Path, method: Method, seed: int) -> Path:
        task = find_task(task_folder)
        loaded = load_plain(base, max(1, len(task.label_names)), task.kind)
        trained = moved(with_method(loaded, method, seed, task.kind), seed).named_delta()
        about = Description(method, loaded.identity, task, 40, delta_sha256="")
        return save_checkpoint(tmp_path_factory.mktemp("checkpoint"), trained, about)

    return make


@pytest.fixture(scope="session")
def three_labels(tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_task` with a third label."""
    folder = tmp_path_factory.mktemp("three")
    for split in ("train", "validation"):
        lines = (tiny_task / f"{split}.jsonl").read_text().splitlines()
        lines[:9] = [line.replace("negative", "neither") for line in lines[:9]]
        (folder / f"{split}.jsonl").write_text("\n".join(lines))
    return folder


def masks_of(model: ap.Model) -> np.ndarray:
    """The intact model, all adapters off, and some at random."""
    drawn = np.random.default_rng(0).random((3, model.n_sites)) < 0.5
    return np.concatenate([np.ones((1, model.n_sites), bool), np.zeros((1, model.n_sites), bool), drawn])


@torch.no_grad()
def own_logits(model: ap.Model) -> np.ndarray:
    """By the transformers model's own forward."""
    inputs = [model.tokenizer(text, return_tensors="pt").to(model.base.device) for text in TEXTS]
    return torch.cat([model.base(**one).logits for one in inputs]).cpu().numpy()


def outputs(model: ap.Model) -> list[np.ndarray]:
    """By the packed forward, under several masks, and by the transformers model's own."""
    return [model.variants(TEXTS, masks_of(model)), own_logits(model)]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


FAMILIES = ("bert", "roberta", "electra")


@pytest.mark.parametrize(
    ("family", "methods"),
    [("bert", METHODS[:3:2]), *(pytest.param(f, METHODS, marks=pytest.mark.slow) for f in FAMILIES)],
    ids=lambda given: given if isinstance(given, str) else str(len(given)),
)
@pytest.mark.slow
def test_every_order_of_methods_and_heads(
    family, methods, write, tiny_base, tiny_task, three_labels, regression_task
):
    base, tasks = tiny_base(family), itertools.cycle([tiny_task, three_labels, regression_task])
    folders = [write(base, task, method, seed) for seed, (method, task) in enumerate(zip(methods, tasks))]
    alone = {folder: outputs(ap.open(folder)) for folder in folders}
    for one, other in itertools.combinations(folders, 2):
        assert (
            np.shape(alone[one][1]) != np.shape(alone[other][1]) or (alone[one][1] != alone[other][1]).any()
        )
    for first in folders:
        model = ap.open(first)
        for folder in (*folders, first):
            assert model.use(folder) is model
            assert_same(outputs(model), alone[folder])


def test_the_base_is_read_once_and_kept_once(write, tiny_base, tiny_task, three_labels, monkeypatch):
    one = write(tiny_base("bert"), tiny_task, Adapters(4, 0.3), 0)
    other = write(tiny_base("bert"), three_labels, Adapters(4, 0.3), 1)
    model = ap.open(one)
    before = {name: p.data_ptr() for name, p in model.base.named_parameters()}
    monkeypatch.setattr("adapter_probe.checkpoints.base.load_any_base", None)
    after = {name: p.data_ptr() for name, p in model.use(other).base.named_parameters()}
    shared = {name for name in before if before[name] == after.get(name)}
    own = {name for name in before if ".adapter." in name or "LayerNorm" in name or "classifier" in name}
    assert shared == before.keys() - own
    assert model.label_names == ("negative", "neither", "positive")


def test_a_checkpoint_without_a_head_has_the_bases_after_one_with_its_own(tmp_path):
    torch.manual_seed(0)
    config = BertConfig(**{k: v for k, v in KV.items() if k != "num_key_value_heads"}, **IDS, num_labels=2)
    HEADS["SEQ_CLS"].from_config(config).save_pretrained(tmp_path / "base")
    TOKENIZER.save_pretrained(tmp_path / "base")
    for name, outputs, task in (("own", 3, "SEQ_CLS"), ("none", 2, None)):
        base = HEADS["SEQ_CLS"].from_pretrained(
            tmp_path / "base", num_labels=outputs, ignore_mismatched_sizes=True
        )
        lora = peft.LoraConfig(r=2, target_modules=["query"], task_type=task, init_lora_weights=False)
        peft.get_peft_model(base, lora).save_pretrained(tmp_path / name)
    alone = ap.open(tmp_path / "none").logits(TEXTS)
    assert alone.shape == (len(TEXTS), 2)
    np.testing.assert_array_equal(ap.open(tmp_path / "own").use(tmp_path / "none").logits(TEXTS), alone)


def test_what_was_written_anew_is_read_anew(write, tiny_base, tiny_task, tmp_path):
    versions = [write(tiny_base("bert"), tiny_task, Adapters(4, 0.3), seed) for seed in (0, 1)]
    alone = [outputs(ap.open(folder)) for folder in versions]
    place = Path(shutil.copytree(versions[0], tmp_path / "ckpt"))
    model = ap.open(place)
    first = model.base
    assert model.use(place).base is first
    shutil.rmtree(place)
    shutil.copytree(versions[1], place)
    assert_same(outputs(model.use(place)), alone[1])
    assert model.base is not first


@pytest.mark.slow
def test_forgotten_checkpoints_are_read_again(write, tiny_base, tiny_task):
    one, other = (write(tiny_base("bert"), tiny_task, Adapters(4, 0.3), seed) for seed in (0, 1))
    model = ap.open(one)
    first, expected = model.base, outputs(model)
    model.use(other).forget(one)
    assert model.use(one).base is not first
    assert_same(outputs(model), expected)
    refuses(ap.ModelError, ("elsewhere",), model.forget, "elsewhere")


@pytest.mark.slow
def test_another_base_or_none_leaves_the_model_as_it_was(write, tiny_base, tiny_task, tmp_path):
    one = write(tiny_base("bert"), tiny_task, Adapters(4, 0.3), 0)
    model = ap.open(one)
    expected = outputs(model)
    deeper = write(tiny_base("bert", layers=4), tiny_task, Adapters(4, 0.3), 0)
    reseeded = write(tiny_base("bert", seed=5), tiny_task, Adapters(4, 0.3), 0)
    for folder, words in (
        (deeper, ("weights", "in memory", str(tiny_base("bert", layers=4)))),
        (reseeded, ("weights", "in memory", str(tiny_base("bert", seed=5)))),
        (tmp_path / "none", (str(tmp_path / "none"),)),
    ):
        refuses(ap.CheckpointError, words, model.use, folder)
        assert_same(outputs(model), expected)


# Checkpoints of PEFT, against PEFT's own model and switches.
CONFIGS = {
    "lora": peft.LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS"),
    "biases": peft.LoraConfig(r=2, target_modules=["key"], bias="all", task_type="SEQ_CLS"),
    "norms": peft.LNTuningConfig(target_modules=["output.LayerNorm"], task_type="SEQ_CLS"),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, ``base``, and an adapter of every configuration on it."""
    place = tmp_path_factory.mktemp("open")
    base = write_base(place / "base", "roformer", RoFormerForSequenceClassification)
    for name, config in CONFIGS.items():
        write_adapter(place / name, base, AutoModelForSequenceClassification, config)
    return place


def by_peft(made: Path, name: str, model: ap.Model, off: range = range(0)) -> np.ndarray:
    """PEFT's own model on one text at a time, the layers `off` without their adapters."""
    base = AutoModelForSequenceClassification.from_pretrained(made / "base")
    whole = peft.PeftModel.from_pretrained(base, made / name).double().eval()
    layers = whole.get_base_model().roformer.encoder.layer
    for number in off:
        switched([m for m in layers[number].modules() if isinstance(m, BaseTunerLayer)], False)
    with torch.no_grad():
        out = [whole(**model.tokenizer(text, return_tensors="pt")).logits[0] for text in TEXTS]
    return torch.stack(out).numpy()


def test_logits_with_any_layers_off_are_those_of_peft(made: Path):
    model = ap.open(made / "lora", dtype="float64")
    assert (model.n_layers, model.n_sites) == (3, 6)
    for off in (None, 1, (0, 2)):
        layers = range(0) if off is None else range(1, 2) if off == 1 else range(3)
        expected = by_peft(made, "lora", model, layers)
        np.testing.assert_allclose(model.logits(TEXTS, off=off), expected, atol=1e-6)  # given in float32
        with model.switched_off(model.mask(off)):
            np.testing.assert_allclose(own_logits(model), expected, rtol=1e-12, atol=1e-12)
    assert np.abs(own_logits(model) - expected).max() > 1e-3


@pytest.mark.slow
def test_a_checkpoint_used_after_others_is_as_if_opened_alone(made: Path):
    alone = {name: ap.open(made / name, dtype="float64").logits(TEXTS) for name in CONFIGS}
    model = ap.open(made / "lora", dtype="float64")
    base = model.base.roformer.named_parameters()
    shared = {p.data_ptr() for name, p in base if p.dim() == 2 and "lora_" not in name}
    for name in ("biases", "norms", "lora", "biases"):
        model.use(made / name)
        np.testing.assert_array_equal(model.logits(TEXTS), alone[name])
        np.testing.assert_allclose(alone[name], by_peft(made, name, model), atol=1e-6)
        assert shared < {p.data_ptr() for p in model.base.parameters()}
