"""Whole fine-tuned models against their base: opened, switched, pruned, and written as a LoRA."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from changed_files import edit, retensor
from peft_folders import HEADS, IDS, KV, T5, TOKENIZER, written
from refusals import names, naming, refused, refuses, says
from safetensors.torch import load_file
from tiers import slow_unless
from torch import nn
from transformers import AutoConfig, AutoModelForSeq2SeqLM

import adapter_probe as ap
from adapter_probe.checkpoints import peft_writing
from adapter_probe.checkpoints.finetuned import with_outside_of_base
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError, ModelError

BERT = {key: value for key, value in KV.items() if key != "num_key_value_heads"}
ROWS = [{"text": f"some text {n:02d} and {n * 7:02d}", "label": str(n % 2)} for n in range(12)]
PROMPTS = [{"prompt": f"text {n}", "completion": f" answer {n * 3}"} for n in range(4)]
AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4}}


def saved(folder: Path, cls: type, kind: str, settings: dict, only: str = "") -> tuple[Path, Path]:
    """A random model without its head, and a fine-tune of it, in folders; `only` of its tensors differ."""
    torch.manual_seed(0)
    model = cls.from_config(AutoConfig.for_model(kind, **(settings | IDS)))
    inner = model.base_model if cls is HEADS["SEQ_CLS"] else model
    inner.save_pretrained(folder / "base")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder / "tuned")
    for place in ("base", "tuned"):
        TOKENIZER.save_pretrained(folder / place)
    return folder / "tuned", folder / "base"


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("bert")
    written(folder, ROWS)
    return saved(folder, HEADS["SEQ_CLS"], "bert", BERT)


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("llama")
    written(folder, PROMPTS)
    return saved(folder, HEADS["CAUSAL_LM"], "llama", KV)


def put_back(tuned: Path, base: Path, first: int, last: int, strength: float = 0.0) -> nn.Module:
    """The fine-tuned model whose layers of a span are mixed with the base's, by its state dict."""
    model, state = HEADS["SEQ_CLS"].from_pretrained(tuned), load_file(base / "model.safetensors")
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if any(name.startswith(f"bert.encoder.layer.{number}.") for number in range(first, last + 1)):
                tensor.copy_(torch.lerp(state[name.removeprefix("bert.")], tensor, strength))
    return model.eval()


def logits(model: nn.Module, folder: Path) -> np.ndarray:
    texts = TOKENIZER([row["text"] for row in ROWS], return_tensors="pt")
    texts.pop("token_type_ids", None)
    with torch.no_grad():
        return model(**texts).logits.numpy()


def test_a_span_off_gives_the_predictions_of_the_bases_layers(bert):
    tuned, base = bert
    model = ap.open(tuned, base=base)
    assert model.has_adapter.all()
    for span in ((0, 0), (1, 2), (0, 2)):
        ours = model.logits([row["text"] for row in ROWS], off=span)
        np.testing.assert_allclose(ours, logits(put_back(tuned, base, *span), tuned), atol=1e-5)
    (note,) = model.notes
    assert says(note, "bert.embeddings.word_embeddings.weight", "outside='base'", "classifier.bias")


@pytest.mark.slow
def test_the_study_is_the_same_in_memory_and_with_the_bases_tensors_outside(bert, tmp_path):
    tuned, base = bert
    data, options = tuned.parent / "rows.jsonl", {"metric": "kl", "progress": False}
    on_disk = ap.ablate(tuned, base=base, data=data, out=tmp_path / "a", **options)
    model = HEADS["SEQ_CLS"].from_pretrained(tuned)
    own = copy.deepcopy(model.state_dict())
    in_memory = ap.ablate(model, base=str(base), tokenizer=TOKENIZER, data=data, **options)
    np.testing.assert_allclose(in_memory.spans["delta_points"], on_disk.spans["delta_points"], atol=1e-4)
    assert all(type(m) is not type(model) for m in model.bert.encoder.layer)
    assert type(model.bert.encoder.layer[0].output.dense) is nn.Linear
    assert all(torch.equal(tensor, own[name]) for name, tensor in model.state_dict().items())
    whole = ap.ablate(tuned, base=base, data=data, outside="base", out=tmp_path / "b", **options)
    assert abs(whole.spans["delta_points"] - on_disk.spans["delta_points"]).max() > 1e-6


@pytest.mark.slow
def test_a_language_model_and_an_encoder_decoder_are_studied(llama, tmp_path):
    tuned, base = llama
    study = ap.ablate(
        tuned, base=base, data=tuned.parent / "rows.jsonl", metric="kl", spans="single", progress=False
    )
    assert len(study.spans) == 3
    study.save(tmp_path / "figures", formats="svg")
    caption = (tmp_path / "figures" / "curve.txt").read_text()
    assert says(caption, "fine-tuned model", "changes", "base")
    assert "adapters" not in caption
    assert (study.spans["delta_points"] < 0).all()
    written(tmp_path, PROMPTS)
    tuned, base = saved(tmp_path, AutoModelForSeq2SeqLM, "t5", T5)
    study = ap.ablate(
        tuned, base=base, data=tmp_path / "rows.jsonl", metric="kl", spans="single", progress=False
    )
    assert list(study.spans["stack"]) == ["encoder", "encoder", "decoder", "decoder"]


@pytest.mark.parametrize("strength", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
def test_pruning_writes_a_model_with_layers_put_back(bert, tmp_path, strength):
    tuned, base = bert
    out, data = tmp_path / "new", tuned.parent / "rows.jsonl"
    pruned = ap.prune(tuned, base=base, span=(1, 1), strength=strength, data=data, out=out, progress=False)
    assert pruned.parts == "changes"
    new = HEADS["SEQ_CLS"].from_pretrained(out).eval()
    np.testing.assert_allclose(
        logits(new, out), logits(put_back(tuned, base, 1, 1, strength), tuned), atol=1e-5
    )
    state, wanted = new.state_dict(), put_back(tuned, base, 1, 1, strength).state_dict()
    assert state.keys() == wanted.keys()
    if not strength:
        with pytest.raises(CheckpointError, match=naming(str(tuned), "base")):
            ap.prune(tuned, base=base, span=(0, 2), data=data, out=tmp_path / "none", progress=False)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_a_lora_holds_the_largest_singular_values_of_the_difference(name, request, tmp_path):
    tuned, base = request.getfixturevalue(name)
    cls = HEADS["SEQ_CLS" if name == "bert" else "CAUSAL_LM"]
    (said,) = ap.convert(tuned, tmp_path / "lora", to="peft", rank=4, base=base)
    plain, target = cls.from_pretrained(base, num_labels=2), cls.from_pretrained(tuned)
    start = copy.deepcopy(plain.state_dict())
    loaded = peft.PeftModel.from_pretrained(plain, tmp_path / "lora").merge_and_unload()
    errors, sizes = {}, {}
    for key, wanted in target.state_dict().items():
        found = loaded.state_dict()[key]
        if ".layer" in key and wanted.dim() == 2:
            delta = (wanted.double() - start[key].double()).numpy()
            u, s, v = np.linalg.svd(delta)
            best = (u[:, :4] * s[:4]) @ v[:4]
            np.testing.assert_allclose(found.double() - start[key].double(), best, atol=1e-6)
            errors[key], sizes[key] = (s[4:] ** 2).sum(), (s**2).sum()
        else:
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)
    worst = max(errors, key=lambda key: errors[key] / sizes[key])
    total = (sum(errors.values()) / sum(sizes.values())) ** 0.5
    assert names(said, f"{total:.3g}", worst.removesuffix(".weight"))
    assert f"{(errors[worst] / sizes[worst]) ** 0.5:.3g}" in said


@pytest.mark.parametrize(("kind", "settings"), [("bert", BERT), ("llama", KV)])
def test_a_head_that_equals_the_bases_is_written_for_peft(kind: str, settings: dict, tmp_path, monkeypatch):
    """PEFT looks up the head of a classifier in the file, also where it was not trained."""
    torch.manual_seed(0)
    model = HEADS["SEQ_CLS"].from_config(AutoConfig.for_model(kind, **(settings | IDS)))
    for place in ("base", "tuned"):
        model.save_pretrained(tmp_path / place)
        TOKENIZER.save_pretrained(tmp_path / place)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".layer" in name and parameter.dim() == 2:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    given = {"to": "peft", "rank": 4, "base": tmp_path / "base"}
    with monkeypatch.context() as patch:
        patch.setattr(peft_writing, "_head", lambda *_: {})
        said = refused(ap.convert, tmp_path / "tuned", tmp_path / "lora", error=CheckpointError, **given)
    assert names(said, "not written", "PEFT")
    assert not (tmp_path / "lora").exists()
    ap.convert(tmp_path / "tuned", tmp_path / "lora", **given)
    plain = HEADS["SEQ_CLS"].from_pretrained(tmp_path / "base")
    by_peft = logits(peft.PeftModel.from_pretrained(plain, tmp_path / "lora").eval(), tmp_path)
    own = logits(open_any(tmp_path / "lora").model, tmp_path)
    np.testing.assert_allclose(own, by_peft, atol=1e-6)


def test_tensors_that_its_class_does_not_have_are_named(llama, tmp_path):
    """As TRL saves a model with the head of a critic; and the name stays with the base's tensors outside."""
    tuned = shutil.copytree(llama[0], tmp_path / "tuned")
    head = {"v_head.summary.weight": torch.ones(1, 24), "v_head.summary.bias": torch.ones(1)}
    retensor(tuned / "model.safetensors", lambda state: state | head)
    opened = open_any(tuned, str(llama[1]))
    for one in (opened, with_outside_of_base(opened)):
        assert any(names(note, "LlamaForCausalLM", "v_head.summary.bias") for note in one.notes)
    assert len(with_outside_of_base(opened).notes) == len(opened.notes)


def test_its_own_tokenizer_is_written_or_refused(bert, tmp_path):
    tuned, base = shutil.copytree(bert[0], tmp_path / "tuned"), bert[1]
    (tuned / "chat_template.jinja").write_text("{{ messages }}")
    ap.convert(tuned, tmp_path / "lora", to="peft", rank=4, base=base)
    assert open_any(tmp_path / "lora", str(base)).tokenizer.chat_template == "{{ messages }}"
    with pytest.raises(ap.CheckpointError, match=naming("no tokenizer", "to='peft'")):
        ap.convert(tuned, tmp_path / "own", to="native", base=base, data=bert[0].parent / "rows.jsonl")


@pytest.mark.parametrize(
    "method",
    slow_unless(("full", "top_layers").__contains__, ["full", "top_layers", "bitfit", "layernorm_only"]),
)
def test_what_this_project_trains_in_place_is_ablated_on_its_recorded_base(
    method, tiny_base, short_task, tmp_path
):
    tuned = tmp_path / "tuned"
    k = {"k": 2} if method == "top_layers" else {}
    base = str(tiny_base("bert"))
    ap.train(
        task=str(short_task), base=base, method=method, out=tuned, epochs=1, learning_rate=1e-2,
        progress=False, **k,
    )  # fmt: skip
    delta, state = load_file(tuned / "delta.safetensors"), load_file(Path(base) / "model.safetensors")
    opened = ap.open(tuned)
    layers = sorted({name.split(".")[3] for name in delta if ".layer." in name})
    assert [str(n) for n in range(3) if opened.has_adapter[2 * n : 2 * n + 2].any()] == layers
    plain = copy.deepcopy(open_any(tuned, base).model.state_dict())
    model = type(opened.base)(opened.base.config).eval()
    model.load_state_dict({name: plain[name] for name in model.state_dict()})
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if name.startswith("bert.encoder.layer.2."):
                tensor.copy_(state[name.removeprefix("bert.")])
    texts = ["the cat saw a fine dog", "a harsh old bird"]
    batch = opened.tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        own = model(**batch).logits.numpy()
    np.testing.assert_allclose(opened.logits(texts, off=2), own, atol=1e-5)
    if method == "full":
        pruned = ap.prune(tuned, span=2, out=tmp_path / "new", progress=False)
        assert pruned.adapter_parameters_after < pruned.adapter_parameters_before
        np.testing.assert_allclose(ap.open(tmp_path / "new").logits(texts), own, atol=1e-5)


def test_what_trained_above_the_layers_alone_has_nothing_to_switch(tiny_base, short_task, tmp_path):
    ap.train(
        tiny_base("bert"), task=short_task, method="top_layers", k=0, out=tmp_path, epochs=1, progress=False
    )
    said = ap.inspect(tmp_path)
    assert (said["n_sites"], said["trained_by_role"]["pooler"]) == (0, 32 * 33)
    refuses(CheckpointError, ("no adapters", "top_layers"), ap.ablate, tmp_path, progress=False)


def test_a_language_model_that_this_project_trained_knows_its_base(llama, tmp_path):
    _, base = llama
    for split in ("train", "validation"):
        written(tmp_path, PROMPTS * 2).rename(tmp_path / f"{split}.jsonl")
    data = tmp_path / "validation.jsonl"
    ap.train(
        task=str(tmp_path), base=str(base), method="full", out=tmp_path / "t", epochs=1, batch_size=4,
        progress=False, learning_rate=1e-2,
    )  # fmt: skip
    study = ap.ablate(tmp_path / "t", metric="kl", data=data, spans="single", progress=False)
    assert (study.spans["delta_points"] < 0).all()


def test_what_does_not_belong_together_is_refused_in_one_line(bert, llama, tmp_path):
    (tuned, base), data = bert, bert[0].parent / "rows.jsonl"

    def refused(*facts: str, of: Path = tuned, **options: object) -> None:
        with pytest.raises((CheckpointError, ModelError), match=naming(*facts)):
            ap.ablate(of, data=data, metric="kl", progress=False, out=tmp_path / "out", **options)

    refused(str(tuned), "whole model", "base=")
    refused(str(tuned), "dequantise=True", "quantised base", "whole model", base=base, dequantise=True)
    refused(str(tuned), "llama", "bert", base=llama[1])
    head = "classifier.bias"
    same = shutil.copytree(tuned, tmp_path / "same")
    refused(str(tuned), str(same), "equals", "base=", base=same)
    outside = shutil.copytree(tuned, tmp_path / "outside")
    retensor(outside / "model.safetensors", lambda state: state | {head: state[head] + 1})
    refused(str(outside), "only outside the layers", head, of=outside, base=tuned)
    quantised = shutil.copytree(base, tmp_path / "quantised")
    edit(quantised / "config.json", **AWQ)
    refused(str(quantised), "awq", str(tuned), "base=", base=quantised)
    whole = shutil.copytree(tuned, tmp_path / "awq")
    edit(whole / "config.json", **AWQ)
    refused(str(whole), "awq", of=whole, base=base)
    narrow, _ = saved(tmp_path / "narrow", HEADS["SEQ_CLS"], "bert", BERT | {"intermediate_size": 24})
    refused("intermediate.dense.weight", "[24, 24]", "[40, 24]", of=narrow, base=base)
    lora = peft.get_peft_model(HEADS["SEQ_CLS"].from_pretrained(tuned), peft.LoraConfig(task_type="SEQ_CLS"))
    lora.save_pretrained(tmp_path / "lora")
    refused("outside='base'", of=tmp_path / "lora", outside="base")
    refuses(CheckpointError, ("rank=",), ap.convert, tuned, tmp_path / "p", to="peft", base=base)
    with pytest.raises(ModelError, match=naming("base=")):
        ap.ablate(HEADS["SEQ_CLS"].from_pretrained(tuned), tokenizer=TOKENIZER, data=data, progress=False)
    with pytest.raises(ModelError, match=naming("adapters of PEFT", "base=")):
        ap.ablate(lora, base=str(base), tokenizer=TOKENIZER, data=data, progress=False)
