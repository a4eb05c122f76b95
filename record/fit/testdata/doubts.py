"""Programs about which an answer has doubts, with what is true of them by construction.

    python doubts.py NAME [NUMBER]

NUMBER is how many steps there are. A comment "# CALL COUNT" stands where a size depends on values
of the GPU, with how often that is in two steps. Printed is, as JSON, what PyTorch's allocator has
at its peak and at the end, and what must live at the end: what is kept for n elements of 4096 that
a mask, unique() or an integer finds, beside what does not depend on n.
"""

import json
import sys

import torch
from torch import nn

ROWS, WIDTH = 4096, 256
ROW = 4 * WIDTH
name, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
kept = []


def rows(n=ROWS):
    return torch.empty(n, WIDTH, device="cuda")


def mask(x, n):
    for _ in range(steps):
        kept.append(x[x[:, 0] > 0])  # nonzero 2
    return steps * n * ROW


def select(x, n):
    flags = x > 0
    for _ in range(steps):
        kept.append(torch.masked_select(x, flags))  # nonzero 2
    kept.append(flags)
    return steps * n * ROW + ROWS * WIDTH


def places(x, n):
    for _ in range(steps):
        kept.append(x.nonzero())  # nonzero 2
    return steps * 2 * 8 * WIDTH * n


def where(x, n):
    for _ in range(steps):
        kept.append(torch.where(x[:, 0] > 0)[0])  # nonzero 2
    return steps * 8 * n


def experts(x, n):
    """Each of 8 experts has the tokens that are routed to it."""
    router, layers = nn.Linear(WIDTH, 8).cuda(), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8)).cuda()
    kept.append((router, layers))
    with torch.no_grad():
        for _ in range(steps):
            chosen = router(x).argmax(-1)
            for i, layer in enumerate(layers):
                at = (chosen == i).nonzero()[:, 0]  # nonzero 16
                kept.append(layer(x[at]))
    return steps * 8 * n * ROW + 4 * (8 * WIDTH + 8) + 8 * 4 * (WIDTH * WIDTH + WIDTH)


def unique(x, n):
    words = torch.zeros(ROWS, dtype=torch.long, device="cuda")
    for _ in range(steps):
        kept.append(rows(len(torch.unique(words))))  # unique 2
    kept.append(words)
    return steps * n * ROW + 8 * ROWS


def item(x, n):
    for _ in range(steps):
        kept.append(rows((x[:, 0] > 0).sum().item()))  # item 2
    return steps * n * ROW


def lists(x, n):
    lengths = (x[:, 0] > 0).sum()[None, None]
    for _ in range(steps):
        kept.append([rows(m) for m in lengths.tolist()[0]])  # item 2
    kept.append(lengths)
    return steps * n * ROW + 8


def counted(x, n):
    """A size that is made in floats."""
    for _ in range(steps):
        kept.append(rows(int((x[:, 0] > 0).float().sum())))  # item 2
    return steps * n * ROW


def repeated(x, n):
    counts = torch.ones(ROWS, dtype=torch.long, device="cuda")
    for _ in range(steps):
        kept.append(torch.repeat_interleave(counts))  # repeat_interleave 2
    kept.append(counts)
    return 8 * ROWS


def backward(x, n):
    x.requires_grad_()
    for _ in range(steps):
        x[x[:, 0] > 0].sum().backward()  # nonzero 2
    return ROWS * ROW


def scripted(x, n):
    function = torch.jit.script(masked)
    for _ in range(steps):
        kept.append(function(x))  # nonzero 2
    return steps * n * ROW


def masked(x):
    return x[x[:, 0] > 0]


def compiled(x, n):
    function = torch.compile(lambda x: (x * 2)[x[:, 0] > 0] + 1)  # nonzero 2
    for _ in range(steps):
        kept.append(function(x))
    return steps * n * ROW


def losses(x, n):
    """Reads no size: a loss, whether a value is finite, an integer that lies on the GPU as it was
    written, and what has its size from the program."""
    counts = torch.ones(4, dtype=torch.long, device="cuda")
    for _ in range(steps):
        float(x.sum()), bool(x.isfinite().all()), torch.tensor(7).cuda().item()
        torch.repeat_interleave(counts, output_size=8), torch.bincount(counts, minlength=8), torch.bincount(counts, None, 8)
    return 0


def growing(x, n):
    """Keeps a MiB in each step."""
    layer = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    for i in range(steps):
        if i == 30 and steps > 1000:
            print(flush=True)
        y = layer(x[:1024])
        y.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(y.detach())
    kept.append(layer)
    return steps * (1 << 20) + 4 * (WIDTH * WIDTH + WIDTH)


def late(x, n):
    """Short steps without end, of which the last would be long."""
    layer = nn.Linear(WIDTH, WIDTH).cuda()
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    kept.append(layer)
    for i in range(steps):
        layer(x if i == steps - 1 else x[:64]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return 4 * (WIDTH * WIDTH + WIDTH)


def truth(n):
    nn.Linear(WIDTH, WIDTH).cuda()(torch.ones(8, WIDTH, device="cuda"))
    workspace = torch.cuda.memory_stats()["requested_bytes.all.current"]  # of cuBLAS
    x = rows()
    expected = globals()[name](x, n) + ROWS * ROW + workspace
    stats = torch.cuda.memory_stats()
    return {"requested_peak_bytes": stats["requested_bytes.all.peak"], "requested_bytes": stats["requested_bytes.all.current"], "expected_bytes": expected}


if __name__ == "__main__":
    import os

    pairs = dict(pair.split("=") for pair in os.environ.get("GPUMEM_FIT_ASSUME", "").split(",") if pair)
    part = float(pairs.get("unique" if name == "unique" else "nonzero", 0))
    found = truth(int(pairs["item"]) if name in ("item", "lists", "counted") and "item" in pairs else round(part * ROWS))
    print(json.dumps(found))
