# The first module that Python imports at its start, where this folder is on
# PYTHONPATH: it sets up the caps of gpumem_hook.py and then gets out of the way.
# Nothing of it stays: the folder leaves sys.path, and the user's own sitecustomize
# runs, or is found to be missing, as without it.
import os
import sys

try:
    import gpumem_hook

    gpumem_hook.install()
except Exception as error:
    try:
        sys.stderr.write("gpumem: the limits of the lease are not set in Python: %r\n" % (error,))
    except Exception:
        pass

_here = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != _here]
sys.modules.pop("sitecustomize", None)
# An error of the user's own, and that there is none, are for Python to handle.
import sitecustomize
