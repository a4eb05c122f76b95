# Sizes that depend on values of the GPU, which are zeros in a run of gpumem fit: which calls of a
# PyTorch or JAX program make them, from which line, and how often. What is assumed of them is used.
#
#   GPUMEM_FIT_ASSUME  NAME=VALUE,...; nonzero and unique: a part of the elements, item: an integer
import functools
import os
import sys
import threading
import warnings

# The operators, by their names in torch.ops.aten, with those for people. Masks as indices,
# masked_select, where and argwhere come by nonzero, from Python, C++ and compiled code alike.
OPERATORS = {
    "nonzero.default": "nonzero",
    "nonzero.out": "nonzero",
    "_unique2.default": "unique",
    "unique_consecutive.default": "unique",
    "unique_dim.default": "unique with dim",
    "bincount.default": "bincount",
    "repeat_interleave.Tensor": "repeat_interleave",
}

# How many integers that a program of JAX puts on a GPU are kept.
SMALL = 1 << 16

# Generated code, which has no line of the program.
GENERATED = ("<frozen", "<eval_with_key")

calls = {}  # how many, by name and line
within = threading.local()  # of an operator: the integer that it reads
library = None  # of PyTorch's operators
watched = False


def assumed():
    pairs = [pair.split("=") for pair in os.environ.get("GPUMEM_FIT_ASSUME", "").split(",") if pair]
    return {name: int(value) if name == "item" else float(value) for name, value in pairs}


def found():
    """None if it is not known."""
    return [{"call": name, "where": line, "count": count} for (name, line), count in list(calls.items())] if watched else None


def note(name, folders):
    key = name, line(folders)
    calls[key] = calls.get(key, 0) + 1


def line(folders):
    """The line of the program that is being run; "" in the backward pass, which has none."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith(folders + GENERATED + (__file__,)) and "torchinductor" not in path:
            return "%s:%d" % (os.path.basename(path), frame.f_lineno)
        frame = frame.f_back
    return ""


def hide(folder, *functions):
    """torch.compile traces functions that C++ calls, other than those of files of its own."""
    for f in functions:
        f.__code__ = f.__code__.replace(co_filename=os.path.join(folder, "_dynamo", "gpumem_fit_sizes.py"))


def is_given(name, args, named):
    """Whether the program says the size, or as bincount's minlength what it mostly is."""
    return bool(name == "bincount" and (args[1] if len(args) > 1 else named.get("minlength"))) or named.get("output_size") is not None


def zero(value):
    return all(map(zero, value)) if isinstance(value, list) else value == 0


def filled(value, n):
    """A list of lists of integers, or one integer, with n in place of each."""
    return [filled(v, n) for v in value] if isinstance(value, list) else n


def watch(torch):
    """Has the calls counted from now on, in releases that can."""
    import inspect

    global library, watched
    own = getattr(torch, "library", None)
    if own and not library and "with_keyset" in inspect.signature(own.Library.impl).parameters:
        library, watched = own.Library("aten", "IMPL"), True
        count_calls(torch)


def count_calls(torch):
    folder, assume = os.path.dirname(torch.__file__) + os.sep, assumed()
    folders = (folder,)
    tolist, integer = torch.Tensor.tolist, torch.Tensor.__int__

    def countable(tensor):
        return not (tensor.dtype == torch.bool or tensor.dtype.is_floating_point or tensor.dtype.is_complex)

    def read(tensor):
        """A number that the program reads, or an operator. One that is not 0 is the program's own."""
        inside = getattr(within, "size", None)
        if inside is not None:
            return tensor.dtype == torch.bool or inside  # its checks hold
        value = tensor.cpu().item()
        if value != 0 or not countable(tensor):
            return value
        note("item", folders)
        return assume.get("item", value)

    def read_list(self):
        values = tolist(self)
        if self.is_cuda and countable(self) and self.numel() and zero(values):
            note("item", folders)
            return filled(values, assume.get("item", 0))
        return values

    def read_int(self):
        """A size that was made in floats; its value is read by item."""
        value = integer(self)
        if self.is_cuda and self.dtype.is_floating_point and value == 0:
            note("item", folders)
            value = assume.get("item", value)
        return value

    def count(operator, name):
        def call(keys, tensor, *args, **named):
            rest = keys.remove(torch._C.DispatchKey.BackendSelect)
            if not keys.has(torch._C.DispatchKey.CUDA):
                return operator.redispatch(rest, tensor, *args, **named)
            if not is_given(name, args, named):
                note(name, folders)
            part = assume.get(name)
            within.size = assume.get("item", 0) if part is None else round(part * tensor.numel())
            try:
                results = operator.redispatch(rest, tensor, *args, **named)
                return results if part is None or name != "nonzero" else resized(results, tensor, named)
            finally:
                within.size = None

        hide(folder, call)
        library.impl(operator.name(), call, "BackendSelect", with_keyset=True)

    def resized(indices, tensor, named):
        """As many indices as are assumed, by dimension as nonzero lays them out."""
        if "out" in named:
            return indices.resize_(within.size, tensor.dim())
        return torch.empty((tensor.dim(), within.size), dtype=indices.dtype, device=indices.device).t()

    torch.Tensor.tolist, torch.Tensor.__int__ = read_list, read_int
    hide(folder, line, note, is_given, zero, filled, countable, read, read_list, read_int, resized)
    for operator, name in OPERATORS.items():
        packet, overload = operator.split(".")
        count(getattr(getattr(torch.ops.aten, packet), overload), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one already
        library.impl("_local_scalar_dense", read, "CUDA")


def watch_jax(jax):
    """Has the integers and masks counted that are read of GPUs, by which JAX knows a size: under
    jit there is none. They are zeros, but for those that the program wrote, which would be what lay
    there before."""
    global watched
    from jax._src import array
    from jax._src.interpreters import pxla

    numpy, assume = sys.modules["numpy"], assumed()
    folders = tuple(os.path.dirname(m.__file__) + os.sep for m in (jax, numpy))
    value, make = array.ArrayImpl._value, jax.numpy.array
    watched = True

    def marked(function, source):
        """Keeps the small integers that a function puts on a GPU."""
        @functools.wraps(function)
        def write(*args, **named):
            result = function(*args, **named)
            try:
                of = source(args)
                small = isinstance(result, array.ArrayImpl) and result.dtype.kind in "ib" and result.size <= SMALL
                if small and not any(isinstance(x, array.ArrayImpl) for x in jax.tree.leaves(of)):
                    result._gpumem_fit_value = numpy.asarray(of, result.dtype).reshape(result.shape)
            except Exception:
                pass  # of several devices, or no numbers
            return result

        return write

    def read(self):
        found = getattr(self, "_gpumem_fit_value", None)
        if found is not None:
            return found
        found = value.fget(self)
        on_gpu = any(d.platform in ("gpu", "cuda") for d in self.sharding.device_set)
        if not on_gpu or not found.size or found.dtype.kind not in "ib" or found.dtype.kind == "b" and not found.ndim:
            return found
        zeros = found.copy()
        zeros.fill(0)
        if zeros.dtype.kind == "b":
            note("nonzero", folders)
            zeros.reshape(-1)[: round(assume.get("nonzero", 0) * zeros.size)] = True
        else:
            note("item", folders)
            zeros += assume.get("item", 0)
        return zeros

    array.ArrayImpl._value = property(read)
    pxla.batched_device_put = marked(pxla.batched_device_put, lambda args: args[2][0] if len(args[2]) == 1 else None)
    for module in list(sys.modules.values()):
        if getattr(module, "array", None) is make:  # which copies what it puts there
            module.array = marked(make, lambda args: args[0])
