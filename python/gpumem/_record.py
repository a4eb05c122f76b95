"""Recordings of a run, for gpumem replay, leaks and advise."""

from __future__ import annotations

import os
import pickle
import shutil
import sys
import tempfile
from contextlib import contextmanager
from importlib import import_module
from typing import IO, Any, ContextManager, Dict, Iterator, List, Optional, Union

from . import _keepers, _wants

FRAMEWORKS = ("torch", "jax", "cupy")  # that keep a record, or figures, of their own


def record(path: Union[str, os.PathLike[str]], framework: Optional[str] = None) -> ContextManager[None]:
    """Records the GPU allocations of a block of code to a file.

    >>> with gpumem.record("run.rec"):
    ...     train()
    $ gpumem replay run.rec

    framework: "gpumem" (this project's pools in this process: torch.use, cupy.use,
    rmm.resource, Pool), "torch" (PyTorch's own history, with stacks), "jax" (the profiler's
    events) or "cupy". None is gpumem where a pool of it is open, else the one framework that
    is imported; ValueError if that is none, or several. FileExistsError if the file has something in it.
    """
    wrong = _wants.path("record", path) or _wants.framework("record", framework, sorted(_RECORDERS))
    if wrong:
        raise (TypeError if _wants.path("record", path) else ValueError)(wrong)
    return _record(os.fspath(path), framework)


@contextmanager
def _record(path: str, framework: Optional[str]) -> Iterator[None]:
    if framework is None:
        framework = _guess()
    if framework != "gpumem":
        import_module(framework)
    new_file(path)
    try:
        with _RECORDERS[framework](path):
            yield
    except BaseException:
        if os.path.exists(path) and not os.path.getsize(path):  # it could not begin, or Ctrl-C came before it was written
            _remove(path)
        raise


def new_file(path: str) -> None:
    """Makes an empty file, so that what is wrong with it shows before the run."""
    check_new(path)
    with open(path, "wb"):
        pass


def check_new(path: str) -> None:
    """Raises an OSError if path is no place for a recording. One that has something in it is never replaced."""
    folder = os.path.dirname(path) or os.curdir
    if os.path.isfile(path) and os.path.getsize(path):
        raise FileExistsError(f"{path}: the file is there; a recording needs a new one, so remove it or name another")
    if os.path.isdir(path):
        raise IsADirectoryError(f"{path}: this is a folder; a recording needs the name of a file in it")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"{path}: there is no folder {folder}; make it, or name another")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK):
        raise PermissionError(f"{path}: this user may not write there; name another file")


@contextmanager
def _whole(path: str) -> Iterator[IO[bytes]]:
    """Opens the file of a recording. Where it cannot be written to its end it is removed: a part of one would be
    taken for damaged. An error of the system names the file."""
    try:
        with open(path, "wb") as f:
            yield f
    except BaseException as e:
        _remove(path)
        if isinstance(e, OSError) and e.filename is None:
            raise type(e)(e.errno, f"the recording could not be written: {e.strerror}", path) from None
        raise


def _remove(path: str) -> None:
    if os.path.isfile(path):  # not a device or a pipe
        os.remove(os.path.realpath(path))


def _guess() -> str:
    from . import _library

    if _library.serves():
        return "gpumem"
    loaded = [name for name in FRAMEWORKS if name in sys.modules]
    if len(loaded) != 1:
        raise ValueError(f"record(path, framework=...): {' and '.join(loaded) or 'no framework'} imported, so say which to record")
    return loaded[0]


@contextmanager
def _gpumem(path: str) -> Iterator[None]:
    from . import _library

    _library.check(_library.library().gpumem_record(path.encode()))
    try:
        yield
    finally:
        _library.check(_library.library().gpumem_record(None))


@contextmanager
def _torch(path: str) -> Iterator[None]:
    import torch

    from . import _history

    use = _history.Use(torch, "all")
    try:
        try:
            yield
        finally:
            _end(torch, path, use)
    finally:
        use.stop()


def _end(torch: Any, path: str, use: Any) -> None:
    kept: List[Dict[str, Any]] = []
    try:
        kept = _kept(torch, sys.exc_info()[1])  # before there is a snapshot, which would be looked through, too
    finally:  # Ctrl-C ends the search, not the recording, which is whole without it
        _write(path, use, kept)


def _write(path: str, use: Any, kept: List[Dict[str, Any]]) -> None:
    with _whole(path) as f:
        part, missing = use.end()
        if missing:
            print(f"gpumem.record: {path}: {missing:,} of the allocations are not in it: something else ended PyTorch's history, or it was full", file=sys.stderr)
        if kept and part:
            part[_keepers.KEY] = kept
        pickle.dump(part, f)


def _kept(torch: Any, error: Optional[BaseException]) -> List[Dict[str, Any]]:
    """Returns what keeps the program's tensors; nothing if that fails, which it says: the recording is whole without it."""
    try:
        return _keepers.keepers(torch, error)
    except Exception as e:
        print(f"gpumem.record: what keeps the tensors is not in the recording: {type(e).__name__}: {e}", file=sys.stderr)
        return []


@contextmanager
def _jax(path: str) -> Iterator[None]:
    import jax

    folder = tempfile.mkdtemp()
    try:
        jax.profiler.start_trace(folder)
        try:
            yield
        finally:
            jax.profiler.stop_trace()
        found = [os.path.join(top, name) for top, _, names in os.walk(folder) for name in names if name.endswith(".xplane.pb")]
        with _whole(path) as f:
            if not found:
                raise RuntimeError("JAX's profiler wrote no .xplane.pb")
            with open(found[0], "rb") as written:
                shutil.copyfileobj(written, f)
    finally:
        shutil.rmtree(folder)


@contextmanager
def _cupy(path: str) -> Iterator[None]:
    import cupy

    with open(path, "w") as out:

        class Hook(cupy.cuda.MemoryHook):
            name = "gpumem"
            live: dict[int, int] = {}
            count = 0

            def malloc_postprocess(self, **k: Any) -> None:
                if k["mem_ptr"]:
                    self.count += 1
                    self.live[k["mem_ptr"]] = self.count
                    out.write(f"a {self.count} {k['mem_size']}\n")

            def free_postprocess(self, **k: Any) -> None:
                block = self.live.pop(k["mem_ptr"], None)
                if block is not None:
                    out.write(f"f {block}\n")

        with Hook():
            yield


_RECORDERS = {"gpumem": _gpumem, "torch": _torch, "jax": _jax, "cupy": _cupy}
