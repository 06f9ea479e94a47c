"""PEFT's LoRA on causal models, ablated: against PEFT itself with its scaling set to zero, layer by layer."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from byte_tokenizer import byte_tokenizer
from exact import assert_close_in_float32, float32_bound
from mask_loop import over_variants
from peft_folders import KV, reference, saved, written
from refusals import names, naming, refuses
from scorer import Scorer
from tiers import slow_unless
from transformers import AutoTokenizer

import adapter_probe as ap
from adapter_probe.errors import CheckpointError, DataError, ResultsError
from adapter_probe.spans import Span
from adapter_probe.studies.prune import prune

peft = pytest.importorskip("peft")

LAYERS, MOST = 3, 40
ROUNDING = float32_bound(1.0, layers=3)  # of a score that is a mean of log-likelihoods, relative
CHOICES = [
    {"context": "ab ab", "choices": ["ab", "c", "abab ab"], "gold": 1},
    {"context": "one two ", "choices": ["three", "ab"], "gold": 0},
    {"context": "", "choices": ["ab ab", "ab c"], "gold": 1},
    {"context": "a much longer context than the model reads", "choices": ["yes", "no"], "gold": 0},
]
PAIRS = [
    {"sentence_good": f"Cats {verb}.", "sentence_bad": f"Cats {verb}s.", "field": "a", "UID": str(i % 2)}
    for i, verb in enumerate(("purr", "sleep", "ab"))
]
COMPLETIONS = [{"prompt": "Say: ", "completion": "ab"}, {"prompt": "", "completion": "ab ab"}]
CHATS = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": answer}]}
    for answer in ("ok", "ab ab")  # the second one's first letters are one token with the space before them
]
OTHER_FAMILIES = {
    "qwen2_moe": (
        {**KV, "moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2,
         "shared_expert_intermediate_size": 24},
        {"targets": ["q_proj", "v_proj"],
         "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]},
    ),
    "mamba": (
        {"hidden_size": 24, "num_hidden_layers": 3, "state_size": 4, "intermediate_size": 48},
        {"targets": ["in_proj", "x_proj"]},
    ),
    "mixtral": (KV | {"num_local_experts": 4, "num_experts_per_tok": 2}, {"targets": ["q_proj", "v_proj"]}),
    "olmo2": (KV, {"targets": ["q_proj", "down_proj"]}),
    "gpt_bigcode": (
        {"n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 64}, {"targets": ["c_attn", "c_proj"]},
    ),
}  # fmt: skip
TEXTS = [{"text": "a text that is longer than what the model reads at once"}, {"text": "ab"}]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA far from the identity on a tiny random Llama, both in folders."""
    folder, sizes = tmp_path_factory.mktemp("causal"), {**KV, "max_position_embeddings": MOST}
    return saved(folder, "llama", sizes, "CAUSAL_LM", ["v_proj", "down_proj"], noise=0.2, lora_alpha=8)


def pefts(checkpoint: Path) -> Scorer:
    """The scores of PEFT's own model."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint.parent / "base")
    return Scorer(reference(checkpoint, "CAUSAL_LM"), tokenizer, MOST)


@pytest.fixture(scope="module")
def ablated(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ap.Ablation]:
    def run(rows: list[dict], **options: object) -> ap.Ablation:
        folder = tmp_path_factory.mktemp("run")
        data = written(folder, rows)
        return ap.ablate(checkpoint, data=data, out=folder / "out", progress=False, **options)

    return run


@pytest.mark.parametrize(
    "rows",
    slow_unless(CHATS.__eq__, [CHOICES, PAIRS, COMPLETIONS, CHATS, TEXTS]),
    ids=["choices", "pairs", "completions", "chats", "texts"],
)
def test_log_likelihoods_are_pefts(rows, checkpoint, ablated):
    assert_pefts(ablated(rows), rows, checkpoint)


@pytest.mark.slow
@pytest.mark.parametrize("kind", OTHER_FAMILIES)
def test_log_likelihoods_of_other_families_are_pefts(kind: str, tmp_path: Path):
    sizes, lora = OTHER_FAMILIES[kind]
    checkpoint = saved(tmp_path, kind, sizes, "CAUSAL_LM", noise=0.2, **lora)
    texts = [{"text": "a text, ab ab"}, {"text": "ab c"}, {"text": "cab ab é"}]
    for number, rows in enumerate((texts, CHOICES[:3])):
        data, out = written(tmp_path, rows), tmp_path / str(number)
        study = ap.ablate(checkpoint, data=data, out=out, progress=False)
        assert_pefts(study, rows, checkpoint)


def assert_pefts(study: ap.Ablation, rows: list[dict], checkpoint: Path) -> None:
    scorer, results = pefts(checkpoint), study.results
    variants = over_variants(scorer.model, study, lambda: [scorer.sums(row) for row in rows])
    for wanted, found in zip(variants, results.outputs):
        for expected, sums in zip(wanted, found):
            assert_close_in_float32(sums[: len(expected)], expected, layers=3)
            assert (sums[len(expected) :] == 0).all()
    assert np.ptp(results.outputs[:, :, 0], axis=0).min() > 0.01  # the LoRA matters
    assert results.kind == "causal"


def test_scores_are_those_of_the_sums(checkpoint, ablated):
    scorer = pefts(checkpoint)
    sums = [np.array(scorer.sums(row)) for row in CHOICES]
    gold = [row["gold"] for row in CHOICES]
    sizes = {
        "accuracy": [np.ones(len(s)) for s in sums],
        "acc_norm": [np.array([len(c) for c in row["choices"]]) for row in CHOICES],
        "acc_bytes": [np.array([len(c.encode()) for c in row["choices"]]) for row in CHOICES],
    }
    for metric, divided_by in sizes.items():
        expected = np.mean([int(np.argmax(s / d)) == g for s, d, g in zip(sums, divided_by, gold)])
        assert ablated(CHOICES, metric=metric).summary.intact_score == pytest.approx(expected)
    nats = sum(-scorer.sums(row)[0] for row in TEXTS)
    n_bytes = sum(len(row["text"].encode()) for row in TEXTS)
    assert ablated(TEXTS).summary.intact_score == pytest.approx(nats / n_bytes / np.log(2), rel=ROUNDING)
    assert ablated(TEXTS).summary.metric == "bits_per_byte"
    assert ablated(COMPLETIONS).summary.metric == "nll"
    nats_a_word = nats / sum(len(row["text"].split()) for row in TEXTS)
    assert ablated(TEXTS, metric="word_perplexity").summary.intact_score == pytest.approx(
        np.exp(nats_a_word), rel=float32_bound(nats_a_word, layers=3)
    )


def test_without_a_start_texts_are_scored_from_their_second_token(checkpoint, tmp_path, capsys):
    base = shutil.copytree(checkpoint.parent / "base", tmp_path / "base")
    byte_tokenizer(False, False).save_pretrained(base)
    rows, scorer = [{"text": "a text as long as is read"}, {"text": "ab c"}], pefts(checkpoint)
    tokenizer = AutoTokenizer.from_pretrained(base)
    data = written(tmp_path, rows)
    study = ap.ablate(checkpoint, base=base, data=data, spans="single", out=tmp_path / "out")
    ids = [tokenizer.encode(row["text"]) for row in rows]
    nats = -sum(scorer.likelihood(own[:1], own[1:]) for own in ids)
    n_bytes = sum(len(row["text"].encode()) for row in rows)
    assert study.summary.intact_score == pytest.approx(nats / n_bytes / np.log(2), rel=ROUNDING)
    assert any(names(line, "BOS", "EOS", "second token") for line in capsys.readouterr().err.splitlines())


def test_the_baseline_is_a_choice_at_random(ablated):
    study = ablated(CHOICES)
    assert study.summary.majority_score == pytest.approx((1 / 3 + 3 / 2) / 4)
    assert study.summary.baseline == "random choice"
    assert ablated(TEXTS).summary.majority_score is None


@pytest.mark.slow
def test_groups_of_the_data_are_kept(ablated):
    study = ablated(PAIRS)
    assert study.results.groups.tolist() == ["a/0", "a/1", "a/0"]
    assert ablated(TEXTS).results.groups is None
    assert ablated(TEXTS).groups is None
    right = study.predictions == 0  # [variants, pairs]; the first sentence is the good one
    members = {"a": [0, 1, 2], "a/0": [0, 2], "a/1": [1]}
    off = {name: row for row, name in enumerate(study.results.row_names)}
    off |= {"intact": 0, "all off": off[f"0-{LAYERS - 1}"]}
    groups = study.groups
    assert groups.groupby("group", sort=False).size().to_dict() == dict.fromkeys(members, len(right))
    for found in groups.itertuples():
        own = right[:, members[found.group]].mean(axis=1)
        assert found.n_examples == len(members[found.group])
        assert found.score == own[off[found.variant]]
        assert found.delta_points == pytest.approx(100 * (own[off[found.variant]] - own[0]))
    assert list(groups["variant"][:2]) == ["intact", "all off"]
    assert study.summary.groups["a/0"].removed_score == right[off["all off"], [0, 2]].mean()
    pd.testing.assert_frame_equal(ap.load(study.folder).groups, groups, check_dtype=False)


def test_suffixes_in_bfloat16(checkpoint, ablated):
    study = ablated(CHOICES, spans="suffix", precision="bfloat16")
    assert study.spans[["first", "last"]].to_numpy().tolist() == [[0, 2], [1, 2], [2, 2]]
    whole = ablated(CHOICES, spans="suffix").results.outputs
    np.testing.assert_allclose(study.results.outputs, whole, rtol=0.05, atol=0.3)
    assert np.abs(study.results.outputs - whole).max() > 0


def test_what_is_not_possible_is_one_line(checkpoint, ablated, tmp_path):
    refuses(ResultsError, ("precision='mixed'",), ablated, CHOICES, precision="mixed")
    refuses(DataError, ("'nll'", "'choice'"), ablated, CHOICES, metric="nll")
    refuses(DataError, ("'mcc'", "causal"), ablated, CHOICES, metric="mcc")
    with pytest.raises(CheckpointError, match=naming("data=FILE")):
        ap.ablate(checkpoint, out=tmp_path / "out", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [CHOICES, TEXTS], ids=["choices", "texts"])
def test_a_pruned_checkpoint_is_the_one_with_the_span_off(rows, checkpoint, ablated, tmp_path: Path):
    study = ablated(rows * 3)
    data = study.folder.parent / "rows.jsonl"
    options = {"data": [data], "ablation": study.folder, "progress": False}
    pruned = prune(checkpoint, tmp_path / "p", within=1e6, **options)
    assert (pruned.span, pruned.chosen_on) == (Span(0, LAYERS - 1), "half")
    assert pruned.n_examples + pruned.n_examples_chosen_on == len(rows) * 3
    grouped = ablated(rows * 3, group=2, precision="bfloat16").folder
    chosen = prune(checkpoint, tmp_path / "g", within=1e6, **{**options, "ablation": grouped})
    assert (chosen.span, chosen.score_after) == (pruned.span, pruned.score_after)
    del options["ablation"]  # which chooses a span
    given = prune(checkpoint, tmp_path / "q", span=1, **options)
    row = study.spans.query("first == 1 and last == 1").iloc[0]
    assert given.score_after == pytest.approx(row["score"], rel=ROUNDING)
    assert given.delta_points == pytest.approx(row["delta_points"], abs=1e-3)
    assert (tmp_path / "q" / "adapter_config.json").exists()  # PEFT's, as it was, which remembers no data
    again = ap.ablate(tmp_path / "q", data=data, progress=False)
    assert again.summary.intact_score == pytest.approx(row["score"], rel=ROUNDING)
