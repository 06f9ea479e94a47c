"""Studies of ranks against LoRAs that are truncated by hand, by an SVD in float64, and written by PEFT."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
from changed_files import retensor
from peft_folders import HEADS, KV, T5, save_lora, saved, written
from refusals import names, naming, refuses, says, value_of
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import adapter_probe as ap
from adapter_probe.analysis.ranks import effective_rank, energy_kept, spectra_table
from adapter_probe.errors import AdapterProbeError, CheckpointError, ModelError
from adapter_probe.jobs.resources import Machine
from adapter_probe.studies.checkpoint_arguments import Subject
from adapter_probe.studies.opened import Opened
from adapter_probe.studies.ranks import RunRanks, _ranks

BERT = {key: value for key, value in KV.items() if key != "num_key_value_heads"}
ROWS = [{"text": f"{'ab cd ' * (n % 3 + 1)}{7 * n:03d}"} for n in range(32)]
LABELS: list[int] = []
R = 4


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of a BERT with maps of a smaller rank, and rows whose labels it gives, as many of each."""
    folder = tmp_path_factory.mktemp("ranks")
    shutil.rmtree(saved(folder, "bert", BERT, "SEQ_CLS", ["query"]))
    found = save_lora(
        folder,
        peft.LoraConfig(
            task_type="SEQ_CLS", r=R, lora_alpha=8, target_modules=["query", "value"], use_rslora=True,
            rank_pattern={"value": 2}, alpha_pattern={"value": 6},
        ),
    )  # fmt: skip
    logits = outputs(by_hand(found, R, range(0)))
    middle = float(np.median(logits[:, 1] - logits[:, 0]))
    shift = torch.tensor([0.0, middle])
    retensor(found, lambda t: {n: x - shift if n.endswith("classifier.bias") else x for n, x in t.items()})
    labels = (logits[:, 1] - logits[:, 0] > middle).astype(int).tolist()
    written(folder, [row | {"label": label} for row, label in zip(ROWS, labels)])
    LABELS[:] = labels
    return found


@pytest.fixture(scope="module")
def study(lora: Path, tmp_path_factory: pytest.TempPathFactory) -> ap.Ranks:
    return ap.ranks(
        lora, data=lora.parent / "rows.jsonl", ranks=(1, 2, 3), spans="single", within=30.0,
        label_names=("0", "1"), precision="float64", out=tmp_path_factory.mktemp("study"), progress=False,
    )  # fmt: skip


def by_hand(lora: Path, rank: int, layers: range) -> torch.nn.Module:
    """PEFT's model whose factors are truncated in some layers, by NumPy."""
    base = HEADS["SEQ_CLS"].from_pretrained(lora.parent / "base")
    model = peft.PeftModel.from_pretrained(base, lora).double().eval()
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, peft.tuners.lora.LoraLayer) and int(name.split(".layer.")[1][0]) in layers:
                a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
                u, s, v = np.linalg.svd((b @ a).numpy(), full_matrices=False)
                k = min(rank, len(a))
                a.zero_(), b.zero_()
                a[:k] = torch.from_numpy(v[:k])
                b[:, :k] = torch.from_numpy(u[:, :k] * s[:k])
    return model


def outputs(model: torch.nn.Module) -> np.ndarray:
    found, tokenizer = [], AutoTokenizer.from_pretrained(model.base_model.model.name_or_path)
    with torch.no_grad():
        for row in ROWS:
            text = tokenizer(row["text"], return_tensors="pt")
            found.append(model(text["input_ids"], attention_mask=text["attention_mask"]).logits[0].numpy())
    return np.array(found)


def predicted(model: torch.nn.Module) -> np.ndarray:
    return outputs(model).argmax(1)


def test_scores_are_those_of_loras_that_are_truncated_by_hand(study, lora):
    labels = np.array(LABELS)
    table = study.table.set_index(["whole", "first", "rank"])["score"]
    for rank in (1, 2, 3, 4):
        own = (predicted(by_hand(lora, rank, range(3))) == labels).mean()
        assert table[True, 0, rank] == pytest.approx(own)
    assert table[False, 1, 1] == pytest.approx((predicted(by_hand(lora, 1, range(1, 2))) == labels).mean())
    assert study.table["score"].nunique() > 2
    intact = study.table[study.table["rank"] == R]
    assert (intact[["delta_points", "ci_low_points", "ci_high_points"]] == 0).all(axis=None)


def test_energy_and_effective_ranks_are_those_of_the_delta_weights(study, lora):
    model = by_hand(lora, R, range(0))
    found = study.spectra.groupby("module")["value"]
    energy, kept = 0.0, 0.0
    for name, module in model.get_base_model().named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            delta = module.get_delta_weight("default").detach().numpy()
            values = np.linalg.svd(delta, compute_uv=False)
            own = found.get_group(name).to_numpy()
            np.testing.assert_allclose(own, values[: len(own)], rtol=1e-5)
            energy, kept = energy + (values**2).sum(), kept + (values[:2] ** 2).sum()
            p = own / own.sum()
            wanted = math.exp(-sum(x * math.log(x) for x in p))
            row = study.effective_ranks.set_index("module").loc[name]
            assert row["effective_rank"] == pytest.approx(wanted)
    whole = study.table[study.table["whole"]].set_index("rank")["energy"]
    assert whole[2] == pytest.approx(kept / energy, rel=1e-5)
    assert whole[R] == 1
    assert study.summary.effective == pytest.approx(study.effective_ranks["effective_rank"].mean())


@pytest.mark.slow
def test_the_fewest_directions_are_chosen_on_one_half_and_judged_on_the_other(study, lora):
    labels, first = np.array(LABELS), np.zeros(len(ROWS), dtype=bool)
    first[np.random.default_rng(0).permutation(len(ROWS))[: len(ROWS) // 2]] = True
    right = {rank: predicted(by_hand(lora, rank, range(3))) == labels for rank in (1, 2, 3, 4)}
    drops = {rank: 100 * (own[first].mean() - right[R][first].mean()) for rank, own in right.items()}
    needed = min(rank for rank, drop in drops.items() if drop >= -30)
    said = study.summary
    assert (said.needed, said.largest, said.chosen_on, said.n_judged) == (needed, R, "half", len(ROWS) // 2)
    change = 100 * (right[needed][~first].mean() - right[R][~first].mean())
    assert said.delta_points == pytest.approx(change)
    assert names(value_of(study.rows(), "directions needed"), f"{needed} of {R}", "30 points")


@pytest.mark.slow
def test_it_is_read_back_resumed_drawn_and_reported(study, lora, tmp_path):
    again = ap.load(study.folder)
    assert again.summary == study.summary
    np.testing.assert_allclose(again.spectra["value"], study.spectra["value"], rtol=1e-9)
    parts = {path: path.stat().st_mtime_ns for path in study.folder.glob("rank-*/parts/*")}
    assert {path.parent.parent.name for path in parts} == {"rank-1", "rank-2", "rank-3"}
    paths = {path.name for path in study.save(tmp_path, formats="svg")}
    assert {"ranks.svg", "ranks.csv", "spectra.svg", "spectra.csv"} <= paths
    assert says((tmp_path / "ranks.txt").read_text(), "thin lines", "3 spans")
    assert ap.load(next(study.folder.glob("rank-1"))).summary.done == "cut to rank 1"
    ap.report(study.folder, out=tmp_path / "page.html")
    assert "How many directions are needed?" in (tmp_path / "page.html").read_text()
    assert {path: path.stat().st_mtime_ns for path in parts} == parts


@pytest.mark.slow
def test_pruning_writes_the_lora_that_was_scored(study, lora, tmp_path):
    options = {"data": lora.parent / "rows.jsonl", "label_names": ("0", "1"), "progress": False}
    for name, given, rank, layers in (
        ("all", {"rank": 1}, 1, range(3)),
        ("one", {"rank": 1, "span": 1}, 1, range(1, 2)),
    ):
        pruned = ap.prune(lora, out=tmp_path / name, **given, **options)
        assert pruned.rank == rank
        base = HEADS["SEQ_CLS"].from_pretrained(lora.parent / "base")
        model = peft.PeftModel.from_pretrained(base, tmp_path / name).double().eval()
        wanted = by_hand(lora, rank, layers)
        for (key, own), other in zip(model.named_modules(), wanted.modules()):
            if isinstance(own, peft.tuners.lora.LoraLayer):
                delta = own.get_delta_weight("default") - other.get_delta_weight("default")
                assert abs(delta).max() < 1e-6
                in_layers = int(key.split(".layer.")[1][0]) in layers
                assert own.r["default"] == (rank if in_layers else 2 if "value" in key else R)
        config = json.loads((tmp_path / name / "adapter_config.json").read_text())
        assert (config["r"] == 1) == (layers == range(3))
    assert (pruned.chosen_on, pruned.n_examples) == (None, len(ROWS))
    assert pruned.adapter_parameters_after < pruned.adapter_parameters_before


@pytest.mark.parametrize("library", ["peft", "mlx"])
def test_the_default_ranks_are_below_that_of_the_lora(lora, tmp_path, library):
    """Also of one in the only subfolder, and of MLX-LM, whose configuration has it elsewhere."""
    folder = tmp_path / "outer"
    shutil.copytree(lora, folder / "inner")
    if library == "mlx":
        folder = folder / "inner"
        (folder / "adapter_config.json").write_text('{"lora_parameters": {"rank": 4}}')
    call = RunRanks(checkpoint=folder)
    assert _ranks(call, Opened(Subject.of(call), Machine(), None)) == [1, 2]


def test_effective_rank_and_energy_in_closed_form():
    assert effective_rank(np.ones(5)) == pytest.approx(5)
    assert effective_rank(np.array([3.0, 0.0, 0.0])) == pytest.approx(1)
    assert effective_rank(np.zeros(2)) == 0
    values = [("", 0, "s", "a", np.array([2.0, 1.0])), ("", 1, "s", "b", np.array([[2.0, 0.0], [1.0, 1.0]]))]
    spectra = spectra_table(values)
    assert energy_kept(spectra, 1) == pytest.approx(9 / 11)
    assert energy_kept(spectra, 1, (spectra["layer"] == 0).to_numpy()) == pytest.approx(4 / 5)
    assert energy_kept(spectra, 2) == 1
    assert list(spectra["expert"]) == [0, 0, 0, 0, 1, 1]


def energies(model: torch.nn.Module, rank: int) -> dict[str, tuple[float, float]]:
    """By the name of every LoRA's module, its squared singular values that are kept, and all."""
    found = {}
    for name, module in model.get_base_model().named_modules():
        if isinstance(module, peft.tuners.lora.LoraLayer):
            delta = module.get_delta_weight("default").detach().double().numpy()
            values = np.linalg.svd(delta, compute_uv=False) ** 2
            found[name] = values[:rank].sum(), values.sum()
    return found


def kept(found: dict[str, tuple[float, float]], *parts: str) -> float:
    """The share that is kept of the modules whose names hold all of these."""
    own = [pair for name, pair in found.items() if all(part in name for part in parts)]
    return sum(one for one, _ in own) / sum(whole for _, whole in own)


def test_rows_of_a_map_of_modules_are_told_apart(lora, tmp_path):
    study = ap.ranks(
        lora, data=lora.parent / "rows.jsonl", ranks=(1,), by="module", spans="single",
        label_names=("0", "1"), out=tmp_path / "out", progress=False,
    )  # fmt: skip
    table, own = study.table[study.table["rank"] == 1], energies(by_hand(lora, R, range(0)), 1)
    assert not table.duplicated(["whole", "module", "first", "last"]).any()
    assert sorted(table["module"].unique()) == ["all", "query", "value"]
    for row in table.to_dict("records"):
        module = "" if row["module"] == "all" else row["module"]
        layer = f".layer.{row['first']}." if row["n_layers"] == 1 else ""
        assert row["energy"] == pytest.approx(kept(own, module, layer), rel=1e-5)
    assert ap.load(study.folder).table["energy"].tolist() == pytest.approx(study.table["energy"].tolist())


def test_rows_of_stacks_have_layers_and_energies_of_their_stack(tmp_path):
    HEADS["SEQ_2_SEQ_LM"] = AutoModelForSeq2SeqLM
    lora = saved(tmp_path, "t5", T5, "SEQ_2_SEQ_LM", ["q", "wo"])
    rows = written(tmp_path, [{"prompt": "ab", "completion": " c"}, {"prompt": "b", "completion": " a"}])
    options = {"data": rows, "spans": "single", "progress": False}
    model = peft.PeftModel.from_pretrained(HEADS["SEQ_2_SEQ_LM"].from_pretrained(tmp_path / "base"), lora)
    own = energies(model, 1)
    study = ap.ranks(lora, ranks=(1,), out=tmp_path / "ranks", **options)
    strengths = ap.strength(lora, strengths=(0.5,), out=tmp_path / "strengths", **options)
    wanted = [(stack, *ends) for stack in ("decoder", "encoder") for ends in ((0, 0), (1, 1), (0, 1))]
    for table in (study.table[study.table["rank"] == 1], strengths.table[strengths.table["strength"] == 0.5]):
        parts = table[~table["whole"]]
        assert list(parts[["stack", "first", "last"]].itertuples(index=False, name=None)) == wanted
        whole = table[table["whole"]][["stack", "first", "last", "n_layers"]]
        assert whole.to_numpy().tolist() == [["all", 0, 1, 4]]  # numbered in their stacks, as everywhere
    for row in study.table[study.table["rank"] == 1].to_dict("records"):
        layer = f"block.{row['first']}." if row["n_layers"] == 1 else ""
        stack = "" if row["whole"] else row["stack"]
        assert row["energy"] == pytest.approx(kept(own, stack, layer), rel=1e-5)
    assert (study.table.loc[study.table["rank"] == R, "energy"] == 1).all()
    places = study.spectra[["stack", "layer", "module"]].drop_duplicates()
    assert all(f"{stack}.block.{layer}." in name for stack, layer, name in places.itertuples(index=False))
    study.save(tmp_path / "figures", formats="svg")


@pytest.mark.parametrize("rank", [3, 30])
def test_a_lora_wider_than_its_maps_is_pruned_to_a_rank(rank: int, tmp_path):
    shutil.rmtree(saved(tmp_path, "llama", KV, "CAUSAL_LM", ["q_proj"]))
    wide = peft.LoraConfig(task_type="CAUSAL_LM", r=32, target_modules=["q_proj", "k_proj", "down_proj"])
    lora = save_lora(tmp_path, wide, size=0.1)
    rows = written(tmp_path, ROWS[:4])
    ap.prune(lora, tmp_path / "new", rank=rank, data=rows, progress=False)
    old, new = (
        peft.PeftModel.from_pretrained(HEADS["CAUSAL_LM"].from_pretrained(tmp_path / "base"), one)
        for one in (lora, tmp_path / "new")
    )
    for before, after in zip(old.modules(), new.modules()):
        if isinstance(before, peft.tuners.lora.LoraLayer):
            u, s, v = np.linalg.svd(before.get_delta_weight("default").detach().double().numpy())
            most = min(rank, len(s))
            wanted = u[:, :most] * s[:most] @ v[:most]
            np.testing.assert_allclose(after.get_delta_weight("default").detach(), wanted, atol=1e-6)
            assert after.r["default"] == most


def test_a_shared_layer_is_written_with_its_strength(tmp_path):
    """The layers of an ALBERT, whose strengths are given for each of them as in an ablation."""
    lora = saved(tmp_path, "albert", BERT | {"embedding_size": 16, "num_labels": 2}, "SEQ_CLS", ["query"])
    for strengths, one in (([0.5, 0.5, 0.5], 0.5), ({"attention": 2.0}, 2.0)):
        out = tmp_path / f"new-{one}"
        ap.convert(lora, out, to="peft", strength=strengths)
        old, new = (load_file(place / "adapter_model.safetensors") for place in (lora, out))
        for name, tensor in old.items():
            assert torch.equal(new[name], tensor * (one if "lora_B" in name else 1))
    with pytest.raises(ModelError, match=naming("strength", "share")):
        ap.convert(lora, tmp_path / "no", to="peft", strength=[0.5, 1.0, 0.5])


def test_another_metric_is_computed_from_the_same_runs(lora, tmp_path):
    options = {"data": lora.parent / "rows.jsonl", "label_names": ("0", "1"), "progress": False}
    for metric in (None, "macro_f1", "kl", "agreement"):
        study = ap.ablate(lora, out=tmp_path / "out", metric=metric, spans="whole", **options)
    parts = {path: path.stat().st_mtime_ns for path in study.folder.glob("parts/*")}
    ap.ablate(lora, out=tmp_path / "out", spans="whole", **options)
    assert {path: path.stat().st_mtime_ns for path in study.folder.glob("parts/*")} == parts


def test_ranks_and_adapters_that_make_no_sense_are_refused(study, lora, tmp_path):
    data = {"data": lora.parent / "rows.jsonl", "label_names": ("0", "1"), "progress": False}
    refuses(AdapterProbeError, ("ranks must", "at least 1", "0"), ap.ranks, lora, ranks=(0, 1), **data)
    refuses(ModelError, ("rank 5", "1 to 4"), ap.ranks, lora, ranks=(1, 5), out=tmp_path / "five", **data)
    base = HEADS["SEQ_CLS"].from_pretrained(lora.parent / "base")
    ia3 = peft.IA3Config(task_type="SEQ_CLS", target_modules=["query"], feedforward_modules=[])
    model = peft.get_peft_model(base, ia3)
    model.save_pretrained(tmp_path / "ia3")
    refuses(ModelError, ("no ranks",), ap.ranks, tmp_path / "ia3", base=lora.parent / "base", **data)
    loha = peft.LoHaConfig(task_type="SEQ_CLS", target_modules=["query"], r=2, init_weights=False)
    model = peft.get_peft_model(HEADS["SEQ_CLS"].from_pretrained(lora.parent / "base"), loha)
    model.save_pretrained(tmp_path / "loha")
    with pytest.raises(CheckpointError, match=naming("LOHA", "rank of 1")):
        ap.prune(tmp_path / "loha", rank=1, base=lora.parent / "base", out=tmp_path / "new", **data)
    for given, fact in (
        ({"rank": 1, "strength": 0.5}, "strength="),
        ({"rank": 1, "within": 1}, "within="),
        ({"rank": 1, "basis": "interval"}, "basis="),
        ({"span": 0, "ablation": study.folder}, "ablation="),
        ({}, "span="),
    ):
        refuses(AdapterProbeError, (fact,), ap.prune, lora, out=tmp_path / "new", **given, **data)
