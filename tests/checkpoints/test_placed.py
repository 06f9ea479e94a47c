"""Adapters in the layers of Transformers' own decoders, against layers that are written out with them."""

from __future__ import annotations

import builtins
import json
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from exact import assert_close_in_float32, assert_close_in_float64, to_float64
from tiers import slow_unless
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

import adapter_probe as ap
from adapter_probe.checkpoints.base import AnyLoaded
from adapter_probe.checkpoints.foreign import BaseShape
from adapter_probe.checkpoints.identity import BaseIdentity
from adapter_probe.checkpoints.opened_peft import OpenedPlaced
from adapter_probe.checkpoints.opening import open_any
from adapter_probe.checkpoints.placed import _put_inner, put_method
from adapter_probe.checkpoints.places import DECODERS
from adapter_probe.models.adapters.bottleneck import Bottleneck
from adapter_probe.models.adapters.imported import InnerSpec
from adapter_probe.models.methods import Adapters
from adapter_probe.replay.replay import Replay

FIXTURES = Path(__file__).parent / "fixtures"
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
         "vocab_size": 40, "max_position_embeddings": 24, "num_key_value_heads": 1, "head_dim": 8,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}  # fmt: skip
OTHERS = {"opt": {"ffn_dim": 24, "word_embed_proj_dim": 16}, "gpt2": {"n_inner": 24}}
Finish = Callable[..., Tensor]  # the residual sum of a sublayer with its adapter, see `summed`


def llama(self: nn.Module, hidden: Tensor, *, finish: Finish, **given: object) -> Tensor:
    hidden = finish(0, self.self_attn(self.input_layernorm(hidden), **given)[0], hidden)
    return finish(1, self.mlp(self.post_attention_layernorm(hidden)), hidden)


def gemma(self: nn.Module, hidden: Tensor, *, finish: Finish, **given: object) -> Tensor:
    out = self.self_attn(self.input_layernorm(hidden), **given)[0]
    hidden = finish(0, self.post_attention_layernorm(out), hidden)
    return finish(
        1, self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(hidden))), hidden
    )


def gpt2(
    self: nn.Module, hidden: Tensor, _: None, mask: Tensor, *others: object, finish: Finish, **given: object
) -> Tensor:
    hidden = finish(0, self.attn(self.ln_1(hidden), attention_mask=mask)[0], hidden)
    return finish(1, self.mlp(self.ln_2(hidden)), hidden)


def opt(self: nn.Module, hidden: Tensor, *, finish: Finish, **given: object) -> Tensor:
    hidden = finish(0, self.self_attn(self.self_attn_layer_norm(hidden), **given)[0], hidden)
    return finish(1, self.fc2(self.activation_fn(self.fc1(self.final_layer_norm(hidden)))), hidden)


def neox(
    self: nn.Module, hidden: Tensor, *, finish: Finish, **given: object
) -> Tensor:  # both read one input
    middle = finish(0, self.attention(self.input_layernorm(hidden), **given)[0], hidden)
    return finish(1, self.mlp(self.post_attention_layernorm(hidden)), middle, hidden)


LAYERS = {"gemma2": gemma, "gemma3_text": gemma, "gpt2": gpt2, "opt": opt, "gpt_neox": neox}


def small(family: str) -> nn.Module:
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, **{**SIZES, **OTHERS.get(family, {})})
    return to_float64(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())


def adapted(model: nn.Module, method: Adapters) -> list[Bottleneck]:
    """Random bottlenecks in a model; returns them in the order of the sites."""
    places = DECODERS[model.config.model_type]
    shape = BaseShape.of(model, places)
    identity = BaseIdentity("b", None, "", 2, 16, 40, {})
    loaded = AnyLoaded(model, frozenset(), identity, None, 24)
    targets = put_method(loaded, shape, method, torch.float64)
    generator = torch.Generator().manual_seed(1)
    for name in sorted(name for name in targets if ".adapter." in name):
        targets[name].data.copy_(torch.randn(targets[name].shape, generator=generator) * 0.3)
    model.eval().requires_grad_(False)
    return [module for module in model.modules() if isinstance(module, Bottleneck)]


@pytest.mark.parametrize("placement", ["sequential", "parallel"])
@pytest.mark.parametrize("family", slow_unless(("gemma2", "gpt_neox").__contains__, DECODERS))
def test_every_mask_is_what_the_written_layer_gives(family: str, placement: str, monkeypatch):
    model, ids = small(family), torch.randint(3, 40, (2, 7))
    bottlenecks = adapted(model, Adapters(3, placement=placement))
    masks = np.random.default_rng(0).random((6, 4)) < 0.5
    found = Replay(model, {"input_ids": ids}).outputs({"input_ids": ids}, masks, rows=20)

    plain, write = small(family), LAYERS.get(family, llama)
    layers = next(m for m in plain.modules() if isinstance(m, nn.ModuleList) and len(m) == 2)
    for mask, own in zip(masks, found):
        for number, layer in enumerate(layers):
            finish = partial(summed, bottlenecks[2 * number :], mask[2 * number :], placement == "parallel")
            monkeypatch.setattr(layer, "forward", partial(write, layer, finish=finish))
        with torch.no_grad():
            assert_close_in_float64(own, plain(ids, use_cache=False).logits)


def summed(
    adapters: list[Bottleneck], on: np.ndarray, parallel: bool, site: int, x: Tensor, residual: Tensor,
    given: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The residual sum after a sublayer, with the paper's adapter if it is on.

    A parallel one reads the sublayer's input, which is `given` where it is not the residual.
    """
    given = residual if given is None else given
    states = nn.functional.gelu(adapters[site].down(given if parallel else x))
    return x + residual + (adapters[site].up(states) if on[site] else 0)


def rows(path: Path, n: int) -> Path:
    draw = np.random.default_rng(0)
    texts = [" ".join(f"w{word}" for word in draw.integers(0, 48, 3 + i % 4)) for i in range(n)]
    path.write_text("".join(json.dumps({"text": t, "label": i % 3}) + "\n" for i, t in enumerate(texts)))
    return path


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gpt2-parallel", "llama-lora"])
def test_a_study_and_a_pruned_checkpoint_agree(case: str, tmp_path: Path):
    data, base = rows(tmp_path / "d.jsonl", 8), str(FIXTURES / "bases" / case.partition("-")[0])
    folder = shutil.copytree(FIXTURES / "adapterhub" / case, tmp_path / "c")
    study = ap.ablate(folder, base=base, data=data, progress=False)
    ap.prune(folder, tmp_path / "p", span=(1, 2), base=base, data=data, progress=False)
    assert isinstance(open_any(tmp_path / "p", base), OpenedPlaced)
    texts = [json.loads(line)["text"] for line in data.read_text().splitlines()]
    small, whole = ap.open(tmp_path / "p", base=base), ap.open(folder, base=base)
    assert_close_in_float32(small.logits(texts), whole.logits(texts, off=(1, 2)), layers=3)
    spans = [None, *zip(study.spans["first"].tolist(), study.spans["last"].tolist())]
    own = [whole.logits(texts, off=span).argmax(axis=1) for span in spans]
    assert study.predictions.tolist() == np.stack(own).tolist()


def test_peft_is_imported_without_asking_a_network(monkeypatch: pytest.MonkeyPatch):
    """Bitsandbytes, which PEFT imports, would ask the package `kernels` for a product on the Hub."""
    hidden, real = [], builtins.__import__

    def recorded(name: str, *given: object, **named: object) -> object:
        if name == "peft":
            hidden.append("kernels" in sys.modules and sys.modules["kernels"] is None)
        return real(name, *given, **named)  # type: ignore[arg-type]

    monkeypatch.delitem(sys.modules, "kernels", raising=False)
    monkeypatch.setattr(builtins, "__import__", recorded)
    _put_inner(nn.Sequential(nn.Linear(4, 4)), [InnerSpec("0", "low_rank", 2)])
    assert hidden[0]
