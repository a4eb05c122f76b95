# Limits of TensorFlow and PyTorch on each GPU, in an unchanged program, and the
# count of the processes that share a lease. sitecustomize.py loads it when the
# program imports a framework. install() reads these variables. Numbers of several
# GPUs have commas between, in the order in which the program sees the GPUs.
#
#   GPUMEM_TF_LIMIT_MIB    TensorFlow 2: the limit of the logical device
#   GPUMEM_TF_FRACTION     sessions, as TensorFlow 1 has them: one fraction
#   GPUMEM_TF_CPU          1: TensorFlow sees no GPU
#   GPUMEM_TORCH_FRACTION  PyTorch
#   GPUMEM_REMAT           not a limit of the pool: see gpumem_remat.py
#   GPUMEM_RECORD          not a limit: the file that PyTorch's memory is recorded to
#   GPUMEM_LEASE_ID        the lease's name, one for all of its GPUs
#   GPUMEM_LEASE_PART      of each GPU: the lease there, the bytes of it that each
#                          process may use, its bytes, the GPU's name if it has one, and
#                          the word whole if these bytes are all of it
#   GPUMEM_PROCS           the number of processes that the limits are made for
#   GPUMEM_POOL            other than off: the driver library serves the memory, and
#                          counts and records it; of the others only GPUMEM_TF_CPU
#                          and GPUMEM_REMAT are read then
#
# Without them it does nothing. With them it sets the limits as late as it can:
# when the framework makes its devices. So it starts no driver, and the program's
# own settings come first. No error of it reaches the program: each is one line on
# stderr.
#
# Written for every Python from 3.4 on.
import os
import sys


def say(name, error, what="the lease is not enforced"):
    try:
        text = " ".join(str(error).split())
        sys.stderr.write("gpumem: %s in %s: %s: %s\n" % (what, name, type(error).__name__, text))
    except Exception:
        pass


def numbers(name, kind):
    return [kind(text) for text in os.environ[name].split(",")]


def of(limits, i):
    # A program may see other GPUs than it was given: those get the least.
    return limits[i] if i < len(limits) else min(limits)


def install():
    """Returns the finder that sets the limits, or None if there are none to set."""
    wanted = {}  # what to do, by module
    if os.environ.get("GPUMEM_TF_LIMIT_MIB") or os.environ.get("GPUMEM_TF_CPU"):
        wanted["tensorflow"] = [tensorflow]
    if os.environ.get("GPUMEM_TORCH_FRACTION"):
        wanted["torch"] = [torch]
    served = os.environ.get("GPUMEM_POOL", "off") not in ("", "off")
    if os.environ.get("GPUMEM_LEASE_ID") and not served:
        wanted["jax._src.xla_bridge"] = [jax]
        wanted["jax._src.lib.xla_bridge"] = [jax]  # before 0.4.2
    if os.environ.get("GPUMEM_RECORD") and not served:
        import gpumem_record

        gpumem_record.begin(say, using)
        wanted.setdefault("torch", []).append(gpumem_record.torch)
    if os.environ.get("GPUMEM_REMAT"):
        wanted.setdefault("jax", []).append(remat)
    if not wanted:
        return None
    finder = Finder(wanted)
    sys.meta_path.insert(0, finder)
    return finder


def remat(module):
    import gpumem_remat

    try:
        command = os.environ.get("GPUMEM_COMMAND")
        if not command:
            raise RuntimeError("GPUMEM_COMMAND is not set to the path of gpumem")
        gpumem_remat.install(os.environ["GPUMEM_REMAT"], command)
    except Exception as error:
        gpumem_remat.say("--remat: functions are compiled as they are: %s" % error)


# What the allocators of GPU memory say, and the driver, and no others.
NO_MEMORY = (
    r"CUDA out of memory|HIP out of memory|Out of memory (while trying to allocate|allocating) |OOM when allocating tensor"
    r"|Failed to allocate (request for|memory)|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
)


def end(error):
    """Says what to do where lack of GPU memory has ended the program."""
    try:
        import re

        gpus = sorted(using.get(os.getpid(), ()))
        cupy = type(error).__module__.startswith("cupy.") and type(error).__name__ == "OutOfMemoryError"
        if cupy or gpus and re.search(NO_MEMORY, str(error)):
            parts = [part_of(gpu) for gpu in gpus or [0]]
            had = " and ".join(part.text(len(gpus) > 1) for part in parts)
            larger = "" if all(part.whole for part in parts) else "run it with a larger gpumem run --mem, or "
            sys.stderr.write("gpumem: out of GPU memory: this process had %s; %sgive this output to gpumem doctor\n" % (had, larger))
    except Exception:
        pass


# Processes that share a lease.
#
# Each framework's limit holds for one process. A process that makes devices locks
# bytes for each GPU in a file that all processes of this user share. The lease and the
# GPU have a row of bytes: one for each process, then ROW that stand for the lease, of
# which a process locks as many as its part, then one for the process that has said that
# there are too few. So nested runs with parts of several sizes are added up. The kernel
# unlocks them when the process ends, however that is.

ROW = 1024  # more processes than use one GPU
SAID = 2 * ROW
STRIDE = 4 * ROW  # between two rows
counted = set()  # (process, GPU)
using = {}  # by process: numbers of the GPUs on which it has made devices
files = []  # the file, open: the locks go when any descriptor of it is closed


class Part(object):
    """What this process may use of the lease on a GPU, in bytes."""

    def __init__(self, text, gpu):
        words = text.split()
        self.bytes, self.lease, self.gpu = int(words[1]), int(words[2]), gpu
        self.name = words[3] if len(words) > 3 and words[3] != "-" else ""
        self.whole = self.bytes == self.lease and "whole" in words[4:]  # the lease is all of the GPU

    def text(self, named):
        times = self.lease // self.bytes
        of = ""
        if self.whole:
            of = "all of a GPU of "
        elif times == 1 and self.bytes == self.lease:
            of = "a lease of "
        elif self.bytes == self.lease // times:
            of = "%s, 1/%d of a lease of " % (iec(self.bytes), times)
        else:
            of = "%s of a lease of " % iec(self.bytes)
        return of + iec(self.lease) + (" on GPU %s" % (self.name or self.gpu) if named else "")


def iec(count):
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit:
            return ("%.2f" % (float(count) / unit)).rstrip("0").rstrip(".") + " " + name
    return "%d B" % count


def part_of(gpu):
    # A process may see other GPUs than the program that was started, by name.
    parts = [Part(text, i) for i, text in enumerate(os.environ["GPUMEM_LEASE_PART"].split(","))]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    for part in parts:
        if part.name and gpu < len(visible) and visible[gpu] == part.name:
            return part
    return parts[gpu] if gpu < len(parts) else parts[0]


def used(gpus):
    using.setdefault(os.getpid(), set()).update(gpus)


def count(gpus):
    """Counts this process for the numbers of the GPUs that it is about to use, and
    says so if the parts of all processes are more than the lease."""
    lease = os.environ.get("GPUMEM_LEASE_ID")
    if not lease:
        return
    try:
        import binascii
        import fcntl

        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        for gpu in gpus:
            who = (os.getpid(), gpu)
            if who in counted:
                continue
            counted.add(who)
            part = part_of(gpu)
            name = visible[gpu] if gpu < len(visible) else str(gpu)
            row = STRIDE * (binascii.crc32((lease + " " + name).encode()) & 0xFFFFFFFF)
            number = (take(fcntl, row, 0, ROW, 1) or [ROW])[0] + 1
            wanted = max(1, ROW * part.bytes // part.lease)
            if len(take(fcntl, row, ROW, 2 * ROW, wanted)) < wanted and take(fcntl, row, SAID, SAID + 1, 1):
                sys.stderr.write(
                    "gpumem: process %d is number %d on GPU %s in a lease of %s, and may take %s of it, more than the others leave; to divide it: gpumem run --procs %d\n"
                    % (os.getpid(), number, name or gpu, iec(part.lease), "all" if part.bytes == part.lease else iec(part.bytes), number)
                )
                sys.stderr.flush()
    except Exception as error:
        say("this process", error, "the processes of the lease are not counted")


def take(fcntl, row, low, high, wanted):
    """Locks the first free bytes of a row from low to high, as many as are wanted, and
    returns their places."""
    if not files:
        fd = os.open(os.path.join(os.path.dirname(__file__), "processes"), os.O_RDWR)
        # Out of the way of the program's descriptors.
        files.append(fcntl.fcntl(fd, getattr(fcntl, "F_DUPFD_CLOEXEC", 1030), 200))
        os.close(fd)
    places = []
    for place in range(low, high):
        if len(places) == wanted:
            break
        try:
            fcntl.lockf(files[0], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, row + place)
            places.append(place)
        except (BlockingIOError, PermissionError):  # taken
            pass
    return places


class Finder(object):
    """Lets the others find a module, and acts once it has been run."""

    def __init__(self, wanted):
        self.wanted = wanted

    def find_spec(self, name, path=None, target=None):
        acts = self.wanted.get(name)
        if acts is None:
            return None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                try:
                    self.follow(spec, name, acts)
                except Exception as error:
                    say(name, error)
                return spec
        return None

    def follow(self, spec, name, acts):
        # The loader is of this one spec. What is set on it goes when it has done
        # its work, so that the program finds it as it always is.
        loader = spec.loader
        if loader is None:  # a folder without code
            return
        run = loader.exec_module

        def exec_module(module):
            if module.__name__ != name:  # a zip file's loader is of all in it
                return run(module)
            try:
                del loader.exec_module
            except AttributeError:
                pass
            run(module)  # whose errors are the program's
            if self.wanted.pop(name, None) is None:
                return
            if not self.wanted and self in sys.meta_path:
                sys.meta_path.remove(self)
            for act in acts:
                try:
                    act(module)
                except Exception as error:
                    say(name, error)

        loader.exec_module = exec_module


def wrap(owner, name, make):
    """Puts make(what was there) in its place."""
    inner = getattr(owner, name)
    outer = make(inner)
    try:
        outer.__name__, outer.__doc__, outer.__wrapped__ = name, inner.__doc__, inner
    except AttributeError:
        pass
    setattr(owner, name, outer)
    return inner


# TensorFlow.


def tensorflow(tf):
    cpu = bool(os.environ.get("GPUMEM_TF_CPU"))
    devices = Devices(tf, cpu, [] if cpu else numbers("GPUMEM_TF_LIMIT_MIB", int))
    context = sys.modules.get("tensorflow.python.eager.context")
    known = getattr(context, "Context", None)
    if hasattr(tf, "config"):
        if hasattr(known, "ensure_initialized"):
            devices.follow(context)
        else:  # not known when the devices are made: at once
            devices.limit_once()
            if devices.ours:
                wrap(tf.config.experimental, "set_memory_growth", devices.growth)
    sessions(tf, devices, None if cpu else numbers("GPUMEM_TF_FRACTION", float)[0])


class Devices(object):
    """The GPUs of TensorFlow 2."""

    def __init__(self, tf, cpu, limits):
        from threading import RLock  # which TensorFlow has loaded

        self.tf, self.cpu, self.limits = tf, cpu, limits
        self.ours = []  # the GPUs that have our limit
        self.lock, self.done = RLock(), False
        self.context = None  # the module of the context, which makes the devices

    def limit_once(self):
        with self.lock:
            if self.done:
                return
            self.done = True
            if not self.cpu:
                count(range(max(1, len(self.limits))))
            try:
                self.limit()
            except Exception as error:
                say("tensorflow", error)

    def limit(self):
        """Sets the limits, but for GPUs that the program has set up itself."""
        config = self.tf.config
        old = config.experimental  # the names of 2.0
        if self.cpu:
            (getattr(config, "set_visible_devices", None) or old.set_visible_devices)([], "GPU")
            return
        get = getattr(config, "get_logical_device_configuration", None) or old.get_virtual_device_configuration
        put = getattr(config, "set_logical_device_configuration", None) or old.set_virtual_device_configuration
        device = getattr(config, "LogicalDeviceConfiguration", None) or old.VirtualDeviceConfiguration
        gpus = (getattr(config, "list_physical_devices", None) or old.list_physical_devices)("GPU")
        for i, gpu in enumerate(gpus):
            if not get(gpu):
                put(gpu, [device(memory_limit=of(self.limits, i))])
                self.ours.append(gpu)
        used(range(len(gpus)))

    def follow(self, context):
        """Sets the limits when the devices are made, after all that the program says."""
        self.context = context
        known = context.Context

        def make(inner):
            def ensure_initialized(ctx, *args, **kwargs):
                self.limit_once()
                known.ensure_initialized = inner  # it is called for every operation
                return inner(ctx, *args, **kwargs)

            return ensure_initialized

        wrap(known, "ensure_initialized", make)
        wrap(known, "set_memory_growth", self.growth_of_method)

    # With a limit, set_memory_growth is a ValueError. A program expects what it
    # would be without: nothing, or once the devices are made a RuntimeError.

    def growth(self, inner):
        def set_memory_growth(device, enable):
            if device not in self.ours:
                inner(device, enable)

        return set_memory_growth

    def growth_of_method(self, inner):
        def set_memory_growth(ctx, dev, enable):
            if dev not in self.ours:
                inner(ctx, dev, enable)
            elif ctx.get_memory_growth(dev) != enable and getattr(ctx, "_context_handle", None) is not None:
                raise RuntimeError("Physical devices cannot be modified after being initialized")

        return set_memory_growth


def sessions(tf, devices, fraction):
    """Caps sessions and listings, which make devices by their own ConfigProto."""
    v1 = getattr(getattr(tf, "compat", None), "v1", None) or tf
    proto = getattr(v1, "ConfigProto", None)
    if proto is None:
        return

    def capped(config):
        copy = proto()
        if config is not None:
            copy.CopyFrom(config)
        if devices.cpu:
            copy.device_count["GPU"] = 0
            return copy
        options = copy.gpu_options
        if not getattr(getattr(options, "experimental", None), "virtual_devices", None):
            if not 0 < options.per_process_gpu_memory_fraction <= fraction:
                options.per_process_gpu_memory_fraction = fraction
            options.allow_growth = True
        return copy

    def session(inner):
        def __init__(self, target="", graph=None, config=None, **kwargs):
            try:
                if config is None and devices.context is not None:  # it takes the context's
                    devices.limit_once()
                    config = getattr(devices.context.context(), "config", None)
                if not target and (config is None or isinstance(config, proto)):
                    config = capped(config)
            except Exception as error:
                say("tensorflow", error)
            inner(self, target=target, graph=graph, config=config, **kwargs)

        return __init__

    def listing(inner):
        def list_local_devices(session_config=None):
            try:
                if session_config is None:
                    session_config = capped(None)
            except Exception as error:
                say("tensorflow", error)
            return inner(session_config)

        return list_local_devices

    base = getattr(sys.modules.get("tensorflow.python.client.session"), "BaseSession", None)
    for owner in [base] if base else [getattr(v1, name, None) for name in ("Session", "InteractiveSession")]:
        if owner is not None:
            wrap(owner, "__init__", session)
    device_lib = sys.modules.get("tensorflow.python.client.device_lib")
    if hasattr(device_lib, "list_local_devices"):
        wrap(device_lib, "list_local_devices", listing)


# PyTorch.


def torch(module):
    cuda = module.cuda
    limits = numbers("GPUMEM_TORCH_FRACTION", float)

    def make(inner):
        def set_per_process_memory_fraction(fraction, device=None):
            if isinstance(fraction, float):
                fraction = min(fraction, min(limits))
            return inner(fraction, device)

        return set_per_process_memory_fraction

    inner = wrap(cuda, "set_per_process_memory_fraction", make)
    if getattr(getattr(cuda, "memory", None), "set_per_process_memory_fraction", None) is inner:
        cuda.memory.set_per_process_memory_fraction = cuda.set_per_process_memory_fraction

    def cap():
        try:
            gpu = module._C._cuda_getDevice() if hasattr(getattr(module, "_C", None), "_cuda_getDevice") else 0
            count([gpu])
            used([gpu])
            for i in range(cuda.device_count()):
                inner(of(limits, i), i)
        except Exception as error:
            say("torch", error)

    cuda._lazy_call(cap)  # once CUDA is started, which it does not start


# JAX, whose limit is a variable: its processes are only counted.


def jax(bridge):
    def make(inner):
        def _init_backend(platform):
            if platform not in ("cuda", "rocm", "gpu"):
                return inner(platform)
            gpus = range(len(os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
            count(gpus)
            backend = inner(platform)
            used(gpus)  # it has some
            return backend

        return _init_backend

    if hasattr(bridge, "_init_backend"):  # 0.3.25 to 0.12 have it
        wrap(bridge, "_init_backend", make)
    else:
        say("jax", AttributeError("_init_backend"), "the processes of the lease are not counted")
