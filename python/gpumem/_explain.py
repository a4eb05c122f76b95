"""What the command says, as Python objects: doctor, explain, and the hook diagnose."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Mapping as MappingABC
from typing import IO, Any, Iterator, Mapping, Optional, Union

from . import _wants
from ._answer import Answer, _ask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import _readings


def doctor(
    problem: Union[str, bytes, BaseException, os.PathLike[str], IO[Any], None] = None, *, with_file: Union[str, os.PathLike[str], None] = None, state: Union[str, os.PathLike[str], None] = None, machine: bool = False
) -> Answer:
    """Says why a program failed, and what to set.

    problem: the text of a log or a traceback, an exception, the name or the Path of a log, or an open
    file; None is the exception that is being handled, or else the last that was not. A str is the name of a
    file if there is one of that name, or if it looks like one: one word with a / in it or with an ending such as
    .log, .txt or .out. Any other is the text itself.
    with_file: a snapshot, memory profile or dump that was taken beside it.
    state: a file that gpumem ps --json wrote. machine: look at this machine's GPUs; without a problem,
    at nothing else.

    The answer has verdict, causes (each with title, evidence, settings, steps), missing,
    decide and certain; see docs/doctor.md. FileNotFoundError and IsADirectoryError: a name that is no file's;
    ValueError: a file or a text that cannot be read.
    """
    wrong = _wants_of_doctor(problem) or with_file is not None and _wants.path("with_file=", with_file) or state is not None and _wants.path("state=", state)
    if wrong:
        raise TypeError(wrong)
    if problem is None:
        problem = sys.exc_info()[1] or getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        if problem is None and not machine and state is None:
            raise ValueError("doctor() without an argument explains the last exception, and there was none: give it a text, an exception or a file, or machine=True")
    if machine and state is not None:
        raise ValueError("gpumem.doctor: state= is of the machine where it failed, and machine=True looks at this one; give one of them")
    for argument, name in (("", _name(problem)), ("with_file=", with_file), ("state=", state)):
        error = _no_file(argument, os.fspath(name) if name is not None else "")
        if error:
            raise error
    log, file = _log(problem)
    arguments = ["doctor"] + ([file] if file else ["-"] if log else [])
    for flag, value in (("--with", with_file), ("--state", state)):
        if value is not None:
            arguments += [flag, os.fspath(value)]
    if machine:
        arguments.append("--machine")
    try:
        return _ask(arguments, log)
    except ValueError as e:
        raise ValueError(_in_own_words(str(e), _OF_DOCTOR)) from None


# How the command calls what has another name here.
_OF_DOCTOR = (
    ("gpumem: stdin: the log is empty", "gpumem: the text is empty"),
    ("gpumem: stdin: ", "gpumem: the text: "),
    ("gpumem: ", "gpumem.doctor: "),
    ("gpumem doctor LOG --with FILE", "gpumem.doctor(LOG, with_file=FILE)"),
    ("gpumem doctor --state FILE", "gpumem.doctor(state=FILE)"),
    ("--with: ", "with_file="),
)
_OF_EXPLAIN = (("gpumem: ", "gpumem.explain: "), ("--as: ", ""), ("--as ", "framework="), ("device ", "device="), ("leave the flag out", "leave it out"))


def _in_own_words(text: str, words: tuple[tuple[str, str], ...]) -> str:
    for command, own in words:
        text = text.replace(command, own, 1)
    return text


def _wants_of_doctor(problem: Any) -> str:
    if problem is None or isinstance(problem, (str, bytes, BaseException)) or hasattr(problem, "read") and not isinstance(problem, type):
        return ""
    if isinstance(problem, os.PathLike) and not isinstance(problem, type):
        return ""
    return f"doctor wants a text, an exception or a Path, not {_wants.shown(problem)}"


def _log(problem: Any) -> tuple[Union[str, bytes, None], str]:
    """Returns a log, or the name of its file."""
    if isinstance(problem, BaseException):
        return _text(problem), ""
    if hasattr(problem, "read"):
        problem = problem.read()
    name = _name(problem)
    if name is not None:
        return None, os.path.join(os.curdir, name) if name.startswith("-") else name
    return problem, ""


_ENDING = re.compile(r"\.(log|txt|text|out|err|stdout|stderr|json|jsonl|csv|html|pickle|pb|gz|bz2|xz|zst)(\.\w+)?\Z", re.IGNORECASE)


def _name(problem: Any) -> Optional[str]:
    """Returns the name of a file, None if a problem is none."""
    if isinstance(problem, os.PathLike):
        return os.fsdecode(problem)
    if not isinstance(problem, str) or not 0 < len(problem) < 4096 or not problem.isprintable():
        return None
    is_word = not any(c.isspace() for c in problem)
    looks_like_one = is_word and (os.sep in problem or _ENDING.search(problem) is not None)
    return problem if looks_like_one or os.path.exists(problem) else None


def _no_file(argument: str, name: str) -> Optional[OSError]:
    """Returns the error for a name that is no file's; one of "" is none."""
    if name and not os.path.exists(name):
        return FileNotFoundError(f"gpumem.doctor: {argument}{name}: there is no such file")
    if name and os.path.isdir(name):
        return IsADirectoryError(f"gpumem.doctor: {argument}{name}: this is a folder; name a file in it")
    return None


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
    wrong = _wants.text("explain", framework, "jax@0.4.30") or _wants.device(device)
    if not wrong and env is not None and not _is_environment(env):
        wrong = f"env= wants a mapping of texts, such as {{**os.environ, 'XLA_FLAGS': '...'}}, not {_wants.shown(env)}"
    if wrong:
        raise TypeError(wrong)
    arguments = ["explain"]
    of_this_process = framework is None
    if framework is None:
        loaded = [(word, sys.modules[module]) for module, word in _FRAMEWORKS if module in sys.modules]
        if loaded:
            version = str(getattr(loaded[0][1], "__version__", "")).split("+")[0]
            framework = loaded[0][0] + ("@" + version if version else "")
    if framework is not None:
        arguments += ["--as", framework]
    if device is not None:
        arguments += ["--device", device]
    try:
        answer = _ask(arguments, env=env)
    except ValueError as e:
        raise ValueError(_in_own_words(str(e), _OF_EXPLAIN)) from None
    from . import torch

    if of_this_process and answer.get("framework") == "pytorch" and torch.is_used():
        answer._note = "Under gpumem.torch.use() PyTorch's memory is gpumem's pool: nothing below plays a part; gpumem.report() says what the pool does.\n\n"
        answer["warnings"] = [Answer(name="gpumem.torch.use", text=answer._note.strip()), *(answer.get("warnings") or ())]
    return answer


def _is_environment(env: Any) -> bool:
    return isinstance(env, MappingABC) and all(isinstance(k, str) and isinstance(v, str) for k, v in env.items())


# Texts of errors that are about memory, and of those that may be: the command decides; this only keeps
# it from being run for every exception.
_SURE_SIGNS = ("out of memory", "out_of_memory", "oom when allocating", "maximum pool size exceeded")
_SIGNS = ("resource_exhausted", "resource exhausted", "alloc_failed", "cudnn_status_internal_error", "bad_alloc")


def _chain(error: Optional[BaseException]) -> Iterator[BaseException]:
    """Returns an error and those that it came from."""
    seen = 0
    while error is not None and seen < 20:
        yield error
        error, seen = error.__cause__ or error.__context__, seen + 1


def _is_out_of_memory(error: BaseException) -> bool:
    """Reports whether an error says by its type or its text that memory was refused."""
    kind = type(error)
    if isinstance(error, MemoryError) or kind.__name__ in ("OutOfMemoryError", "ResourceExhaustedError"):
        return True
    text = str(error).lower()
    of_jax = kind.__module__.startswith("jax") and "resource_exhausted" in text  # that of gRPC may be a quota
    return of_jax or any(sign in text for sign in _SURE_SIGNS)


def _about_memory(error: Optional[BaseException]) -> bool:
    return any(_is_out_of_memory(e) or any(sign in str(e).lower() for sign in _SIGNS) for e in _chain(error))


_before: Any = None


def _explain_once(error: Optional[BaseException]) -> None:
    """Prints why, unless that is not known or was printed for this error."""
    try:
        if error is None or not _about_memory(error) or "_gpumem_explained" in error.__dict__:
            return
        _explain(error, asked=False)
    except Exception as e:  # a hook must not hide the error that it is about
        print(f"gpumem: this error could not be explained: {e}", file=sys.stderr)


def _explain(error: BaseException, asked: bool) -> None:
    error.__dict__["_gpumem_explained"] = True
    from . import _library, _readings

    reports = [_library.report(pool) for pool in range(_library.ALL) if _library.is_open(pool)]
    of_memory = _about_memory(error)
    readings = _readings.read() if of_memory else []
    answer = ""
    if not (reports and "\nWhy: " in _text(error)):  # a pool's error has the reason
        found = _diagnosis(error, readings)
        refused = any(_is_out_of_memory(e) for e in _chain(error))  # of which "unknown" is said, too
        if not asked and not refused and found.verdict in ("not_memory", "unknown", "nonfatal", "account"):
            return
        answer = str(found)
    try:
        held, most = _held_by(error) if of_memory else ([], False)
    except Exception as e:  # the answer is printed without
        held, most = [f"What keeps the memory is unknown: {type(e).__name__}: {e}"], False
    if most and answer:  # the surest comes first, and a guess is short beside it
        guess = " ".join(answer.split("\n\n", 1)[0].split())
        answer = f"By the text of the error alone: {guess} gpumem.doctor(e) says more."
    keeps = "\n".join(held)
    known = "\n".join(f"{reading}." for reading in readings)
    parts = [keeps, answer, *reports, known] if most else [answer, *reports, known, keeps]
    parts += ["\n".join(_next(leaks=most))] if of_memory else []
    print("\n" + "\n\n".join(part for part in parts if part), file=sys.stderr, flush=True)
    from .jax import is_used, live

    if of_memory and is_used():
        print(f"\nLive in JAX: {live()}", file=sys.stderr, flush=True)


def _diagnosis(error: BaseException, readings: list[_readings.Reading]) -> Answer:
    """Returns the doctor's answer. Where the text decides nothing, this process is asked, too."""
    answer = doctor(error)
    if answer.verdict not in ("unknown", "needs") or not _about_memory(error):
        return answer
    text, here = _text(error), ["doctor", "-", "--pid", str(os.getpid())]
    try:
        if len(readings) == 1:
            # What is in use now was in use then, and more: it shows that the program is too big, and nothing else.
            more = _ask(here, text + readings[0].log())
            if more.verdict == "cause" and more.causes[0].id == "program_too_big":
                return more
        more = _ask(here, text)
    except ValueError:  # the processes are not to be seen here
        return answer
    return more if more.verdict != "unknown" or answer.verdict == "unknown" else answer


def _held_by(error: BaseException) -> tuple[list[str], bool]:
    """Returns lines about the container that keeps much of PyTorch's memory, if there is one, and whether
    it is half or more."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return [], False
    from ._held import Program

    allocated = sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count()))
    with Program(torch, error) as program:
        found = program.containers(allocated // 5)[:2]
    lines = [f"What keeps it: {c.text(allocated)}" for c in found]
    if any(c.graphs for c in found):
        lines.append("A tensor that was computed keeps its graph: what is only looked at goes in as x.detach() or x.item().")
    return lines, any(c.bytes * 2 >= allocated for c in found)


def _next(leaks: bool) -> list[str]:
    """Returns the commands that say more, with this program's own arguments. leaks: more and more is kept,
    for which no card is large enough."""
    import shlex
    import shutil

    argv = list(getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv])
    notebook = "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
    of_several = os.environ.get("WORLD_SIZE", "1") != "1"  # started by torchrun and the like
    frameworks = {"torch", "jax", "tensorflow", "cupy"} & set(sys.modules)
    if notebook or of_several or len(argv) < 2 or "-c" in argv or not frameworks:
        return []
    name = os.path.basename(argv[0])
    if shutil.which(name) == shutil.which(argv[0]):
        argv[0] = name
    program = shlex.join(argv)
    lines = ["Next:"]
    if not leaks:
        lines.append(f"  gpumem fit -- {program}    # the card and the settings that it needs; runs without a GPU")
    if "torch" in frameworks:
        name = _new_name()
        lines.append(f"  gpumem run --record {name} -- {program}    # for gpumem leaks {name}")
    return lines


def _new_name() -> str:
    """Returns the name of a recording that is not there yet: run --record replaces none."""
    names = itertools.chain(["run.pickle"], (f"run{n}.pickle" for n in itertools.count(2)))
    return next(name for name in names if not os.path.lexists(name))


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
        if not isinstance(error, BaseException):  # to raise here would hide the error that is being handled
            print(f"gpumem: diagnose wants an exception that was caught, the e of \"except RuntimeError as e\", not {_wants.shown(error)}; gpumem.doctor explains a text", file=sys.stderr)
            return
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
