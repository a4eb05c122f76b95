"""The command gpumem, which is in the wheel beside this file."""

from __future__ import annotations

import os
import sys


def command() -> str:
    """Returns the path of the command: $GPUMEM_COMMAND, or the wheel's."""
    path = os.environ.get("GPUMEM_COMMAND") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "gpumem")
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"{path}: there is no such program; install the wheel (scripts/wheel OUT, pip install OUT/*.whl), or set GPUMEM_COMMAND")
    return path


def main() -> None:
    """Becomes the command, with the arguments of this program."""
    try:
        path = command()
        os.execv(path, ["gpumem", *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"gpumem: {e}")
