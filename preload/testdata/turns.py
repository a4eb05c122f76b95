"""A program of a framework that fills a part of the GPU with patterns, works, and checks them.

    python turns.py torch|jax|tensorflow --mib 1400 --kernels 1000 --steps 10 --seed 1 [--together FOLDER]
    python turns.py torch|jax|tensorflow --mib 1600 --notebook FOLDER

On the simulated GPU kernels do nothing: in memory is what copies wrote, and nothing else. Each word
of a block says whose it is, which block, which version, and where it lies, so that a page that is
lost, an older one, or another's shows. A step launches kernels, checks a block, and writes it anew,
every third time from another block on the GPU. At the end all are checked.

With --unchecked nothing is read and compared, for a GPU without contents.

With --together FOLDER it says that its framework is there (FOLDER/ready), and begins when it is told
(FOLDER/go), so that programs meet however long their imports take.

A notebook fills its memory, says so (it writes to FOLDER/filled), does nothing until it is told
(FOLDER/cell), and checks all. All of these are named pipes.

The last line is JSON with what the GPU was given to do. Exit status 1: a block was not right.
"""

import argparse
import json
import os
import sys

import numpy as np

BLOCK = 32 << 20


PLACES = np.arange(BLOCK // 8)
WORDS = np.empty_like(PLACES)


def pattern(seed, block, version):
    """Returns what lies in a block: words that are nowhere else. They hold until the next call."""
    return np.bitwise_or(PLACES, seed << 56 | block << 40 | version << 24, out=WORDS)


class Torch:
    def __init__(self):
        import torch

        self.torch = torch
        self.small = torch.zeros(1 << 10, device="cuda")

    def put(self, words, old):
        there = self.torch.empty(words.size, dtype=self.torch.int64, device="cuda") if old is None else old
        return there.copy_(self.torch.from_numpy(words))

    def get(self, block):
        return block.cpu().numpy()

    def copy(self, block, old):
        return old.copy_(block)

    def work(self, kernels):
        for _ in range(kernels):
            self.small.add_(1)
        self.torch.cuda.synchronize()


class JAX:
    def __init__(self):
        import jax

        self.jax = jax
        jax.config.update("jax_enable_x64", True)
        gpu = jax.devices()[0]
        assert gpu.platform == "gpu", gpu
        self.small = jax.device_put(np.zeros(1 << 10, np.float32))
        self.add = jax.jit(lambda x: x + 1, donate_argnums=0)
        self.clone = jax.jit(lambda x: x.copy())

    def put(self, words, old):
        if old is not None:
            old.delete()
        return self.jax.device_put(words).block_until_ready()

    def get(self, block):
        # An array keeps what was read of it, another on the same buffer does not know it.
        buffers = [s.data for s in block.addressable_shards]
        return np.asarray(self.jax.make_array_from_single_device_arrays(block.shape, block.sharding, buffers))

    def copy(self, block, old):
        old.delete()
        return self.clone(block).block_until_ready()

    def work(self, kernels):
        for _ in range(kernels):
            self.small = self.add(self.small)
        self.small.block_until_ready()


class TensorFlow:
    def __init__(self):
        import tensorflow

        self.tf = tensorflow
        assert self.tf.config.list_physical_devices("GPU"), "TensorFlow sees no GPU"
        with self.tf.device("/GPU:0"):
            self.small = self.tf.Variable(self.tf.zeros(1 << 10))

    def put(self, words, old):
        with self.tf.device("/GPU:0"):
            if old is None:
                return self.tf.Variable(words)
            old.assign(words)
            return old

    def get(self, block):
        return block.numpy()

    def copy(self, block, old):
        with self.tf.device("/GPU:0"):
            old.assign(block)
            return old

    def work(self, kernels):
        for _ in range(kernels):
            self.small.assign_add(self.small)
        self.tf.test.experimental.sync_devices()


FRAMEWORKS = {"torch": Torch, "jax": JAX, "tensorflow": TensorFlow}


class Blocks:
    """The blocks on the GPU, and what is to lie in each."""

    def __init__(self, framework, seed, n, unchecked):
        self.framework, self.seed, self.unchecked = framework, seed, unchecked
        self.of = [(i, 0) for i in range(n)]  # whose pattern lies there
        self.there = [framework.put(pattern(seed, i, 0), None) for i in range(n)]
        self.wrong = self.checked = self.copied = 0

    def write(self, i, version):
        self.of[i] = (i, version)
        self.there[i] = self.framework.put(pattern(self.seed, i, version), self.there[i])

    def copy(self, i, j):
        self.of[i] = self.of[j]
        self.there[i] = self.framework.copy(self.there[j], self.there[i])
        self.copied += 1

    def check(self, i):
        if self.unchecked:
            return
        got, want = self.framework.get(self.there[i]), pattern(self.seed, *self.of[i])
        self.checked += 1
        if not np.array_equal(got, want):
            bad = np.flatnonzero(got != want)
            self.wrong += 1
            at = int(bad[0])
            print("block %d: %d words are wrong, the first is %d: %x, want %x" % (i, bad.size, at, got[at], want[at]), file=sys.stderr)

    def check_all(self):
        for i in range(len(self.there)):
            self.check(i)


def train(blocks, kernels, steps):
    n = len(blocks.there)
    for step in range(steps):
        blocks.framework.work(kernels // steps)
        i = step % n
        blocks.check(i)
        if step % 3 == 2:
            blocks.copy(i, (i + n // 2) % n)
        else:
            blocks.write(i, step + 1)


def say_and_wait(folder, say, until):
    """Writes a line to one pipe, and waits until another is opened."""
    with open(os.path.join(folder, say), "w") as pipe:
        pipe.write("\n")
    open(os.path.join(folder, until)).close()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("framework", choices=FRAMEWORKS)
    p.add_argument("--mib", type=int, required=True)
    p.add_argument("--kernels", type=int, default=0)
    p.add_argument("--steps", type=int, default=1)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--unchecked", action="store_true")
    p.add_argument("--together", metavar="FOLDER")
    p.add_argument("--notebook", metavar="FOLDER")
    a = p.parse_args()
    framework = FRAMEWORKS[a.framework]()
    if a.together:
        say_and_wait(a.together, "ready", "go")
    blocks = Blocks(framework, a.seed, (a.mib << 20) // BLOCK, a.unchecked)
    if a.notebook:
        say_and_wait(a.notebook, "filled", "cell")
    else:
        train(blocks, a.kernels, a.steps)
    blocks.check_all()
    n = len(blocks.there)
    written = n + (0 if a.notebook else a.steps - blocks.copied)
    print(json.dumps({
        "program": a.framework, "bytes": n * BLOCK, "kernels": 0 if a.notebook else a.kernels // a.steps * a.steps,
        "written": written * BLOCK, "read": blocks.checked * BLOCK, "checked": blocks.checked, "wrong": blocks.wrong,
    }), flush=True)
    sys.exit(blocks.wrong > 0)


main()
