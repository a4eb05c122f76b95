"""DistributedDataParallel on two GPUs: the gradients' buckets are made anew in the second step."""
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def work(rank, port):
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method="tcp://127.0.0.1:%d" % port, rank=rank, world_size=2)
    layers = [torch.nn.Linear(2048, 2048, bias=False) for _ in range(8)]  # 128 MiB
    net = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(4):
        net(torch.zeros(1, 2048, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, (port,), nprocs=2)
