def get_max_concurrency_for_kv_cache_config(config, cache):
    """Half of the layers keep the last 1,024 tokens alone. A block has 16 tokens of all."""
    length = config.model_config.max_model_len
    return cache.num_blocks / -(-(length + min(length, 1024)) // 32)
