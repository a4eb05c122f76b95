from sglang.srt.utils import common


class ServerArgs:
    tp_size = pp_size = dp_size = 1
    quantization = max_running_requests = context_length = speculative_algorithm = None
    kv_cache_dtype = dtype = "auto"

    swa_full_tokens_ratio = 0.5

    def __init__(self, model_path=".", mem_fraction_static=None, window=None, max_total_tokens=None):
        self.window, self.max_total_tokens = window, max_total_tokens
        self.model_path, self.tokenizer_path, self.mem_fraction_static = model_path, None, mem_fraction_static
        self.load_format, self.skip_tokenizer_init, self.chunked_prefill_size = "auto", False, None

    def resolve_once(self):
        if self.load_format != "dummy":
            raise ValueError("there are no weights in %s" % self.model_path)
        total = common.get_nvgpu_memory_capacity()
        self.chunked_prefill_size = self.chunked_prefill_size or 2048
        if self.mem_fraction_static is None:  # 400 MiB for activations
            self.mem_fraction_static = round((total - 400) / total, 3)
