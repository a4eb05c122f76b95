"""Trains a model with PyTorch for a few steps, and prints what its allocator counted, as JSON.

    python torch_programs.py NAME [SCALE [STEPS]]

NAME is one of PROGRAMS below. expected_bytes is what must live between steps, by construction:
weights, gradients, Adam's two moments and its step counts, and the batch.
"""

import json
import sys

import torch
import torch.nn.functional as F
from torch import nn

name = sys.argv[1]
scale = int(sys.argv[2]) if len(sys.argv) > 2 else 1
steps = int(sys.argv[3]) if len(sys.argv) > 3 else 4
cuda = torch.device("cuda")


class Language(nn.Module):
    def __init__(self, width, layers, words=16000):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.1), layers)
        self.out = nn.Linear(width, words)

    def forward(self, ids):
        return self.out(self.layers(self.words(ids), mask=None))


class Causal(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(x)))


def dense():
    return nn.Sequential(*[m for _ in range(6) for m in (nn.Linear(2048, 2048), nn.ReLU())])


def images():
    def block(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU())
    return nn.Sequential(block(3, 64), block(64, 64), nn.MaxPool2d(2), block(64, 128), block(128, 128), nn.MaxPool2d(2), block(128, 256), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000))


class Checkpointed(nn.Sequential):
    def forward(self, x):
        for layer in self:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return x


def mean(model, x):
    return model(x).float().pow(2).mean()


def words(model, ids):
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def mixed(model, x):
    with torch.autocast("cuda", torch.bfloat16):
        return mean(model, x)


# The model, the shape of its batch, and its loss.
PROGRAMS = {
    "dense": (dense, (1024 * scale, 2048), mean),
    "dense_mixed": (dense, (1024 * scale, 2048), mixed),
    "language": (lambda: Language(512, 4), (2 * scale, 512), words),
    "causal": (lambda: nn.Sequential(*[Causal(512) for _ in range(6)]), (2 * scale, 1024, 512), mean),
    "causal_mixed": (lambda: nn.Sequential(*[Causal(512) for _ in range(6)]), (2 * scale, 1024, 512), mixed),
    "causal_checkpointed": (lambda: Checkpointed(*[Causal(512) for _ in range(6)]), (2 * scale, 1024, 512), mean),
    "emptied": (dense, (1024 * scale, 2048), mean),
    "images": (images, (16 * scale, 3, 96, 96), mean),
}

make, shape, loss = PROGRAMS[name]
model = make().to(cuda)
optimizer = torch.optim.Adam(model.parameters())
batch = torch.randint(0, 16000, shape, device=cuda) if name == "language" else torch.randn(shape, device=cuda)
for _ in range(steps):
    optimizer.zero_grad()
    loss(model, batch).backward()
    optimizer.step()
    if name == "emptied":
        torch.cuda.empty_cache()
        batch = torch.randn(5 * batch.shape[0] // 4, 2048, device=cuda)
weights = list(model.parameters())
size = lambda list: sum(t.numel() * t.element_size() for t in list)
stats = torch.cuda.memory_stats()
print(json.dumps({
    "expected_bytes": 4 * size(weights) + size(model.buffers()) + size([batch]),
    "requested_bytes": stats["requested_bytes.all.current"],
    "requested_peak_bytes": stats["requested_bytes.all.peak"],
    "reserved_peak_bytes": stats["reserved_bytes.all.peak"],
}))
