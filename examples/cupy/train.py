"""Computes with large matrices for twenty steps with CuPy: python train.py [WIDTH]."""

import sys

import cupy

width = int(sys.argv[1]) if len(sys.argv) > 1 else 16384
weights = [cupy.ones((width, width), dtype=cupy.float32) for _ in range(4)]


def step():
    y = weights[0]
    for w in weights:
        y = cupy.tanh(y @ w)
    return y


if __name__ == "__main__":
    for _ in range(20):
        y = step()
    print("y", y[0, 0])
