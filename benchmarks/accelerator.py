"""On an accelerator: whole calls of `ap.ablate` beside a loop with PEFT's switches.

    python -m benchmarks.accelerator DATA TOKENIZER [--cases CASE,...] [--device cuda] [--tiny]

Random models of public shapes with a LoRA of rank 8 and random values in every linear map, in bfloat16, or
on a base in NF4 (wants bitsandbytes). DATA is the folder with arc_easy and sst2, TOKENIZER any tokenizer's.
Times are of the clock, and `ap.ablate` is timed twice with all that it does: opening, preparing, checking
and writing. The loop has texts of like length in batches of 32, is timed on a few of the variants after one
to warm up, and scaled up. Both read the same model, and the differences of their scores are shown.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from torch.nn import functional as F

import adapter_probe as ap
from adapter_probe.device import peak_memory, return_memory

BATCH, TIMED = 32, 3
LLAMA = {  # name: width, inner width, layers, heads, heads of keys and values, words
    "135M": (576, 1536, 30, 9, 3, 49152),
    "1B": (2048, 8192, 16, 32, 8, 128256),
    "8B": (4096, 14336, 32, 32, 8, 128256),
    "tiny": (64, 96, 3, 4, 2, 32000),
}
CASES = {  # shape, rows, in NF4
    "135M": ("135M", 200, False),
    "1B": ("1B", 200, False),
    "1B-nf4": ("1B", 200, True),
    "bert-base": (None, 400, False),
    "8B": ("8B", 24, False),
    "8B-nf4": ("8B", 24, True),
}


def make_model(shape: str | None, nf4: bool, device: str, scratch: Path, tiny: bool) -> PeftModel:
    """A random base, stored and opened again where it is to be quantised, with a LoRA."""
    torch.manual_seed(0)
    if shape is None:
        small = {"num_hidden_layers": 3, "hidden_size": 48, "intermediate_size": 64} if tiny else {}
        base = transformers.BertForSequenceClassification(transformers.BertConfig(**small))
        base = base.to(device, torch.bfloat16)
    else:
        width, inner, layers, heads, of_keys, words = LLAMA[shape]
        config = transformers.LlamaConfig(
            hidden_size=width, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
            num_key_value_heads=of_keys, vocab_size=words, tie_word_embeddings=shape != "8B",
            max_position_embeddings=2048, bos_token_id=101, eos_token_id=102, pad_token_id=0,
        )  # fmt: skip
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(device):
            base = transformers.LlamaForCausalLM(config)
        torch.set_default_dtype(torch.float32)
        if nf4:
            base.save_pretrained(scratch / "base")
            own = transformers.BitsAndBytesConfig(
                load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.bfloat16,
            )  # fmt: skip
            base = transformers.AutoModelForCausalLM.from_pretrained(
                scratch / "base", quantization_config=own, dtype=torch.bfloat16, device_map=device
            )
    config = LoraConfig(task_type="CAUSAL_LM" if shape else "SEQ_CLS", r=8, target_modules="all-linear")
    model = get_peft_model(base, config, autocast_adapter_dtype=False).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return model


def encoded(rows: list[dict], tokenizer) -> list[tuple[list[int], int]]:
    """Ids of every text, and how many of the last are scored; 0 for a class."""
    if "sentence" in rows[0]:
        return [(tokenizer(row["sentence"])["input_ids"], 0) for row in rows]
    found = []
    for row in rows:
        question = tokenizer.encode(f"Question: {row['question']}\nAnswer:", add_special_tokens=False)
        for choice in row["choices"]:
            whole = f"Question: {row['question']}\nAnswer: {choice}"
            ids = tokenizer.encode(whole, add_special_tokens=False)
            found.append((ids, len(ids) - len(question)))
    return found


def batches_of(texts: list[tuple[list[int], int]], device: str) -> list[tuple[np.ndarray, dict, list]]:
    """Numbers, inputs and scored tokens of batches of like length."""
    order, found = sorted(range(len(texts)), key=lambda i: len(texts[i][0])), []
    for start in range(0, len(order), BATCH):
        own = order[start : start + BATCH]
        longest = len(texts[own[-1]][0])
        ids = torch.tensor([texts[i][0] + [0] * (longest - len(texts[i][0])) for i in own], device=device)
        lengths = torch.tensor([len(texts[i][0]) for i in own], device=device)
        mask = (torch.arange(longest, device=device) < lengths[:, None]).long()
        scored = [(len(texts[i][0]) - texts[i][1], len(texts[i][0])) for i in own]
        found.append((np.array(own), {"input_ids": ids, "attention_mask": mask}, scored))
    return found


@torch.inference_mode()
def scores(model: PeftModel, batches: list, n: int) -> np.ndarray:
    """Logits ``[texts, labels]``, or the log-likelihoods of the continuations ``[texts]``."""
    out: list = [None] * n
    for own, inputs, scored in batches:
        logits = model(**inputs).logits
        for row, number in enumerate(own):
            first, last = scored[row]
            if first == last:
                out[number] = logits[row].float()
                continue
            targets = inputs["input_ids"][row, first:last]
            lost = F.cross_entropy(logits[row, first - 1 : last - 1].float(), targets, reduction="sum")
            out[number] = -lost
    return torch.stack(out).cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="next to no work: does everything run?")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.tokenizer)
    tokenizer.bos_token = tokenizer.cls_token
    for name in given.cases.split(","):
        print(json.dumps({"case": name, **measured(name, given, tokenizer)}), flush=True)
        return_memory(torch.device(given.device))


def looped(model: PeftModel, results, texts: list, device: str, causal: bool) -> tuple[list, list]:
    """Seconds of some variants in a loop by PEFT's switches, and the largest differences from the results."""
    batches = batches_of(texts, device)
    tuned = {key: module for key, module in model.named_modules() if isinstance(module, LoraLayer)}
    inside = {key: re.search(r"\.layers?\.(\d+)\.", key) for key in tuned}  # BERT's pooler is in no layer
    layers = [(int(inside[key][1]), module) for key, module in tuned.items() if inside[key]]
    scaling = layers[0][1].scaling["default"]
    chosen = np.linspace(0, len(results.spans) - 1, TIMED + 1).round().astype(int)
    seconds, gaps = [], []
    for row in (0, *chosen[1:]):
        first, last = results.spans[row]
        for layer, module in layers:
            module.scaling["default"] = 0.0 if first <= layer <= last else scaling
        start = time.perf_counter()
        found = scores(model, batches, len(texts))
        seconds.append(time.perf_counter() - start)
        own = results.outputs[row]
        own = own[results.scored.counts[..., 0] > 0] if causal else own
        gaps.append(float(np.abs(own - found).max()))
    return seconds, gaps


def measured(name: str, given: argparse.Namespace, tokenizer) -> dict[str, object]:
    """Seconds and differences of one case."""
    shape, n_rows, nf4 = CASES[name]
    if given.tiny:
        shape, n_rows = shape and "tiny", 8
    file = given.data / ("arc_easy/test.jsonl" if shape else "sst2/validation.jsonl")
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()[:n_rows]]
    with tempfile.TemporaryDirectory() as scratch:
        peak_memory(torch.device(given.device), begin=True)
        model = make_model(shape, nf4, given.device, Path(scratch), given.tiny)
        ours = []
        for turn in range(2):
            start = time.perf_counter()
            study = ap.ablate(
                model, data=rows, tokenizer=tokenizer, precision="bfloat16", progress=False,
                device=given.device, out=Path(scratch, f"out-{turn}"),
            )  # fmt: skip
            ours.append(time.perf_counter() - start)
        results, texts = study.results, encoded(rows, tokenizer)
        theirs, gaps = looped(model, results, texts, given.device, causal=bool(shape))
    whole = float(np.mean(theirs[1:])) * len(results.spans)
    found = {
        "layers": results.n_layers, "variants": len(results.spans), "texts": len(texts),
        "tokens": sum(len(ids) for ids, _ in texts), "ours_s": [round(one, 2) for one in ours],
        "one_variant_s": [round(one, 3) for one in theirs[1:]], "all_variants_s": round(whole, 1),
        "ratio": round(whole / ours[1], 2), "largest_difference": [round(gap, 4) for gap in gaps],
        "largest_score": round(float(np.abs(results.outputs).max()), 2),
    }  # fmt: skip
    if (peak := peak_memory(torch.device(given.device))) is not None:
        found["peak_GiB"] = round(peak / 2**30, 2)
    return found


if __name__ == "__main__":
    main()
