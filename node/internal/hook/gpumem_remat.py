# Plans for less memory inside of JAX: each module that XLA has scheduled goes to the command
# gpumem remat, and what comes back is compiled. gpumem.jax.remat in the wheel is this file,
# too, and gpumem run --remat loads it by gpumem_hook.py, which reads
#
#   GPUMEM_REMAT    the limit, as install() takes it
#   GPUMEM_COMMAND  the command
#
# A module for which anything goes wrong is compiled as it was, and a line says why. Plans
# depend on the module and the limit alone, so that every process of a sharded program has the
# same; only one that takes too long to make may be missing in some. Collectives keep their order
# in any plan, so that processes with different plans still meet.
import _thread
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import tempfile
import threading
from fractions import Fraction

SECONDS = 60  # for one module
SMALL = 4096  # bytes of a module that has nothing to plan: a value needs 400 and more
SLIGHT = 1 << 20  # bytes of temporaries that are not worth a plan
KEPT = 200  # modules in the cache

NAME = "gpumem_remat"  # of the pass

# JAX has had jax.extend.xla.register_hlo_module_transformation since this release.
SINCE = "0.10.2"


def say(text):
    try:
        sys.stderr.write("gpumem: %s\n" % " ".join(str(text).split()))
    except Exception:
        pass


def check(limit):
    """Returns a limit as the command takes it; ValueError if it is none."""
    text = str(limit).strip()
    found = re.match(r"^(\d+\.?\d*|\.\d+)\s*(%|([KMGTPE]?)(i?B?))$", text, re.I | re.A)
    if text == "auto" and isinstance(limit, str):
        return text
    if found and not isinstance(limit, (float, bool)):
        number, unit = Fraction(found.group(1)), found.group(2)
        if unit == "%":
            if 0 < number <= 100:
                return re.sub(r"\.0$", "", repr(float(number))) + "%"
        elif unit.upper() not in ("I", "IB"):
            n = int(number * 1024 ** " KMGTPE".index(found.group(3).upper() or " "))
            if 0 < n < 1 << 64 and (unit or n >= 1024):
                return "%dB" % n
    raise ValueError("limit=%r: want bytes such as '12GiB', '60%%' of what each function takes, or 'auto'" % (limit,))


def install(limit, command, seconds=SECONDS, say=say):
    """Has JAX compile with plans from now on. Where JAX has not begun to use its devices it
    waits until it does: a transformation can be registered only then."""
    limit = check(limit)
    if isinstance(seconds, (str, bool)) or not 0 < seconds < float("inf"):
        raise ValueError("seconds=%r: want seconds above 0" % (seconds,))
    xla, xla_bridge = _jax()

    state = _state(xla)
    state["transform"] = lambda module: _transform(module, limit, command, seconds, say)
    _key(limit, command)

    def register():
        # Once for the process: another thread may be inside of it, and XLA may not replace it then.
        if not state.get("registered"):
            state["registered"] = True
            xla.register_hlo_module_transformation(
                lambda module: state["transform"](module), name=NAME, stage=xla.PipelineStage.POST_SCHEDULER
            )

    if xla_bridge.backends_are_initialized():
        register()
        return
    _forget(xla_bridge)
    inner = xla_bridge.backends

    def backends():
        found = inner()
        if _forget(xla_bridge):
            try:
                register()
            except Exception as error:
                say("functions are compiled as they are: %s" % _words(error))
        return found

    backends.inner = inner
    xla_bridge.backends = backends


def remove():
    """Has JAX compile as it does by itself from now on."""
    xla, xla_bridge = _jax()
    _forget(xla_bridge)
    _state(xla)["transform"] = lambda module: None
    _key("", "")


def _state(xla):
    """Returns what is known of the transformation, one for all copies of this file."""
    return xla.__dict__.setdefault("_gpumem_remat", {})


def _jax():
    """Returns the modules of JAX that take transformations; RuntimeError if it has none."""
    import jax

    try:
        from jax._src import xla_bridge
        from jax.extend import xla

        return xla, xla_bridge
    except ImportError:
        raise RuntimeError(
            "JAX %s cannot change what XLA compiles: %s and later can (jax.extend.xla)" % (jax.__version__, SINCE)
        ) from None


def _forget(xla_bridge):
    """Takes back that install() waits for the backends; reports whether it did."""
    inner = getattr(xla_bridge.backends, "inner", None)
    if inner:
        xla_bridge.backends = inner
    return bool(inner)


def _words(error):
    """Returns an error as people say it."""
    if isinstance(error, subprocess.TimeoutExpired):
        return "planning took more than %g s; seconds= of gpumem.jax.remat sets it" % error.timeout
    text = str(error)
    if not isinstance(error, (OSError, RuntimeError)):
        text = "%s: %s" % (type(error).__name__, text)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) < 400 else text[:300] + " ..."


def _key(limit, command):
    # JAX keeps compiled functions on the disk if it is asked to: a plan is part of their key,
    # with the bytes that "auto" stands for at the time. A function whose plan failed is not
    # kept, as it would come back without one.
    try:
        from jax._src import cache_key, compilation_cache

        inner = getattr(cache_key.custom_hook, "inner", cache_key.custom_hook)

        def hook():
            if not limit:
                return inner()
            try:
                flags = _limit_flags(limit)
            except Exception as error:  # the function will be compiled as it is, and a line says why
                flags = error
            return inner() + " gpumem remat %s %s" % (flags, _version(command))

        put = compilation_cache.put_executable_and_time
        put = getattr(put, "inner", put)

        def keep(*a, **k):
            if threading.get_ident() in failed:
                failed.discard(threading.get_ident())
            else:
                put(*a, **k)

        hook.inner, keep.inner = inner, put
        cache_key.custom_hook = hook
        compilation_cache.put_executable_and_time = keep if limit else put
    except (ImportError, AttributeError):
        pass


def _version(command):
    try:
        found = os.stat(command)
        return "%d %d" % (found.st_size, found.st_mtime_ns)
    except OSError:
        return ""


failed = set()  # threads whose last function was compiled as it was by an error
said_no_limit = []  # that auto has no limit to go by


def _limit_flags(limit, say=None):
    """Returns the flags that say what a module may take; None if nothing does, which say says
    once."""
    if limit != "auto":
        return ["--limit", limit]
    import jax

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    totals = [s["bytes_limit"] for s in stats if s.get("bytes_limit")]
    if not totals:
        if say and not said_no_limit:
            said_no_limit.append(True)
            say("auto: JAX reports no limit of its devices' memory, so functions are compiled as they are; give bytes or a part such as 60%")
        return None
    # In several processes more may be alive in one than in another.
    used = max(s.get("bytes_in_use", 0) for s in stats) if jax.process_count() == 1 else 0
    return ["--total", str(min(totals)), "--in-use", str(used)]


def _transform(module, limit, command, seconds, say):
    """Returns what is compiled in place of a module; None for the module as it is."""
    failed.discard(threading.get_ident())
    if len(module) < SMALL:
        return None
    name = _name(module)
    try:
        flags = _limit_flags(limit, say)
        if flags is None:
            return None
        answer, planned = _plan(module, flags, command, seconds)
        # A heap of nothing is left out.
        before, after, most = (answer.get(key + "_bytes", 0) for key in ("heap_before", "heap_after", "limit"))
        if before <= max(most, SLIGHT):
            return None
        if planned is None or before - after < before // 100:
            say("%s: %s of temporaries, limit %s: nothing found that takes less" % (name, size(before), size(most)))
            return None
        missed = "" if answer["met"] else " (limit %s)" % size(most)
        extra = answer["extra_compute_percent"]
        cost = "%.1f %% %s compute" % (abs(extra), "less" if extra <= -0.05 else "more")
        say("%s: %s of temporaries instead of %s%s, for %s" % (name, size(after), size(before), missed, cost))
        return planned
    except KeyboardInterrupt:
        # XLA would make an error of its own of it. Raised again when XLA has returned.
        failed.add(threading.get_ident())
        again = threading.Timer(0.02, _thread.interrupt_main)
        again.daemon = True
        again.start()
        return None
    except Exception as error:
        failed.add(threading.get_ident())
        say("%s: compiled as it is: %s" % (name, _words(error)))
        return None


def _plan(module, flags, command, seconds):
    """Returns the command's answer, and the planned module; None if that is no better."""
    arguments = ["remat", "-", "--algorithm", "gap", "--packed", "--time", "0s", "--json", "--advice=false"] + flags
    # The number that a module has in its process is not part of what is kept.
    plain, number = _number(module)
    cache = _cache()
    key = hashlib.sha256(repr((arguments, _version(command))).encode() + plain).hexdigest()
    kept = cache and os.path.join(cache, key)
    try:
        entry = json.loads(_content(kept + ".json").decode())
        planned = _content(kept + ".pb")
        if entry["key"] == key and entry["planned"] == hashlib.sha256(planned).hexdigest():
            return entry["answer"], planned and planned + number or None
    except (OSError, TypeError, ValueError, KeyError):
        pass  # none is kept, or it is damaged
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "module.pb")
        done = _run([command] + arguments + ["--out", out], module, seconds)
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr.decode("utf-8", "replace").strip() or "the command ended with status %d" % done.returncode)
        answer = json.loads(done.stdout.decode())
        with open(out, "rb") as file:
            planned, _ = _number(file.read())
    if not planned or _name(planned) != _name(module):
        raise RuntimeError("the command returned another module")
    if answer.get("heap_after_bytes", 0) >= answer.get("heap_before_bytes", 0):
        planned = b""
    if kept:
        entry = {"key": key, "answer": answer, "planned": hashlib.sha256(planned).hexdigest()}
        try:
            _prune(cache)
            _keep(cache, kept + ".pb", planned)
            _keep(cache, kept + ".json", json.dumps(entry).encode())
        except OSError:
            pass  # a full disk is no reason to fail
    return answer, planned and planned + number or None


def _run(arguments, module, seconds):
    """Runs the command, which ends when this process does: a pipe that only this one holds open
    tells it."""
    pipe, options = (), {}
    if os.name == "posix":
        pipe = os.pipe()
        options = {"pass_fds": pipe[:1], "env": dict(os.environ, GPUMEM_ALIVE_FD=str(pipe[0]))}
    try:
        return subprocess.run(arguments, input=module, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds, **options)
    finally:
        for end in pipe:
            os.close(end)


def _number(module):
    """Returns a module without its field id (5 of HloModuleProto), and that field. JAX counts
    the modules of a process in it, so that the same function has another one each time. What is
    no such message is returned as it is."""
    rest, number, at = [], b"", 0
    try:
        while at < len(module):
            start = at
            key, at = _varint(module, at)
            if key & 7 == 0:
                _, at = _varint(module, at)
            elif key & 7 == 2:
                length, at = _varint(module, at)
                at += length
            else:
                at += {1: 8, 5: 4}[key & 7]
            if at > len(module):
                return module, b""
            if key == 5 << 3:
                number = module[start:at]
            else:
                rest.append(module[start:at])
    except (IndexError, KeyError):
        return module, b""
    return b"".join(rest), number


def _varint(data, at):
    n = shift = 0
    while True:
        byte = data[at]
        n |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return n, at


def _cache():
    """Returns the folder of the cache, which only this user can write to; None if there is none."""
    folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "gpumem", "remat")
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        found = os.lstat(folder)
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        return folder
    except OSError:
        return None


def _content(path):
    """Returns what is in a file, OSError if it is none: to open a FIFO would wait."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("no file: " + path)
        return file.read()


def _keep(folder, path, content):
    """Writes a file at once, or leaves nothing."""
    handle, part = tempfile.mkstemp(dir=folder)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(part, path)
    except OSError:
        os.unlink(part)
        raise


def _prune(folder):
    """Makes room for an entry."""
    entries = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
    entries = sorted((entry.stat().st_mtime, entry.path) for entry in entries)
    for _, path in entries[: -2 * (KEPT - 1)]:
        os.unlink(path)


def _name(module):
    """Returns the module's name, the first field of the message."""
    if module[:1] == b"\n" and len(module) > 1 and module[1] < 128:
        return module[2 : 2 + module[1]].decode("utf-8", "replace")
    return "a function"


def size(n):
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":
            return ("%.2f" % n).rstrip("0").rstrip(".") + " " + unit
        n /= 1024.0
