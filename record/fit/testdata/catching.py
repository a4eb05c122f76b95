"""Asks beyond.py, whose path is the argument, whether functions would catch an error: each says so
in its name. Prints what is wrong."""
import contextlib
import importlib.util
import os
import sys
import threading
import unittest

spec = importlib.util.spec_from_file_location("beyond", sys.argv[1])
beyond = importlib.util.module_from_spec(spec)
spec.loader.exec_module(beyond)


class OutOfMemoryError(RuntimeError):
    pass


ERRORS = (ValueError, OutOfMemoryError)
found = []


def ask():
    found.append(beyond.catching(threading.get_ident(), OutOfMemoryError, []))


def log(error):
    print(error)


def catches_by_name():
    try:
        ask()
    except OutOfMemoryError:
        pass


def catches_a_base():
    try:
        ask()
    except (KeyError, RuntimeError) as error:
        log(error)


def catches_all():
    try:
        ask()
    except:
        pass


def catches_by_a_variable():
    try:
        ask()
    except ERRORS:
        pass


def catches_by_a_local_variable():
    errors = OutOfMemoryError
    try:
        ask()
    except errors:
        pass


def catches_by_its_text():
    try:
        ask()
    except RuntimeError as error:
        if "out of memory" in str(error):
            return None
        raise


def catches_in_the_caller():
    for _ in range(1):
        try:
            return [passes_nothing_by() for _ in range(1)]
        except Exception:
            continue


def passes_nothing_by():
    ask()


def catches_behind_another():
    try:
        try:
            ask()
        except OutOfMemoryError as error:
            log(error)
            raise
        finally:
            log
    except RuntimeError:
        pass


def catches_on_one_branch():
    try:
        ask()
    except RuntimeError as error:
        if not error.args:
            raise


def catches_by_a_test():
    with unittest.TestCase().assertRaises(RuntimeError):
        ask()
        raise RuntimeError


def passes_to_the_abort_of_the_program():
    try:
        ask()
    except RuntimeError:
        os.abort()


def catches_by_suppress():
    with contextlib.suppress(ValueError, RuntimeError):
        ask()


def decorated(function):
    return function


@decorated
@decorated
def catches_in_a_decorated():
    try:
        (lambda: ask())()
    except Exception:
        pass


def passes():
    ask()


def passes_another_error():
    try:
        ask()
    except (ValueError, KeyError):
        pass


def passes_it_on():
    try:
        ask()
    except Exception as error:
        log(error)
        raise


def passes_it_on_before_all():
    try:
        ask()
    except OutOfMemoryError:
        raise
    except Exception:
        pass


def passes_it_on_in_both_branches():
    try:
        ask()
    except RuntimeError as error:
        if "memory" in str(error):
            raise MemoryError() from error
        else:
            raise


def passes_to_the_end_of_the_program():
    try:
        ask()
    except Exception as error:
        log(error)
        sys.exit(1)


def passes_behind_the_statement():
    try:
        log
    except Exception:
        pass
    ask()


def passes_in_a_handler():
    try:
        raise ValueError()
    except Exception:
        ask()


def passes_a_function_made_within():
    try:
        def function():
            ask()
    except Exception:
        pass
    function()


def passes_an_unknown_name():
    try:
        ask()
    except missing.Error:
        pass


def passes_finally():
    try:
        ask()
    finally:
        log


for name, function in sorted(globals().copy().items()):
    if not name.startswith(("catches_", "passes")) or name == "passes_nothing_by":
        continue
    del found[:]
    function()
    if len(found) != 1 or (found[0] is not None) != name.startswith("catches"):
        print("%s: %s" % (name, found))

try:
    ask()
except Exception:
    pass
if found[-1] is None or not found[-1].startswith("catching.py:"):
    print("the program itself: %s" % found[-1])

# What a function has is freed when it ends, also where that is while its thread is looked at: a step's gradients lived
# into the next one.
import weakref


class Gradients:
    pass


def step(begun, end, kept):
    gradients = Gradients()
    kept.append(weakref.ref(gradients))
    begun.set()
    end.wait()


begun, end, kept = threading.Event(), threading.Event(), []
thread = threading.Thread(target=step, args=(begun, end, kept))
thread.start()
begun.wait()
caught_in = beyond.caught_in


def ending(*args):
    end.set()
    thread.join()
    return caught_in(*args)


beyond.caught_in = ending
beyond.catching(thread.ident, OutOfMemoryError, [threading.main_thread()])
beyond.caught_in = caught_in
if kept[0]() is not None or thread.is_alive():
    print("a function that has ended keeps what it had")

# A library that is installed within Python's folder is not Python's own.
for path, want in [
    ("contextlib.py", True),
    (os.path.join("site-packages", "accelerate", "memory.py"), False),
    (os.path.join("dist-packages", "accelerate", "memory.py"), False),
]:
    if beyond.in_library(os.path.join(os.path.dirname(contextlib.__file__), path)) != want:
        print("%s is of Python's library: %s" % (path, not want))

# Another thread asks, for which the main thread waits.
import concurrent.futures


def catches_of_another_thread():
    pool = concurrent.futures.ThreadPoolExecutor(1)
    try:
        return pool.submit(ask).result()
    except RuntimeError:
        pass


def passes_of_another_thread():
    concurrent.futures.ThreadPoolExecutor(1).submit(ask).result()


catches_of_another_thread()
passes_of_another_thread()
if found[-2] is None or found[-1] is not None:
    print("another thread: %s" % found[-2:])

# A place is known before the program is answered, which may go on to its end before this thread does. Where a request could not
# wait, the answer was the place that was found before.
import ctypes


class Driver:
    def __init__(self, number):
        self.numbers = [number, 0][number == 0:]
        self.gpumemSimBeyond, self.gpumemSimRefuse = Function(lambda *_: self.numbers.pop(0)), Function(self.refuse)

    def refuse(self, number, refuses):
        known = beyond.refused_at if number else beyond.found_before
        if refuses and not known or number and not refuses:
            print("request %d: refused %s, known %s" % (number, refuses, known))


os.environ.update(GPUMEM_SIM_BEYOND="1", GPUMEM_SIM_FOLDER="")
library = ctypes.CDLL


class Function:
    def __init__(self, call):
        self.call = call

    def __call__(self, *args):
        return self.call(*args)


def waits(number):
    ctypes.CDLL = lambda *_: Driver(number)
    wait = beyond.waiting(OutOfMemoryError, [])
    try:
        wait(0)
    except OutOfMemoryError:
        pass
    finally:
        ctypes.CDLL = library


waits(0)
if beyond.refused_at or beyond.refusals(0) or beyond.refused_at:
    print("nothing was refused: %s" % beyond.refused_at)
if beyond.refusals(2) != 2 or len(beyond.refused_at) != 1:
    print("a request that could not wait: %s" % beyond.refused_at)
del beyond.refused_at[:], beyond.found_before[:]
if beyond.refusals(2):
    print("a refusal that nothing catches")
waits(1)
if len(beyond.refused_at) != 1 or beyond.refusals(3) != 3:
    print("a request that waits: %s" % beyond.refused_at)
