"""Imports a module, and ends with status 3 where there is none.

    python imports.py MODULE
"""

import importlib
import importlib.util
import sys

if importlib.util.find_spec(sys.argv[1]) is None:
    sys.exit(3)
importlib.import_module(sys.argv[1])
