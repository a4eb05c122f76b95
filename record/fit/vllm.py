# vLLM in a run of gpumem fit: see engines.py.
import os

import gpumem_fit_engines as common

SETTINGS = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",  # is compiled by nvcc when it is first used
    "VLLM_NO_USAGE_STATS": "1",
}


# Of what it counts while it compiles.
COUNTS = (
    "num_cudagraph_captured", "num_compiled_artifacts_saved", "num_aot_artifacts_saved", "num_inductor_compiles",
    "num_compiled_artifacts_loaded", "num_aot_artifacts_loaded",
)


def prepare():
    """What is compiled here, without a GPU to choose kernels by time, is not for runs on one. And
    a first start, which compiles, is the one that has to find room. PyTorch's own cache counts as vLLM's."""
    if os.environ.get("VLLM_CACHE_ROOT"):
        return
    for variable in ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"):
        if not os.environ.get(variable):
            os.environ[variable] = os.environ["GPUMEM_FIT"] + ".cache"
            common.noted["set"].append("%s=(a new folder)" % variable)


def arguments(kind):
    """The weights' values are of no use, and neither is a tokenizer. Options that fit varies take
    the place of the program's."""
    create = kind.create_engine_config

    def call(self, *args, **named):
        common.begin()
        changed = common.noted.setdefault("options", {})
        if getattr(self, "load_format", None) != "dummy":
            self.load_format = changed["load_format"] = "dummy"
        if not common.has_tokenizer(getattr(self, "tokenizer", None) or self.model) and not self.skip_tokenizer_init:
            self.skip_tokenizer_init = changed["skip_tokenizer_init"] = True
        with common.Refusal():
            common.vary(self)
            common.save()
            return create(self, *args, **named)

    kind.create_engine_config = call


def worker(kind):
    """Notes what a process on a GPU measures."""

    def within(name):
        """Returns what notes a step of the model runner, which is not all of the worker's."""

        def before(self):
            run = getattr(self.model_runner, name, None)

            def call(*args, **named):
                import torch

                torch.cuda.reset_peak_memory_stats()
                begin, apart, first = common.memory(), common.graphs(), len(common.events())
                result = run(*args, **named)
                common.noted["stages"].setdefault(name, [begin, common.memory()])
                if isinstance(result, int):
                    common.noted.setdefault("results", {})[name] = result
                common.noted.setdefault("once", {})[name] = common.once(common.events(), first)
                if apart is not None:
                    common.noted.setdefault("apart", {})[name] = common.graphs() - apart
                return result

            if run is not None:
                setattr(self.model_runner, name, call)
            return [common.memory()]

        return before

    def profiled(self, available, *_):
        common.noted["worker"] = common.attributes(
            self, "rank", "requested_memory", "cudagraph_memory_estimate", "available_kv_cache_memory_bytes",
        )
        common.noted["worker"].setdefault("available_kv_cache_memory_bytes", available)
        common.noted["worker"].update(common.attributes(self.model_runner, "model_memory_usage"))
        common.noted["worker"]["parameters"] = common.parameters(lambda: self.model_runner.get_model())
        first = getattr(self, "init_snapshot", None)
        common.noted["worker"].update(("init_" + k, v) for k, v in common.attributes(first, "free_memory", "total_memory").items())

    def cache(self, _, config=None, *__):
        # Groups of layers may share memory, so that the sizes of the plan are more than there is.
        planned = sum(getattr(t, "size", 0) for t in getattr(config, "kv_cache_tensors", []))
        common.noted["worker"]["kv_cache_bytes"] = common.storages(getattr(self.model_runner, "kv_caches", ())) or planned

    def warm(self, *_):
        try:
            from vllm.compilation.counter import compilation_counter as counter

            common.noted["compiled"] = common.attributes(counter, *COUNTS)
        except ImportError:
            pass
        common.base.touch(common.base.mine(".agrees"))

    common.stage(kind, "init_device", before=lambda _: [])  # before it there is no GPU
    common.stage(kind, "load_model")
    common.stage(kind, "determine_available_memory", profiled, within("profile_run"))
    common.stage(kind, "initialize_from_config", cache)
    common.stage(kind, "compile_or_warm_up_model", warm, within("capture_model"))


def core(kind):
    """Ends the program when the engine is ready to serve, or notes why it is not."""
    init = kind.__init__

    def call(self, config, *args, **named):
        common.begin()
        common.base.touch(common.base.mine(".begun"))  # the processes on GPUs wait for this one
        common.noted["config"] = options(config)
        common.save()
        try:
            with common.Refusal():
                init(self, config, *args, **named)
        except BaseException:
            common.base.remove(common.base.mine(".begun"))
            raise
        common.noted["config"] = options(config)
        common.noted["cache"] = capacity(self, config)
        common.noted["ready"] = True
        common.save()
        common.end()

    kind.__init__ = call


def options(config):
    text = getattr(config.model_config, "hf_text_config", None)
    return dict(
        common.attributes(text, "max_position_embeddings"),
        **common.attributes(config.model_config, "model", "dtype", "quantization", "max_model_len"),
        **common.attributes(config.cache_config, "gpu_memory_utilization", "cache_dtype", "kv_cache_memory_bytes"),
        **common.attributes(config.scheduler_config, "max_num_seqs", "max_num_batched_tokens"),
        **common.attributes(config.parallel_config, "decode_context_parallel_size", "prefill_context_parallel_size")
    )


def capacity(self, config):
    """How many tokens the cache has, and how many requests of the greatest length at once, in the
    engine's own count."""
    cache, scheduler = config.cache_config, self.scheduler
    whole = getattr(scheduler, "kv_cache_config", None)
    groups = getattr(whole, "kv_cache_groups", [])
    found = common.attributes(cache, "kv_cache_size_tokens", "kv_cache_max_concurrency")
    found["num_blocks"] = getattr(whole, "num_blocks", 0)
    found["groups"] = [[type(g.kv_cache_spec).__name__, getattr(g.kv_cache_spec, "block_size", 0)] for g in groups]
    try:
        from vllm.v1.core.kv_cache_utils import get_max_concurrency_for_kv_cache_config as at_once
    except ImportError:
        return found  # of another release
    if "kv_cache_max_concurrency" not in found and groups:
        found["kv_cache_max_concurrency"] = at_once(config, whole)
        found["kv_cache_size_tokens"] = whole.num_blocks // len(groups) * min(g.kv_cache_spec.block_size for g in groups)
    if groups:
        found["longest"] = [longest(config, n, lambda: at_once(config, whole)) for n in (1, 8)]
    return found


def first(kind):
    """Refuses the engine before the present one, whose figures have other names and another meaning."""

    def refuse(self, *args, **named):
        common.begin()
        version = common.noted.get("version", "")
        common.noted["error"] = "vllm %s starts its first engine (V0), which fit does not read: V1 is the default from 0.8 on" % version
        common.save()
        raise NotImplementedError(common.noted["error"])

    kind.__init__ = refuse


def longest(config, requests, at_once):
    """The longest context of so many requests at once, by the engine's own count for each length: layers
    may keep parts of it. 0 if the model does not say how long one may be."""
    model, low = config.model_config, 0
    given = model.max_model_len
    most = getattr(getattr(model, "hf_text_config", None), "max_position_embeddings", 0)
    high = max(most, given) if most else 0
    while low < high:
        model.max_model_len = (low + high + 1) // 2
        if at_once() >= requests:
            low = model.max_model_len
        else:
            high = model.max_model_len - 1
    model.max_model_len = given
    return low


MODULES = {
    "vllm.engine.arg_utils": lambda module: arguments(module.EngineArgs),
    "vllm.v1.engine.core": lambda module: core(module.EngineCore),
    "vllm.worker.worker": lambda module: first(module.Worker),
    "vllm.v1.worker.gpu_worker": lambda module: worker(module.Worker),
}
