package doctor

// Rules for PyTorch. Its message always ends with a hint at fragmentation; the
// numbers before it say whether that is so.

import (
	"fmt"
	"strings"
)

var torchRules = []rule{
	{
		name: "readings that only rise", cause: Leak,
		seen:   "five readings of memory in use or more, each above the one before, up to at least one and a half times the first, and then a refusal",
		not:    "readings that fall in between",
		source: "jax-ml/jax#12575; google/flax#2493",
		test: func(e *evidence) *finding {
			if !e.fails(refusals...) {
				return nil
			}
			for _, s := range e.series {
				if s.n < 5 || s.rises < s.n-1 || s.high < s.low+s.low/2 || s.high < 64*mib {
					continue
				}
				step := (s.high - s.low) / uint64(s.n-1)
				return shown(cureLeak(e), quote(&s.first, human(s.low)+" at first"), quote(&s.last, fmt.Sprintf("%s after %d readings, each above the one before: %s more each time", human(s.high), s.n, human(step))))
			}
			return nil
		},
	},
	{
		name: "a size that nobody means", cause: NotMemory,
		seen:   "one request above 16 TiB, more than all GPUs of the largest machines have together",
		source: "graphdeco-inria/gaussian-splatting#1032; GB200 NVL72 has 13.4 TB",
		test: func(e *evidence) *finding {
			for _, k := range refusals {
				f := e.pick(k, func(f *Fact) bool {
					return f.Tells(HasWant) && f.Want > absurd || k == TFOOM && tensorBytes(f) > absurd
				})
				if f == nil {
					continue
				}
				want := f.Want
				if k == TFOOM {
					want = tensorBytes(f)
				}
				r := shown(cureAbsurd, quote(f, human(want)+" in one piece: a wrong shape, or a number that overflowed"))
				r.verdict = VerdictNotMemory
				return r
			}
			return nil
		},
	},
	{
		name: "PyTorch asks for more than the GPU has", cause: ProgramTooBig,
		seen:   "a request above the total",
		source: "c10/cuda/CUDACachingAllocator.cpp",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.sizes || m.want <= m.total {
				return nil
			}
			return shown(cureTooBig(e), quote(&m.fact, fmt.Sprintf("one request of %s is more than the GPU's %s", human(m.want), human(m.total))))
		},
	},
	{
		name: "PyTorch's cap", cause: PoolLimit,
		seen:   "\"X allowed\", or per_process_memory_fraction in the state or the settings, and a request that passes it",
		source: "pytorch/pytorch#161035",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.sizes || !m.use {
				return nil
			}
			limit, from := m.cap, ""
			if f, ok := e.torchFraction(); limit == 0 && ok {
				limit, from = uint64(f*float64(m.total)), fmt.Sprintf(" (per_process_memory_fraction %v)", f)
			}
			// What is reserved counts against the cap, and PyTorch gives back whole cached
			// blocks before it fails.
			if limit == 0 || m.allocated+m.want <= limit-limit/50 && m.reserved+m.want <= limit {
				return nil
			}
			return shown(cureTorchCap(e), quote(&m.fact, fmt.Sprintf("%s reserved and %s asked for pass the cap of %s%s, while %s of the GPU is free", human(m.reserved), human(m.want), human(limit), from, human(m.free))))
		},
	},
	{
		name: "refused while enough is free", cause: PoolLimit,
		seen:   "PyTorch's message with more free on the GPU than was asked for, and no cap told",
		source: "pytorch/pytorch#35901, #161035",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.sizes || !m.enough() || m.cap > 0 {
				return nil
			}
			if _, ok := e.torchFraction(); ok {
				return nil
			}
			q := quote(&m.fact, fmt.Sprintf("%s is free and %s was asked for: the GPU was not the wall", human(m.free), human(m.want)))
			return fits(cureTorchCap(e), "python -c 'import torch; print(torch.cuda.mem_get_info())'    # beside nvidia-smi: less means that something caps the process", need(needFraction), q).
				with(fmt.Sprintf("the GPU had %s free when %s was refused", human(m.free), human(m.want)))
		},
	},
	{
		name: "CUDA graphs after the cache", cause: GraphHeadroom,
		seen:   "vLLM or SGLang at their graphs, a small request, and a GPU that is all but full",
		source: "vllm-project/vllm#57475, #57595",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil {
				return nil
			}
			g := e.atGraphs(m)
			if g == nil || m.want > 2*gib || m.sizes && (m.enough() || m.total/10 < m.free) {
				return nil
			}
			q := []Evidence{quote(&m.fact, fmt.Sprintf("%s more while graphs are captured, and %s is free", human(m.want), human(m.free))), quote(g, "CUDA graphs are captured, after the cache took its part")}
			if k := e.pick(VLLMMemory, func(f *Fact) bool { return strings.Contains(f.Text, "KV cache") }); k != nil {
				q = append(q, quote(k, "the cache was sized first"))
			}
			return shown(cureVLLMLess(e, m), q...)
		},
	},
	{
		name: "holes in PyTorch's cache", cause: Fragmentation,
		seen:   "reserved and unallocated memory that would hold the request, alone or with what is free",
		not:    "free memory that would hold it; little that is reserved and unallocated, whatever the hint says",
		source: "pytorch/pytorch#29554, #35901",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.use || m.enough() || m.cap > 0 {
				return nil
			}
			if rest, _ := e.torchRest(); rest != nil {
				return nil // PyTorch has too little of the GPU for its holes to matter
			}
			if !m.holes() {
				return nil
			}
			return shown(cureTorchHoles(e), quote(&m.fact, fmt.Sprintf("%s is reserved by PyTorch and not in use, and %s is free: together enough for the %s asked for, but not in one piece", human(m.unallocated), human(m.free), human(m.want))))
		},
	},
	{
		name: "PyTorch's list of processes", cause: DeviceOccupied,
		seen:   "other processes in the message that hold at least what was lacking",
		not:    "a list with this process alone",
		source: "huggingface/trl#5197; pytorch/pytorch#4293",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.sizes || m.others < 64*mib || m.enough() || m.others < m.lacking() {
				return nil
			}
			q := quote(&m.fact, fmt.Sprintf("%s asked for, %s free: %s was lacking, and others hold %s of %s (%s)", human(m.want), human(m.free), human(m.lacking()), human(m.others), human(m.total), strings.Join(m.othersFrom, ", ")))
			return shown(cureOccupied(e), q).with(hintIsWrong(e, m)...)
		},
	},
	{
		name: "more than PyTorch in the process", cause: OtherAllocator,
		seen:   "this process holds far more than PyTorch reserved",
		not:    "a difference that a context and libraries explain (up to 1.5 GiB)",
		source: "pytorch/xla#4662",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.use || m.this < m.reserved+contextMost || m.enough() || m.this-m.reserved-contextMost < m.lacking() {
				return nil
			}
			return shown(cureOtherAllocator(e), quote(&m.fact, fmt.Sprintf("this process holds %s, of which PyTorch reserved %s: %s belongs to another allocator in it", human(m.this), human(m.reserved), human(m.this-m.reserved)))).with(hintIsWrong(e, m)...)
		},
	},
	{
		name: "the GPU is held, and not by PyTorch", cause: DeviceOccupied,
		seen:   "an older message (no list of processes) with most of the GPU in other hands, and other processes in the state or a pasted table, or PyTorch with nothing yet or with a fair part",
		source: "pytorch/pytorch#4293, #910",
		test: func(e *evidence) *finding {
			m, rest := e.torchRest()
			if m == nil {
				return nil
			}
			reading := fmt.Sprintf("%s of %s is in use, and PyTorch reserved %s of it", human(m.total-m.free), human(m.total), human(m.reserved))
			others, told := e.others()
			sum := heldBy(others)
			switch {
			case told && sum >= m.lacking() && sum >= rest/2:
				return shown(cureOccupied(e), append(readings(others), quote(&m.fact, reading))...)
			case told && len(others) == 0:
				return nil
			case m.async:
				reading = fmt.Sprintf("%s of %s is in use, and PyTorch's tensors are %s of it: others, or what the driver's pool keeps", human(m.total-m.free), human(m.total), human(m.allocated))
			case !told && !allButAll(m, rest):
				return shown(cureOccupied(e), quote(&m.fact, reading+": the rest is not PyTorch's")).with(hintIsWrong(e, m)...)
			}
			return fits(cureOccupied(e), decideSmi, need(needProcesses), quote(&m.fact, reading))
		},
	},
	{
		name: "what the driver's pool keeps", cause: Fragmentation,
		seen:   "the backend cudaMallocAsync, a full GPU, and tensors that are far from filling it",
		not:    "other processes that hold the rest",
		source: "c10/cuda/CUDAMallocAsyncAllocator.cpp",
		test: func(e *evidence) *finding {
			m, rest := e.torchRest()
			if m == nil || !m.async {
				return nil
			}
			others, told := e.others()
			if told && heldBy(others) >= rest/2 {
				return nil
			}
			q := quote(&m.fact, fmt.Sprintf("%s of the GPU is neither free nor in a tensor", human(rest)))
			if told {
				return shown(cureAsyncKeeps, q)
			}
			return fits(cureAsyncKeeps, decideSmi, need(needProcesses), q)
		},
	},
	{
		name: "the GPU is held by another allocator of the process", cause: OtherAllocator,
		seen:   "an older message with nearly all of the GPU outside of PyTorch while PyTorch is at work, or such a one with this process alone on the GPU",
		not:    "other processes on the GPU",
		source: "pytorch/xla#4662",
		test: func(e *evidence) *finding {
			m, rest := e.torchRest()
			if m == nil || m.async {
				return nil
			}
			q := quote(&m.fact, fmt.Sprintf("%s of %s is in use outside of PyTorch, which reserved %s and is at work", human(rest), human(m.total), human(m.reserved)))
			others, told := e.others()
			if told && len(others) == 0 || !told && allButAll(m, rest) {
				f := shown(cureOtherAllocator(e), q).with(hintIsWrong(e, m)...)
				if !told {
					f.decide = decideSmi
				}
				return f
			}
			return nil
		},
	},
	{
		name: "PyTorch's own tensors fill the GPU", cause: ProgramTooBig,
		seen:   "most of the GPU allocated by PyTorch itself, little of it unused",
		not:    "other processes that hold what is lacking; holes that would hold the request",
		source: "pytorch/pytorch, memory notes",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.use || !m.sizes || m.enough() || m.cap == 0 && m.holes() || m.allocated < m.total/2 && m.allocated+m.want <= m.total || m.async && m.allocated < m.total-m.total/10 {
				return nil
			}
			q := quote(&m.fact, fmt.Sprintf("PyTorch's tensors hold %s of %s, %s of its memory is unused, %s is free: %s more does not fit", human(m.allocated), human(m.total), human(m.unallocated), human(m.free), human(m.want)))
			if others, told := e.others(); !m.listed && m.allocated+m.want+contextMost/3 <= m.total && !(told && heldBy(others) < m.lacking()) {
				return fits(cureTooBig(e), decideSmi, need(needProcesses), q) // what others hold may be what is lacking
			}
			return shown(cureTooBig(e), q).with(hintIsWrong(e, m)...)
		},
	},
	{
		name: "PyTorch's message without its numbers", cause: ProgramTooBig,
		seen:   "\"CUDA out of memory\" with a free figure but not who holds the rest",
		source: "c10/cuda/CUDACachingAllocator.cpp",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.sizes || m.use || m.enough() || e.atGraphs(m) != nil {
				return nil
			}
			others, told := e.others()
			q := quote(&m.fact, m.cutOff())
			if told && heldBy(others) < m.lacking() {
				return shown(cureTooBig(e), q)
			}
			if told {
				return nil
			}
			return fits(cureTooBig(e), decideSmi, need(needProcesses), q)
		},
	},
	{
		name: "others, and PyTorch's message without its numbers", cause: DeviceOccupied,
		seen:   "the same, with others that hold what was lacking, or nobody told",
		source: "c10/cuda/CUDACachingAllocator.cpp",
		test: func(e *evidence) *finding {
			m := e.torch()
			if m == nil || !m.sizes || m.use || m.listed || m.enough() || e.atGraphs(m) != nil {
				return nil
			}
			others, told := e.others()
			q := quote(&m.fact, m.cutOff())
			if told && heldBy(others) >= m.lacking() {
				return shown(cureOccupied(e), append(readings(others), q)...)
			}
			if told {
				return nil
			}
			return fits(cureOccupied(e), decideSmi, need(needProcesses), q)
		},
	},
}

// atGraphs is the line that shows that CUDA graphs were captured, and nil.
func (e *evidence) atGraphs(m *torchState) *Fact {
	if d := e.doing("graphs", &m.fact); d != nil {
		return d
	}
	return e.pick(VLLMMemory, func(f *Fact) bool { return f.Name == "graphs" })
}

// cutOff is what is left of a message that has lost its end.
func (m *torchState) cutOff() string {
	return fmt.Sprintf("%s asked for, %s of %s free; who holds the rest is cut off", human(m.want), human(m.free), human(m.total))
}

// holes says whether what PyTorch reserved and does not use would hold the
// request, alone or with what is free.
func (m *torchState) holes() bool {
	return m.unallocated >= m.want || m.unallocated >= m.want/2 && m.unallocated+m.free >= m.want
}

// torchFraction is the cap on PyTorch's memory in the state or the settings.
func (e *evidence) torchFraction() (float64, bool) {
	if e.state != nil && e.state.Process != nil && e.state.Process.Fraction != nil {
		return *e.state.Process.Fraction, true
	}
	for _, name := range []string{"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"} {
		if _, after, ok := strings.Cut(e.env[name], "per_process_memory_fraction:"); ok {
			var f float64
			if _, err := fmt.Sscanf(after, "%g", &f); err == nil && f > 0 && f < 1 {
				return f, true
			}
		}
	}
	return 0, false
}

// torchRest is PyTorch's message without a list of processes, where others, or
// other allocators, hold what is lacking: rest, in bytes, without a context.
func (e *evidence) torchRest() (*torchState, uint64) {
	m := e.torch()
	if m == nil || m.listed || !m.use || !m.sizes || m.enough() || m.total < m.free+m.reserved+contextMost/2 {
		return nil, 0
	}
	rest := m.total - m.free - m.reserved
	if rest < contextMost/2+m.lacking() || rest < m.total/5 {
		return nil, 0
	}
	return m, rest
}

// allButAll says whether what is not PyTorch's is nearly the whole GPU while
// PyTorch is at work: a process that preallocates leaves others a tenth or a
// quarter, and a pool made in the same process takes what is there.
func allButAll(m *torchState, rest uint64) bool {
	return m.allocated > 0 && float64(rest) >= .97*float64(m.total)
}

// hintIsWrong is what to say of PyTorch's advice where the numbers refute it.
func hintIsWrong(e *evidence, m *torchState) []string {
	if e.has(TorchAdvice) && m.unallocated < m.want/2 {
		return []string{fmt.Sprintf("PyTorch's hint at fragmentation is printed whatever the cause; %s is reserved and unused, too little for %s", human(m.unallocated), human(m.want))}
	}
	return nil
}

// heldBy is what these processes hold together.
func heldBy(list []holder) (sum uint64) {
	for _, h := range list {
		sum += h.Used
	}
	return sum
}

// readings are the lines of these processes, the desktop's left out, each with what it holds.
func readings(list []holder) []Evidence {
	var q []Evidence
	for _, h := range list {
		if h.isDesktop() && len(list) > 1 {
			continue
		}
		r := h.from
		switch {
		case h.Used > 0:
			r.Reading = "another process holds " + human(h.Used)
		default:
			r.Reading = "another process is on the GPU"
		}
		if h.ParentGone {
			r.Reading += "; the one that started it is gone"
		}
		q = append(q, r)
	}
	return q
}
