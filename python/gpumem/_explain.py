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
        _explain(error, asked=False)
    except Exception as e:  # a hook must not hide the error that it is about
        print(f"gpumem: this error could not be explained: {e}", file=sys.stderr)


def _explain(error: BaseException, asked: bool) -> None:
    error._gpumem_explained = True  # type: ignore[attr-defined]
    from . import _library

    texts = [_library.report(pool) for pool in range(1024) if _library.is_open(pool)]
    if not (texts and "\nWhy: " in _text(error)):  # a pool's error has the reason
        answer = doctor(error)
        if not asked and answer.verdict in ("not_memory", "unknown", "nonfatal", "account"):
            return
        texts.insert(0, str(answer))
    if _about_memory(error):
        try:
            texts += _held_by(error)
        except Exception as e:  # the answer is printed without
            texts.append(f"\nWhat keeps the memory is unknown: {type(e).__name__}: {e}")
        texts += _next()
    print("\n" + "\n".join(texts), file=sys.stderr, flush=True)
    from .jax import is_used, live

    if _about_memory(error) and is_used():
        print(f"\nLive in JAX: {live()}", file=sys.stderr, flush=True)


def _held_by(error: BaseException) -> list[str]:
    """Returns lines about the container that keeps much of PyTorch's memory, if there is one."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return []
    from ._held import Program

    allocated = sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))
    with Program(torch, error) as program:
        found = program.containers(allocated // 5)
    lines = [f"\nWhat keeps it: {c.text(allocated)}" for c in found[:2]]
    if any(c.graphs for c in found[:2]):
        lines.append("A tensor that was computed keeps its graph: what is only looked at goes in as x.detach() or x.item().")
    return lines


def _next() -> list[str]:
    """Returns the commands that say more, with this program's own arguments."""
    import shlex
    import shutil

    argv = list(getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv])
    notebook = "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
    of_several = os.environ.get("WORLD_SIZE", "1") != "1"  # started by torchrun and the like
    if notebook or of_several or len(argv) < 2 or "-c" in argv or not {"torch", "jax"} & set(sys.modules):
        return []
    name = os.path.basename(argv[0])
    if shutil.which(name) == shutil.which(argv[0]):
        argv[0] = name
    program = shlex.join(argv)
    lines = ["\nNext:", f"  gpumem fit -- {program}    # the card and the settings that it needs; runs without a GPU"]
    if "torch" in sys.modules:
        lines.append(f"  gpumem run --record run.pickle -- {program}    # for gpumem leaks run.pickle")
    return lines


def diagnose(error: Optional[BaseException] = None) -> None:
    """Explains an out-of-memory error on standard error: why, which container keeps the memory
    (PyTorch), and the command that says more.

    >>> gpumem.diagnose()       # from now on: each that leaves the program, a thread or a cell, once
    >>> except RuntimeError as e:
    ...     gpumem.diagnose(e)  # this one

    Calling it again without an error changes nothing. The hooks that were there are called first.
    A container is named only if it is plain, keeps a fifth of what is allocated or more, and has many
    tensors of one shape that are no parameters, gradients or states.
    """
    global _before
    if error is not None:
        try:
            _explain(error, asked=True)
        except Exception as e:
            print(f"gpumem: this error could not be explained: {e}", file=sys.stderr)
        return
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
