"""Programs of PyTorch that are larger than a card of 2 GiB: beyond.py NAME FILE. FILE gets a
letter for each run. Each states its peak, by construction, in beyond_test.go."""
import multiprocessing
import sys

import torch

MIB = 1 << 20


def take(mib):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def large():
    kept = [take(1024) for _ in range(4)]


class Backward(torch.autograd.Function):
    """Takes memory in the way back, in a thread of PyTorch's."""

    @staticmethod
    def forward(context, x, mib):
        context.mib = mib
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        kept = [take(context.mib) for _ in range(4)]
        return gradient, None


def large_in_backward():
    kept = take(2048)
    x = torch.zeros(1, device="cuda", requires_grad=True)
    Backward.apply(x, 1024).sum().backward()


def by_the_card():
    free, total = torch.cuda.mem_get_info()
    properties = torch.cuda.get_device_properties(0).total_memory
    assert total == properties == 2048 * MIB and free == 1792 * MIB, (free, total, properties)
    take(total // MIB // 4)


def finds_a_batch():
    for mib in (4096, 2048, 1024):
        try:
            take(mib)
            break
        except torch.cuda.OutOfMemoryError:
            pass


def finds_a_batch_by_text():
    mib = 4096
    while True:
        try:
            return take(mib)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
            mib //= 2


def finds_a_batch_in_backward():
    for mib in (512, 256):
        x = torch.zeros(1, device="cuda", requires_grad=True)
        try:
            Backward.apply(x, mib).sum().backward()
        except RuntimeError as error:
            print(error)


def gives_up():
    try:
        large()
    except RuntimeError as error:
        print(error)
        return sys.exit(1)


def raises_again():
    try:
        large()
    except RuntimeError as error:
        print(error)
        raise


def in_a_forked_child():
    child = multiprocessing.get_context("fork").Process(target=large)
    child.start()
    child.join()
    assert child.exitcode == 0, child.exitcode


with open(sys.argv[2], "a") as file:
    file.write("x")
globals()[sys.argv[1]]()
