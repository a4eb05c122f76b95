# The first module that Python imports at its start in a run on a simulated GPU. The user's own
# sitecustomize runs after it, as without it.
import os
import sys

_here = os.path.dirname(__file__)
sys.path.insert(0, _here)
import gpumem_simulate

sys.path[:] = [folder for folder in sys.path if folder != _here]
gpumem_simulate.install()
sys.modules.pop("sitecustomize", None)
# An error of the user's own, and that there is none, are for Python to handle.
import sitecustomize
