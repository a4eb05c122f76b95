"""Answers of the command, as Python objects."""

from __future__ import annotations

import json
import subprocess
from typing import Any, Dict, Mapping, Optional, Union

from ._command import command


class Answer(Dict[str, Any]):
    """An answer of the command: its JSON, whose keys are attributes too.

    >>> answer = gpumem.doctor(text)
    >>> answer.verdict, [cause.title for cause in answer.causes]
    >>> print(answer)        # the text for people
    """

    # How to get the text; only the whole answer has it.
    _note = ""  # above the text
    _asked: Optional[tuple[list[str], Union[str, bytes, None], Optional[Mapping[str, str]]]] = None

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no {name!r} in this answer; it has {', '.join(self)}") from None

    def __str__(self) -> str:
        if self._asked is None:
            return super().__repr__()
        arguments, text, env = self._asked
        return self._note + _run(arguments, text, env).rstrip("\n")

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


def _run(arguments: list[str], text: Union[str, bytes, None], env: Optional[Mapping[str, str]]) -> str:
    """Runs the command; ValueError with its own line for what it cannot read."""
    if not isinstance(text, bytes):
        text = (text or "").encode("utf-8", "surrogateescape")
    done = subprocess.run(
        [command(), *arguments], input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=None if env is None else dict(env)
    )
    if done.returncode not in (0, 1):
        raise ValueError(done.stderr.decode("utf-8", "replace").strip() or f"{command()} ended with status {done.returncode}")
    return done.stdout.decode("utf-8", "replace")


def _ask(arguments: list[str], text: Union[str, bytes, None] = None, env: Optional[Mapping[str, str]] = None) -> Answer:
    answer: Answer = json.loads(_run([*arguments, "--json"], text, env), object_hook=Answer)
    answer._asked = (arguments, text, env)
    return answer
