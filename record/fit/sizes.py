# Sizes that depend on values of the GPU, which are zeros in a run of gpumem fit: which calls of a
# PyTorch program make them, from which line, and how often. What is assumed of them is used.
#
#   GPUMEM_FIT_ASSUME  NAME=VALUE,...; nonzero and unique: a part of the elements, item: an integer
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

# Generated code, which has no line of the program.
GENERATED = ("<frozen", "<eval_with_key")

calls = {}  # how many, by name and line
within = threading.local()  # of an operator: the integer that it reads
library = None


def assumed():
    pairs = [pair.split("=") for pair in os.environ.get("GPUMEM_FIT_ASSUME", "").split(",") if pair]
    return {name: int(value) if name == "item" else float(value) for name, value in pairs}


def found():
    """None if it is not known."""
    return library and [{"call": name, "where": line, "count": count} for (name, line), count in list(calls.items())]


def line(folder):
    """The line of the program that is being run; "" in the backward pass, which has none."""
    frame = sys._getframe()
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((folder,) + GENERATED) and "torchinductor" not in path:
            return "%s:%d" % (os.path.basename(path), frame.f_lineno)
        frame = frame.f_back
    return ""


def hide(folder, *functions):
    """torch.compile traces functions that C++ calls, other than those of files of its own."""
    for f in functions:
        f.__code__ = f.__code__.replace(co_filename=os.path.join(folder, "_dynamo", "gpumem_fit_sizes.py"))


def zero(value):
    return all(map(zero, value)) if isinstance(value, list) else value == 0


def watch(torch):
    """Has the calls counted from now on, in releases that can."""
    import inspect

    global library
    own = sys.modules.get("torch.library")
    if own and not library and "with_keyset" in inspect.signature(own.Library.impl).parameters:
        library = own.Library("aten", "IMPL")
        count_calls(torch)


def count_calls(torch):
    folder, assume = os.path.dirname(torch.__file__) + os.sep, assumed()
    tolist = torch.Tensor.tolist

    def note(name):
        key = name, line(folder)
        calls[key] = calls.get(key, 0) + 1

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
        note("item")
        return assume.get("item", value)

    def read_list(self):
        values = tolist(self)
        if self.is_cuda and countable(self) and self.numel() and zero(values):
            note("item")
        return values

    def count(operator, name):
        def call(keys, tensor, *args, **named):
            rest = keys.remove(torch._C.DispatchKey.BackendSelect)
            if not keys.has(torch._C.DispatchKey.CUDA):
                return operator.redispatch(rest, tensor, *args, **named)
            note(name)
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

    torch.Tensor.tolist = read_list
    hide(folder, line, note, countable, read, read_list, zero, resized)
    for operator, name in OPERATORS.items():
        packet, overload = operator.split(".")
        count(getattr(getattr(torch.ops.aten, packet), overload), name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one already
        library.impl("_local_scalar_dense", read, "CUDA")
