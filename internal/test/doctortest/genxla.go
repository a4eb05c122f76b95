// Generated messages of XLA, JAX and TensorFlow: reports of pools, series of
// retries, handles of libraries beside the driver's free and total.
package doctortest

import (
	"fmt"
	"strings"
)

const (
	idSecondPool = "same_process_second_pool"
	idModule     = "no_headroom_module_load"
	idNonfatal   = "nonfatal_warning"
)

// announce is what a backend says of its pool when it starts.
func announce(d draw, e era, limit uint64) string {
	text := fmt.Sprintf("XLA backend allocating %d bytes on device 0 for BFCAllocator.", limit)
	if d.chance(30) {
		text = fmt.Sprintf("XLA backend will use up to %d bytes on device 0 for BFCAllocator.", limit)
	}
	return e.at("I", "xla/pjrt/gpu/gpu_helpers.cc", 114, text)
}

// jaxEra returns a release of JAX: it is younger than the oldest format.
func jaxEra(d draw) era { return eras[1+d.IntN(3)] }

// xlaReport is a pool's report for a balance; largest is the largest free block.
func xlaReport(d draw, e era, b balance) string {
	largest := uint64(float64(min(b.want, b.reserved-b.inUse)) * (0.2 + 0.7*d.Float64()))
	log, _ := pool{want: b.want, limit: b.limit, reserved: b.reserved, inUse: b.inUse, largest: largest &^ 255}.report(e)
	return log
}

// preallocated draws a balance whose pool has taken its limit from the driver.
func preallocated(d draw, id string, low, high, wantLow, wantHigh float64) balance {
	return d.until(id, func(b *balance) {
		b.limit = d.percent(b.total, 40, 90)
		b.reserved = b.limit
		b.inUse, b.want = d.percent(b.limit, low, high), d.percent(b.limit, wantLow, wantHigh)
	})
}

// deviceState is the state of a card on which this process holds b's part.
func deviceState(b balance, frameworks ...string) string {
	c := card{name: "NVIDIA GPU", total: b.total}
	rows := []stateNeighbor{own(b.process(), frameworks...)}
	if b.others > 0 {
		rows = append(rows, other("python3", b.others))
	}
	return state{Devices: []stateDevice{c.device(rows...)}, Process: &stateProcess{Frameworks: frameworks}}.json()
}

// remat is the compiler's line about a program that stays above its limit.
func remat(e era, limit, after, before uint64) string {
	return e.at("W", "xla/service/hlo_rematerialization.cc", 3005, fmt.Sprintf("Can't reduce memory use below %s by rematerialization; only reduced to %s, down from %s originally", xlaLong(limit), xlaLong(after), xlaLong(before)))
}

// handle is a refused handle of cuDNN with the driver's free and total under it.
func handle(d draw, e era, free, total uint64) string {
	log, _ := dnnLog(e, d.one("INTERNAL_ERROR", "INTERNAL_ERROR", "ALLOC_FAILED", "NOT_INITIALIZED"), free, total)
	return log + d.one("", "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more details.\n")
}

func xlaClasses() []class {
	return []class{
		{"xla/pool-fragmented", func(d draw) Sample {
			b := preallocated(d, idFragment, 40, 70, 8, 50)
			return Sample{Log: xlaReport(d, jaxEra(d), b), Causes: b.causes(), Why: "the pool has enough free bytes for the request, in pieces that are too small"}
		}},
		{"xla/pool-limit", func(d draw) Sample {
			b := preallocated(d, idLimit, 88, 99, 3, 15)
			s := Sample{Log: xlaReport(d, jaxEra(d), b), Causes: b.causes(), Why: "the pool is full at its limit, and the card has room for the request"}
			if d.chance(50) {
				s.State = deviceState(b, "jax")
			} else {
				s.Log += smi(card{name: "NVIDIA GPU", total: b.total}, row{d.pid(), "python3", b.process()})
			}
			return s
		}},
		{"xla/pool-too-big", func(d draw) Sample {
			b := preallocated(d, idTooBig, 20, 95, 40, 200)
			return Sample{Log: xlaReport(d, jaxEra(d), b), State: deviceState(b, "jax"), Causes: b.causes(), Why: "what is in use and the request are more than the card"}
		}},
		{"xla/pool-total-unknown", func(d draw) Sample {
			b := preallocated(d, idLimit, 88, 99, 3, 15)
			return Sample{Log: xlaReport(d, jaxEra(d), b), Causes: []string{idLimit, idTooBig}, Open: true, Why: "the pool is full at its limit; whether the card has more is unknown"}
		}},
		{"xla/announced-too-big", func(d draw) Sample {
			// What is in use is not in the log: the request by itself is above the card.
			b := preallocated(d, idTooBig, 1, 50, 120, 300)
			for b.want <= b.total {
				b = preallocated(d, idTooBig, 1, 50, 120, 300)
			}
			e := jaxEra(d)
			return Sample{Log: banner(d, b.total) + announce(d, e, b.limit) + pool{want: b.want}.exception(e), Causes: b.causes(), Why: "the request is more than the card that the log names"}
		}},
		{"xla/announced-limit", func(d draw) Sample {
			b := d.until(idLimit, func(b *balance) {
				b.limit = d.percent(b.total, 20, 60)
				b.reserved, b.want = b.limit, d.percent(b.limit, 102, 130)
			})
			e := jaxEra(d)
			return Sample{Log: banner(d, b.total) + announce(d, e, b.limit) + pool{want: b.want}.exception(e), Causes: b.causes(), Why: "the request is more than the pool may ever be, and less than what the card has beside it"}
		}},
		{"xla/remat-short", func(d draw) Sample {
			limit := d.between(4*gib, 60*gib)
			before := d.percent(limit, 160, 600)
			after := limit + d.percent(before-limit, 30, 90)
			e := jaxEra(d)
			return Sample{Log: remat(e, limit, after, before) + pool{want: d.percent(limit, 20, 60)}.exception(e), Causes: []string{idRemat, idTooBig}, Why: "rematerialization saved some and not enough"}
		}},
		{"xla/remat-nothing", func(d draw) Sample {
			limit := d.between(4*gib, 60*gib)
			before := d.percent(limit, 200, 900)
			e := jaxEra(d)
			return Sample{Log: remat(e, limit, before, before) + pool{want: d.percent(limit, 110, 190)}.exception(e), Causes: []string{idTooBig}, Why: "one buffer is over the limit and rematerialization saves nothing"}
		}},
		{"xla/ladder-smi", func(d draw) Sample {
			c := d.bigCard()
			theirs := d.percent(c.total, 60, 90)
			log, _ := ladder(jaxEra(d), d.percent(c.total, 74, 76), 3+d.IntN(9))
			name := d.one("python", "ollama", "/usr/bin/python3", "blender")
			return Sample{Log: log + smi(c, row{d.pid(), name, theirs}, row{ownPID, "python3", 400 * mib}), Causes: []string{idOccupied, idMulti}, Why: "the pool's first size does not fit beside what another process holds"}
		}},
		{"xla/ladder-then-trains", func(d draw) Sample {
			log, _ := ladder(jaxEra(d), d.between(10*gib, 70*gib), 3+d.IntN(4))
			return Sample{Log: log + progress(d, 8), Causes: []string{idNonfatal}, Asks: true, Why: "a smaller pool was granted, and the training runs"}
		}},
		{"xla/two-processes", func(d draw) Sample {
			c, second := d.bigCard(), d.pid()
			first := d.percent(c.total, 70, 80)
			line, _ := refused(era2025, first)
			a := era2025.at("I", "xla/pjrt/gpu/gpu_helpers.cc", 114, fmt.Sprintf("XLA backend allocating %d bytes on device 0 for BFCAllocator.", first))
			return Sample{Log: banner(d, c.total) + "(pid=4210) " + a + fmt.Sprintf("(pid=%d) ", second) + a + fmt.Sprintf("(pid=%d) ", second) + line, Causes: []string{idMulti}, Asks: true, Why: "two processes each take most of the same device"}
		}},
		{"xla-vmm/budget", func(d draw) Sample {
			b := limitedBalance(d)
			return Sample{Log: banner(d, b.total) + fmt.Sprintf("jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Not enough PA budget for allocation: pa_allocated=%dB, rounded_size=%dB, pa_budget=%dB\n", b.reserved, b.want, b.limit), Causes: b.causes(), Why: "the budget is reached, and the card has room for the request"}
		}},
		{"exla/limit", func(d draw) Sample {
			b := d.until(idLimit, func(b *balance) {
				b.limit = d.percent(b.total, 20, 60)
				b.reserved, b.want = b.limit, d.percent(b.limit, 102, 130)
			})
			return Sample{Log: fmt.Sprintf("10:42:32.799 [info] %s10:42:30.120 [info] XLA backend allocating %d bytes on device 0 for BFCAllocator.\n** (RuntimeError) Out of memory while trying to allocate %d bytes.\n    (exla 0.9.2) lib/exla/executable.ex:56: EXLA.Executable.unwrap!/1\n", banner(d, b.total), b.limit, b.want), Causes: b.causes(), Why: "the request is more than the pool may ever be, and less than what the card has beside it"}
		}},
		{"xla/ladder-alone", func(d draw) Sample {
			log, _ := ladder(jaxEra(d), d.between(2*gib, 70*gib), 3+d.IntN(9))
			return Sample{Log: log, Open: true, Why: "who holds the card is unknown"}
		}},
		{"xla/second-pool", func(d draw) Sample {
			c, e := d.bigCard(), jaxEra(d)
			first := d.percent(c.total, 60, 90)
			line, _ := refused(e, first)
			announced := announce(d, e, first)
			return Sample{Log: announced + d.one("", "epoch 4 done\n", "rebuilding backends\n") + announced + line, Causes: []string{idSecondPool}, Asks: true,
				Why: "one process announces a pool of the same size twice on one device, and two do not fit into a card"}
		}},
		{"xla/starved-by-own-pool", func(d draw) Sample {
			c := d.bigCard()
			free := d.between(20*mib, 300*mib)
			outside := d.between(300*mib, 600*mib)
			e := jaxEra(d)
			return Sample{Log: announce(d, e, c.total-free-outside) + handle(d, e, free, c.total), Causes: []string{idStarves}, Why: "this process's own pool took all but what is too little for cuDNN"}
		}},
		{"xla/solver-starved-by-own-pool", func(d draw) Sample {
			c := d.bigCard()
			return Sample{Log: banner(d, c.total) + announce(d, jaxEra(d), c.total-d.between(300*mib, 600*mib)) + fmt.Sprintf("jaxlib.xla_extension.XlaRuntimeError: INTERNAL: jaxlib/gpu/solver_handle_pool.cc:%d: operation gpusolverDnCreate(&handle) failed: cuSolver internal error\n", 30+d.IntN(20)),
				Causes: []string{idStarves}, Asks: true, Why: "the pool's size is the card's, less what a context takes, so nothing is left for the solver"}
		}},
		{"xla/small-program-big-card", func(d draw) Sample {
			b := balance{total: d.between(40*gib, 80*gib), want: d.between(100*mib, 400*mib)}
			return Sample{Log: banner(d, b.total) + assignment(d, b), Open: true, Why: "the program is a hundredth of the card: it is not too big, and who holds the rest is unknown"}
		}},
		{"xla/starved-by-others", func(d draw) Sample {
			c := d.bigCard()
			free, mine := d.between(20*mib, 300*mib), d.percent(c.total, 10, 30)
			theirs := c.total - free - mine - 500*mib
			e := jaxEra(d)
			log := announce(d, e, mine) + handle(d, e, free, c.total)
			return Sample{Log: log + smi(c, row{d.pid(), d.one("python3", "ollama", "blender"), theirs}, row{ownPID, "python3", mine + 500*mib}), Causes: []string{idOccupied, idMulti}, Why: "another process holds most of the card"}
		}},
		{"xla/starved-by-whom", func(d draw) Sample {
			c := d.bigCard()
			return Sample{Log: handle(d, jaxEra(d), d.between(10*mib, 350*mib), c.total), Causes: []string{idStarves, idMulti, idOccupied}, Open: true, Why: "too little is free for cuDNN; who holds the rest is unknown"}
		}},
		{"xla/handle-on-free-card", func(d draw) Sample {
			c := d.bigCard()
			return Sample{Log: handle(d, jaxEra(d), d.percent(c.total, 85, 99), c.total), Causes: []string{idNotMemory, idMismatch}, Why: "nearly all of the card is free"}
		}},
		{"xla/handle-healthy-quarter", func(d draw) Sample {
			var c card
			for c = d.bigCard(); c.total < 10*gib; c = d.bigCard() {
			}
			return Sample{Log: handle(d, jaxEra(d), c.total-d.percent(c.total, 75, 75.1)-d.between(300*mib, 550*mib), c.total), Open: true, Why: "what is free is what the default preallocation leaves, and a handle fits"}
		}},
		{"xla/cubin", func(d draw) Sample {
			log := announce(d, jaxEra(d), d.between(4*gib, 70*gib)) + fmt.Sprintf("jaxlib.xla_extension.XlaRuntimeError: %s: Failed to load in-memory CUBIN (compiled for a different GPU?).: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n", d.one("INTERNAL", "RESOURCE_EXHAUSTED"))
			return Sample{Log: log, Causes: []string{idModule, idStarves}, Why: "the driver refused memory for code, which lies outside of the pool"}
		}},
		{"xla/assignment-limit", func(d draw) Sample {
			b := preallocated(d, idLimit, 1, 4, 101, 120)
			return Sample{Log: assignment(d, b), State: deviceState(b, "jax"), Causes: b.causes(), Why: "the program is larger than the pool and smaller than the card"}
		}},
		{"xla/assignment-too-big", func(d draw) Sample {
			b := preallocated(d, idTooBig, 1, 4, 150, 400)
			return Sample{Log: assignment(d, b), State: deviceState(b, "jax"), Causes: b.causes(), Why: "the program is larger than the card"}
		}},
		{"xla/optional-request", func(d draw) Sample {
			e := eras[d.IntN(4)]
			line := e.at("W", bfcFile, 310, fmt.Sprintf("Allocator (GPU_0_bfc) ran out of memory trying to allocate %s with freed_by_count=0. The caller indicates that this is not a failure, but this may mean that there could be performance gains if more memory were available.", xla(d.between(gib, 30*gib))))
			return Sample{Log: line + progress(d, 3), Causes: []string{idNonfatal}, Why: "the caller did without, and the training went on"}
		}},
		{"tf/occupied-before-start", func(d draw) Sample {
			c := d.bigCard()
			free := d.between(40*mib, 400*mib)
			line, _ := refused(era2018, free)
			return Sample{Log: fmt.Sprintf("%s\ntotalMemory: %s freeMemory: %s\n", strings.TrimSuffix(era2018.at("I", "core/common_runtime/gpu/gpu_device.cc", 1392, "Found device 0 with properties: "), "\n"), xla(c.total), xla(free)) + line, Causes: []string{idOccupied}, Why: "hardly anything was free before this program took any"}
		}},
		{"tf/shape-too-big", func(d draw) Sample {
			c := d.bigCard()
			memory := d.percent(c.total, 80, 92)
			side := 1024 * (1 + uint64(d.IntN(8)))
			rows := d.percent(memory, 150, 500) / (4 * side)
			e := eras[d.IntN(3)]
			return Sample{Log: e.at("I", "tensorflow/core/common_runtime/gpu/gpu_device.cc", 1613, fmt.Sprintf("Created device /job:localhost/replica:0/task:0/device:GPU:0 with %d MB memory:  -> device: 0, name: %s", memory/mib, c.name)) +
				fmt.Sprintf("tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[%d,%d] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n", rows, side),
				Causes: []string{idTooBig}, Why: "the tensor's shape alone is larger than the device"}
		}},
		{"tf/pool-fragmented", func(d draw) Sample {
			b := preallocated(d, idFragment, 40, 70, 8, 50)
			e := eras[1+d.IntN(2)]
			log := strings.NewReplacer("xla/tsl/framework/", "tensorflow/core/common_runtime/", "jaxlib.xla_extension.XlaRuntimeError", "tensorflow.python.framework.errors_impl.ResourceExhaustedError").Replace(xlaReport(d, e, b))
			return Sample{Log: log, Causes: b.causes(), Why: "the pool has enough free bytes for the request, in pieces that are too small"}
		}},
		{"jax/leak", func(d draw) Sample { return growth(d, true) }},
		{"jax/no-leak", func(d draw) Sample { return growth(d, false) }},
	}
}

// assignment is the compiler's account of a program that does not fit.
func assignment(d draw, b balance) string {
	temp := d.percent(b.want, 55, 80)
	out := d.percent(b.want, 0.2, 3)
	return fmt.Sprintf("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate %d bytes.\nBufferAssignment OOM Debugging.\nBufferAssignment stats:\n"+
		"             parameter allocation: %9s\n              constant allocation:    36.0KiB\n        maybe_live_out allocation: %9s\n     preallocated temp allocation: %9s\n  preallocated temp fragmentation:         0B (0.00%%)\n                 total allocation: %9s\n              total fragmentation:   15.86MiB (0.18%%)\n",
		temp, xla(b.want-temp-out), xla(out), xla(temp), xla(b.want))
}

// progress is what a training prints while it goes well.
func progress(d draw, n int) string {
	var s strings.Builder
	for i := range n {
		fmt.Fprintf(&s, "step %d: loss %.4f, %.1f it/s\n", 100*(i+1), 2*d.Float64(), 1+9*d.Float64())
	}
	return s.String()
}

// growth is a log with a reading each epoch: with a leak they rise by the same
// amount to the end; without, they rise twice and stay.
func growth(d draw, leak bool) Sample {
	b := balance{total: d.bigCard().total}
	b.limit = d.percent(b.total, 74, 76)
	step, start, n := d.percent(b.limit, 5, 8), d.percent(b.limit, 10, 20), 0
	if !leak {
		start, step = d.percent(b.limit, 60, 80), d.percent(b.limit, 1, 2)
	}
	var s strings.Builder
	key := d.one("bytes_in_use", "memory in use", "gpu_mem_allocated")
	for at := start; n < 9 && at < b.limit-step; n++ {
		fmt.Fprintf(&s, "epoch %d: loss %.4f, %s=%d\n", n+1, 2*d.Float64(), key, at)
		if leak || n < 2 {
			at += step
		}
	}
	e := jaxEra(d)
	if leak {
		return Sample{Log: s.String() + pool{want: step * 5 / 4}.exception(e), Causes: []string{idLeak}, Asks: true, Why: "each epoch holds the same amount more, until a small request fails"}
	}
	return Sample{Log: s.String() + pool{want: d.percent(b.limit, 30, 50)}.exception(e), Causes: []string{idTooBig, idLimit, idFragment}, Open: true, Why: "the readings stay, so nothing leaks; a larger request fails, and the pool's limit is unknown"}
}
