"""The request of an ablation: checkpoint, examples, settings and device, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from adapter_probe.ablation_settings import AblationSettings, read_strengths
from adapter_probe.analysis.ablation_tables import draws_wanted
from adapter_probe.checkpoints.base import load_any_base, start_of
from adapter_probe.checkpoints.beside import refuse_value_head
from adapter_probe.checkpoints.finetuned import with_outside_of_base
from adapter_probe.checkpoints.opened_peft import OpenedPeft, OpenedPlaced
from adapter_probe.checkpoints.opening import open_any, open_several, with_embedding
from adapter_probe.checkpoints.spreading import free_places, memory_by_place, places_of, spread
from adapter_probe.checkpoints.tokenizer import refuse_unknown_tokens
from adapter_probe.custom_metric import CustomMetric
from adapter_probe.data.batches import EncodedBatches
from adapter_probe.data.encoding import Encoded
from adapter_probe.data.examples import Examples, Reading
from adapter_probe.data.generating import Generation, Prompting
from adapter_probe.data.lm_eval_tasks import is_task, with_absolute_paths
from adapter_probe.data.lm_eval_written import scorer_of
from adapter_probe.data.prompts import EncodedPrompts
from adapter_probe.data.question import Question
from adapter_probe.data.readers import SPLITS
from adapter_probe.data.requests import choose_metric
from adapter_probe.data.requests_encoding import EncodedRequests, Start, start_token
from adapter_probe.data.tagged import refuse_unscorable
from adapter_probe.data.task_of_files import GIVEN_BATCHES, data_name, given_task
from adapter_probe.data.task_spec import TaskSpec
from adapter_probe.data.written_scores import refuse_without_number, scores_by
from adapter_probe.device import check_precision
from adapter_probe.errors import CheckpointError, DataError, ModelError, ResultsError, must_be
from adapter_probe.metrics import PER_TEXT, about, check_metric, generated_metric, metric_label
from adapter_probe.python_words import in_callers_words
from adapter_probe.replay.decoding import Decoding, configuration, not_followed
from adapter_probe.replay.directions import refuse_without
from adapter_probe.replay.recording import base_of
from adapter_probe.replay.sharing import can_share
from adapter_probe.replay.switches import Switches
from adapter_probe.spans import VariantSet, effective_variants
from adapter_probe.units import SUBLAYERS

from .ablation_arguments import PREDICTIONS_VERSION, AblationArguments
from .plan import choose_tokens_per_pass
from .switchable_model import SwitchableModel, model_of

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class AblationRequest:
    """One ablation, ready to run.

    Attributes:
        checkpoint: the opened checkpoint; its model is moved to `device` and run in the settings' precision.
        tokens_per_pass: bounds memory without changing predictions; None for the device's default.
        data: name of the examples where they are not a split of the checkpoint's own task; else empty.
        score_texts: what scores written texts ``[variants, rows]``, where that is not the metric by its name.
    """

    checkpoint: OpenedPeft
    examples: Examples
    metric: str
    settings: AblationSettings
    device: torch.device
    tokens_per_pass: int | None = None
    data: str = ""
    score_texts: Callable[[Sequence[Sequence[str | None]]], np.ndarray] | None = None

    @property
    def encoded(self) -> Encoded | EncodedRequests | EncodedBatches | EncodedPrompts:
        """Token ids of every item: an example, or a window of one."""
        return self.examples.encoded

    @cached_property
    def model(self) -> SwitchableModel:
        """The model, with what is known of it.

        Raises:
            ModelError: it has no adapter that can be switched off.
        """
        model = model_of(self.checkpoint, self.encoded, self.settings.unit)
        if self.settings.by_layer:
            model.set_strengths(read_strengths(self.settings.by_layer))
        return model

    @cached_property
    def question(self) -> tuple[str, ...]:
        """What the study asks, and what else is to be said of checkpoint and rows, one line each.

        In the words of the caller, which are also those of the files of the study.
        """
        asked, n = self.examples.question, len(self.examples)
        asked = asked or Question("what the model's forward is given", n, n, self.data, what="examples")
        name = metric_label(self.metric)
        return tuple(map(in_callers_words, (*asked.lines(name), *self.checkpoint.notes, *self.remarks)))

    @property
    def remarks(self) -> list[str]:
        """What a user may have overlooked about the rows, one sentence each."""
        rows, opened, found = self.examples.rows, self.checkpoint, list(self.examples.notes)
        if about(self.metric).is_divergence and self.settings.precision in HALF:
            found.append(
                f"a divergence between two runs in {self.settings.precision} contains its rounding; to tell "
                "small ones apart, give --precision float32"
            )
        if isinstance(own := self.metric, CustomMetric):
            n = len(self.variants.masks)
            wanted = draws_wanted(sum(span is not None for span in self.variants.spans))
            if (n_draws := own.draws(wanted, n)) < wanted:
                found.append(
                    f"{own.own_name} takes {1000 * own.seconds:.3g} ms and is called for {n:,} variants of "
                    f"every resample, so that intervals and tests are of {n_draws:,} resamples in place of "
                    f"{wanted:,}: p-values are at least {2 / (n_draws + 1):.2g} before Holm's correction"
                )
        if self.encoded.in_batches:
            return found
        how = self.generation
        if how is not None and (left := not_followed(base_of(opened.model), how.temperature)):
            found.append(
                f"settings of the model's generation_config that are not followed: {', '.join(left)}"
            )
        if rows.scored.are_preferences and (same := sum(len({*row.choices}) == 1 for row in rows.rows)):
            found.append(
                f"{same:,} of {len(rows):,} rows have a chosen text that is equal to the rejected one; it "
                "counts as half right"
            )
        if not rows.templated and getattr(opened.tokenizer, "chat_template", None):
            found.append(
                f"the rows are scored without the chat template of base {opened.description.base.name}; "
                "if it is a chat model, write the rows as messages, or give --apply-chat-template with "
                "--task lm-eval:NAME"
            )
        if rows.scored.are_texts and start_token(opened.tokenizer) is None:
            found.append(
                "the base's tokenizer has neither a BOS nor an EOS token, so each text is scored from its "
                "second token; its bytes and words are counted as a whole"
            )
        return found

    @property
    def generation(self) -> Generation | None:
        """How texts are written; None of all other examples."""
        return self.examples.rows.generation

    @property
    def compares_tokens(self) -> bool:
        """Whether every predicted token is compared with the intact model's; choices are as a whole."""
        own = self.checkpoint.description.task.about
        compares = about(self.metric).distance and own.is_language_model
        return bool(compares) and not self.examples.rows.scored.are_choices

    @cached_property
    def variants(self) -> VariantSet:
        """The variants of the study, the intact model first; every span switches off other adapters."""
        model = self.model
        return effective_variants(self.settings.variants(model.stacks, model.sites), model.has_adapter)

    def reference(self, variants: VariantSet, sums: np.ndarray | None = None) -> np.ndarray | None:
        """What is subtracted from the log-likelihoods of preferences, float64 ``[examples, 2]``, or None.

        Args:
            sums: log-likelihoods ``[variants, examples, 2]``; without them nothing is returned where they are
                needed.

        Raises:
            DataError: it is to be that of the model with all adapters off, and no such variant is studied, or
                the rows are no preferences.
        """
        rows, asked = self.examples.rows, self.settings.reference
        if not rows.scored.are_preferences or self.examples.combine is not None:
            if asked == "off" and sums is None:
                raise DataError("--reference off needs preferences (chosen, rejected) and a language model")
            return None
        if asked == "off":
            off = ~variants.masks[:, self.model.has_adapter].any(axis=1)
            if not off.any():
                raise DataError(
                    "--reference off is the model with all adapters off, which is no variant of a study of a "
                    "part of them; leave out the option that chooses this part (--sites, --layers or --stack)"
                )
            return None if sums is None else sums[off.argmax()].astype(np.float64)
        given = [row.reference for row in rows.rows]
        return np.array(given) if asked == "rows" and all(given) else None

    def _of_writing(self, how: Generation) -> dict[str, Any]:
        """What determines written texts beside the logits: the settings, the model's own, and the decoder."""
        decoding = Decoding(how.max_new_tokens, how.temperature)
        own = configuration(base_of(self.checkpoint.model), decoding, logits=False).to_diff_dict()
        backend = getattr(self.checkpoint.tokenizer, "backend_tokenizer", None)
        decoder = repr(backend and backend.decoder)
        own = {name: value.to_dict() if hasattr(value, "to_dict") else value for name, value in own.items()}
        model = {name: value for name, value in own.items() if name != "transformers_version"}
        return {**how.identity, "model": model, "decoder": decoder}

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that determines the predictions; two runs with the same identity may share parts."""
        return {
            "code_schema": PREDICTIONS_VERSION[self.settings.precision],
            **self.checkpoint.description.identity,
            "data": {"fingerprint": self.examples.rows.fingerprint, "n_examples": len(self.examples.rows)},
            "tokens": {"fingerprint": self.examples.encoded.fingerprint},
            "settings": self.settings.to_json(),
            **({"compared": "intact"} if self.compares_tokens else {}),
            **({"generation": self._of_writing(self.generation)} if self.generation is not None else {}),
            **({"stacks": [list(one) for one in self.model.stacks]} if len(self.model.stacks) > 1 else {}),
            **({"adapters": adapters} if (adapters := self.model.adapters) else {}),
        }


def prepare_ablation(
    arguments: AblationArguments,
    device: torch.device,
    given: OpenedPeft | None = None,
    examples: Examples | None = None,
) -> AblationRequest:
    """Open a checkpoint and read the examples to evaluate it on.

    Args:
        given: a model in memory, in place of the checkpoint that the arguments name.
        examples: its examples, in place of the data that the arguments name.

    Raises:
        CheckpointError, ModelError: the checkpoint or its base cannot be opened.
        DataError: the examples cannot be read, do not fit the task, or have changed since training.
        ResultsError: tokens_per_pass is below 1, or mixed precision is requested for a task without classes.
    """
    settings = arguments.settings
    choose_tokens_per_pass(arguments.tokens_per_pass, device.type, 1)  # refuse a bad value first
    check_precision(device, settings.precision)
    opened = _opened(arguments, device, given)
    if examples is None:
        named = data_name(arguments.data)
        task, examples, metric = _scored_examples(opened, arguments)
        opened = opened.with_task(task)
    else:
        named = examples.question.source if examples.question else GIVEN_BATCHES
        metric = _metric_of_given(arguments, opened.description.task, examples)
    request = AblationRequest(
        opened, examples, metric, settings, device, arguments.tokens_per_pass, named,
        _scorer_of(arguments, metric, examples.rows),
    )  # fmt: skip
    request.model.check_sites(settings.sites)
    request.reference(request.variants)  # refuses one that cannot be had
    _refuse_unfit(request.model, opened, arguments)
    return request


def _opened(arguments: AblationArguments, device: torch.device, given: OpenedPeft | None) -> OpenedPeft:
    """The checkpoint, or the model in memory, as the settings ask for it."""
    settings, folder, base = arguments.settings, arguments.checkpoint, arguments.base
    load = partial(load_any_base, device=device, spread=arguments.device_map is not None)
    if given is not None:
        opened = given
    elif arguments.adapters:
        opened = open_several(Path(folder), arguments.adapters, base, load, arguments.dequantise)
    else:
        dtype = HALF.get(settings.precision, torch.float32)
        opened = open_any(folder, base, dtype=dtype, load=load, dequantise=arguments.dequantise)
    if arguments.device_map is not None:
        opened = _spread(opened, settings, device)
    if settings.precision == "mixed" and getattr(opened, "quantised", None) is not None:
        raise ResultsError(
            "--precision mixed is not possible with a quantised base, which has one precision; give "
            "float32 or bfloat16"
        )
    if settings.precision == "mixed" and not can_share(opened.model):
        raise ResultsError(
            "precision 'mixed' is not possible with this model, whose modules cannot be copied into a second "
            "precision; give float32 or bfloat16"
        )
    opened = with_embedding(opened, settings.pooling)
    if settings.outside == "base":
        opened = with_outside_of_base(opened)
    if isinstance(opened, OpenedPlaced) and not Switches().inside(opened.model):
        raise _without_adapters(arguments.checkpoint, (), opened, settings)
    return opened


def _metric_of_given(arguments: AblationArguments, task: TaskSpec, examples: Examples) -> str:
    """The metric of examples that were given as batches."""
    if arguments.generate:
        raise DataError("generate=True takes data= with prompt and answer; batches= are not continued")
    metric = task.metric if arguments.metric is None else arguments.metric
    check_metric(metric, task.kind, len(task.label_names) or None, compared=True)
    if task.about.is_language_model:
        metric = choose_metric(arguments.metric, examples.rows)
    if task.about.of_words:
        refuse_unscorable(metric, task.label_names)
    targets = examples.labels.ndim == 2 and not task.about.has_classes
    if targets and not isinstance(metric, CustomMetric):
        raise DataError(
            f"{examples.labels.shape[1]} targets per example have no score of their own; give metric=, a "
            "function of labels and predictions, [examples, targets] each"
        )
    return metric


def _spread(opened: OpenedPeft, settings: AblationSettings, device: torch.device) -> OpenedPeft:
    """An open checkpoint with its layers on all devices like one, where a quantised base is already.

    Raises:
        CheckpointError, ModelError: it has no adapter of PEFT, or does not fit.
    """
    if type(opened) is not OpenedPeft:
        raise CheckpointError(f"--device-map is for adapters of PEFT, which {opened.folder} has not; omit it")
    if opened.quantised is not None:
        return opened
    if settings.precision == "float64":
        opened.model.double()
    places = places_of(opened.model, free_places(device))
    memory = memory_by_place(opened.model, places)
    spread(opened.model, places)
    said = ", ".join(f"{place} ({n_bytes / 1e9:.2g} GB)" for place, n_bytes in memory.items())
    return replace(opened, notes=(*opened.notes, f"The weights are on {said}."))


def _refuse_unfit(model: SwitchableModel, opened: OpenedPeft, arguments: AblationArguments) -> None:
    """Refuse settings with which the model has nothing to switch off, or not in this way.

    Raises:
        CheckpointError, ModelError: it has not.
    """
    settings = arguments.settings
    model.check_norms(settings.layernorm)
    if settings.rank:
        refuse_without((module for part in model.site_modules for module in part), settings.rank)
    has_adapter = model.has_adapter  # [sites]
    never_off = settings.variants(model.stacks, model.sites).masks.all(axis=0)  # [sites]
    if not (has_adapter & ~never_off).any():
        held = has_adapter.reshape(-1, len(model.sites)).any(axis=0)
        names = [site.name for site, there in zip(model.sites, held) if there]
        raise _without_adapters(arguments.checkpoint, names, opened, settings)


def on_other_data(request: AblationRequest, arguments: AblationArguments) -> AblationRequest:
    """The same model and settings on the arguments' examples, without opening the checkpoint again.

    Raises:
        DataError: the examples cannot be read or do not fit the task.
    """
    _, examples, metric = _scored_examples(request.checkpoint, arguments)
    return replace(
        request, examples=examples, metric=metric, data=data_name(arguments.data),
        score_texts=_scorer_of(arguments, metric, examples.rows),
    )  # fmt: skip


def _scorer_of(
    arguments: AblationArguments, metric: str, rows: Any
) -> Callable[[Sequence[Sequence[str | None]]], np.ndarray] | None:
    """What scores written texts, where it is a function of the user's or a task's."""
    if rows.generation is None:
        return None
    if rows.documents:
        return scorer_of(rows.documents, metric)
    given = arguments.metric
    if not isinstance(given, CustomMetric):
        if metric.startswith(PER_TEXT):
            raise DataError(f"only the name of metric {metric!r} is known; pass its function again")
        return None
    answers = [row.choices for row in rows.rows]
    return lambda texts: scores_by(given.function, given.own_name, texts, answers)


def _scored_examples(opened: OpenedPeft, arguments: AblationArguments) -> tuple[TaskSpec, Examples, str]:
    """The task of the examples, the examples, and the name of their metric."""
    split, said, data = arguments.split, opened.description, arguments.data
    if not any(map(is_task, data)):
        Prompting.of(arguments).refuse()
    recorded = said.task
    if compares := arguments.compares:
        if opened.embedding is not None:
            recorded = replace(recorded, kind="embedding")
        check_metric(str(arguments.metric), recorded.kind, compared=True)
    task = given_task(
        recorded, data, split, arguments.checkpoint, arguments.encoding, arguments.label_names,
        arguments.categories, unlabelled=compares,
    )  # fmt: skip
    generation, asked = Generation.of(arguments), arguments.metric
    if generation.generate:
        if not task.about.is_language_model:
            raise DataError(
                f"--generate needs a language model, which writes; the task of checkpoint "
                f"{arguments.checkpoint} is {task.kind}"
            )
        asked = generated_metric(asked)
    metric = task.metric if asked is None else asked
    if not generation.generate and not any(map(is_task, data)):
        check_metric(metric, task.kind, len(task.label_names) or None, compared=True)
    _refuse_what_the_task_lacks(task, metric, arguments)
    source = task
    if data:
        files = {split: tuple(map(with_absolute_paths, data))}
        source = replace(task, files=files, validation_share=0.0, encoding=arguments.encoding)
    examples = Reading(
        opened.tokenizer, source, split, said.max_length,
        max_examples=arguments.max_examples, expect_fingerprint=not data,
        prompting=Prompting.of(arguments), start=_start_of(opened),
        prepared=opened.embedding and opened.embedding.prepared,
        dot=opened.embedding is not None and opened.embedding.dot, generation=generation,
    ).examples()  # fmt: skip
    refuse_unknown_tokens(examples.encoded, said.base)
    if task.about.is_language_model:
        own = None if data or examples.rows.generation is not None else task.metric
        metric = _metric_of_rows(opened, examples, own if asked is None else asked)
    return task, examples, metric


def _refuse_what_the_task_lacks(task: TaskSpec, metric: str, arguments: AblationArguments) -> None:
    """Refuse a precision, a metric or a split that the task has not, before anything is read."""
    if arguments.settings.precision == "mixed" and not task.about.one_class:
        raise ResultsError(
            f"--precision mixed is not possible for task {task.name!r} of kind {task.kind}: only predicted "
            "classes can be checked against rounding; give float32, float64 or bfloat16"
        )
    if arguments.settings.precision == "mixed" and about(metric).is_divergence:
        raise ResultsError(
            "--precision mixed is not possible with --metric kl: only predicted classes are checked against "
            "rounding, and not their probabilities; give float32, float64 or bfloat16, or --metric agreement"
        )
    if task.about.of_words:
        refuse_unscorable(metric, task.label_names)
    if arguments.split not in SPLITS:
        raise DataError(must_be("--split", f"one of {', '.join(SPLITS)}", arguments.split))


def _metric_of_rows(opened: OpenedPeft, examples: Examples, asked: str | None) -> str:
    """The metric of a language model's rows, which may have a default of their own."""
    if examples.rows.scored.are_preferences:
        refuse_value_head(opened.folder)
    metric = choose_metric(asked, examples.rows)
    if about(metric).of_numbers:
        refuse_without_number([row.choices for row in examples.rows.rows], examples.rows.name)
    return metric


def _start_of(opened: OpenedPeft) -> Start | None:
    """How an encoder-decoder's own code begins to write, see `encode_requests`; None of another model."""
    if getattr(opened, "head", "") != "seq2seq":
        return None
    base = base_of(opened.model)
    if base.main_input_name != "input_ids":
        raise ModelError(
            f"a {type(base).__name__} reads {base.main_input_name} and no text; give batches= of a model in "
            "memory"
        )
    return start_of(base)


def _without_adapters(
    folder: str,
    sites: Sequence[str],  # that hold some in any layer
    opened: OpenedPeft,
    settings: AblationSettings,
) -> CheckpointError:
    """The error for a checkpoint without adapters at the chosen sites."""
    held = "both" if tuple(sites) == SUBLAYERS else ", ".join(sites) or "none"
    where = f" of layers {settings.layers}" if settings.layers else ""
    return CheckpointError(
        f"checkpoint {folder} has no adapters to switch off for --sites {settings.sites}{where}: it "
        f"was trained with {opened.description.method.name}, sites {held}"
    )
