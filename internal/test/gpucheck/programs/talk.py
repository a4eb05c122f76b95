"""The talk of these programs with check: a line of JSON for each answer on standard output, and a
line on standard input to go on. At the end of its input a program ends, so that none outlives check.
"""

import json
import os
import sys


def answer(**fields):
    print(json.dumps(fields), flush=True)


def wait():
    """Returns the next line, without its end."""
    line = sys.stdin.readline()
    if not line:
        os._exit(0)
    return line.strip()


def bits(losses):
    """Returns an array of float32 so that equal texts are equal bits."""
    return [float(x).hex() for x in losses.tolist()]
