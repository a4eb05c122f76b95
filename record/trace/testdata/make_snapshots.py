#!/usr/bin/env python3
"""Writes the small PyTorch snapshots beside this file, one per layout.

They are synthetic: made by hand in the layouts that PyTorch wrote in 2023, 2025
and 2026 (torch.cuda.memory._dump_snapshot), with made-up addresses, sizes and
stacks. Run it in this directory; its output does not change from run to run.
"""

import pickle

BASE = 0x7F0000000000


def frame(name, filename, line):
    return {"name": name, "filename": filename, "line": line}


# Shared frames are one object, as in a real snapshot: the pickle memoises them.
UNWIND = [
    frame("torch::unwind::unwind()", "??", 0),
    frame("torch::CapturedTraceback::gather(bool, bool, bool)", "??", 0),
    frame("c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(unsigned long)", "CUDACachingAllocator.cpp", 0),
]
MAIN = frame("<module>", "/home/someone/project/train.py", 40)
FORWARD = frame("forward", "/home/someone/project/model.py", 12)
STEP = frame("step", "/home/someone/venv/lib/python3.12/site-packages/torch/optim/adamw.py", 220)
EVAL = frame("_PyEval_EvalFrameDefault", "??", 0)
ENGINE = [
    frame("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0),
    frame("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", "??", 0),
    frame("__clone3", "clone3.S", 81),
]
IN_FORWARD = UNWIND + [EVAL, FORWARD, EVAL, MAIN, EVAL]
IN_STEP = UNWIND + [EVAL, STEP, EVAL, MAIN, EVAL]
IN_BACKWARD = UNWIND + ENGINE


def write(name, snapshot, protocol=4):
    with open(name, "wb") as f:
        pickle.dump(snapshot, f, protocol=protocol)


def era_2023():
    """Blocks without addresses, a ring buffer of one event (the default then)."""
    frames = [FORWARD, MAIN]

    def block(size, requested, state, addr=None):
        b = {"size": size, "requested_size": requested, "state": state}
        if addr is not None:
            b["history"] = [{"addr": addr, "real_size": requested, "frames": frames}]
        return b

    big, small = BASE, BASE + (64 << 20)
    return {
        "segments": [
            {
                "device": 0, "address": big, "total_size": 20 << 20, "allocated_size": 12 << 20,
                "active_size": 12 << 20, "requested_size": 12000000, "stream": 0, "segment_type": "large",
                "blocks": [
                    block(8 << 20, 8000000, "active_allocated", big),
                    block(8 << 20, 8300000, "inactive", big + (8 << 20)),
                    block(4 << 20, 4000000, "active_pending_free", big + (16 << 20)),
                ],
            },
            {
                "device": 0, "address": small, "total_size": 2 << 20, "allocated_size": 512,
                "active_size": 512, "requested_size": 4, "stream": 0, "segment_type": "small",
                "blocks": [block(512, 4, "active_allocated", small), block((2 << 20) - 512, 0, "inactive")],
            },
        ],
        # The block that lay at big + 8 MiB: freed, and not seen allocated.
        "device_traces": [[{"action": "free_completed", "addr": big + (8 << 20), "size": 8300000, "stream": 0}]],
    }


def segment(device, address, blocks, stream=0):
    total = sum(b[0] for b in blocks)
    active = sum(b[0] for b in blocks if b[2] != "inactive")
    out, addr = [], address
    for size, requested, state, frames in blocks:
        out.append({"address": addr, "size": size, "requested_size": requested, "state": state, "frames": frames})
        addr += size
    return {
        "device": device, "address": address, "total_size": total, "allocated_size": active,
        "active_size": active, "requested_size": sum(b[1] for b in blocks if b[2] != "inactive"), "stream": stream,
        "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": out,
    }


SETTINGS = {
    "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.8,
    "expandable_segments": False, "roundup_power2_divisions": {"1": 0, "2": 0},
}


def era_2025():
    """One device: older blocks, unseen frees, an open free, a second stream, an oom."""
    clock = iter(range(1_700_000_000_000_000, 1_800_000_000_000_000, 10))

    def event(action, addr, size, stream=0, frames=IN_FORWARD):
        key = "device_free" if action == "oom" else "addr"
        return {"action": action, key: addr, "size": size, "stream": stream,
                "time_us": next(clock), "compile_context": "N/A", "frames": frames}

    def free(addr, size, stream=0):
        return [event("free_requested", addr, size, stream, IN_STEP), event("free_completed", addr, size, stream, IN_STEP)]

    a, b, c = BASE, BASE + (32 << 20), BASE + (64 << 20)
    side = 94000000000000  # a stream handle is a pointer
    trace = [
        *free(a + 4096, 3000),                                # never seen allocated
        event("alloc", a + 4096, 2500),                       # its place, used again
        event("segment_alloc", b, 2 << 20),
        event("alloc", b, 2000000, 0, IN_BACKWARD),
        event("alloc", b + (2 << 20), 100, side),
        *free(b, 2000000),
        event("oom", 1 << 20, 8 << 30),
        event("segment_free", c, 20 << 20),
        event("alloc", b, 1048576, 0, IN_STEP),
        event("free_requested", b + (2 << 20), 100, side),    # never completed
        event("oom", 1 << 20, 4 << 30),
    ]
    return {
        "segments": [
            segment(0, a, [
                (4096, 4000, "active_allocated", [STEP, MAIN]),   # older than the recording
                (4096, 2500, "active_allocated", IN_FORWARD),
                (8192, 0, "inactive", []),
            ]),
            segment(0, b, [(2 << 20, 1048576, "active_allocated", IN_STEP)]),
            segment(0, b + (2 << 20), [(512, 100, "active_pending_free", IN_FORWARD)], side),
        ],
        "device_traces": [trace],
        "allocator_settings": SETTINGS,
        "external_annotations": [],
    }


def era_2026():
    """Two devices of four whose events interleave in time; metadata on each event."""

    def event(time, action, addr, size, frames=IN_FORWARD):
        return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time,
                "compile_context": "N/A", "user_metadata": "", "frames": frames}

    first, second = BASE, BASE + (1 << 32)
    return {
        "segments": [
            segment(0, first, [(1024, 1000, "active_allocated", IN_FORWARD), (1024, 0, "inactive", [])]),
            segment(2, second, [(2048, 2000, "active_awaiting_free", IN_STEP)]),
        ],
        "device_traces": [
            [
                event(100, "alloc", first, 1000),
                event(300, "alloc", first + 1024, 600),
                event(500, "free_requested", first + 1024, 600, IN_STEP),
                event(500, "free_completed", first + 1024, 600, IN_STEP),
            ],
            [],
            [
                event(200, "alloc", second + 2048, 5000, IN_BACKWARD),
                event(250, "free_requested", second + 2048, 5000, IN_STEP),
                event(250, "free_completed", second + 2048, 5000, IN_STEP),
            ],
            [],
        ],
        "allocator_settings": {**SETTINGS, "graph_capture_record_stream_reuse": False},
        "external_annotations": [{"stage": "START", "name": "Optimizer.step#AdamW.step", "device": 0, "time_us": 150}],
    }


if __name__ == "__main__":
    write("torch2023.pickle", era_2023(), protocol=4)
    write("torch2025.pickle", era_2025(), protocol=2)
    write("torch2026.pickle", era_2026(), protocol=5)
