# SGLang in a run of gpumem fit: see engines.py.
import os

import gpumem_fit_engines as common

SETTINGS = {}


def prepare():
    """What SGLang compiles by nvcc is compiled by nothing here, but some of its parts ask where nvcc is."""
    import importlib.util

    if os.environ.get("CUDA_HOME") or os.path.isdir("/usr/local/cuda"):
        return
    packages = importlib.util.find_spec("nvidia")
    for folder in getattr(packages, "submodule_search_locations", None) or []:
        for name in sorted(os.listdir(folder), reverse=True):
            if os.path.exists(os.path.join(folder, name, "bin", "nvcc")):
                os.environ["CUDA_HOME"] = os.path.join(folder, name)
                common.noted["set"].append("CUDA_HOME=(that of the package)")
                return


def arguments(kind):
    """The weights' values are of no use, and neither is a tokenizer. Options that fit varies take
    the place of the program's. They are resolved once, when it is made or, in newer releases, later."""
    name = "resolve_once" if hasattr(kind, "resolve_once") else "__post_init__"
    resolve = getattr(kind, name)

    def call(self, *args, **named):
        common.begin()
        with common.Refusal():
            if not getattr(self, "_resolution_finished", False):
                change(self)
            return resolve(self, *args, **named)

    setattr(kind, name, call)


def change(self):
    changed = common.noted.setdefault("options", {})
    if self.load_format != "dummy":
        self.load_format = changed["load_format"] = "dummy"
    if not self.skip_tokenizer_init and not common.has_tokenizer(self.tokenizer_path or self.model_path):
        self.skip_tokenizer_init = changed["skip_tokenizer_init"] = True
    common.vary(self)
    common.noted["given"] = common.given(self, "mem_fraction_static")
    common.save()


def total():
    """The memory of the smallest GPU in MiB, as nvidia-smi has it, which SGLang asks. To ask PyTorch would
    take a context of a process that has none on a machine with nvidia-smi."""
    import pynvml

    pynvml.nvmlInit()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    return min(pynvml.nvmlDeviceGetMemoryInfo(handle).total for handle in handles) / 2**20


def runner(kind):
    """Notes what a process on a GPU measures. It is free memory, by which SGLang goes. A draft model
    that is loaded later is a part of the rest."""

    def loaded(self, *_):
        before, now = common.noted["stages"]["load_model"][0], common.memory()
        weights = getattr(self, "weight_load_mem_usage", None)
        common.noted["worker"] = {
            "model_memory_usage": before["free"] - now["free"] if weights is None else int(weights * 2**30),
            "parameters": common.parameters(lambda: self.model),
            "init_total_memory": now["total"],
            "init_free_memory": int(self.pre_model_load_memory * 2**30),
            "requested_memory": self.pre_model_load_memory * 2**30 * self.mem_fraction_static,
        }

    common.stage(kind, "load_model", loaded)
    common.stage(kind, "alloc_memory_pool", step="initialize_from_config")


def scheduler(kind):
    """Ends the program when the scheduler is ready to serve, or notes why it is not."""
    init = kind.__init__

    def call(self, args, *rest, **named):
        common.begin()
        common.base.touch(common.base.mine(".begun"))
        common.noted["config"] = options(args)
        common.save()
        try:
            with common.Refusal():
                init(self, args, *rest, **named)
        except BaseException:
            common.base.remove(common.base.mine(".begun"))
            raise
        ready(self, self.tp_worker.model_runner)
        common.save()
        common.end()

    kind.__init__ = call


def options(args):
    """The options by the names that Note has."""
    value = value_of()
    names = {
        "model": "model_path", "dtype": "dtype", "quantization": "quantization", "max_model_len": "context_length",
        "gpu_memory_utilization": "mem_fraction_static", "cache_dtype": "kv_cache_dtype", "max_num_batched_tokens": "chunked_prefill_size",
        "max_num_seqs": "max_running_requests",
    }
    found = {ours: value(args, theirs) for ours, theirs in names.items() if hasattr(args, theirs)}
    return {name: value for name, value in found.items() if isinstance(value, (bool, int, float, str))}


def value_of():
    """What returns an option by its name. In newer releases the arguments keep what was given, and what follows
    from it stands beside them."""
    try:
        from sglang.srt.arg_groups.overrides import resolution_result

        return resolution_result
    except ImportError:
        return getattr


def ready(self, runner):
    model, pool, config = runner.model_config, runner.token_to_kv_pool, common.noted["config"]
    config.update({"dtype": str(model.dtype), "max_model_len": model.context_len, "max_num_seqs": self.max_running_requests})
    config.update(common.attributes(getattr(model, "hf_text_config", None), "max_position_embeddings"))
    if config.get("cache_dtype") in (None, "auto"):
        config["cache_dtype"] = str(getattr(runner, "kv_cache_dtype", "auto"))
    table = getattr(getattr(runner, "req_to_token_pool", None), "req_to_token", None)
    rank = rank_of(self)
    common.noted["worker"]["rank"] = rank
    if rank == 0:
        common.noted["cache"] = counts(self, model, pool)
    common.noted["worker"].update({
        "kv_cache_bytes": held(pool),
        "request_table_bytes": 0 if table is None else table.numel() * table.element_size(),
        "end_free_memory": common.memory()["free"],
    })
    graphs = getattr(runner, "graph_memory_usage", None) or getattr(runner, "graph_mem_usage", 0)
    graphs = sum(graphs.values()) if isinstance(graphs, dict) else graphs
    common.noted["results"] = {"capture_model": int(graphs * 2**30)}
    common.noted["stages"]["compile_or_warm_up_model"] = [common.memory()] * 2
    common.noted["ready"] = True


def rank_of(self):
    """The number of this process among those that share a model."""
    try:
        from sglang.srt.runtime_context import get_parallel

        of = get_parallel()
    except ImportError:
        of = self
    return of.pp_rank * of.tp_size + of.tp_rank


def counts(self, model, pool):
    tokens, page = self.max_total_num_tokens, getattr(self, "page_size", None) or 1
    found = {
        "kv_cache_size_tokens": tokens,
        "kv_cache_max_concurrency": tokens / float(model.context_len),  # max_running_requests may be fewer
        "num_blocks": 0,
        "groups": [[type(pool).__name__, page]],
    }
    if not follows(self, pool):
        return found
    if type(pool).__name__ in WHOLE:
        found["num_blocks"] = tokens // page
    elif type(pool).__name__ == "SWAKVPool":
        found.update(windows(self, model, page))
    return found


# The pools in which each token takes the same in each layer.
WHOLE = ("MHATokenToKVPool", "MLATokenToKVPool")


def follows(self, pool):
    """Whether the tokens are as many as the memory that is free after the weights has room for."""
    capped = getattr(self.server_args, "max_total_tokens", None) is not None
    speculates = getattr(self.server_args, "speculative_algorithm", None) is not None
    return not (capped or speculates or getattr(pool, "post_capture_active", False))


def windows(self, model, page):
    """The counts of a pool of two parts: layers that keep every token, and those that keep a window of each
    request, which have a part of these tokens, swa_full_tokens_ratio. SGLang admits a request that has room for
    its tokens in the first, and for a window and a page in the second (prefill_budget.py), and does not start
    where that has no room for one (validate_swa_pool_size). Nothing is found where the second is no such part."""
    tokens, kept, window = self.max_total_num_tokens, self.swa_tokens_per_layer, self.sliding_window_size
    part = value_of()(self.server_args, "swa_full_tokens_ratio")
    if not (part and window) or self.full_tokens_per_layer != tokens or int(tokens * part) // page * page != kept:
        return {}

    def longest(requests):
        most = min(tokens // requests, getattr(model.hf_text_config, "max_position_embeddings", tokens))
        return most if window + page <= kept // requests else min(most, max(0, kept // requests - page))

    least = int((window + page) / part) // page * page
    while int(least * part) // page * page <= window + page:
        least += page
    length = model.context_len
    return {
        "kv_cache_max_concurrency": min(tokens / float(length), kept / float(min(length, window) + page)),
        "num_blocks": tokens // page,
        "longest": [longest(1), longest(8)],
        "least_tokens": least,
    }


def held(pool):
    """The bytes of a pool of the KV cache."""
    if getattr(pool, "post_capture_active", False):  # it is as large as what graphs have left
        return pool.post_capture_backed_bytes
    sizes = pool.get_kv_size_bytes()
    return int(sum(sizes) if isinstance(sizes, tuple) else sizes)


MODULES = {
    "sglang.srt.server_args": lambda module: arguments(module.ServerArgs),
    "sglang.srt.utils.common": lambda module: setattr(module, "get_nvgpu_memory_capacity", total),
    "sglang.srt.model_executor.model_runner": lambda module: runner(module.ModelRunner),
    "sglang.srt.managers.scheduler": lambda module: scheduler(module.Scheduler),
}
