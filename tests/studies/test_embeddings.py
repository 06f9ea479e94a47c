"""Embeddings and rerankers: scores of every span beside the evaluators of sentence-transformers."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import embedding_folders
import numpy as np
import pytest
import torch
from changed_files import edit
from embedding_folders import encoder
from mask_loop import of_spans, over_variants, randomise, with_lora
from peft import LoraConfig, PeftModel, get_peft_model, inject_adapter_in_model, set_peft_model_state_dict
from peft_folders import KV, reference, saved, written
from refusals import naming, refuses
from safetensors.torch import load_file
from sklearn.metrics import ndcg_score
from tiers import slow_unless
from torch.nn import functional as F
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification, BertModel

import adapter_probe as ap
from adapter_probe.checkpoints.embedding import of_library
from adapter_probe.data.combining import ranking_scores
from adapter_probe.data.rows import Rows
from adapter_probe.data.similarity import _by_id
from adapter_probe.errors import CheckpointError

TEXTS = ["the cat saw a dog", "fine", "the house was big", "a cruel bird", "the dog met the bad cat", "a cat"]
PAIRS = [
    {"sentence1": one, "sentence2": other, "score": (3 * i + 5 * j) % 7 / 2}
    for i, one in enumerate(TEXTS[:4])
    for j, other in enumerate(TEXTS[2:])
    if i < j + 2  # of a pair and its mirror image, rounding would decide which has the larger cosine
]
TRIPLETS = [
    {"anchor": TEXTS[i], "positive": TEXTS[(i + 2) % 6], "negative": TEXTS[(i + 3) % 6]} for i in range(6)
]
CORPUS = {f"d{i}": text for i, text in enumerate([*TEXTS, "a big cat", "the bird saw the house", "bad dog"])}
QUERIES = {"q0": "cat", "q1": "the bird", "q2": "a house", "q3": "nothing"}
JUDGED = {"q0": {"d0": 1, "d5": 1, "d6": 1}, "q1": {"d3": 1, "d7": 1}, "q2": {"d2": 1}, "q3": {"d1": 0}}
LORA = LoraConfig(r=4, target_modules=["query", "value"], task_type="FEATURE_EXTRACTION")


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of PEFT for feature extraction."""
    folder = tmp_path_factory.mktemp("features")
    base = BertModel.from_pretrained(encoder(folder / "base", 3), add_pooling_layer=False)
    model = with_lora(base, ["query", "value", "intermediate.dense"], "FEATURE_EXTRACTION", 0.4)
    model.save_pretrained(folder / "lora")
    return folder / "lora"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence-transformers: a Transformer with an adapter, pooling, a map, normalisation."""
    folder = tmp_path_factory.mktemp("library")
    embedding_folders.library(folder / "model", encoder(folder / "base", 3), 40, "the query ")
    made = get_peft_model(BertModel.from_pretrained(folder / "base", add_pooling_layer=False), LORA)
    randomise(made, 0.4)
    made.save_pretrained(folder / "model")
    return folder / "model"


def opened(library: Path, off: bool) -> Any:
    """The library's own model with the adapter put into its Transformer by PEFT."""
    pytest.importorskip("peft", "0.20")  # before, it does not read its files into a model without its class
    from sentence_transformers import SentenceTransformer

    (library / "adapter_config.json").rename(library / "aside.json")  # whose loading needs a newer PEFT
    model = SentenceTransformer(str(library), device="cpu")
    (library / "aside.json").rename(library / "adapter_config.json")
    if not off:
        inside = inject_adapter_in_model(LORA, model[0].auto_model)
        found = set_peft_model_state_dict(inside, load_file(library / "adapter_model.safetensors"))
        assert not found.unexpected_keys
    return model


def collection(folder: Path) -> Path:
    """The queries and documents in BEIR's layout."""
    (folder / "qrels").mkdir(parents=True)
    rows = {"corpus": CORPUS, "queries": QUERIES}
    for name, texts in rows.items():
        lines = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    lines = [
        f"{query}\t{document}\t{gain}" for query, own in JUDGED.items() for document, gain in own.items()
    ]
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def evaluated(library: Path, name: str, off: bool) -> dict[str, float]:
    """What the evaluators of sentence-transformers say."""
    from sentence_transformers import evaluation

    if name == "pairs":
        columns = [[row[column] for row in PAIRS] for column in ("sentence1", "sentence2", "score")]
        made = evaluation.EmbeddingSimilarityEvaluator(*columns)
    elif name == "triplets":
        made = evaluation.TripletEvaluator(
            *([row[column] for row in TRIPLETS] for column in ("anchor", "positive", "negative"))
        )
    else:
        relevant = {query: {d for d, gain in own.items() if gain} for query, own in JUDGED.items()}
        made = evaluation.InformationRetrievalEvaluator(QUERIES, CORPUS, relevant)
    return made(opened(library, off))


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        pytest.param(
            "pairs", {"spearman": "spearman_cosine", "pearson": "pearson_cosine"}, marks=pytest.mark.slow
        ),
        pytest.param("triplets", {"pairwise_accuracy": "cosine_accuracy"}, marks=pytest.mark.slow),
        (
            "retrieval",
            {"ndcg@10": "cosine_ndcg@10", "mrr@10": "cosine_mrr@10", "recall@10": "cosine_recall@10"},
        ),
    ],
)
def test_scores_are_those_of_the_evaluators_intact_and_with_all_off(name, metrics, library, tmp_path):
    data = {"pairs": PAIRS, "triplets": TRIPLETS}.get(name) or collection(tmp_path / "beir")
    theirs = [evaluated(library, name, off) for off in (False, True)]
    for metric, called in metrics.items():
        study = ap.ablate(library, data=data, metric=metric, out=tmp_path / metric, progress=False)
        own = [study.summary.intact_score, study.summary.removed_score]
        np.testing.assert_allclose(own, [one[called] for one in theirs], atol=1e-5)
    assert np.ptp(study.results.outputs, axis=0).max() > 0.05


@pytest.mark.parametrize("pooling", slow_unless("last".__eq__, ["mean", "cls", "last"]))
def test_similarities_of_every_span_equal_the_loop(pooling, adapter, tmp_path):
    study = ap.ablate(adapter, data=PAIRS, pooling=pooling, out=tmp_path / "out", progress=False)
    model = reference(adapter, "FEATURE_EXTRACTION")
    tokenizer = AutoTokenizer.from_pretrained(adapter.parent / "base")

    def embedding(text: str) -> torch.Tensor:
        states = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]

    def cosines() -> list[float]:
        pairs = [[embedding(row["sentence1"]), embedding(row["sentence2"])] for row in PAIRS]
        return [float(torch.cosine_similarity(*pair, dim=0)) for pair in pairs]

    own = over_variants(model, study, cosines)
    np.testing.assert_allclose(study.results.outputs[:, :, 0], own, atol=1e-5)


@pytest.mark.slow
def test_without_labels_embeddings_are_compared_with_the_intact_ones(adapter, tmp_path):
    file = written(tmp_path, [{"text": text} for text in [*CORPUS.values(), TEXTS[0]]])
    studies = {
        metric: ap.ablate(
            adapter, data=data, pooling="mean", metric=metric, out=tmp_path / metric, progress=False
        )
        for metric, data in (("cosine", file), ("agreement", list(CORPUS.values())))
    }
    model = reference(adapter, "FEATURE_EXTRACTION")
    tokenizer = AutoTokenizer.from_pretrained(adapter.parent / "base")

    def embeddings() -> torch.Tensor:
        read = [tokenizer(text, return_tensors="pt") for text in CORPUS.values()]
        return torch.stack([model(**one).last_hidden_state[0].mean(0) for one in read])

    found = over_variants(model, studies["cosine"], lambda: F.normalize(embeddings(), dim=-1))
    similar = [(own @ own.T).fill_diagonal_(-1).argmax(1) for own in found]
    cosines = [float((own * found[0]).sum(1).mean()) for own in found]
    shares = [float((own == similar[0]).double().mean()) for own in similar]
    for study, expected in ((studies["cosine"], cosines), (studies["agreement"], shares)):
        assert study.summary.n_examples == len(CORPUS)  # equal texts count once
        assert study.summary.intact_score == 1.0
        np.testing.assert_allclose(study.spans["score"], of_spans(study, expected), atol=1e-5)
        assert "adjusted_p" not in study.spans or study.spans["adjusted_p"].isna().all()
    assert min(cosines) < 0.99
    assert min(shares) < 1.0
    report = ap.load(studies["cosine"].folder)
    assert report.summary.metric == "cosine"
    assert "cosine distance" in str(report)


@pytest.mark.slow
def test_a_reranker_is_scored_by_query(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(encoder(tmp_path / "base", 3))
    torch.manual_seed(1)
    config = BertConfig.from_pretrained(tmp_path / "base", num_labels=1)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "base")
    base = BertForSequenceClassification.from_pretrained(tmp_path / "base")
    model = with_lora(base, ["query", "value"], "SEQ_CLS", 0.4)
    model.save_pretrained(tmp_path / "lora")
    rows = [
        {"query": query, "document": text, "relevance": (3 * i + j) % 3 if i < 3 else 0}
        for i, query in enumerate(QUERIES.values())
        for j, text in enumerate(CORPUS.values())
    ]
    study = ap.ablate(tmp_path / "lora", data=rows, out=tmp_path / "out", progress=False)
    assert study.summary.n_examples == 3  # the last query has no relevant document
    model.eval()
    found = []
    for query in list(QUERIES.values())[:3]:
        own = [row for row in rows if row["query"] == query]
        with torch.no_grad():
            scores = [
                float(model(**tokenizer(query, row["document"], return_tensors="pt")).logits) for row in own
            ]
        gains = [row["relevance"] for row in own]
        better = [(i, j) for i in range(9) for j in range(9) if gains[i] > gains[j]]
        found.append(
            (ndcg_score([gains], [scores], k=10), np.mean([scores[i] > scores[j] for i, j in better]))
        )
    expected = np.mean(found, axis=0)
    assert study.summary.intact_score == pytest.approx(expected[0], abs=1e-5)
    pairs = ap.ablate(
        tmp_path / "lora", data=rows, metric="ordered_pairs", out=tmp_path / "pairs", progress=False
    )
    assert pairs.summary.intact_score == pytest.approx(expected[1], abs=1e-5)


def test_a_ranking_of_graded_documents_has_scikit_learns_ndcg():
    draw = np.random.default_rng(0)
    for _ in range(20):
        scores, gains = draw.normal(size=30), draw.integers(0, 4, 30).astype(np.float32)
        assert ranking_scores(scores, gains)[0] == pytest.approx(ndcg_score([gains], [scores], k=10))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq0\td99\t1\n"},
            ("line 2", "corpus-id", "'d99'", "_id"),
        ),
        (
            {"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq9\td0\t1\n"},
            ("line 2", "query-id", "'q9'", "_id"),
        ),
        (
            {"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq0\td0\tx\n"},
            ("line 2", "'score'", "'x'", "number"),
        ),
        ({"qrels/test.tsv": "query-id\tcorpus-id\tscore\nq0\td0\t0\n"}, ("no query", "relevant")),
        ({"corpus.jsonl": ""}, ("corpus.jsonl", "empty")),
        ({"corpus.jsonl": '{"_id": "d0"}\n'}, ("line 1", "'text'", "some text")),
    ],
)
def test_a_damaged_collection_is_one_line(change, words, adapter, tmp_path):
    folder = collection(tmp_path / "beir")
    for name, content in change.items():
        (folder / name).write_text(content)
    with pytest.raises(ap.DataError, match=naming(*words)):
        ap.ablate(adapter, data=folder, pooling="mean", out=tmp_path / "out", progress=False)


def test_how_embeddings_are_pooled_has_to_be_known(adapter, library, tmp_path):
    given = {"data": PAIRS, "out": tmp_path / "out", "progress": False}
    refuses(ap.CheckpointError, ("pooling='mean'", "cls or last"), ap.ablate, adapter, **given)
    with pytest.raises(ap.CheckpointError, match=naming("modules.json", "omit pooling='mean'")):
        ap.ablate(library, pooling="mean", **given)
    causal = saved(tmp_path, "llama", KV, "CAUSAL_LM", ["q_proj"])
    with pytest.raises(ap.CheckpointError, match=naming("pooling='mean'", "embeddings")):
        ap.ablate(causal, pooling="mean", data=written(tmp_path, [{"text": "a"}]), progress=False)
    rows = [{"anchor": "a cat", "positive": "fine", "negative": None}] * 2
    with pytest.raises(ap.DataError, match=naming("line 1", "negative")):
        ap.ablate(adapter, pooling="mean", **{**given, "data": rows})


def test_a_document_may_be_a_title_alone_and_no_half_character():
    rows = [{"_id": "1", "title": "Only a title", "text": ""}, {"_id": "2", "title": "A", "text": "b"}]
    table = Rows("corpus", ("_id", "title", "text"), rows, ["line 1", "line 2"])
    assert _by_id(table, titled=True) == {"1": "Only a title", "2": "A b"}
    rows[1]["text"] = "broken \ud83d"
    refuses(ap.DataError, ("line 2", "'text'", "whole Unicode"), _by_id, table, titled=True)


@pytest.mark.parametrize(
    "prompts", [{"classify": "c: "}, {"query": "q: "}, {"classify": "c: ", "document": "d: "}]
)
def test_prompts_are_those_of_the_library(library, tmp_path, prompts):
    st = pytest.importorskip("sentence_transformers")
    folder = Path(shutil.copytree(library, tmp_path / "copy"))
    (folder / "adapter_config.json").unlink()  # whose loading needs a newer PEFT, and which has no prompts
    edit(folder / SETTINGS, prompts=prompts, default_prompt_name=next(iter(prompts)))
    theirs, (ours, _, _) = st.SentenceTransformer(str(folder), device="cpu"), of_library(folder)
    ways = {"query": theirs.encode_query, "document": theirs.encode_document, "": theirs.encode}
    for role, encode in ways.items():
        plain = theirs.encode([ours.prepared("a cat", role)], prompt="")
        np.testing.assert_allclose(encode(["a cat"]), plain, atol=1e-6)


def test_a_fine_tuned_model_is_written_as_a_lora_of_all_that_differs(tmp_path):
    """Its embeddings too; its pooler, which the library adds to a base without one, makes no embedding."""
    base = encoder(tmp_path / "base", 2)
    tuned = BertModel.from_pretrained(base)
    randomise(tuned, 0.2)
    tuned.save_pretrained(tmp_path / "tuned")
    AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "tuned")
    embedding_folders.library(tmp_path / "model", tmp_path / "tuned", 40, "the query ")
    ap.convert(tmp_path / "model", tmp_path / "lora", to="peft", rank=24, base=base)
    plain = BertModel.from_pretrained(base, add_pooling_layer=False)
    merged = PeftModel.from_pretrained(plain, tmp_path / "lora").merge_and_unload().state_dict()
    for name, tensor in tuned.state_dict().items():
        if not name.startswith("pooler."):
            torch.testing.assert_close(merged[name], tensor, atol=1e-5, rtol=0)


LONG = [
    {"sentence1": f"{one} and {other}", "sentence2": f"{other} or {one}", "score": i}
    for i, (one, other) in enumerate(pairwise(TEXTS))
]


SETTINGS = "config_sentence_transformers.json"
LIMITS = "sentence_bert_config.json"


def similarities(model: Any) -> np.ndarray:
    """The library's own, of the pairs."""
    columns = [[row[name] for row in LONG] for name in ("sentence1", "sentence2")]
    texts = [model.encode(own, convert_to_tensor=True) for own in columns]
    return model.similarity_pairwise(*texts).cpu().numpy()


@pytest.mark.parametrize(
    "changes",
    [
        {"tokenizer_config.json": {"model_max_length": 12}},
        {"tokenizer_config.json": {"model_max_length": 12, "truncation_side": "left"}},
        {"tokenizer_config.json": {"model_max_length": 12}, LIMITS: {"max_seq_length": 20}},
        {SETTINGS: {"truncate_dim": 5}},
        {SETTINGS: {"truncate_dim": 5, "similarity_fn_name": "dot"}},
        {SETTINGS: {"truncate_dim": 99}},
        {SETTINGS: {"default_prompt_name": "query"}},
        {LIMITS: {"do_lower_case": True}},
    ],
    ids=str,
)
def test_settings_of_sentence_transformers_are_obeyed(changes, library, tmp_path):
    folder = shutil.copytree(library, tmp_path / "model")
    for name, own in changes.items():
        edit(folder / name, **own)
    study = ap.ablate(folder, data=LONG, spans="single", out=tmp_path / "out", progress=False)
    wanted, plain = (similarities(opened(one, off=False)) for one in (folder, library))
    np.testing.assert_allclose(study.results.outputs[0, :, 0], wanted, atol=1e-5)
    same = np.allclose(plain, wanted, atol=1e-4)
    assert same == (changes.get(SETTINGS) == {"truncate_dim": 99} or "do_lower_case" in str(changes))


@pytest.mark.parametrize(
    ("name", "fields", "facts"),
    [
        (LIMITS, {"query_length": 8}, ("query_length", "8")),
        (LIMITS, {"processing_kwargs": {"text": {"max_length": 5}}}, ("processing_kwargs",)),
        (LIMITS, {"tokenizer_args": {"padding_side": "left"}}, ("tokenizer_args",)),
        (LIMITS, {"transformer_task": "fill-mask"}, ("transformer_task", "fill-mask")),
        (LIMITS, {"max_seq_length": "12"}, ("max_seq_length", "12")),
        (SETTINGS, {"truncate_dim": 0}, ("truncate_dim", "0")),
        (SETTINGS, {"model_type": "SparseEncoder"}, ("model_type", "SparseEncoder")),
        (SETTINGS, {"normalise": True}, ("normalise",)),
    ],
)
def test_what_is_not_followed_of_sentence_transformers_is_refused(name, fields, facts, library, tmp_path):
    folder = shutil.copytree(library, tmp_path / "model")
    edit(folder / name, **fields)
    with pytest.raises(CheckpointError, match=naming(name, *facts)):
        ap.ablate(folder, data=LONG, out=tmp_path / "out", progress=False)


@pytest.mark.parametrize("kind", ["LSTM", "WordWeights", "WeightedLayerPooling"])
def test_modules_that_need_more_than_the_last_states_are_named(kind, library, tmp_path):
    from sentence_transformers.sentence_transformer import modules

    folder = shutil.copytree(library, tmp_path / "model")
    arguments = {
        "LSTM": (24, 12),
        "WordWeights": (["a", "b"], {"a": 2.0}),
        "WeightedLayerPooling": (24, 3, 1),
    }
    made = getattr(modules, kind)(*arguments[kind])
    (folder / "9_own").mkdir()
    made.save(str(folder / "9_own"))
    listed = json.loads((folder / "modules.json").read_text())
    name = f"{type(made).__module__}.{kind}"
    listed.insert(1, {"idx": 9, "name": "9", "path": "9_own", "type": name})
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(CheckpointError, match=naming("modules.json", kind)):
        ap.ablate(folder, data=LONG, out=tmp_path / "out", progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SentenceTransformer", "CrossEncoder"])
def test_trainers_of_sentence_transformers_are_refused_with_the_way_out(kind, tmp_path):
    datasets, library = pytest.importorskip("datasets"), pytest.importorskip("sentence_transformers")
    base = encoder(tmp_path / "base", 2)
    if kind == "CrossEncoder":
        BertForSequenceClassification.from_pretrained(base, num_labels=1).save_pretrained(tmp_path / "cross")
        AutoTokenizer.from_pretrained(base).save_pretrained(tmp_path / "cross")
        model = library.CrossEncoder(str(tmp_path / "cross"), device="cpu")
    else:
        parts = library.sentence_transformer.modules
        model = library.SentenceTransformer(
            modules=[parts.Transformer(str(base)), parts.Pooling(16, "mean")], device="cpu"
        )
    arguments = getattr(library, f"{kind}TrainingArguments")
    rows = datasets.Dataset.from_list([{"query": "ab", "document": "c", "label": 1.0}] * 4)
    trainer = getattr(library, f"{kind}Trainer")(
        model, arguments(str(tmp_path / "out"), report_to=[], use_cpu=True),
        train_dataset=rows, eval_dataset=rows,
    )  # fmt: skip
    for given in ({}, {"data": [{"query": "ab", "positive": "c"}]}):
        refuses(ap.AdapterProbeError, (kind, "ap.ablate(FOLDER"), ap.ablate, trainer, progress=False, **given)


def test_a_cross_encoder_of_sentence_transformers_6_is_scored_by_its_head(tmp_path):
    """It lists the model itself as its one module, beside an adapter or a whole model."""
    rows = [{"query": "a cat", "document": text, "relevance": n % 2} for n, text in enumerate(TEXTS)]
    lora = saved(tmp_path, "llama", {**KV, "num_labels": 1}, "SEQ_CLS", ["q_proj"])
    asked = {"data": written(tmp_path, rows), "spans": "single", "progress": False}
    before = ap.ablate(lora, out=tmp_path / "before", **asked)
    module = "sentence_transformers.base.modules.transformer.Transformer"
    (lora / "modules.json").write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": module}]))
    with pytest.raises(CheckpointError, match=naming("modules.json", "SEQ_CLS", "head")):
        ap.ablate(lora, out=tmp_path / "none", **asked)
    about = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.activation.Sigmoid"}
    (lora / "config_sentence_transformers.json").write_text(json.dumps(about))
    study = ap.ablate(lora, out=tmp_path / "after", **asked)
    np.testing.assert_array_equal(study.results.outputs, before.results.outputs)
    assert any("activation_fn" in line and "Sigmoid" in line for line in study.question)


def test_the_folder_of_a_cross_encoder_is_a_model_with_a_head(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    for name, seed in (("base", 1), ("tuned", 2)):
        plain = encoder(tmp_path / f"{name}-plain", 2)
        model = BertForSequenceClassification.from_pretrained(plain, num_labels=1)
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.1 * torch.randn_like(parameter)
        model.save_pretrained(tmp_path / name)
        AutoTokenizer.from_pretrained(plain).save_pretrained(tmp_path / name)
    theirs = library.CrossEncoder(str(tmp_path / "tuned"), device="cpu")
    theirs.save_pretrained(str(tmp_path / "tuned"))
    pairs = [("a cat", text) for text in TEXTS]
    opened = ap.open(tmp_path / "tuned", base=tmp_path / "base", device="cpu")
    np.testing.assert_allclose(
        opened.logits(pairs)[:, 0], theirs.predict(pairs, activation_fn=torch.nn.Identity()), atol=1e-5
    )
