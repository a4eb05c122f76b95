"""What arguments must be. Each function returns "" for a value that is right, else a sentence that says
what is wanted, for the public function itself to raise: its caller sees no frame but that one."""

from __future__ import annotations

import os
from typing import Any

from ._size import plain


def shown(value: Any) -> str:
    """Returns a value as a message names it."""
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, (str, bytes)):
        return repr(value) if len(value) <= 40 else f"a long {type(value).__name__}"
    if isinstance(value, type):
        return f"the class {plain(value.__name__)}"
    kind = type(value).__name__
    return f"{'an' if kind[:1].lower() in 'aeiou' else 'a'} {plain(kind)}"


def text(name: str, value: Any, example: str) -> str:
    return "" if value is None or isinstance(value, str) else f"{name} wants a text such as {example!r}, not {shown(value)}"


def policy(value: Any) -> str:
    return text("policy=", value, "elastic:limit=20GiB")


def device(value: Any) -> str:
    return text("device=", value, "sim:24GiB")


def gpu(value: Any, all_of_them: bool = False) -> str:
    if isinstance(value, int) and not isinstance(value, bool) or all_of_them and value is None:
        return ""
    return f"gpu= wants the number of a GPU, such as 0, not {shown(value)}"


def number(name: str, value: Any) -> str:
    try:
        value.__index__()
    except (AttributeError, TypeError):
        return f"{name} wants a whole number, not {shown(value)}"
    return ""


def path(name: str, value: Any) -> str:
    """The name of a file that is to be read or written."""
    if isinstance(value, (str, os.PathLike)) and not isinstance(value, type) and os.fspath(value):
        return ""
    return f"{name} wants the name of a file, not {shown(value)}"


def framework(name: str, value: Any, known: Any) -> str:
    """One of several words, or None."""
    if value is None or isinstance(value, str) and value in known:
        return ""
    return f"{name} wants framework= one of {', '.join(known)}, not {shown(value)}"
