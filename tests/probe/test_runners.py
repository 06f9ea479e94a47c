"""Replay of a model against a loop: every text alone, by PEFT's own model and switches."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import peft
import pytest
import torch
from exact import assert_close_in_float32
from mask_loop import layers_of, randomise, switched
from peft_folders import KV, reference, saved, written
from refusals import naming
from tiers import slow_unless
from transformers import AutoModelForCausalLM
from where import DEVICE

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.data.token_trees import TokenTree
from adapter_probe.errors import ModelError
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.engine import Engine
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.rows import text_of
from adapter_probe.probe.switchable_model import model_of

PAIRS = [{"sentence_good": f"Cats {v}.", "sentence_bad": f"Cats {v}s."} for v in ("purr", "sleep", "ab")]
LABELLED = [
    {"text": text, "label": n % 2}
    for n, text in enumerate(["ab", "cd ab", "ba", "ab cd", "x", "a longer one"] * 2)
]
SIZES = KV | {"max_position_embeddings": 40}


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    targets = ["v_proj", "down_proj"]
    return saved(tmp_path_factory.mktemp("c"), "llama", SIZES, "CAUSAL_LM", targets, noise=0.2, lora_alpha=8)


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {**SIZES, "num_labels": 2}
    return saved(tmp_path_factory.mktemp("s"), "bert", sizes, "SEQ_CLS", ["query", "value"], noise=0.2)


def request_of(checkpoint: Path, rows: list[dict], tmp_path: Path, **settings: object) -> AblationRequest:
    data = (str(written(tmp_path, rows)),)
    arguments = AblationArguments(str(checkpoint), AblationSettings(**settings), data=data)
    return prepare_ablation(arguments, DEVICE)


def outputs(request: AblationRequest) -> dict[str, np.ndarray]:
    (arrays,) = Engine(request).outputs([np.arange(len(request.encoded))], lambda _: None)
    return arrays


def by_loop(request: AblationRequest, checkpoint: Path) -> dict[str, np.ndarray]:
    """The same outputs by a loop over variants and texts."""
    task = "CAUSAL_LM" if request.checkpoint.description.task.kind == "causal" else "SEQ_CLS"
    model = reference(checkpoint, task)
    layers = layers_of(model)
    found: dict[str, list] = {"logits": [], "greedy": []}
    with torch.no_grad():
        for mask in request.variants.masks:
            for modules, on in zip(layers, mask.reshape(len(layers), 2)):
                switched([m for m in modules if "attention" in where(model, m)], bool(on[0]))
                switched([m for m in modules if "attention" not in where(model, m)], bool(on[1]))
            if task == "SEQ_CLS":
                texts = request.encoded.input_ids
                found["logits"].append(
                    [model(torch.from_numpy(ids)[None]).logits[0].numpy() for ids in texts]
                )
            else:
                scored = [continuations(model, tree) for tree in request.encoded.trees]
                for place, name in enumerate(found):
                    pad = request.encoded.n_continuations
                    rows = [[s[place] for s in row] + [place] * (pad - len(row)) for row in scored]
                    found[name].append(rows)
    return {name: np.array(rows) for name, rows in found.items() if rows}


def where(model: torch.nn.Module, module: torch.nn.Module) -> str:
    name = next(name for name, own in model.named_modules() if own is module)
    return name.replace("self_attn", "attention")


def continuations(model: torch.nn.Module, tree: TokenTree) -> list[tuple[float, bool]]:
    """Log-likelihood of every continuation, and whether its tokens are the likeliest."""
    found = []
    for number in range(len(tree.scored)):
        text = text_of(tree, number)
        logits = model(torch.from_numpy(text.tokens[None].copy())).logits[0]
        rows, targets = torch.from_numpy(text.read[text.after]), torch.from_numpy(text.targets)
        chosen = logits.double().log_softmax(-1)[rows, targets]
        found.append((float(chosen.sum()), bool((logits[rows].argmax(-1) == targets).all())))
    return found


def test_scores_of_a_language_model_are_those_of_a_loop(causal, tmp_path):
    """On two threads; rows of other forms are in test_causal_checkpoints."""
    request, before = request_of(causal, PAIRS, tmp_path), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = outputs(request)
    finally:
        torch.set_num_threads(before)
    wanted = by_loop(request, causal)
    assert_close_in_float32(found["logits"], wanted["logits"], layers=3)
    np.testing.assert_array_equal(found["greedy"], wanted["greedy"])
    assert np.ptp(wanted["logits"][:, :, 0], axis=0).min() > 0.01


@pytest.mark.parametrize("sites", slow_unless("attention".__eq__, ["both", "attention"]))
def test_logits_of_texts_are_those_of_a_loop(sites, classifier, tmp_path):
    request = request_of(classifier, LABELLED, tmp_path, sites=sites)
    assert request.model.has_adapter.tolist() == [True, False] * 3
    assert request.model.site_parameters == (2 * 2 * 4 * 24, 0) * 3
    assert_close_in_float32(outputs(request)["logits"], by_loop(request, classifier)["logits"], layers=3)


def test_projections_that_are_drawn_and_not_stored_take_the_precision_of_the_run(causal, tmp_path):
    config = peft.VeraConfig(r=4, task_type="CAUSAL_LM", target_modules=["v_proj"], save_projection=False)
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(causal.parent / "base"), config)
    randomise(model, 0.5)
    model.save_pretrained(tmp_path / "v")
    data, found = (str(written(tmp_path, PAIRS)),), []
    for precision in ("float32", "float64"):
        settings = AblationSettings(precision=precision)
        base = str(causal.parent / "base")
        arguments = AblationArguments(str(tmp_path / "v"), settings, base=base, data=data)
        found.append(outputs(prepare_ablation(arguments, DEVICE))["logits"])
    assert_close_in_float32(*found, layers=3)
    assert np.ptp(found[0][:, :, 0], axis=0).min() > 1e-4


def test_a_base_whose_outputs_depend_on_the_batch_is_refused():
    with pytest.raises(ModelError, match=naming("llm_int8_threshold 0")):
        model_of(SimpleNamespace(model=torch.nn.Linear(1, 1), alone=True), None)
