"""MLX-LM's adapters: closed forms, MLX's own forward where it is installed, and what is refused.

The files are written here after `mlx_lm/tuner/lora.py` and `dora.py` of mlx-lm 0.31, or by mlx-lm itself
(run with 0.32.2).
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from byte_tokenizer import byte_tokenizer
from changed_files import edit
from peft import PeftModel
from peft_cases import IDS, write_base
from peft_folders import written
from refusals import names, naming, refuses
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaForCausalLM

import adapter_probe as ap
from adapter_probe.checkpoints.mlx import as_peft
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError

RANK, SCALE = 2, 5.0
KEYS = ("self_attn.q_proj", "mlp.down_proj")
ROW = {"prompt": "a b", "completion": " c d"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_base(tmp_path_factory.mktemp("mlx") / "base", "llama", LlamaForCausalLM, vocab_size=300)
    byte_tokenizer(False).save_pretrained(made)
    return made


def merged(base: Path, tensors: dict, scale: float = SCALE, ids: torch.Tensor = IDS) -> torch.Tensor:
    """Logits of the base with every change written into its weights, in float64."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64).eval()
    with torch.no_grad():
        for name in {name.rpartition(".")[0] for name in tensors}:
            weight = model.get_submodule(name).weight
            a, b = (tensors[f"{name}.{part}"].double() for part in ("lora_a", "lora_b"))
            weight += scale * ((a @ b) if "embed" in name else (a @ b).T)
            if f"{name}.m" in tensors:
                weight *= (tensors[f"{name}.m"].double() / weight.norm(dim=1))[:, None]
        return model(ids).logits


def write(folder: Path, base: Path, layers=(1, 2), dora: bool = False, **document) -> dict[str, torch.Tensor]:
    """A checkpoint of MLX-LM, after the source of the format."""
    model, made = AutoModelForCausalLM.from_pretrained(base), {}
    generator = torch.Generator().manual_seed(0)
    names = [f"model.layers.{layer}.{key}" for layer in layers for key in KEYS]
    for name in names:
        outputs, inputs = model.get_submodule(name).weight.shape
        made[f"{name}.lora_a"] = 0.3 * torch.randn(inputs, RANK, generator=generator)
        made[f"{name}.lora_b"] = 0.3 * torch.randn(RANK, outputs, generator=generator)
        if dora:
            made[f"{name}.m"] = 0.5 + torch.rand(outputs, generator=generator)
    folder.mkdir(parents=True)
    save_file(made, folder / "adapters.safetensors")
    fields = {
        "model": str(base), "fine_tune_type": "dora" if dora else "lora", "num_layers": len(layers),
        "lora_parameters": {"rank": RANK, "dropout": 0.0, "scale": SCALE, "keys": list(KEYS)},
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(fields | document))
    return made


def logits(folder: Path) -> torch.Tensor:
    opened = open_any(folder, dtype=torch.float64)
    if isinstance(opened.model, PeftModel):
        return opened.model(IDS).logits.detach()
    peft = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(opened.description.base.name, dtype=torch.float64),
        as_peft(folder)[0], autocast_adapter_dtype=False,
    )  # fmt: skip
    peft.to(torch.float64)
    return peft.eval()(IDS).logits.detach()


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_the_change_is_that_of_the_closed_form(dora, base, tmp_path):
    tensors = write(tmp_path / "adapters", base, dora=dora)
    expected = merged(base, tensors)
    torch.testing.assert_close(logits(tmp_path / "adapters"), expected, rtol=0, atol=1e-9)
    plain = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)(IDS).logits
    assert (plain - expected).abs().max() > 0.01


def test_an_ablation_switches_the_layers_off_one_by_one(base, tmp_path):
    tensors = write(tmp_path / "adapters", base)
    rows = written(tmp_path, [ROW])
    study = ap.ablate(
        tmp_path / "adapters", data=rows, metric="nll", precision="float64", spans="single", progress=False
    )
    tokens = open_any(tmp_path / "adapters").tokenizer.encode("a b c d", return_tensors="pt")
    expected = []
    for variant, off in zip(study.results.row_names, study.results.spans[:, 0].tolist(), strict=True):
        gone = "" if variant == "none" else f"layers.{off}."
        left = {name: tensor for name, tensor in tensors.items() if gone not in name}
        said = merged(base, left, ids=tokens).log_softmax(-1)[0]
        expected.append(float(said[range(2, 6), tokens[0, 3:]].sum()))
    torch.testing.assert_close(
        torch.tensor(study.results.outputs[:, 0, 0]).double(),
        torch.tensor(expected).double(),
        rtol=0,
        atol=1e-5,
    )
    assert len(set(expected)) == 4  # layer 0 has no adapter
    assert study.summary.n_layers == 3
    assert study.folder == tmp_path / "adapters" / "ablation-single-float64-data-rows"


def test_it_is_inspected_converted_and_pruned_like_one_of_peft(base, tmp_path):
    write(tmp_path / "adapters", base)
    found = ap.inspect(tmp_path / "adapters")
    assert names(found["notes"][0], "MLX-LM", "rank 2", "scale 5", "layers 1-2")
    assert found["method"]["kinds"] == ["lora"]
    ap.convert(tmp_path / "adapters", tmp_path / "peft", to="peft")
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "peft").eval()
    torch.testing.assert_close(theirs(IDS).logits.double(), logits(tmp_path / "adapters"), rtol=0, atol=1e-4)
    rows = written(tmp_path, [ROW])
    ap.prune(tmp_path / "adapters", out=tmp_path / "less", span=1, data=rows, progress=False)
    left = {name.split(".")[4] for name in load_file(tmp_path / "less" / "adapter_model.safetensors")}
    assert left == {"2"}


def test_layers_of_the_file_count_and_a_different_number_of_layers_is_remarked_on(base, tmp_path):
    write(tmp_path / "adapters", base, layers=(0, 1, 2), num_layers=1)
    remark = open_any(tmp_path / "adapters").notes[1]
    assert names(remark, "num_layers", "1", "layers 2 of 3", "layers 0-2")
    write(tmp_path / "all", base, layers=(0, 1, 2), num_layers=-1)
    assert len(as_peft(tmp_path / "all")[1]) == 1


@pytest.mark.parametrize(
    ("document", "scale", "remarked"),
    [
        ({"lora_layers": 2}, SCALE * 16 / RANK, False),
        ({"lora_layers": 2, "use_dora": False}, SCALE, True),
        ({"num_layers": 2, "fine_tune_type": "lora"}, SCALE, False),
    ],
    ids=["April 2024", "summer 2024", "2025"],
)
def test_the_scale_of_older_versions(document, scale, remarked, base, tmp_path):
    write(tmp_path / "adapters", base)
    path = tmp_path / "adapters" / "adapter_config.json"
    given = {"rank": RANK, "alpha": 16, "dropout": 0.0, "scale": SCALE}
    path.write_text(json.dumps({"model": str(base), "lora_parameters": given, **document}))
    folder, notes = as_peft(tmp_path / "adapters")
    assert json.loads((folder / "adapter_config.json").read_text())["lora_alpha"] == scale * RANK
    assert any(names(note, "MLX-LM", "June 2024", "40") for note in notes) == remarked


@pytest.mark.parametrize(
    ("document", "tensor", "message"),
    [
        ({"fine_tune_type": "full"}, {}, ("MLX-LM",)),
        ({"fine_tune_type": "x"}, {}, ("fine_tune_type", "\"x\"", "lora, dora")),
        ({"lora_parameters": None}, {}, ("lora_parameters", "null", "rank", "scale")),
        ({"lora_parameters": {"rank": 3, "scale": 1}}, {}, ("lora_a", "lora_b", "rank 3")),
        ({"lora_parameters": {"rank": 2}}, {}, ("lora_parameters.scale", "null")),
        ({"model": "mlx-community/Qwen2.5-3B-4bit"}, {}, ("MLX", "--base")),
        ({}, {"vision_tower.layers.0.q_proj.lora_a": (8, 2)}, ("MLX-VLM",)),
        ({}, {"language_model.model.layers.1.self_attn.q_proj.A": (8, 2)}, ("MLX-VLM",)),
        ({}, {"model.layers.9.self_attn.q_proj.lora_a": (8, 2)}, ("model.layers.9.self_attn.q_proj.lora_b",)),
        ({}, {f"model.layers.7.self_attn.q_proj.lora_{one}": (2, 2) for one in "ab"},
         ("model.layers.7.self_attn.q_proj",)),
        ({}, {"model.layers.1.mlp.switch_mlp.up_proj.lora_a": (4, 2, 8)}, ("PEFT",)),
        ({}, {"model.norm.weight": (8,)}, ("model.norm.weight", "lora_a", "lora_b")),
    ],
)  # fmt: skip
def test_what_cannot_be_translated_is_one_line(document, tensor, message, base, tmp_path):
    made = write(tmp_path / "adapters", base, **document)
    made |= {name: torch.zeros(shape) for name, shape in tensor.items()}
    save_file(made, tmp_path / "adapters" / "adapters.safetensors")
    with pytest.raises(CheckpointError, match=naming(*message)) as caught:
        open_any(tmp_path / "adapters")
    assert "\n" not in str(caught.value)
    assert "adapter-probe-" not in str(caught.value)


def test_adapters_of_mlx_vlm_and_on_bases_of_mlx_are_one_line(base, tmp_path):
    write(tmp_path / "adapters", base)
    (tmp_path / "adapters" / "adapter_config.json").write_text('{"rank": 10, "alpha": 0.1, "dropout": 0.0}')
    refuses(CheckpointError, ("MLX-VLM",), ap.inspect, tmp_path / "adapters")
    quantised = shutil.copytree(base, tmp_path / "quantised")
    edit(quantised / "config.json", quantization={"bits": 4, "group_size": 64})
    write(tmp_path / "on-quantised", quantised)
    with pytest.raises(CheckpointError, match=naming(str(tmp_path / "on-quantised"), "MLX", "--base")):
        open_any(tmp_path / "on-quantised")


@pytest.mark.slow
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_mlx_lm_computes_the_same_from_its_own_files(dora, base, tmp_path):
    pytest.importorskip("mlx_lm")
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.tuner.utils import linear_to_lora_layers
    from mlx_lm.utils import load_model

    given = {"rank": RANK, "scale": SCALE, "dropout": 0.0, "keys": list(KEYS)}
    model, _ = load_model(base)
    model.freeze()
    linear_to_lora_layers(model, 2, given, use_dora=dora)
    mx.random.seed(0)
    for name, tensor in tree_flatten(model.trainable_parameters()):
        if name.endswith("lora_b"):
            model.load_weights([(name, 0.3 * mx.random.normal(tensor.shape))], strict=False)
    (tmp_path / "theirs").mkdir()
    mx.save_safetensors(
        str(tmp_path / "theirs" / "adapters.safetensors"), dict(tree_flatten(model.trainable_parameters()))
    )
    fields = {"model": str(base), "fine_tune_type": "dora" if dora else "lora", "num_layers": 2}
    (tmp_path / "theirs" / "adapter_config.json").write_text(json.dumps(fields | {"lora_parameters": given}))
    expected = torch.tensor(model(mx.array(IDS.tolist())).tolist())
    ours = logits(tmp_path / "theirs").float()
    torch.testing.assert_close(ours, expected, rtol=0, atol=1e-4)
