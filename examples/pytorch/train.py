"""Trains a small transformer for twenty steps with PyTorch: python train.py [BATCH]."""

import sys

import torch
from torch import nn

batch = int(sys.argv[1]) if len(sys.argv) > 1 else 32
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True)
model = nn.Sequential(nn.TransformerEncoder(layer, 12), nn.Linear(1024, 1024)).cuda()
optimizer = torch.optim.Adam(model.parameters())


def train_step():
    x = torch.randn(batch, 256, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    for step in range(20):
        loss = train_step()
    print("loss", loss)
