"""Texts of the intact model and of 30 single layers off: all together, and by a loop with `generate`.

    OMP_NUM_THREADS=1 python -m benchmarks.generation [PROMPTS] [TOKENS] [NEW] [LOOPED] [--ends] [--bfloat16]
        [--model BASE LORA ROWS]

A random model of SmolLM2-135M's shape with a LoRA of rank 8 on every linear map, or that of a folder, which
then reads the prompts of ROWS that have at most TOKENS tokens and ends a text at a line break. The loop is
PEFT's model, all prompts in one batch, for LOOPED of the 31 variants, scaled up. With --ends an eighth of the
vocabulary of the random model ends a text. With --bfloat16 both compute in it. Times are of the processor,
because they hardly depend on what else runs.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from adapter_probe.replay.decoding import Decoder, Decoding
from adapter_probe.replay.replay import Replay
from adapter_probe.replay.sharing import cast_copy
from adapter_probe.replay.switches import Switches
from adapter_probe.replay.two_weights import finish_maps

VOCABULARY, LAYERS, TOGETHER, PAD = 49152, 30, 33, 2  # TOGETHER: see `tokens_per_part`


def made(ends: bool) -> nn.Module:
    torch.manual_seed(0)
    base = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=576, intermediate_size=1536, num_hidden_layers=LAYERS,
        num_attention_heads=9, num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True,
        bos_token_id=1, eos_token_id=PAD, pad_token_id=PAD, initializer_range=0.04,
    )).eval()  # fmt: skip
    if ends:
        drawn = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(5))
        base.generation_config.eos_token_id = drawn[: VOCABULARY // 8].tolist()
    model = get_peft_model(base, LoraConfig(r=8, target_modules="all-linear")).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.002)
    return model


def drawn_prompts(n: int, tokens: int) -> tuple[dict[str, Tensor], list[int]]:
    """Prompts of half to all of so many tokens, in order of length, padded on the left."""
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(tokens // 2, tokens + 1, (n,), generator=generator).sort().values
    lengths[-1] = tokens
    ids = torch.randint(10, VOCABULARY, (n, tokens), generator=generator)
    mask = (torch.arange(tokens) >= tokens - lengths[:, None]).long()
    return {"input_ids": torch.where(mask.bool(), ids, PAD), "attention_mask": mask}, lengths.tolist()


def given(
    base: str, lora: str, rows: str, n: int, most: int
) -> tuple[nn.Module, dict[str, Tensor], list[int]]:
    """A model of folders with a line break as the end of a text, and the first prompts of a file that fit."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), lora
    ).eval()
    breaks = [i for i in range(len(tokenizer)) if "\n" in tokenizer.decode([i])]
    model.get_base_model().generation_config.eos_token_id = [tokenizer.eos_token_id, *breaks]
    prompts = [json.loads(line)["prompt"] for line in Path(rows).read_text("utf-8").splitlines()]
    ids = [own for own in tokenizer(prompts)["input_ids"] if len(own) <= most][:n]
    ids.sort(key=len)
    longest = len(ids[-1])
    x = {
        "input_ids": torch.tensor([[PAD] * (longest - len(own)) + own for own in ids]),
        "attention_mask": torch.tensor([[0] * (longest - len(own)) + [1] * len(own) for own in ids]),
    }
    return model, x, [len(own) for own in ids]


def together(model: nn.Module, x: dict[str, Tensor], lengths: list[int], new: int) -> np.ndarray:
    finished = cast_copy(model, next(model.parameters()).dtype)
    finish_maps(finished)
    example = {name: values[-3:, -12:].clone() for name, values in x.items()}
    example["attention_mask"][0, :3] = 0
    replay = Replay(finished, {name: values[-1:] for name, values in example.items()})
    decoder = Decoder(finished, replay.layers, Switches(), replay, example)
    masks = np.ones((1 + LAYERS, 2 * LAYERS), dtype=bool)
    for layer in range(LAYERS):
        masks[1 + layer, 2 * layer : 2 * layer + 2] = False
    began, found = time.process_time(), []
    for first in range(0, len(lengths), TOGETHER):
        part = slice(first, first + TOGETHER)
        own = {name: values[part, -max(lengths[part]) :] for name, values in x.items()}
        found.append(decoder.texts(own, masks, Decoding(new)))
    print(f"together: {time.process_time() - began:.1f} s, rows shared by {decoder.shared}")
    return np.concatenate(found, axis=1)


def looped(
    model: nn.Module, x: dict[str, Tensor], new: int, variants: list[int]
) -> tuple[float, dict[int, np.ndarray]]:
    """Seconds, and the tokens that variants write."""
    base, began, found = model.get_base_model(), time.process_time(), {}
    for variant in variants:
        inside = base.model.layers[variant - 1].modules() if variant else ()
        tuned = [module for module in inside if isinstance(module, BaseTunerLayer)]
        for module in tuned:
            module.enable_adapters(False)
        with torch.no_grad():
            tokens = base.generate(**x, max_new_tokens=new, do_sample=False, pad_token_id=PAD)
        for module in tuned:
            module.enable_adapters(True)
        own = tokens[:, x["input_ids"].shape[1] :]
        found[variant] = nn.functional.pad(own, (0, new - own.shape[1]), value=PAD).numpy()
    return time.process_time() - began, found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("numbers", nargs="*", type=int)
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--model", nargs=3)
    asked = parser.parse_args()
    n, tokens, new, some = (*asked.numbers, *(16, 40, 12, 3)[len(asked.numbers) :])
    torch.set_num_threads(1)
    if asked.model:
        model, x, lengths = given(*asked.model, n, tokens)
    else:
        model, (x, lengths) = made(asked.ends), drawn_prompts(n, tokens)
    if asked.bfloat16:
        model = model.to(torch.bfloat16)
    print(f"{len(lengths)} prompts of {lengths[0]} to {lengths[-1]} tokens, at most {new} new ones")
    chosen = np.linspace(0, LAYERS, some).round().astype(int).tolist()
    first, found = looped(
        model, x, new, chosen[: some // 2]
    )  # before and after, as the machine's speed drifts
    ours = together(model, x, lengths, new)
    second, others = looped(model, x, new, chosen[some // 2 :])
    seconds, found = (first + second) / some * len(ours), found | others
    equal = [
        (np.where(ours[variant] < 0, PAD, ours[variant]) == own).all(axis=1).mean()
        for variant, own in found.items()
    ]
    print(f"loop: {seconds:.1f} s ({some} of {len(ours)} variants), equal texts {np.mean(equal):.3f}")
    print(f"texts equal to the intact model's: {(ours == ours[:1]).all(axis=-1)[1:].mean():.3f}")


if __name__ == "__main__":
    main()
