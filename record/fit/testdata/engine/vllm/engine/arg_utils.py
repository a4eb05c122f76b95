from types import SimpleNamespace


class ValidationError(ValueError):
    """As pydantic's, whose text has several lines."""

    def errors(self):
        return [{"loc": ("gpu_memory_utilization",), "msg": "Input should be less than or equal to 1"}]


class EngineArgs:
    def __init__(self, model, max_model_len=4096, gpu_memory_utilization=0.9, kv_cache_memory_bytes=None, load_format="auto"):
        self.model, self.max_model_len, self.gpu_memory_utilization = model, max_model_len, gpu_memory_utilization
        self.kv_cache_memory_bytes = kv_cache_memory_bytes
        self.load_format, self.skip_tokenizer_init, self.max_num_batched_tokens, self.max_num_seqs = load_format, False, 2048, 64

    def create_engine_config(self):
        if self.load_format != "dummy":
            raise ValueError("there are no weights in %s" % self.model)
        if self.gpu_memory_utilization > 1:
            raise ValidationError("1 validation error for CacheConfig\n    For further information visit a page")
        if self.max_model_len > 100000:
            raise ValueError("max_model_len is larger than the model's")
        return SimpleNamespace(
            model_config=SimpleNamespace(
                model=self.model, dtype="torch.bfloat16", quantization=None, max_model_len=self.max_model_len, enforce_eager=True,
                hf_text_config=SimpleNamespace(max_position_embeddings=100000),
            ),
            cache_config=SimpleNamespace(
                gpu_memory_utilization=self.gpu_memory_utilization, cache_dtype="auto", kv_cache_memory_bytes=self.kv_cache_memory_bytes
            ),
            scheduler_config=SimpleNamespace(max_num_seqs=self.max_num_seqs, max_num_batched_tokens=self.max_num_batched_tokens),
            parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1),
        )
