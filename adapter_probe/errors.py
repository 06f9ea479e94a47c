"""Errors and warnings that a user can act on.

Each carries one clear line: the value received, the values allowed, the file. The command line prints that
line and exits with code 2; any other exception is a bug and keeps its traceback. A warning is one line, too.
"""

import json
import sys
from collections.abc import Iterable, Sequence

_LONGEST_SHOWN, _LONGEST_QUOTED, _MOST_SAID = 60, 40, 300  # characters
_MOST_SHOWN = 12  # values


def reason_of(error: BaseException) -> str:
    """What the system or another library says of an error, on one line."""
    return getattr(error, "strerror", None) or one_line(error)


def one_line(error: BaseException) -> str:
    """The beginning of another library's message, on one line; the error's type if the message is empty."""
    return cut(" ".join(str(error).split()), _MOST_SAID) or type(error).__name__


def cut(text: str, most: int) -> str:
    """The beginning of a text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quote(value: object) -> str:
    """A value from a JSON file, as it is written there, shortened for a message."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return cut(text, _LONGEST_QUOTED)


def shown(value: object) -> str:
    """A value on one line, shortened, for an error message; its type if it cannot be written."""
    try:
        text = repr(value).replace("\n", " ")
    except Exception:  # nested too deeply, a number of 5,000 digits, or any fault of the user's own class
        text = f"a {type(value).__name__}"
    return cut(text, _LONGEST_SHOWN)


def listed(values: Iterable[object]) -> str:
    """Several values on one line, the first dozen, for an error message."""
    values = list(values)
    more = f", … ({len(values)} in all)" if len(values) > _MOST_SHOWN else ""
    return ", ".join(map(shown, values[:_MOST_SHOWN])) + more


def must_be(name: str, allowed: str, value: object) -> str:
    """The message for a value that is not allowed.

    Args:
        allowed: what it must be, such as ``one of accuracy, mcc`` or ``at least 1``.
        value: what was given; texts are quoted.
    """
    return f"{name} must be {allowed}, not {shown(value)}"


def other_delimiter(header: Sequence[str]) -> str:
    """What to say of a CSV whose header is one field, with the signs of another delimiter; else nothing."""
    named = {";": "semicolons", "\t": "tabs", "|": "vertical bars"}
    found = [name for sign, name in named.items() if len(header) == 1 and sign in header[0]]
    return f"; its fields seem to be separated by {found[0]}, expected commas" if found else ""


def install_extra(name: str) -> str:
    """How to install one of this package's extras, for a message about a missing library."""
    return f"install the extra '{name}' (pip install 'adapter-probe[{name}]', or '.[{name}]' in a clone)"


class AdapterProbeError(Exception):
    """Base of every error that a user can act on.

    IPython and notebooks show its one line only; after ``%xmode Verbose``, ``%tb`` shows the whole traceback.
    """

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows."""
        get_shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
        tracebacks = getattr(get_shell(), "InteractiveTB", None)
        if getattr(tracebacks, "mode", "") == "Verbose":
            return tracebacks.structured_traceback(type(self), self, self.__traceback__)
        signs = (sign if sign.isprintable() else repr(sign)[1:-1] for sign in str(self))
        return [f"{type(self).__name__}: {''.join(signs)}"]


class CheckpointError(AdapterProbeError):
    """A checkpoint or its base cannot be opened, does not fit, or cannot be saved."""


class DataError(AdapterProbeError):
    """A data file cannot be read or does not hold what the task needs."""


class ModelError(AdapterProbeError):
    """A model family, size or setting is not supported."""


class ResultsError(AdapterProbeError):
    """A results folder cannot be written, is in use, or belongs to another run."""


class TrainingError(AdapterProbeError):
    """Training was asked for something impossible, or diverged."""


class Diverged(TrainingError):
    """The loss became NaN or infinite."""


class JobsDetached(AdapterProbeError):
    """Jobs were submitted to a cluster and are not waited for; the same call collects their results.

    Attributes:
        report: state of the jobs as plain JSON: jobs, done, sent_now, sent_earlier, job_name, folder.
    """

    def __init__(self, report: dict[str, object]):
        super().__init__(
            f"{report['sent_now']} of {report['jobs']} jobs were sent, {report['done']} are done; "
            "the same call again collects them"
        )
        self.report = report


class AdapterProbeWarning(UserWarning):
    """Something that probably spoils a result, although nothing is wrong with the input."""
