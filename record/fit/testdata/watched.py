"""Asks sizes.py, whose path is the argument, of which releases of PyTorch it counts the calls. Prints
what is wrong."""
import importlib.util
import sys
from types import SimpleNamespace


def fresh():
    spec = importlib.util.spec_from_file_location("sizes", sys.argv[1])
    sizes = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sizes)
    sizes.count_calls = lambda torch: None
    return sizes


class Library:
    def __init__(self, *_):
        pass

    def impl(self, name, function, key="", *, with_keyset=False):
        pass


class Older(Library):
    def impl(self, name, function, key=""):
        pass


for name, torch, want in [
    ("a library", SimpleNamespace(library=SimpleNamespace(Library=Library)), True),
    ("one without keys", SimpleNamespace(library=SimpleNamespace(Library=Older)), False),
    ("none", SimpleNamespace(), False),
]:
    sizes = fresh()
    sizes.watch(torch)
    if sizes.watched != want or (sizes.found() is None) == want:
        print("%s: counted %s, found %s" % (name, sizes.watched, sizes.found()))

sizes = fresh()
for name, args, named, want in [
    ("bincount", (None,), {}, False),
    ("bincount", (None, 0), {}, False),
    ("bincount", (None, 8), {}, True),
    ("bincount", (None,), {"minlength": 8}, True),
    ("repeat_interleave", (), {}, False),
    ("repeat_interleave", (), {"output_size": None}, False),
    ("repeat_interleave", (), {"output_size": 8}, True),
    ("unique", (True, 8), {}, False),
]:
    if sizes.is_given(name, args, named) != want:
        print("%s with %s and %s is given: %s" % (name, args, named, not want))

for value, want in [(0, 7), ([], []), ([0, 0], [7, 7]), ([[0], [0, 0]], [[7], [7, 7]])]:
    if sizes.filled(value, 7) != want or sizes.zero(value) is not True:
        print("%s filled: %s" % (value, sizes.filled(value, 7)))
if sizes.zero([[0], [0, 3]]) or sizes.zero(3):
    print("3 is zero")
