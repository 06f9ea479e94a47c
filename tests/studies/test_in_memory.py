"""A model in memory: ablated and opened like a checkpoint, equal to PEFT's switches, and left as it was."""

from __future__ import annotations

import contextlib
import copy
import functools
import pickle
import threading
import types

import numpy as np
import peft
import pytest
import torch
from huggingface_hub import ModelCard
from mask_loop import assert_outputs, over_variants, randomise, switched, with_lora
from packaging.version import Version
from peft import (
    AdaptionPromptConfig,
    LoraConfig,
    PeftModel,
    PromptTuningConfig,
    VeraConfig,
    XLoraConfig,
    get_peft_model,
    inject_adapter_in_model,
)
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from peft_cases import WORDS, small_config, write_base
from refusals import refuses
from tiers import slow_unless
from tiny_families import family
from transformers import (
    AutoTokenizer,
    BitsAndBytesConfig,
    Gemma3ForSequenceClassification,
    LlamaForCausalLM,
    RoFormerForSequenceClassification,
)
from tuners import IN_FLOAT32, INSIDE, TUNERS, tuned

import adapter_probe as ap
from adapter_probe.checkpoints import in_memory
from adapter_probe.probe.resumable import AblationRun

QV = ["query", "value"]
LORA = {"r": 4, "target_modules": QV}
ROWS = [
    {"text": text, "label": number % 2}
    for number, text in enumerate(["the cat saw a dog", "fine", "the house was big", "a cruel bird"] * 2)
]
QUIET = {"data": ROWS, "progress": False}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WORDS)


def base_model() -> RoFormerForSequenceClassification:
    torch.manual_seed(0)
    return RoFormerForSequenceClassification(small_config("roformer"))


@pytest.fixture
def model() -> PeftModel:
    """As after training: in training mode, its adapters needing gradients."""
    return with_lora(base_model(), QV, "SEQ_CLS").train()


def state_of(model: torch.nn.Module) -> list[object]:
    """Everything that a study must leave as it was."""
    return [
        [
            (name, m.training, "forward" in vars(m), len(m._forward_hooks))
            for name, m in model.named_modules()
        ],
        # bitsandbytes packs its weights of bytes for the processor at a forward, and puts them elsewhere.
        [
            (n, p.requires_grad, p.dtype != torch.uint8 and p.data_ptr(), p.dtype, p._version, id(p))
            for n, p in model.named_parameters()
        ],
        [p.grad is None or p.grad.clone() for p in model.parameters()],
        [m.active_adapters for m in model.modules() if isinstance(m, BaseTunerLayer)],
        model.base_model.config.pad_token_id if hasattr(model, "base_model") else model.config.pad_token_id,
    ]


def loop(model: torch.nn.Module, tokenizer, study: ap.Ablation) -> np.ndarray:
    """Logits of every variant by whole forwards of a copy, with PEFT's switches, in float64."""
    whole = copy.deepcopy(model).double().eval()
    inputs = [tokenizer(row["text"], return_tensors="pt") for row in ROWS]
    return np.array(over_variants(whole, study, lambda: [whole(**one).logits[0].numpy() for one in inputs]))


def test_a_study_of_a_model_after_training_equals_the_loop(model, tokenizer, tmp_path):
    loss = model(**tokenizer("the cat", return_tensors="pt"), labels=torch.tensor([1])).loss
    loss.backward()
    before = state_of(model)
    study = ap.ablate(model, tokenizer=tokenizer, precision="float64", **QUIET)
    assert state_of(model)[:2] == before[:2]
    assert state_of(model)[3:] == before[3:]
    for one, other in zip(state_of(model)[2], before[2]):
        assert one is other is True or torch.equal(one, other)
    assert_outputs(study, loop(model, tokenizer, study), 1e-6)
    assert study.folder.is_dir()
    study.save(tmp_path / "kept", only="heatmap", formats="svg")
    read = ap.load(tmp_path / "kept")
    np.testing.assert_array_equal(read.results.outputs, study.results.outputs)
    assert (tmp_path / "kept" / "heatmap.svg").is_file()
    folder = study.folder
    del study
    assert not folder.exists()


def test_a_classifier_whose_part_for_texts_has_no_padding_token(tokenizer):
    """A head of a model of images and texts asks the configuration of that part."""
    config = small_config("gemma3", num_labels=2)
    config.text_config.pad_token_id = None
    torch.manual_seed(0)
    where = r".*language_model.*(q_proj|down_proj)"
    made = with_lora(Gemma3ForSequenceClassification(config), where, "SEQ_CLS", r=2)
    study = ap.ablate(made.eval(), tokenizer=tokenizer, precision="float64", **QUIET)
    assert_outputs(study, loop(made, tokenizer, study), 1e-6)
    assert config.text_config.pad_token_id is made.config.text_config.pad_token_id is None


@pytest.mark.parametrize("fused", [False, True])
def test_an_open_model_sees_changed_weights(model, tokenizer, fused):
    """Also where the optimiser does not count its changes, as PyTorch's fused ones do not."""
    opened, text = ap.open(model, tokenizer=tokenizer), ROWS[0]["text"]
    before = opened.logits(text)
    own = [p for p in model.parameters() if p.requires_grad]
    for parameter in own:
        parameter.grad = torch.ones_like(parameter)
    torch.optim.Adam(own, lr=0.1, fused=fused).step()
    after = opened.logits(text)
    assert abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, ap.open(model, tokenizer=tokenizer).logits(text), atol=1e-6)


def test_parameters_are_those_of_the_active_adapter(model, tokenizer):
    alone = ap.ablate(model, tokenizer=tokenizer, spans="single", **QUIET).summary.layer_parameters
    model.add_adapter("other", LoraConfig(**{**LORA, "r": 16}, task_type="SEQ_CLS"))
    model.set_adapter("default")
    assert ap.ablate(model, tokenizer=tokenizer, spans="single", **QUIET).summary.layer_parameters == alone


@pytest.mark.parametrize("device", ["cpu", "cpu:", "cpu:0"])
def test_the_device_of_the_model_by_any_name(model, tokenizer, device):
    assert (
        ap.ablate(model, tokenizer=tokenizer, device=device, spans="whole", **QUIET).summary.n_examples == 8
    )


def test_strengths_of_a_model_are_kept_by_save(model, tokenizer, tmp_path):
    study = ap.strength(model, tokenizer=tokenizer, strengths=[0.5], **QUIET)
    study.save(tmp_path / "kept", only="strength", formats="svg")
    read = ap.load(tmp_path / "kept")
    assert (read.table["score"].tolist(), read.summary) == (study.table["score"].tolist(), study.summary)


def test_an_open_model_gives_logits_and_removes_nothing(model, tokenizer):
    before = state_of(model)[:2]
    opened = ap.open(model, tokenizer=tokenizer)
    texts = [row["text"] for row in ROWS]
    intact = opened.logits(texts)
    whole = copy.deepcopy(model).eval()
    with torch.no_grad():
        own = np.stack([whole(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in texts])
    np.testing.assert_allclose(intact, own, atol=1e-5)
    assert np.abs(opened.logits(texts, off=(0, 2)) - own).max() > 1e-3
    assert state_of(model)[:2] == before
    refuses(ap.ModelError, ("in memory", "elsewhere"), opened.use, "elsewhere")


@pytest.mark.slow
def test_tuners_that_were_injected_run_as_well(tokenizer):
    model = inject_adapter_in_model(LoraConfig(**LORA), base_model())
    randomise(model, 0.3)
    study = ap.ablate(model.train(), tokenizer=tokenizer, precision="float64", **QUIET)
    assert_outputs(study, loop(model, tokenizer, study), 1e-6)
    assert model.training


class Alone(torch.nn.Linear):
    """A map that nobody may copy."""

    def __deepcopy__(self, memo: dict) -> Alone:
        raise ValueError("not to be copied")


def locked(model: PeftModel) -> PeftModel:
    model.get_base_model().lock = threading.Lock()
    return model


def uncopied(model: PeftModel) -> PeftModel:
    head = model.get_base_model().classifier.modules_to_save["default"]
    head.dense.__class__ = Alone
    return model


def inferred(model: PeftModel) -> PeftModel:
    with torch.inference_mode():
        made = get_peft_model(base_model(), LoraConfig(**LORA, task_type="SEQ_CLS"))
        made.load_state_dict(model.state_dict())
    return made.train()


def prepared(model: PeftModel) -> torch.nn.Module:
    """In the mixed precision of accelerate, which trains for transformers and replaces the forward."""
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)  # of a trainer of another test
    made = accelerate.Accelerator(mixed_precision="bf16", cpu=True).prepare_model(model)
    assert "_original_forward" in vars(made)
    return made


def moving(model: PeftModel) -> PeftModel:
    """Hooks of accelerate move its weights."""
    hooks = pytest.importorskip("accelerate.hooks")
    for layer in model.get_base_model().roformer.encoder.layer:
        hook = hooks.AlignDevicesHook(execution_device="cpu", io_same_device=True)
        hooks.add_hook_to_module(layer, hook)
    return model


USED_ITSELF = [locked, uncopied, inferred, prepared, moving]


@pytest.mark.parametrize("change", slow_unless([inferred].__contains__, USED_ITSELF))
def test_models_that_are_not_copied_or_have_no_gradients_run(change, model, tokenizer):
    expected = ap.ablate(model, tokenizer=tokenizer, **QUIET).results.outputs
    given = change(model)
    before = state_of(given) if change is not inferred else None  # its tensors count no versions
    study = ap.ablate(given, tokenizer=tokenizer, **QUIET)
    np.testing.assert_allclose(study.results.outputs, expected, atol=1e-6 if change is prepared else 1e-5)
    assert given.training
    assert before is None or state_of(given) == before
    if change in (prepared, moving):
        return
    opened = ap.open(given, tokenizer=tokenizer)
    for _ in range(2):
        assert opened.logits(ROWS[0]["text"]) == pytest.approx(expected[0, :1], abs=1e-5)
    assert given.training
    assert before is None or state_of(given) == before
    if change is locked:
        mixed = {"tokenizer": tokenizer, "precision": "mixed", **QUIET}
        refuses(ap.AdapterProbeError, ("'mixed'", "copied"), ap.ablate, given, **mixed)


@pytest.mark.slow
def test_a_forward_that_encloses_the_model_is_copied_with_it(model, tokenizer):
    """As TRL 1.16.0 puts its loss into a model's forward: a function around the model's own bound method."""
    plain = ap.ablate(model, tokenizer=tokenizer, spans="single", **QUIET).results.outputs
    base = model.get_base_model()
    own = base.forward

    @functools.wraps(type(base).forward)
    def doubled(self: torch.nn.Module, *args: object, doubling: bool = True, **kwargs: object) -> object:
        out = own(*args, **kwargs)
        out["logits"] = out["logits"] * (1 + doubling)
        return out

    base.forward = types.MethodType(doubled, base)
    study = ap.ablate(model, tokenizer=tokenizer, spans="single", **QUIET)
    np.testing.assert_allclose(study.results.outputs, 2 * plain, atol=1e-6)
    assert base.forward.__func__ is doubled
    assert np.ptp(plain, axis=0).max() > 1e-3


@pytest.mark.slow
def test_a_quantised_model_runs_as_it_is(tmp_path):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}
    place = write_base(tmp_path / "base", "llama", LlamaForCausalLM, **sizes)
    four = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": torch.float32}
    base = LlamaForCausalLM.from_pretrained(
        place, dtype=torch.float32, device_map="cpu",
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, **four),
    )  # fmt: skip
    made = with_lora(base, ["q_proj", "down_proj"], "CAUSAL_LM")
    ids, read = torch.randint(5, 60, (6, 9)), lambda out: out.logits[:, -1, :3]
    with torch.no_grad():
        computed = made.eval()(input_ids=ids).logits
    before = state_of(made.train())
    study = ap.ablate(made, batches=[{"input_ids": ids}], labels=[0, 1, 2] * 2, read=read, progress=False)
    assert state_of(made) == before
    with torch.no_grad():
        again = made.eval()(input_ids=ids).logits
    # Where bitsandbytes multiplies in bfloat16, it rounds differently once its weights were looked at.
    exact = 0.05 if bitsandbytes.functional.has_avx512bf16() else 0
    torch.testing.assert_close(again, computed, rtol=0, atol=exact)
    off = int(np.flatnonzero(~study.results.masks.any(axis=1))[0])
    for row, on in ((0, True), (off, False)):
        switched([m for m in made.modules() if isinstance(m, BaseTunerLayer)], on)
        with torch.no_grad():
            np.testing.assert_array_equal(
                study.results.outputs[row], read(made.eval()(input_ids=ids)).numpy()
            )


@pytest.mark.slow
def test_a_study_is_resumed_with_the_same_model_only(model, tokenizer, tmp_path):
    study = ap.ablate(model, tokenizer=tokenizer, out=tmp_path / "out", **QUIET)
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("part*")}
    again = ap.ablate(model, tokenizer=tokenizer, out=tmp_path / "out", **QUIET)
    assert parts == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("part*")}
    np.testing.assert_array_equal(again.results.outputs, study.results.outputs)
    with torch.no_grad():
        next(p for n, p in model.named_parameters() if "lora_B" in n).add_(1e-3)
    with pytest.raises(ap.ResultsError, match="another run"):
        ap.ablate(model, tokenizer=tokenizer, out=tmp_path / "out", **QUIET)


@pytest.mark.slow
def test_projections_that_are_not_stored_belong_to_the_model(tokenizer, tmp_path):
    """VeRA draws its matrices again from a seed if it does not store them."""
    for seed in (1, 2):
        config = VeraConfig(r=4, target_modules=["query"], save_projection=False, projection_prng_key=seed)
        model = get_peft_model(base_model(), config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.1)
        with contextlib.ExitStack() as refused:
            if seed == 2:
                refused.enter_context(pytest.raises(ap.ResultsError, match="another run"))
            ap.ablate(model, tokenizer=tokenizer, out=tmp_path / "out", **QUIET)


@pytest.mark.parametrize("name", slow_unless(lambda name: name in ("lora", "ln_tuning"), TUNERS))
def test_all_off_is_what_pefts_own_switch_makes_of_the_model(name):
    made, _ = tuned(TUNERS[name], dtype=torch.float32 if name in IN_FLOAT32 else None)
    ids = torch.randint(5, 40, (4, 7), generator=torch.Generator().manual_seed(0))
    given = {"batches": [{"input_ids": ids}], "labels": [0, 1, 2, 0], "read": last_three, "progress": False}
    precision = "float32" if name in (*IN_FLOAT32, *INSIDE) else "float64"
    study = ap.ablate(made, spans="whole", precision=precision, **given)
    kinds = (BaseTunerLayer, AuxiliaryTrainingWrapper)
    outside = [m for n, m in made.named_modules() if isinstance(m, kinds) and ".layers." not in n]
    with made.disable_adapter(), torch.no_grad():
        for module in outside:
            module.enable_adapters(True)
        expected = last_three(made(input_ids=ids)).numpy()
    off = int(study.results.masks.sum(axis=1).argmin())
    np.testing.assert_allclose(study.results.outputs[off], expected, atol=1e-5 * np.abs(expected).max())


def last_three(out) -> torch.Tensor:
    return out.logits[:, -1, :3]


def x_lora(folder, n_adapters: int) -> PeftModel:
    places = {}
    for number in range(n_adapters):
        config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
        made, _ = tuned(config, dtype=torch.float32)
        made.save_pretrained(folder / str(number))
        places[str(number)] = str(folder / str(number))
    base, _ = family("llama", torch.float32)
    base.config.use_cache = False
    config = XLoraConfig(task_type="CAUSAL_LM", hidden_size=base.config.hidden_size, adapters=places)
    return get_peft_model(base, config)


@pytest.mark.parametrize("n_adapters", [1, 2])
def test_an_x_lora_is_refused_by_name_and_by_what_it_computes(n_adapters, tmp_path, monkeypatch):
    made = x_lora(tmp_path, n_adapters)
    ids = torch.randint(5, 40, (4, 7), generator=torch.Generator().manual_seed(0))
    given = {"batches": [{"input_ids": ids, "labels": ids}], "spans": "single", "progress": False}
    refuses(ap.ModelError, ("X-LoRA", "by layer"), ap.ablate, made, **given)
    if Version(peft.__version__) < Version("0.21"):  # whose switches do something else, as in 0.18
        return
    monkeypatch.setattr(in_memory, "refuse_wrapped", lambda model: None)
    words = ("LORA, XLORA", "disable_adapter") if n_adapters == 1 else ("own forward",)
    refuses(ap.ModelError, words, ap.ablate, made, **given)


def prompted(_: PeftModel) -> PeftModel:
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    return get_peft_model(family("llama", torch.float32)[0], config)


def adaption(_: PeftModel) -> PeftModel:
    config = AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_layers=2, adapter_len=3)
    return get_peft_model(family("llama", torch.float32)[0], config)


def mixed(_: PeftModel) -> torch.nn.Module:
    return get_peft_model(base_model(), LoraConfig(**LORA), mixed=True)


def activated(_: PeftModel) -> PeftModel:
    config = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM", alora_invocation_tokens=[5])
    return get_peft_model(family("llama", torch.float32)[0], config)


def compiled(model: PeftModel) -> torch.nn.Module:
    return torch.compile(model, backend="eager")


def compiled_layer(model: PeftModel) -> PeftModel:
    layers = model.get_base_model().roformer.encoder.layer
    layers[1] = torch.compile(layers[1], backend="eager")
    return model


def test_a_start_that_changed_the_base_is_named(tokenizer):
    for start in ("pissa", True):
        made = get_peft_model(base_model(), LoraConfig(**LORA, init_lora_weights=start))
        said = "\n".join(ap.ablate(made, tokenizer=tokenizer, spans="whole", **QUIET).question)
        assert ("init_lora_weights='pissa'" in said) == (start == "pissa")


def embedding(_: PeftModel) -> torch.nn.Module:
    return pytest.importorskip("sentence_transformers").SentenceTransformer(modules=[torch.nn.Identity()])


@pytest.mark.slow
def test_autocast_around_a_study_changes_nothing(model, tokenizer):
    expected = ap.ablate(model, tokenizer=tokenizer, spans="single", **QUIET).results.outputs
    opened = ap.open(model, tokenizer=tokenizer)
    logits = opened.logits(ROWS[0]["text"])
    with torch.autocast("cpu", torch.bfloat16):
        found = ap.ablate(model, tokenizer=tokenizer, spans="single", **QUIET).results.outputs
        np.testing.assert_array_equal(opened.logits(ROWS[0]["text"]), logits)
        assert torch.is_autocast_enabled("cpu")
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.add_adapter("other", LoraConfig(**LORA)) or model.set_adapter("other"),
        lambda model: model.merge_adapter(),
        lambda model: model.base_model.disable_adapter_layers(),
    ],
)
def test_adapters_that_were_set_since_a_model_was_opened_are_noticed(change, tokenizer):
    made = get_peft_model(base_model(), LoraConfig(**LORA))
    opened = ap.open(made, tokenizer=tokenizer)
    opened.logits("fine")
    change(made)
    refuses(ap.ModelError, ("since it was opened", "adapter_probe.open"), opened.logits, "fine")


def test_a_study_is_saved_and_pickled_with_its_results(model, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    given = {"tokenizer": tokenizer, "spans": "single", "name": "SST-2", **QUIET}
    studies = [ap.ablate(model, **given), ap.ablate(model, out="~/kept", **given)]
    assert studies[1].folder == tmp_path / "kept"
    content = pickle.dumps(studies[0])
    outputs = studies[0].results.outputs
    del studies[0]
    for number, study in enumerate([pickle.loads(content), *studies]):
        study.save(f"~/{number}", only="curve", formats="svg")
        read = ap.load(tmp_path / str(number))
        assert read.summary.task == "SST-2"
        np.testing.assert_array_equal(read.results.outputs, outputs)
        study.save(study.folder / "figures", only="curve", formats="svg")
        assert not (study.folder / "figures" / "spans.csv").exists()  # the results are above


@pytest.mark.parametrize("opened_as", ["acl-org/roformer-base", "/no/such/roformer-base"])
def test_the_card_names_the_base_by_its_name_on_the_hub(opened_as, model, tokenizer, tmp_path):
    base = model.get_base_model()
    base.config._name_or_path = opened_as
    study = ap.ablate(model, tokenizer=tokenizer, spans="single", out=tmp_path / "study", **QUIET)
    on_hub = opened_as if opened_as.startswith("acl") else None
    for one in (study, ap.load(tmp_path / "study")):
        assert ModelCard(ap.model_card(one)).data.base_model == on_hub
        assert one.summary.model.startswith("roformer-base, ")
    base.config._name_or_path = str(tmp_path)
    study = ap.ablate(model, tokenizer=tokenizer, spans="single", **QUIET)
    assert study.summary.model.startswith(f"folder {tmp_path.name}, ")
    assert ModelCard(ap.model_card(study)).data.base_model is None


def test_a_metric_that_raises_is_called_before_the_model_runs(model, tokenizer, monkeypatch):
    monkeypatch.setattr(AblationRun, "compute", None)

    def broken(labels, predictions):
        raise KeyError("no such class")

    with pytest.raises(KeyError, match="no such class"):
        ap.ablate(model, tokenizer=tokenizer, metric=broken, **QUIET)


def merged(model: PeftModel) -> PeftModel:
    model.merge_adapter()
    return model


def two_active(model: PeftModel) -> PeftModel:
    model.add_adapter("other", LoraConfig(**LORA))
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            module.set_adapter(["default", "other"])
    return model


@pytest.mark.parametrize(
    ("change", "arguments", "words"),
    [
        (merged, {}, ("merged",)),
        (prompted, {}, ("PROMPT_TUNING", "no layer")),
        (adaption, {}, ("ADAPTION_PROMPT", "no switch in the layers")),
        (activated, {}, ("activated LoRA", "by layer")),
        (compiled, {}, ("the model", "torch.compile", "_orig_mod")),
        (compiled_layer, {}, ("layer.1", "torch.compile", "_orig_mod")),
        (mixed, {}, ("PeftMixedModel", "base_model.model")),
        (torch.nn.DataParallel, {}, ("DataParallel", "model.module")),
        (embedding, {}, ("SentenceTransformer", "folder", "save_pretrained")),
        (two_active, {}, ("classifier", "one")),
        (lambda _: base_model(), {}, ("PEFT",)),
        (lambda _: torch.nn.Linear(2, 2), {}, ("adapter-probe",)),
        (lambda _: 5, {}, ("checkpoint", "Module", "Trainer", "5")),
        (lambda model: model, {"tokenizer": None}, ("tokenizer=",)),
        (lambda model: model, {"data": ()}, ("data=",)),
        (lambda model: model, {"labels": [0, 1]}, ("labels", "read", "batches")),
        (lambda model: model, {"device": "meta:0"}, ("device",)),
        (lambda model: model, {"base": "elsewhere"}, ("base",)),
        (lambda model: model, {"dequantise": True}, ("dequantise",)),
        (lambda model: model, {"layernorm": "pretrained"}, ("layernorm='pretrained'",)),
    ],
)
def test_what_does_not_fit_is_one_line(change, arguments, words, model, tokenizer):
    given = change(model)
    training = getattr(given, "training", None)
    refuses(ap.AdapterProbeError, words, ap.ablate, given, **{"tokenizer": tokenizer, **QUIET} | arguments)
    assert getattr(given, "training", None) == training


def test_a_tokenizer_of_another_model_is_refused(model, tokenizer):
    larger = copy.deepcopy(tokenizer)
    larger.add_tokens([f"word{number}" for number in range(20)])
    refuses(ap.CheckpointError, ("64",), ap.ablate, model, tokenizer=larger, **QUIET)
