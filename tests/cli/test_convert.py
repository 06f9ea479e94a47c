"""`adapter-probe convert`, and `inspect` of what other libraries wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from refusals import names, naming

import adapter_probe as ap
from adapter_probe.checkpoints import opening
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.errors import CheckpointError

FIXTURES = Path(__file__).parents[1] / "checkpoints" / "fixtures"
BERT = FIXTURES / "bases" / "bert"


@pytest.fixture(scope="module")
def language_lora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A LoRA of a small language model, of which MLX-LM's format has one too."""
    from peft_folders import KV, saved

    return saved(tmp_path_factory.mktemp("language"), "llama", KV, "CAUSAL_LM", ["q_proj", "v_proj"])


def test_inspect_names_the_library_and_what_cannot_be_known(program):
    outcome = program("inspect", FIXTURES / "adapterhub" / "pfeiffer", "--base", BERT, "--json")
    facts = json.loads(outcome.stdout)
    assert (facts["method"]["library"], facts["method"]["kinds"]) == ("adapters", ["seq_bn"])
    assert (facts["n_sites"], facts["method"]["sizes"]) == (3, [4])
    assert facts["parameters"]["adapters"] == 3 * (2 * 16 * 4 + 16 + 4)
    assert "LayerNorms" in facts["notes"][0]
    lora = ("inspect", FIXTURES / "peft" / "lora", "--base", BERT)
    assert json.loads(program(*lora, "--json").stdout)["method"]["inner"] == {"low_rank": 6}
    text = program(*lora).stdout
    assert "library peft, kinds lora, modules query/value, ranks 2" in text


def test_to_this_projects_format_and_on(program, tmp_path: Path):
    data = tmp_path / "validation.jsonl"
    data.write_text("".join(json.dumps({"text": f"w{n}", "label": n % 3}) + "\n" for n in range(9)))
    source = FIXTURES / "adapterhub" / "ia3"
    done = program("convert", source, tmp_path / "n", "--to", "native", "--base", BERT, "--data", data)
    assert (done.code, done.stdout) == (0, f"{tmp_path / 'n'}\n")
    assert program("inspect", tmp_path / "n", "--json").code == 0
    lora = FIXTURES / "peft" / "lora"
    refusal = program("convert", lora, tmp_path / "l", "--to", "native", "--base", BERT).refusal
    assert names(refusal, str(lora), "--to peft")


@pytest.mark.parametrize("to", ["native", "adapterhub", "peft", "prune"])
@pytest.mark.slow
def test_what_is_written_in_any_format_is_opened_first(to, trained, language_lora, tmp_path, monkeypatch):
    source = language_lora if to == "peft" else trained

    def no_other(folder, *arguments, **options):
        if Path(folder) != source:
            raise CheckpointError(f"checkpoint {folder} is damaged")
        return open_any(folder, *arguments, **options)

    def write(out: Path) -> None:
        if to == "prune":
            ap.prune(source, span=0, out=out, progress=False)
        else:
            ap.convert(source, out, to, lossy=True)

    write(tmp_path / "good")
    assert open_any(tmp_path / "good").description.base.n_layers
    monkeypatch.setattr(opening, "open_any", no_other)
    with pytest.raises(CheckpointError, match=naming(str(tmp_path / "bad"), "the new checkpoint is damaged")):
        write(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_python_converts_and_inspects_as_the_commands_do(program, trained: Path, tmp_path: Path):
    assert ap.inspect(trained) == json.loads(program("inspect", trained, "--json").stdout)
    (lost,) = ap.convert(trained, tmp_path / "h", "adapterhub", lossy=True)
    assert names(lost, "LayerNorms")
    done = program("convert", trained, tmp_path / "c", "--to", "adapterhub", "--lossy")
    assert (done.code, done.stdout) == (0, f"{tmp_path / 'c'}\n")
    assert any(names(line, "LayerNorms", "left out") for line in done.stderr.splitlines())
    facts = json.loads(program("inspect", tmp_path / "c", "--json").stdout)
    assert facts["method"]["kinds"] == ["double_seq_bn"]
    for name in ("adapter_config.json", "head_config.json"):
        assert (tmp_path / "h" / name).read_bytes() == (tmp_path / "c" / name).read_bytes()
    assert ap.convert(trained, tmp_path / "n", "native") == []
    assert (tmp_path / "n" / "delta.safetensors").read_bytes() == (trained / "delta.safetensors").read_bytes()
    with pytest.raises(ap.CheckpointError, match=naming("to must", "adapterhub, native, peft", "'onnx'")):
        ap.convert(trained, tmp_path / "o", "onnx")
