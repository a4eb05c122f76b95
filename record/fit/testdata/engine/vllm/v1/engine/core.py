import os
from types import SimpleNamespace

from vllm.v1.worker.gpu_worker import MiB, Worker


class FullAttentionSpec:
    block_size = 16


class EngineCore:
    fails = []

    def __init__(self, config):
        assert "GPUMEM_SIM_BEYOND" not in os.environ  # it is refused what the card has no room for
        assert os.environ.get("PYTORCH_ALLOC_CONF") == os.environ.get("TEST_ALLOC_CONF")
        for error in self.fails:
            raise error
        worker = Worker(config)
        worker.load_model()
        blocks = worker.determine_available_memory() // MiB  # a block of 16 tokens takes 1 MiB
        if blocks <= 0:
            raise ValueError("No available memory for the cache blocks.")
        if 16 * blocks < config.model_config.max_model_len:
            raise ValueError("1 GiB KV cache is needed, which is larger than the available KV cache memory.")
        groups = [SimpleNamespace(kv_cache_spec=FullAttentionSpec())]
        cache = SimpleNamespace(num_blocks=blocks, kv_cache_groups=groups, kv_cache_tensors=2 * [SimpleNamespace(size=blocks * MiB)])
        worker.initialize_from_config(cache)
        worker.compile_or_warm_up_model()
        config.cache_config.kv_cache_size_tokens = 16 * blocks
        config.cache_config.kv_cache_max_concurrency = 16 * blocks / config.model_config.max_model_len
        if config.model_config.max_model_len == 4097:  # odd figures
            config.cache_config.kv_cache_max_concurrency = float("inf")
            config.model_config.hf_text_config.max_position_embeddings = 1.5
        self.scheduler = SimpleNamespace(kv_cache_config=cache)
