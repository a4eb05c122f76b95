#!/usr/bin/env python3
"""Writes memory timelines of PyTorch's profiler:

    gpumem run --simulate 1GiB -- python make_timeline.py timeline.raw.json.gz timeline.json

Three steps of six layers with Adam on one GPU.
"""

import sys

import torch
from torch.profiler import ProfilerActivity, profile

layers = [m for _ in range(6) for m in (torch.nn.Linear(256, 256), torch.nn.ReLU())]
net = torch.nn.Sequential(*layers, torch.nn.Linear(256, 10)).cuda()
opt = torch.optim.Adam(net.parameters())
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True, with_stack=True, record_shapes=True) as p:
    for _ in range(3):
        loss = net(torch.randn(64, 256, device="cuda")).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
for path in sys.argv[1:]:
    p.export_memory_timeline(path)
