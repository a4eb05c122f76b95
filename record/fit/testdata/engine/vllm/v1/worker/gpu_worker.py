import torch
from types import SimpleNamespace

from triton.runtime.autotuner import Autotuner

MiB = 1 << 20


class Tensor:
    """A view of memory of which it is a part."""

    is_cuda = True

    def __init__(self, size):
        self.size = size

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: 4096, nbytes=lambda: self.size)


class Runner:
    def profile_run(self):
        ways = [(way.num_stages, way.kwargs["BLOCK"]) for way in Autotuner().prune_configs({})]
        if ways != [(2, 32), (4, 32)]:
            raise RuntimeError("not the two ways that need the least: %s" % ways)
        # Of the peak of 100 MiB a compiler takes 70 to time a kernel.
        torch.record("alloc", 1, 30 * MiB, "forward")
        torch.record("alloc", 2, 70 * MiB, "exec", "generate_and_run_autotune_block")
        torch.record("free_completed", 2, 70 * MiB)
        torch.record("free_completed", 1, 30 * MiB)
        torch.record("alloc", 2, 10 * MiB, "forward")  # where the other was
        torch.record("free_completed", 2, 10 * MiB)
        torch.take(100 * MiB)
        torch.allocated -= 100 * MiB

    def capture_model(self):
        torch.segments.append({"segment_pool_id": (0, 1), "total_size": 64 * MiB})
        return -500 * MiB  # PyTorch's cache was released meanwhile

    def get_model(self):
        raise AttributeError("get_model")


class Worker:
    def __init__(self, config):
        self.config, self.model_runner, self.rank = config, Runner(), 0
        self.init_snapshot = SimpleNamespace(free_memory=torch.total, total_memory=torch.total)
        if config.model_config.max_model_len == 4097:  # odd figures
            self.init_snapshot.total_memory -= 4096
        self.requested_memory = int(torch.total * config.cache_config.gpu_memory_utilization)

    def load_model(self):
        self.model_runner.model_memory_usage = 1000 * MiB
        torch.take(1000 * MiB)

    def determine_available_memory(self):
        self.model_runner.profile_run()
        if self.config.cache_config.kv_cache_memory_bytes:
            return int(self.config.cache_config.kv_cache_memory_bytes)
        return self.requested_memory - 1100 * MiB  # as older releases, which do not keep it

    def initialize_from_config(self, config):
        size = config.kv_cache_tensors[0].size  # all lie in one
        torch.take(size)
        self.model_runner.kv_caches = [Tensor(size), [Tensor(size)]]

    def compile_or_warm_up_model(self):
        self.model_runner.capture_model()
