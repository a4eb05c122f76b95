"""What the command says, as Python objects: doctor, explain, and the hook diagnose."""

from __future__ import annotations

import os
import sys
from typing import Any, Mapping, Optional, Union

from ._answer import Answer, _ask


def doctor(
    problem: Union[str, BaseException, os.PathLike[str], None] = None, *, with_file: Union[str, os.PathLike[str], None] = None, state: Union[str, os.PathLike[str], None] = None, machine: bool = False
) -> Answer:
    """Says why a program failed, and what to set.

    problem: the text of a log or a traceback, an exception, or the Path of a log; None is the
    exception that is being handled, or else the last that was not.
    with_file: a snapshot, memory profile or dump that was taken beside it.
    state: a file that gpumem ps --json wrote. machine: look at this machine's GPUs.

    The answer has verdict, causes (each with title, evidence, settings, steps), missing,
    decide and certain; see docs/doctor.md. ValueError: a file that cannot be read.
    """
    if problem is None:
        problem = sys.exc_info()[1] or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if problem is None:
            raise ValueError("doctor() without an argument explains the last exception, and there was none")
    arguments = ["doctor"]
    if isinstance(problem, BaseException):
        problem = _text(problem)
    if isinstance(problem, os.PathLike):
        arguments.append(os.fspath(problem))
        problem = None
    elif not isinstance(problem, str):
        raise TypeError(f"doctor wants a text, an exception or a Path, not {type(problem).__name__}")
    else:
        arguments.append("-")
    for flag, value in (("--with", with_file), ("--state", state)):
        if value is not None:
            arguments += [flag, os.fspath(value)]
    if machine:
        arguments.append("--machine")
    return _ask(arguments, problem)


def _text(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


# The frameworks that explain knows: the module whose release it is, and the word.
_FRAMEWORKS = (("jaxlib", "jax"), ("torch", "pytorch"), ("tensorflow", "tensorflow"), ("cupy", "cupy"))


def explain(framework: Optional[str] = None, *, device: Optional[str] = None, env: Optional[Mapping[str, str]] = None) -> Answer:
    """Says how a framework reads the environment: which allocator it builds, how much memory it
    takes, and which settings do nothing.

    framework: "jax", "pytorch@2.9" and the like; None is the one that this process has
    loaded, in its release, or else the newest JAX. env: os.environ unless given. What a
    framework read when it was imported is not seen if os.environ was changed afterwards.
    """
    arguments = ["explain"]
    if framework is None:
        loaded = [(word, sys.modules[module]) for module, word in _FRAMEWORKS if module in sys.modules]
        if loaded:
            version = str(getattr(loaded[0][1], "__version__", "")).split("+")[0]
            framework = loaded[0][0] + ("@" + version if version else "")
    if framework is not None:
        arguments += ["--as", framework]
    if device is not None:
        arguments += ["--device", device]
    return _ask(arguments, env=env)


# Texts of errors that may be about memory. The command decides; this only keeps it from
# being run for every exception.
_SIGNS = ("out of memory", "out_of_memory", "resource_exhausted", "resource exhausted", "alloc_failed", "cudnn_status_internal_error", "bad_alloc", "oom when allocating", "maximum pool size exceeded")


def _about_memory(error: Optional[BaseException]) -> bool:
    seen = 0
    while error is not None and seen < 20:
        name = type(error).__name__
        if isinstance(error, MemoryError) or name in ("OutOfMemoryError", "ResourceExhaustedError"):
            return True
        text = str(error).lower()
        if any(sign in text for sign in _SIGNS):
            return True
        error, seen = error.__cause__ or error.__context__, seen + 1
    return False


_before: Any = None


def _explain_once(error: Optional[BaseException]) -> None:
    """Prints why, unless that is not known or was printed for this error."""
    try:
        if error is None or not _about_memory(error) or getattr(error, "_gpumem_explained", False):
            return
        error._gpumem_explained = True  # type: ignore[attr-defined]
        from . import _library

        texts = [_library.report(pool) for pool in range(1024) if _library.is_open(pool)]
        if not (texts and "\nWhy: " in _text(error)):  # a pool's error has the reason
            answer = doctor(error)
            if answer.verdict in ("not_memory", "unknown", "nonfatal", "account"):
                return
            texts.insert(0, str(answer))
        print("\n" + "\n".join(texts), file=sys.stderr, flush=True)
        from .jax import is_used, live

        if is_used():
            print(f"\nLive in JAX: {live()}", file=sys.stderr, flush=True)
    except Exception as e:  # a hook must not hide the error that it is about
        print(f"gpumem: this error could not be explained: {e}", file=sys.stderr)


def diagnose() -> None:
    """From now on, explains an out-of-memory error that leaves the program, a thread or a
    notebook's cell: once, on standard error, after the traceback.

    Calling it again changes nothing. The hooks that were there are called first.
    """
    global _before
    if _before is None:
        import threading

        program, thread = _before = (sys.excepthook, threading.excepthook)

        def left(kind: Any, error: Any, trace: Any) -> None:
            program(kind, error, trace)
            _explain_once(error)

        def left_thread(arguments: Any) -> None:
            thread(arguments)
            _explain_once(arguments.exc_value)

        sys.excepthook = left
        threading.excepthook = left_thread
    if "IPython" in sys.modules:
        shell = sys.modules["IPython"].get_ipython()
        if shell is not None and not getattr(shell, "_gpumem_diagnoses", False):
            shell._gpumem_diagnoses = True
            shell.events.register("post_run_cell", lambda result: _explain_once(result.error_in_exec))
