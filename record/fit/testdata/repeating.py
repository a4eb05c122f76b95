"""Asks repeats.py, whose path is the argument, when memory repeats: a list of looks, each of the time,
the peak, the allocations and the refusals, and at which of them it does. Prints what is wrong."""
import importlib.util
import sys

spec = importlib.util.spec_from_file_location("repeats", sys.argv[1])
repeats = importlib.util.module_from_spec(spec)
spec.loader.exec_module(repeats)

for name, looks, want in [
    ("nothing", [(0, 0, 0, 0), (9, 0, 99, 0)], []),
    ("too young", [(0, 1, 10, 0), (2, 1, 99, 0)], []),
    ("old enough", [(0, 1, 10, 0), (2.1, 1, 99, 0)], [1]),
    ("too few allocations", [(0, 1, 10, 0), (9, 1, 39, 0)], []),
    ("three times as many", [(0, 1, 10, 0), (9, 1, 40, 0)], [1]),
    ("a higher peak", [(0, 1, 10, 0), (9, 2, 40, 0), (12, 2, 159, 0), (12, 2, 160, 0)], [3]),
    ("a lower one", [(0, 2, 10, 0), (1, 1, 20, 0), (9, 1, 40, 0)], [2]),
    ("refused again", [(0, 2, 10, 1), (9, 2, 40, 2), (10, 2, 99, 2), (12, 2, 159, 2), (12, 2, 160, 2)], [4]),
    ("as high as before it was refused", [(0, 2, 10, 0), (1, 1, 20, 1), (9, 2, 80, 1)], [2]),
    ("refused for ever", [(0, 2, 10, 99), (9, 2, 40, 100), (18, 2, 160, 101), (27, 2, 170, 102)], [2, 3]),
    ("refused before the first peak", [(0, 0, 0, 1), (9, 0, 9, 1), (10, 1, 10, 1), (13, 1, 40, 1)], [3]),
]:
    seen = repeats.Watch(2)
    found = [i for i, (now, peak, allocations, refused) in enumerate(looks)
             if not seen.is_new(now, peak, allocations, refused) and seen.repeats(now, allocations)]
    if found != want:
        print("%s: repeats at %s, want %s" % (name, found, want))
