# The first module that Python imports at its start, where this folder is on
# PYTHONPATH. It waits for the import of a framework and sets up gpumem_hook.py
# then. Nothing else of it is seen: the folder leaves sys.path, and the user's own
# sitecustomize runs, or is found to be missing, as without it.
#
# Every Python start pays for this file, also where no bytecode can be written. So
# it is short, and imports only what Python has loaded by now or has built in.
import os
import sys


class Finder(object):
    def find_spec(self, name, path=None, target=None):
        if name not in ("tensorflow", "torch", "jax", "jax._src.xla_bridge", "jax._src.lib.xla_bridge"):
            return None
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        hook = _hook()
        finder = hook and hook.install()
        return finder and finder.find_spec(name, path, target)


def _hook():
    sys.path.insert(0, _here)
    try:
        import gpumem_hook
        import gpumem_record

        if os.environ.get("GPUMEM_REMAT"):
            import gpumem_remat

        return gpumem_hook
    except Exception as error:
        sys.stderr.write("gpumem: the limits of the lease are not set in Python: %r\n" % (error,))
    finally:
        sys.path.remove(_here)


def _end():
    # What ended the program, if Python has printed it.
    error = getattr(sys, "last_value", None)
    hook = error is not None and _hook()
    if hook:
        hook.end(error)


_here = os.path.dirname(__file__)
sys.path[:] = [folder for folder in sys.path if folder != _here]
if sys.version_info >= (3, 4):
    sys.meta_path.insert(0, Finder())
    if os.environ.get("GPUMEM_LEASE_ID"):
        import atexit

        atexit.register(_end)
sys.modules.pop("sitecustomize", None)
# An error of the user's own, and that there is none, are for Python to handle.
import sitecustomize
