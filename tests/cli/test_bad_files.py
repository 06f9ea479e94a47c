"""Files that hold what nobody expects: refused in one line, within bounded time and memory."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tiers import slow_unless

FIXTURES = Path(__file__).resolve().parents[1] / "checkpoints" / "fixtures"
POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 437955512\n"
# A gigabyte more than the libraries take; what asks for more is a failure, not a refusal.
LIMIT = "import resource; resource.setrlimit(resource.RLIMIT_AS, (14 << 30, 14 << 30))"


@pytest.fixture
def refused(program) -> Callable[..., str]:
    """``refused(arguments..., named=words)``: the one line, which must hold every word.

    With ``seconds=30`` it has a process of its own, with limits on time and memory.
    """

    def run(*arguments: object, named: tuple[object, ...] = (), seconds: float | None = None) -> str:
        if seconds is None:
            refusal = program(*arguments).refusal
        else:
            refusal = program.start(*arguments, before=LIMIT).result(seconds).refusal
        for part in named:
            assert str(part) in refusal
        return refusal

    return run


@pytest.fixture
def base(tiny_base, tmp_path) -> Path:
    """A copy of the base that `trained` stands on."""
    return shutil.copytree(tiny_base("bert"), tmp_path / "base")


@pytest.fixture
def foreign(tmp_path) -> Callable[[str], Path]:
    """``foreign("peft/lora")``: a copy of that checkpoint, on the fixtures' BERT."""
    return lambda case: shutil.copytree(FIXTURES / case, tmp_path / "foreign")


BERT = FIXTURES / "bases" / "bert"


def edit(file: Path, **changes: Any) -> None:
    content = json.loads(file.read_text())
    content.update(changes)
    file.write_text(json.dumps(content))


# --- bases


@pytest.mark.parametrize("content", ["[]", "null", '"bert"', "3", "[" * 100_000, "", "{}"])
def test_a_config_that_is_no_object(content, refused, trained, base):
    (base / "config.json").write_text(content)
    refused("ablate", trained, "--base", base, named=("config.json",) if content != "{}" else (base,))
    refused("inspect", trained, "--base", base)


SETTINGS_OF_BASES = [  # the first four, which are refused at different places, are quick
    {"num_attention_heads": 2},
    {"hidden_act": "nonsense"},
    {"num_hidden_layers": 10**9},
    {"model_type": ["bert"]},
    {"num_attention_heads": 0},
    {"hidden_act": "relu"},
    {"dtype": "nonsense"},
    {"num_hidden_layers": -1},
    {"hidden_size": 10**7},
    {"vocab_size": 10**12},
    {"layer_norm_eps": None},
    {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
    {"model_type": "../../etc/passwd"},
    {"model_type": "x" * 5000},
]


@pytest.mark.parametrize(
    "changes",
    slow_unless(SETTINGS_OF_BASES[:4].__contains__, SETTINGS_OF_BASES),
    ids=lambda changes: "-".join(f"{key}={str(value)[:12]}" for key, value in changes.items()),
)
def test_settings_of_a_base_that_cannot_be(changes, refused, trained, base):
    edit(base / "config.json", **changes)
    refused("ablate", trained, "--base", base, named=(base,), seconds=60)


@pytest.mark.parametrize(
    "key", ["attn_implementation", pytest.param("_attn_implementation", marks=pytest.mark.slow)]
)
def test_flash_attention_in_a_base(key, program, trained, base, tmp_path):
    # Our forward has its own attention: the numbers are the same, or the setting is refused in one line.
    assert program.undrawn("ablate", trained, "--out", tmp_path / "plain").code == 0
    edit(base / "config.json", **{key: "flash_attention_2"})
    outcome = program.undrawn("ablate", trained, "--base", base, "--out", tmp_path / "flash")
    if outcome.code:
        assert str(base) in outcome.refusal
    else:
        plain, flash = (np.load(tmp_path / name / "predictions.npz")["logits"] for name in ("plain", "flash"))
        np.testing.assert_array_equal(plain, flash)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["null", "[]", "3", '"x"'])
def test_tokenizer_files_that_hold_nothing(name, content, refused, trained, base):
    (base / name).write_text(content)
    refused("ablate", trained, "--base", base, named=(base,))


def test_a_template_of_tokens_that_nothing_describes(refused, trained, base):
    file = base / "tokenizer.json"
    document = json.loads(file.read_text())
    document["post_processor"]["special_tokens"] = {}
    file.write_text(json.dumps(document))
    refused("ablate", trained, "--base", base, named=(base, "[CLS]"))


@pytest.mark.parametrize("harm", [lambda b: b.replace(b"\n", b"\r\n"), lambda b: b[:-60] + b"\0\0" + b[-60:]])
def test_a_damaged_archive_of_tensors(harm, refused, foreign):
    folder = foreign("adapterhub/houlsby")
    file = folder / "pytorch_adapter.bin"
    file.write_bytes(harm(file.read_bytes()))
    refused("inspect", folder, "--base", BERT, named=(file,))


NAMES_OF_NOTHING = ("x" * 5000, "~nosuchuser/x", "a\nb", "/" + "x" * 300, "a" * 250 + "/b")


def test_names_of_bases_that_cannot_be(refused, trained):
    for name in NAMES_OF_NOTHING:
        refused("ablate", trained, "--base", name, named=("base", name[:20].replace("\n", "\\n")))


def test_names_of_bases_to_train_that_cannot_be(refused, train_arguments, tmp_path):
    place = train_arguments.index("--base") + 1
    for name in NAMES_OF_NOTHING:
        arguments = (*train_arguments[:place], name, *train_arguments[place + 1 :], "--out", tmp_path / "out")
        refused(*arguments, named=("base", name[:20].replace("\n", "\\n")))
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("value", [[], {}, "512", True, 0, -1, 0.5, 40.5, float("nan")])
def test_a_tokenizers_limit_that_cannot_be(value, refused, trained, base):
    edit(base / "tokenizer_config.json", model_max_length=value)
    refused("ablate", trained, "--base", base, named=(base, "model_max_length"))


@pytest.mark.parametrize("name", ["x" * 5000, "~nosuchuser/x", None, [], ""])
def test_a_checkpoint_that_names_no_base(name, refused, trained, foreign, tmp_path):
    native = shutil.copytree(trained, tmp_path / "native")
    about = json.loads((native / "adapter_probe.json").read_text())
    about["base"]["name"] = name
    (native / "adapter_probe.json").write_text(json.dumps(about))
    refused("inspect", native)
    peft = foreign("peft/lora")
    edit(peft / "adapter_config.json", base_model_name_or_path=name)
    refused("inspect", peft)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_token_with_a_field_that_nobody_knows(name, refused, trained, base):
    """The tokenizers library would leave it out and say so on stdout, in the middle of `--json`."""
    file = base / name
    fields = json.loads(file.read_text())
    places = {"tokenizer.json": "added_tokens", "tokenizer_config.json": "added_tokens_decoder"}
    tokens = fields.setdefault(places[name], {"5": {"content": "w1"}})
    token = next(iter(tokens.values())) if isinstance(tokens, dict) else tokens[0]
    token["future_option"] = None
    file.write_text(json.dumps(fields))
    refused("ablate", trained, "--base", base, named=(file, '"future_option"', "effect is unknown"))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_pointer_of_git_lfs_in_a_base(name, refused, trained, base):
    (base / name).write_text(POINTER)
    refused("ablate", trained, "--base", base, named=(base / name, "git lfs pull"))


# --- checkpoints


@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("peft/lora", "adapter_model.safetensors"),
        ("peft/lora", "adapter_config.json"),
        ("adapterhub/houlsby", "pytorch_adapter.bin"),
        ("adapterhub/houlsby", "pytorch_model_head.bin"),
        ("adapterhub/houlsby", "adapter_config.json"),
        ("adapterhub/houlsby", "head_config.json"),
        ("adapterhub/pfeiffer", "adapter.safetensors"),
    ],
)
def test_a_pointer_of_git_lfs_in_a_checkpoint(case, name, refused, foreign):
    folder = foreign(case)
    (folder / name).write_text(POINTER)
    refused("inspect", folder, "--base", BERT, named=(folder / name, "git lfs pull"))


@pytest.mark.parametrize("name", ["adapter_probe.json", "delta.safetensors"])
def test_a_pointer_of_git_lfs_in_a_native_checkpoint(name, refused, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "native")
    (folder / name).write_text(POINTER)
    refused("inspect", folder, named=(folder / name, "git lfs pull"))


@pytest.mark.parametrize(
    "changes",
    [
        {"lora_alpha": None},
        {"lora_alpha": float("nan")},
        {"lora_alpha": float("inf")},
        {"lora_alpha": [3]},
        {"alpha_pattern": {"(": 3}},
        {"alpha_pattern": ["query"]},
        {"alpha_pattern": {"query": None}},
        pytest.param({"target_modules": "([a-z.0-9_]+)*X"}, marks=pytest.mark.slow),
        {"task_type": ["SEQ_CLS"]},
        {"task_type": {}},
        {"peft_type": ["LORA"]},
        {"peft_type": None},
        {"r": 0},
        {"r": 7},
        {"r": "2"},
        {"future_option": 3},
        {"bias": []},
        {"corda_config": False},
        {"lora_ga_config": 2},
        {"eva_config": "x"},
        {"modules_to_save": ["\x1b[31mred", "score"]},
    ],
    ids=lambda changes: "-".join(f"{key}={str(value)[:24]}" for key, value in changes.items()),
)
def test_settings_of_peft_that_cannot_be(changes, refused, foreign):
    folder = foreign("peft/lora")
    edit(folder / "adapter_config.json", **changes)
    regex = "X" in str(changes)
    refused("inspect", folder, "--base", BERT, named=(folder,), seconds=30 if regex else None)


@pytest.mark.parametrize("key", ["alpha_pattern", "rank_pattern"])
def test_a_pattern_that_could_take_for_ever(key, program, foreign):
    folder = foreign("peft/lora")
    edit(folder / "adapter_config.json", **{key: {"([a-z.0-9_]+)*X": 9}})
    outcome = program.start("inspect", folder, "--base", BERT).result(60)
    assert outcome.code == 0 or outcome.refusal  # PEFT lets it match nothing


def test_lora_alpha_missing(refused, foreign):
    folder = foreign("peft/lora")
    content = json.loads((folder / "adapter_config.json").read_text())
    del content["lora_alpha"]
    (folder / "adapter_config.json").write_text(json.dumps(content))
    refused("inspect", folder, "--base", BERT, named=(folder, "lora_alpha"))


@pytest.mark.parametrize(
    "changes",
    [
        {"alpha": None},
        {"alpha": float("nan")},
        {"r": 0},
        {"r": 7},
        {"r": None},
        {"composition_mode": "future"},
        {"leave_out": [0]},
        {"future_option": 1},
        {"use_gating": True},
        {"attn_matrices": ["k"]},
    ],
    ids=lambda changes: "-".join(f"{key}={value}" for key, value in changes.items()),
)
def test_settings_of_adapterhub_that_cannot_be(changes, refused, foreign):
    folder = foreign("adapterhub/lora")
    content = json.loads((folder / "adapter_config.json").read_text())
    content["config"].update(changes)
    (folder / "adapter_config.json").write_text(json.dumps(content))
    refused("inspect", folder, "--base", BERT, named=(folder,))


@pytest.mark.parametrize("dtype", ["int64", "bool", "complex64", "uint8"])
@pytest.mark.parametrize("part", ["adapter.down.weight", "classifier.bias"])
def test_tensors_that_hold_no_real_numbers(dtype, part, refused, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "native")
    file = folder / "delta.safetensors"
    tensors = load_file(file)
    name = next(name for name in tensors if name.endswith(part))
    tensors[name] = (10 * tensors[name]).to(getattr(torch, dtype))
    save_file(tensors, file)
    edit(folder / "adapter_probe.json", delta_sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    refused("ablate", folder, named=(file, name))


def bomb(file: Path, arrays: dict[str, int]) -> None:
    """An archive of zeros that is small on the disk, with sealed and whole members."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, size in arrays.items():
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                header, {"descr": "<f4", "fortran_order": False, "shape": (size,)}
            )
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(header.getvalue())
                for _ in range(size * 4 >> 24):
                    member.write(bytes(1 << 24))


@pytest.mark.slow
def test_results_that_unpack_to_gigabytes(program, trained, tmp_path):
    out = tmp_path / "out"
    assert program.undrawn("ablate", trained, "--out", out).code == 0
    right = (out / "spans.csv").read_bytes()
    sound = shutil.copytree(out, tmp_path / "sound")
    bomb(out / "predictions.npz", {"logits": 1 << 30})
    limit = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))"
    drawn = program.start("figures", out, before=limit).result(120)
    assert drawn.code == 0 or drawn.refusal  # tables are enough to draw
    compared = program.start("compare", sound, out, "--out", tmp_path / "c", before=limit).result(120)
    assert str(out / "predictions.npz") in compared.refusal
    shutil.copy(out / "predictions.npz", next((out / "parts").glob("*.npz")))
    outcome = program.start("ablate", trained, "--out", out, before=limit).result(120)
    if outcome.code == 0:
        assert (out / "spans.csv").read_bytes() == right
    else:
        assert outcome.refusal


@pytest.mark.slow
def test_a_pickle_that_unpacks_to_gigabytes(program, foreign):
    folder = foreign("adapterhub/houlsby")
    file = folder / "pytorch_adapter.bin"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            with archive.open(name, "w", force_zip64=True) as member:
                if name.endswith("/data/0"):
                    for _ in range(64):
                        member.write(bytes(1 << 24))
                else:
                    member.write(content)
    limit = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (3 << 30, 3 << 30))"
    outcome = program.start("inspect", folder, "--base", BERT, before=limit).result(120)
    assert str(file) in outcome.refusal


# --- data and tables


def test_data_in_a_loop_of_links(refused, trained, tmp_path):
    loop = tmp_path / "loop.jsonl"
    loop.symlink_to(loop)
    refused("ablate", trained, "--data", loop, named=(loop,))


def test_data_in_a_pipe_that_nobody_writes(refused, trained, train_arguments, tmp_path):
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    refused("ablate", trained, "--data", pipe, named=(pipe,), seconds=30)
    place = train_arguments.index("--task")
    arguments = [*train_arguments[:place], *train_arguments[place + 2 :], "--out", tmp_path / "out"]
    refused(*arguments, "--train-file", pipe, "--validation-file", pipe, named=(pipe,), seconds=30)


@pytest.fixture
def results(program, trained, tmp_path) -> Path:
    out = tmp_path / "results"
    assert program.undrawn("ablate", trained, "--out", out, "--max-examples", 8).code == 0
    return out


@pytest.mark.slow
def test_a_table_cut_short(refused, program, trained, results):
    for name in ("spans.csv", "removable.csv", "layers.csv"):
        file = results / name
        whole = file.read_bytes()
        file.write_bytes(whole[: len(whole) // 2])
        outcome = program("figures", results, "--format", "svg")
        if outcome.code:
            assert name in outcome.refusal
        report = program("report", results, "-o", results / "report.html")
        if report.code:
            assert name in report.refusal
        assert program.undrawn("ablate", trained, "--out", results, "--max-examples", 8).code == 0
        assert file.read_bytes() == whole


def test_a_table_with_a_million_layers(refused, results):
    file = results / "spans.csv"
    text = file.read_text()
    file.write_text(text + text.splitlines()[-1].replace("2,2,", "1000000,1000000,", 1) + "\n")
    refused("figures", results, named=("spans.csv",), seconds=60)
    refused("report", results, "-o", results / "report.html", named=("spans.csv",), seconds=60)


# --- options


@pytest.mark.parametrize("threads", [100_000, -1, 10**30])
def test_more_threads_than_there_can_be(threads, refused, trained):
    refused("ablate", trained, "--threads", threads, named=("threads", str(threads)), seconds=60)


@pytest.mark.parametrize("line", ["gpu\nrm -rf ~", "gpu\r", "a\x1b[31m"])
def test_options_of_a_cluster_that_a_shell_would_run(line, refused, trained, tmp_path):
    refused("ablate", trained, "--slurm", "--partition", line, named=("partition",))
    file = tmp_path / "cluster.toml"
    for text in (f"partition = {json.dumps(line)}", f"[sbatch]\naccount = {json.dumps(line)}"):
        file.write_text(text)
        refused("ablate", trained, "--slurm", "--slurm-config", file, named=(file,))


@pytest.mark.parametrize(
    "text",
    [
        "a = " + "[" * 100_000,
        pytest.param("[" + "a." * 50_000 + "b]", marks=pytest.mark.slow),
        "a = {" * 10_000,
    ],
)
def test_toml_nested_deep(text, refused, trained, tmp_path):
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    refused("ablate", trained, "--slurm", "--slurm-config", file, named=(file,), seconds=60)


def test_no_control_characters_reach_the_terminal(program, trained, tmp_path):
    folder = shutil.copytree(trained, tmp_path / "native")
    about = json.loads((folder / "adapter_probe.json").read_text())
    about["task"]["name"] = "red\x1b[31m"
    about["task"]["label_names"][0] = "\x1b]0;title\x07"
    del about["head_sha256"]
    (folder / "adapter_probe.json").write_text(json.dumps(about))
    for command in ("inspect", "ablate"):
        outcome = program(command, folder)
        assert "\x1b" not in outcome.stdout + outcome.stderr
        assert "\x07" not in outcome.stdout + outcome.stderr
        assert "Traceback" not in outcome.stderr


def test_an_unknown_metric_is_told_the_near_one(refused, train_arguments, tmp_path):
    arguments = (*train_arguments, "--out", tmp_path / "out", "--metric", "f1_macro")
    refused(*arguments, named=("f1_macro", "macro_f1"))


def test_what_converting_can_write_is_said(program):
    outcome = program("convert", "x", "y", "--to", "future")
    assert outcome.code == 2
    assert "adapterhub" in outcome.stderr


def test_a_module_that_is_no_model_of_transformers():
    from adapter_probe.errors import ModelError
    from adapter_probe.models.adapted import AdaptedModel

    with pytest.raises(ModelError):
        AdaptedModel(torch.nn.Linear(3, 3))
