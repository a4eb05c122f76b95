# Plans for less memory inside of JAX: each module that XLA has scheduled goes to the command
# gpumem remat, and what comes back is compiled. gpumem.jax.remat in the wheel is this file,
# too, and gpumem run --remat loads it by gpumem_hook.py, which reads
#
#   GPUMEM_REMAT    the limit, as install() takes it
#   GPUMEM_COMMAND  the command
#
# A module for which anything goes wrong is compiled as it was, and a line says why. Plans
# depend on the module and the limit alone, so that every process of a sharded program has the
# same.
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile

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
    if isinstance(limit, bool) or isinstance(limit, float):
        raise ValueError("limit=%r: want bytes, '60%%' of what each function takes, or 'auto'" % (limit,))
    text = str(limit).strip()
    if text == "auto" or re.match(r"^\d+(\.\d+)?\s*(%|[KMGT]i?B?|B)?$", text) and not re.match(r"^0+(\.0*)?\D*$", text):
        return text
    raise ValueError("limit=%r: want bytes such as '12GiB', '60%%' of what each function takes, or 'auto'" % (limit,))


def install(limit, command, seconds=SECONDS, say=say):
    """Has JAX compile with plans from now on: as soon as its backends are there, which this
    does not make."""
    limit = check(limit)
    import jax

    try:
        from jax._src import xla_bridge
        from jax.extend import xla
    except ImportError:
        raise RuntimeError(
            "JAX %s cannot change what XLA compiles: %s and later can (jax.extend.xla)" % (jax.__version__, SINCE)
        ) from None

    def transform(module):
        return _transform(module, limit, command, seconds, say)

    def register():
        try:
            xla.clear_hlo_module_transformation(NAME, xla.PipelineStage.POST_SCHEDULER)
        except Exception:
            pass
        xla.register_hlo_module_transformation(transform, name=NAME, stage=xla.PipelineStage.POST_SCHEDULER)

    _key(limit, command)
    if xla_bridge.backends_are_initialized():
        register()
        return
    inner = xla_bridge.backends

    def backends():
        found = inner()
        if xla_bridge.backends is backends:
            xla_bridge.backends = inner
            try:
                register()
            except Exception as error:
                say("functions are compiled as they are: %s: %s" % (type(error).__name__, error))
        return found

    xla_bridge.backends = backends


def remove():
    """Has JAX compile as it does by itself from now on."""
    from jax.extend import xla

    xla.clear_hlo_module_transformation(NAME, xla.PipelineStage.POST_SCHEDULER)
    _key("", "")


def _key(limit, command):
    # JAX keeps compiled functions on the disk if it is asked to: a plan is part of their key.
    try:
        from jax._src import cache_key

        inner = getattr(cache_key.custom_hook, "inner", cache_key.custom_hook)

        def hook():
            return inner() + (" gpumem remat %s %s" % (limit, _version(command)) if limit else "")

        hook.inner = inner
        cache_key.custom_hook = hook
    except (ImportError, AttributeError):
        pass


def _version(command):
    try:
        found = os.stat(command)
        return "%d %d" % (found.st_size, found.st_mtime_ns)
    except OSError:
        return ""


unlimited = []  # that auto has no limit to go by was said


def _room(limit, say):
    """Returns the flags that say what a module may take; None if nothing does."""
    if limit != "auto":
        return ["--limit", limit]
    import jax

    stats = [device.memory_stats() or {} for device in jax.local_devices()]
    totals = [s["bytes_limit"] for s in stats if s.get("bytes_limit")]
    if not totals:
        if not unlimited:
            unlimited.append(True)
            say("auto: JAX reports no limit of its devices' memory, so functions are compiled as they are; give bytes or a part such as 60%")
        return None
    # In several processes more may be alive in one than in another.
    used = max(s.get("bytes_in_use", 0) for s in stats) if jax.process_count() == 1 else 0
    return ["--total", str(min(totals)), "--in-use", str(used)]


def _transform(module, limit, command, seconds, say):
    """Returns what is compiled in place of a module; None for the module as it is."""
    if len(module) < SMALL:
        return None
    name = _name(module)
    try:
        room = _room(limit, say)
        if room is None:
            return None
        answer, planned = _plan(module, room, command, seconds)
        before, after, most = (answer[key + "_bytes"] for key in ("heap_before", "heap_after", "limit"))
        if before <= max(most, SLIGHT):
            return None
        if planned is None:
            say("%s: %s of temporaries, limit %s: nothing found that takes less" % (name, size(before), size(most)))
            return None
        missed = "" if answer["met"] else " (limit %s)" % size(most)
        say("%s: %s of temporaries instead of %s%s, for %.1f %% more compute" % (name, size(after), size(before), missed, answer["extra_compute_percent"]))
        return planned
    except Exception as error:
        say("%s: compiled as it is: %s: %s" % (name, type(error).__name__, error))
        return None


def _plan(module, room, command, seconds):
    """Returns the command's answer, and the planned module; None if that is no better."""
    arguments = ["remat", "-", "--algorithm", "gap", "--packed", "--time", "0s", "--json"] + room
    key = hashlib.sha256(repr((arguments, _version(command))).encode() + module).hexdigest()
    cache = _cache()
    kept = cache and os.path.join(cache, key)
    try:
        with open(kept + ".json", "rb") as file:
            answer = json.loads(file.read().decode())
        with open(kept + ".pb", "rb") as file:
            return answer, file.read() or None
    except (OSError, TypeError, ValueError):
        pass
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "module.pb")
        done = subprocess.run(
            [command] + arguments + ["--out", out], input=module, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds
        )
        if done.returncode not in (0, 1):
            raise RuntimeError(done.stderr.decode("utf-8", "replace").strip() or "the command ended with status %d" % done.returncode)
        answer = json.loads(done.stdout.decode())
        with open(out, "rb") as file:
            planned = file.read()
    if answer["heap_after_bytes"] >= answer["heap_before_bytes"]:
        planned = b""
    if kept:
        try:
            for end, content in ((".pb", planned), (".json", json.dumps(answer).encode())):
                with open("%s.%d" % (kept, os.getpid()), "wb") as file:
                    file.write(content)
                os.replace("%s.%d" % (kept, os.getpid()), kept + end)
            _prune(cache)
        except OSError:
            pass  # a full disk is no reason to fail
    return answer, planned or None


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


def _prune(folder):
    entries = sorted((entry.stat().st_mtime, entry.path) for entry in os.scandir(folder))
    for _, path in entries[: -2 * KEPT]:
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
