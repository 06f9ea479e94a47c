"""Embeddings in the training loop, against the losses and the folders of sentence-transformers."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import embedding_folders
import numpy as np
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from peft_cases import edit
from refusals import naming
from tiers import slow_unless
from trainings import assert_resumes, losses_of, request_of

import adapter_probe as ap
from adapter_probe.data.packing import pack
from adapter_probe.data.tasks import find_task
from adapter_probe.errors import AdapterProbeError
from adapter_probe.training.request import build_model, identity_of, load_inputs

CPU = torch.device("cpu")
WORDS = ["cat", "dog", "bird", "house", "tree", "red", "fast", "cold"]
MEAN = {"pooling": "mean"}
THINGS = [WORDS[i % 8] for i in range(24)]
ROWS: dict[str, list[dict]] = {
    "contrasts": [{"query": f"a {it} {i}", "positive": f"{it}s, {i} of them"} for i, it in enumerate(THINGS)],
    "triplets": [
        {"anchor": f"a {it} {i}", "positive": f"{it}s", "negative": f"the {WORDS[(i + 3) % 8]}"}
        for i, it in enumerate(THINGS)
    ],
    "ragged": [
        {"query": f"a {it}", "positive": f"{it}s, {i}", "negatives": WORDS[: 1 + i % 3]}
        for i, it in enumerate(THINGS)
    ],
    "scores": [
        {"sentence1": f"a {it}", "sentence2": f"some {WORDS[i // 3 % 8]} {i}", "score": float(i % 5)}
        for i, it in enumerate(THINGS)
    ],
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return embedding_folders.encoder(tmp_path_factory.mktemp("base"), 2)


@pytest.fixture(scope="module")
def library(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as a folder of sentence-transformers, with prompts, a map and a limit of tokens."""
    return embedding_folders.library(tmp_path_factory.mktemp("library") / "base", base, 20, "q: ")


def task_of(folder: Path, rows: list[dict], ending: str = "jsonl") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, own in (("train", rows), ("validation", rows[:12])):
        lines = list(map(json.dumps, own))
        if ending == "tsv":
            lines = ["\t".join(map(str, one)) for one in (rows[0], *(row.values() for row in own))]
        (folder / f"{split}.{ending}").write_text("\n".join(lines))
    return folder


def texts_of(row: dict) -> list[str]:
    found = [value for name, value in row.items() if name != "score"]
    return [text for one in found for text in (one if isinstance(one, list) else [one])]


def library_loss(name: str, vectors: list[list[torch.Tensor]], rows: list[dict]) -> torch.Tensor:
    """The loss of sentence-transformers, of the embeddings of every row's texts."""
    st = pytest.importorskip("sentence_transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from sentence_transformers.losses import CoSENTLoss, MultipleNegativesRankingLoss
    some: Any = st.SentenceTransformer(modules=[torch.nn.Identity()], device="cpu")
    if name == "scores":
        first, second = (torch.stack(one) for one in zip(*vectors))
        scores = torch.tensor([row["score"] for row in rows])
        return CoSENTLoss(some).compute_loss_from_embeddings([first, second], scores)
    first, second = (torch.stack([own[place] for own in vectors]) for place in range(2))
    negatives = [one for own in vectors for one in own[2:]]  # which all rows have in common
    columns = [first, second, *([torch.stack(negatives)] if negatives else [])]
    return MultipleNegativesRankingLoss(some).compute_loss_from_embeddings(columns, torch.empty(0))


@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
@pytest.mark.parametrize("name", slow_unless(("ragged", "scores").__contains__, ROWS))
def test_the_loss_and_its_gradient_are_those_of_sentence_transformers(name, pooling, base, tmp_path):
    request = request_of(base, task_of(tmp_path / "task", ROWS[name]), pooling=pooling)
    inputs = load_inputs(request)
    model = build_model(request, inputs.base, CPU)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.named_delta().values():
            parameter += 0.2 * torch.randn(parameter.shape, generator=generator)
    examples = np.array([5, 2, 11, 7, 16])
    batch = pack(inputs.objective.train, inputs.objective.train.items(examples))
    ours = inputs.objective.loss(model(batch), batch)
    tokenizer = byte_tokenizer(True)

    def embedding(text: str) -> torch.Tensor:
        states = model.base(**tokenizer(text, return_tensors="pt")).last_hidden_state[0]
        return {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pooling]

    chosen = [ROWS[name][i] for i in examples]
    theirs = library_loss(name, [[embedding(text) for text in texts_of(row)] for row in chosen], chosen)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    trained = [one for one in model.base.parameters() if one.requires_grad]
    for own, other in zip(*(torch.autograd.grad(loss, trained) for loss in (ours, theirs))):
        torch.testing.assert_close(own, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "method", "metric"),
    [
        pytest.param("contrasts", "lora:r=4", "ndcg@10", marks=pytest.mark.slow),
        pytest.param("triplets", "full", "pairwise_accuracy", marks=pytest.mark.slow),
        ("scores", "lora:r=4", "spearman"),
        pytest.param("scores", "full", "spearman", marks=pytest.mark.slow),
    ],
)
def test_training_learns_and_ablate_scores_its_checkpoint(name, method, metric, base, tmp_path):
    task = task_of(tmp_path / "task", ROWS[name])
    done = ap.train(
        base, task=task, out=tmp_path / "c", method=method, pooling="mean", epochs=5, batch_size=8,
        metric=metric, learning_rate=1e-2 if method != "full" else 1e-3, progress=False,
    )  # fmt: skip
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    assert study.summary.metric == metric
    assert study.summary.intact_score == pytest.approx(done.score, abs=1e-5)
    assert 0 < ap.inspect(tmp_path / "c")["percent_of_base"] <= 100
    off = {"outside": "base"} if method == "full" else {}
    whole = ap.ablate(tmp_path / "c", spans="whole", out=tmp_path / "off", progress=False, **off)
    assert done.score == max(done.validation_scores) > whole.summary.removed_score + 0.05
    with pytest.raises(ap.CheckpointError, match=naming("recorded", "omit --pooling cls")):
        ap.ablate(tmp_path / "c", pooling="cls", progress=False)


@pytest.mark.parametrize("method", slow_unless("lora:r=4".__eq__, ["lora:r=4", "full"]))
def test_a_folder_of_sentence_transformers_trains_with_its_own_modules(method, library, tmp_path):
    st = pytest.importorskip("sentence_transformers")
    request = request_of(library, task_of(tmp_path / "task", ROWS["contrasts"], "tsv"), method, epochs=3)
    losses_of(request, tmp_path / "c")
    said = json.loads((tmp_path / "c" / "adapter_probe.json").read_text())
    assert said["max_length"] == 20
    study = ap.ablate(tmp_path / "c", spans="single", progress=False)
    assert study.summary.intact_score == pytest.approx(said["scores"]["ndcg@10"], abs=1e-5)
    moved, limits = shutil.copytree(tmp_path / "c", tmp_path / "moved"), "sentence_bert_config.json"
    modules = json.loads((moved / "modules.json").read_text())
    assert modules[0]["path"] == ""
    modules[0]["path"] = "0_Transformer"  # where older versions of the library have it
    (moved / "modules.json").write_text(json.dumps(modules))
    (moved / "0_Transformer").mkdir()
    (moved / limits).rename(moved / "0_Transformer" / limits)
    edit(moved / "0_Transformer" / limits, max_seq_length=4)
    pruned = ap.prune(moved, tmp_path / "p", span=0, progress=False)
    assert json.loads((tmp_path / "p" / limits).read_text())["max_seq_length"] == 4
    again = ap.ablate(tmp_path / "p", spans="whole", progress=False)  # with the same modules and limit
    assert again.summary.intact_score == pytest.approx(pruned.score_after, abs=1e-5)
    if method == "full":  # which sentence-transformers opens as it is
        rows = ROWS["contrasts"][:12]
        model = st.SentenceTransformer(str(tmp_path / "c"), device="cpu")
        similar = model.similarity(
            model.encode_query([row["query"] for row in rows]),
            model.encode_document([row["positive"] for row in rows]),
        )
        ranks = (similar > similar.diagonal()[:, None]).sum(dim=1).double()
        ndcg = torch.where(ranks < 10, 1 / torch.log2(ranks + 2), 0.0).mean()
        assert study.summary.intact_score == pytest.approx(ndcg.item(), abs=1e-5)
    with pytest.raises(AdapterProbeError, match=naming("--pooling cls", "mean", "omit")):
        load_inputs(request_of(library, tmp_path / "task", method, pooling="cls"))


def test_validation_is_by_the_folders_similarity_and_its_identity_says_so(library, tmp_path):
    dotted = shutil.copytree(library, tmp_path / "dotted")
    modules = json.loads((dotted / "modules.json").read_text())
    modules = [one for one in modules if "Normalize" not in one["type"]]
    (dotted / "modules.json").write_text(json.dumps(modules))
    plain = shutil.copytree(dotted, tmp_path / "plain")
    config = json.loads((dotted / "config_sentence_transformers.json").read_text())
    for folder, similarity in ((dotted, "dot"), (plain, "cosine")):
        written = json.dumps({**config, "similarity_fn_name": similarity})
        (folder / "config_sentence_transformers.json").write_text(written)
    task, found = task_of(tmp_path / "task", ROWS["contrasts"]), {}
    for folder in (dotted, plain):
        request = request_of(folder, task)
        losses_of(request, tmp_path / "c" / folder.name)
        said = json.loads((tmp_path / "c" / folder.name / "adapter_probe.json").read_text())
        score = said["scores"]["ndcg@10"]
        study = ap.ablate(tmp_path / "c" / folder.name, spans="single", progress=False)
        assert study.summary.intact_score == pytest.approx(score, abs=1e-5)
        found[folder.name] = score, identity_of(request, load_inputs(request).fingerprints)
    assert abs(found["dotted"][0] - found["plain"][0]) > 1e-3
    assert found["dotted"][1]["similarity"] == "dot"
    assert "similarity" not in found["plain"][1]


def test_an_interrupted_training_ends_in_the_same_bytes(base, tmp_path):
    request = request_of(base, task_of(tmp_path / "task", ROWS["ragged"]), pooling="mean", checkpointing=True)
    assert_resumes(request, tmp_path, 4)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        (ROWS["contrasts"], {}, ("does not say how embeddings are pooled", "--pooling mean, cls or last")),
        (ROWS["contrasts"], {"pooling": "max"}, ("--pooling", "mean, cls, last", "max")),
        (ROWS["contrasts"], {**MEAN, "accumulate": 2}, ("--accumulate", "--batch-size")),
        (ROWS["contrasts"], {**MEAN, "metric": "spearman"}, ("'spearman'", "'ranking'", "ndcg@10")),
        (ROWS["contrasts"], {**MEAN, "method": "adapters"}, ("adapters", "embeddings", "lora:r=8")),
        ([{"query": "a", "positive": None}] * 3, MEAN, ("line 1", "'positive'", "some text")),
        ([{"query": "a", "positive": "b", "negative": None}] * 3, MEAN, ("line 1", "negative")),
        ([{"text": "a", "label": i} for i in range(3)], MEAN, ("--pooling mean", "classification")),
        ([{"text": "a", "score": i / 7} for i in range(30)], MEAN, ("one text each", "sentence1")),
    ],
)  # fmt: skip
def test_bad_input_is_one_line(rows, options, words, base, tmp_path):
    options = {"method": "lora:r=2", **options}
    with pytest.raises(AdapterProbeError, match=naming(*words)) as caught:
        ap.train(base, task=task_of(tmp_path / "task", rows), out=tmp_path / "c", progress=False, **options)
    assert "\n" not in str(caught.value)


def test_splits_are_of_one_kind(base, tmp_path):
    task = task_of(tmp_path / "task", ROWS["contrasts"])
    (task / "validation.jsonl").write_text("\n".join(map(json.dumps, ROWS["triplets"])))
    with pytest.raises(AdapterProbeError, match=naming("validation", "negative texts", "one kind")):
        find_task(task)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_a_suite_trains_and_ablates_embeddings(base, tmp_path):
    file = tmp_path / "suite.toml"
    file.write_text(f"""
base = "{base}"
[[tasks]]
task = "{task_of(tmp_path / "scores", ROWS["scores"])}"
[tradeoff]
sizes = []
top_k = [1]
lora_ranks = [2]
layernorm = false
full = false
seeds = 1
epochs = [1]
learning_rates = [1e-2]
pooling = "mean"
[ablation]
method = "lora:r=2"
pooling = "mean"
spans = "single"
""")
    study = ap.suite(file, tmp_path / "out", progress=False)
    assert set(study.tradeoff.table["metric"]) == {"spearman"}
    (ablation,) = study.ablations["scores"]
    said = ap.inspect(tmp_path / "out" / "checkpoints" / "scores" / "seed-0")["scores"]
    assert said == {"spearman": pytest.approx(ablation.summary.intact_score, abs=1e-6)}
