"""Trains a small network with PyTorch, and then with the step as a CUDA graph: the losses to the
bit, steps a second, memory.

    python train_torch.py
"""

import os
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # deterministic algorithms want it

import torch

import talk

WARM, STEPS, WIDTH, LAYERS, BATCHES = 4, 500, 1024, 4, (512, 192)

torch.manual_seed(37)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(*(layer for _ in range(LAYERS) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()))).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
# Drawn on the CPU, whose generator is the same everywhere.
data = [(torch.randn(n, WIDTH).cuda(), torch.randn(n, WIDTH).tanh().cuda()) for n in BATCHES]
losses, replayed = torch.zeros(WARM + STEPS, device="cuda"), torch.zeros(STEPS, device="cuda")


def step(x, y):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(begin, end):
    for i in range(begin, end):
        losses[i] = step(*data[i % len(data)])
    torch.cuda.synchronize()


train(0, WARM)
talk.answer(stage="ready", version=torch.__version__)
talk.wait()
begun = time.perf_counter()
train(WARM, WARM + STEPS)
seconds = time.perf_counter() - begun

# The simulated GPU has no memory of graphs, which only the driver's pool takes.
replays = 0
if torch.cuda.get_allocator_backend() == "native" or not os.environ.get("GPU_CHECK_SIMULATED"):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step(*data[0])
    torch.cuda.current_stream().wait_stream(side)
    optimizer.zero_grad()
    graph, kept = torch.cuda.CUDAGraph(), torch.zeros((), device="cuda")
    with torch.cuda.graph(graph):
        inside = step(*data[0])
        kept.copy_(inside)
    begun = time.perf_counter()
    for i in range(STEPS):
        graph.replay()
        replayed[i] = kept
    torch.cuda.synchronize()
    replays = STEPS / (time.perf_counter() - begun)
    assert inside.item() == kept.item(), f"a graph's own memory has {inside}, its copy {kept}"
talk.answer(
    stage="trained", losses=talk.bits(losses), replayed=talk.bits(replayed), steps_a_second=STEPS / seconds, replays_a_second=replays,
    peak_bytes=torch.cuda.max_memory_allocated(), held_bytes=torch.cuda.max_memory_reserved(),
)
talk.wait()
