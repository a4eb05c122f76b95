#!/usr/bin/env python3
"""Writes a trace of PyTorch's profiler: gpumem run --simulate 1GiB -- python make_kineto.py OUT.json

Two steps of two layers on one GPU, with memory and stacks. A block that is older than the
trace is freed in it, another is kept, and one request is refused.
"""

import sys

import torch
from torch.profiler import ProfilerActivity, profile

net = torch.nn.Sequential(torch.nn.Linear(300, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
old = torch.zeros(100_000, device="cuda")


def step(x):
    opt.zero_grad()
    net(x).square().mean().backward()
    opt.step()


step(torch.ones(50, 300, device="cuda"))
with profile(activities=[ProfilerActivity.CPU], profile_memory=True, with_stack=True) as p:
    for _ in range(2):
        step(torch.ones(50, 300, device="cuda"))
    del old
    try:
        torch.zeros(2**29, device="cuda")
    except torch.OutOfMemoryError:
        pass
p.export_chrome_trace(sys.argv[1])
