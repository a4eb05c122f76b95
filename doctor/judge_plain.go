package doctor

// Texts with one meaning, and memory that is not a pool's: settings, devices, limiters,
// the host, NCCL, graphs, compiled code, engines.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func (j *judge) settings() {
	if st := j.about("setting"); st != nil {
		j.show(BadSetting, "a setting that was refused", cureSetting(j.evidence, st), st.quoted("the setting could not be used; the program never came to ask for memory with it"))
	} else if st := j.about("unread"); st != nil && !j.fatal() && j.handle() == nil {
		j.show(BadSetting, "a setting that was not read", cureSetting(j.evidence, st), st.quoted("the setting could not be read; the program goes on as if it were not there"))
	}
}

func (j *judge) devices() {
	if st := j.about("vmm"); st != nil {
		j.show(VMMMissing, "no virtual memory management", cureVMM, st.quoted("this release of XLA allocates with cuMemCreate, and the GPU, or the profile of its virtual GPU, cannot"))
	}
	if st := j.about("busy"); st != nil {
		j.show(DeviceBusy, "the GPU is busy", cureBusy, st.quoted("the driver does not give the GPU at all: no amount is asked for yet"))
	}
}

func (j *judge) limiters() {
	if st := j.about("hami"); st != nil {
		var n, limit uint64
		fmt.Sscan(st.topic("hami").value, &n, &limit)
		switch {
		case n > math.MaxInt64:
			j.show(LimiterBug, "a count below zero", cureLimiterBug, st.quoted(fmt.Sprintf("%d is %s below 2^64: a count that went below zero, not a size", n, human(-n))))
		default:
			j.show(ExternalQuota, "a limiter's quota", cureQuota(j.evidence, limit), st.quoted(fmt.Sprintf("with this request %s would be in use, %s above the quota of %s", human(n), human(less(n, limit)), human(limit))))
		}
		return
	}
	if st := j.about("nvshare"); st != nil {
		var q []Evidence
		var shown, want, real uint64
		for _, s := range j.statements.all() {
			if s.topic("nvshare") == nil {
				continue
			}
			switch a, w := s.amount(roleFree), s.amount(roleWant); {
			case a != nil && s.words["real"]:
				real = a.n
				q = append(q, s.quoted("the driver has "+human(a.n)+" free"))
			case a != nil:
				shown = a.n
				q = append(q, s.quoted("nvshare lets the program see "+human(a.n)+" free"))
			case w != nil:
				want = w.n
				q = append(q, s.quoted(human(w.n)+" is requested"))
			}
		}
		switch {
		case len(q) == 0:
		case want > shown && shown > 0 && (real == 0 || want <= real || shown < real):
			j.show(ExternalQuota, "a limiter's view", cureQuota(j.evidence, 0), q...)
		default:
			j.maybe(ExternalQuota, "a limiter's view", cureQuota(j.evidence, 0), "run it without nvshare: unset LD_PRELOAD", nil, q...)
		}
		return
	}
	if st := j.about("limiter"); st != nil && j.fatal() {
		if r := j.last(func(r *refusal) bool { return !r.mild }); r != nil && r.want == 0 && r.total == 0 {
			j.maybe(ExternalQuota, "a limiter is at work", cureQuota(j.evidence, 0), "CUDA_DISABLE_CONTROL=true python PROGRAM    # without HAMi: if it runs now, the quota was the wall", nil, st.quoted("HAMi stands between the program and the driver"))
			j.maybe(DeviceOccupied, "a refusal without its size", cureOccupied(j.evidence), decideSmi, nil, r.st.quoted("memory was refused; how much was asked for is not told"))
		}
	}
}

func (j *judge) host() {
	e := j.evidence
	if st := j.about("tegra"); st != nil {
		j.show(UnifiedMemory, "the allocator of a Jetson", cureUnified(nil), st.quoted("the allocator of a Jetson, whose GPU has the host's memory, was refused (12 is ENOMEM)"))
	}
	if r := e.last(func(r *refusal) bool { return r.layer == layerHost && !r.mild }); r != nil && !j.hostIsGPU(r) {
		gpu := e.last(func(g *refusal) bool { return !g.mild && g.layer != layerHost })
		warned := r.st.level == "W" || strings.Contains(strings.ToUpper(r.st.text), "WARN")
		reading := "the memory asked for is the host's, not the GPU's"
		if r.want > 0 {
			reading = human(r.want) + " of the host's memory was requested, not of the GPU's"
		}
		if gpu != nil && (warned || gpu.want > 0 && !gpu.st.words["out"]) && !r.st.words["bfc"] && !(gpu.st.library != "" || gpu.st.words["exhausted"] && gpu.want == 0) && gpu.st.line > r.st.line {
			j.maybe(HostMemory, "the host refused first", cureHost(e, r), "free -h; nvidia-smi    # which of the two is full while it fails?", nil, r.st.quoted(reading))
			j.maybe(DeviceOccupied, "the GPU refused as well", cureOccupied(e), decideSmi, nil, gpu.st.quoted("the driver was out of memory, too; how much was asked for is not told"))
		} else if gpu == nil && r.st.words["warning"] && r.st.words["pinned"] {
			f := j.show(NonfatalWarning, "without pinned memory", cureWarning, r.st.quoted("without pinned memory the program goes on, with slower copies"))
			f.verdict = VerdictNonfatal
		} else if gpu == nil || !e.torchLike(gpu) || gpu.st.line < r.st.line {
			j.show(HostMemory, "the host's memory", cureHost(e, r), r.st.quoted(reading))
		}
	}
	if r := e.last(func(r *refusal) bool { return !r.mild && r.pinning && r.want == 0 && r.total == 0 }); r != nil {
		if st := j.about("pinning"); st != nil {
			j.show(HostMemory, "pinning host memory", cureHost(e, r), st.quoted("host memory was to be pinned"), r.st.quoted("and the driver refused it: the GPU's memory was not asked for"))
		}
	}
	if st := j.about("shm"); st != nil && !e.fatal() {
		j.show(HostMemory, "a full /dev/shm", cureShared, st.quoted("processes hand tensors to each other in /dev/shm, which is memory of the host with a limit: 64 MiB in a container of Docker by default"))
	}
	if st := j.about("killed"); st != nil {
		reading := "the kernel killed the process because the machine had no memory left"
		if st.topic("killed").name == "CONSTRAINT_MEMCG" || st.hasAny("cgroup", "oomkilled", "memcg", "container") || strings.Contains(st.text, "OOMKilled") {
			reading = "the kernel killed the process at its container's limit of host memory"
		}
		j.show(HostMemory, "the kernel killed it", cureHostKilled, st.quoted(reading))
	}
	if st := j.about("nvrm"); st != nil {
		if name := j.unifiedDevice(); name != "" || !e.discrete() {
			f := j.show(UnifiedMemory, "the kernel's driver", cureUnified(nil), st.quoted("the driver's part in the kernel could not get pages of the host, as where GPU and host share one memory"))
			f.certain = append(f.certain, "it is the host's memory that ran out")
		}
		j.show(HostMemory, "the kernel's driver", cureHostKilled, st.quoted("the driver's part in the kernel could not get pages of the host"))
	}
	if st := j.about("sigkill"); st != nil && !e.fatal() && e.handle() == nil && !j.sure() {
		q := st.quoted("somebody sent SIGKILL: most often the kernel, for lack of host memory")
		j.maybe(HostMemory, "a SIGKILL", cureHostKilled, "dmesg | grep -i -A2 'killed process'", need(needKernelLog), q).
			with("the program was killed from outside; it did not fail by itself")
	}
	if st := j.about("cpu"); st != nil {
		if r := e.last(func(r *refusal) bool { return !r.mild }); r != nil {
			f := j.show(HostMemory, "JAX on the CPU", cureHostKilled, st.quoted("the device is the CPU, and its memory the host's"), r.st.quoted("the memory was refused there"))
			f.alone = true
		}
	}
	for _, name := range []string{"JAX_PLATFORMS", "JAX_PLATFORM_NAME"} {
		if r := e.last(func(r *refusal) bool { return !r.mild }); r != nil && strings.EqualFold(e.env[name], "cpu") {
			f := j.show(HostMemory, "JAX on the CPU", cureHostKilled, r.st.quoted(name+"=cpu: the device is the CPU, and its memory the host's"))
			f.alone = true
			return
		}
	}
}

// discrete reports whether the GPU is known to have memory of its own.
func (e *evidence) discrete() bool {
	for _, kind := range []string{"device", "smi gpu", "tf device"} {
		for _, f := range e.facts(kind) {
			if _, _, ok := cardTotals(f.name); ok {
				return true
			}
		}
	}
	d := e.gpu()
	return d != nil && d.Name != "" && !unifiedName(d.Name)
}

// hostIsGPU reports whether a refusal that speaks of the host is the GPU's after all:
// RMM throws std::bad_alloc for the GPU, and on MPS there is one memory.
func (j *judge) hostIsGPU(r *refusal) bool {
	return r.st.hasAny("rmm", "mps") || j.uses("rmm") && r.st.words["bad"]
}

func (j *judge) leak() {
	e := j.evidence
	if !e.fatal() {
		return
	}
	// The first in the log of those that rise: an answer must not depend on the order of a map.
	for _, s := range slices.SortedFunc(maps.Values(e.series), func(s, t *series) int { return cmp.Compare(s.order, t.order) }) {
		if s.n < 5 || s.rises < s.n-1 || s.high < s.low+s.low/2 || s.high < 64*mib {
			continue
		}
		step := (s.high - s.low) / uint64(s.n-1)
		s.first.Reading = human(s.low) + " at first"
		s.last.Reading = fmt.Sprintf("%s after %d readings, each above the one before: %s more each time", human(s.high), s.n, human(step))
		j.show(Leak, "readings that only rise", cureLeak(e), s.first, s.last)
		return
	}
}

// unifiedDevice is the name of a GPU that shares the host's memory, and "".
func (e *evidence) unifiedDevice() string {
	for _, f := range e.facts("device") {
		if unifiedName(f.name) {
			return f.name
		}
	}
	if d := e.gpu(); d != nil && unifiedName(d.Name) {
		return d.Name
	}
	return ""
}

func (j *judge) unifiedMemory() {
	e := j.evidence
	r := e.last(func(r *refusal) bool { return !r.mild && r.layer != layerHost })
	if r == nil {
		return
	}
	if r.want == 0 && r.total == 0 && r.limit == 0 && e.uses("metal") {
		j.show(UnifiedMemory, "a GPU of Apple", cureUnified(r), r.st.quoted("Metal refused it, whose GPUs have no memory but the host's"))
		return
	}
	if st := e.about("nvml"); st != nil && r.total == 0 {
		j.maybe(UnifiedMemory, "no NVML", cureUnified(r), decideSmi, need(needTotal), st.quoted("PyTorch asks NVML when the driver refused memory, and NVML does not answer: as on a Jetson, whose GPU has the host's memory"))
	}
	reading := "its free memory is what the host can spare at this moment"
	if r.hasFree && r.total > 0 {
		reading = fmt.Sprintf("%s of %s free: that is what the host can spare at this moment", human(r.free), human(r.total))
	}
	if name := e.unifiedDevice(); name != "" {
		q := []Evidence{r.st.quoted(reading)}
		if f := e.pick("device", func(f *fact) bool { return f.name == name }); f != nil {
			q = append(q, f.quoted(name+" shares the host's memory"))
		} else {
			q = append(q, Evidence{Text: "devices.name: " + name, Reading: "it shares the host's memory"})
		}
		j.show(UnifiedMemory, "a GPU without memory of its own", cureUnified(r), q...)
		return
	}
	if name, ok := unifiedTotal(r.total); ok {
		j.show(UnifiedMemory, "a GPU without memory of its own", cureUnified(r), r.st.quoted(reading+"; "+human(r.total)+" is what "+name+" shows, and no GPU with memory of its own"))
	}
}

// outsideAnyPool is for what takes memory beside every pool: NCCL, graphs, compiled code.
func (j *judge) outsideAnyPool() {
	e := j.evidence
	var nccl, memory *statement
	for _, st := range e.statements.all() {
		if st.layer == layerNCCL && (st.hasAny("failed", "failure", "error", "unhandled") || st.refused) {
			nccl = st
			if st.refused && (memory == nil || memory.amount(roleWant) == nil) {
				memory = st
			}
		}
	}
	switch {
	case memory != nil && memory.topic("shm") == nil:
		reading := "NCCL's buffers come from outside every pool, and the driver had no more"
		if a := memory.amount(roleWant); a != nil {
			reading = "NCCL asked the driver for " + human(a.n) + ", outside every pool, and got nothing"
		}
		j.show(NCCLHeadroom, "NCCL without room", cureNCCL(e), memory.quoted(reading))
	case nccl != nil && memory == nil && !e.fatal():
		if code := ncclCode(e); code != nil {
			f := j.show(NotMemory, "NCCL fails for another reason", cureOther, code.quoted("NCCL's error is not that of memory"))
			f.verdict = VerdictNotMemory
		} else if nccl.hasAny("cuda") && nccl.hasAny("unhandled") {
			j.maybe(NCCLHeadroom, "NCCL without a reason", cureNCCL(e), "NCCL_DEBUG=INFO python PROGRAM    # NCCL then says which call failed, and why", need("NCCL's own warning: run with NCCL_DEBUG=INFO"), nccl.quoted("NCCL had a CUDA error; which one is not told"))
		}
	}
	if r := e.last(func(r *refusal) bool { return r.layer == layerGraph && !r.mild }); r != nil {
		j.show(GraphHeadroom, "graphs without room", cureGraphs(e), r.st.quoted("the driver keeps a graph outside of the pool, and had no more for it"))
	}
	if r := e.last(func(r *refusal) bool {
		return r.capture != nil && r.want == 0 && r.total == 0 && !r.mild && (r.layer == layerDriver || r.layer == layerPool)
	}); r != nil {
		j.show(GraphHeadroom, "an error while graphs are captured", cureGraphs(e), r.capture.quoted("CUDA graphs are captured"), r.st.quoted("the driver keeps graphs outside of every pool, and had no more"))
	}
	if st := e.about("cubin"); st != nil {
		switch {
		case st.refused:
			reading := "the driver's status is out of memory: it loads code outside of the pool"
			if st.words["different"] {
				reading += "; the text's guess at another GPU is wrong here"
			}
			j.show(ModuleLoad, "compiled code without room", cureModule(e), st.quoted(reading))
		case st.topic("image") != nil, codeStatus.MatchString(st.text):
			j.show(LibraryMismatched, "compiled code for another GPU", cureLibrary(e), st.quoted("the driver's status is about the code and not about memory"))
		case strings.Contains(st.text, "CUDA_ERROR_"):
			f := j.show(NotMemory, "compiled code that was refused", cureOther, st.quoted("the driver's status is not that of memory"))
			f.verdict = VerdictNotMemory
		case !e.fatal() && st.says(cFail|cNot):
			j.maybe(ModuleLoad, "compiled code that was not loaded", cureModule(e), decidePrealloc, nil, st.quoted("the driver's status is cut off: out of memory, or code for another GPU"))
			j.maybe(LibraryMismatched, "compiled code that was not loaded", cureLibrary(e), decidePrealloc, nil, st.quoted("the code may be for another GPU, as the text guesses"))
		}
	}
}

// codeStatus is the driver's word on code, or on a library that makes it.
var codeStatus = regexp.MustCompile(`CUDA_ERROR_\w*(?:JIT|FOUND|SOURCE|SHARED|UNSUPPORTED)`)

// ncclCode is a line in which NCCL names a status that is not that of memory.
func ncclCode(e *evidence) *statement {
	for _, st := range e.statements.all() {
		if st.layer == layerNCCL && !st.refused && st.words["failure"] && strings.Contains(st.text, "'") || st.layer == layerNCCL && st.hasAny("system", "usage", "argument", "remote") && st.hasAny("invalid", "unhandled", "nccl") && strings.Contains(st.text, "nccl") && st.hasAny("error", "usage", "argument") && st.hasAny("system", "usage", "argument") && !st.words["cuda"] {
			return st
		}
	}
	return nil
}

// engines are programs with a check, or an estimate, of their own.
func (j *judge) engines() {
	e := j.evidence
	if st := e.about("profiling"); st != nil {
		j.show(StartupRace, "free memory moved during the measurement", cureRace, st.quoted("less was in use after loading than before: another process gave memory back in between"))
	}
	if r := e.last(func(r *refusal) bool {
		return r.layer == layerEngine && r.hasFree && r.total > 0 && !r.mild && (r.want > 0 || less(r.total, r.free) > contextMost)
	}); r != nil {
		c := cureEngineFree(e, r)
		if r.want > r.total || less(r.want, r.free) < r.total/50 && less(r.total, r.free) < r.total/5 {
			// What its own context takes may be all that is lacking.
			j.maybe(DeviceOccupied, "an engine's check at its start", c, decideSmi, nil, r.st.quoted(fmt.Sprintf("%s of %s was in use before the engine took any, its own context among it; %s was lacking", human(less(r.total, r.free)), human(r.total), human(less(r.want, r.free)))))
		} else {
			wants := "more than is free"
			if r.want > 0 {
				wants = human(r.want)
			}
			f := j.show(DeviceOccupied, "an engine's check at its start", c, r.st.quoted(fmt.Sprintf("%s of %s was in use before this engine took any, and it wants %s", human(less(r.total, r.free)), human(r.total), wants)))
			f.decide = decideSmi
		}
		j.maybe(StartupRace, "a neighbour at its start or end", cureRace, "sleep 30; nvidia-smi    # if it is free by now, it was a start-up race", nil, r.st.quoted("whoever held the rest may be just starting, or on its way out"))
		return
	}
	if r := e.last(func(r *refusal) bool { return r.layer == layerEngine && !r.mild && r.st.library == "" }); r != nil && !e.uses("llama.cpp") && !j.sure() {
		var weights uint64
		var loaded *statement
		for _, st := range e.statements.all() {
			if st.words["weights"] && st.hasAny("took", "loaded", "loading") && len(st.amounts) > 0 && !st.refused {
				loaded, weights = st, st.amounts[0].n
			}
		}
		f := e.pick("vllm usage", nil)
		t := e.total()
		share, _ := strconv.ParseFloat(e.env["gpu_memory_utilization"], 64)
		more := less(r.want, r.free) // for the cache
		if r.want == 0 && weights > 0 {
			more = less(weights+gib, uint64(share*float64(t.bytes)))
		}
		st, a, used := e.loadedModel()
		static, _ := strconv.ParseFloat(e.env["mem_fraction_static"], 64)
		switch {
		case st != nil && e.uses("sglang") && (a > (a+used)/8 || static > 0 && static*float64(a+used) < float64(used+gib)):
			j.show(PoolLimit, "the engine's share", cureEngineMore(e), st.quoted(fmt.Sprintf("%s is loaded, and %s of the GPU is free", human(used), human(a))), r.st.quoted("the engine's own share is the wall"))
		case share > 0 && t.bytes > 0 && more > 0 && uint64(share*float64(t.bytes))+more < t.bytes-t.bytes/20:
			j.show(PoolLimit, "the engine's share", cureEngineMore(e), r.st.quoted(fmt.Sprintf("%s more is needed; the engine may use %v of %s, and the GPU has more", human(more), share, human(t.bytes))), t.from)
		case share > 0 && t.bytes > 0 && more > 0 && r.want > 0:
			j.show(ProgramTooBig, "no share has room for the cache", cureTooBig(e), r.st.quoted(fmt.Sprintf("%s more is needed than the engine's %v of %s leaves, and the whole GPU has not that much", human(more), share, human(t.bytes))), t.from)
		case f != nil && f.inUse >= f.total/10+weights+boolSize(weights > 0, contextMost/2):
			j.show(StartupRace, "an engine counts what was there before it", cureRace, f.quoted(fmt.Sprintf("%s of %s (%d %%) was in use before this engine had loaded anything, and it counts that as its own", human(f.inUse), human(f.total), percent(f.inUse, f.total))), r.st.quoted("so nothing of its share is left for the cache"))
		case weights > 0 && t.bytes > 0 && weights > t.bytes*7/10:
			j.show(ProgramTooBig, "no room for the cache", cureTooBig(e), r.st.quoted("nothing is left for the cache"), loaded.quoted(fmt.Sprintf("the weights alone take %s of %s", human(weights), human(t.bytes))))
		case static > 0 && static < .5:
			// The engine leaves most of the GPU alone, and asks for a larger share.
			j.maybe(PoolLimit, "the engine's share", cureEngineMore(e), decideSmi, need(needTotal, needProcesses), r.st.quoted(fmt.Sprintf("the engine may use %v of the GPU, and wants more", static)))
			j.maybe(ProgramTooBig, "no room for the cache", cureTooBig(e), decideSmi, need(needTotal, needProcesses), r.st.quoted("the model left no room for the cache"))
		default:
			c := cureTooBig(e)
			if e.uses("sglang") {
				c.steps = c.steps[:1] // a smaller share leaves the cache still less
			}
			j.maybe(ProgramTooBig, "no room for the cache", c, decideSmi, need(needTotal, needProcesses), r.st.quoted("the model and what was there before it left no room for the cache"))
			j.maybe(PoolLimit, "the engine's share", cureEngineMore(e), decideSmi, need(needTotal, needProcesses), r.st.quoted("a larger "+e.engineShare()+" gives the cache more, if the GPU has it"))
		}
		return
	}
	j.llama()
}

// loadedModel is what was free and in use after a model was loaded.
func (e *evidence) loadedModel() (st *statement, free, used uint64) {
	for _, st := range e.statements.all() {
		if f, u := st.amount(roleFree), st.amount(roleUse); f != nil && u != nil && st.hasAny("weight", "weights", "load") {
			return st, f.n, u.n
		}
	}
	return nil, 0, 0
}

func boolSize(yes bool, n uint64) uint64 {
	if yes {
		return n
	}
	return 0
}

// llama is for programs that plan which layers go to the GPU: llama.cpp and Ollama.
func (j *judge) llama() {
	e := j.evidence
	if !e.uses("llama.cpp") {
		return
	}
	r := e.last(func(r *refusal) bool {
		return !r.mild && r.layer != layerHost && r.want > 0 && (!r.hasAlloc || strings.Contains(r.st.text, "memory.required"))
	})
	if r == nil {
		return
	}
	for _, a := range r.st.amounts { // the plan may stand before it
		if a.role == roleWant {
			r.want = a.n
		}
	}
	t := e.total()
	if found := e.pick("found", nil); found != nil && t.bytes == 0 {
		t = sized{found.total, found.quoted("the GPU has " + human(found.total))}
	}
	at := r.st.quoted("one buffer of " + human(r.want) + " was refused")
	compute := r.st.hasAny("gallocr", "compute", "reserve")
	m := e.pick("estimate", nil)
	planned, available := uint64(0), uint64(0)
	if m != nil {
		planned, available = fromLists(m.value, m.version, r.device)
		if planned == 0 {
			planned = m.want
		}
		if m.limit > 0 && planned > available {
			planned = m.limit
		}
	}
	free, parts, start := e.loading(r)
	if found := e.pick("found", nil); found != nil && free == 0 {
		free, start = found.free, found.quoted("")
	}
	start.Reading = fmt.Sprintf("%s was free at the start", human(free))
	switch others, told := e.others(); {
	case free > 0 && t.bytes > 0 && planned == 0 && parts+r.want > free && (free >= t.bytes*8/10 || parts+r.want > t.bytes):
		c := cureTooBig(e)
		if compute {
			c = cureLlama(true)
		}
		j.show(ProgramTooBig, "the model's parts above the GPU", c, start, r.st.quoted(fmt.Sprintf("%s is loaded, and %s more was refused", human(parts), human(r.want))))
	case free > 0 && t.bytes > 0 && planned == 0 && parts+r.want > free && free < t.bytes*6/10:
		j.show(DeviceOccupied, "most of the GPU was taken before", cureOccupied(e), start, r.st.quoted(fmt.Sprintf("%s and %s more would fit into %s", human(parts), human(r.want), human(t.bytes))), t.from)
	case t.bytes > 0 && r.want > t.bytes:
		j.show(ProgramTooBig, "a buffer above the GPU", cureTooBig(e), at, t.from)
	case planned > 0 && planned <= available:
		j.show(Underestimate, "the estimate said that it fits", cureLlama(compute), m.quoted(fmt.Sprintf("%s was thought enough, with %s free", human(planned), human(available))), r.st.quoted("and "+human(r.want)+" more was refused"))
	case compute && e.statementWith("runner", "terminated") != nil:
		j.show(Underestimate, "the estimate of a runner", cureLlama(true), r.st.quoted("the buffer for the computation, "+human(r.want)+", which comes after the weights, was refused"), e.statementWith("runner", "terminated").quoted("the runner was started because its estimate said that this fits"))
	case told && t.bytes > 0 && heldBy(others) > t.bytes/4:
		j.show(DeviceOccupied, "others on the machine", cureOccupied(e), append(readings(others), at)...)
	case r.want >= 16*gib && t.bytes < r.want && !compute:
		j.show(ProgramTooBig, "the weights in one buffer", cureTooBig(e), r.st.quoted("one buffer of "+human(r.want)+", the layers that are to go to this GPU, was refused"))
	default:
		if e.uses("ollama") {
			j.maybe(Underestimate, "a buffer of llama.cpp", cureLlama(compute), decideSmi, need(needProcesses, needTotal), at)
		}
		j.maybe(ProgramTooBig, "a buffer of llama.cpp", cureTooBig(e), decideSmi, need(needTotal, needProcesses), at)
		j.maybe(DeviceOccupied, "a buffer of llama.cpp", cureOccupied(e), decideSmi, need(needProcesses), at)
	}
}

// loading is what was free before a model was loaded, and its parts that were.
func (e *evidence) loading(r *refusal) (free, parts uint64, start Evidence) {
	for _, st := range e.statements.all() {
		if st.line >= r.st.line || st.refused {
			continue
		}
		if a := st.amount(roleFree); a != nil && !a.host && !a.cache && st.hasAny("using", "device") && free == 0 {
			free, start = a.n, st.quoted("")
		}
		if st.words["buffer"] && st.words["size"] && !st.hasAny("cpu", "host") {
			for i := range st.amounts {
				parts += st.amounts[i].n
			}
		}
	}
	return free, parts, start
}

// statementWith is the last statement with all these words, and nil.
func (e *evidence) statementWith(words ...string) *statement {
	for _, st := range e.statements.all() {
		n := 0
		for _, w := range words {
			if st.words[w] {
				n++
			}
		}
		if n == len(words) {
			return st
		}
	}
	return nil
}

// fromLists are the sizes for a device in two lists such as "70.7 GiB 69.6 GiB".
func fromLists(planned, available string, device int) (uint64, uint64) {
	at := func(list string) uint64 {
		f := strings.Fields(strings.ReplaceAll(list, ",", " "))
		i := 2 * max(device, 0)
		if i+1 >= len(f) {
			return 0
		}
		return sizeOf(f[i] + " " + f[i+1])
	}
	return at(planned), at(available)
}

func (j *judge) otherFailures() {
	e := j.evidence
	if st := e.about("other"); st != nil && !e.fatal() && (e.handle() == nil || e.handle().st.line >= st.line && !e.handle().memory) {
		f := j.show(NotMemory, "another failure", cureOther, st.quoted("the failure is "+st.topic("other").name+", whatever is free"))
		f.verdict = VerdictNotMemory
	}
}

func (j *judge) warnings() {
	e := j.evidence
	if e.fatal() || e.handle() != nil || len(j.found) > 0 || e.last(func(r *refusal) bool { return !r.mild }) != nil {
		return
	}
	say := func(st *statement, what string) {
		f := j.show(NonfatalWarning, "a warning", cureWarning, st.quoted(what))
		f.verdict = VerdictNonfatal
	}
	for _, w := range [...]struct{ id, what string }{
		{"collection", "the pool gives free regions back to ask for a larger one; it goes on"},
		{"exceeds", "a large request on the host that was served"},
		{"recovering", "a program that ended has not given its memory back yet; the server waits, and goes on with what there is"},
		{"reshard", "a slow way from one sharding to another; \"rematerialization\" here is not about memory that is short"},
	} {
		if st := e.about(w.id); st != nil {
			say(st, w.what)
			return
		}
	}
	if r := e.last(func(r *refusal) bool { return r.mild }); r != nil {
		what := "the caller can do without this memory, and says so: it may be slower, and goes on"
		if e.about("picker") != nil {
			what = "an algorithm that was tried did not fit; another is taken"
		}
		say(r.st, what)
	}
}
