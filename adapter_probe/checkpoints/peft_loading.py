"""Put PEFT's own tuners into a base and fill them from a file, by PEFT, with its silent cases refused."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping, Set
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from peft import PeftConfig, PeftModel, get_peft_model_state_dict, set_peft_model_state_dict
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from adapter_probe.errors import CheckpointError, ModelError, one_line
from adapter_probe.models.adapters.imported import InnerKind, InnerSpec

from .adapter_folder import PREFIX
from .base import AnyLoaded
from .base_config import quiet_quantisers
from .files import first_of, refuse_random
from .model_class import HEAD_MODULES, without_weights

VERSIONS = f"PEFT {peft.__version__} with Transformers {transformers.__version__}"
ADAPTER = "default"  # the name under which PEFT keeps the one adapter
_NUMBERED = re.compile(r"(?:^|\.)\d+(?:\.|$)")
_OF_EMBEDDINGS = ("weight", "bias", "base_layer.weight", "base_layer.bias")
# Of PEFT's warnings, those that say of a setting that it had no effect; the others are advice on training,
# merging and saving, or on what is refused here.
_NEWS = ("no modules were excluded", "no module was matched", "no parameter was matched")


def put_adapter(
    loaded: AnyLoaded, config: PeftConfig, tensors: Mapping[str, Tensor], path: Path
) -> tuple[PeftModel, tuple[str, ...]]:
    """Wrap a base by PEFT and load an adapter's tensors into it.

    Every tensor that PEFT would save of such an adapter must be in the file, and every tensor of the file
    must have a place: the places are filled with NaN before PEFT loads the file, so none can keep its random
    value unseen.

    Args:
        loaded: the base, which is changed, and in whose precision the adapter will be; on a quantised base
            PEFT's own choice is kept.

    Returns:
        the model in evaluation mode, one adapter active, and PEFT's warnings.
    """
    base, dtype = loaded.model, loaded.model.dtype
    own = {name for name, _ in (*base.named_parameters(remove_duplicate=False), *base.named_buffers())}
    with warnings.catch_warnings(record=True) as said, torch.random.fork_rng(devices=[]), quiet_quantisers():
        warnings.simplefilter("always")
        torch.manual_seed(0)  # starts that are drawn and not stored are the same every time
        try:
            model = PeftModel(base, config, adapter_name=ADAPTER)
        except Exception as error:  # whatever PEFT or the base's modules raise where it does not fit
            raise CheckpointError(
                f"{path.parent}: {VERSIONS} cannot put this {type_of(config)} on base "
                f"{loaded.identity.name}: {one_line(error)}"
            ) from error
        saved = saved_tensors(model)
        if loaded.shared:
            _unshare(model, own, saved.keys() | tensors.keys())
            saved = saved_tensors(model)
        with torch.no_grad():
            for tensor in saved.values():
                if tensor.is_floating_point():
                    tensor.fill_(torch.nan)
        placed = _fill(model, tensors, path, saved, loaded.identity.name)
        filled = saved_tensors(model)
    _refuse_lacking(model, filled, tensors.keys(), placed, path, loaded)
    lost = _refuse_random(loaded, placed, path)
    allowed = saved.keys() | set(unsaved_biases(model, saved)) | tensors.keys() & _embeddings(model)
    _refuse_foreign(own, placed, allowed, path)
    if loaded.quantised is None:
        _cast(model, own, dtype)
    return model.requires_grad_(False).eval(), (*lost, *_news(said), *_unmatched(model))


def _refuse_lacking(
    model: PeftModel, filled: Mapping[str, Tensor], stored: Set[str], placed: Collection[str], path: Path,
    loaded: AnyLoaded,
) -> None:  # fmt: skip
    """Refuse a file without a tensor that PEFT would save; without memory, by the names alone."""
    if loaded.model.device.type == "meta":
        lacking = sorted(filled.keys() - stored - set(map(_stored_name, placed)))
    else:
        lacking = sorted(n for n, t in filled.items() if t.is_floating_point() and t.isnan().any())
    if lacking := lacking or unsaved_biases(model, stored):
        bias = getattr(model.peft_config[ADAPTER], "bias", "none")
        gone = f"; PEFT before 0.21 did not save what bias={bias!r} trains, so it is lost"
        gone = gone if bias.endswith("_only") and all(n.endswith("base_layer.bias") for n in lacking) else ""
        raise CheckpointError(
            f"{path} lacks {first_of(lacking)}, which PEFT {peft.__version__} puts on base "
            f"{loaded.identity.name} with this configuration{gone}"
        )


def _refuse_random(loaded: AnyLoaded, placed: Collection[str], path: Path) -> tuple[str, ...]:
    """Refuse parameters that neither the base nor the file has.

    Returns:
        what to say of a classifier that was trained on the random pooler of a base of sentence embeddings,
        where the model is only looked at.
    """
    base, random = loaded.identity.name, sorted(loaded.missing - set(map(own_name, placed)))
    if random and all(name.startswith(f"{loaded.model.base_model_prefix}.pooler.") for name in random):
        said = (
            f"base {base} has no pooler, so the training drew one at random, and {path} does not have it: "
            "the model that was trained cannot be made again. If the base of the training was saved, give it "
            "with --base; else train again with modules_to_save=['pooler', 'classifier'], or save the base "
            "with its new pooler before the training"
        )
        if loaded.model.device.type != "meta":
            raise CheckpointError(said)
        return (said,)
    of_head = all(name.startswith(HEAD_MODULES) for name in random)
    refuse_random(random, f"checkpoint {path.parent}", f"base {base}", of_head)
    return ()


def refuse_unloadable(folder: Path, model: PeftModel) -> None:
    """Refuse a folder that was written here and that PEFT's own `from_pretrained` cannot load.

    Args:
        model: the model that was opened from it, whose base tells the class.
    """
    base = model.get_base_model()
    with warnings.catch_warnings(), quiet_quantisers():
        warnings.simplefilter("ignore")
        try:
            PeftModel.from_pretrained(
                without_weights(type(base), base.config), folder, low_cpu_mem_usage=True
            )
        except Exception as error:  # whatever PEFT raises
            raise CheckpointError(f"{VERSIONS} cannot load it: {type(error).__name__}: {error}") from error


def refuse_other_prefix(path: Path, modules: Set[str], there: Set[str], base: str) -> None:
    """Refuse a file whose names would be right with another beginning, such as one that is there twice.

    Args:
        modules: names of the modules with an adapter, as the file has them.
        there: names of the modules of the base.
    """
    right = {f"{PREFIX}{name}" for name in there}
    if not modules or modules & right:
        return
    parts = min(modules).split(".")
    for n in range(len(parts)):
        end = "." + ".".join(parts[n:])
        begins = {name.removesuffix(end) for name in right if name.endswith(end)}
        own = ".".join(parts[:n])
        for begin in begins:
            if all(f"{begin}.{name.removeprefix(own).lstrip('.')}" in right for name in modules):
                shown = repr(f"{own}.") if own else "nothing"
                raise CheckpointError(
                    f"{path}: the names of its tensors begin with {shown} where PEFT writes {begin + '.'!r} "
                    f"for base {base}; rename them, or save the adapter again by PEFT's save_pretrained"
                )


def type_of(config: PeftConfig) -> str:
    """PEFT's name of the type of a configuration."""
    return str(getattr(config.peft_type, "value", config.peft_type))


def saved_tensors(model: PeftModel) -> dict[str, Tensor]:
    """The tensors that PEFT would save, by the names in its files."""
    found: dict[str, Tensor] = get_peft_model_state_dict(
        model, adapter_name=ADAPTER, save_embedding_layers=False
    )
    if getattr(model.peft_config[ADAPTER], "bias", "none") == "lora_only":  # PEFT before 0.21 leaves them out
        biases = {name.partition("lora_")[0] + "base_layer.bias" for name in found if "lora_" in name}
        found |= {name: t for name, t in model.state_dict().items() if name in biases}
    return found


def unsaved_biases(model: PeftModel, saved: Collection[str]) -> list[str]:
    """The biases that ``bias="lora_only"`` and the like train, and that are not among saved tensors.

    PEFT before 0.21 saves none of them.
    """
    if not str(getattr(model.peft_config[ADAPTER], "bias", "")).endswith("_only"):
        return []
    tuned = {name: m.get_base_layer() for name, m in model.named_modules() if isinstance(m, BaseTunerLayer)}
    biases = [f"{name}.base_layer.bias" for name, m in tuned.items() if getattr(m, "bias", None) is not None]
    return sorted(set(biases) - set(saved))


def _fill(
    model: PeftModel, tensors: Mapping[str, Tensor], path: Path, saved: Collection[str], base_name: str
) -> dict[str, Tensor]:
    """Load tensors by PEFT; returns what went where, by the names in the model.

    PEFT itself saves a few biases twice and loads them once, so names that it would save are none too many.
    """
    placed: dict[str, Tensor] = {}

    def load(state: Mapping[str, Tensor], strict: bool = True, assign: bool = False) -> Any:
        _refuse_misfit(model.state_dict(), state, path, base_name)
        placed.update(state)
        return type(model).load_state_dict(model, state, strict=strict, assign=assign)

    model.load_state_dict = load  # type: ignore[method-assign]  # PEFT calls it with the names in the model
    try:
        result = set_peft_model_state_dict(model, dict(tensors), adapter_name=ADAPTER)
    except CheckpointError:
        raise
    except KeyError as error:  # PEFT looks up a module to save
        raise CheckpointError(f"{path} lacks {error.args[0]}, which the configuration names") from error
    except Exception as error:  # whatever PEFT raises on tensors that do not belong together
        said = one_line(error)
        raise CheckpointError(f"{path}: {VERSIONS} cannot load it: {said}") from error
    finally:
        del model.load_state_dict
    unexpected = set(map(_stored_name, result.unexpected_keys)) - set(saved)
    if unknown := sorted(name for name in unexpected if not _is_held(model, name, tensors)):
        raise CheckpointError(
            f"{path} contains {first_of(unknown)}, which PEFT {peft.__version__} does not put on base "
            f"{base_name} with this configuration"
        )
    return placed


def _refuse_misfit(
    places: Mapping[str, Tensor], state: Mapping[str, Tensor], path: Path, base_name: str
) -> None:
    """Refuse tensors that have not the shape, or the kind of numbers, of their places."""
    for name, tensor in state.items():
        if name in places and places[name].shape != tensor.shape:
            shard = not tensor.numel() or tensor.dim() == 1 < places[name].dim()
            why = "; it was saved ungathered, as a shard of DeepSpeed ZeRO-3 or FSDP" if shard else ""
            raise CheckpointError(
                f"{path}: {_stored_name(name)} has shape {list(tensor.shape)}, the model on base "
                f"{base_name} needs {list(places[name].shape)}{why}"
            )
        if name in places and places[name].is_floating_point() and not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{path}: {_stored_name(name)} contains {kind} values, expected floating-point numbers"
            )


def _is_held(model: PeftModel, name: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether the model holds a tensor anyway: PEFT saves grown embeddings that are trained or tied twice."""
    held = {_stored_name(key): tensor for key, tensor in model.state_dict().items()}
    same = held.get(name.replace(".modules_to_save.", "."))
    return same is not None and name in tensors and torch.equal(same, tensors[name].to(same))


def _unshare(model: PeftModel, own: Set[str], stored: Set[str]) -> None:
    """Give parameters of the base that an adapter's file replaces memory of their own; ties are kept."""
    replaced = {
        id(parameter)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if own_name(name) in own and _stored_name(name) in stored
    }
    copies: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, one in module.named_parameters(recurse=False, remove_duplicate=False):
            if id(one) in replaced:
                if id(one) not in copies:
                    copies[id(one)] = nn.Parameter(one.detach().clone(), requires_grad=False)
                setattr(module, name, copies[id(one)])


def _stored_name(name: str) -> str:
    """A tensor's name in a file, which does not contain the adapter's."""
    name = name.replace(f".modules_to_save.{ADAPTER}.", ".").replace(f".{ADAPTER}.", ".")
    return name.removesuffix(f".{ADAPTER}")


def own_name(name: str) -> str:
    """A tensor's name in the base alone."""
    name = name.removeprefix(PREFIX).removeprefix("base_model.").replace(".base_layer.", ".")
    return name.replace(f".modules_to_save.{ADAPTER}.", ".").replace(".original_module.", ".")


def _refuse_foreign(own: set[str], placed: Mapping[str, Tensor], allowed: set[str], path: Path) -> None:
    """Refuse a file that would replace weights of the base which its configuration does not name."""
    plain = {name: name.removeprefix(PREFIX).replace(".base_layer.", ".") for name in placed}
    names = {_stored_name(name) for name in placed if plain[name] in own}
    if replaced := sorted(names - allowed):
        raise CheckpointError(
            f"{path} contains {first_of(replaced)} of the base, which the configuration names neither as "
            "trained (modules_to_save, bias) nor as an adapter"
        )


def _embeddings(model: PeftModel) -> set[str]:
    """Names of the embeddings, which PEFT saves where the vocabulary was changed."""
    pair = (model.get_input_embeddings(), model.get_output_embeddings())
    there = {id(module) for module in pair if module is not None}
    inside = [name for name, module in model.named_modules() if id(module) in there]
    return {f"{name}.{parameter}" for name in inside for parameter in _OF_EMBEDDINGS}


def _cast(model: PeftModel, own: set[str], dtype: torch.dtype) -> None:
    """Give the adapter's numbers the precision of the run; the base's buffers keep theirs."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    for module_name, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            whole = own_name(f"{module_name}.{name}")
            if buffer is not None and buffer.is_floating_point() and whole not in own:
                setattr(module, name, buffer.to(dtype))


def _news(said: list[warnings.WarningMessage]) -> list[str]:
    """PEFT's warnings about settings without effect, one sentence each."""
    texts = dict.fromkeys(one_line(w.message) for w in said if isinstance(w.message, Warning))
    return [f"PEFT says: {text}" for text in texts if any(part in text for part in _NEWS)]


def _unmatched(model: PeftModel) -> list[str]:
    """What to say of patterns of ranks and scales that match nothing.

    PEFT's own warning compares them with modules only, and not with parameters, such as fused experts.
    """
    tuner, notes = model.base_model, []
    names = [*tuner.targeted_module_names, *getattr(tuner, "targeted_parameter_names", ())]
    for field in ("rank_pattern", "alpha_pattern"):
        keys = getattr(model.peft_config[ADAPTER], field, None) or ()
        # Those of AdaLoRA are names of parameters.
        gone = [k for k in keys if not any(re.match(rf"(.*\.)?({k})$", n) or k.startswith(n) for n in names)]
        if gone:
            notes.append(f"No module matches {', '.join(sorted(gone))} of {field}, which PEFT ignores.")
    return notes


def tuned_modules(model: nn.Module) -> tuple[InnerSpec, ...]:
    """The modules of the base that PEFT changes, as records; those outside the layers last."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    tuned = [(name, module) for name, module in base.named_modules() if isinstance(module, BaseTunerLayer)]
    found = (_spec(own_name(f"{PREFIX}{name}"), module) for name, module in tuned)
    return tuple(sorted(found, key=lambda spec: is_outside(spec.module)))


def is_outside(module: str) -> bool:
    """Whether a module is in no numbered list of layers, so that it cannot be switched off."""
    return _NUMBERED.search(module) is None


def _spec(name: str, module: BaseTunerLayer) -> InnerSpec:
    rank, scale = (getattr(module, field, None) for field in ("r", "scaling"))
    numbers = [value.get(ADAPTER) if hasattr(value, "get") else None for value in (rank, scale)]
    kinds: dict[str, InnerKind] = {"lora": "low_rank", "ln_tuning": "norm"}
    library = type(module).__module__.split(".")[2]
    kind: InnerKind = kinds.get(library, "tuner")
    if library == "lora" and getattr(module, "use_dora", {}).get(ADAPTER):
        kind = "decomposed"
    if library == "ia3":
        kind = "scale_input" if getattr(module, "is_feedforward", False) else "scale_output"
    return InnerSpec(
        name,
        kind,
        rank=numbers[0] if isinstance(numbers[0], int) else 0,
        scale=float(numbers[1]) if isinstance(numbers[1], int | float) else 1.0,
        bias=bool(getattr(module, "lora_bias", {}).get(ADAPTER)) if library == "lora" else False,
    )


def refuse_unready(model: nn.Module, place: str, several: bool = False) -> None:
    """Refuse a model that has not one active, unmerged adapter (or several), or is in training mode."""
    if model.training:
        raise ModelError(f"{place} is in training mode; call model.eval() first")
    tuners = [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    if not tuners:
        raise ModelError(f"{place} holds no adapter of PEFT, so nothing can be switched off")
    merged = next((name for name, module in tuners if module.merged), None)
    if merged is not None:
        raise ModelError(f"{place} has merged adapters, {merged} first; call model.unmerge_adapter() first")
    if off := next((name for name, module in tuners if module.disable_adapters), None):
        raise ModelError(f"{place} has disabled adapters, {off} first; enable them first")
    active = [list(module.active_adapters) for _, module in tuners]
    names = next((names for names in active if len(names) != 1 and not (several and names)), None)
    if names is not None:
        raise ModelError(f"{place} has {len(names)} active adapters, {', '.join(names)}; activate one")


def refuse_outside(model: nn.Module, place: str) -> None:
    """Refuse a model whose adapters are all outside the layers."""
    tuners = [name for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    if all(is_outside(name.removeprefix(PREFIX)) for name in tuners):
        where = ", ".join(name.removeprefix(PREFIX) for name in tuners[:3]) or "no module"
        raise ModelError(
            f"{place} has adapters outside the layers only ({where}), so no layer can be switched off"
        )
