# PyTorch in a run of gpumem fit: its allocator's own recorder writes a snapshot, to the file
# that GPUMEM_FIT names with .torch behind it. start.py has the rest.
import os
import sys

# Settings that would change what is recorded. What the program has is reported.
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")


def before(own):
    for name in SETTINGS:
        if name in os.environ:
            own[name] = os.environ.pop(name)


def after(torch, own, save, repeats):
    """Begins when the program has its first GPU memory. save writes what was found, and
    repeats(look, end) watches for memory that repeats."""
    import atexit
    import pickle

    me = os.getpid()
    # Attention by cuDNN needs a plan of an engine that is not there.
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
        torch.backends.cuda.enable_cudnn_sdp(False)

    def write(reason):
        path = os.environ["GPUMEM_FIT"] + ".torch"
        with open(path + ".part", "wb") as file:
            pickle.dump(torch.cuda.memory._snapshot(), file)
        os.replace(path + ".part", path)
        save({"framework": "pytorch", "version": torch.__version__.split("+")[0], "reason": reason, "own": own, "programs": []})

    def end():
        if os.getpid() == me:
            write("end")

    def look():
        stats = torch.cuda.memory_stats()
        return stats["allocated_bytes.all.peak"], stats["allocation.all.allocated"]

    def begin():
        torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python")
        atexit.register(end)
        repeats(look, write)

    torch.cuda._lazy_call(begin)
