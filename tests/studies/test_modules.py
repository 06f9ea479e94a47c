"""Maps of layers and modules, and strengths by layer: every number against PEFT's switches and factors."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from mask_loop import module_path, output, switched, tuned_modules
from peft_folders import saved
from refusals import naming, refuses
from test_batches import batches_of
from tiers import slow_unless
from tiny_families import family, lora

import adapter_probe as ap
from adapter_probe import units
from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.errors import AdapterProbeError, ResultsError
from adapter_probe.replay.stacks import find_layers
from adapter_probe.replay.switches import Switches

LAST = {"read": lambda out: out.logits[:, -1, :3]}
CASES = {
    "vit": {},
    "bert": {},
    "llama": LAST,
    "gpt2": LAST,
    "mixtral": LAST,
    "qwen2": LAST,
    "t5 (labels)": {"read": lambda out: out.logits[:, 0, :3]},
    "whisper": LAST,
    "wav2vec2": {},
}


@cache
def made(name: str):
    """A model, which is not changed, and what is asked of its ablation."""
    base, x = family(name)
    model, batches = lora(base), batches_of(x)
    with torch.no_grad():
        shape = model(**batches[0]).logits.shape
    if "read" not in CASES[name] and len(shape) == 3:
        CASES[name]["read"] = lambda out: out.logits[:, 0, :3]
    labels = np.arange(3 * len(batches)) % 3
    return model, {
        "batches": batches,
        "labels": labels,
        "precision": "float64",
        "progress": False,
        **CASES[name],
    }


def outputs(model, given) -> np.ndarray:
    read = given.get("read", output)
    with torch.no_grad():
        return torch.cat([read(model(**batch)) for batch in given["batches"]]).numpy()


def stacks(study, model) -> dict[str, list[dict[str, list]]]:
    """The tuned modules by path of every layer, by stack."""
    layers = [tuned_modules(layer.module) for layer in find_layers(model, Switches())]
    sizes = study.results.settings.get("stacks", [["", len(layers)]])
    begins = np.cumsum([0, *(n for _, n in sizes)])
    return {name: layers[begin : begin + n] for begin, (name, n) in zip(begins, sizes)}


def chosen(layers: list[dict[str, list]], module: str, first: int, last: int) -> list:
    """The modules of a row of the map; a module is named by an end of its path that is its own."""
    found, whole = [], any(module_path(module) in own for own in layers)
    for number, own in enumerate(layers):
        for path, modules in own.items():
            ends = [path] if whole else [".".join(path.split(".")[n:]) for n in range(9)]
            if first <= number <= last and (module == "all" or module_path(module) in ends):
                found += modules
    return found


SUBLAYERS = {
    "attention": ("attention", "self_attn", "Attention"),
    "ffn": ("mlp", "DenseReluDense", "experts"),
}


def of_sublayer(layers: list[dict[str, list]], sublayer: str, first: int, last: int) -> list:
    """The modules of a row of the map by sublayer."""
    return [
        one
        for layer in layers[first : last + 1]
        for path, ones in layer.items()
        if sublayer == "all" or any(word in path for word in SUBLAYERS[sublayer])
        for one in ones
    ]


@pytest.mark.parametrize(
    "case",
    slow_unless(
        ("vit", "module").__eq__,
        [*((name, "module") for name in CASES),
         *((name, "sublayer") for name in ("llama", "mixtral", "t5 (labels)"))],
    ),
    ids=" by ".join,
)  # fmt: skip
def test_every_cell_equals_the_loop(case: tuple[str, str]):
    name, by = case
    model, given = made(name)
    study = ap.ablate(model, by=by, **given)
    results, whole = study.results, copy.deepcopy(model).eval()
    of = stacks(study, whole)
    for row, (module, (first, last)) in enumerate(zip(results.modules.tolist(), results.spans.tolist())):
        stack = "" if results.stacks is None else str(results.stacks[row])
        inside = chosen if by == "module" else of_sublayer
        off = inside(of[stack], module, first, last) if first >= 0 else []
        if results.row_names[row] == "none":
            off = [m for layers in of.values() for own in layers for ms in own.values() for m in ms]
        switched(off, False)
        expected = outputs(whole, given)
        switched(off, True)
        scale = max(1, np.abs(expected).max())
        np.testing.assert_allclose(results.outputs[row], expected, atol=1e-6 * scale)
        assert bool(off) == (row > 0)
    frame = study.spans
    if by == "sublayer":
        assert sorted(set(frame["module"])) == ["all", *SUBLAYERS]
        return
    cells = frame[(frame["module"] != "all") & (frame["n_layers"] == 1)]
    there = [path for layers in of.values() for own in layers for path in own]
    assert len(cells) == len(there)
    score = (results.outputs.argmax(-1) == given["labels"]).mean(axis=1)
    row = results.row_names.index(f"{frame.iloc[-1].get('stack', '')} all 0-{frame.iloc[-1]['last']}".strip())
    assert frame.iloc[-1]["score"] == pytest.approx(score[row])
    drops = -cells.groupby([*(["stack"] if "stack" in frame else []), "module"])["delta_points"].sum()
    for part in frame[(frame["module"] != "all") & (frame["n_layers"] > 1)].itertuples():
        key = (part.stack, part.module) if "stack" in frame else part.module
        assert part.interaction_points == pytest.approx(-part.delta_points - drops[key])


@pytest.mark.slow
def test_a_column_of_several_layers_is_called_a_group(tmp_path):
    model, given = made("llama")
    ap.ablate(model, by="module", group=2, **given).save(tmp_path, formats="png")
    caption = (tmp_path / "modules.txt").read_text()
    assert "one kind of module in one group of layers" in caption
    assert "all modules of a group of layers" in caption


def test_a_unit_is_one_function(monkeypatch, tmp_path: Path):
    """Another way of joining modules needs nothing else: the map, its figure, texts and files follow."""
    monkeypatch.setitem(units.UNITS, "sublayer", lambda layers: [
        {module: "reads" if path.endswith(("query", "key")) else "writes" for module, path in own.items()}
        for own in layers
    ])  # fmt: skip
    model, given = made("bert")
    study = ap.ablate(model, by="sublayer", **given)
    by_hand = ap.ablate(model, sites="query,key", spans="whole", **given)
    row = study.spans[(study.spans["module"] == "reads")].iloc[-1]
    assert row["n_layers"] == len(stacks(study, model)[""])
    assert row["score"] == by_hand.spans.iloc[-1]["score"]
    np.testing.assert_array_equal(
        study.results.outputs[study.results.row_names.index(f"reads 0-{row['last']}")],
        by_hand.results.outputs[1],
    )
    study.save(tmp_path / "map", formats="png")
    assert ap.load(tmp_path / "map").spans.equals(study.spans)
    assert list(study.summary.modules) == ["reads", "writes"]
    assert study.heatmap().get_ylabel() == "sublayer"
    caption = (tmp_path / "map" / "modules.txt").read_text()
    assert "the adapters of one sublayer in one layer" in caption
    assert "all sublayers of a layer, the last column a sublayer in all layers" in caption


@pytest.mark.parametrize("by", ["span", "module", "sublayer"])
def test_layers_without_adapters_are_refused_in_one_line_by_any_unit(by):
    base, x = family("llama")
    model, batches = lora(base, target_modules=["q_proj", "v_proj"], layers_to_transform=[1]), batches_of(x)
    labels, named = np.arange(3 * len(batches)) % 3, ("no adapters to switch off", "of layers 0-0")
    with pytest.raises(AdapterProbeError, match=naming(*named)) as caught:
        ap.ablate(model, batches=batches, labels=labels, by=by, layers="0-0", progress=False, **LAST)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_map_is_saved_loaded_compared_and_told(tmp_path: Path):
    model, given = made("bert")
    study = ap.ablate(model, by="module", **given)
    study.save(tmp_path / "map", formats="png")
    again = ap.load(tmp_path / "map")
    assert again.spans.equals(study.spans)
    assert again.summary == study.summary
    assert {path.stem for path in (tmp_path / "map").glob("*.png")} == {"modules"}
    same = ap.compare(study, again)
    assert (same.spans["difference_points"] == 0).all()
    assert len(same.spans) == len(study.spans)
    with pytest.raises(ResultsError, match="layers and modules"):
        ap.report([same], out=tmp_path / "no.html")
    text = ap.report([tmp_path / "map"], out=tmp_path / "r.html").path.read_text()
    for name, own in study.summary.modules.items():
        assert name in text
        part = study.spans[study.spans["module"] == name]
        assert own.delta_points == pytest.approx(part.iloc[-1]["delta_points"])
        assert f"all of {name}" in " ".join(row for row, _ in study.rows())


@pytest.mark.slow
def test_chosen_modules_are_switched_over_spans_and_kept():
    model, given = made("bert")
    study = ap.ablate(model, sites="attention.self.query,*output.dense", spans="single", **given)
    kept = ap.ablate(model, sites="query,value", by="module", complement=True, **given)
    whole = copy.deepcopy(model)
    (layers,) = stacks(study, whole).values()
    for row, (first, _) in enumerate(study.results.spans.tolist()[1:-1], start=1):
        off = [m for path in ("attention.self.query", "attention.output.dense", "output.dense")
               for m in layers[first][path]]  # fmt: skip
        switched(off, False)
        np.testing.assert_allclose(study.results.outputs[row], outputs(whole, given), atol=1e-6)
        switched(off, True)
    every = [own[f"attention.self.{name}"][0] for own in layers for name in ("query", "value")]
    for row, name in enumerate(kept.results.row_names):
        module, _, span = name.partition(" ")
        if span in ("", f"0-{len(layers) - 1}"):
            continue
        on = [layers[int(span[0])][f"attention.self.{own}"][0] for own in ("query", "value")
              if module in ("all", own)]  # fmt: skip
        switched([m for m in every if m not in on], False)
        np.testing.assert_allclose(kept.results.outputs[row], outputs(whole, given), atol=1e-6)
        switched(every, True)


STRENGTHS = {
    "patterns": {"*.dense": 0.5, "layer.1.*": 0, "layer.1.*.query": 2.0},
    "sublayers": {"attention": 0.5, "ffn": -1.0, "layer.0.*": 2.0},
}


def strength_of(path: str, number: int, given_as: str) -> float:
    if given_as == "sublayers":
        return 2.0 if number == 0 else 0.5 if path.startswith("attention.") else -1.0
    if number == 1:
        return 2.0 if path.endswith("query") else 0
    return 0.5 if path.endswith("dense") else 1


@pytest.mark.parametrize("given_as", slow_unless("list".__ne__, ["list", *STRENGTHS]))
def test_strength_equal_scaled_factors(given_as: str):
    model, given = made("bert")
    n = len(model.get_base_model().bert.encoder.layer)
    by_layer = np.linspace(-1, 1, n).tolist()
    strengths = STRENGTHS.get(given_as, by_layer)
    study = ap.ablate(model, strength=strengths, spans="whole", **given)
    whole = copy.deepcopy(model)
    for number, own in enumerate(tuned_modules(m) for m in whole.get_base_model().bert.encoder.layer):
        for path, modules in own.items():
            strength = by_layer[number] if given_as == "list" else strength_of(path, number, given_as)
            for module in modules:
                module.set_scale("default", strength)
    np.testing.assert_allclose(study.results.outputs[1], outputs(whole, given), atol=1e-6)
    assert np.ptp(study.results.outputs, axis=0).max() > 1e-3
    assert study.summary.done == "scaled by layer"
    assert not any("strength" in name for module in model.modules() for name in vars(module))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (0, 0.0),
        ("0.5", 0.5),
        ("-1", -1.0),
        (Path("s.json"), "1,0.5"),
        ([1, 0.5], "1,0.5"),
        ("1,0.5", "1,0.5"),
        ({"query": 0}, '{"query": 0.0}'),
        ('{"query": 0}', '{"query": 0.0}'),
    ],
)
def test_one_strength_or_those_of_layers(given, kept, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s.json").write_text("[1, 0.5]")
    settings = AblationSettings(strength=given)
    assert (settings.strength, settings.scale) == (kept, kept if isinstance(kept, float) else 0.0)
    assert replace(settings, sites="ffn").strength == kept
    assert set(settings.slugs().get("strength", "")).isdisjoint(' "{}:*?<>|')
    if kept:
        refuses(ResultsError, ("--rank 1", "--strength"), replace, settings, rank=1)


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        ({"sites": "query,nothing"}, ["sites", "'nothing'", "value", "attention.output.dense"]),
        ({"by": "module", "spans": "prefix"}, ["by='module'", "spans=", "prefix"]),
        ({"strength": [0.5, 1]}, ["strength", "2", "4 layers"]),
        ({"strength": {"x_proj": 0.5}}, ["strength", "'x_proj'", "query"]),
        ({"strength": "1,a"}, ["strength must", "1,1,0.5"]),
        ({"strength": True}, ["strength", "True"]),
        ({"strength": [1, 1, 1, 1]}, ["strength has", "1", "intact"]),
    ],
)
def test_bad_names_and_strengths(asked: dict, facts: list[str]):
    model, given = made("bert")
    refuses(AdapterProbeError, facts, ap.ablate, model, **asked, **given)


@pytest.mark.slow
def test_a_sublayer_of_layers_without_two_is_refused(tmp_path):
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "state_size": 4, "time_step_rank": 4}
    checkpoint = saved(tmp_path, "mamba", sizes, "CAUSAL_LM", ["in_proj"])
    with pytest.raises(AdapterProbeError, match=naming("sites='attention'", "mixer.in_proj")):
        ap.ablate(checkpoint, data=["ab ab", "c"], sites="attention", progress=False)
