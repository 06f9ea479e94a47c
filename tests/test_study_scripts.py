"""The scripts of docs/studies on tiny models: their tables, from PEFT's files, SciPy and `ablate`."""

from __future__ import annotations

import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch
from byte_tokenizer import byte_tokenizer
from docs_scripts import DOCS, module
from random_checkpoints import random_checkpoint  # noqa: F401 (fixture)
from safetensors.numpy import load_file
from scipy.stats import sem, spearmanr, t

import adapter_probe as ap

pytestmark = pytest.mark.slow
STUDIES = DOCS / "studies"


@pytest.fixture(autouse=True)
def _scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(STUDIES)  # a script's own folder is where it finds others


def script(name: str) -> ModuleType:
    return module(f"studies/{name}")


@pytest.fixture(scope="module")
def airline(tiny_task: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_task` in the files of a task of the studies."""
    folder = tmp_path_factory.mktemp("data") / "crowdflower_airline"
    folder.mkdir()
    lines = (tiny_task / "train.jsonl").read_text().splitlines(keepends=True)
    for file, rows in (("train", lines[:96]), ("validation", lines[96:166]), ("test", lines[166:])):
        (folder / f"{file}.jsonl").write_text("".join(rows))
    return folder.parent


def test_agreement_of_seeds_on_all_examples_and_on_thirds(grids: list[str], tmp_path: Path):
    folders = grids[:2]
    script("seed_thirds").main(tmp_path / "out.csv", *folders)
    found = pd.read_csv(tmp_path / "out.csv").set_index("comparison")
    drops = [ap.load(folder).spans.set_index(["first", "last"])["delta_points"] for folder in folders]
    values, weights = [], []
    for length in (1, 2):  # of 4 layers, longer spans are fewer than three
        same = [span for span in drops[0].index if span[1] - span[0] + 1 == length]
        values.append(spearmanr(drops[0][same].round(9), drops[1][same].round(9)).statistic)
        weights.append(len(same))
    expected = np.average(np.nan_to_num(values), weights=weights)
    shared = found.loc["two seeds, same examples"].iloc[0]
    assert shared["within_one_length"] == pytest.approx(expected, abs=2e-3)
    assert (found["ci_low"] <= found["ci_high"]).all()
    assert found.index.value_counts().to_dict() == {
        "two seeds, same examples": 2, "two seeds, same third": 2, "two seeds, disjoint thirds": 2,
        "one seed, disjoint thirds": 3,
    }  # with a mean each  # fmt: skip
    assert set(found.loc["two seeds, disjoint thirds", "n_examples"]) == {70 // 3}


@pytest.fixture(scope="module")
def grids(airline: Path, tiny_base: Callable, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The ablations of four seeds of one task."""
    out, files = tmp_path_factory.mktemp("grids"), airline / "crowdflower_airline"
    for seed in range(4):
        ap.train(
            tiny_base("bert", layers=4), out / str(seed), train_file=files / "train.jsonl", seed=seed,
            validation_file=files / "validation.jsonl", size=4, learning_rate=1e-2, epochs=2, progress=False,
        )  # fmt: skip
        ap.ablate(out / str(seed), out=out / str(seed) / "grid", progress=False)
    return [str(out / str(seed) / "grid") for seed in range(4)]


def test_a_difference_between_tasks_is_over_seeds_and_examples(grids: list[str], tmp_path: Path):
    paths = [f"{folder}/spans.csv" for folder in grids]
    script("task_difference").main(tmp_path, {"first": ",".join(paths[:2]), "second": ",".join(paths[2:])})
    found, seeds = pd.read_csv(tmp_path / "difference.csv"), [pd.read_csv(path) for path in paths]
    drops = -np.stack([one["delta_points"] for one in seeds])
    expected = drops[2:].mean(0) - drops[:2].mean(0)
    error = np.sqrt(drops[:2].var(0, ddof=1) / 2 + drops[2:].var(0, ddof=1) / 2)
    above = np.mean([one["ci_high_points"] - one["delta_points"] for one in seeds[:2]], axis=0)
    below = np.mean([one["delta_points"] - one["ci_low_points"] for one in seeds[2:]], axis=0)
    high = expected + np.sqrt((t.ppf(0.975, 1) * error) ** 2 + above**2 + below**2)
    # A second task that loses more has lower ends of its changes: these reach up in the difference of drops.
    np.testing.assert_allclose(found["difference_points"], expected, atol=1e-4)
    np.testing.assert_allclose(found["ci_high_points"], high, atol=1e-3)
    excludes = (found["ci_low_points"] > 0) | (found["ci_high_points"] < 0)
    np.testing.assert_array_equal(found["p_value"] < 0.05, excludes)
    assert (tmp_path / "difference.png").exists()


def test_ranks_of_maps_are_spearmans(grids: list[str], tmp_path: Path):
    ranks = script("map_ranks")
    maps = {name: ranks.read(f"{folder}/spans.csv") for name, folder in zip("ab", grids)}
    ranks.main(tmp_path / "ranks.csv", maps)
    found = pd.read_csv(tmp_path / "ranks.csv").set_index(["map_a", "map_b"])
    one, other = maps["a"].round(9), maps["b"].round(9)
    row = found.loc[("a", "b")]
    assert row["spans"] == 10
    assert row["rank_correlation"] == pytest.approx(spearmanr(one, other).statistic, abs=1e-3)
    assert row["mean_absolute_difference_points"] == pytest.approx((one - other).abs().mean(), abs=1e-3)
    lengths = [last - first + 1 for first, last in one.index]
    for name, drops in (("a", one), ("b", other)):
        alone = spearmanr(drops, lengths).statistic
        assert found.loc[(name, "number of layers"), "rank_correlation"] == pytest.approx(alone, abs=1e-3)


@pytest.mark.filterwarnings("ignore")  # from correlations of spans of one length that all cost the same
def test_shares_of_methods_are_those_of_their_ablations(airline: Path, tiny_base: Callable, tmp_path: Path):
    studies, divergences, files = {}, {}, airline / "crowdflower_airline"
    rates = {"full": 1e-2, "adapters": 1e-2}
    for method, seed, rate in [*((m, s, rates[m]) for m in rates for s in (0, 1)), ("adapters", 2, 3e-2)]:
        checkpoint = tmp_path / f"airline-{method}-{seed}"
        ap.train(
            tiny_base("bert", layers=4), checkpoint, method=method, train_file=files / "train.jsonl",
            validation_file=files / "validation.jsonl", epochs=4, seed=seed, progress=False,
            learning_rate=rate,
        )  # fmt: skip
        study = ap.ablate(checkpoint, progress=False)
        intact = study.predictions[study.results.row_names.index("intact")]
        assert (len(np.unique(intact)) == 1) == (rate == 3e-2)  # which learns nothing
        if rate == 3e-2:
            continue
        studies[method, seed] = study
        divergences[method, seed] = ap.ablate(checkpoint, metric="kl", out=tmp_path / "kl" / checkpoint.name)
    script("where_learnt").main(
        tmp_path / "out", *map(str, tmp_path.glob("airline-*")), str(tmp_path / "x-full-9")
    )

    found = pd.read_csv(tmp_path / "out" / "shares.csv")
    assert (found["n_seeds"] == 2).all()
    found = found.set_index(["measure", "of", "method", "layer"]).sort_index()
    assert (found["ci_low"] <= found["ci_high"])[found["share"].notna()].all()
    for method in ("full", "adapters"):
        layers = [studies[method, seed].layers for seed in (0, 1)]
        singles = [divergences[method, seed].spans.query("n_layers == 1")["score"] for seed in (0, 1)]
        expected = {
            ("accuracy", "all"): sum(one["share_points"].to_numpy() for one in layers),
            ("accuracy", "alone"): -sum(one["delta_points"].to_numpy() for one in layers),
            ("kl", "alone"): sum(one.to_numpy() for one in singles),
        }
        for (measure, of), costs in expected.items():
            own = found.loc[(measure, of, method), "share"]
            np.testing.assert_allclose(own[[*"0123"]], costs / costs.sum(), atol=2e-4)
            assert own["centre"] == pytest.approx(costs @ range(4) / costs.sum(), abs=1e-3, nan_ok=True)
        centre = found.loc[("kl", "alone", method, "centre")]
        over_seeds = t.ppf(0.975, 1) * sem([one.to_numpy() @ range(4) / one.sum() for one in singles])
        assert centre["ci_high"] - centre["share"] > over_seeds - 1e-3
        assert centre["share"] - centre["ci_low"] > over_seeds - 1e-3
    centres = found.xs("centre", level="layer")["share"]
    for row in pd.read_csv(tmp_path / "out" / "centres.csv").itertuples():
        one, other = (centres[row.measure, row.of, name] for name in (row.method_a, row.method_b))
        assert row.difference == pytest.approx(one - other, abs=1e-3, nan_ok=True)

    agreement = pd.read_csv(tmp_path / "out" / "agreement.csv").query("measure == 'accuracy'")
    assert agreement["with"].value_counts().to_dict() == {"itself": 4, "another seed": 2, "another method": 4}
    maps = {
        key: study.spans.set_index(["n_layers", "first"])["delta_points"] for key, study in studies.items()
    }
    for row in agreement.query("`with` != 'itself'").itertuples():
        pair = maps[row.method_a, row.seed_a].round(9), maps[row.method_b, row.seed_b].round(9)
        expected = np.nanmean([spearmanr(pair[0][n], pair[1][n]).statistic for n in (1, 2)])
        assert row.all_examples == pytest.approx(expected, abs=1e-3, nan_ok=True)
    assert [*pd.read_csv(tmp_path / "out" / "trials.csv")["seed"]] == [0, 1, 0, 1, 2]
    assert (tmp_path / "out" / "maps.png").stat().st_size > 10_000

    record = script("map_record")
    for method, seed in studies:
        folder = tmp_path / f"airline-{method}-{seed}"
        record.write(tmp_path / f"{folder.name}.npz.xz", record.of_folders(folder, folder / "ablation"))
    script("where_learnt").main(tmp_path / "again", *map(str, tmp_path.glob("airline-*.xz")))
    for name in ("shares", "centres", "agreement", "maps"):
        frames = [pd.read_csv(tmp_path / out / f"{name}.csv") for out in ("out", "again")]
        pd.testing.assert_frame_equal(*frames, atol=2e-4)  # of numbers with four digits
    script("where_learnt").main(tmp_path / "alone", str(tmp_path / "airline-full-0.npz.xz"))
    alone = pd.read_csv(tmp_path / "alone" / "maps.csv")  # of one seed
    spans = studies["full", 0].spans
    np.testing.assert_allclose(alone["delta_points"], spans["delta_points"], atol=1e-4)
    np.testing.assert_allclose(alone["p_holm"], spans["p_holm"], atol=1e-4)

    folder = tmp_path / "airline-full-0"
    kept = np.load(io.BytesIO(lzma.decompress((tmp_path / "airline-full-0.npz.xz").read_bytes())))
    np.testing.assert_array_equal(kept["predictions"], studies["full", 0].predictions)
    np.testing.assert_allclose(kept["kl"], divergences["full", 0].spans["score"], atol=1e-6)
    np.testing.assert_allclose(kept["kl_halves"].mean(axis=(0, 1)), kept["kl"], rtol=1e-6)  # of equal size
    alone = divergences["full", 0].spans.query("n_layers == 1")["score"]
    np.testing.assert_allclose(kept["kl_drawn"][0].mean(axis=0), alone, rtol=0.1)

    script("map_size").main(tmp_path / "size.csv", str(tmp_path / "airline-full-0" / "ablation"), 20, 9)
    sizes = pd.read_csv(tmp_path / "size.csv").set_index("measure")
    singles = divergences["full", 0].spans.query("n_layers == 1")["score"].to_numpy()
    assert sizes.loc["kl", "mean_layer"] == pytest.approx(singles @ range(4) / singles.sum(), abs=1e-3)
    assert (sizes["least_agreement"].dropna() <= sizes["mean_agreement"].dropna()).all()
    assert sizes.loc["kl", "sd_mean_layer"] > 0


def test_averages_of_learnt_tasks_are_means_of_their_rows(tmp_path: Path):
    study, whole = STUDIES / "tradeoff", tmp_path / "whole"
    module("gallery_results").tradeoff(whole)
    script("learnt_tasks").main(str(whole), str(tmp_path / "learnt"), ["airline", "sst2"])
    tmp_path = tmp_path / "learnt"
    for caption in tmp_path.glob("*.txt"):
        assert "airline 1,600 and 400; SST-2 1,600 and 400." in caption.read_text()
    sizes = pd.read_csv(tmp_path / "table-sizes.csv").set_index("size")
    trials = pd.read_csv(study / "trials.csv").query("method == 'adapters' and task in ['airline', 'sst2']")
    for size, own in trials.groupby("size"):
        seeds = own.groupby(["task", "learning_rate"])["score"].agg(["count", "mean"]).query("count == 3")
        assert sizes.loc[size, "mean_score"] == pytest.approx(
            seeds.groupby("task")["mean"].max().mean(), abs=1e-6
        )
    assert {path.stem for path in tmp_path.iterdir()} == {
        "size-robustness", "table-sizes", "table-tasks", "tradeoff-aggregate",
    }  # fmt: skip


def test_a_base_without_its_pooler(tiny_base: Callable, tmp_path: Path):
    base = tiny_base("bert")
    script("new_pooler").main(base, tmp_path / "new")
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "new"))
    assert {name for name in before if "pooler" not in name} == set(after) < set(before)
    assert all(np.array_equal(before[name], tensor) for name, tensor in after.items())


def test_maps_of_divergences_differ_by_their_means(grids: list[str], capsys: pytest.CaptureFixture):
    folders = []
    for folder in grids[:2]:
        checkpoint = Path(folder).parent
        ap.ablate(checkpoint, metric="kl", spans="single", out=checkpoint / "kl", progress=False)
        folders.append(str(checkpoint / "kl"))
    script("quantised_maps").main(*folders)
    said = capsys.readouterr().out.splitlines()[-1]
    one, other = (ap.load(folder).spans["score"].to_numpy() for folder in folders)
    assert f"mean difference {np.abs(one - other).mean():.5f}" in said
    assert f"correlation {np.corrcoef(one, other)[0, 1]:.5f}" in said


def tiny_language_model(folder: Path) -> Path:
    """A random Llama of three layers that reads bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = byte_tokenizer(bos=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_the_boundary_is_chosen_on_one_half_and_judged_on_the_other(tmp_path: Path):
    base, data, out = tiny_language_model(tmp_path / "base"), tmp_path / "data" / "sst2", tmp_path / "out"
    data.mkdir(parents=True)
    for split, n in (("train", 24), ("validation", 40)):
        rows = [
            {"sentence": f"{'ab' * (i % 5)} is {'good' if i % 3 else 'bad'}", "label": int(i % 3 > 0)}
            for i in range(n)
        ]
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = "--tasks sst2 --seeds 2 --half 16 --texts 4"
    given = [str(base), str(data.parent), str(out), *options.split()]
    script("upper_layers").main(given)
    tables = [(out / f"{name}.csv").read_bytes() for name in ("boundaries", "curves")]
    boundaries, curves = (pd.read_csv(out / f"{name}.csv") for name in ("boundaries", "curves"))
    assert len(boundaries) == 2
    assert len(curves) == 2 * 3
    for (_, row), (_, curve) in zip(boundaries.iterrows(), curves.groupby("seed")):
        curve = curve.set_index("first")
        best = curve["delta_points_a"].max()
        if row["boundary"] == 3:  # every suffix costs something on half A
            assert best < 0
            assert row["delta_points_b"] == 0
        else:
            assert row["boundary"] == curve.index[np.isclose(curve["delta_points_a"], best)].min()
            assert row["delta_points_b"] == pytest.approx(curve.loc[row["boundary"], "delta_points"])
        assert row["score_a"] - row["intact_a"] == pytest.approx(max(0, best) / 100)
        assert curve["kl"].is_monotonic_decreasing or (curve["kl"] >= 0).all()
    script("upper_layers").main(given)
    assert tables == [(out / f"{name}.csv").read_bytes() for name in ("boundaries", "curves")]
    assert (out / "upper-layers.png").exists()


def test_maps_of_written_texts_and_their_likelihood(tmp_path: Path):
    base, data, rows = tiny_language_model(tmp_path / "base"), tmp_path / "data", tmp_path / "rows"
    for split, n in (("train", 12), ("validation", 24)):
        texts = [{"sentence": f"{'ab' * (i % 5)} is {i}", "label": int(i % 3 == 0)} for i in range(n)]
        asked = [
            {"question": f"{i}?", "answers": [{"text": text, "answer_start": 2} for text in ("red", "a red")]}
            for i in range(n)
        ]
        for folder in ("sst2", "squad"):
            (data / folder).mkdir(parents=True, exist_ok=True)
        (data / "sst2" / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
        paragraph = {"context": "A red. Blue.", "qas": [*asked, {"question": "?", "answers": [
            {"text": "lue", "answer_start": 8}]}]}  # fmt: skip
        (data / "squad" / f"{split}.json").write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    script("written_rows").main(data, rows)
    held, train, judged = (
        [json.loads(line) for line in (rows / "answers" / f"{name}.jsonl").open()]
        for name in ("held", "train", "written")
    )
    assert (len(held), len(train), len(judged)) == (6, 6, 24)
    assert all(row["prompt"].startswith("Text: A red.\nQuestion: ") for row in judged), "no part of a word"
    assert {row["completion"] for row in train} == {" red\n"}
    assert judged[0]["answers"] == ["red", "a red"]

    lora, given = tmp_path / "lora", {"base": base, "max_new_tokens": 3, "generate": True}
    ap.train(
        base, lora, method="lora:r=4,target_modules=all-linear", name="words", batch_size=2, epochs=4,
        train_file=rows / "words" / "train.jsonl", validation_file=rows / "words" / "held.jsonl",
        learning_rate=5e-3,
    )  # fmt: skip
    files = {}
    for task, scored in (("words", "choices"), ("answers", "likelihood")):
        folders = [tmp_path / f"{task}-{score}" for score in ("written", scored)]
        ap.ablate(lora, data=rows / task / "written.jsonl", out=folders[0], **given)
        ap.ablate(lora, data=rows / task / f"{scored}.jsonl", base=base, out=folders[1])
        files[task] = f"{task}={folders[0]},{folders[1]},{rows / task / 'written.jsonl'}"
    script("written_maps").main(tmp_path / "maps", *files.values())
    found, maps, texts = (
        pd.read_csv(tmp_path / "maps" / f"{name}.csv") for name in ("agreement", "maps", "texts")
    )
    assert (tmp_path / "maps" / "maps.png").exists()
    assert set(found["map_b"]) == {"exact match", "choice", "token F1", "log-likelihood"}
    assert maps.loc[maps["first"] < 0, "n_layers"].tolist() == [0, 0]
    drops = maps[(maps["task"] == "words") & (maps["first"] >= 0)].set_index(["first", "last"])
    spans = ap.load(tmp_path / "words-choices").spans.set_index(["first", "last"])
    assert drops["choice"].to_numpy() == pytest.approx(-spans.loc[drops.index, "delta_points"], abs=1e-3)
    row = found[
        (found["task"] == "words") & (found["map_a"] == "choice") & (found["map_b"] == "log-likelihood")
    ]
    assert row["all_spans"].item() == pytest.approx(
        spearmanr(drops["choice"], drops["log-likelihood"]).statistic, abs=1e-3
    )
    assert row["all_spans_low"].item() <= row["all_spans"].item() <= row["all_spans_high"].item()
    assert texts.groupby(["task", "prompt"])["text"].nunique().gt(2).all()

    ap.ablate(lora, data=rows / "words" / "choices.jsonl", base=base, by="module", out=tmp_path / "modules")
    twice = [f"words={tmp_path / 'modules'}"] * 2  # as if the second were of another training
    script("module_halves").main(tmp_path / "halves.csv", *twice)
    table = pd.read_csv(tmp_path / "halves.csv").set_index(["kind", "which"])
    study = ap.load(tmp_path / "modules")
    corner = study.spans[(study.spans["module"] == "all") & (study.spans["n_layers"] == 3)][
        "delta_points"
    ].item()
    log_p = torch.tensor(study.results.outputs.astype(float)).log_softmax(-1)
    moved = torch.nn.functional.kl_div(log_p[-1], log_p[0], log_target=True, reduction="none").sum(-1)
    for measure, everything in (("points", -corner), ("divergence", moved.mean().item())):
        halves = table[(table["measure"] == measure) & (table["training"] == "0")]
        own = halves.loc[("everything", np.nan)].squeeze()
        assert (own["drop_a"] + own["drop_b"]) / 2 == pytest.approx(everything, abs=1e-4)
        assert own["low_b"] <= own["drop_b"] <= own["high_b"]
        for kind in ("module in all layers", "layers, all modules", "cell"):
            assert halves.loc[(kind, "cheapest"), "drop_a"] <= halves.loc[(kind, "costliest"), "drop_a"]
        assert halves["of"].dropna().tolist() == [7, 7, 3, 3, 21, 21]
    both = table[(table["measure"] == "divergence") & (table["training"] == "0 and 1")]
    assert both["drop_b"].tolist() == pytest.approx([1, 1, 1])
