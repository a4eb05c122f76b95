"""An LSTM of cuDNN, as large as one whose reserved bytes were published: see docs/fit.md."""
import torch

net = torch.nn.LSTM(123, 320, 4).cuda()
x = torch.zeros(500, 50, 123, device="cuda")
before = torch.cuda.memory_allocated()
y = net(x)[0]
kept = torch.cuda.memory_allocated() - before - y.numel() * 4
assert 736000000 <= kept < 740000000, kept
y.sum().backward()
assert [tuple(p.grad.shape) for p in net.parameters()] == [tuple(p.shape) for p in net.parameters()]
