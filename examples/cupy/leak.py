"""Computes with CuPy, and keeps a result of each step by mistake."""

import cupy

weights = cupy.ones((1024, 1024), dtype=cupy.float32)
history = []


def step():
    x = cupy.ones((4096, 1024), dtype=cupy.float32)
    y = cupy.tanh(x @ weights)
    history.append(y)
    return y


if __name__ == "__main__":
    for _ in range(100):
        step()
    print("results", len(history))
