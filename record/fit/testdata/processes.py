"""Programs of several processes that use GPUs, and what the frameworks' allocators count in them.

    python processes.py NAME            programs that start their processes themselves
    torchrun processes.py NAME          those that a launcher starts, as accelerate launch does, too
    pytest -n 2 processes.py

Each process appends a line of JSON to the file $COUNTS: its GPU, and the most that its allocator
reserved there. meet() has the processes hold their memory at the same time.
"""

import json
import os
import signal
import subprocess
import sys
import time

FOLDER = os.path.dirname(os.environ["COUNTS"])


def meet(count, name="meet"):
    """Waits until as many processes are here."""
    open(os.path.join(FOLDER, "%s.%d" % (name, os.getpid())), "w").close()
    until = time.time() + 60
    while sum(f.startswith(name + ".") for f in os.listdir(FOLDER)) < count:
        if time.time() > until or os.path.exists(os.path.join(FOLDER, "failed")):
            raise SystemExit("the others are not there")
        time.sleep(0.01)


def note_failure():
    open(os.path.join(FOLDER, "failed"), "w").close()


def failed(*error):
    note_failure()
    sys.__excepthook__(*error)


sys.excepthook = failed


def physical(device):
    """The number of a GPU in the machine, from that in this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return int(visible.split(",")[device]) if visible else device


def write(**counted):
    with open(os.environ["COUNTS"], "a") as file:
        file.write(json.dumps(counted) + "\n")


def count():
    import torch

    for i in range(torch.cuda.device_count()):
        reserved = torch.cuda.memory_stats(i).get("reserved_bytes.all.peak", 0)
        if reserved:
            write(gpu=physical(i), reserved=reserved)


def layers(n=8, width=1024):
    import torch

    return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(n)])


def rest():
    """Has PyTorch's thread that watches NCCL look, which it does each .1 s, and free what it keeps of
    DistributedDataParallel: on a card a step takes longer."""
    import torch.distributed as dist

    if dist.is_initialized():
        time.sleep(0.3)


def train(device, batch=1024, steps=4, optimizer=None, wrap=lambda m: m):
    """Trains a little, and returns what is to live on."""
    import torch

    try:
        model = wrap(layers().to(device))
        optimizer = (optimizer or torch.optim.Adam)(model.parameters())
        for _ in range(steps):
            rest()
            x = torch.randn(batch, 1024, device=device)
            optimizer.zero_grad()
            loss = model(x).sum()
            rest()
            loss.backward()
            optimizer.step()
        return model, optimizer
    except BaseException:
        note_failure()  # a process of multiprocessing does not call sys.excepthook
        raise


def worker(rank, processes=2, gpus=2):
    """One process of those that run at once, on GPU rank modulo gpus."""
    import torch

    torch.cuda.set_device(rank % gpus)
    kept = train("cuda", 1024 * (rank + 1))
    meet(processes)
    count()
    meet(processes, "counted")
    del kept


def one_after_another(rank):
    kept = train("cuda", 1024 * (3 - rank))
    count()
    del kept


def start(method, target, args):
    """Starts processes by a method of multiprocessing, and ends as they do."""
    import multiprocessing

    context = multiprocessing.get_context(method)
    list = [context.Process(target=target, args=a) for a in args]
    for p in list:
        p.start()
    for p in list:
        p.join()
    if any(p.exitcode for p in list):
        sys.exit("a process failed")


def distributed(backend="nccl"):
    import torch
    import torch.distributed as dist

    dist.init_process_group(backend)
    rank = dist.get_rank()
    torch.cuda.set_device(rank)
    return rank


def over(kept):
    import torch.distributed as dist

    meet(2)
    count()
    meet(2, "counted")
    dist.destroy_process_group()
    del kept


# Programs that start their processes themselves.


def spawn_two_gpus():
    import torch.multiprocessing

    torch.multiprocessing.spawn(worker, args=(2, 2), nprocs=2)


def spawn_one_gpu():
    import torch.multiprocessing

    torch.multiprocessing.spawn(worker, args=(2, 1), nprocs=2)


def spawn_four_on_two():
    import torch.multiprocessing

    torch.multiprocessing.spawn(worker, args=(4, 2), nprocs=4)


def fork():
    start("fork", worker, [(0, 2, 1), (1, 2, 1)])


def fork_after_nvml():
    import ctypes

    nvml = ctypes.CDLL("libnvidia-ml.so.1")  # what an engine asks before it forks
    assert nvml.nvmlInit_v2() == 0
    fork()


def forkserver():
    start("forkserver", worker, [(0, 2, 1), (1, 2, 1)])


def in_turn():
    """One process ends before the next begins, which may take what it had."""
    for rank in range(3):
        start("spawn", one_after_another, [(rank,)])


def pool():
    import concurrent.futures
    import multiprocessing

    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        list(executor.map(worker, range(2), [2, 2], [1, 1]))


def subprocesses():
    """Each has its GPU by CUDA_VISIBLE_DEVICES, and calls it 0."""
    started = []
    for i in range(2):
        environ = dict(os.environ, CUDA_VISIBLE_DEVICES=str(i))
        started.append(subprocess.Popen([sys.executable, __file__, "subprocess_%d" % i], env=environ))
    if any([p.wait() for p in started]):
        sys.exit("a process failed")


def subprocess_0():
    worker(0, 2, 1)


def subprocess_1():
    worker(1, 2, 1)


def parent_too():
    """The parent has memory on the GPU, and a child."""
    import torch.multiprocessing

    kept = train("cuda", 512)
    p = torch.multiprocessing.get_context("spawn").Process(target=worker, args=(1, 2, 1))
    p.start()
    meet(2)
    count()
    meet(2, "counted")
    p.join()
    del kept
    if p.exitcode:
        sys.exit("a process failed")


def held(rank):
    kept = train("cuda")
    count()
    meet(2)
    time.sleep(1000)
    del kept


def killed():
    """The parent kills its child at the end, as servers kill their engines."""
    import multiprocessing

    p = multiprocessing.get_context("spawn").Process(target=held, args=(0,))
    p.start()
    meet(2)
    os.kill(p.pid, signal.SIGKILL)
    p.join()


class Batches:
    def __init__(self, cuda):
        self.cuda = cuda

    def __len__(self):
        return 16

    def __getitem__(self, i):
        import torch

        return torch.zeros(1024, device="cuda" if self.cuda else "cpu")


def loader():
    """Workers without a GPU, and pinned memory."""
    import torch

    model = layers().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for x in torch.utils.data.DataLoader(Batches(False), batch_size=4, num_workers=2, pin_memory=True):
        model(x.cuda(non_blocking=True)).sum().backward()
        optimizer.step()
    count()


class Counted:
    """Has a worker of a loader count when it ends."""

    def __call__(self, worker):
        import multiprocessing.util

        multiprocessing.util.Finalize(None, count, exitpriority=100)


def loader_cuda():
    """Workers that make tensors on the GPU, of which this process opens the memory."""
    import torch

    model = layers().cuda()
    optimizer = torch.optim.Adam(model.parameters())
    data = torch.utils.data.DataLoader(Batches(True), batch_size=4, num_workers=2, multiprocessing_context="spawn", worker_init_fn=Counted())
    for x in data:
        model(x).sum().backward()
        optimizer.step()
    count()


def jax_worker(rank, processes, gpus, port=0):
    os.environ["CUDA_VISIBLE_DEVICES"] = str(rank % gpus)
    import jax
    import numpy

    if port:
        jax.distributed.initialize("localhost:%d" % port, processes, rank, local_device_ids=[0])
    kept = jax.device_put(numpy.ones((1024 * (rank + 1), 1024), numpy.float32), jax.local_devices()[0])
    jax.block_until_ready(kept)
    meet(processes)
    write(gpu=rank % gpus, live=int(kept.nbytes))
    meet(processes, "counted")


def jax_one_gpu():
    start("spawn", jax_worker, [(0, 2, 1), (1, 2, 1)])


def jax_distributed():
    import socket

    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    start("spawn", jax_worker, [(0, 2, 2, port), (1, 2, 2, port)])


# Programs that torchrun starts, or accelerate.


def ddp():
    from torch.nn.parallel import DistributedDataParallel

    rank = distributed()
    over(train("cuda", 1024 * (rank + 1), wrap=DistributedDataParallel))


def ddp_gloo():
    from torch.nn.parallel import DistributedDataParallel

    rank = distributed("cpu:gloo,cuda:nccl")
    over(train("cuda", 1024 * (rank + 1), wrap=DistributedDataParallel))


def fsdp():
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel

    distributed()
    over(train("cuda", wrap=lambda m: FullyShardedDataParallel(m, device_id=torch.cuda.current_device())))


def fsdp2():
    from torch.distributed.fsdp import fully_shard

    distributed()

    def shard(model):
        for layer in model:
            fully_shard(layer)
        return fully_shard(model)

    over(train("cuda", wrap=shard))


def zero():
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    distributed()
    sharded = lambda parameters: ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.Adam)
    over(train("cuda", wrap=DistributedDataParallel, optimizer=sharded))


def tensor_parallel():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    distributed()
    mesh = init_device_mesh("cuda", (2,))
    plan = {str(i): (RowwiseParallel if i % 2 else ColwiseParallel)() for i in range(8)}
    over(train("cuda", wrap=lambda m: parallelize_module(m, mesh, plan)))


def pipeline():
    """The second rank works on what the first one sends."""
    import torch
    import torch.distributed as dist

    rank = distributed()
    part = layers(4).cuda()
    optimizer = torch.optim.Adam(part.parameters())
    for _ in range(4):
        x = torch.randn(2048, 1024, device="cuda")
        if rank:
            dist.recv(x, 0)
        y = part(x)
        if not rank:
            dist.send(y.detach(), 1)
        y.sum().backward()
        optimizer.step()
    over((part, optimizer))


def accelerated():
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = layers()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    for _ in range(4):
        rest()
        x = torch.randn(1024 * (accelerator.process_index + 1), 1024, device=accelerator.device)
        loss = model(x).sum()
        rest()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    over((model, optimizer))


# What pytest -n 2 runs: a test for each of its workers.


def test_first():
    kept = train("cuda", 1024)
    meet(2)
    count()
    meet(2, "counted")
    del kept


def test_second():
    test_first()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
