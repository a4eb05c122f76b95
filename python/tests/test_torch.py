"""What gpumem says of the memory of the real PyTorch, Lightning and transformers, on a GPU or on the
simulated one in the driver's place (scripts/python-on-sim); skipped where they or a GPU are missing.

Where a size is expected it is known by construction: of the model, or from PyTorch's own history."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

import gpumem
from test_gpumem import python
from test_libraries import DEVICE, missing

LACKING = missing("torch")
if not LACKING:
    works = python("import torch\nx = torch.ones(4, 4, device='cuda')\nx @ x\nprint('done')", **DEVICE)
    LACKING = "" if works[1] == "done\n" else "PyTorch cannot multiply matrices here"
if LACKING:
    print(f"test_torch: SKIPPED: {LACKING}", file=sys.stderr)

HEAD = """
import warnings; warnings.simplefilter("ignore")
import gc, torch, gpumem
MIB = 1 << 20
def empty(n): return torch.empty(n, dtype=torch.uint8, device="cuda")
def requested(): return torch.cuda.memory_stats()["requested_bytes.all.current"]
def network(width=512, depth=6): return torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(depth)]).cuda()
def bytes_of(width=512, depth=6): return depth * (width * width + width) * 4
def rows(): return {row.site: (row.bytes, row.blocks) for row in gpumem.torch.live().live}
"""


@unittest.skipIf(LACKING, LACKING)
class Case(unittest.TestCase):
    def check(self, program, **env):
        status, out, err = python(HEAD + program + "\nprint('done')", **{**DEVICE, **env})
        self.assertEqual((status, out.splitlines()[-1:]), (0, ["done"]), err)
        return out, err


class Live(Case):
    def test_by_purpose_to_the_byte(self):
        self.check(
            "net, acts = network(), []\n"
            "opt = torch.optim.Adam(net.parameters())\n"
            "net.register_buffer('mean', torch.zeros(1000, device='cuda'))\n"
            "x = torch.ones(64, 512, device='cuda')\n"
            "net(x).sum().backward(); opt.step()\n"
            "for i in range(20): acts.append(torch.empty(300, 1000, device='cuda'))\n"
            "y = net(x)\n"
            "found, P, h = rows(), bytes_of(), 64 * 512 * 4\n"
            "assert found['parameters of Sequential'] == (P, 12), found\n"
            "assert found['gradients of Sequential'] == (P, 12), found\n"
            "assert found['state of Adam'][0] == 2 * P, found\n"  # its steps are on the host
            "assert found['buffers of Sequential'] == (4000, 1), found\n"
            "assert found['list acts'] == (20 * 1200000, 20), found\n"
            "assert found['kept for the backward pass'][0] == 6 * h, found\n"  # x and five outputs within
            "assert sum(n for n, _ in found.values()) == requested(), found\n"
        )

    def test_by_line_where_a_history_is_recorded(self):
        self.check(
            "before = empty(5 * MIB)\n"
            "torch.cuda.memory._record_memory_history()\n"
            "def make(): return torch.empty(3 * MIB, dtype=torch.uint8, device='cuda')\n"
            "kept = [make() for _ in range(4)]\n"
            "found = rows()\n"
            "assert [v for k, v in found.items() if k.startswith('make (<string>:')] == [(12 * MIB, 4)], found\n"
            "assert sum(n for n, _ in found.values()) == requested() == 17 * MIB, found\n"
            "assert 'make (<string>:' in str(gpumem.torch.live())\n"
        )

    def test_under_the_pool_of_this_project(self):
        self.check("gpumem.torch.use(); kept = [empty(MIB) for _ in range(10)]\nassert rows() == {'list kept': (10 * MIB, 10)}, rows()")

    def test_views_and_shared_storages_count_once(self):
        self.check("x = empty(8 * MIB); views = [x[i * 1000:] for i in range(20)]\nassert sum(n for n, _ in rows().values()) == 8 * MIB, rows()")

    def test_nothing_is_computed_again(self):
        """A look does not unpack what a checkpoint would compute again."""
        self.check(
            "from torch.utils.checkpoint import checkpoint\n"
            "net, calls = network(), []\n"
            "def block(x): calls.append(1); return net(x)\n"
            "x = torch.ones(64, 512, device='cuda', requires_grad=True)\n"
            "y = checkpoint(block, x, use_reentrant=False)\n"
            "before = torch.cuda.memory_stats()['allocation.all.allocated']\n"
            "gpumem.torch.live()\n"
            "assert len(calls) == 1 and torch.cuda.memory_stats()['allocation.all.allocated'] == before\n"
            "y.sum().backward(); assert len(calls) == 2\n"
        )

    def test_no_tensor_is_kept(self):
        self.check(
            "gc.collect(); gc.disable(); x = [empty(MIB) for _ in range(10)]; gpumem.torch.live()\n"
            "del x; assert torch.cuda.memory_allocated() == 0\n"
        )

    def test_statistics(self):
        self.check(
            "assert gpumem.torch.stats() == {}\n"
            "x, y = empty(MIB + 1), empty(5 * MIB); del y\n"
            "s = gpumem.torch.stats()['cuda:0']\n"
            "assert (s.allocated_bytes, s.peak_allocated_bytes) == (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()), s\n"
            "assert (s.reserved_bytes, s.peak_reserved_bytes) == (torch.cuda.memory_reserved(), torch.cuda.max_memory_reserved()), s\n"
            "assert (s.requested_bytes, s.allocated_bytes, s.num_ooms) == (MIB + 1, MIB + 512, 0), s\n"
        )

    def test_memory_that_is_kept_apart(self):
        self.check(
            "assert list(gpumem.torch.programs()) == []\n"
            "pool = torch.cuda.MemPool()\n"
            "with torch.cuda.use_mem_pool(pool): x = empty(3 * MIB)\n"
            "[p] = gpumem.torch.programs()\n"
            "assert (p.device, p.allocated_bytes) == ('cuda:0', 3 * MIB) and p.reserved_bytes >= 3 * MIB, p\n"
        )


class Watch(Case):
    def test_peak_and_lines(self):
        out, err = self.check(
            "older = empty(2 * MIB)\n"
            "def make(): return torch.empty(5 * MIB, dtype=torch.uint8, device='cuda')\n"
            "with gpumem.watch() as w:\n"
            "    x = make(); y = [make(), make()]; del y\n"
            "assert w.peak_bytes == torch.cuda.max_memory_allocated() == 17 * MIB, w.peak_bytes\n"
            "assert sum(row['bytes'] for row in w.live) == 17 * MIB, w.live\n"
            "assert not torch._C._cuda_isHistoryEnabled()\n"
        )
        self.assertRegex(err, r"gpumem.watch: torch: peak 17 MiB on cuda:0, 7 MiB at the end; at the peak:\n.*where\n +15 MiB +3  make \(<string>:\d+\)\n")
        self.assertLess(len(err.splitlines()), 10)

    def test_out_of_memory_goes_on_after_the_lines(self):
        out, err = self.check(
            "@gpumem.watch()\n"
            "def step(): x = empty(6 * MIB); empty(1 << 45)\n"
            "try: step()\n"
            "except torch.OutOfMemoryError: pass\n"
            "else: assert False\n"
        )
        self.assertRegex(err, r"peak 6 MiB on cuda:0, 6 MiB at the end; OutOfMemoryError left the block; at the peak:\n")

    def test_history_of_the_program_goes_on(self):
        self.check(
            "torch.cuda.memory._record_memory_history()\n"
            "x = empty(9 * MIB); del x\n"
            "with gpumem.watch() as w: y = empty(MIB)\n"
            "assert torch._C._cuda_isHistoryEnabled() and w.peak_bytes == MIB, w.peak_bytes\n"
        )

    def test_peak_is_pytorchs_own_count(self):
        """Bytes that are allocated: 256 B take 512, and 11.5 MiB a segment of 12."""
        self.check(
            "with gpumem.watch() as w: x = [empty(1) for _ in range(1000)]\n"
            "assert w.peak_bytes == torch.cuda.max_memory_allocated() == 512000 == sum(row['bytes'] for row in w.live), w.peak_bytes\n"
            "with gpumem.watch() as w: y = empty(23 * MIB // 2); del y\n"
            "assert w.peak_bytes == torch.cuda.max_memory_allocated() == 512000 + 12 * MIB == sum(row['bytes'] for row in w.live), w.peak_bytes\n"
        )

    def test_peak_of_a_block_within_is_its_own(self):
        out, err = self.check(
            "with gpumem.watch() as outer:\n"
            "    x = empty(9 * MIB); del x\n"
            "    with gpumem.watch() as inner: x = empty(2 * MIB)\n"
            "    with gpumem.watch() as unsure: y = empty(5 * MIB); del y\n"
            "assert (outer.peak_bytes, inner.peak_bytes, unsure.peak_bytes) == (9 * MIB, 2 * MIB, None), (outer.peak_bytes, inner.peak_bytes, unsure.peak_bytes)\n"
        )
        self.assertIn("torch: peak about 7 MiB on cuda:0, 2 MiB at the end", err)

    def test_recordings_within_and_over_each_other(self):
        with tempfile.TemporaryDirectory() as folder:
            self.check(
                "import pickle\n"
                f"path = {folder!r} + '/'\n"
                "def sizes(name): return [e['size'] // MIB for e in pickle.load(open(path + name, 'rb'))['device_traces'][0] if e['action'] == 'alloc']\n"
                "a, w, b, c = (gpumem.record(path + name, 'torch') if name else gpumem.watch() for name in ('a', '', 'b', 'c'))\n"
                "a.__enter__(); empty(3 * MIB); w.__enter__(); empty(4 * MIB); b.__enter__(); empty(5 * MIB); a.__exit__(None, None, None)\n"
                "empty(6 * MIB); c.__enter__(); empty(7 * MIB); w.__exit__(None, None, None); empty(8 * MIB)\n"
                "c.__exit__(None, None, None); b.__exit__(None, None, None)\n"
                "assert (sizes('a'), sizes('b'), sizes('c')) == ([3, 4, 5], [5, 6, 7, 8], [7, 8]), (sizes('a'), sizes('b'), sizes('c'))\n"
                "assert w.peak_bytes == 7 * MIB or w.peak_bytes is None, w.peak_bytes\n"
                "assert not torch._C._cuda_isHistoryEnabled()\n"
            )

    def test_a_history_that_is_not_whole(self):
        """PyTorch's own count is the peak where it has risen; else there is none."""
        ended = "torch.cuda.memory._record_memory_history(enabled=None)"
        out, err = self.check(f"with gpumem.watch() as w:\n    x = empty(9 * MIB); {ended}\nassert w.peak_bytes == 9 * MIB\nwith gpumem.watch() as w:\n    del x; x = empty(5 * MIB); {ended}\nassert w.peak_bytes is None\n")
        self.assertIn("torch: peak 9 MiB on cuda:0, 9 MiB at the end; its lines are unknown: PyTorch's history is not whole: it has not 1 of the block's allocations", err)
        self.assertIn("torch: the peak is unknown: PyTorch's history is not whole", err)

    def test_a_watch_within_itself_ends_the_history(self):
        self.check("w = gpumem.watch()\nwith w:\n    with w: x = empty(MIB)\nassert not torch._C._cuda_isHistoryEnabled()\n")

    def test_under_the_pool_of_this_project(self):
        out, err = self.check("gpumem.torch.use()\nwith gpumem.watch() as w: x = empty(4 * MIB)\nassert w.peak_bytes == 4 * MIB")
        self.assertIn("gpumem: peak 4 MiB in use of the pool on GPU 0", err)
        out, err = self.check("gpumem.torch.use()\nwith gpumem.watch('torch'): x = empty(4 * MIB)")
        self.assertIn("torch: the peak is unknown: PyTorch has no history under gpumem.torch.use()", err)
        self.assertNotIn("file an issue", err)


# A training loop with a meter and with PyTorch's history beside it. What the history shows of the peak
# is the truth: parameters and states by their addresses, gradients by those at the end of the backward
# pass of that step.
ORACLE = """
from gpumem import _history, _meter
def truth(net, opt, gradients):
    most, _, blocks = _history.peak(torch.cuda.memory._snapshot())[0]
    at = {p.untyped_storage().data_ptr() for p in net.parameters()}, {t.data_ptr() for s in opt.state.values() for t in s.values() if torch.is_tensor(t) and t.is_cuda}
    sums = [sum(b.bytes for b in blocks if b.address in part) for part in at]
    return sums[0], [sum(b.bytes for b in blocks if b.address in g) for g in gradients], sums[1]

def train(net, opt, batch, steps=4, history=True, none=True):
    if history: torch.cuda.memory._record_memory_history(stacks="python", context=None)
    meter, gradients = _meter.Meter(torch, net, [opt]), []
    for _ in range(steps):
        x = torch.ones(batch, 512, device="cuda")
        meter.begin(x)
        loss = net(x).pow(2).mean()
        meter.at("forward")
        opt.zero_grad(set_to_none=none); loss.backward()
        gradients.append({p.grad.data_ptr() for p in net.parameters() if p.grad is not None and not p.grad.is_sparse})
        meter.before_update(); opt.step(); meter.end()
        del loss
    meter.close()
    return meter.peaks[0], gradients
"""


class Peaks(Case):
    def test_a_history_beside_it_changes_nothing(self):
        """What of the optimizer's state was there at the peak is seen in the history, whoever records."""
        program = ORACLE + "import io, os, contextlib, tempfile\nnet = network(); opt = torch.optim.Adam(net.parameters())\n"
        beside = ("nullcontext()", "_watch()", "gpumem.record(tempfile.mkdtemp() + '/x.rec', 'torch')")
        program += "from contextlib import nullcontext\n_watch = gpumem.watch\nwith %s: peak, _ = train(net, opt, 16, history=False)\nprint(peak)\n"
        self.assertEqual(len({self.check(program % b)[0] for b in beside}), 1)

    def test_parts_are_never_more_than_what_was_there(self):
        self.check(
            ORACLE + "for make in (lambda p: torch.optim.Adam(p), lambda p: torch.optim.Adam(p, foreach=False), lambda p: torch.optim.SGD(p, .1, momentum=.9), lambda p: torch.optim.SGD(p, .1)):\n"
            "    for batch in (16, 256, 4096):\n"
            "        for none in (True, False):\n"
            "            net = opt = None; gc.collect(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats()\n"
            "            net = network(); opt = make(net.parameters())\n"
            "            torch.cuda.memory._record_memory_history(None)\n"
            "            peak, gradients = train(net, opt, batch, none=none)\n"
            "            parameters, possible, state = truth(net, opt, gradients)\n"
            "            what = peak, parameters, possible, state, batch, none\n"
            "            assert sum(peak[2:7]) == peak.bytes == torch.cuda.max_memory_allocated(), what\n"
            "            assert peak.parameters == parameters == bytes_of(), what\n"
            "            true = possible[peak.step - (peak.place == 'forward' and peak.step > 0)]\n"  # those of the step before
            "            assert peak.gradients <= true and true - peak.gradients <= peak.other, what\n"
            "            assert peak.optimizer <= state and state - peak.optimizer <= peak.other, what\n"
            "            if peak.step: assert peak.optimizer == state, what\n"
        )

    def test_adam_to_the_byte(self):
        """Its first step has the peak, and makes the state: a short history shows what was there."""
        self.check(
            ORACLE + "net = network(); opt = torch.optim.Adam(net.parameters())\n"
            "x = torch.ones(8, 8, device='cuda'); x @ x  # cuBLAS takes its workspace\n"
            "workspace = torch.cuda.memory_allocated() - bytes_of() - 256 - 256 * 0; base = torch.cuda.memory_allocated() - bytes_of()\n"
            "peak, _ = train(net, opt, 16, history=False)\n"
            "P = bytes_of()\n"
            "assert (peak.place, peak.parameters, peak.gradients, peak.optimizer) == ('optimizer step', P, P, 2 * P), peak\n"
            "assert 0 <= peak.other - base < 4096, (peak, base)\n"
            "assert not torch._C._cuda_isHistoryEnabled()\n"
        )

    def test_shared_frozen_and_sparse_parameters(self):
        self.check(
            ORACLE + "class Net(torch.nn.Module):\n"
            "    def __init__(self):\n"
            "        super().__init__()\n"
            "        self.inner = network(); self.first = torch.nn.Embedding(1000, 512, sparse=True).cuda(); self.second = self.inner[0]\n"
            "        for p in self.inner[1].parameters(): p.requires_grad = False\n"
            "    def forward(self, x): return self.second(self.inner(self.first(torch.zeros(64, dtype=torch.long, device='cuda'))))\n"
            "net = Net(); opt = torch.optim.SGD(net.parameters(), .1)\n"
            "peak, _ = train(net, opt, 64, history=False)\n"
            "assert peak.parameters == bytes_of() + 1000 * 512 * 4, peak\n"
        )

    def test_compiled_module(self):
        self.check(
            ORACLE + "net = network(); opt = torch.optim.SGD(net.parameters(), .1, momentum=.9)\n"
            "peak, _ = train(torch.compile(net, backend='aot_eager'), opt, 64, history=False)\n"
            "assert peak.parameters == bytes_of() and peak.step <= 1, peak\n"
        )

    def test_no_memory_is_taken(self):
        program = (
            ORACLE + "net = network(); opt = torch.optim.Adam(net.parameters())\n"
            "class Nothing:\n    peaks = {0: None}\n    def __getattr__(self, name): return lambda *_: None\n"
            "if %s: _meter.Meter = lambda *_: Nothing()\n"
            "train(net, opt, 64, history=False); s = torch.cuda.memory_stats()\n"
            "print({k: s[k] for k in ('allocated_bytes.all.peak', 'allocated_bytes.all.current', 'allocation.all.allocated', 'reserved_bytes.all.peak')})\n"
        )
        self.assertEqual(self.check(program % True)[0], self.check(program % False)[0])


LIGHTNING = """
import importlib, csv, glob, os, tempfile, logging
L = importlib.import_module({name!r})
CSVLogger = importlib.import_module({name!r} + (".pytorch" if {name!r} == "lightning" else "") + ".loggers").CSVLogger
logging.getLogger("pytorch_lightning").setLevel(logging.ERROR); logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
class Model(L.LightningModule):
    def __init__(self, leaks):
        super().__init__(); self.net = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(6)]); self.leaks, self.kept = leaks, []
    def training_step(self, batch, i):
        y = self.net(batch[0])
        if self.leaks: self.kept.append(y.detach())
        return y.pow(2).mean()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
def fit(callbacks, leaks=False, steps=48):
    out = tempfile.mkdtemp()
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64 * steps, 512)), 64)
    trainer = L.Trainer(max_steps=steps, accelerator="gpu", devices=1, logger=CSVLogger(out), log_every_n_steps=8, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks)
    trainer.fit(Model(leaks), data)
    found = glob.glob(out + "/**/metrics.csv", recursive=True)
    return trainer, list(csv.DictReader(open(found[0]))) if found else []
"""


class Lightning(Case):
    def each(self, program):
        names = [n for n in ("lightning", "pytorch_lightning") if importlib.util.find_spec(n)]
        if not names:
            print("test_torch: SKIPPED: no Lightning", file=sys.stderr)
            self.skipTest("no Lightning")
        return [self.check(LIGHTNING.format(name=name) + program) for name in names]

    def test_peak_in_the_log_to_the_byte(self):
        self.each(
            "callback = gpumem.torch.LightningCallback()\n"
            "trainer, log = fit([callback])\n"
            "[peak], last = callback.peaks.values(), log[-1]\n"
            "P = bytes_of()\n"
            "assert (peak.parameters, peak.gradients, peak.optimizer) == (P, P, 2 * P), peak\n"
            "assert peak.bytes == torch.cuda.max_memory_allocated() == sum(peak[2:7]), peak\n"
            "for key, n in callback.metrics().items(): assert float(last[key]) == n == trainer.callback_metrics[key].item(), (key, n, last)\n"
            "assert len(log) == 6 and last['gpumem/growth_bytes_per_step'] == '0.0', log\n"
        )

    def test_what_grows_is_named(self):
        for out, err in self.each("trainer, log = fit([gpumem.torch.LightningCallback()], leaks=True)\nassert float(log[-1]['gpumem/growth_bytes_per_step']) == 64 * 512 * 4, log[-1]"):
            self.assertEqual(len(re.findall(r"128 KiB more after each step.*; what grows: the list `Model.kept` keeps .* tensors float32\[64, 512\]", err)), 1, err)

    def test_training_is_the_same_without(self):
        figures = "s = torch.cuda.memory_stats(); print(s['allocated_bytes.all.peak'], s['allocated_bytes.all.current'], s['reserved_bytes.all.peak'])\n"
        self.assertEqual(self.each("fit([gpumem.torch.LightningCallback()])\n" + figures), self.each("fit([])\n" + figures))

    def test_error_of_the_training_leaves_and_hooks_are_gone(self):
        self.each(
            "callback = gpumem.torch.LightningCallback(); model = None\n"
            "class Fails(L.Callback):\n"
            "    def on_train_batch_end(self, trainer, module, *_):\n"
            "        global model; model = module\n"
            "        raise ZeroDivisionError\n"
            "try: fit([callback, Fails()])\n"
            "except ZeroDivisionError: pass\n"
            "else: assert False\n"
            "assert all(not p._post_accumulate_grad_hooks for p in model.parameters())\n"
        )

    def test_copy_and_pickle(self):
        self.each("import copy, pickle\nfor c in (copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))): fit([c(gpumem.torch.LightningCallback())], steps=8)")

    def test_without_a_gpu(self):
        self.each(
            "callback = gpumem.torch.LightningCallback()\n"
            "L.Trainer(max_steps=2, accelerator='cpu', logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False, callbacks=[callback]).fit(\n"
            "    Model(False), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(64, 512)), 8))\n"
            "assert callback.peaks == {} and callback.metrics() == {}\n"
        )

    def test_history(self):
        self.each(
            "path = os.path.join(tempfile.mkdtemp(), 'run.rec')\n"
            "fit([gpumem.torch.LightningCallback(history=path)], steps=4)\n"
            "from gpumem._answer import _ask\n"
            "assert any('training_step (' in row.site for row in _ask(['leaks', '--live', path]).live) or _ask(['replay', path, '--device', 'sim:24GiB', '--policy', 'pytorch']).trace.allocs > 20\n"
        )


    def test_history_changes_no_figure_and_a_second_training_goes_on_without(self):
        for out, err in self.each(
            "path = os.path.join(tempfile.mkdtemp(), 'run.rec')\n"
            "def figures(history):\n"
            "    gc.collect(); torch.cuda.empty_cache(); torch.cuda.reset_peak_memory_stats(); torch.manual_seed(0)\n"
            "    callback = gpumem.torch.LightningCallback(history=history); fit([callback], steps=8); return callback.metrics(), callback\n"
            "with_it, callback = figures(path); without, _ = figures(None)\n"
            "assert with_it == without and with_it['gpumem/peak_optimizer_bytes'] == 2 * bytes_of(), (with_it, without)\n"
            "fit([callback], steps=8); assert callback.metrics()\n"
        ):
            self.assertIn("gpumem: no history of this training is recorded: ", err)
            self.assertNotIn("the callback has ended", err)


TRAINER = """
import os, tempfile
os.environ["TOKENIZERS_PARALLELISM"] = "false"
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
class Data(torch.utils.data.Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i): return {"input_ids": torch.zeros(64, dtype=torch.long), "labels": torch.zeros(64, dtype=torch.long)}
class Mine(Trainer):
    kept, leaks = [], False
    def compute_loss(self, model, inputs, return_outputs=False, **rest):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **rest)
        if self.leaks: self.kept.append(outputs.logits.detach())
        return (loss, outputs) if return_outputs else loss
seen = []
class Reporter(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **rest): seen.append(dict(logs))
def fit(*callbacks, leaks=False, **more):
    Mine.leaks = leaks
    model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_embd=128, n_layer=3, n_head=2, bos_token_id=0, eos_token_id=0))
    arguments = dict(per_device_train_batch_size=8, max_steps=48, report_to=[], save_strategy="no", disable_tqdm=True, logging_steps=12, **more)
    trainer = Mine(model, TrainingArguments(tempfile.mkdtemp(), **arguments), train_dataset=Data(4000), eval_dataset=Data(16), callbacks=list(callbacks))
    trainer.train()
    return trainer
"""


class Transformers(Case):
    def setUp(self):
        for module in ("transformers", "accelerate"):
            if not importlib.util.find_spec(module):
                print(f"test_torch: SKIPPED: no {module}", file=sys.stderr)
                self.skipTest(f"no {module}")

    def test_peak_in_the_log_to_the_byte(self):
        self.check(
            TRAINER + "callback = gpumem.torch.TrainerCallback()\n"
            "trainer = fit(Reporter(), callback, eval_strategy='steps', eval_steps=24)\n"
            "[peak] = callback.peaks.values()\n"
            "P = sum(p.nbytes for p in trainer.model.parameters())\n"
            "state = sum(t.nbytes for s in trainer.optimizer.state.values() for t in s.values() if t.is_cuda)\n"
            "assert (peak.parameters, peak.optimizer) == (P, state) and state == 2 * P + 4 * len(trainer.optimizer.state) and peak.gradients <= P, peak\n"
            "assert peak.bytes == torch.cuda.max_memory_allocated() == sum(peak[2:7]), peak\n"
            "steps = [logs for logs in seen if 'loss' in logs]\n"
            "assert len(steps) == 4 and all(logs['gpumem/peak_bytes'] == peak.bytes for logs in steps), seen\n"  # a reporter that came first
            "assert all(logs['gpumem/peak_bytes'] == peak.bytes for logs in trainer.state.log_history if 'loss' in logs)\n"
            "assert not any(key.startswith('gpumem') for logs in seen if 'eval_loss' in logs for key in logs), seen\n"
            "names = [type(c).__name__ for c in trainer.callback_handler.callbacks]\n"
            "assert sorted(names) == sorted(set(names)) and 'Reporter' in names, names\n"
            "assert all(not p._post_accumulate_grad_hooks for p in trainer.model.parameters())\n"
        )

    def test_what_grows_is_named(self):
        out, err = self.check(TRAINER + "fit(gpumem.torch.TrainerCallback(), leaks=True)\nassert seen == []")
        self.assertEqual(len(re.findall(r"1000 KiB more after each step.*; what grows: the list `Mine.kept` keeps .* tensors float32\[8, 64, 500\]", err)), 1, err)

    def test_training_is_the_same_without(self):
        figures = "s = torch.cuda.memory_stats(); print(s['allocated_bytes.all.peak'], s['reserved_bytes.all.peak'])\n"
        with_it, without = self.check(TRAINER + "fit(gpumem.torch.TrainerCallback())\n" + figures)[0], self.check(TRAINER + "fit()\n" + figures)[0]
        self.assertEqual(with_it.splitlines()[-2:], without.splitlines()[-2:])

    def test_class_for_the_object(self):
        """transformers makes one of a class."""
        self.check(TRAINER + "fit(Reporter(), gpumem.torch.TrainerCallback)\nassert 'gpumem/peak_bytes' in seen[0], seen[0]")

    def test_accumulation_and_checkpoints(self):
        self.check(
            TRAINER + "callback = gpumem.torch.TrainerCallback()\n"
            "torch.backends.cuda.enable_cudnn_sdp(False)  # which the stand-in for cuDNN has not\n"
            "trainer = fit(callback, gradient_accumulation_steps=2, gradient_checkpointing=True, bf16=True)\n"
            "[peak] = callback.peaks.values()\n"
            "assert peak.parameters == sum(p.nbytes for p in trainer.model.parameters()) and sum(peak[2:7]) == peak.bytes == torch.cuda.max_memory_allocated(), peak\n"
        )


class Recorded(Case):
    def test_what_keeps_it(self):
        """A list, its graphs, and a sum of losses, in a recording that ends by an exception."""
        with tempfile.TemporaryDirectory() as folder:
            self.check(
                "import pickle\n"
                f"path = {folder!r} + '/x.pickle'\n"
                "net = network()\n"
                "def train():\n"
                "    outputs, total, addresses = [], 0, []\n"
                "    for _ in range(20):\n"
                "        x = torch.ones(64, 512, device='cuda')\n"
                "        outputs.append({'x': x}); addresses.append(x.data_ptr())\n"
                "        total = total + net(torch.ones(64, 512, device='cuda')).pow(2).mean()\n"
                "    raise ValueError(addresses)\n"
                "try:\n"
                "    with gpumem.record(path, 'torch'): train()\n"
                "except ValueError as e: addresses = e.args[0]\n"
                "found = {k['container']: k for k in pickle.load(open(path, 'rb'))['gpumem_keepers']}\n"
                "assert set(found) == {'list `outputs`, a local of train', 'the graph of `total`'}, found.keys()\n"
                "kept = found['list `outputs`, a local of train']\n"
                "assert sorted(kept['blocks']) == sorted(addresses) and kept['bytes'] == 20 * 64 * 512 * 4, kept\n"
                "assert found['the graph of `total`']['bytes'] > 20 * 6 * 64 * 512 * 4\n"
                "from torch.cuda import _memory_viz\n"  # PyTorch's own reader
                "assert _memory_viz.trace(pickle.load(open(path, 'rb'))) and _memory_viz.trace_plot(pickle.load(open(path, 'rb')))\n"
            )


    def test_after_pool_it_is_pytorchs_own(self):
        with tempfile.TemporaryDirectory() as folder:
            out, err = self.check(
                "import pickle\n"
                f"path = {folder!r} + '/x.pickle'\n"
                "pool = gpumem.torch.pool()\n"
                "with torch.cuda.use_mem_pool(pool): first = empty(MIB)\n"
                "with gpumem.record(path):\n"
                "    own = empty(2 * MIB)\n"
                "    with torch.cuda.use_mem_pool(pool): second = empty(3 * MIB)\n"
                "events = [e for e in pickle.load(open(path, 'rb'))['device_traces'][0] if e['action'] == 'alloc']\n"
                "assert [e['size'] for e in events] == [2 * MIB, 3 * MIB] and all(e['frames'] for e in events), events\n"
                "with gpumem.watch(): third = empty(4 * MIB)\n"
            )
            self.assertIn("gpumem.watch: torch: peak", err)

    def test_the_search_runs_nothing_of_the_program_and_nothing_on_the_gpu(self):
        """Subclasses, modes, an overridden parameters(), and closures whose cells are compared by tensors in them."""
        with tempfile.TemporaryDirectory() as folder:
            self.check(
                "import pickle\n"
                "from torch.overrides import TorchFunctionMode\n"
                "from torch.utils._python_dispatch import TorchDispatchMode\n"
                f"path, ran = {folder!r} + '/x.pickle', []\n"
                "class Sub(torch.Tensor):\n"
                "    is_cuda = property(lambda self: ran.append('is_cuda'))\n"
                "    __torch_function__ = classmethod(lambda c, f, t, a=(), k=None: ran.append(f) or super(Sub, c).__torch_function__(f, t, a, k or {}))\n"
                "class Function(TorchFunctionMode):\n"
                "    def __torch_function__(self, f, t, a=(), k=None): ran.append(f); return f(*a, **(k or {}))\n"
                "class Dispatch(TorchDispatchMode):\n"
                "    def __torch_dispatch__(self, f, t, a=(), k=None): ran.append(f); return f(*a, **(k or {}))\n"
                "class Net(torch.nn.Sequential):\n"
                "    def parameters(self, recurse=True): ran.append('parameters'); return super().parameters(recurse)\n"
                "def history():\n"
                "    hist = []\n"
                "    return lambda t: hist.append(t)\n"
                "other = [(lambda v: lambda: v)([empty(MIB) for _ in range(3)]) for _ in range(2)]\n"
                "sparse = torch.sparse_coo_tensor(torch.zeros(1, 4, dtype=torch.long, device='cuda'), torch.ones(4, device='cuda'), (8,), check_invariants=False)\n"
                "before = torch.cuda.memory_allocated()\n"
                "def train():\n"
                "    net, add = Net(torch.nn.Linear(8, 8)).cuda(), history()\n"
                "    with gpumem.record(path, 'torch'):\n"
                "        for _ in range(10): add(empty(MIB).as_subclass(Sub))\n"
                "        acts = [empty(MIB) for _ in range(10)]\n"
                "        made = torch.cuda.memory_stats()['allocation.all.allocated']\n"
                "        modes = Function(), Dispatch()\n"
                "        for m in modes: m.__enter__()\n"
                "        ran.clear()\n"
                "    assert not ran, ran\n"
                "    for m in reversed(modes): m.__exit__(None, None, None)\n"
                "    assert made == torch.cuda.memory_stats()['allocation.all.allocated']\n"
                "    held = torch.cuda.memory_allocated()\n"
                "    del acts\n"
                "    assert held - torch.cuda.memory_allocated() == 10 * MIB\n"
                "    return {k['container'].partition(',')[0]: len(k['blocks']) for k in pickle.load(open(path, 'rb'))['gpumem_keepers']}\n"
                "found = train()\n"
                "assert found == {'list `hist`': 10, 'list `acts`': 10}, found\n"
            )


class Diagnose(Case):
    PROGRAM = (
        "import sys, torch, gpumem\ngpumem.diagnose()\nnet = torch.nn.Linear(1024, 1024).cuda()\n"
        "class Trainer:\n    def __init__(self): self.losses = []\n"
        "    def step(self):\n        x = torch.ones(256, 1024, device='cuda')\n        y = (net(x) ** 2).mean()\n"
        "        if sys.argv[1] == 'outputs': self.losses.append(torch.cat([x, x]))\n"
        "        elif sys.argv[1] == 'graphs': self.losses.append(y)\n"
        "        else: torch.empty(1 << 45, dtype=torch.uint8, device='cuda')\n"
        "trainer = Trainer()\nwhile True: trainer.step()\n"
    )

    def run_program(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.py")
            with open(path, "w") as f:
                f.write(self.PROGRAM)
            env = {**os.environ, "GPUMEM_DEVICE": "sim:2GiB"}
            done = subprocess.run([sys.executable, path, kind], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, timeout=300)
        self.assertEqual(done.returncode, 1)
        return done.stderr.decode()

    def test_outputs_that_are_kept(self):
        self.assertRegex(
            self.run_program("outputs"),
            r"What keeps it: the list `Trainer.losses` keeps 1\.\d+ GiB of 1\.\d+ GiB on cuda:0: [0-9,]+ tensors float32\[512, 1024\]; filled at train.py:9, train.py:10\n\n(?s:.*)\n\nNext:\n  gpumem run --record run.pickle -- \S*python\S* \S+train.py outputs ",
        )

    def test_losses_whose_graphs_are_kept(self):
        self.assertRegex(self.run_program("graphs"), r"the list `Trainer.losses` keeps 1\.\d+ GiB of .* tensors float32\[\], whose graphs keep 1\.\d+ GiB of it for a backward pass; filled at train.py:9, train.py:10\nA tensor that was computed keeps its graph")

    def test_one_large_request_is_nobodys(self):
        self.assertNotIn("What keeps it", self.run_program("one"))


if __name__ == "__main__":
    unittest.main()
