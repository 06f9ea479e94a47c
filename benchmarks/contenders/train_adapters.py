"""The `adapters` library under the transformers Trainer: adapters, LayerNorms and head."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import adapters
import torch
import transformers
from adapters import AdapterTrainer, DoubleSeqBnConfig
from protocol import Contender, serve
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainerCallback,
    TrainingArguments,
)


class Clock(TrainerCallback):
    """Notes when each step ended."""

    def __init__(self) -> None:
        self.moments: dict[int, float] = {}

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer's hook."""
        self.moments[state.global_step] = time.perf_counter()


class Collator(DataCollatorWithPadding):
    """Pads to the batch's longest text, and notes how many tokens are none of the padding."""

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        """A batch."""
        batch = super().__call__(features)
        self.tokens.append(int(batch["attention_mask"].sum()))
        return batch


class TrainAdapters(Contender):
    def open(self, settings: dict[str, Any]) -> dict[str, Any]:
        torch.set_num_threads(settings["threads"])
        transformers.logging.set_verbosity_error()
        self._settings = settings
        self._tokenizer = AutoTokenizer.from_pretrained(settings["base"])
        lines = (Path(settings["case"]) / "train.tsv").read_text(encoding="utf-8").split("\n")[1:]
        rows = [line.split("\t") for line in lines if line]
        labels = sorted({label for label, _ in rows})
        self._rows = [
            {**self._tokenizer(text, truncation=True, max_length=512), "labels": labels.index(label)}
            for label, text in rows
        ]
        self._n_labels = len(labels)
        return {}

    def run(self, share: int, shares: int) -> dict[str, Any]:
        """A training from the start; the steps after the warm-up are timed."""
        settings, model = self._settings, self._model()
        first, last = settings["warm_up"], settings["warm_up"] + settings["steps"]
        arguments = TrainingArguments(
            output_dir=settings["scratch"],
            per_device_train_batch_size=settings["batch_size"],
            max_steps=last,
            learning_rate=3e-4,
            warmup_ratio=0.1,
            bf16=settings["dtype"] == "bfloat16",
            group_by_length=settings["by_length"],
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            seed=0,
        )
        clock, collator = Clock(), Collator(self._tokenizer)
        collator.tokens = []
        AdapterTrainer(
            model=model, args=arguments, train_dataset=self._rows, data_collator=collator, callbacks=[clock]
        ).train()
        tokens = sum(collator.tokens[first:last])
        return {"tokens": tokens, "timed": clock.moments[last] - clock.moments[first]}

    def _model(self) -> torch.nn.Module:
        """A fresh model with fresh adapters; what trains is what trains in ours."""
        transformers.set_seed(0)
        base = self._settings["base"]
        model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=self._n_labels)
        adapters.init(model)
        factor = model.config.hidden_size / self._settings["size"]
        config = DoubleSeqBnConfig(reduction_factor=factor, non_linearity="gelu")
        model.add_adapter("task", config=config)
        model.train_adapter("task")
        for name, parameter in model.named_parameters():
            if "LayerNorm" in name or name.startswith("classifier"):
                parameter.requires_grad_(True)
        return model


if __name__ == "__main__":
    serve(TrainAdapters())
