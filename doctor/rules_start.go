package doctor

// Rules for the beginning: no context, a first pool that the driver refuses, a
// request that goes past every pool.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

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
				d := e.state.Device(c.Device)
				if d == nil || seen[d.Index] {
					continue
				}
				seen[d.Index] = true
				for _, p := range d.Programs {
					if e.state.Process != nil && e.state.Process.PID == p.PID && p.PID > 0 {
						continue
					}
					h := holderOf(p, Evidence{Text: fmt.Sprintf("devices[%d].processes: pid %d %s", d.Index, p.PID, p.Name)})
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
			case told && len(others) == 0 && d != nil && d.Total > 0 && d.InUse() > d.Total*3/4:
				return shown(cureOccupied(e), q, Evidence{Text: fmt.Sprintf("devices.used_bytes: %d", d.InUse()), Reading: fmt.Sprintf("%s of %s is in use, and no process is listed: one that died and is not gone, or one outside of this container", human(d.InUse()), human(d.Total))})
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
