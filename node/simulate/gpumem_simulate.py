# Prepares frameworks for the simulated driver, in runs of gpumem fit and of gpumem run --simulate.
# It works in each Python from 3.4 on, and does nothing before a framework is imported.
#
#   GPUMEM_SIM_FOLDER  the folder of the simulated driver and the libraries beside it
import os
import sys

# Modules that load CUDA's libraries, and the one of JAX that looks for /dev/nvidia0.
FRAMEWORKS = ("torch", "jax", "jaxlib", "tensorflow", "cupy", "cupy_backends", "rmm", "numba", "triton")
HARDWARE = "jax._src.hardware_utils"
GENERATION = "transformers.generation.utils"

# Packages whose libraries have NVIDIA's runtime linked into them.
STATIC = ("cupy", "cupy_backends", "cupyx", "rmm", "pylibraft", "raft_dask", "cudf", "pylibcudf", "cuml", "cugraph", "cuvs", "cuda")


def preload(folder):
    """Loads the libraries beside the driver. NVIDIA's own, where they are installed, look for what
    only a real driver has. A library is found by its name among those that are loaded, so these come first."""
    import ctypes

    for name in sorted(os.listdir(folder)):
        if ".so." in name and not name.startswith("libcuda.so"):
            try:
                ctypes.CDLL(os.path.join(folder, name))
            except OSError as error:
                sys.stderr.write("gpumem: %s\n" % (error,))


def prepare(name, module):
    """Sets what a framework that was imported needs on the simulated GPU."""
    if name == HARDWARE and hasattr(module, "has_visible_nvidia_gpu"):
        module.has_visible_nvidia_gpu = lambda: True
    elif name == GENERATION:
        end_at_length(module)
    elif name == "torch":
        # Attention by cuDNN needs a plan of an engine that is not there.
        cuda = getattr(getattr(module, "backends", None), "cuda", None)
        if hasattr(cuda, "enable_cudnn_sdp"):
            cuda.enable_cudnn_sdp(False)
        # It compares numbers that collectives brought.
        distributed = getattr(module, "distributed", None)
        if hasattr(distributed, "_verify_params_across_processes"):
            distributed._verify_params_across_processes = lambda *_: None


def redirect():
    """Has runtimes that are linked into the libraries loaded so far call the one beside the driver."""
    import ctypes

    for name in sorted(os.listdir(os.environ["GPUMEM_SIM_FOLDER"])):
        if name.startswith("libcudart.so."):
            if ctypes.CDLL(os.path.join(os.environ["GPUMEM_SIM_FOLDER"], name)).gpumemRedirect() < 0:
                sys.stderr.write("gpumem: a library with NVIDIA's runtime in it cannot be changed in memory; it will find no GPU\n")


def end_at_length(module):
    """Has generate() of transformers end at its greatest length: a kernel would say that it is reached."""
    criteria, mixin = getattr(module, "StoppingCriteriaList", None), getattr(module, "GenerationMixin", None)
    if not hasattr(mixin, "_has_unfinished_sequences") or not hasattr(criteria, "max_length"):
        return
    call, unfinished = criteria.__call__, mixin._has_unfinished_sequences
    reached = []

    def call_and_note(self, input_ids, *args, **kwargs):
        longest = self.max_length
        reached[:] = [longest is not None and input_ids.shape[-1] >= longest]
        return call(self, input_ids, *args, **kwargs)

    def unfinished_unless_reached(self, *args, **kwargs):
        end = reached and reached.pop()
        return unfinished(self, *args, **kwargs) and not end

    criteria.__call__, mixin._has_unfinished_sequences = call_and_note, unfinished_unless_reached


class Finder(object):
    """Acts when a framework is imported. gpumem fit has its own execute."""

    loaded = False  # the libraries beside the driver are
    names = FRAMEWORKS + (HARDWARE, GENERATION)

    def find_spec(self, name, path=None, target=None):
        if path is not None and name.split(".")[0] in STATIC:
            return self.static_spec(name, path)
        if name not in self.names:
            return None
        import importlib.util

        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        if not Finder.loaded:
            Finder.loaded = True
            preload(os.environ["GPUMEM_SIM_FOLDER"])
        run = spec.loader.exec_module
        spec.loader.exec_module = lambda module: self.execute(name, module, run)
        return spec

    def execute(self, name, module, run):
        """Executes a module that was found, by run."""
        import atexit

        run(module)
        prepare(name, module)
        atexit.register(report)  # behind the framework's own, and so called before it, which may end its backends

    def static_spec(self, name, path):
        """Finds a module of a package. Its libraries are loaded when it is created, and first
        called when it is executed."""
        import importlib.machinery

        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or not isinstance(spec.loader, importlib.machinery.ExtensionFileLoader):
            return None
        create = spec.loader.create_module

        def create_module(spec):
            module = create(spec)
            redirect()
            return module

        spec.loader.create_module = create_module
        return spec


def on_cpu():
    """Returns why each framework that is imported computes on the CPU, a sentence each."""
    found = sys.modules.get
    torch, jax, tensorflow, cupy = found("torch"), found("jax"), found("tensorflow"), found("cupy")
    if torch is not None and hasattr(torch, "version") and not torch.cuda.is_available():
        if not torch.version.cuda:
            yield "PyTorch %s is built without CUDA: install a build with it (https://pytorch.org/get-started)" % torch.__version__
        else:
            yield "PyTorch %s, built for CUDA %s, has found no GPU" % (torch.__version__, torch.version.cuda)
    bridge = getattr(getattr(jax, "_src", None), "xla_bridge", None)
    backends = getattr(bridge, "_backends", {})  # asks for no backend: that would make it
    if backends and not any(name in backends for name in ("cuda", "gpu")):
        names = os.environ.get("JAX_PLATFORMS") or os.environ.get("JAX_PLATFORM_NAME")
        if names:
            yield "JAX %s: JAX_PLATFORMS=%s has no cuda in it" % (jax.__version__, names)
        elif not installed("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13", "jax_cuda12_plugin", "jax_cuda13_plugin"):
            yield "JAX %s has no CUDA plugin: pip install -U 'jax[cuda12]'" % jax.__version__
        else:
            reason = getattr(bridge, "_backend_errors", {}).get("cuda") or "its plugin gives no reason"
            yield "JAX %s has not made its CUDA backend: %s" % (jax.__version__, str(reason).strip().split("\n")[0])
    if tensorflow is not None and hasattr(tensorflow, "config") and not tensorflow.config.list_physical_devices("GPU"):
        if tensorflow.test.is_built_with_cuda():
            yield "TensorFlow %s has found no GPU" % tensorflow.__version__
        else:
            yield "TensorFlow %s is built without CUDA" % tensorflow.__version__


# Texts of errors, and what they mean here.
HINTS = (
    (("libdevice", "ptxas", "Autotuner could not compile", "JIT compilation failed"), "XLA compiles kernels with CUDA's compiler, also for the simulated GPU: pip install nvidia-cuda-nvcc-cu12"),
    (("cuDNN error: not supported on the simulated GPU",), "recurrent layers of cuDNN have no stand-in; torch.backends.cudnn.enabled = False takes PyTorch's own"),
    (("No supported GPU devices found, please specify an abstract GPU",), "Pallas goes by the name of the GPU: gpumem run --simulate H100 gives one that it knows; pallas_call(..., interpret=True) does without it"),
    (("CudnnRNN",), "recurrent layers of cuDNN have no stand-in; use_cudnn=False takes TensorFlow's own"),
)
MEMORY = ("out of memory", "outofmemory", "resource_exhausted", "resource exhausted", "memoryerror")


def hint(error):
    """Returns what an error that ended the program may have to do with the simulated GPU."""
    text = "%s: %s" % (type(error).__name__, error)
    for parts, sentence in HINTS:
        if any(part in text for part in parts):
            return sentence
    if isinstance(error, (ValueError, ArithmeticError, AssertionError)) and not any(word in text.lower() for word in MEMORY):
        return "kernels do nothing here, so a check of computed values can fail that passes on a GPU"
    return None


def installed(*names):
    import importlib.util

    for name in names:
        try:
            if importlib.util.find_spec(name):
                return True
        except ImportError:
            pass
    return False


reported = False


def report():
    global reported
    if reported:
        return
    reported = True
    try:
        for sentence in on_cpu():
            sys.stderr.write("gpumem: computed on the CPU: %s\n" % (sentence,))
        sentence = hint(getattr(sys, "last_value", None))
        if sentence:
            sys.stderr.write("gpumem: %s\n" % (sentence,))
    except Exception as error:  # of another release
        sys.stderr.write("gpumem: whether this was computed on the GPU is unknown: %s: %s\n" % (type(error).__name__, error))


def started():
    """Modules that have been imported know that this file is there: the simulated driver notes a Python without it."""
    os.environ["GPUMEM_SIM_STARTED"] = str(os.getpid())


def install():
    started()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=started)
    sys.meta_path.insert(0, Finder())
