"""`adapter-probe convert`: a checkpoint in another library's format, or in this project's own."""

from __future__ import annotations

from adapter_probe.progress import print_message
from adapter_probe.studies.checkpoint_arguments import Convert

from .console import command, show


@command
def convert(asked: Convert) -> None:
    """Convert a checkpoint to another format; a lossy conversion is refused unless --lossy is given.

    The project's own format (native) represents every supported checkpoint but those of causal language
    models. AdapterHub's format represents bottleneck adapters but not trained LayerNorms. PEFT's format
    represents LoRA, DoRA, (IA)³ and tuned LayerNorms, MLX-LM's LoRA and DoRA of language models.

    Example: adapter-probe convert my-checkpoint peft-copy --to peft
    """
    from adapter_probe.studies.inspect_convert import convert as write

    for what in write(**vars(asked)):
        print_message(f"{what} are left out" if what.endswith("s") else f"{what} is left out")
    show(str(asked.out))
