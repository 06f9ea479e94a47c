"""The engine beside a loop over the variants with PEFT's switches, in turn on one thread.

    python -m benchmarks.engines DATA GTE_SMALL [SMOLLM2] [--cases choices,pairs,texts,classes,t5,experts]
        [--rounds N] [--precision bfloat16] [--profile] [--bottlenecks CHECKPOINT [--texts N]]

DATA is the folder with arc_easy, blimp and sst2. Without SMOLLM2 a random model of its shape is made. The
loop has the same texts, those of a length in one batch. Times are processor seconds; preparing (the forwards
that describe and check a model) is timed apart. `--profile` prints where the engine's time goes, by
PyTorch's operations and by Python's functions.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model

from adapter_probe.ablation_settings import AblationSettings
from adapter_probe.probe.ablation_arguments import AblationArguments
from adapter_probe.probe.engine import Engine
from adapter_probe.probe.plan import TOKENS_PER_PART, cut_parts
from adapter_probe.probe.request import AblationRequest, prepare_ablation
from adapter_probe.probe.runners import own_forward

SHAPE = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
         "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}  # fmt: skip
MADE = {
    "llama": ("AutoModelForCausalLM", transformers.LlamaConfig(**SHAPE)),
    "experts": ("AutoModelForCausalLM", transformers.Qwen2MoeConfig(
        hidden_size=256, intermediate_size=512, moe_intermediate_size=256, num_hidden_layers=8, num_experts=8,
        shared_expert_intermediate_size=256, num_attention_heads=8, num_key_value_heads=4, vocab_size=32000)),
    "t5": ("AutoModelForSequenceClassification", transformers.T5Config(
        d_model=256, d_kv=32, d_ff=512, num_layers=4, num_heads=8, num_labels=2, vocab_size=32128,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=102)),  # the end of a text of the tokenizer
}  # fmt: skip
CASES = {  # base, file, examples, spans
    "choices": ("llama", "arc_easy/test.jsonl", 6, {"spans": "single"}),
    "pairs": ("llama", "blimp/pairs.jsonl", 16, {"spans": "single"}),
    "texts": ("llama", "texts.jsonl", 3, {"spans": "single"}),
    "classes": ("gte", "sst2/validation.jsonl", 24, {"spans": "all"}),
    "t5": ("t5", "sst2/validation.jsonl", 24, {"spans": "all"}),
    "experts": ("experts", "arc_easy/test.jsonl", 16, {"spans": "all"}),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("gte_small", type=Path)
    parser.add_argument("smollm2", type=Path, nargs="?")
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--precision", default="float32", help="float32, float64, bfloat16 or mixed")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--bottlenecks", type=Path, help="a checkpoint to time by itself")
    parser.add_argument("--texts", type=int, default=100, help="validation texts of --bottlenecks")
    given = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    if given.bottlenecks:
        print(json.dumps(alone(given.bottlenecks, given.texts, given.precision, given.rounds)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name in given.cases.split(","):
            base = CASES[name][0]
            bases = {"gte": given.gte_small, "llama": given.smollm2 or Path(scratch, "llama")}
            folder = bases.get(base, Path(scratch, base))
            if not folder.is_dir():
                make_base(base, folder, given.gte_small)
            made = Path(scratch, f"lora-{name}")
            request = request_of(name, folder, given.data, made, given.precision)
            if given.profile:
                profile(request)
            else:
                print(json.dumps({"case": name, **compared(request, given.rounds)}), flush=True)


def alone(checkpoint: Path, texts: int, precision: str, rounds: int) -> dict[str, object]:
    """Processor seconds of a checkpoint's ablation, and those of preparing it."""
    arguments = AblationArguments(str(checkpoint), AblationSettings(precision=precision), max_examples=texts)
    request = prepare_ablation(arguments, torch.device("cpu"))
    runs = [timed(request) for _ in range(rounds)]
    return {
        "tokens": int(request.encoded.lengths.sum()),
        "seconds": [round(run[1], 2) for run in runs],
        "ready": [round(run[0], 2) for run in runs],
    }


def make_base(name: str, folder: Path, tokenizer: Path) -> None:
    torch.manual_seed(0)
    auto, config = MADE[name]
    getattr(transformers, auto).from_config(config).save_pretrained(folder)
    words = transformers.AutoTokenizer.from_pretrained(tokenizer)
    words.bos_token = words.cls_token
    words.save_pretrained(folder)


def request_of(name: str, base: Path, data: Path, out: Path, precision: str = "float32") -> AblationRequest:
    """The request of a LoRA with random values in every linear map."""
    auto = {"gte": "AutoModelForSequenceClassification", "llama": "AutoModelForCausalLM"}
    kind = auto.get(CASES[name][0]) or MADE[CASES[name][0]][0]
    task = "CAUSAL_LM" if kind == "AutoModelForCausalLM" else "SEQ_CLS"
    torch.manual_seed(1)
    model = getattr(transformers, kind).from_pretrained(base, dtype=torch.float32)
    saved = {"modules_to_save": ["pooler", "classifier"]} if name == "classes" else {}
    targets = "all-linear" if name != "experts" else ["q_proj", "v_proj", "o_proj"]
    model = get_peft_model(model, LoraConfig(task_type=task, r=8, target_modules=targets, **saved))
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.normal_(std=0.02)
    model.save_pretrained(out)
    file, n, spans = CASES[name][1:]
    rows = data / file
    if name == "texts":
        lines = (data / "blimp/pairs.jsonl").read_text().splitlines()[:600]
        texts = [json.loads(line)["sentence_good"] for line in lines]
        rows = out / "texts.jsonl"
        rows.write_text("".join(json.dumps({"text": " ".join(texts[n::50])}) + "\n" for n in range(50)))
    arguments = AblationArguments(
        str(out),
        AblationSettings(precision=precision, **spans),
        data=(str(rows),),
        base=str(base),
        max_examples=n,
    )
    return prepare_ablation(arguments, torch.device("cpu"))


def timed(request: AblationRequest) -> tuple[float, float]:
    """Processor seconds of preparing and of running."""
    engine, start = Engine(request), time.process_time()
    engine._prepare()
    ready = time.process_time()
    parts = cut_parts(request.encoded.lengths, TOKENS_PER_PART["cpu"])
    list(engine.outputs(parts, lambda _: None))
    return ready - start, time.process_time() - ready


def looped(request: AblationRequest) -> tuple[float, float]:
    """The same of the model's own forward for every variant."""
    forward = own_forward(request, request.model.module, np.arange(len(request.encoded)))
    start = time.process_time()
    with torch.inference_mode():
        for mask in request.variants.masks:
            with request.model.switched_off(mask):
                forward()
    return 0.0, time.process_time() - start


def compared(request: AblationRequest, rounds: int) -> dict[str, object]:
    contenders = {"general": timed, "loop": looped}
    found = {name: [] for name in contenders}
    for number in range(rounds):
        order = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
        for name in order:
            found[name].append(contenders[name](request))
    out: dict[str, object] = {"tokens": int(request.encoded.lengths.sum())}
    for name, runs in found.items():
        out |= {name: [round(run[1], 2) for run in runs], f"{name}_ready": [round(run[0], 2) for run in runs]}
    ratios = [a[1] / b[1] for a, b in zip(found["general"], found["loop"])]
    return {**out, "ratio": round(statistics.median(ratios), 3)}


def profile(request: AblationRequest) -> None:
    engine = Engine(request)
    profiler = cProfile.Profile()
    profiler.runcall(engine._prepare)
    pstats.Stats(profiler).sort_stats("cumulative").print_stats(25)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        list(engine.outputs([np.arange(len(request.encoded))], lambda _: None))
    print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
    profiler = cProfile.Profile()
    profiler.runcall(lambda: list(engine.outputs([np.arange(len(request.encoded))], lambda _: None)))
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
