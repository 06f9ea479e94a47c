"""Models of several stacks of layers: every span equal to whole forwards with PEFT's own switches."""

from __future__ import annotations

import copy
import json
import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from mask_loop import randomise, switched, with_lora
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_cases import WORDS
from refusals import naming, refuses, says, value_of
from tiers import slow_unless
from tiny_families import family, lora
from transformers import (
    AutoTokenizer,
    BartConfig,
    BartForConditionalGeneration,
    MT5Config,
    MT5ForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
)

import adapter_probe as ap
from adapter_probe.errors import AdapterProbeError
from adapter_probe.results.ablation_files import load_ablation
from adapter_probe.wording import ALL_OFF

PAIRS = [
    ("w1 w2 w3 w4 w5", "w4 w5"),
    ("w6", "w1 w7 w8 w9"),
    ("w1 w7 w8 w9", "w6"),
    ("w4 w10 w11", "w1 w2 w3"),
]
ROWS = [{"prompt": prompt, "completion": completion} for prompt, completion in PAIRS]
CHOICES = [
    {"context": prompt, "choices": [completion, "w4 w11", "w1 w9 w7"], "gold": 0}
    for prompt, completion in PAIRS
]
SIZES = {"d_model": 16, "vocab_size": 60, "pad_token_id": 0, "eos_token_id": 3}
OF_T5 = {**SIZES, "d_kv": 4, "d_ff": 24, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
         "decoder_start_token_id": 0}  # fmt: skip
OF_BART = {**SIZES, "encoder_layers": 2, "decoder_layers": 3, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24,
           "encoder_attention_heads": 4, "decoder_attention_heads": 4, "max_position_embeddings": 40,
           "bos_token_id": 2, "decoder_start_token_id": 3}  # fmt: skip
FAMILIES = {
    "t5": (T5ForConditionalGeneration, T5Config(**OF_T5), ["q", "v", "wo"]),
    "mt5": (MT5ForConditionalGeneration, MT5Config(**OF_T5), ["q", "v", "wi_0"]),
    "bart": (BartForConditionalGeneration, BartConfig(**OF_BART), ["q_proj", "v_proj", "fc2"]),
}


def made(name: str) -> PeftModel:
    cls, config, targets = FAMILIES[name]
    torch.manual_seed(0)
    return with_lora(cls(config), targets, "SEQ_2_SEQ_LM", 0.5, r=2).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(WORDS)


def stacks_of(model: PeftModel) -> dict[str, list[list[BaseTunerLayer]]]:
    """The tuners of every layer, by stack, from the classes' own attributes."""
    base = model.get_base_model()
    inner = base.model if hasattr(base, "model") else base
    parts = {"encoder": inner.encoder, "decoder": inner.decoder}
    return {
        name: [
            [m for m in layer.modules() if isinstance(m, BaseTunerLayer)]
            for layer in (part.block if hasattr(part, "block") else part.layers)
        ]
        for name, part in parts.items()
    }


def token_scores(model: PeftModel, tokenizer, prompt: str, completion: str) -> tuple[np.ndarray, np.ndarray]:
    """Log-likelihood of every token of a completion with its end, and whether it is the likeliest one."""
    source = tokenizer(prompt, return_tensors="pt").input_ids
    labels = tokenizer(text_target=completion, return_tensors="pt").input_ids
    with torch.no_grad():
        logits = model(input_ids=source, labels=labels).logits[0].double()
    chosen = torch.log_softmax(logits, -1)[torch.arange(labels.shape[1]), labels[0]]
    return chosen.numpy(), (logits.argmax(-1) == labels[0]).numpy()


def variants_of(model: PeftModel, names: tuple[str, ...]):
    """A copy in float64, switched to every variant in turn, which is told by its name."""
    whole = copy.deepcopy(model).double().eval()
    stacks = stacks_of(whole)
    for name in names:
        stack, _, span = name.rpartition(" ")
        for own, layers in stacks.items():
            first, _, last = span.partition("-")
            for number, modules in enumerate(layers):
                off = name == "none" or (own == stack and int(first) <= number <= int(last))
                switched(modules, not off)
        yield whole


@pytest.mark.parametrize("name", slow_unless("t5".__eq__, FAMILIES))
def test_completions_equal_the_loop(name: str, tokenizer):
    model = made(name)
    study = ap.ablate(model, data=ROWS, tokenizer=tokenizer, precision="float64", progress=False)
    names = study.results.row_names
    assert len(names) == 1 + 3 + 6 + 1
    assert names[1] == "encoder 0-0"
    assert names[-2] == "decoder 2-2"
    wholes = variants_of(model, names)
    expected = np.array(
        [[token_scores(whole, tokenizer, *pair)[0].sum() for pair in PAIRS] for whole in wholes]
    )
    np.testing.assert_allclose(study.results.outputs[..., 0], expected, rtol=1e-6)
    tokens = np.array([len(tokenizer(text_target=completion).input_ids) for _, completion in PAIRS])
    nll = (-expected / tokens).mean(axis=1)
    rows = {f"{row.stack} {row.first}-{row.last}": row for row in study.spans.itertuples()}
    for variant, own in zip(names[1:-1], nll[1:-1]):
        assert rows[variant].score == pytest.approx(own, rel=1e-6)
        assert rows[variant].delta_points == pytest.approx(100 * (nll[0] - own), rel=1e-5, abs=1e-4)
    assert study.summary.removed_score == pytest.approx(nll[-1], rel=1e-6)
    whole = {"encoder": "encoder 0-1", "decoder": "decoder 0-2"}
    for stack, variant in whole.items():
        assert study.summary.stacks[stack].removed_score == pytest.approx(nll[names.index(variant)], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["token_accuracy", "greedy_accuracy", "kl", "agreement"])
def test_tokens_and_distributions_equal_the_loop(metric: str, tokenizer):
    model = made("t5")
    study = ap.ablate(
        model, data=ROWS, tokenizer=tokenizer, metric=metric, precision="float64", progress=False
    )
    right, all_logits = [], []
    for whole in variants_of(model, study.results.row_names):
        right.append([token_scores(whole, tokenizer, *pair)[1] for pair in PAIRS])
        own = []
        for prompt, completion in PAIRS:
            source = tokenizer(prompt, return_tensors="pt").input_ids
            labels = tokenizer(text_target=completion, return_tensors="pt").input_ids
            with torch.no_grad():
                own.append(torch.log_softmax(whole(input_ids=source, labels=labels).logits[0].double(), -1))
        all_logits.append(torch.cat(own))
    intact = all_logits[0]
    expected = {
        "token_accuracy": [np.concatenate(own).mean() for own in right],
        "greedy_accuracy": [np.mean([one.all() for one in own]) for own in right],
        "kl": [float((intact.exp() * (intact - own)).sum(-1).mean()) for own in all_logits],
        "agreement": [float((own.argmax(-1) == intact.argmax(-1)).double().mean()) for own in all_logits],
    }[metric]
    names = list(study.results.row_names)
    for row in study.spans.itertuples():
        own = expected[names.index(f"{row.stack} {row.first}-{row.last}")]
        assert row.score == pytest.approx(own, rel=1e-6, abs=1e-9)
    assert study.summary.removed_score == pytest.approx(expected[-1], rel=1e-6, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_choices_are_compared_by_their_likelihoods(name: str, tokenizer):
    model = made(name)
    study = ap.ablate(model, data=CHOICES, tokenizer=tokenizer, precision="float64", progress=False)
    texts = [[(row["context"], choice) for choice in row["choices"]] for row in CHOICES]
    expected = np.array(
        [
            [[token_scores(whole, tokenizer, *pair)[0].sum() for pair in pairs] for pairs in texts]
            for whole in variants_of(model, study.results.row_names)
        ]
    )
    np.testing.assert_allclose(study.results.outputs, expected, rtol=1e-6)
    accuracy = (expected.argmax(-1) == 0).mean(axis=1)
    names = list(study.results.row_names)
    assert study.spans["score"].tolist() == [
        accuracy[names.index(f"{row.stack} {row.first}-{row.last}")] for row in study.spans.itertuples()
    ]


@contextmanager
def rows_counted(model: PeftModel):
    """How many rows the layers of a T5 read inside, by stack."""
    calls, block = {"encoder": 0, "decoder": 0}, type(model.get_base_model().encoder.block[0])
    original = block.forward

    def counted(self, *args, **kwargs):
        calls["decoder" if self.is_decoder else "encoder"] += len(
            args[0] if args else kwargs["hidden_states"]
        )
        return original(self, *args, **kwargs)

    block.forward = counted
    try:
        yield calls
    finally:
        block.forward = original


@pytest.mark.slow
def test_an_encoder_runs_once_for_all_variants_of_the_decoder(tokenizer):
    model, counts = made("t5"), []
    for stack, spans in (("decoder", "single"), ("decoder", "all"), ("both", "all")):
        with rows_counted(model) as calls:
            ap.ablate(model, data=ROWS, tokenizer=tokenizer, stack=stack, spans=spans, progress=False)
        counts.append(calls)
    few, many, both = counts
    assert few["encoder"] == many["encoder"]  # whatever the number of variants
    assert few["decoder"] < many["decoder"]
    assert both["encoder"] > many["encoder"]


@pytest.mark.slow
def test_an_encoder_runs_once_for_all_choices_of_a_prompt(tokenizer):
    model, counts, scores = made("t5"), [], []
    for n in (2, 6):
        choices = ["the cat saw a big old house", "a bird", "fine", "the dog", "an old house", "a cat"][:n]
        rows = [{"context": prompt, "choices": choices, "gold": 0} for prompt, _ in PAIRS * 2]
        with rows_counted(model) as calls:
            study = ap.ablate(model, data=rows, tokenizer=tokenizer, spans="single", progress=False)
        counts.append(calls)
        scores.append(study.results.outputs[..., :2])
    few, many = counts
    assert few["encoder"] == many["encoder"]
    assert few["decoder"] < many["decoder"]
    np.testing.assert_allclose(*scores, rtol=1e-5)


@pytest.fixture(scope="module")
def study(tokenizer) -> ap.Ablation:
    return ap.ablate(made("t5"), data=ROWS, tokenizer=tokenizer, progress=False)


@pytest.mark.slow
def test_a_stored_study_is_read_back_with_its_stacks(study: ap.Ablation):
    again = ap.load(study.folder)
    assert again.rows() == study.rows()
    for table in ("spans", "layers", "removable"):
        found = getattr(again, table)
        assert found.columns[0] == "stack"
        pd.testing.assert_frame_equal(found, getattr(study, table), check_dtype=False)
    assert (study.folder / "spans.csv").read_text().startswith("stack,first,last,n_layers,score")
    assert load_ablation(study.folder).stacks.tolist() == study.results.stacks.tolist()


@pytest.mark.slow
def test_a_heatmap_has_a_triangle_for_each_stack(study: ap.Ablation, tmp_path: Path):
    study.save(tmp_path / "kept", formats="svg", only="heatmap")
    drawn = pd.read_csv(tmp_path / "kept" / "heatmap.csv")
    assert drawn["stack"].tolist() == ["encoder"] * 3 + ["decoder"] * 6
    svg = (tmp_path / "kept" / "heatmap.svg").read_text()
    assert "encoder" in svg
    assert "decoder" in svg
    caption = (tmp_path / "kept" / "heatmap.txt").read_text()
    assert says(caption, "Layers", "within encoder and decoder")
    assert says(caption, "no span was tested", "too few")  # of four texts
    assert caption.count("checkpoint") == 1


def test_corrections_are_over_the_spans_of_all_stacks(tokenizer):
    rows = [{**row, "prompt": f"{row['prompt']} w{n}"} for n in range(12, 15) for row in ROWS]
    study = ap.ablate(made("t5"), data=rows, tokenizer=tokenizer, progress=False)
    p = study.spans["p_value"].to_numpy()
    assert p.min() < 1  # where four texts bear none
    order, least = np.argsort(p), 0.0
    adjusted = np.empty(len(p))
    for place, row in enumerate(order):  # Holm's correction, step by step
        least = max(least, min(1.0, (len(p) - place) * p[row]))
        adjusted[row] = least
    np.testing.assert_allclose(study.spans["p_holm"], adjusted)
    single = study.spans[study.spans["n_layers"] == 1]
    np.testing.assert_allclose(study.layers["p_holm"], single["p_holm"])


def test_each_stack_is_summed_up_by_itself(study: ap.Ablation):
    shares = study.layers.groupby("stack", sort=False)["share_points"].sum()
    for name, said in study.summary.stacks.items():
        assert shares[name] == pytest.approx(-said.removed_delta_points, abs=1e-6)
    assert value_of(study.rows(), "decoder", ALL_OFF)


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        pytest.param(
            {"stack": "decoder", "spans": "single"},
            ["decoder 0-0", "decoder 1-1", "decoder 2-2", "decoder none"], marks=pytest.mark.slow,
        ),
        pytest.param(
            {"stack": "encoder", "spans": "suffix"}, ["encoder 0-1", "encoder 1-1"], marks=pytest.mark.slow
        ),
        pytest.param(
            {"spans": "single", "layers": "1-1"}, ["encoder 1-1", "decoder 1-1", "none"],
            marks=pytest.mark.slow,
        ),
        (  # all of the encoder kept on and all of the decoder are one mask, but two spans
            {"complement": True, "spans": "prefix"},
            ["encoder 0-0", "encoder 0-1", "encoder none", "decoder 0-0", "decoder 0-1", "decoder 0-2",
             "decoder none", "none"],
        ),
        pytest.param(
            {"complement": True, "spans": "single", "layers": "1-1"},
            ["encoder 1-1", "encoder none", "decoder 1-1", "decoder none", "none"], marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_stacks_are_chosen(choice: dict, names: list[str], tokenizer):
    study = ap.ablate(made("t5"), data=ROWS, tokenizer=tokenizer, progress=False, **choice)
    assert list(study.results.row_names) == ["intact", *names]
    assert set(study.spans["stack"]) == {name.split()[0] for name in names} - {"none"}
    for own in study.summary.stacks.values() if "complement" in choice else ():
        assert own.shortest_sufficient["0.5"].delta_points == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tokenizer) -> Path:
    """A checkpoint of PEFT with its base, and rows."""
    place = tmp_path_factory.mktemp("seq2seq")
    model = made("t5")
    model.peft_config["default"].base_model_name_or_path = str(place / "base")
    model.save_pretrained(place / "ckpt")
    torch.manual_seed(0)
    T5ForConditionalGeneration(FAMILIES["t5"][1]).save_pretrained(place / "base")
    tokenizer.save_pretrained(place / "base")
    (place / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS * 3)))
    return place


@pytest.mark.slow
def test_a_checkpoint_on_disk_gives_the_same_numbers(folder: Path, study: ap.Ablation):
    assert ap.inspect(folder / "ckpt")["stacks"] == {"encoder": 2, "decoder": 3}
    own = ap.ablate(folder / "ckpt", data=folder / "rows.jsonl", progress=False)
    columns = ["stack", "first", "last"]
    pd.testing.assert_frame_equal(own.spans[columns], study.spans[columns])
    np.testing.assert_allclose(own.spans["score"], study.spans["score"], rtol=1e-5)


@pytest.mark.slow
def test_a_span_of_a_stack_is_pruned(folder: Path, tmp_path: Path, tokenizer):
    data = {"data": folder / "rows.jsonl", "progress": False}
    pruned = ap.prune(folder / "ckpt", span="decoder 1-2", out=tmp_path / "smaller", **data)
    assert (pruned.span.stack, pruned.span.first, pruned.span.last) == ("decoder", 1, 2)
    (whole,) = variants_of(made("t5"), ("decoder 1-2",))
    sums = [token_scores(whole, tokenizer, *pair)[0].mean() for pair in PAIRS]
    assert pruned.score_after == pytest.approx(-np.mean(sums), rel=1e-4)
    left = ap.ablate(tmp_path / "smaller", spans="single", **data)
    assert left.results.masks.shape[1] == 2 * 5
    ap.ablate(folder / "ckpt", **data, out=tmp_path / "study")
    chosen = ap.prune(
        folder / "ckpt", within=1000, ablation=tmp_path / "study", out=tmp_path / "least", **data
    )
    assert str(chosen.span) == "decoder 0-2"


@pytest.mark.slow
def test_studies_of_stacks_are_compared_averaged_and_reported(tmp_path: Path, tokenizer):
    studies = []
    for seed in range(2):
        model = made("t5")
        torch.manual_seed(seed)
        randomise(model, 0.2 + 0.1 * seed)
        place = tmp_path / f"seed{seed}"
        studies.append(ap.ablate(model, data=ROWS, tokenizer=tokenizer, out=place, progress=False))
    comparison = ap.compare(*studies)
    pairs = zip(studies[0].spans["delta_points"], studies[1].spans["delta_points"])
    expected = [a - b for a, b in pairs]
    assert comparison.spans["stack"].tolist() == ["encoder"] * 3 + ["decoder"] * 6
    np.testing.assert_allclose(comparison.spans["difference_points"], expected, atol=1e-6)
    mean = ap.average(studies)
    means = np.mean([one.spans["delta_points"] for one in studies], axis=0)
    np.testing.assert_allclose(mean.spans["delta_points"], means, atol=1e-6)
    across = ap.compare_data(studies[0], studies[0].folder)
    for made_of in (comparison, mean, across):
        files = made_of.save(tmp_path / "drawn", formats="png")
        table = next(path for path in files if path.suffix == ".csv")
        assert pd.read_csv(table)["stack"].nunique() == 2
        made_of.plot()
    page = ap.report([one.folder for one in studies], out=tmp_path / "r.html", compare=True, average=True)
    text = page.path.read_text()
    assert "encoder" in text
    assert "decoder" in text
    assert re.search(r"all [^<]*encoder[^<]* off", text)


@pytest.mark.slow
def test_a_model_with_one_stack_has_none_to_choose(tokenizer):
    only = get_peft_model(
        T5ForConditionalGeneration(FAMILIES["t5"][1]),
        LoraConfig(r=2, target_modules=r"decoder.*\.(q|v)", task_type="SEQ_2_SEQ_LM"),
    )
    arguments = {"data": ROWS, "tokenizer": tokenizer, "progress": False}
    refuses(AdapterProbeError, ("stack='decoder'",), ap.ablate, only, stack="decoder", **arguments)
    study = ap.ablate(only, **arguments)
    assert list(study.results.row_names)[1] == "0-0"
    assert "stack" not in study.spans


def test_a_model_that_reads_sound_takes_no_prompts(tokenizer):
    model = lora(family("whisper")[0])
    with pytest.raises(AdapterProbeError, match=naming("input_features", "batches=")):
        ap.ablate(model, data=ROWS, tokenizer=tokenizer, progress=False)


REFUSED = [
    ({"stack": "tower"}, ("stack", "encoder, decoder, both")),
    ({"data": [{"text": "the cat"}]}, ("encoder-decoder",)),
    ({"layers": "0-2"}, ("layers='0-2'", "0-1")),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_one_line_says_what_is_wrong(change: dict, words: str, tokenizer):
    with pytest.raises(AdapterProbeError, match=naming(*words)) as caught:
        ap.ablate(made("t5"), **{"data": ROWS, "tokenizer": tokenizer, "progress": False, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("asked", [{"spans": "single"}, {"complement": True}, {}], ids=str)
def test_sites_that_one_stack_alone_has(asked: dict, tokenizer):
    """Cross-attention is in the decoder; the encoder has no span then, and no reference either."""
    torch.manual_seed(0)
    base = T5ForConditionalGeneration(T5Config(**OF_T5))
    model = with_lora(base, ["q", "EncDecAttention.v"], "SEQ_2_SEQ_LM", 0.5, r=2)
    study = ap.ablate(
        model.eval(), data=ROWS, tokenizer=tokenizer, sites="EncDecAttention.v", progress=False, **asked
    )
    assert set(study.spans["stack"]) == {"decoder"}
    assert list(study.summary.stacks or {"decoder": 0}) == ["decoder"]
    row = study.spans[(study.spans["first"] == 1) & (study.spans["last"] == 1)].iloc[0]
    own = model.get_base_model().decoder.block
    for number, block in enumerate(own):
        off = (number == 1) != bool(asked.get("complement"))
        switched([block.layer[1].EncDecAttention.v], not off)
    scores = [token_scores(model, tokenizer, *pair)[0] for pair in PAIRS]
    assert row["score"] == pytest.approx(np.mean([-one.mean() for one in scores]), rel=1e-5)
