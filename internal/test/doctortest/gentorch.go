// Generated messages of PyTorch, on CUDA, HIP, XPU and MPS, by release.
package doctortest

import (
	"fmt"
	"strings"
)

// The formats of PyTorch's message, oldest first.
const (
	torch10  = iota // 1.0 to 1.3: what is reserved and not in use is called cached
	torch14         // 1.4 to 1.9: reserved in total
	torch110        // 1.10 to 2.0: with the hint at max_split_size_mb
	torch21         // 2.1: processes, a word misspelt
	torch22         // 2.2 to 2.8: the hint at expandable_segments
	torch29         // 2.9 on: another variable
)

// A torchLayout is how a release prints its message, and what it lists beside the
// pool's sizes.
type torchLayout struct {
	format  int
	device  int
	rows    []row // processes of the message; pid 0 is this one
	windows bool  // no processes, and no hint
	backend string
}

// torchText prints the balance as the release does.
func torchText(d draw, b balance, t torchLayout) string {
	backend := t.backend
	if backend == "" {
		backend = "CUDA"
	}
	variable := "PYTORCH_" + backend + "_ALLOC_CONF"
	if t.format == torch29 {
		variable = "PYTORCH_ALLOC_CONF"
	}
	allowed := ""
	if b.limit > 0 && t.format >= torch14 {
		allowed = torchSize(b.limit) + " allowed; "
	}
	class := []string{"RuntimeError", "RuntimeError", d.one("RuntimeError", "torch.cuda.OutOfMemoryError"), "torch.cuda.OutOfMemoryError", "torch.OutOfMemoryError", "torch.OutOfMemoryError"}[t.format]
	head := fmt.Sprintf("%s: %s out of memory. Tried to allocate %s", class, backend, torchSize(b.want))
	if t.format <= torch110 {
		last := torchSize(b.reserved) + " reserved in total by PyTorch)"
		if t.format == torch10 {
			last = torchSize(b.reserved-b.inUse) + " cached)"
		}
		if t.format == torch110 {
			last += " If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and " + variable
		}
		return fmt.Sprintf("%s (GPU %d; %s total capacity; %s already allocated; %s free; %s%s\n",
			head, t.device, torchSize(b.total), torchSize(b.inUse), torchSize(b.free()), allowed, last)
	}
	var s strings.Builder
	word := "capacity"
	if t.format == torch21 {
		word = "capacty"
	}
	fmt.Fprintf(&s, "%s. GPU %d has a total %s of %s of which %s is free. ", head, t.device, word, torchSize(b.total), torchSize(b.free()))
	for _, r := range t.rows {
		if r.pid == 0 {
			fmt.Fprintf(&s, "Including non-PyTorch memory, this process has %s memory in use. ", torchSize(r.used))
			continue
		}
		fmt.Fprintf(&s, "Process %d has %s memory in use. ", r.pid, torchSize(r.used))
	}
	private := ""
	if t.format >= torch22 && d.chance(20) {
		private = fmt.Sprintf("with %s allocated in private pools (e.g., CUDA Graphs), ", torchSize(b.inUse/40))
	}
	fmt.Fprintf(&s, "%sOf the allocated memory %s is allocated by PyTorch, %sand %s is reserved by PyTorch but unallocated.", allowed, torchSize(b.inUse), private, torchSize(b.reserved-b.inUse))
	switch {
	case t.windows:
	case t.format == torch21:
		s.WriteString(" If reserved but unallocated memory is large try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and " + variable)
	default:
		fmt.Fprintf(&s, " If reserved but unallocated memory is large try setting %s=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  (https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)", variable)
	}
	return s.String() + "\n"
}

// modernLayout is that of a release from 2.1 on. It lists this process and the others, which share their bytes at random.
func modernLayout(d draw, b balance) torchLayout {
	t := torchLayout{format: torch21 + d.IntN(3), device: d.IntN(8)}
	for left, first := b.others, true; left > 0; first = false {
		used := left
		if first && left > gib && d.chance(60) {
			used = d.percent(left, 20, 80)
		}
		t.rows = append(t.rows, row{pid: d.pid(), used: used})
		left -= used
	}
	t.rows = append(t.rows, row{used: b.process()})
	d.Shuffle(len(t.rows), func(i, j int) { t.rows[i], t.rows[j] = t.rows[j], t.rows[i] })
	return t
}

// anyLayout is that of a release from 2.1 on with its processes, or of one up to 2.0.
func anyLayout(d draw, b balance) torchLayout {
	if d.chance(50) {
		return modernLayout(d, b)
	}
	return torchLayout{format: d.IntN(3), device: d.IntN(8)}
}

// traceback puts the lines of a stack before the last one, or nothing.
func traceback(d draw, text string) string {
	switch d.IntN(3) {
	case 0:
		return text
	case 1:
		return fmt.Sprintf("Traceback (most recent call last):\n  File \"/home/user/run.py\", line %d, in <module>\n    main()\n  File \"/home/user/model.py\", line %d, in forward\n    return F.linear(x, self.weight, self.bias)\n", 20+d.IntN(400), 20+d.IntN(900)) + text
	}
	return fmt.Sprintf("epoch %d/40 | step %d | loss %.4f\nTraceback (most recent call last):\n  File \"train.py\", line %d, in <module>\n", d.IntN(40), d.IntN(9000), d.Float64(), 20+d.IntN(400)) + text
}

// torchSample is the message of a balance, with the label that its numbers give.
func torchSample(d draw, b balance, t torchLayout, why string) Sample {
	return Sample{Log: traceback(d, torchText(d, b, t)), Causes: b.causes(), Why: why}
}

func torchClasses() []class {
	occupied := func(low, high float64) func(d draw) balance {
		return func(d draw) balance {
			return d.until(idOccupied, func(b *balance) {
				b.others, b.inUse, b.want = d.percent(b.total, low, high), d.percent(b.total, 5, 35), d.percent(b.total, 2, 14)
				b.reserved = b.inUse + d.percent(b.want, 2, 90)
			})
		}
	}
	tooBig := func(d draw) balance {
		return d.until(idTooBig, func(b *balance) {
			b.inUse, b.want = d.percent(b.total, 55, 95), d.percent(b.total, 3, 40)
			b.reserved = b.inUse + d.percent(b.want, 1, 40)
		})
	}
	fragmented := func(d draw) balance {
		return d.until(idFragment, func(b *balance) {
			b.inUse, b.want, b.reserved = d.percent(b.total, 30, 58), d.percent(b.total, 8, 25), d.percent(b.total, 82, 95)
		})
	}
	outside := func(d draw) balance {
		return d.until(idOtherAllocator, func(b *balance) {
			b.elsewhere, b.inUse, b.want = d.percent(b.total, 60, 95), d.percent(b.total, 1, 8), d.percent(b.total, 2, 8)
			b.reserved = b.inUse + d.percent(b.want, 2, 40)
		})
	}
	return []class{
		{"torch/others-50-80-small-holes", func(d draw) Sample {
			b := occupied(50, 80)(d)
			if d.chance(50) {
				// The holes add up to the request, in pieces that do not serve it.
				b.want = d.percent(b.total, 0.5, 2)
				b.inUse = d.percent(b.total, 18, 40)
				b.reserved = b.inUse + d.percent(b.want, 100, 200)
				b.others = b.total - b.context - b.reserved - d.percent(b.want, 5, 80)
			}
			s := torchSample(d, b, modernLayout(d, b), "the listed others hold most of the card, twenty times what the holes have")
			s.Causes = []string{idOccupied}
			return s
		}},
		{"torch/others-list", func(d draw) Sample {
			b := occupied(30, 90)(d)
			t := modernLayout(d, b)
			for i := range t.rows {
				if t.rows[i].pid == 0 {
					t.rows[i].pid = d.pid() // a driver of another name space
				}
			}
			return torchSample(d, b, t, "one of the listed processes is as large as this pool; the rest are others")
		}},
		{"torch/others-smi", func(d draw) Sample {
			b := occupied(40, 85)(d)
			s := torchSample(d, b, torchLayout{format: d.IntN(3), device: 0}, "the table shows another process that holds what is missing")
			s.Log += smi(card{name: "NVIDIA GPU", total: b.total}, row{d.pid(), "python3", b.process()}, row{d.pid(), d.one("python", "/usr/bin/python3", "blender", "ollama"), b.others})
			return s
		}},
		{"torch/outside-old-format", func(d draw) Sample {
			b := occupied(60, 98)(d)
			s := torchSample(d, b, torchLayout{format: d.IntN(3), device: d.IntN(4)}, "what lies outside of PyTorch is another process's or another allocator's: the message does not say")
			s.Causes, s.Open = []string{idOccupied, idOtherAllocator}, true
			return s
		}},
		{"torch/other-allocator", func(d draw) Sample {
			b := outside(d)
			return torchSample(d, b, modernLayout(d, b), "this process holds far more than PyTorch reserved")
		}},
		{"torch/allowed-is-total", func(d draw) Sample {
			b := tooBig(d)
			if d.chance(40) {
				b = occupied(30, 60)(d)
			}
			b.limit = b.total
			t := anyLayout(d, b)
			s := torchSample(d, b, t, "a limit as large as the card limits nothing")
			if t.format < torch21 && s.Causes[0] == idOccupied {
				s.Causes, s.Open = []string{idOccupied, idOtherAllocator}, true
			}
			return s
		}},
		{"torch/cap", func(d draw) Sample {
			b := d.until(idLimit, func(b *balance) {
				b.limit, b.want = d.percent(b.total, 20, 60), d.percent(b.total, 3, 15)
				b.reserved = b.limit - d.percent(b.want, 10, 90)
				b.inUse = b.reserved - d.percent(b.want, 1, 8)
			})
			t := anyLayout(d, b)
			t.format = max(t.format, torch14)
			return torchSample(d, b, t, "the limit is reached, and the card has the rest free")
		}},
		{"torch/cap-by-rounding", func(d draw) Sample {
			var b balance
			for {
				b = balance{total: d.bigCard().total, context: d.between(160*mib, 560*mib)}
				b.limit = uint64(float64(b.total) * (0.2 + 0.7*d.Float64()))
				b.others = d.percent(b.total-b.limit, 0, 90)
				b.want = []uint64{2 * mib, 20 * mib, d.between(22*mib, 512*mib), d.percent(b.total, 2, 12)}[d.IntN(4)]
				b.reserved = (b.limit - b.want + 2*mib - 1) &^ (2*mib - 1) // the next page is above the limit
				b.inUse = b.reserved - d.Uint64N(min(b.want, b.reserved)/2)
				if b.reserved+b.want > b.limit && b.valid() && b.free() > b.want+b.want/16 {
					break
				}
			}
			t := anyLayout(d, b)
			t.format = max(t.format, torch14)
			return Sample{Log: traceback(d, torchText(d, b, t)), Causes: []string{idLimit}, Why: "the pool and the request are less than 2 MiB over the limit, which the printed digits do not show"}
		}},
		{"torch/cap-unsaid", func(d draw) Sample {
			b := d.until(idLimit, func(b *balance) {
				b.limit, b.want = d.percent(b.total, 20, 55), d.percent(b.total, 1, 10)
				b.reserved = b.limit - d.percent(b.want, 10, 90)
				b.inUse = b.reserved - d.percent(b.want, 1, 8)
			})
			shown := b
			shown.limit = 0
			s := torchSample(d, b, torchLayout{}, "")
			s.Log, s.Asks = traceback(d, torchText(d, shown, anyLayout(d, b))), true
			s.Causes, s.Why = []string{idHost}, "far more is free than was requested, and PyTorch names a limit of its own: the host, or a limiter"
			return s
		}},
		{"torch/fragmentation", func(d draw) Sample {
			b := fragmented(d)
			return torchSample(d, b, anyLayout(d, b), "what is reserved and not in use is more than the request")
		}},
		{"torch/holes-and-free", func(d draw) Sample {
			b := d.until(idFragment, func(b *balance) {
				b.want = d.percent(b.total, 8, 30)
				holes, free := d.percent(b.want, 20, 48), d.percent(b.want, 60, 90)
				b.reserved = b.total - b.context - free
				b.inUse = b.reserved - max(holes, b.reserved/20) // less than a twenty-fifth may be segments' ends
			})
			s := torchSample(d, b, anyLayout(d, b), "the holes are a small part of a pool that fills the GPU: with what is free they hold the request, and a program a little smaller does without them")
			s.Causes, s.Open = []string{idFragment, idTooBig}, true
			return s
		}},
		{"torch/too-big", func(d draw) Sample {
			b := tooBig(d)
			return torchSample(d, b, anyLayout(d, b), "what is in use and the request are more than the card")
		}},
		{"torch/one-tensor", func(d draw) Sample {
			b := d.until(idTooBig, func(b *balance) {
				b.want, b.inUse = d.percent(b.total, 110, 400), d.percent(b.total, 1, 40)
				b.reserved = b.inUse + d.percent(b.total, 0.1, 5)
			})
			return torchSample(d, b, anyLayout(d, b), "the request alone is more than the card")
		}},
		{"torch/own-under-another-pid", func(d draw) Sample {
			b := tooBig(d)
			t := torchLayout{format: torch21 + d.IntN(3), device: d.IntN(4), rows: []row{{pid: d.pid(), used: b.process()}}}
			return torchSample(d, b, t, "the one listed process holds what PyTorch reserved and a context: it is this one")
		}},
		{"torch/spill", func(d draw) Sample {
			c := d.bigCard()
			b := balance{total: c.total, want: d.percent(c.total, 1, 20), inUse: d.percent(c.total, 110, 260)}
			b.reserved = b.inUse + d.percent(b.want, 1, 300)
			t := torchLayout{format: d.IntN(6), windows: true}
			return Sample{Log: traceback(d, torchText(d, b, t)), Causes: []string{idTooBig}, Why: "more is allocated than the card has: Windows put the rest into the host's memory"}
		}},
		{"torch/either-remedy", func(d draw) Sample {
			var b balance
			for len(b.causes()) < 2 || !b.valid() {
				b = balance{total: d.bigCard().total, context: d.between(160*mib, 560*mib)}
				b.others, b.inUse, b.want, b.reserved = d.percent(b.total, 20, 50), d.percent(b.total, 8, 30), d.percent(b.total, 5, 20), d.percent(b.total, 30, 60)
			}
			return torchSample(d, b, modernLayout(d, b), "either remedy would have served the request")
		}},
		{"torch/only-together", func(d draw) Sample {
			var b balance
			for b.served() || b.causes() != nil || !b.valid() {
				b = balance{total: d.bigCard().total, context: d.between(160*mib, 560*mib)}
				b.others, b.inUse, b.want = d.percent(b.total, 15, 40), d.percent(b.total, 10, 30), d.percent(b.total, 20, 50)
				b.reserved = b.inUse + d.percent(b.total, 10, 30)
			}
			s := torchSample(d, b, modernLayout(d, b), "no remedy alone serves the request, and together they do")
			s.Causes, s.Open = []string{idOccupied, idFragment, idTooBig}, true
			return s
		}},
		{"torch/border", func(d draw) Sample {
			b := balance{total: d.bigCard().total, context: d.between(160*mib, 560*mib)}
			b.want = d.percent(b.total, 14, 25)
			b.reserved = b.total - b.context - d.percent(b.want, 10, 40)
			// The holes and what is free are the request, to the last digit that is printed.
			b.inUse = b.reserved + b.free() - b.want + d.Uint64N(4*mib) - 2*mib
			return Sample{Log: traceback(d, torchText(d, b, anyLayout(d, b))), Causes: []string{idFragment, idTooBig}, Open: true, Why: "whether the holes and what is free hold the request lies in what the digits leave out"}
		}},
		{"torch/leak", func(d draw) Sample {
			b := d.until(idTooBig, func(b *balance) {
				b.inUse, b.want = d.percent(b.total, 92, 96), d.percent(b.total, 9, 12)
				b.reserved = b.inUse + d.percent(b.total, 0.1, 1)
			})
			var s strings.Builder
			n := uint64(8 + d.IntN(8))
			for i := range n {
				fmt.Fprintf(&s, "step %d: loss %.4f, memory_allocated %s\n", 100*(i+1), d.Float64(), torchSize(b.inUse*(i+1)/n))
			}
			t := anyLayout(d, b)
			t.format = max(t.format, torch14)
			return Sample{Log: s.String() + torchText(d, b, t), Causes: []string{idLeak}, Asks: true, Why: "each hundred steps hold the same amount more, up to the failure"}
		}},
		{"torch/parent-gone", func(d draw) Sample {
			b := occupied(50, 85)(d)
			s := torchSample(d, b, torchLayout{format: torch14 + d.IntN(2)}, "the state shows a process without a parent that holds what is missing")
			gone := other("python3", b.others)
			gone.ParentGone = true
			s.State = state{Devices: []stateDevice{card{name: "NVIDIA GPU", total: b.total}.device(gone, own(b.process(), "torch"))}}.json()
			return s
		}},
		{"torch-hip/others", func(d draw) Sample {
			b := occupied(45, 80)(d)
			t := modernLayout(d, b)
			t.backend = "HIP"
			return torchSample(d, b, t, "without the listed others the request fits")
		}},
		{"torch-hip/too-big", func(d draw) Sample {
			b := tooBig(d)
			t := anyLayout(d, b)
			t.backend = "HIP"
			return torchSample(d, b, t, "what is in use and the request are more than the card")
		}},
		{"torch-npu/too-big", func(d draw) Sample {
			b := tooBig(d)
			s := torchSample(d, b, torchLayout{format: torch14, backend: "NPU"}, "what is in use and the request are more than the card")
			s.Log = strings.Replace(s.Log, "(GPU ", "(NPU ", 1)
			return s
		}},
		{"torch-xpu/too-big", func(d draw) Sample { return xpu(d, tooBig(d)) }},
		{"torch-xpu/fragmentation", func(d draw) Sample { return xpu(d, fragmented(d)) }},
		{"torch-mps/watermark", func(d draw) Sample {
			limit := d.between(8*gib, 120*gib)
			want := d.percent(limit, 2, 20)
			other := d.between(8*mib, 900*mib)
			used := limit - other - d.percent(want, 5, 90)
			return mps(d, used, other, limit, want, "what is allocated and the request are over what is allowed", idLimit, idUnified)
		}},
		{"torch-mps/one-tensor", func(d draw) Sample {
			limit := d.between(8*gib, 40*gib)
			return mps(d, d.percent(limit, 5, 60), 20*mib, limit, d.percent(limit, 180, 600), "the request alone is more than what is allowed, and than the machine", idTooBig)
		}},
	}
}

// valid reports whether the parts fit into the whole.
func (b balance) valid() bool { return b.taken() <= b.total && b.inUse <= b.reserved }

// xpu is the message of Intel's GPUs. It lists no processes, and the older layout
// does not have what is free.
func xpu(d draw, b balance) Sample {
	hint := "Please use `empty_cache` to release all unoccupied cached memory."
	text := fmt.Sprintf("torch.OutOfMemoryError: XPU out of memory. Tried to allocate %s. GPU 0 has a total capacity of %s of which %s is free. Of the allocated memory %s is allocated by PyTorch, and %s is reserved by PyTorch but unallocated. %s\n",
		torchSize(b.want), torchSize(b.total), torchSize(b.free()), torchSize(b.inUse), torchSize(b.reserved-b.inUse), hint)
	if d.chance(50) {
		text = fmt.Sprintf("RuntimeError: XPU out of memory. Tried to allocate %s (GPU 0; %s total capacity; %s already allocated; %s reserved in total by PyTorch)\n",
			torchSize(b.want), torchSize(b.total), torchSize(b.inUse), torchSize(b.reserved))
	}
	return Sample{Log: traceback(d, text), Causes: b.causes(), Why: "the message's total, allocated and reserved decide"}
}

// mps is the message of Apple's GPUs. Its GB are of 1024^3 bytes.
func mps(d draw, used, other, limit, want uint64, why string, causes ...string) Sample {
	gb := func(n uint64) string {
		return strings.NewReplacer("MiB", "MB", "GiB", "GB", "KiB", "KB").Replace(torchSize(n))
	}
	return Sample{Causes: causes, Why: why, Log: traceback(d, fmt.Sprintf("RuntimeError: MPS backend out of memory (MPS allocated: %s, other allocations: %s, max allowed: %s). Tried to allocate %s on %s pool. Use PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system failure).\n",
		gb(used), gb(other), gb(limit), gb(want), d.one("private", "shared")))}
}
