package doctor

// Rules for engines that bring their own pool: vLLM, CuPy, RMM, llama.cpp and
// Ollama.

import (
	"fmt"
	"strings"
)

var engineRules = []rule{
	{
		name: "vLLM on memory that is the host's", cause: UnifiedMemory,
		seen:   "vLLM's start-up check on a GPU that shares the host's memory, by its name or by a total that no other GPU has",
		source: "Blackwellboy/model-serving-minefield#45; NVIDIA/open-gpu-kernel-modules#1358",
		test: func(e *evidence) *finding {
			for _, k := range []Kind{VLLMFree, VLLMCache, TorchOOM, Context, DeviceRefused, LlamaOOM} {
				f := e.pick(k, nil)
				if f == nil {
					continue
				}
				if n := e.pick(DeviceName, func(n *Fact) bool { return unifiedName(n.Name) }); n != nil {
					return shown(cureUnified(e, f), quote(n, n.Name+" shares the host's memory"), quote(f, unifiedReading(f)))
				}
				if d := e.gpu(); d != nil && unifiedName(d.Name) {
					return shown(cureUnified(e, f), quote(f, unifiedReading(f)), Evidence{Text: "devices.name: " + d.Name, Reading: "it shares the host's memory"})
				}
				if name, ok := unifiedTotal(f.Total); ok {
					return shown(cureUnified(e, f), quote(f, unifiedReading(f)+"; "+human(f.Total)+" is what "+name+" shows, and no GPU with memory of its own"))
				}
			}
			return nil
		},
	},
	{
		name: "Tegra's allocator", cause: UnifiedMemory,
		seen:   "NvMap could not allocate",
		source: "NVIDIA's Jetson Linux: NvMap errors 12 (ENOMEM)",
		test: func(e *evidence) *finding {
			f := e.pick(Tegra, nil)
			if f == nil {
				return nil
			}
			return shown(cureUnified(e, f), quote(f, "the allocator of a Jetson, whose GPU has the host's memory, was refused (12 is ENOMEM)"))
		},
	},
	{
		name: "free memory moved during vLLM's measurement", cause: StartupRace,
		seen:   "\"Error in memory profiling\": more is free after the model was loaded than before",
		source: "vllm-project/vllm#18974",
		test: func(e *evidence) *finding {
			f := e.pick(VLLMMemory, func(f *Fact) bool { return f.Name == "profiling" })
			if f == nil {
				return nil
			}
			return shown(cureRace, quote(f, "less was in use after loading than before: another process gave memory back in between"))
		},
	},
	{
		name: "vLLM counts what was there before it", cause: StartupRace,
		seen:   "no room for the cache, and an initial use that the engine did not make",
		source: "vllm-project/vllm#10533, #10643",
		test: func(e *evidence) *finding {
			c := e.pick(VLLMCache, nil)
			f := e.pick(VLLMMemory, func(f *Fact) bool { return f.Tells(HasInUse | HasTotal) })
			// Some releases read it after the model was loaded.
			var weights uint64
			if w := e.pick(VLLMMemory, func(f *Fact) bool { return f.Name == "weights" }); w != nil {
				weights = w.Allocated + contextMost/2
			}
			if c == nil || f == nil || f.InUse < weights+f.Total/10 {
				return nil
			}
			return shown(cureRace, quote(f, fmt.Sprintf("%s of %s (%d %%) was in use before this engine had loaded anything, and it counts that as its own", human(f.InUse), human(f.Total), percent(f.InUse, f.Total))), quote(c, "so nothing of its share is left for the cache"))
		},
	},
	{
		name: "vLLM finds the GPU in use", cause: DeviceOccupied,
		seen:   "\"Free memory on device ... on startup is less than desired\"",
		not:    "memory that is the host's",
		source: "vllm-project/vllm, worker/gpu_worker.py; #55827",
		test: func(e *evidence) *finding {
			f := e.pick(VLLMFree, func(f *Fact) bool { return f.Tells(HasFree | HasTotal | HasWant) })
			if f == nil {
				return nil
			}
			if f.Want > f.Total || f.Want-min(f.Want, f.Free) < f.Total/50 && f.Total-f.Free < f.Total/5 {
				// What its own context takes may be all that is lacking.
				return fits(cureVLLMFree(e, f), decideSmi, nil, quote(f, fmt.Sprintf("%s of %s was in use before the engine took any, its own context among it; %s was lacking", human(f.Total-min(f.Free, f.Total)), human(f.Total), human(f.Want-min(f.Want, f.Free)))))
			}
			r := shown(cureVLLMFree(e, f), quote(f, fmt.Sprintf("%s of %s was in use before this engine took any, and it wants %s", human(f.Total-min(f.Free, f.Total)), human(f.Total), human(f.Want))))
			r.decide = decideSmi
			return r
		},
	},
	{
		name: "vLLM's neighbour at its start", cause: StartupRace,
		seen:   "the same: the holder may be one that is just starting, or not yet gone",
		source: "vllm-project/vllm#10643, #55827, #56830",
		test: func(e *evidence) *finding {
			f := e.pick(VLLMFree, func(f *Fact) bool { return f.Tells(HasFree | HasTotal) })
			if f == nil {
				return nil
			}
			return fits(cureRace, "sleep 30; nvidia-smi    # if it is free by now, it was a start-up race", nil, quote(f, "whoever held the rest may be just starting, or on its way out"))
		},
	},
	{
		name: "no room for vLLM's cache", cause: ProgramTooBig,
		seen:   "\"No available memory for the cache blocks\", or a cache that is too small for one request",
		source: "vllm-project/vllm, worker/utils.py",
		test: func(e *evidence) *finding {
			f := e.pick(VLLMCache, nil)
			if f == nil {
				return nil
			}
			w := e.pick(VLLMMemory, func(f *Fact) bool { return f.Name == "weights" && f.Tells(HasAllocated) })
			if t := e.total(); w != nil && t.bytes > 0 && w.Allocated > t.bytes*7/10 {
				return shown(cureTooBig(e), quote(f, "nothing is left for the cache"), quote(w, fmt.Sprintf("the weights alone take %s of %s", human(w.Allocated), human(t.bytes))))
			}
			return fits(cureTooBig(e), decideSmi, need(needTotal, needProcesses), quote(f, "the model and what was there before it left no room for the cache"))
		},
	},
	{
		name: "vLLM's share is too small", cause: PoolLimit,
		seen:   "the same: the share that vLLM may use (gpu_memory_utilization) is the wall",
		source: "vllm-project/vllm, docs on conserving memory",
		test: func(e *evidence) *finding {
			f := e.pick(VLLMCache, nil)
			if f == nil {
				return nil
			}
			return fits(cureVLLMMore, decideSmi, need(needTotal, needProcesses), quote(f, "a larger gpu_memory_utilization gives the cache more, if the GPU has it"))
		},
	},
	{
		name: "CuPy's limit", cause: PoolLimit,
		seen:   "\"limit set to\" in CuPy's message, and a request that passes it",
		source: "cupy/cupy#7679",
		test: func(e *evidence) *finding {
			f := e.pick(CuPyOOM, func(f *Fact) bool { return f.Tells(HasLimit|HasWant) && f.Limit > 0 })
			if f == nil || f.Allocated+f.Want <= f.Limit {
				return nil
			}
			return shown(cureCuPy(f), quote(f, fmt.Sprintf("%s in the pool and %s asked for pass the limit of %s", human(f.Allocated), human(f.Want), human(f.Limit))))
		},
	},
	{
		name: "RMM's pool is at its maximum", cause: PoolLimit,
		seen:   "\"Maximum pool size exceeded\"",
		source: "rapidsai/rmm#591; pool_memory_resource.hpp",
		test: func(e *evidence) *finding {
			f := e.pick(RMMOOM, func(f *Fact) bool { return strings.Contains(f.Value, "Maximum pool size exceeded") })
			if f == nil {
				return nil
			}
			q := []Evidence{quote(f, "the pool has reached its own maximum; the GPU was not asked")}
			if d := e.pick(RMMDevice, nil); d != nil {
				q = append(q, quote(d, "the simulated GPU has "+human(d.Total)))
			}
			return shown(cureRMM, q...)
		},
	},
	{
		name: "one array larger than the GPU", cause: ProgramTooBig,
		seen:   "CuPy, RMM or llama.cpp ask for more in one piece than the GPU has",
		source: "cupy/cupy; ollama/ollama#8447",
		test: func(e *evidence) *finding {
			t := e.total()
			for _, k := range []Kind{CuPyOOM, RMMOOM, LlamaOOM} {
				f := e.pick(k, func(f *Fact) bool { return f.Tells(HasWant) })
				if f == nil {
					continue
				}
				switch {
				case t.bytes > 0 && f.Want > t.bytes:
					return shown(cureTooBig(e), quote(f, "one piece of "+human(f.Want)), t.from)
				case f.Want > largestGPU:
					return shown(cureTooBig(e), quote(f, "one piece of "+human(f.Want)+" is more than any GPU has"))
				}
			}
			return nil
		},
	},
	{
		name: "the estimate said that it fits", cause: Underestimate,
		seen:   "Ollama's own estimate below what was available, and a refusal",
		source: "ollama/ollama#9782",
		test: func(e *evidence) *finding {
			f := e.pick(LlamaOOM, nil)
			m := e.pick(LlamaMemory, func(f *Fact) bool {
				return f.Tells(HasWant|HasFree) && f.Want <= f.Free || f.Tells(HasAllocated|HasFree) && f.Allocated <= f.Free
			})
			if f == nil || m == nil {
				return nil
			}
			need := m.Want
			if m.Want > m.Free || need == 0 {
				need = m.Allocated
			}
			return shown(cureLlama, quote(m, fmt.Sprintf("%s was thought enough, with %s free", human(need), human(m.Free))), quote(f, "and it was not"))
		},
	},
	{
		name: "Ollama's plan for the graph's buffer", cause: Underestimate,
		seen:   "Ollama's runner ends when the buffer for the computation is refused: the weights fitted, and the plan said that all would",
		source: "ollama/ollama#9782, #10341",
		test: func(e *evidence) *finding {
			f := e.pick(LlamaOOM, func(f *Fact) bool { return f.Tells(HasWant) && strings.Contains(f.Text, "ggml_gallocr_reserve") })
			l := e.pick(LlamaLoad, func(f *Fact) bool { return strings.Contains(f.Text, "runner") })
			if f == nil || l == nil {
				return nil
			}
			return shown(cureLlama, quote(f, "the buffer for the computation, "+human(f.Want)+", which comes after the weights, was refused"), quote(l, "Ollama started the runner because its estimate said that this fits"))
		},
	},
	{
		name: "a model's weights in one buffer", cause: ProgramTooBig,
		seen:   "llama.cpp cannot load a model: one buffer of 16 GiB or more is refused",
		source: "ollama/ollama#8447",
		test: func(e *evidence) *finding {
			f := e.pick(LlamaOOM, func(f *Fact) bool { return f.Tells(HasWant) })
			if f == nil || f.Want < 16*gib || e.total().bytes > f.Want {
				return nil
			}
			return shown(cureLlama, quote(f, "one buffer of "+human(f.Want)+", the layers that are to go to this GPU, was refused"))
		},
	},
	{
		name: "a buffer of llama.cpp", cause: Underestimate,
		seen:   "a smaller buffer is refused, and nothing tells how full the GPU was",
		source: "ollama/ollama#9782",
		test: func(e *evidence) *finding {
			f := e.pick(LlamaOOM, nil)
			if f == nil {
				return nil
			}
			return fits(cureLlama, decideSmi, need(needProcesses, needTotal), quote(f, "the GPU had less than this left"))
		},
	},
	{
		name: "a pool that the GPU refuses", cause: ProgramTooBig,
		seen:   "CuPy, RMM or llama.cpp are refused by the driver, and the total is not told",
		source: "cupy/cupy#1912",
		test: func(e *evidence) *finding {
			for _, k := range []Kind{CuPyOOM, RMMOOM, LlamaOOM} {
				f := e.pick(k, nil)
				if f == nil || f.atLimit() {
					continue
				}
				reading := "the driver had no more"
				if f.Tells(HasAllocated | HasWant) {
					reading = fmt.Sprintf("%s in the pool already, %s more refused", human(f.Allocated), human(f.Want))
					if t := e.total(); t.bytes > 0 && f.Allocated > t.bytes*3/4 {
						return shown(cureTooBig(e), quote(f, reading), t.from)
					}
				}
				return fits(cureTooBig(e), decideSmi, need(needTotal, needProcesses), quote(f, reading))
			}
			return nil
		},
	},
	{
		name: "others on the GPU of a pool", cause: DeviceOccupied,
		seen:   "the same, with other processes on the GPU, or with none told",
		source: "pytorch/pytorch#4293",
		test: func(e *evidence) *finding {
			for _, k := range []Kind{CuPyOOM, RMMOOM, LlamaOOM} {
				f := e.pick(k, nil)
				if f == nil || f.atLimit() {
					continue
				}
				others, told := e.others()
				t := e.total()
				if told && len(others) == 0 || t.bytes > 0 && f.Want > t.bytes {
					return nil
				}
				if sum := heldBy(others); told && sum > t.bytes/4 {
					return shown(cureOccupied(e), append(readings(others), quote(f, "what they hold is lacking here"))...)
				}
				return fits(cureOccupied(e), decideSmi, need(needProcesses), quote(f, "other processes may hold the rest"))
			}
			return nil
		},
	},
}

// atLimit says whether a pool of CuPy or RMM has a limit of its own, at which it is.
func (f *Fact) atLimit() bool {
	return f.Tells(HasLimit) && f.Limit > 0 || strings.Contains(f.Value, "Maximum pool size exceeded")
}

func unifiedReading(f *Fact) string {
	if f.Tells(HasFree | HasTotal) {
		return fmt.Sprintf("%s of %s free: that is what the host can spare at this moment", human(f.Free), human(f.Total))
	}
	return "its free memory is what the host can spare at this moment"
}
