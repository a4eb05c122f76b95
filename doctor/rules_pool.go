package doctor

// Rules for the pool, for the driver below it, and for the compiler above it.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

var headroomRules = []rule{
	{
		name: "NCCL without room", cause: NCCLHeadroom,
		seen:   "NCCL's failure with out of memory, or of its own allocation",
		source: "openxla/xla#7201; jax-ml/jax#4950; NVIDIA/JAX-Toolbox#455",
		test: func(e *evidence) *finding {
			f := e.pick(NCCL, ncclMemory)
			if f == nil {
				return nil
			}
			reading := "NCCL's buffers come from outside every pool, and the driver had no more"
			if f.Tells(HasWant) {
				reading = "NCCL asked the driver for " + human(f.Want) + ", outside every pool, and got nothing"
			}
			return shown(cureNCCL(e), quote(f, reading))
		},
	},
	{
		name: "NCCL without a reason", cause: NCCLHeadroom,
		seen:   "\"unhandled cuda error\" and nothing more",
		source: "NCCL's troubleshooting",
		test: func(e *evidence) *finding {
			f := e.pick(NCCL, nil)
			if f == nil || e.pick(NCCL, ncclMemory) != nil || strings.Contains(f.Text, "'"+f.Value+"'") && f.Value != "" {
				return nil
			}
			return fits(cureNCCL(e), "NCCL_DEBUG=INFO python PROGRAM    # NCCL then says which call failed, and why", need("NCCL's own warning: run with NCCL_DEBUG=INFO"), quote(f, "NCCL had a CUDA error; which one is not told"))
		},
	},
	{
		name: "graphs without room", cause: GraphHeadroom,
		seen:   "a CUDA graph that could not be made for lack of memory",
		source: "XLA's command buffers; CUDA driver API, cuGraphInstantiate",
		test: func(e *evidence) *finding {
			f := e.pick(Graph, func(f *Fact) bool { return f.Code == "" && f.Framework == "xla" || isOOM(f.Code) || isOOM(f.Text) })
			if f == nil {
				return nil
			}
			reading := "the driver keeps a graph outside of the pool, and had no more for it"
			if f.Value != "" {
				reading += "; " + f.Value + " graphs are alive"
			}
			return shown(cureGraphs(e), quote(f, reading))
		},
	},
	{
		name: "compiled code without room", cause: ModuleLoad,
		seen:   "a module that could not be loaded, with the driver's status out of memory",
		not:    "another status, whatever the text guesses (\"compiled for a different GPU?\")",
		source: "marin-community/marin#7421; google-research/perceiver-ar#14",
		test: func(e *evidence) *finding {
			f := e.pick(CUBIN, func(f *Fact) bool { return isOOM(f.Code) })
			if f == nil {
				return nil
			}
			reading := "the driver's status is out of memory: it loads code outside of the pool"
			if strings.Contains(f.Text, "different GPU") {
				reading += "; the text's guess at another GPU is wrong here"
			}
			return shown(cureModule(e), quote(f, reading))
		},
	},
	{
		name: "compiled code that was not loaded", cause: ModuleLoad,
		seen:   "the same without the driver's status",
		source: "marin-community/marin#7421",
		test: func(e *evidence) *finding {
			f := e.pick(CUBIN, func(f *Fact) bool { return !strings.HasPrefix(f.Code, "CUDA_") })
			if f == nil {
				return nil
			}
			return fits(cureModule(e), decidePrealloc, nil, quote(f, "the driver's status is cut off: out of memory, or code for another GPU"))
		},
	},
	{
		name: "compiled code that does not fit", cause: LibraryMismatched,
		seen:   "the same: the code may be for another GPU",
		source: "CUDA driver API, CUresult 209",
		test: func(e *evidence) *finding {
			f := e.pick(CUBIN, func(f *Fact) bool { return !strings.HasPrefix(f.Code, "CUDA_") })
			if f == nil {
				return nil
			}
			return fits(cureLibrary(e), decidePrealloc, nil, quote(f, "the code may be for another GPU, as the text guesses"))
		},
	},
}

// contextOOM is the last line that no context could be made for lack of memory.
func (e *evidence) contextOOM() *Fact {
	return e.pick(Context, func(f *Fact) bool { return isOOM(f.Code) || isOOM(f.Value) })
}

// firstRefused are the first of the driver's refusals, and how many there are.
func (e *evidence) firstRefused() (f *Fact, n int) {
	for _, g := range e.all(DeviceRefused) {
		if !g.Nonfatal {
			return &g, e.facts[DeviceRefused].n
		}
	}
	return nil, 0
}

// later says whether a program's own failure follows the driver's refusals.
func (e *evidence) later() bool {
	return e.fails(BFCRefused, XLARefused, TFOOM, TorchOOM, TFCopy)
}

var startRules = []rule{
	{
		name: "no context: the GPU is full", cause: DeviceOccupied,
		seen:   "no context could be made for lack of memory, and others hold the GPU",
		not:    "a GPU that nobody is on",
		source: "junxnone/tio#189; jax-ml/jax#10830",
		test: func(e *evidence) *finding {
			f := e.contextOOM()
			if f == nil {
				return nil
			}
			q := []Evidence{quote(f, "not even a context could be made: the GPU was full before this program took any")}
			if m := e.pick(SmiMemory, func(m *Fact) bool {
				return m.Tells(HasInUse|HasTotal) && m.Total-min(m.InUse, m.Total) < max(gib, m.Total/50)
			}); m != nil {
				return shown(cureOccupied(e), append(q, quote(m, fmt.Sprintf("%s of %s is in use", human(m.InUse), human(m.Total))))...)
			}
			seen := map[int]bool{}
			contexts := e.all(Context)
			slices.SortStableFunc(contexts, func(a, b Fact) int { return cmp.Compare(a.Device, b.Device) })
			for _, c := range contexts {
				d := e.state.device(c.Device)
				if d == nil || seen[d.Index] {
					continue
				}
				seen[d.Index] = true
				for _, p := range d.Processes {
					if e.state.Process != nil && e.state.Process.PID == p.PID && p.PID > 0 {
						continue
					}
					h := holder{p, Evidence{Text: fmt.Sprintf("devices[%d].processes: pid %d %s", d.Index, p.PID, p.Name)}}
					q = append(q, readings([]holder{h})...)
				}
			}
			if others, told := e.others(); len(q) == 1 && told {
				q = append(q, readings(others)...)
			}
			if len(q) > 1 {
				return shown(cureOccupied(e), q...).with("not even a context could be made on the GPU")
			}
			if f.Tells(HasTotal) && f.Total >= saneTotal {
				return nil
			}
			return fits(cureOccupied(e), decideSmi, need(needProcesses), q...).with("not even a context could be made on the GPU: it was full before this program took any")
		},
	},
	{
		name: "no context: another that preallocates", cause: MultiProcess,
		seen:   "no context, and nobody told who is on the GPU",
		source: "jax-ml/jax#10830",
		test: func(e *evidence) *finding {
			f := e.contextOOM()
			if _, told := e.holders(); f == nil || told || e.has(SmiMemory) || f.Tells(HasTotal) && f.Total >= saneTotal {
				return nil
			}
			return fits(cureMulti(e), decideSmi, need(needProcesses), quote(f, "the GPU was full before this program took any"))
		},
	},
	{
		name: "a pool is refused: TensorFlow in the process", cause: JAXAndTensorFlow,
		seen:   "a whole pool of JAX is refused, and the process has TensorFlow, which takes what is free",
		source: "jax-ml/jax#9454; JAX's page on GPU memory, cause 2",
		test: func(e *evidence) *finding {
			f, _ := e.firstRefused()
			both := e.jaxAndTF()
			if f == nil || both == nil || !e.wholePool(f) || e.madeAgain() {
				return nil
			}
			return shown(cureJAXAndTF(e), append(both, quote(f, e.poolReading(f)))...)
		},
	},
	{
		name: "a second pool", cause: SecondPool,
		seen:   "a whole pool is refused, and the program made its backend again",
		source: "jax-ml/jax#20022",
		test: func(e *evidence) *finding {
			f, _ := e.firstRefused()
			if f == nil {
				f = e.pick(XLARefused, nil)
			}
			if f == nil {
				return nil
			}
			var q []Evidence
			if e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil {
				if !*e.state.Process.BackendRecreated {
					return nil
				}
				q = append(q, Evidence{Text: "process.backend_recreated: true", Reading: "the backend was made a second time in the same process"})
			}
			if c := e.first(BackendCleared, nil); c != nil {
				q = append(q, quote(c, "the program cleared its backends"))
			}
			if p := e.all(Preallocating); len(p) > 1 && len(q) > 0 {
				q = append(q, quote(&p[0], "the first pool"), quote(&p[len(p)-1], "the same again"))
			}
			if len(q) > 0 && f.Kind == DeviceRefused {
				reading := human(f.Want) + " asked for at once: a whole pool"
				if t := e.total(); t.bytes > 0 {
					reading = fmt.Sprintf("%s asked for at once, %d %% of %s: a whole pool", human(f.Want), percent(f.Want, t.bytes), human(t.bytes))
				}
				return shown(cureSecondPool, append(q, quote(f, reading))...)
			}
			if f.Kind != DeviceRefused || e.later() || !e.wholePool(f) {
				return nil
			}
			if _, told := e.others(); told {
				return nil
			}
			return fits(cureSecondPool, decideSmi, need(needRecreated, needProcesses, needTotal), quote(f, "the size of a whole pool"))
		},
	},
	{
		name: "TensorFlow starts on a full GPU", cause: DeviceOccupied,
		seen:   "TensorFlow's own reading of free memory at its start: less than a tenth of the total, or than the context",
		not:    "most of the GPU free",
		source: "tensorflow/tensorflow#8170",
		test: func(e *evidence) *finding {
			free := e.first(DeviceFree, func(f *Fact) bool { return f.Framework == "tensorflow" && f.Tells(HasFree) })
			total := e.first(DeviceFree, func(f *Fact) bool { return f.Framework == "tensorflow" && f.Tells(HasTotal) })
			if free == nil || total == nil || free.Free > total.Total/4 {
				return nil
			}
			q := []Evidence{quote(free, fmt.Sprintf("%s was free before the program took any", human(free.Free))), quote(total, "of "+human(total.Total))}
			if f, _ := e.firstRefused(); f != nil {
				q = append(q, quote(f, "it asked for what was left, and did not get that"))
			}
			if !e.fails(failures...) {
				return nil
			}
			return shown(cureOccupied(e), q...)
		},
	},
	{
		name: "a pool is refused: another JAX", cause: MultiProcess,
		seen:   "the driver refuses a pool, or a request, and another process has a pool of JAX",
		source: "jax-ml/jax#4310; JAX's page on GPU memory, cause 1",
		test: func(e *evidence) *finding {
			f := e.driverRefusal()
			if f == nil {
				return nil
			}
			others, told := e.others()
			for _, o := range others {
				if yes, why := o.isJAX(e.total().bytes); yes {
					o.from.Reading = why
					return shown(cureMulti(e), quote(f, e.poolReading(f)), o.from)
				}
			}
			if told || e.madeAgain() || f.Kind == DeviceRefused && (!e.wholePool(f) || e.later()) || f.Kind != DeviceRefused && f.Want > gib {
				return nil
			}
			if f.Kind == DeviceRefused {
				return fits(cureMulti(e), decideSmi, need(needProcesses, needTotal), quote(f, e.poolReading(f)))
			}
			return fits(cureMulti(e), decideSmi, nil, quote(f, e.poolReading(f)))
		},
	},
	{
		name: "a request is larger than the GPU", cause: ProgramTooBig,
		seen:   "one request to the driver above the total",
		source: "stream_executor_memory_allocator",
		test: func(e *evidence) *finding {
			f := e.driverRefusal()
			if f == nil || f.Kind == DeviceRefused && f.Name != "async" {
				return nil // a region of a pool: more than the request
			}
			t := e.total()
			switch {
			case f.Want > largestThen(f):
				return shown(cureTooBig(e), quote(f, human(f.Want)+" in one piece is more than any GPU has, or had when this was printed"))
			case t.bytes > 0 && f.Want > t.bytes:
				return shown(cureTooBig(e), quote(f, human(f.Want)+" in one piece"), t.from)
			case t.bytes == 0 && f.Want > gib:
				return fits(cureTooBig(e), decideSmi, need(needTotal, needProcesses), quote(f, "the driver did not have "+human(f.Want)))
			}
			return nil
		},
	},
	{
		name: "the driver refuses: others hold it", cause: DeviceOccupied,
		seen:   "the driver refuses, and another program that is no JAX holds the GPU",
		source: "pytorch/pytorch#4293",
		test: func(e *evidence) *finding {
			f := e.driverRefusal()
			if f == nil {
				return nil
			}
			others, told := e.others()
			t := e.total()
			if t.bytes > 0 && f.Want > t.bytes && f.Kind != DeviceRefused {
				return nil
			}
			var big []holder
			for _, o := range others {
				if yes, _ := o.isJAX(t.bytes); !yes && !o.isDesktop() && o.Used > max(t.bytes/10, firstLibrary) {
					big = append(big, o)
				}
			}
			if len(big) > 0 && (t.bytes == 0 || heldBy(big) > t.bytes/4 || f.Want > t.bytes-min(t.bytes, heldBy(big))) {
				return shown(cureOccupied(e), append(readings(big), quote(f, e.poolReading(f)))...)
			}
			if told || e.madeAgain() || f.Kind == DeviceRefused && (!e.wholePool(f) || e.later()) {
				return nil
			}
			missing := need(needProcesses, needTotal)
			if f.Kind != DeviceRefused && f.Want <= gib {
				missing = nil
			}
			return fits(cureOccupied(e), decideSmi, missing, quote(f, e.poolReading(f)))
		},
	},
	{
		name: "JAX on the CPU", cause: HostMemory,
		seen:   "a refusal by the allocator of a device, and settings that make the CPU the device",
		source: "jax's JAX_PLATFORMS",
		test: func(e *evidence) *finding {
			f := e.pick(XLADevice, nil)
			if f == nil {
				f = e.pick(XLARefused, nil)
			}
			for _, name := range []string{"JAX_PLATFORMS", "JAX_PLATFORM_NAME"} {
				if f != nil && strings.EqualFold(e.env[name], "cpu") {
					r := shown(cureHostKilled, quote(f, name+"=cpu: the device is the CPU, and its memory the host's"))
					r.alone = true
					return r
				}
			}
			return nil
		},
	},
	{
		name: "a TPU's memory", cause: ProgramTooBig,
		seen:   "the compiler's count of a TPU's memory",
		source: "XLA's TPU compiler",
		test: func(e *evidence) *finding {
			f := e.pick(TPU, nil)
			if f == nil || f.Want <= f.Total {
				return nil
			}
			return shown(cureTooBig(e), quote(f, fmt.Sprintf("the program needs %s of %s, and the device has %s; it is a TPU, and none of a GPU's settings apply", human(f.Want), f.Name, human(f.Total))))
		},
	},
	{
		name: "an error without its request, at CUDA graphs", cause: GraphHeadroom,
		seen:   "a CUDA error out of memory while graphs are captured",
		source: "vllm-project/vllm#22897",
		test: func(e *evidence) *finding {
			f := e.pick(CUDAError, outOfMemory)
			d := e.doing("graphs", f)
			if d == nil || e.fails(refusals...) {
				return nil
			}
			return shown(cureGraphs(e), quote(d, "CUDA graphs are captured"), quote(f, "the driver keeps graphs outside of every pool, and had no more"))
		},
	},
	{
		name: "an error without its request: others hold it", cause: DeviceOccupied,
		seen:   "a CUDA error out of memory that names no size, and a GPU that others fill, or that is full and nobody is listed",
		not:    "a message with sizes, which says more",
		source: "pytorch/pytorch#4293",
		test: func(e *evidence) *finding {
			f, d := e.pick(CUDAError, outOfMemory), e.gpu()
			if f == nil || e.fails(failures...) && !e.bareHAMi(f) {
				return nil
			}
			others, told := e.others()
			t := e.total().bytes
			sum := heldBy(others)
			q := quote(f, "the driver had no memory; how much was asked for is not told")
			switch {
			case told && t > 0 && sum > t/2:
				return shown(cureOccupied(e), append(readings(others), q)...)
			case told && len(others) == 0 && d != nil && d.Total > 0 && d.Used > d.Total*3/4:
				return shown(cureOccupied(e), q, Evidence{Text: fmt.Sprintf("devices.used_bytes: %d", d.Used), Reading: fmt.Sprintf("%s of %s is in use, and no process is listed: one that died and is not gone, or one outside of this container", human(d.Used), human(d.Total))})
			}
			return nil
		},
	},
	{
		name: "JAX's own kernels without room", cause: PreallocStarves,
		seen:   "a CUDA call of jaxlib, outside of the pool, that fails for memory",
		source: "jaxlib/gpu",
		test: func(e *evidence) *finding {
			f := e.pick(CUDAError, func(f *Fact) bool { return f.Framework == "jax" && outOfMemory(f) })
			if f == nil || e.fails(failures...) {
				return nil
			}
			if others, told := e.others(); told {
				if heldBy(others) > firstLibrary {
					return nil
				}
				return shown(cureStarved(e, nil, 0), quote(f, "the driver had no memory for "+f.Name+", which does not come from the pool; the pool took the rest"))
			}
			return fits(cureStarved(e, nil, 0), decidePrealloc, need(needProcesses), quote(f, "the driver had no memory for "+f.Name+", which does not come from the pool"))
		},
	},
	{
		name: "a small request past the pool", cause: PreallocStarves,
		seen:   "\"Failed to allocate request\": a request that does not go to the pool, of a GiB at most",
		not:    "others on the GPU",
		source: "google-deepmind/jax_privacy#10",
		test: func(e *evidence) *finding {
			f := e.pick(XLADevice, func(f *Fact) bool { return !f.Nonfatal })
			if f == nil || f.Want > gib || e.has(TorchOOM) {
				return nil
			}
			others, told := e.others()
			if told && heldBy(others) < firstLibrary {
				return shown(cureStarved(e, nil, heldBy(others)), quote(f, human(f.Want)+" asked of the driver, past the pool, which is alone on the GPU"))
			}
			if told {
				return nil
			}
			return fits(cureStarved(e, nil, 0), decidePrealloc, nil, quote(f, human(f.Want)+" asked of the driver, past the pool: the pool left less than that, or another process did"))
		},
	},
	{
		name: "the budget of mapped memory", cause: PoolLimit,
		seen:   "\"Not enough PA budget\": what is allocated and the request pass the budget",
		source: "XLA's vmm allocator",
		test: func(e *evidence) *finding {
			f := e.pick(VMMRefused, func(f *Fact) bool { return f.Tells(HasLimit | HasWant) })
			if f == nil || f.Allocated+f.Want <= f.Limit {
				return nil
			}
			t := e.total()
			q := quote(f, fmt.Sprintf("%s allocated and %s asked for pass the budget of %s", human(f.Allocated), human(f.Want), human(f.Limit)))
			if t.bytes > 0 && f.Allocated+f.Want > t.bytes {
				return nil
			}
			return shown(cureLimit(e, f.Allocated+f.Want, f.Limit), q)
		},
	},
}

// bareHAMi says whether an error is the driver's, below HAMi, and what fails
// beside it says no more.
func (e *evidence) bareHAMi(f *Fact) bool {
	return e.pick(CUDAError, func(g *Fact) bool { return g.Framework == "hami" }) != nil && !e.fails(refusals...)
}

// largestThen is the largest GPU there was when a message was printed: XLA wrote
// "Resource exhausted" in small letters up to 2022, when an A100 had 80 GB.
func largestThen(f *Fact) uint64 {
	if strings.Contains(f.Text, "Resource exhausted:") {
		return 80 * gib
	}
	return largestGPU
}

// driverRefusal is the first refusal by the driver itself, and nil.
func (e *evidence) driverRefusal() *Fact {
	if f, _ := e.firstRefused(); f != nil {
		return f
	}
	if f := e.pick(XLADevice, func(f *Fact) bool { return !f.Nonfatal }); f != nil {
		return f
	}
	return e.pick(VMMRefused, func(f *Fact) bool { return isOOM(f.Code) })
}

// madeAgain says whether the program made its backend a second time.
func (e *evidence) madeAgain() bool {
	return e.has(BackendCleared) || e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil && *e.state.Process.BackendRecreated
}

// wholePool says whether a refused request has the size of a pool: alone, or
// three quarters or nine tenths of the GPU, or of one that is sold.
func (e *evidence) wholePool(f *Fact) bool {
	_, n := e.firstRefused()
	if t := e.total(); t.bytes > 0 {
		part := float64(f.Want) / float64(t.bytes)
		return math.Abs(part-.75) < .015 || math.Abs(part-.9) < .015
	}
	return n == 1 && f.Want >= gib
}

// poolReading is what a refused request shows.
func (e *evidence) poolReading(f *Fact) string {
	if f.Kind == DeviceRefused && e.wholePool(f) {
		if t := e.total(); t.bytes > 0 {
			return fmt.Sprintf("the driver did not have %s: %d %% of %s, a whole pool", human(f.Want), percent(f.Want, t.bytes), human(t.bytes))
		}
		if card, part, ok := poolOf(f.Want); ok {
			return fmt.Sprintf("the driver did not have %s: %.0f %% of a GPU such as %s, a whole pool", human(f.Want), 100*part, card)
		}
	}
	return "the driver did not have " + human(f.Want)
}

// ladder says whether refusals are one request that is tried again at nine
// tenths, and which.
func (e *evidence) ladder() (first, last Fact, n int) {
	all := e.all(DeviceRefused)
	for i, f := range all {
		if i > 0 {
			before := all[i-1].Want
			if r := float64(f.Want) / float64(max(before, 1)); r < .89 || r > .91 {
				break
			}
		} else {
			first = f
		}
		last, n = f, i+1
	}
	return first, last, n
}

// poolFraction is the fraction of the GPU that the program's pool may take:
// what it set, or JAX's default.
func (e *evidence) poolFraction() (fraction float64, set bool) {
	return e.fraction()
}

var poolRules = []rule{
	{
		name: "regions given back", cause: Fragmentation,
		seen:   "TensorFlow gives free regions back to ask for a larger one, and is refused",
		not:    "the message alone: it is a warning",
		source: "TensorFlow's bfc_allocator.cc, DeallocateFreeRegions",
		test: func(e *evidence) *finding {
			g := e.pick(GarbageCollection, nil)
			if g == nil || !e.fails(DeviceRefused, BFCRefused, TFOOM) {
				return nil
			}
			q := []Evidence{quote(g, "the pool has free regions, each too small, and gives them back to ask for a larger one")}
			if f := e.pick(DeviceRefused, nil); f != nil {
				q = append(q, quote(f, "the driver did not have "+human(f.Want)))
			}
			return shown(cureFragmented(e, nil), q...)
		},
	},
	{
		name: "holes in the pool", cause: Fragmentation,
		seen:   "a pool with enough free for the request, and no piece that is large enough",
		not:    "a largest free block that would have held it; a pool that may still grow",
		source: "jax-ml/jax#9064; marin-community/marin#7115",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.want == 0 || p.inUse.bytes == 0 || p.limit.bytes == 0 && p.size.bytes == 0 {
				return nil
			}
			size, known := p.size.bytes, p.size.bytes > 0
			if !known {
				size = p.limit.bytes
			}
			free := size - min(size, p.inUse.bytes)
			if free < p.want || p.largest.bytes >= p.want {
				return nil
			}
			if p.limit.bytes > size && p.limit.bytes-size >= p.want && p.largest.bytes == 0 {
				return nil // it could grow: the driver was what refused
			}
			q := []Evidence{quote(p.refused, human(p.want)+" asked for"), p.inUse.from}
			if known {
				q = append(q, p.size.from)
			} else {
				q = append(q, p.limit.from)
			}
			if p.largest.bytes > 0 {
				q = append(q, p.largest.from)
			}
			sum := fmt.Sprintf("%s of the pool's %s is free, which is more than the %s asked for, so no hole is large enough", human(free), human(size), human(p.want))
			if !known && e.grows() {
				return fits(cureFragmented(e, p), decideState, need(needProcesses), q...).with(sum)
			}
			return shown(cureFragmented(e, p), q...).with(sum)
		},
	},
	{
		name: "a tensor larger than TensorFlow's device", cause: ProgramTooBig,
		seen:   "the refused tensor's shape times its type's width, above what TensorFlow's device got",
		source: "TensorFlow's gpu_device.cc",
		test: func(e *evidence) *finding {
			f := e.pick(TFOOM, func(f *Fact) bool { return !isHost(f.Allocator) && tensorBytes(f) > 0 })
			if f == nil {
				return nil
			}
			bytes := tensorBytes(f)
			if d := e.pick(TFDevice, func(d *Fact) bool { return d.Tells(HasLimit) }); d != nil && bytes > d.Limit {
				return shown(cureTooBig(e), quote(f, "this tensor alone is "+human(bytes)), quote(d, "TensorFlow's device got "+human(d.Limit)))
			}
			if t := e.total(); t.bytes > 0 && bytes > t.bytes || bytes > largestGPU {
				return shown(cureTooBig(e), quote(f, "this tensor alone is "+human(bytes)+", more than the GPU has"))
			}
			return nil
		},
	},
	{
		name: "one buffer above the compiler's limit", cause: ProgramTooBig,
		seen:   "a refused buffer above the limit that rematerialization worked towards, or a pass that saves nothing of a program that does not fit",
		source: "hlo_rematerialization.cc",
		test: func(e *evidence) *finding {
			r, p := e.pick(Remat, nil), e.pool()
			if r == nil || p == nil || p.want == 0 {
				return nil
			}
			saved := r.Allocated - min(r.Allocated, r.Want)
			if p.want <= r.Limit && saved > r.Allocated/100 {
				return nil
			}
			reading := fmt.Sprintf("recomputing brings %s to %s, and the limit is %s", human(r.Allocated), human(r.Want), human(r.Limit))
			if saved == 0 {
				reading = fmt.Sprintf("recomputing saves nothing of %s, and the limit is %s", human(r.Want), human(r.Limit))
			}
			return shown(cureTooBig(e), quote(r, reading), quote(p.refused, "one buffer of "+human(p.want)+" is refused"))
		},
	},
	{
		name: "recomputing does not save enough", cause: RematShort,
		seen:   "\"Can't reduce memory use below A by rematerialization; only reduced to B, down from C\"",
		source: "hlo_rematerialization.cc; jax-ml/jax#23738",
		test: func(e *evidence) *finding {
			r := e.pick(Remat, nil)
			if r == nil {
				return nil
			}
			saved, wanted := r.Allocated-min(r.Allocated, r.Want), r.Allocated-min(r.Allocated, r.Limit)
			reading := fmt.Sprintf("the pass saves %s of %s (%d %%); to reach the limit of %s it would have to save %s", human(saved), human(r.Allocated), percent(saved, r.Allocated), human(r.Limit), human(wanted))
			if !r.Tells(HasAllocated) {
				reading = "the pass does not reach the limit of " + human(r.Limit)
			}
			q := []Evidence{quote(r, reading)}
			if p := e.pool(); p != nil && p.want > 0 {
				q = append(q, quote(p.refused, "and then "+human(p.want)+" is refused"))
			}
			return shown(cureRemat(e), q...)
		},
	},
	{
		name: "the program's buffers above the GPU", cause: ProgramTooBig,
		seen:   "the compiler's total allocation above the GPU's memory",
		source: "XLA's BufferAssignment report",
		test: func(e *evidence) *finding {
			b, t := e.assigned(), e.total()
			if b == nil || t.bytes == 0 || b.Want <= t.bytes-min(t.bytes, contextMost/2) {
				return nil
			}
			return shown(cureTooBig(e), quote(b, "the program needs "+human(b.Want)+" for its buffers alone"), t.from)
		},
	},
	{
		name: "the program's buffers above the pool", cause: PoolLimit,
		seen:   "the compiler's total allocation above the pool's part of the GPU, and below the whole",
		source: "XLA's BufferAssignment report; google-research/scenic",
		test: func(e *evidence) *finding {
			b, t := e.assigned(), e.total()
			if b == nil {
				return nil
			}
			if t.bytes == 0 {
				if e.pool() != nil && e.pool().limit.bytes > 0 || b.Want < smallProgram {
					return nil
				}
				return fits(cureLimit(e, b.Want, 0), decideState, need(needTotal, needEnv), quote(b, "the program needs "+human(b.Want)+" for its buffers alone")).
					with("the program's buffers take " + human(b.Want) + " together, by the compiler's own count")
			}
			fraction, set := e.poolFraction()
			limit := uint64(fraction * float64(t.bytes))
			if b.Want > t.bytes-min(t.bytes, contextMost/2) || b.Want <= limit {
				return nil
			}
			why := "by default"
			if set {
				why = "by its setting"
			}
			q := []Evidence{quote(b, fmt.Sprintf("the program needs %s; its pool may take %v of %s %s, which is %s", human(b.Want), fraction, human(t.bytes), why, human(limit)))}
			if r := e.pick(XLARefused, nil); r != nil {
				q = append(q, quote(r, human(r.Want)+" of them in one piece"))
			}
			return shown(cureLimit(e, b.Want, limit), append(q, t.from)...)
		},
	},
	{
		name: "the program's buffers, and nothing to compare them with", cause: ProgramTooBig,
		seen:   "the compiler's total allocation, and no word of the GPU",
		source: "XLA's BufferAssignment report",
		test: func(e *evidence) *finding {
			b := e.assigned()
			if b == nil || e.total().bytes > 0 || e.pool() != nil && e.pool().limit.bytes > 0 || b.Want < smallProgram {
				return nil
			}
			if b.Want > largestGPU {
				return shown(cureTooBig(e), quote(b, human(b.Want)+" is more than any GPU has"))
			}
			return fits(cureTooBig(e), decideState, need(needTotal), quote(b, "the program needs "+human(b.Want)))
		},
	},
	{
		name: "more than any GPU, or than this one", cause: ProgramTooBig,
		seen:   "one request above the GPU's memory, or the pool's need above it even with a larger limit",
		source: "bfc_allocator.cc",
		test: func(e *evidence) *finding {
			p, t := e.pool(), e.total()
			if p == nil || p.want == 0 || p.refused.Kind == TFOOM && !e.has(BFCRefused) && p.limit.bytes == 0 {
				return nil
			}
			q := []Evidence{quote(p.refused, human(p.want)+" in one piece")}
			switch {
			case p.want > largestThen(p.refused) && !e.unified():
				q[0].Reading += " is more than any GPU has"
				return shown(cureTooBig(e), q...)
			case e.unified():
				return nil
			case t.bytes > 0 && p.want > t.bytes-min(t.bytes, contextMost/4):
				return shown(cureTooBig(e), append(q, t.from)...)
			case t.bytes > 0 && p.limit.bytes > 0 && p.inUse.bytes > 0 && p.inUse.bytes+p.want > p.limit.bytes && p.inUse.bytes+p.want > t.bytes-min(t.bytes, contextMost/2):
				q[0].Reading = fmt.Sprintf("%s in use and %s asked for are more than the GPU's %s, whatever the pool's limit", human(p.inUse.bytes), human(p.want), human(t.bytes))
				return shown(cureTooBig(e), append(q, p.inUse.from, t.from)...)
			}
			return nil
		},
	},
	{
		name: "the pool is at its limit", cause: PoolLimit,
		seen:   "what is in use and what was asked for pass the pool's limit, while the GPU has that much more",
		not:    "enough free in the pool: that is fragmentation",
		source: "zml/zml#125; google-deepmind/alphafold#832",
		test: func(e *evidence) *finding {
			p, t := e.pool(), e.total()
			if p == nil || p.want == 0 {
				return nil
			}
			if p.limit.bytes > 0 && p.inUse.bytes > 0 {
				need_ := p.inUse.bytes + p.want
				if need_ <= p.limit.bytes || t.bytes > 0 && !e.unified() && need_ > t.bytes-min(t.bytes, contextMost/2) {
					return nil
				}
				q := []Evidence{quote(p.refused, human(p.want)+" asked for"), p.limit.from, p.inUse.from}
				if t.bytes == 0 {
					return fits(cureLimit(e, need_, p.limit.bytes), decideState, need(needTotal), q...).
						with(fmt.Sprintf("the pool is full: %s of its limit of %s is in use, and %s more was asked for", human(p.inUse.bytes), human(p.limit.bytes), human(p.want)))
				}
				return shown(cureLimit(e, need_, p.limit.bytes), append(q, t.from)...).
					with(fmt.Sprintf("%s of the GPU lie outside of the pool", human(t.bytes-min(t.bytes, p.limit.bytes))))
			}
			fraction, _ := e.poolFraction()
			limit := uint64(fraction * float64(t.bytes))
			if b := e.assigned(); b != nil && b.Want > t.bytes {
				return nil // see the rules for the program's buffers
			}
			if t.bytes > 0 && e.framework("jax") && p.want > limit {
				return shown(cureLimit(e, p.want, limit), quote(p.refused, fmt.Sprintf("%s in one piece is more than the pool's %v of %s", human(p.want), fraction, human(t.bytes))), t.from)
			}
			return nil
		},
	},
	{
		name: "the pool is full, and the GPU unknown", cause: ProgramTooBig,
		seen:   "a pool at its limit, and nothing that tells how large the GPU is",
		source: "bfc_allocator.cc",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.want == 0 || e.total().bytes > 0 {
				return nil
			}
			switch {
			case p.limit.bytes > 0 && p.inUse.bytes > 0 && p.inUse.bytes+p.want > p.limit.bytes:
				return fits(cureTooBig(e), decideState, need(needTotal), quote(p.refused, human(p.want)+" asked for"), p.limit.from, p.inUse.from)
			}
			return nil
		},
	},
	{
		name: "a growing pool that the driver refuses", cause: DeviceOccupied,
		seen:   "a pool far below its limit, with little free in it, that could not grow",
		source: "bfc_allocator.cc, Extend",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.want == 0 || p.size.bytes == 0 || p.limit.bytes < p.size.bytes+p.want || p.size.bytes-min(p.size.bytes, p.inUse.bytes) >= p.want {
				return nil
			}
			q := []Evidence{quote(p.refused, human(p.want)+" asked for"), p.size.from, p.limit.from}
			others, told := e.others()
			if told && heldBy(others) > firstLibrary {
				return shown(cureOccupied(e), append(q, readings(others)...)...)
			}
			return fits(cureOccupied(e), decideSmi, need(needProcesses), q...).
				with(fmt.Sprintf("the pool has %s of its limit of %s, and the driver gave it no more: others, or what is outside of the pool, have the rest", human(p.size.bytes), human(p.limit.bytes)))
		},
	},
	{
		name: "TensorFlow got a part of the GPU only", cause: DeviceOccupied,
		seen:   "TensorFlow's device with less than half of what a GPU of that name has, and a failure",
		source: "TensorFlow's gpu_device.cc: it takes what is free but a reserve",
		test: func(e *evidence) *finding {
			d := e.first(TFDevice, func(d *Fact) bool { return d.Tells(HasLimit) })
			if d == nil || !e.fails(failures...) {
				return nil
			}
			least, _, ok := cardTotals(d.Name)
			if !ok || d.Limit > least/2 {
				return nil
			}
			q := quote(d, fmt.Sprintf("TensorFlow takes what is free: it got %s, and this GPU has %s", human(d.Limit), human(least)))
			others, told := e.others()
			if told && heldBy(others) > least/4 {
				return shown(cureOccupied(e), append(readings(others), q)...)
			}
			return fits(cureOccupied(e), decideSmi, need(needProcesses), q)
		},
	},
	{
		name: "a small request in a busy TensorFlow pool", cause: Fragmentation,
		seen:   "TensorFlow's pool refuses a request of which others in the same pool are many times the size, and no figure of the pool is told",
		not:    "figures of the pool, which say more",
		source: "tensorflow/tensorflow#10152; knaw-huc/loghi#55",
		test: func(e *evidence) *finding {
			p := e.pool()
			if p == nil || p.refused.Kind != BFCRefused || p.limit.bytes > 0 || p.inUse.bytes > 0 || !e.has(PoolFragmented) || e.framework("jax") && !e.framework("tensorflow") {
				return nil
			}
			w := e.pick(BFCWarning, func(f *Fact) bool { return f.Allocator == p.refused.Allocator && f.Want > 32*p.want })
			if w == nil || p.want > 256*mib || e.has(Remat, BufferAssignment) {
				return nil
			}
			return shown(cureFragmented(e, p), quote(p.refused, "only "+human(p.want)+" was asked for, and refused"), quote(w, fmt.Sprintf("the same pool is asked for %s, %d times as much: it is a large pool, full of pieces", human(w.Want), w.Want/max(p.want, 1))))
		},
	},
}

// smallProgram is a program in bytes that fits any GPU of the last ten years: if it did
// not, it was not for its own size.
const smallProgram = gib

// assigned is the compiler's total for a program that did not fit, and nil.
func (e *evidence) assigned() *Fact {
	if e.pool() == nil && !e.has(BufferAssignment) {
		return nil
	}
	return e.pick(BufferAssignment, func(f *Fact) bool { return f.Name == "total allocation" && f.Want > 0 })
}

// unified says whether the pool may be larger than the GPU.
func (e *evidence) unified() bool {
	v := e.env["TF_FORCE_UNIFIED_MEMORY"]
	fraction, _ := e.fraction()
	return v != "" && v != "0" && !strings.EqualFold(v, "false") || fraction > 1
}

// grows says whether the pool grows as needed, as far as known.
func (e *evidence) grows() bool {
	v := e.env["XLA_PYTHON_CLIENT_PREALLOCATE"]
	return v == "false" || v == "False" || v == "0" || strings.EqualFold(e.env["TF_FORCE_GPU_ALLOW_GROWTH"], "true")
}

var lastRules = []rule{
	{
		name: "a warning", cause: NonfatalWarning,
		seen:   "lines that say themselves that they are no failure, and no failure",
		not:    "any failure",
		source: "bfc_allocator.cc; cpu_allocator_impl.cc",
		test: func(e *evidence) *finding {
			if e.fails(failures...) || e.fails(CUDAError) || e.has(HostOOMKilled, HostRefused, HostDriver, Setting, OtherFailure) {
				return nil
			}
			for _, w := range []struct {
				kind Kind
				what string
			}{
				{BFCWarning, "the caller can do without this memory, and says so: it may be slower, and goes on"},
				{GarbageCollection, "the pool gives free regions back to ask for a larger one; it goes on"},
				{HostWarning, "a large request on the host that was served"},
				{XLADevice, "an algorithm that was tried did not fit; another is taken"},
				{HostPinned, "without pinned memory the program goes on, with slower copies"},
				{Resharding, "a slow way from one sharding to another; \"rematerialization\" here is not about memory that is short"},
			} {
				if f := e.pick(w.kind, nil); f != nil {
					r := shown(cureWarning, quote(f, w.what))
					r.verdict = VerdictNonfatal
					return r
				}
			}
			return nil
		},
	},
}

// certainty is what is sure where no rule finds a cause.
func (e *evidence) certainty() []string {
	var c []string
	if p := e.pool(); p != nil && p.want > 0 {
		c = append(c, fmt.Sprintf("line %d is the failure: %s was refused", p.refused.Line, human(p.want)))
	} else if f := e.driverRefusal(); f != nil {
		first, last, n := e.ladder()
		if n > 2 {
			c = append(c, fmt.Sprintf("lines %d to %d are one request: each is nine tenths of the one before, from %s down to %s; the driver had less than each of them", first.Line, last.Line, human(first.Want), human(last.Want)))
		} else {
			c = append(c, fmt.Sprintf("the driver refused %s (line %d)", human(f.Want), f.Line))
		}
	}
	if d := e.dump; d != nil && d.Pool > 0 && len(c) == 0 {
		c = append(c, fmt.Sprintf("the dumped pool has %s, of which %s is in use and %s free, in pieces of %s at most", human(d.Pool), human(d.InUse), human(d.Free()), human(d.LargestFree)))
	}
	if f := e.contextOOM(); f != nil {
		c = append(c, "not even a context could be made on the GPU: it was full before this program took any")
		if f.Tells(HasTotal) && f.Total >= saneTotal {
			c = append(c, fmt.Sprintf("the total in line %d is no size: %d is %s below 2^64", f.Line, f.Total, human(-f.Total)))
		}
	}
	limit := e.pick(PoolStats, func(f *Fact) bool { return f.Name == "Limit" })
	inUse := e.pick(PoolStats, func(f *Fact) bool { return f.Name == "InUse" })
	if limit != nil && inUse != nil && limit.Limit > 0 {
		if left := limit.Limit - min(limit.Limit, inUse.InUse); left < limit.Limit/50 {
			c = append(c, fmt.Sprintf("the pool is full: %s of its limit of %s is in use (lines %d and %d)", human(inUse.InUse), human(limit.Limit), limit.Line, inUse.Line))
			if limit.Limit < gib {
				c = append(c, "the limit is small: "+human(limit.Limit)+"; why is not told")
			}
		}
	}
	if f := e.pick(TFCopy, nil); f != nil {
		c = append(c, fmt.Sprintf("a copy to the GPU found no room (line %d)", f.Line))
	}
	if f := e.pick(TFOOM, nil); f != nil {
		if n := tensorBytes(f); n > 0 {
			c = append(c, fmt.Sprintf("the tensor of line %d is %s", f.Line, human(n)))
		}
	}
	if f := e.pick(BFCWarning, nil); f != nil && e.fails(failures...) {
		c = append(c, fmt.Sprintf("line %d is a warning, not the failure", f.Line))
	}
	if h := e.handle(); h != nil {
		c = append(c, h.certain()...)
		if h.from != nil && !h.short() && !h.plenty() && !h.scarce() {
			c = append(c, fmt.Sprintf("%d %% free is what JAX's default pool leaves by design (a quarter, less a context), and a library would fit into it", percent(h.left, h.total)))
		}
	}
	if f := e.pick(CUDAError, func(f *Fact) bool { return isOOM(f.Code + f.Value) }); f != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("the driver refused memory (line %d); whose request it was is not told", f.Line))
	}
	if t := e.torch(); t != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("PyTorch was refused %s (line %d)", human(t.want), t.fact.Line))
	} else if f := e.pick(TorchOOM, nil); f != nil && len(c) == 0 {
		c = append(c, fmt.Sprintf("PyTorch was refused memory (line %d)", f.Line))
	}
	return slices.Compact(c)
}

// unknowns are the facts that would help where no rule finds a cause.
func (e *evidence) unknowns() []missing {
	if !e.fails(failures...) && !e.fails(CUDAError) {
		return nil
	}
	var m []missing
	if e.total().bytes == 0 {
		m = append(m, needTotal)
	}
	if _, told := e.others(); !told {
		m = append(m, needProcesses)
	}
	if p := e.pool(); p != nil && p.inUse.bytes == 0 {
		m = append(m, needPoolReport)
	}
	return m
}
