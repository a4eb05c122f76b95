# TensorFlow in a run of gpumem fit: each request goes to the driver, without limits that the
# program sets, which are reported. start.py has the rest.
import functools

SETTINGS = {
    "TF_GPU_ALLOCATOR": "cuda_malloc_async",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC": None,
    "TF_DEVICE_MIN_SYS_MEMORY_IN_MB": None,
    "TF_ENABLE_GPU_GARBAGE_COLLECTION": None,
    "TF_FORCE_UNIFIED_MEMORY": None,
    "TF_PER_DEVICE_MEMORY_LIMIT_MB": None,
}

# Fields of tf.compat.v1.GPUOptions.
OPTIONS = ("allocator_type", "allow_growth", "per_process_gpu_memory_fraction")

# MiB that no GPU has.
UNLIMITED = 1 << 30

own = {}


def before(take):
    take(SETTINGS, own)


def after(tensorflow, called, save, repeats, at_end, steps, agree):
    from tensorflow.python.client.session import BaseSession
    from tensorflow.python.eager.context import Context

    def note(function, *args, **named):
        called(own, function, *args, **named)
        write("begun")

    def write(reason):
        save({
            "framework": "tensorflow", "version": tensorflow.__version__, "reason": reason, "own": own, "programs": [],
            "steps": max(ran.values(), default=0),
        })

    ran = {}  # how often, by tf.function

    configure, growth, session = Context.set_logical_device_configuration, Context.set_memory_growth, BaseSession.__init__

    @functools.wraps(configure)
    def set_logical_device_configuration(self, device, configurations):
        limits = [c.memory_limit for c in configurations]
        if device.device_type == "GPU" and None not in limits:
            note("tf.config.set_logical_device_configuration", device, limits)
            if len(limits) == 1:
                return
            configurations = [c._replace(memory_limit=UNLIMITED) for c in configurations]
        configure(self, device, configurations)

    @functools.wraps(growth)
    def set_memory_growth(self, device, enable):
        note("tf.config.experimental.set_memory_growth", device, enable)
        growth(self, device, enable)  # TF_FORCE_GPU_ALLOW_GROWTH goes before it

    @functools.wraps(session)
    def begin(self, target="", graph=None, config=None):
        options = getattr(config, "gpu_options", None)
        set_here = [name for name in OPTIONS if getattr(options, name, None)]
        if set_here:
            note("tf.compat.v1.GPUOptions", **{name: getattr(options, name) for name in set_here})
            without = type(config)()
            without.CopyFrom(config)
            for name in set_here:
                without.gpu_options.ClearField(name)
            config = without
        session(self, target, graph, config)

    Context.set_logical_device_configuration, Context.set_memory_growth = set_logical_device_configuration, set_memory_growth
    BaseSession.__init__ = begin
    write("begun")
    count(tensorflow, ran, write, repeats, at_end, steps, agree)


def count(tensorflow, ran, write, repeats, at_end, steps, agree):
    """Counts runs of each tf.function, which are steps, and ends the program after as many as are
    asked for, or when its memory repeats."""
    try:
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
    except ImportError:
        return  # another release

    inner = Function.__call__

    def look():
        gpus = ["GPU:%d" % i for i in range(len(tensorflow.config.list_logical_devices("GPU")))]
        return sum(tensorflow.config.experimental.get_memory_info(gpu)["peak"] for gpu in gpus), sum(ran.values()), 0

    @functools.wraps(inner)
    def call(self, *args, **named):
        eager = tensorflow.executing_eagerly()  # else another one is being traced
        results = inner(self, *args, **named)
        if eager:
            if not ran:
                at_end(write)
                repeats(look, write)
            ran[id(self)] = ran.get(id(self), 0) + 1
            if steps() and ran[id(self)] >= steps():
                agree(write, "steps")
        return results

    Function.__call__ = call
