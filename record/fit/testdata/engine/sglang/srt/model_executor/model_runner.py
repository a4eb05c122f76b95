import torch
from types import SimpleNamespace

MiB = 1 << 20


class MHATokenToKVPool:
    def __init__(self, size):
        self.size = size

    def get_kv_size_bytes(self):
        return self.size // 2, self.size // 2


class SWAKVPool(MHATokenToKVPool):
    pass


class ModelRunner:
    kv_cache_dtype = "torch.bfloat16"

    def __init__(self, args):
        self.mem_fraction_static = args.mem_fraction_static
        self.model_config = SimpleNamespace(
            dtype="torch.bfloat16", context_len=4096, hf_text_config=SimpleNamespace(max_position_embeddings=4096)
        )
        self.pre_model_load_memory = torch.total / 2**30
        self.args = args
        self.load_model()
        self.alloc_memory_pool()

    def load_model(self):
        torch.take(1000 * MiB)
        self.weight_load_mem_usage = 1000 * MiB / 2**30

    def alloc_memory_pool(self):
        rest = torch.total - torch.allocated - int(self.pre_model_load_memory * (1 - self.mem_fraction_static) * 2**30)
        if rest <= 0:
            raise ValueError("Loaded weights leave no GPU memory for the KV cache under --mem-fraction-static=%s." % self.mem_fraction_static)
        self.blocks = rest // MiB  # a block of 16 tokens takes 1 MiB
        torch.take(self.blocks * MiB + 50 * MiB)
        self.token_to_kv_pool = (SWAKVPool if self.args.window else MHATokenToKVPool)(self.blocks * MiB)
        table = SimpleNamespace(numel=lambda: 25 * MiB // 2, element_size=lambda: 4)
        self.req_to_token_pool = SimpleNamespace(req_to_token=table)
        self.graph_memory_usage = {"prefill": 60 / 1024, "decode": 4 / 1024}
        torch.take(64 * MiB)
