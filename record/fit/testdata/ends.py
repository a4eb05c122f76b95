"""Processes that take 1 GiB each through the driver and end hard: ends.py PROGRAM HOW.

HOW is how a process ends: exit, _exit (without the functions of atexit), kill (SIGKILL), crash (SIGSEGV).
"""
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys


def take():
    driver = ctypes.CDLL("libcuda.so.1")
    context, at = ctypes.c_void_p(), ctypes.c_uint64()
    assert driver.cuInit(0) == 0
    code = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if code or driver.cuCtxSetCurrent(context) or driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(1 << 30)):
        sys.exit("out of memory")


def leave(how):
    if how == "_exit":
        ctypes.CDLL(None)._exit(0)
    if how != "exit":
        ctypes.CDLL(None).kill(os.getpid(), {"kill": signal.SIGKILL, "crash": signal.SIGSEGV}[how])


def worker(how):
    take()
    leave(how)


def held(ready, done):
    take()
    ready.set()
    done.wait()


def holder():
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=held, args=(ready, done), daemon=True)
    process.start()
    ready.wait()
    return process, done


def one(how):
    worker(how)


def subprocesses(how):
    for _ in range(3):
        subprocess.run([sys.executable, __file__, "one", how])


def spawned(how):
    for _ in range(2):
        p = multiprocessing.get_context("spawn").Process(target=worker, args=(how,))
        p.start()
        p.join()


def then_parent(_):
    """The parent takes memory as soon as its worker is gone."""
    process, _ = holder()
    ctypes.CDLL(None).kill(process.pid, signal.SIGKILL)
    process.join()
    take()


def parent_before(_):
    """The parent takes memory while its worker, which is killed, has its own."""
    process, _ = holder()
    take()
    ctypes.CDLL(None).kill(process.pid, signal.SIGKILL)
    process.join()


def ignored(_):
    """The parent does not mind that a second process fails."""
    process, done = holder()
    subprocess.run([sys.executable, __file__, "one", "exit"])
    done.set()
    process.join()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
