"""Messages of a conversation in a row, and what a chat template writes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from adapter_probe.data.rows import RowOf, is_text
from adapter_probe.errors import DataError, listed, one_line

ROLES = ("system", "developer", "user", "assistant", "tool")


def chat_prompt(row: RowOf, column: str, tokenizer: Any) -> str:
    """What the chat template writes of messages whose last turn is a user's, and of the next turn's head."""
    messages = messages_of(row, column, ("user",), after=", with what is right in answer")
    return applied(row, column, tokenizer, messages, head=True)


def messages_of(
    row: RowOf, column: str, last: Sequence[str] = (), least: int = 1, roles: Sequence[str] = (),
    after: str = "",
) -> list[dict[str, Any]]:  # fmt: skip
    """Messages with a text each, of which the last one has one of some roles.

    Args:
        roles: the roles that all may have; any if there are none.
    """
    value: Any = row.record[column]
    known = f" and the roles {listed(roles)}" if roles else ""
    good = isinstance(value, list) and len(value) >= least and all(isinstance(m, dict) for m in value)
    if not good or (last and value[-1].get("role") not in last):
        several = "two or more messages" if least > 1 else "messages"
        own = f", the last one of the {last[0]}" if last else ""
        each = f", with a text as content{known}" if roles else ""
        raise row.error(column, f"{several}{own}{after}{each}")
    if not all(is_text(m.get("content")) and (not roles or m.get("role") in roles) for m in value):
        raise row.error(column, f"messages with a text as content each{known}")
    return value


def applied(row: RowOf, column: str, tokenizer: Any, messages: Any, head: bool = False) -> str:
    """Messages as the chat template writes them, with the head of the assistant's next turn if asked for.

    The template is given the row's `tools` and `chat_template_kwargs`, as in TRL.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise DataError(f"{row.place}: the base's tokenizer has no chat template for messages")
    more = _of_template(row, "chat_template_kwargs", dict, "an object of names and values") or {}
    tools = _of_template(row, "tools", list, "a list of functions, or one as JSON") or None
    options = {"tokenize": False, "add_generation_prompt": head, "tools": tools}
    try:
        return str(tokenizer.apply_chat_template(messages, **options, **more))
    except Exception as error:  # templates are programs and may raise anything
        raise row.error(column, f"messages for the chat template ({one_line(error)})") from None


def _of_template(row: RowOf, column: str, kind: type, expected: str) -> Any:
    """What a row gives to the chat template in a column, which may be JSON; nothing where it is empty."""
    value = row.record.get(column)
    with suppress(ValueError):
        value = json.loads(value) if isinstance(value, str) and value else value
    if value and not isinstance(value, kind):
        raise row.error(column, expected)
    return value
