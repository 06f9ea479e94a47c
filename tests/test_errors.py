"""What a user sees of an error in a notebook, and values in messages."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys

import pytest
from refusals import names

import adapter_probe as ap
from adapter_probe.argument_checks import checked, taking
from adapter_probe.errors import CheckpointError, DataError, shown
from adapter_probe.python_words import in_python, of_a_command
from adapter_probe.settings import annotations_of, types_of
from adapter_probe.studies.checkpoint_arguments import Ablate

CELLS = """
import json, sys, warnings
from ipykernel.inprocess import InProcessKernelManager

manager = InProcessKernelManager()
manager.start_kernel()
client = manager.client()
client.start_channels()

def run(code):
    client.execute(code)
    texts = []
    while True:
        try:
            message = client.get_iopub_msg(timeout=1)
        except Exception:
            return texts
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            texts += content["traceback"]
        elif kind == "stream":
            texts.append(content["text"])

call = "import adapter_probe as ap\\nap.load('missing\\\\x1b[31m')"
print(json.dumps([run(call), run("%xmode Verbose"), run(call), run("%tb")]))
"""


@pytest.mark.slow
def test_a_notebook_shows_the_line_and_the_whole_traceback_on_request():
    pytest.importorskip("ipykernel")
    done = subprocess.run([sys.executable, "-c", CELLS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    first, _, whole, again = json.loads(done.stdout.splitlines()[-1])
    (line,) = first
    kind, _, message = line.partition(": ")
    assert kind == "ResultsError"
    assert names(message, "missing\\x1b[31m", "folder")
    refusal = message.partition(": ")[2]  # IPython itself writes the value, with its control characters
    for texts in (whole, again):
        assert "find_results" in "".join(texts)
        assert refusal in "".join(texts)


def test_a_value_that_cannot_be_written_is_named_by_its_type():
    class Faulty:
        def __repr__(self) -> str:
            raise RuntimeError

    class Table:
        def __repr__(self) -> str:
            return "one\ntwo"

    assert shown(Faulty()) == "a Faulty"
    assert shown(10**5000) == "a int"
    assert shown(Table()) == "one two"


def test_the_line_has_no_control_characters():
    assert CheckpointError("a\x1b[31mb\nc")._render_traceback_() == ["CheckpointError: a\\x1b[31mb\\nc"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--layernorm pretrained is not possible", "layernorm='pretrained' is not possible"),
        ("name them with --label-names, or", "name them with label_names=, or"),
        ("give a file (--data FILE)", "give a file (data=FILE)"),
        ("--generate needs a language model", "generate=True needs a language model"),
        ("give --metric tag_accuracy", "give metric='tag_accuracy'"),
        ("--strength 0.5 has no meaning", "strength=0.5 has no meaning"),
        ("--strength has 3 strengths for", "strength has 3 strengths for"),
        ("--strength: layers share", "strength: layers share"),
        ("on purpose (--columns prompt,text=a b)", "on purpose (columns='prompt,text=a' b)"),
        ("--layers 0-3 has no adapters", "layers='0-3' has no adapters"),
        ("--slurm takes one adapter", "cluster= takes one adapter"),
        ("pip install --upgrade peft", "pip install --upgrade peft"),
        ("/tmp/x-1/data/rows-0123456789ab.jsonl: the labels", "data: the labels"),
    ],
)
def test_messages_of_commands_have_the_words_of_python(message, expected):
    kinds = {name: types_of(kind) for name, kind in annotations_of(Ablate).items()}
    assert in_python(message, inspect.signature(ap.ablate), kinds) == expected


def test_a_function_names_its_own_arguments_and_keeps_the_words_of_the_command(tmp_path):
    """What an inner function has put in Python's words stays, and so do other errors."""

    @checked
    def inner(label_names: str = ""):
        raise DataError("name them with --label-names, not --span or --top-k")

    @checked
    def outer(span: str = ""):
        inner()

    with pytest.raises(DataError) as caught:
        outer()
    assert str(caught.value) == "name them with label_names=, not span= or --top-k"
    with of_a_command(), pytest.raises(DataError, match="with --label-names, not --span or"):
        outer()

    @taking(Ablate)
    def failing(call: Ablate) -> None:
        raise KeyError(f"--{call.metric}")

    with pytest.raises(KeyError, match="--kl"):
        failing(tmp_path, metric="kl")
