"""A Python program whose GPU memory comes from the library: processes of all kinds,
signals, faulthandler, threads. It prints what is wrong, and nothing if all is well."""

import ctypes
import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

cuda = ctypes.CDLL("libcuda.so.1")


def check(ok, what):
    if not ok:
        print("wrong:", what, flush=True)


def use(n=20):
    """Takes and frees memory in this process; returns the first error."""
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) or cuda.cuCtxSetCurrent(context)
    for i in range(n):
        code = code or cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t((i + 1) << 16)) or cuda.cuMemFree_v2(address)
    return code


def square(x):  # needs no GPU: a worker that loads data
    return x * x


def pool(method):
    with multiprocessing.get_context(method).Pool(4) as p:
        check(p.map(square, range(100)) == [x * x for x in range(100)], method + " pool")


def main():
    pool("fork")  # before the GPU is used
    check(use() == 0, "memory in the first process")
    pool("fork")  # the children may not use the GPU, and need not
    pool("spawn")
    with multiprocessing.get_context("spawn").Pool(2) as p:
        check(p.map(use, [5, 5]) == [0, 0], "memory in spawned processes")
    out = subprocess.run([sys.executable, "-c", "print(6*7)"], capture_output=True, text=True)
    check((out.returncode, out.stdout, out.stderr) == (0, "42\n", ""), f"subprocess: {out}")

    # A child that was forked while the GPU was in use: an error or memory, but no hang.
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        use()
        os._exit(0)
    check(os.waitpid(pid, 0)[1] == 0, "a forked child")

    # Signals reach their handlers, in the main thread, while other threads allocate.
    got, stop = [], threading.Event()

    def busy():
        while not stop.is_set():
            use(5)

    workers = [threading.Thread(target=busy) for _ in range(4)]
    for w in workers:
        w.start()
    signals = [signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD, signal.SIGHUP, signal.SIGTERM, signal.SIGPROF, signal.SIGURG]
    for s in signals:
        signal.signal(s, lambda number, frame: got.append((number, threading.current_thread() is threading.main_thread())))
        os.kill(os.getpid(), s)
        end = time.monotonic() + 20
        while (s, True) not in got and time.monotonic() < end:
            signal.sigtimedwait([], 0.01)
    # The C library sends a signal to each thread for these, and waits for all.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(30)
    os.setgid(os.getgid())
    os.setuid(os.getuid())
    os.setresgid(-1, os.getegid(), -1)
    os.seteuid(os.geteuid())
    if os.geteuid() == 0:
        os.setgroups(os.getgroups())
        os.initgroups("root", os.getgid())
    signal.alarm(0)
    stop.set()
    for w in workers:
        w.join()
    check(sorted({n for n, _ in got}) == sorted(signals) and all(main for _, main in got), f"signals {got}")
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
        check(False, "KeyboardInterrupt")
    except KeyboardInterrupt:
        pass

    # 64 threads.
    codes = []
    threads = [threading.Thread(target=lambda: codes.append(use())) for _ in range(64)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    check(codes == [0] * 64, f"64 threads: {codes}")

    # faulthandler: its dump, and its report of a fault in a child.
    with tempfile.TemporaryFile("w+") as f:
        faulthandler.enable(f)
        faulthandler.dump_traceback(f)
        f.seek(0)
        check("in main" in f.read(), "faulthandler.dump_traceback")
        faulthandler.disable()
    crash = "import ctypes, faulthandler; faulthandler.enable(); c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); a = ctypes.c_void_p(); c.cuDevicePrimaryCtxRetain(ctypes.byref(a), 0); c.cuCtxSetCurrent(a); c.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(9)); ctypes.string_at(8)"
    out = subprocess.run([sys.executable, "-c", crash], capture_output=True, text=True, timeout=60)
    check(out.returncode == -signal.SIGSEGV and "Segmentation fault" in out.stderr and "goroutine" not in out.stderr, f"faulthandler: {out}")
    # A refusal's line on a standard error without a reader does not end a program that
    # ignores SIGPIPE, as Python does.
    end, start = os.pipe()
    os.close(end)
    refused = "import ctypes; c = ctypes.CDLL('libcuda.so.1'); c.cuInit(0); a = ctypes.c_void_p(); c.cuDevicePrimaryCtxRetain(ctypes.byref(a), 0); c.cuCtxSetCurrent(a); print(c.cuMemAlloc_v2(ctypes.byref(a), ctypes.c_size_t(1 << 30)), flush=True)"
    out = subprocess.run([sys.executable, "-c", refused], stdout=subprocess.PIPE, stderr=start, text=True, timeout=60)
    check((out.returncode, out.stdout) == (0, "2\n"), f"a refusal without a reader: {out}")
    check(use() == 0, "memory at the end")


if __name__ == "__main__":
    main()
