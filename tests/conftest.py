"""What every test shares."""

from __future__ import annotations

import gc
import json
import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from slurm_cluster import cluster, session_cluster  # noqa: F401 (fixtures)

if TYPE_CHECKING:
    from adapter_probe.data.encoding import Encoded

# Set before anything imports torch and transformers: no test may reach for a hub, and neither OpenMP's
# threads nor the tokenizers' own may be there at a fork, after which the child would wait for them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Small files are read sooner by one thread, and no test outlives the machine: nothing waits for the disk.
os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
os.fsync = lambda _descriptor: None
# What a model's code hands to TorchScript (DeBERTa's, in older versions of Transformers) runs as Python:
# `exact.Float64` does not reach into a script.
os.environ["PYTORCH_JIT"] = "0"
# What is imported stays until the end: Python need not look for garbage in it, here or after every few tests.
gc.disable()


# A busy machine is no failure.
# In CI the same examples every time, so that a change is judged by what it changed; at a desk, new ones.
settings.register_profile(
    "whole",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.register_profile("quick", settings.get_profile("whole"), max_examples=10)
settings.load_profile("whole")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A cluster, a browser and figures drawn by processes of their own are no part of the edit loop."""
    for item in items:
        if {"session_cluster", "browser", "drawn"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Modules and tests stay until the end, and what tests leave is small: Python seldom looks for it."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Where a test on a cluster fails, the report says how the cluster stands."""
    report = yield
    if report.failed and "session_cluster" in getattr(item, "funcargs", {}):
        report.sections.append(("SLURM", item.funcargs["session_cluster"].describe()))
    return report


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The folder of real data and weights beside the checkout; tests that use it are marked `real_data`."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no real data and weights at {folder}")
    return folder


FAMILIES = ("bert", "roberta", "xlm-roberta", "camembert", "data2vec-text", "electra")
"""Every family that the engine supports; `tiny_base` makes a model of each."""

_GOOD = ("fine", "bright", "warm", "kind", "brave", "calm", "sweet", "glad")
_BAD = ("foul", "dim", "cold", "cruel", "weak", "harsh", "bitter", "sad")
_PLAIN = ("the", "a", "cat", "dog", "bird", "saw", "met", "was", "and", "then", "house", "tree", "old", "big")


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A factory: ``tiny_base(family, ...) -> folder`` of a random model with a tokenizer, no head.

    Arguments, all but the first by name:
        family: one of bert, roberta, xlm-roberta, camembert, data2vec-text, electra.
        layers=3, hidden=32, heads=4: the size; electra's embeddings are narrower than `hidden`.
        pooler=True: whether a BERT brings its pooler along (the other families' heads do not use one).
        dtype="float32": of the saved weights.
        seed=0: of the weights; another seed is a base of the same shape with other weights.
        extra_words=0: words added to the vocabulary, for a base that does not fit.

    Weights, biases and LayerNorms are all random and large enough that every part matters. At most 40 tokens
    an example. The tokenizer knows the words of `tiny_task` and gives token types to bert and electra alone.
    Folders are shared by all tests: copy one before changing it.
    """
    made: dict[tuple, Path] = {}

    def make(
        family: str,
        *,
        layers: int = 3,
        hidden: int = 32,
        heads: int = 4,
        pooler: bool = True,
        dtype: str = "float32",
        seed: int = 0,
        extra_words: int = 0,
    ) -> Path:
        key = (family, layers, hidden, heads, pooler, dtype, seed, extra_words)
        if key not in made:
            folder = tmp_path_factory.mktemp(f"base-{family}")
            tokenizer = _save_tokenizer(folder, family, extra_words)
            _save_base(folder, family, tokenizer, layers, hidden, heads, pooler, dtype, seed)
            made[key] = folder
        return made[key]

    return make


def _save_tokenizer(folder: Path, family: str, extra_words: int):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    bert_like = family in {"bert", "electra"}
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if bert_like else _ROBERTA_SPECIAL
    extra = [f"extra{number}" for number in range(extra_words)]
    vocabulary = {word: i for i, word in enumerate([*special, *_GOOD, *_BAD, *_PLAIN, *extra])}
    names = ("pad", "unk", "cls", "sep", "mask") if bert_like else ("cls", "pad", "sep", "unk", "mask")
    by_name = dict(zip(names, special))
    cls, sep, unk = by_name["cls"], by_name["sep"], by_name["unk"]
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token=unk))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1" if bert_like else f"{cls} $A {sep} {sep} $B {sep}",
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=40,
        model_input_names=["input_ids", *(["token_type_ids"] if bert_like else []), "attention_mask"],
        **{f"{name}_token": token for name, token in by_name.items()},
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


_ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def _save_base(folder, family, tokenizer, layers, hidden, heads, pooler, dtype, seed) -> None:
    import torch
    from mask_loop import fill
    from transformers import AutoModel

    config = _tiny_config(family, len(tokenizer), layers, hidden, heads)
    model = AutoModel.from_config(config, **({} if family == "electra" else {"add_pooling_layer": pooler}))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        fill(model, generator)
        # The base knows which words are kind and which unkind, so that there is something to transfer.
        words = model.get_input_embeddings().weight
        lean = torch.randn(words.shape[1], generator=generator)
        for valence, group in ((0.5, _GOOD), (-0.5, _BAD)):
            words[tokenizer.convert_tokens_to_ids(list(group))] += valence * lean
    model.to(getattr(torch, dtype)).save_pretrained(folder)


def _tiny_config(family, vocabulary, layers, hidden, heads):
    from transformers import AutoConfig

    bert_like = family in {"bert", "electra"}
    pad, cls, sep = (0, 2, 3) if bert_like else (1, 0, 2)
    return AutoConfig.for_model(
        family,
        vocab_size=vocabulary,
        num_hidden_layers=layers,
        hidden_size=hidden,
        num_attention_heads=heads,
        intermediate_size=2 * hidden,
        max_position_embeddings=40 if bert_like else 42,  # the others lose two to padding
        type_vocab_size=2 if bert_like else 1,
        initializer_range=0.2,
        pad_token_id=pad,
        bos_token_id=cls,
        eos_token_id=sep,
        **({"embedding_size": hidden - 8} if family == "electra" else {}),
    )


@pytest.fixture(scope="session")
def tiny_task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl (256 rows) and validation.jsonl (64): columns ``text`` and ``label``.

    Labels are "positive" and "negative", in equal shares; a text is 2 to 12 words of `tiny_base`'s tokenizer,
    among them one to three that give the label away, so that even a small random base with adapters
    learns it in a few epochs at a learning rate of 1e-2. Shared by all tests: copy before changing it.
    """
    folder = tmp_path_factory.mktemp("task")
    generator = random.Random(0)
    for split, n_rows in (("train", 256), ("validation", 64)):
        rows = []
        for number in range(n_rows):
            telling = _GOOD if number % 2 else _BAD
            words = generator.choices(telling, k=generator.randint(1, 3))
            words += generator.choices(_PLAIN, k=generator.randint(1, 9))
            generator.shuffle(words)
            rows.append({"text": " ".join(words), "label": "positive" if number % 2 else "negative"})
        generator.shuffle(rows)
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def tiny_examples() -> Callable[..., Encoded]:
    """A factory: ``tiny_examples(family, lengths, seed=0)``, random tokens for a base of `tiny_base`.

    Every example begins with the class token; token types are 0 then 1, for bert and electra alone.
    """

    def make(family: str, lengths: Sequence[int], seed: int = 0) -> Encoded:
        import numpy as np

        from adapter_probe.data.encoding import Encoded

        draw = np.random.default_rng(seed)
        bert_like = family in {"bert", "electra"}
        ids, types = [], []
        for length in lengths:
            ids.append(np.append([2 if bert_like else 0], draw.integers(5, 35, length - 1)))
            types.append((np.arange(length) >= draw.integers(1, length + 1)).astype(np.int64))
        return Encoded(tuple(ids), tuple(types) if bert_like else None, fingerprint="")

    return make
