# Engines that serve models, in a run of gpumem fit: what they need on the simulated GPU is set,
# what they measure at their start is noted, and they are ended when they are ready to serve.
# start.py has the rest.
#
#   GPUMEM_FIT_ENGINE      options of the engine in place of the program's own, as JSON
#   GPUMEM_FIT.PID.engine  what a process of an engine has noted, as JSON
#
# The figures are those of the engine's own objects. Beside each stands what PyTorch's allocator
# and the driver say at that moment, so that they can be compared.
import json
import os

# What is set for an engine, and why; its release decides which of them it reads.
SETTINGS = {
    "vllm": {
        "VLLM_USE_FLASHINFER_SAMPLER": "0",  # is compiled by nvcc when it is first used
        "VLLM_NO_USAGE_STATS": "1",
    },
}

# The engine's modules that are changed when they are imported, and the package of each.
MODULES = {
    "vllm": "vllm",
    "vllm.engine.arg_utils": "vllm",
    "vllm.v1.engine.core": "vllm",
    "vllm.v1.worker.gpu_worker": "vllm",
}

# How long an engine that has ended keeps its process, in seconds, so that its clients end first.
WAIT = 0.5

noted = {}  # of this process
base = None  # start.py


def found():
    """The engine of this process; None if there is none."""
    return noted.get("engine")


def before(name):
    """Sets what the engine needs, before it is imported. The settings of PyTorch's allocator that
    start.py has taken out are an engine's own: they belong to what it measures."""
    noted["engine"], noted["set"] = name, []
    for variable, value in SETTINGS.get(name, {}).items():
        if os.environ.get(variable) != value:
            os.environ[variable] = value
        noted["set"].append("%s=%s" % (variable, value))
    if name == "vllm" and not os.environ.get("VLLM_CACHE_ROOT"):
        # What is compiled here, without a GPU to choose kernels by time, is not for runs on one. And
        # a first start, which compiles, is the one that has to find room.
        os.environ["VLLM_CACHE_ROOT"] = os.environ["GPUMEM_FIT"] + ".cache"
        noted["set"].append("VLLM_CACHE_ROOT=(a new folder)")
    for variable in base.pytorch.SETTINGS:
        if base.own.get(variable) is not None:
            os.environ[variable] = base.own.pop(variable)


def let_others_end():
    """Waits until a process that is a client of this one has ended: it would report that it has lost its engine."""
    import time

    if found():
        time.sleep(WAIT)


def follow():
    """Ends a process that holds no memory when those that hold some have written what they have."""
    import threading
    import time

    def watch():
        while not base.agreed() or any(base.alive(base.path_of(pid)) for pid in base.begun()):
            time.sleep(WAIT / 10)
        if not base.ends:
            base.leave(0)

    threading.Thread(target=watch, daemon=True).start()


def save():
    with open(base.mine(".engine.part"), "w") as file:
        json.dump(noted, file)
    os.replace(base.mine(".engine.part"), base.mine(".engine"))


def memory():
    """What PyTorch's allocator and the driver say now, in bytes."""
    import torch

    stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    return {
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "reserved": stats.get("reserved_bytes.all.current", 0),
        "peak": stats.get("allocated_bytes.all.peak", 0),
        "free": free,
        "total": total,
    }


def stage(kind, name, after=None, before=lambda _: [memory()]):
    """Notes memory before and after a method, the first time that it is called."""
    inner = getattr(kind, name, None)
    if inner is None:
        return

    def call(self, *args, **named):
        stages = noted.setdefault("stages", {})
        if name in stages:
            return inner(self, *args, **named)
        stages[name] = before(self)
        result = inner(self, *args, **named)
        stages[name].append(memory())
        if after is not None:
            after(self, *args)
        save()
        return result

    setattr(kind, name, call)


def after(name, module):
    """Changes a module of an engine that was imported."""
    if name in SETTINGS and not hasattr(module, "__path__"):
        noted.clear()  # a file of the program's with that name
    elif name == "vllm":
        noted["version"] = getattr(module, "__version__", "")
        follow()
        base.again.append(follow)
    elif name == "vllm.engine.arg_utils":
        arguments(module.EngineArgs)
    elif name == "vllm.v1.engine.core":
        core(module.EngineCore)
    elif name == "vllm.v1.worker.gpu_worker":
        worker(module.Worker)


def attributes(of, *names):
    """The numbers and words among an object's attributes."""
    values = {}
    for name in names:
        value = getattr(of, name, None)
        if value is not None:
            values[name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return values


# vLLM


def arguments(kind):
    """The weights' values are of no use, and neither is a tokenizer. Options that fit varies take
    the place of the program's."""
    create = kind.create_engine_config

    def call(self, *args, **named):
        changed = noted.setdefault("options", {})
        if getattr(self, "load_format", None) != "dummy":
            self.load_format = changed["load_format"] = "dummy"
        if not has_tokenizer(self) and not self.skip_tokenizer_init:
            self.skip_tokenizer_init = changed["skip_tokenizer_init"] = True
        for name, value in json.loads(os.environ.get("GPUMEM_FIT_ENGINE") or "{}").items():
            setattr(self, name, like(getattr(self, name), value))
        save()
        return create(self, *args, **named)

    kind.create_engine_config = call


def like(old, value):
    """A word as a value of the kind of another one."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(value.lower(), value)


def has_tokenizer(args):
    folder = getattr(args, "tokenizer", None) or args.model
    return not os.path.isdir(folder) or any("token" in name for name in os.listdir(folder))


def worker(kind):
    """Notes what a process on a GPU measures."""

    def within(name):
        """Returns what notes a step of the model runner, which is not all of the worker's."""

        def before(self):
            run = getattr(self.model_runner, name, None)

            def call(*args, **named):
                import torch

                torch.cuda.reset_peak_memory_stats()
                begin = memory()
                result = run(*args, **named)
                noted["stages"].setdefault(name, [begin, memory()])
                if isinstance(result, int):
                    noted.setdefault("results", {})[name] = result
                return result

            if run is not None:
                setattr(self.model_runner, name, call)
            return [memory()]

        return before

    def profiled(self, *_):
        noted["worker"] = attributes(
            self, "rank", "local_rank", "requested_memory", "total_consumed", "non_torch_memory",
            "peak_activation_memory", "cudagraph_memory_estimate", "available_kv_cache_memory_bytes",
        )
        noted["worker"].update(attributes(self.model_runner, "model_memory_usage"))
        noted["worker"]["parameters"] = parameters(self.model_runner)
        first = getattr(self, "init_snapshot", None)
        noted["worker"].update(("init_" + k, v) for k, v in attributes(first, "free_memory", "total_memory").items())

    def cache(self, config=None, *_):
        tensors = getattr(config, "kv_cache_tensors", [])
        noted["worker"]["kv_cache_bytes"] = sum(getattr(t, "size", 0) for t in tensors)
        noted["worker"]["num_blocks"] = getattr(config, "num_blocks", 0)

    def warm(self, *_):
        try:
            from vllm.compilation.counter import compilation_counter as counter

            noted["compiled"] = {name: n for name, n in vars(counter).items() if isinstance(n, int)}
        except ImportError:
            pass
        base.touch(base.mine(".agrees"))

    stage(kind, "load_model")
    stage(kind, "determine_available_memory", profiled, within("profile_run"))
    stage(kind, "initialize_from_config", cache)
    stage(kind, "compile_or_warm_up_model", warm, within("capture_model"))


def parameters(runner):
    """The bytes of the model's parameters and buffers; 0 if they are not known."""
    try:
        model = runner.get_model()
        tensors = list(model.parameters()) + list(model.buffers())
    except Exception:
        return 0  # of another release
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors if t.is_cuda}
    return sum(storages.values())


def core(kind):
    """Ends the program when the engine is ready to serve, or notes why it is not."""
    init = kind.__init__

    def call(self, config, *args, **named):
        base.touch(base.mine(".begun"))  # the processes on GPUs wait for this one
        noted["config"] = options(config)
        save()
        try:
            init(self, config, *args, **named)
        except BaseException as error:
            noted["error"] = "%s: %s" % (type(error).__name__, error)
            save()
            base.remove(base.mine(".begun"))
            raise
        noted["config"] = options(config)
        noted["cache"] = capacity(self, config)
        noted["ready"] = True
        save()
        end()

    kind.__init__ = call


def options(config):
    text = getattr(config.model_config, "hf_text_config", None)
    return dict(
        attributes(text, "max_position_embeddings"),
        **attributes(config.model_config, "model", "dtype", "quantization", "max_model_len", "enforce_eager"),
        **attributes(config.cache_config, "gpu_memory_utilization", "cache_dtype", "block_size", "num_gpu_blocks", "kv_cache_memory_bytes"),
        **attributes(config.scheduler_config, "max_num_seqs", "max_num_batched_tokens"),
        **attributes(config.parallel_config, "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    )


def capacity(self, config):
    """How many tokens the cache has, and how many requests of the greatest length at once, in the
    engine's own count."""
    cache, scheduler = config.cache_config, self.scheduler
    whole = getattr(scheduler, "kv_cache_config", None)
    groups = getattr(whole, "kv_cache_groups", [])
    found = attributes(cache, "kv_cache_size_tokens", "kv_cache_max_concurrency")
    found["num_blocks"] = getattr(whole, "num_blocks", 0)
    found["groups"] = [[type(g.kv_cache_spec).__name__, getattr(g.kv_cache_spec, "block_size", 0)] for g in groups]
    if "kv_cache_max_concurrency" not in found and groups:
        from vllm.v1.core import kv_cache_utils

        requests = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, whole)
        found["kv_cache_max_concurrency"] = requests
        found["kv_cache_size_tokens"] = whole.num_blocks // len(groups) * min(g.kv_cache_spec.block_size for g in groups)
    return found


def end():
    """Ends this process when all that hold memory are ready."""
    import time

    while True:
        base.agree(base.written, "ready")
        time.sleep(0.05)
