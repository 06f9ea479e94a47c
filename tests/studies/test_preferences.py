"""Preferences: pairwise accuracy and margin of language models and reward models, by TRL's own formulas."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from mask_loop import over_variants, randomise, switched
from peft import LoraConfig
from peft.tuners.tuners_utils import BaseTunerLayer
from peft_folders import KV, TOKENIZER, reference, saved, written
from refusals import naming, refuses
from scorer import likelihood, n_alike

import adapter_probe as ap
from adapter_probe.studies.trainer_preferences import _preferences_of, preferences_of

TARGETS = ["q_proj", "v_proj", "down_proj"]


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def chat(prompt: str, answer: str) -> list[dict[str, str]]:
    return [turn("user", prompt), turn("assistant", answer)]


TEXTS = [
    {"prompt": "Say ab", "chosen": " ab", "rejected": "cab!"},
    {"prompt": "A cab: ", "chosen": "ab a", "rejected": "a"},
    {"prompt": "Say", "chosen": " so", "rejected": " so"},
    {"prompt": "", "chosen": "b a", "rejected": "aab"},
    {"prompt": "x", "chosen": "yes</s>", "rejected": " no"},
]
CHATS = [
    {
        "prompt": [turn("user", "a?")],
        "chosen": [turn("assistant", "ab")],
        "rejected": [turn("assistant", "c")],
    },
    {
        "prompt": [turn("system", "b"), *chat("a", "c"), turn("user", "ab")],
        "chosen": [turn("assistant", "a b")],
        "rejected": [turn("assistant", "ab")],
    },
]
IMPLICIT = [{"chosen": "Say it: ab", "rejected": "Say it: cab"}, {"chosen": "a b c", "rejected": "a bd"}]
IMPLICIT_CHATS = [{"prompt": "ab?", "chosen": chat("ab?", "b a"), "rejected": chat("ab?", "aab")}]


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA on a decoder of three layers."""
    return saved(tmp_path_factory.mktemp("lm"), "llama", KV, "CAUSAL_LM", TARGETS)


@pytest.fixture(scope="module")
def reward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with one output, as a reward model."""
    settings = {**KV, "num_labels": 1}
    folder = tmp_path_factory.mktemp("reward")
    made = saved(folder, "llama", settings, "SEQ_CLS", TARGETS)
    TOKENIZER.save_pretrained(folder / "base")
    return made


def whole(row: dict[str, Any]) -> tuple[list[int], list[list[int]]]:
    """Tokens of the prompt, and of the prompt with each answer, as TRL's trainers make them."""
    answers = [row["chosen"], row["rejected"]]
    if isinstance(answers[0], str):
        texts = [text if text.endswith("</s>") else text + "</s>" for text in answers]
        return TOKENIZER(row["prompt"])["input_ids"], [
            TOKENIZER(row["prompt"] + text)["input_ids"] for text in texts
        ]
    ids = [TOKENIZER.apply_chat_template(row["prompt"] + one, return_dict=False) for one in answers]
    return TOKENIZER.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=False), ids


def split(row: dict[str, Any]) -> dict[str, Any]:
    """TRL's `extract_prompt`, of rows whose answers begin alike."""
    chosen, rejected = row["chosen"], row["rejected"]
    n = next(i for i in range(len(chosen)) if chosen[i] != rejected[i])
    n -= chosen[n - 1] == " "
    return {"prompt": chosen[:n], "chosen": chosen[n:], "rejected": rejected[n:]}


def likelihoods(model: torch.nn.Module, rows: list[dict[str, Any]]) -> np.ndarray:
    """Of both answers ``[rows, 2]``, from where their tokens and the prompt's differ."""
    found = []
    for row in rows:
        prompt, both = whole(row)
        begin = min(n_alike(prompt, one) for one in both)
        found.append([likelihood(model, one[:begin], one[begin:]) for one in both])
    return np.array(found)


def rewards(model: torch.nn.Module, rows: list[dict[str, Any]]) -> np.ndarray:
    with torch.no_grad():
        return np.array(
            [
                [float(model(input_ids=torch.tensor([ids])).logits[0, 0]) for ids in whole(row)[1]]
                for row in rows
            ]
        )


def over_spans(study: ap.Ablation, checkpoint: Path, task: str, scored: Any) -> np.ndarray:
    """What a function of PEFT's own model gives under every variant, with PEFT's switches."""
    model = reference(checkpoint, task)
    return np.array(over_variants(model, study, lambda: scored(model)))


@pytest.mark.parametrize(
    ("rows", "asked"),
    [
        (TEXTS, TEXTS),
        pytest.param(CHATS, CHATS, marks=pytest.mark.slow),
        pytest.param(IMPLICIT, [split(row) for row in IMPLICIT], marks=pytest.mark.slow),
        (IMPLICIT_CHATS, [split(row) for row in IMPLICIT_CHATS]),
    ],
)
def test_log_likelihoods_of_every_span_are_those_of_trls_tokens(rows, asked, lora, tmp_path):
    study = ap.ablate(lora, data=written(tmp_path, rows), out=tmp_path / "out", progress=False)
    own = over_spans(study, lora, "CAUSAL_LM", lambda model: likelihoods(model, asked))
    np.testing.assert_allclose(study.results.outputs, own, atol=1e-5)
    margins = own[..., 0] - own[..., 1]
    same = [row["chosen"] == row["rejected"] for row in asked]
    accuracy = np.where(same, 0.5, margins > 0).mean(axis=1)
    np.testing.assert_allclose(study.spans["score"], accuracy[study.results.spans[:, 0] >= 0], atol=1e-9)
    assert study.summary.intact_score == pytest.approx(accuracy[0])
    assert study.summary.majority_score == 0.5


def dpo(policy: np.ndarray, base: np.ndarray) -> tuple[float, float]:
    """TRL's `rewards/accuracies`, a tie being half, and `rewards/margins` with beta 1."""
    chosen, rejected = policy[:, 0] - base[:, 0], policy[:, 1] - base[:, 1]
    return float(((chosen > rejected) + 0.5 * (chosen == rejected)).mean()), float((chosen - rejected).mean())


def test_dpos_accuracy_and_margin_have_the_model_without_adapters_as_their_reference(lora, tmp_path):
    given = {"data": written(tmp_path, TEXTS), "progress": False}
    studies = {
        metric: ap.ablate(lora, metric=metric, reference="off", out=tmp_path / metric, **given)
        for metric in ("pairwise_accuracy", "margin")
    }
    own = over_spans(studies["margin"], lora, "CAUSAL_LM", lambda model: likelihoods(model, TEXTS))
    off = studies["margin"].results.masks.sum(axis=1).argmin()
    expected = [dpo(policy, own[off]) for policy in own]
    scored = studies["margin"].results.spans[:, 0] >= 0
    for place, study in enumerate(studies.values()):
        scores = np.array([one[place] for one in expected])
        np.testing.assert_allclose(study.spans["score"], scores[scored], atol=1e-5)
        assert study.summary.intact_score == pytest.approx(scores[0], abs=1e-5)
        assert study.summary.removed_score == (0.5, 0.0)[place]
        read = ap.load(study.folder)
        np.testing.assert_array_equal(read.results.scored.reference, study.results.scored.reference)
    rows = [
        {**row, "ref_chosen_logps": chosen, "ref_rejected_logps": rejected}
        for row, (chosen, rejected) in zip(TEXTS, own[off].tolist())
    ]
    given["data"] = rows
    columns = ap.ablate(lora, metric="margin", out=tmp_path / "columns", **given)
    np.testing.assert_allclose(columns.spans["score"], studies["margin"].spans["score"], atol=1e-5)
    plain = ap.ablate(lora, metric="margin", reference="none", out=tmp_path / "plain", **given)
    assert plain.summary.intact_score == pytest.approx((own[0, :, 0] - own[0, :, 1]).mean(), abs=1e-5)


@pytest.mark.parametrize("rows", [pytest.param(TEXTS, marks=pytest.mark.slow), CHATS])
@pytest.mark.slow
def test_rewards_of_every_span_are_those_of_the_whole_texts(rows, reward, tmp_path):
    study = ap.ablate(reward, data=written(tmp_path, rows), out=tmp_path / "out", progress=False)
    own = over_spans(study, reward, "SEQ_CLS", lambda model: rewards(model, rows))
    np.testing.assert_allclose(study.results.outputs, own, atol=1e-5)
    accuracy = np.where([row["chosen"] == row["rejected"] for row in rows], 0.5, own[0, :, 0] > own[0, :, 1])
    assert study.summary.kind == "pairwise"
    assert study.summary.intact_score == pytest.approx(accuracy.mean())
    margin = ap.ablate(
        reward, data=written(tmp_path, rows), metric="margin", out=tmp_path / "margin", progress=False
    )
    assert margin.summary.intact_score == pytest.approx((own[0, :, 0] - own[0, :, 1]).mean(), abs=1e-5)


@pytest.mark.slow
def test_equal_texts_are_counted_and_said(lora, reward, tmp_path, capsys):
    for number, checkpoint in enumerate((lora, reward)):
        ap.ablate(checkpoint, data=written(tmp_path, TEXTS), spans="whole", out=tmp_path / str(number))
        assert "1 of 5 rows have a chosen text that is equal to the rejected one" in capsys.readouterr().err


GOOD = TEXTS[0]


@pytest.mark.parametrize(
    ("rows", "arguments", "words"),
    [
        ([{**GOOD, "chosen": ""}], {}, ("line 1", "'chosen'", "some text")),
        ([{**GOOD, "chosen": 3}], {}, ("line 1", "'chosen'", "3", "string")),
        ([{**GOOD, "chosen": chat("a", "b")}], {}, ("line 1", "'rejected'", "messages")),
        ([{**CHATS[0], "chosen": [turn("user", "a")]}], {}, ("line 1", "'chosen'", "last", "assistant")),
        ([{**CHATS[0], "chosen": [turn("bot", "a")]}], {}, ("line 1", "'chosen'", "'bot'", "'assistant'")),
        ([{**CHATS[0], "prompt": [turn("user", 3)]}], {}, ("line 1", "'prompt'", "messages", "content")),
        ([{**GOOD, "ref_chosen_logps": "x"}], {}, ("line 1", "'ref_chosen_logps'", "'x'", "nats")),
        ([GOOD], {"metric": "acc_norm"}, ("acc_norm", "preference", "pairwise_accuracy")),
        ([GOOD], {"reference": "off", "layers": "0-1"}, ("reference='off'", "all adapters off", "layers=")),
        ([GOOD], {"reference": "off", "strength": 0.5}, ("reference='off'", "strength", "ref_chosen_logps")),
        ([{"text": "a"}], {"reference": "off"}, ("reference='off'", "chosen, rejected")),
    ],
)
def test_what_does_not_fit_is_one_line(rows, arguments, words, lora, tmp_path):
    with pytest.raises(ap.AdapterProbeError, match=naming(*words)):
        ap.ablate(lora, data=written(tmp_path, rows), progress=False, **arguments)


def test_preferences_need_a_model_with_one_output(tmp_path):
    two = saved(tmp_path, "llama", {**KV, "num_labels": 2}, "SEQ_CLS", TARGETS)
    with pytest.raises(ap.DataError, match=naming("preferences", "one output")):
        ap.ablate(two, data=written(tmp_path, TEXTS), progress=False)


def policy_of(trl: Any, folder: Path, kind: str) -> Any:
    """A trainer of TRL after a few steps, on a tiny model."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    torch.manual_seed(0)
    saved(folder, "llama", {**KV, "num_labels": 1}, "SEQ_CLS" if kind == "Reward" else "CAUSAL_LM", TARGETS)
    load = AutoModelForSequenceClassification if kind == "Reward" else AutoModelForCausalLM
    data = Dataset.from_list([row for row in TEXTS if row["prompt"]] * 2)
    arguments = getattr(trl, f"{kind}Config")(
        str(folder / "out"), max_steps=4, learning_rate=0.05, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, per_device_eval_batch_size=3, gradient_checkpointing=False, bf16=False,
    )  # fmt: skip
    return getattr(trl, f"{kind}Trainer")(
        load.from_pretrained(folder / "base"), args=arguments, train_dataset=data, eval_dataset=data,
        processing_class=TOKENIZER, peft_config=LoraConfig(r=4, target_modules=TARGETS),
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["DPO", "Reward"])
def test_scores_after_training_are_those_of_trls_own_evaluation(kind, tmp_path):
    trl = pytest.importorskip("trl")
    trainer = policy_of(trl, tmp_path, kind)
    trainer.train()
    said = trainer.evaluate()
    names = ("rewards/accuracies", "rewards/margins") if kind == "DPO" else ("accuracy", "margin")
    accuracy = ap.ablate(trainer, progress=False)
    margin = ap.ablate(trainer, metric="margin", progress=False)
    ties = (accuracy.results.predictions[0] == 0.5).mean() / 2  # which TRL counts as wrong
    beta = trainer.beta if kind == "DPO" else 1.0
    # TRL's means are of batches, all but the last of one size.
    logged = {name.removeprefix("eval_"): value for name, value in said.items()}
    rows = np.arange(len(accuracy.results.scored_with))
    batches = np.split(rows, range(3, len(rows), 3))
    margins = margin.results.predictions[0]
    assert logged[names[1]] == pytest.approx(beta * np.mean([margins[b].mean() for b in batches]), abs=1e-5)
    own = np.mean([(margins[b] > 0).mean() for b in batches])
    assert logged[names[0]] == pytest.approx(own, abs=1e-6)
    assert accuracy.summary.intact_score == pytest.approx((margins > 0).mean() + ties)
    if kind == "DPO":
        assert margin.summary.removed_score == 0.0


def test_of_answers_that_are_cut_at_the_start_all_tokens_are_scored():
    rows = [{"prompt_ids": [1, 2, 3, 4], "chosen_ids": [5, 6, 7], "rejected_ids": [8],
             "ref_chosen_logps": -1.0, "ref_rejected_logps": -2.0}]  # fmt: skip
    for mode, begins, answers in (
        ("keep_end", (2, 4), ([3, 4, 5, 6, 7], [1, 2, 3, 4, 8])),
        ("keep_start", (4, 4), ([1, 2, 3, 4, 5], [1, 2, 3, 4, 8])),
    ):
        trainer = SimpleNamespace(args=SimpleNamespace(max_length=5, truncation_mode=mode))
        found = _preferences_of(trainer, rows)
        assert (found.begins, found.answers) == ((begins,), (answers,))


def test_preferences_are_read_as_texts_where_a_trainer_does_so():
    """And not where it makes other tokens of them, as for an encoder and decoder, or reads other columns."""
    trainer, rows = SimpleNamespace(args=SimpleNamespace()), TEXTS[:2]

    class Table(list):
        column_names = ("prompt", "chosen", "rejected", "chosen_labels")

    assert preferences_of(trainer, Table(rows), "") == rows
    refuses(ap.DataError, ("decoder", "data="), preferences_of, trainer, Table(rows), "CPOTrainer")
    Table.column_names += ("input_ids",)
    assert preferences_of(trainer, Table(rows), "SFTTrainer") is None


def trainer_in(folder: Path, module: str, kind: str, rows: list[dict[str, Any]], **settings: Any) -> Any:
    """Another trainer of TRL on a tiny language model, not trained; `settings` of its configuration."""
    trl, datasets = pytest.importorskip(module), pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    saved(folder, "llama", KV, "CAUSAL_LM", TARGETS)
    tokenizer, data = copy.deepcopy(TOKENIZER), datasets.Dataset.from_list(rows)
    tokenizer.pad_token = tokenizer.eos_token
    rewarded = {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
    given = rewarded if kind in ("GRPO", "RLOO") else {}
    own = {"per_device_eval_batch_size": 2} | ({"num_generations": 2} if given else {"max_length": 32})
    arguments = getattr(trl, f"{kind}Config")(
        str(folder / "out"), report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        per_device_train_batch_size=2, gradient_checkpointing=False, bf16=False, **{**own, **settings},
    )  # fmt: skip
    made = getattr(trl, f"{kind}Trainer")(
        transformers.AutoModelForCausalLM.from_pretrained(folder / "base"), args=arguments,
        train_dataset=data, eval_dataset=data, processing_class=tokenizer,
        peft_config=LoraConfig(r=4, target_modules=TARGETS), **given,
    )  # fmt: skip
    randomise(made.model, 0.3)
    return made


PROMPTED = [row for row in TEXTS if row["prompt"]]  # an even number, so that TRL's means of batches are exact


@pytest.mark.slow
def test_a_trainer_without_a_reference_is_scored_as_it_evaluates(tmp_path):
    trainer = trainer_in(tmp_path, "trl.experimental.cpo", "CPO", PROMPTED)
    tuned = [module for module in trainer.model.modules() if isinstance(module, BaseTunerLayer)]
    given = {"spans": "single", "progress": False}
    accuracy, margin = ap.ablate(trainer, **given), ap.ablate(trainer, metric="margin", **given)
    for on, name in ((True, "intact_score"), (False, "removed_score")):
        switched(tuned, on)
        said = trainer.evaluate()
        found = getattr(margin.summary, name) * trainer.beta
        assert found == pytest.approx(said["eval_rewards/margins"], abs=1e-5)
        row = 0 if on else int(margin.results.masks.sum(axis=1).argmin())
        own = (margin.results.predictions[row] > 0).mean()  # TRL counts a tie as wrong
        assert own == pytest.approx(said["eval_rewards/accuracies"])
        ties = (accuracy.results.predictions[row] == 0.5).mean() / 2
        assert getattr(accuracy.summary, name) == pytest.approx(own + ties)


def changed(trl: Any) -> type:
    class Changed(trl.DPOTrainer):
        def _compute_loss(self, *given: Any, **options: Any) -> Any:
            found = super()._compute_loss(*given, **options)
            self._metrics["eval"]["rewards/margins"][-1] *= 3
            return found

    return Changed


@pytest.mark.slow
@pytest.mark.parametrize("case", ["alpha", "loss", "stream", "only", "several"])
def test_what_changes_rewards_is_named_and_other_sets_are_read(case, tmp_path):
    module, kind = ("trl.experimental.cpo", "CPO") if case == "alpha" else ("trl", "DPO")
    trainer = trainer_in(tmp_path, module, kind, PROMPTED, **({"alpha": 0.02} if case == "alpha" else {}))
    data = trainer.eval_dataset
    if case == "loss":
        trainer.__class__ = changed(pytest.importorskip("trl"))
    elif case != "alpha":
        sets = {"only": {"a": data}, "several": {"a": data, "b": data}}
        trainer.eval_dataset = sets.get(case, data.to_iterable_dataset())
    if case == "several":
        refuses(ap.DataError, ("'a', 'b'", "trainer.eval_dataset['a']"), ap.ablate, trainer, progress=False)
        return
    study = ap.ablate(trainer, metric="margin", spans="whole", progress=False)
    said, own = "\n".join(study.question), trainer.evaluate()["eval_rewards/margins"]
    words = {"alpha": "transformed (alpha=0.02)", "loss": "by _compute_loss of its own"}.get(case, "")
    assert words in said
    assert (trainer.beta * study.summary.intact_score == pytest.approx(own, abs=1e-5)) == (not words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "kind", "settings", "words"),
    [
        ("trl.experimental.cpo", "CPO", {"loss_type": "simpo"}, ("CPOTrainer", "loss_type='simpo'", "data=")),
        ("trl.experimental.orpo", "ORPO", {}, ("ORPOTrainer", "mean log-likelihoods", "data=")),
        ("trl", "KTO", {}, ("KTOTrainer", "data=", "chosen and rejected")),
        ("trl", "GRPO", {}, ("GRPOTrainer", "data=", "generate=True")),
        ("trl", "RLOO", {}, ("RLOOTrainer", "data=", "generate=True")),
        ("trl", "DPO", {"ld_alpha": 0.5}, ("ld_alpha=0.5", "data=")),
    ],
)
def test_trainers_that_evaluate_something_else_are_refused_by_name(module, kind, settings, words, tmp_path):
    rows: list[dict[str, Any]] = PROMPTED
    if kind == "KTO":
        rows = [{"prompt": row["prompt"], "completion": row["chosen"], "label": True} for row in rows]
    trainer = trainer_in(tmp_path, module, kind, rows, **settings)
    refuses(ap.DataError, words, ap.ablate, trainer, progress=False)


@pytest.mark.slow
def test_a_trainer_of_completions_refuses_its_metric_by_name(tmp_path):
    rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in PROMPTED]
    trainer = trainer_in(tmp_path, "trl", "SFT", rows)
    study = ap.ablate(trainer, spans="single", metric="token_accuracy", progress=False)
    assert study.summary.intact_score is not None
    packing = {"packing": True, "eval_packing": True, "per_device_eval_batch_size": 1, "max_length": 32}
    packed = trainer_in(tmp_path / "packed", "trl", "SFT", rows * 4, **packing)
    study = ap.ablate(packed, spans="whole", progress=False)
    assert "mean over the tokens of each batch" in "\n".join(study.question)
    assert study.summary.intact_score != pytest.approx(packed.evaluate()["eval_loss"], rel=1e-5)
    trainer.compute_metrics = lambda given: {"hits": 1.0}
    with pytest.raises(
        ap.DataError, match=naming("compute_metrics", "SFTTrainer", "every position", "metric=")
    ):
        ap.ablate(trainer, progress=False)
