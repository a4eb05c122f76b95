package account

// Evidence: the statements and facts of a log, and the state of the machine; and
// what follows from both without judgement: which frameworks there are, how large the
// GPU is, who is on it.

import (
	"cmp"
	"gpumem/doctor/internal/statement"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/node/machine"
	"gpumem/record/dump"
	"gpumem/size"
)

// maxKept is how many statements, and facts of a kind, are kept from the beginning of a
// log, and as many from its end.
const maxKept = 200

// kept is a list that forgets its middle.
type kept[T any] struct{ first, last []T }

func (k *kept[T]) add(v T) {
	switch {
	case len(k.first) < maxKept:
		k.first = append(k.first, v)
	case len(k.last) < 2*maxKept:
		k.last = append(k.last, v)
	default:
		k.last = append(k.last[:0], k.last[maxKept:]...)
		k.last = append(k.last, v)
	}
}

func (k *kept[T]) all() []T { return append(slices.Clip(k.first), k.last...) }

// A series is the readings of one figure over time.
type series struct {
	order                int // by first reading
	n, rises             int
	low, high, lastValue uint64
	first, last          statement.Evidence
}

// Facts are a log and a state, read. They are not safe for concurrent use.
type Facts struct {
	statements kept[*statement.Statement]
	factsOf    map[string]*kept[statement.Fact]
	Marks      map[string]statement.Evidence // the first line that shows a framework
	series     map[string]*series
	state      *machine.Snapshot
	Dump       *dump.Dump
	Program    *dump.Program
	Live       func(gpu int) uint64 // bytes that were live on a GPU, by what was taken beside the log
	LiveSource string
	Env        map[string]string            // of the program that failed, as far as known
	envFrom    map[string]statement.Evidence // where the log shows it
	Failed     []*Refusal                   // in the order of the log
	End        string                       // what the log ends with
	Said       bool                         // some line may speak of refused memory
}

// New returns the facts of a state alone; nil is none.
func New(state *machine.Snapshot) *Facts {
	e := &Facts{factsOf: map[string]*kept[statement.Fact]{}, Marks: map[string]statement.Evidence{}, series: map[string]*series{}, state: state, Env: map[string]string{}, envFrom: map[string]statement.Evidence{}}
	if state != nil && state.Process != nil {
		for name, value := range state.Process.Env {
			e.Env[name] = value
		}
	}
	return e
}

// maxSeries bounds the figures that are followed.
const maxSeries = 100

// Add adds what a text of the log says.
func (e *Facts) Add(st *statement.Statement) {
	if st.Refused || st.Faint || st.Advice || st.Mild || st.Library != "" || st.Layer == statement.LayerNCCL || len(st.Topics) > 0 || len(st.Amounts) > 0 || st.HasAny("fragmentation", "dst", "terminated") {
		e.statements.add(st)
	}
	e.Said = e.Said || st.Refused || st.Faint || st.Topic("killed", "sigkill", "nvrm", "tegra", "shm") != nil
	if st.Library == "" && !st.Refused {
		e.follow(st)
	}
	for _, f := range st.Facts() {
		if f.Kind == "pool stats" && strings.HasPrefix(f.Name, "pool ") && !strings.Contains(st.Text, "llocator memory summary") {
			continue // a message with other words for a pool
		}
		if strings.HasPrefix(f.Kind, "smi") || f.Kind == "pool stats" && !st.Words["while"] && !st.Words["ran"] {
			st.Stats = st.Stats || f.Kind == "pool stats"
			st.Report = st.Report || !st.Refused || st.Derived
			st.Refused = st.Refused && !(st.Derived && f.Kind == "pool stats")
		}
		k := e.factsOf[f.Kind]
		if k == nil {
			k = &kept[statement.Fact]{}
			e.factsOf[f.Kind] = k
		}
		k.add(f)
		if f.Kind == "setting seen" {
			if _, ok := e.envFrom[f.Name]; !ok {
				e.envFrom[f.Name] = f.Quoted("")
				if _, known := e.Env[f.Name]; !known {
					e.Env[f.Name] = f.Value
				}
			}
		}
	}
	for _, f := range st.FrameworksShown() {
		if _, ok := e.Marks[f]; !ok {
			e.Marks[f] = st.Quoted("")
		}
	}
}

// follow adds a reading of memory in use to its series.
func (e *Facts) follow(st *statement.Statement) {
	if !st.HasAny("epoch", "step", "iter", "iteration", "batch", "round", "reserved", "allocated", "use", "mem") {
		return
	}
	for i := range st.Amounts {
		a := &st.Amounts[i]
		if a.Role != statement.RoleUse && a.Role != statement.RoleAlloc && a.Role != statement.RoleKept || a.N < statement.Mib || a.Host {
			continue
		}
		if !st.HasAny("epoch", "step", "iter", "iteration", "batch", "round") && !(st.Words["memory"] && (st.Words["allocated"] || st.Words["reserved"])) && !st.Words["bytes"] && !st.Words["gpu"] && !st.Words["cuda"] {
			continue
		}
		key := st.From + "\x00" + a.Label + strconv.Itoa(int(a.Role))
		s := e.series[key]
		if s == nil {
			if len(e.series) >= maxSeries {
				return
			}
			s = &series{order: len(e.series)}
			e.series[key] = s
		}
		s.add(st.Quoted(""), a.N)
	}
}

func (s *series) add(at statement.Evidence, v uint64) {
	if s.n > 0 && v <= s.low && s.lastValue > s.low {
		s.n, s.rises = 0, 0 // it begins anew: another run
	}
	s.n++
	if s.n == 1 {
		s.first, s.low, s.high = at, v, v
	} else if v > s.lastValue {
		s.rises++
	}
	s.low, s.high = min(s.low, v), max(s.high, v)
	s.last, s.lastValue = at, v
}

// facts are those of a kind.
func (e *Facts) facts(kind string) []statement.Fact {
	if k := e.factsOf[kind]; k != nil {
		return k.all()
	}
	return nil
}

// pick is the last fact of a kind for which ok holds, and nil.
func (e *Facts) pick(kind string, ok func(*statement.Fact) bool) *statement.Fact {
	all := e.facts(kind)
	for i := len(all) - 1; i >= 0; i-- {
		if ok == nil || ok(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// About is the last statement with one of these topics, and nil.
func (e *Facts) About(ids ...string) *statement.Statement {
	all := e.statements.all()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Topic(ids...) != nil {
			return all[i]
		}
	}
	return nil
}

// Human is a size for people.
func Human(n uint64) string { return size.Format(n) }

// percent is a share in whole percent.
func percent(part, whole uint64) int {
	if whole == 0 {
		return 0
	}
	return int(math.Round(100 * float64(part) / float64(whole)))
}

// Less is a - b, 0 at least.
func Less(a, b uint64) uint64 { return a - min(a, b) }

// Frameworks.

// Uses reports whether the failing program uses one of these: jax, tensorflow, torch, ...
func (e *Facts) Uses(names ...string) bool {
	for _, name := range names {
		if e.frameworksTold() {
			for _, f := range e.state.Process.Frameworks {
				if f = strings.ToLower(f); f == name || f == "pytorch" && name == "torch" || f == "jaxlib" && name == "jax" {
					return true
				}
			}
			if name == "jax" || name == "tensorflow" || name == "torch" {
				continue // it is not among them
			}
		}
		if _, ok := e.Marks[name]; ok {
			return true
		}
		if e.pick("version", func(f *statement.Fact) bool { return f.Name == name || f.Name == name+"lib" }) != nil {
			return true
		}
	}
	return false
}

// frameworksTold reports whether the state lists the program's frameworks.
func (e *Facts) frameworksTold() bool {
	return e.state != nil && e.state.Process != nil && len(e.state.Process.Frameworks) > 0
}

// OnTensorFlow reports whether the program is TensorFlow and not JAX.
func (e *Facts) OnTensorFlow() bool { return e.Uses("tensorflow") && !e.Uses("jax") }

// OnTorch reports whether the program is PyTorch and not JAX.
func (e *Facts) OnTorch() bool { return e.Uses("torch", "vllm", "sglang") && !e.Uses("jax") }

// jaxAndTF gives the readings that show both in one process, or nil.
func (e *Facts) jaxAndTF() []statement.Evidence {
	if e.frameworksTold() {
		if e.Uses("jax") && e.Uses("tensorflow") {
			return []statement.Evidence{{Text: "process.frameworks: " + strings.Join(e.state.Process.Frameworks, ", "), Reading: "both are loaded in the process"}}
		}
		return nil
	}
	jax, ok := e.Marks["jax"]
	tf := e.facts("tf device")
	if !ok || len(tf) == 0 {
		return nil
	}
	reading := "TensorFlow made its own device in the program that fails in JAX"
	if tf[0].Limit > 0 {
		reading = "TensorFlow takes up to " + Human(tf[0].Limit) + " for itself, in the program that fails in JAX"
	}
	jax.Reading = "a line of JAX"
	return []statement.Evidence{tf[0].Quoted(reading), jax}
}

// Version is what is known of the release of a framework; empty if nothing is.
func (e *Facts) Version(name string) string {
	if e.state != nil && e.state.Process != nil {
		for _, n := range []string{name, name + "lib"} {
			if v := e.state.Process.Versions[n]; v != "" {
				return v
			}
		}
	}
	for _, n := range []string{name + "lib", name} {
		for _, f := range e.facts("version") {
			if f.Name == n {
				return f.Version
			}
		}
	}
	return ""
}

// The GPU.

// ordinal is the GPU that the failure is about, and -1.
func (e *Facts) ordinal() int {
	n := -1
	for _, r := range e.Failed {
		if r.device >= 0 && !r.mild {
			n = r.device
		}
	}
	return n
}

// gpu is what the state says of it, and nil.
func (e *Facts) gpu() *machine.Device { return e.state.Device(e.ordinal()) }

// A sized is a size and the line it is from.
type sized struct {
	Bytes uint64
	from  statement.Evidence
}

// saneTotal is no GPU's memory or more: what a driver that is out of memory reports may
// be anything.
const saneTotal = 1 << 42

// Total is the memory of the GPU in bytes, 0 if unknown. What the state says goes before
// what the log says.
func (e *Facts) Total() sized {
	if d := e.gpu(); d != nil && d.Total > 0 {
		return sized{d.Total, statement.Evidence{Text: "devices.total_bytes: " + strconv.FormatUint(d.Total, 10), Reading: "the GPU has " + Human(d.Total)}}
	}
	for _, r := range e.Failed {
		if r.Total > statement.Mib && r.Total < saneTotal && r.Layer != statement.LayerHost {
			return sized{r.Total, r.St.Quoted("the GPU has " + Human(r.Total))}
		}
	}
	for _, kind := range []string{"smi memory", "found", "vllm usage", "simulated"} {
		if f := e.pick(kind, func(f *statement.Fact) bool { return f.Total > 0 && f.Total < saneTotal }); f != nil {
			return sized{f.Total, f.Quoted("the GPU has " + Human(f.Total))}
		}
	}
	for _, st := range e.statements.all() {
		a := st.Amount(statement.RoleTotal)
		if a != nil && a.N >= 256*statement.Mib && a.N < saneTotal && !a.Host && !st.HasAny("chunks", "cupy") && (st.Amount(statement.RoleFree) != nil || !a.Pool) && (st.Words["memory"] || st.Words["vram"] || a.Label == "card") && st.Topic("remat") == nil {
			return sized{a.N, st.Quoted("the GPU has " + Human(a.N))}
		}
	}
	for _, kind := range []string{"tf device", "device", "smi gpu"} {
		f := e.pick(kind, func(f *statement.Fact) bool { least, most, ok := cardTotals(f.Name); return ok && most-least <= most/50 })
		if f != nil {
			least, _, _ := cardTotals(f.Name)
			return sized{least, f.Quoted("a GPU of this name has " + Human(least))}
		}
	}
	return sized{}
}

// free is the last reading of the driver, with the total beside it; nil if there is none.
func (e *Facts) free() (st *statement.Statement, free, total uint64) {
	all := e.statements.all()
	for i := len(all) - 1; i >= 0; i-- {
		f, t := all[i].Amount(statement.RoleFree), all[i].Amount(statement.RoleTotal)
		if f != nil && t != nil && t.N > 0 && t.N < saneTotal && !f.Host && !all[i].Refused && !f.Pool && all[i].Topic("nvshare") == nil {
			return all[i], f.N, t.N
		}
	}
	return nil, 0, 0
}

// A holder is a process that uses the GPU, with the line that names it.
type holder struct {
	PID        int
	Name, Kind string
	Used       uint64 // bytes, 0 if unknown
	Frameworks []string
	ParentGone bool
	from       statement.Evidence
}

func holderOf(p machine.Program, from statement.Evidence) holder {
	return holder{p.PID, p.Name, p.Kind, p.Holds(), p.Frameworks, p.ParentGone != nil && *p.ParentGone, from}
}

// holders are the processes on the GPU that the state or a pasted nvidia-smi table lists.
// told is false where nothing lists them.
func (e *Facts) holders() (list []holder, told bool) {
	if d := e.gpu(); d != nil && d.Programs != nil {
		for _, p := range d.Programs {
			text := "devices.processes: pid " + strconv.Itoa(p.PID)
			if p.Name != "" {
				text += " " + p.Name
			}
			if len(p.Frameworks) > 0 {
				text += " (" + strings.Join(p.Frameworks, ", ") + ")"
			}
			list = append(list, holderOf(p, statement.Evidence{Text: text}))
		}
		return list, true
	}
	n := e.ordinal()
	for _, f := range e.facts("smi process") {
		if n >= 0 && f.Device >= 0 && f.Device != n || slices.ContainsFunc(list, func(h holder) bool { return h.PID == f.Pid }) {
			continue
		}
		kind := ""
		if f.Value == "G" {
			kind = "graphics"
		}
		list = append(list, holder{PID: f.Pid, Name: f.Name, Kind: kind, Used: f.InUse, from: f.Quoted("")})
	}
	return list, len(list) > 0
}

// isJAX reports whether the process looks like a JAX that preallocated: it says so, or it
// is a Python with a default pool and a context.
func (h holder) isJAX(total uint64) (bool, string) {
	if slices.ContainsFunc(h.Frameworks, func(f string) bool { return strings.EqualFold(f, "jax") || strings.EqualFold(f, "jaxlib") }) {
		if h.Used > 0 {
			return true, "another JAX process holds " + Human(h.Used)
		}
		return true, "another JAX process is on the GPU"
	}
	if len(h.Frameworks) > 0 || total == 0 || !strings.Contains(strings.ToLower(h.Name), "python") {
		return false, ""
	}
	for _, part := range []float64{.75, .9} {
		pool := uint64(part * float64(total))
		// Contexts, with the modules in them, have been seen between 80 MiB and 1 GiB.
		if h.Used >= pool && h.Used <= pool+statement.Gib {
			return true, "another Python process holds " + Human(h.Used) + ", the size of JAX's default pool (" + strconv.Itoa(int(part*100)) + " % of " + Human(total) + ") and a context"
		}
	}
	return false, ""
}

var desktops = regexp.MustCompile(`(?i)xorg|gnome-shell|xwayland|kwin|firefox|chrome`)

func (h holder) isDesktop() bool { return h.Kind == "graphics" || desktops.MatchString(h.Name) }

// Others are the processes on the GPU but the program that failed. told is false where
// nothing lists them.
//
// Which one is the program itself is known by its pid or, else, by arithmetic: PyTorch's
// message says what it holds; and where the list accounts for all that was in use at the
// failure, the program is in the list, for it had a context at least. A program that could
// not even make a context is not in it.
func (e *Facts) Others() (list []holder, told bool) {
	list, told = e.holders()
	if own := e.own(list); own >= 0 {
		list = slices.Delete(slices.Clone(list), own, own+1)
	}
	return list, told
}

// own is the place in the list of the program that failed, or -1.
func (e *Facts) own(list []holder) int {
	if e.state != nil && e.state.Process != nil && e.state.Process.PID > 0 {
		return slices.IndexFunc(list, func(h holder) bool { return h.PID == e.state.Process.PID })
	}
	for i, h := range list {
		for _, r := range e.Failed {
			if r.St.Pid == h.PID && h.PID > 1 && r.St.From != "" {
				return i
			}
		}
	}
	if e.contextRefused() != nil {
		return -1
	}
	for _, r := range e.Failed {
		reserved := r.reserved()
		if reserved == 0 {
			continue
		}
		best, at := uint64(math.MaxUint64), -1
		for i, h := range list {
			if h.Used+statement.Mib >= reserved && Less(h.Used, reserved) < best && !h.isDesktop() {
				best, at = Less(h.Used, reserved), i
			}
		}
		if at >= 0 && (best < 2*statement.Gib || len(list) == 1) {
			return at
		}
	}
	smallest := func() int {
		at := -1
		for i, h := range list {
			alike := strings.Contains(strings.ToLower(h.Name), "python") || len(h.Frameworks) > 0
			if alike && !h.isDesktop() && (at < 0 || h.Used < list[at].Used) {
				at = i
			}
		}
		return at
	}
	var sum uint64
	desktop := 0
	for _, h := range list {
		sum += h.Used
		if h.isDesktop() {
			desktop++
		}
	}
	if st, free, total := e.free(); st != nil && sum > 0 {
		used := Less(total, free)
		if sum+used/50+256*statement.Mib < used || used+used/50+256*statement.Mib < sum {
			return -1 // somebody is missing, the program among others
		}
		return smallest()
	}
	if len(list)-desktop > 1 && sum > 0 {
		return smallest()
	}
	return -1
}

// heldBy is what these processes hold together.
func heldBy(list []holder) (sum uint64) {
	for _, h := range list {
		sum += h.Used
	}
	return sum
}

// readings are the lines of these processes, the desktop's left out, each with what it
// holds.
func readings(list []holder) []statement.Evidence {
	var q []statement.Evidence
	for _, h := range list {
		if h.isDesktop() && len(list) > 1 {
			continue
		}
		r := h.from
		r.Reading = "another process is on the GPU"
		if h.Used > 0 {
			r.Reading = "another process holds " + Human(h.Used)
		}
		if h.ParentGone {
			r.Reading += "; the one that started it is gone"
		}
		q = append(q, r)
	}
	return q
}

// Refusals.

// Refusal is one time that memory was refused, with all that the log says of it. What
// is not told is 0; the has fields report whether free, allocated and others were told.
type Refusal struct {
	St       *statement.Statement
	Layer    statement.Layer
	device   int
	mild     bool
	Want     uint64
	wantHigh uint64
	Free     uint64
	HasFree  bool
	Total    uint64
	limit    uint64
	Alloc    uint64
	hasAlloc bool
	kept     uint64 // with what is allocated
	idle     uint64
	hasIdle  bool
	other    uint64 // allocated by others in the process
	programs uint64 // held by other programs, as far as the message says
	this     uint64 // held by the process
	listed   []listedProcess
	Pinning  bool
	Capture  *statement.Statement
	wentOn   *statement.Statement // the progress after it
	round    uint64              // how far its sizes are rounded
}

// A listedProcess is a process in a message.
type listedProcess struct {
	pid  int
	used uint64
}

// reserved is what its pool took from the driver.
func (r *Refusal) reserved() uint64 {
	switch {
	case r.hasIdle:
		return r.Alloc + r.idle
	case r.kept > 0:
		return max(r.kept, r.Alloc)
	}
	return r.Alloc
}

// unallocated is what its pool holds and does not use.
func (r *Refusal) unallocated() uint64 {
	if r.hasIdle {
		return r.idle
	}
	return Less(r.reserved(), r.Alloc)
}

var poolDevice = regexp.MustCompile(`(?:GPU|gpu_async|SE|GPU_?collectivememory|CUDA)_?(\d{1,4})\b|GPU:(\d{1,4})\b|GPU (\d{1,4})\b|(?:device|Device)(?: ordinal)? (?:cuda:)?(\d{1,4})\b|\[(\d{1,2})\] (?:F|f)ailed|CUDA:(\d{1,2})\b|cuda:(\d{1,2})\b`)

// DeviceOf is the GPU that a text names, or -1.
func DeviceOf(text string) int {
	m := poolDevice.FindStringSubmatch(statement.Clipped64(text))
	for _, g := range m[min(len(m), 1):] {
		if g != "" {
			n, _ := strconv.Atoi(g) // at most four digits
			return n
		}
	}
	return -1
}

// nearby is how many lines behind a refusal what belongs to it may stand.
const nearby = 8

// Gather makes the refusals of the statements.
func (e *Facts) Gather() {
	all := e.statements.all()
	for i, st := range all {
		// NCCL's own line names the size, and the one before it NCCL.
		if st.Refused && (st.Layer == statement.LayerDriver || st.Layer == statement.LayerPool) {
			for _, before := range slices.Backward(all[:i]) {
				if before.Line+5 < st.Line {
					break
				}
				if before.Layer == statement.LayerNCCL && before.From == st.From && before.HasAny("failed", "error", "unhandled") {
					st.Layer = statement.LayerNCCL
				}
			}
		}
		if !st.Refused || st.Advice && len(st.Amounts) == 0 || st.Topic("exceeds") != nil || st.Topic("remat") != nil && st.Layer != statement.LayerNCCL || st.Topic("killed") != nil && st.Amount(statement.RoleWant) == nil {
			continue
		}
		r := &Refusal{St: st, Layer: st.Layer, device: DeviceOf(st.Text), mild: st.Mild}
		r.take(st)
		for _, next := range all[i+1 : min(len(all), i+1+4*nearby)] {
			if next.Line > st.Line+nearby || next.From == st.From && next.Refused && (next.Amount(statement.RoleWant) != nil && r.Want > 0 || next.Line > st.Line+2 && next.Amount(statement.RoleWant) != nil) {
				break
			}
			if next.From != st.From || next.Report || next.HasAny("chunk", "chunks") || next.Topic("announced") != nil || next.Library != "" || len(next.Amounts) == 0 || next.Topic("remat", "collection") != nil || next.Words["allocation"] && next.HasAny("parameter", "constant", "live", "temp", "total") {
				continue
			}
			r.take(next)
		}
		if r.Want == 0 {
			r.Want = tensorBytes(st.Text)
			r.wantHigh = r.Want
		}
		for _, before := range slices.Backward(all[max(0, i-100):i]) {
			if before.Line < st.Line-60 {
				break
			}
			if before.From != st.From {
				continue
			}
			if before.Topic("capture") != nil && r.Capture == nil {
				r.Capture = before
			}
			r.Pinning = r.Pinning || before.Topic("pinning") != nil
		}
		if st.Topic("capture") != nil {
			r.Capture = st
		}
		e.Failed = append(e.Failed, r)
	}
	if s := e.About("capture"); s != nil && e.Uses("vllm", "sglang") {
		for _, r := range e.Failed {
			if r.Capture == nil && r.Want > 0 {
				r.Capture = s
			}
		}
	}
	if e.Live != nil {
		for _, r := range e.Failed {
			if n := e.Live(r.device); n > 0 && !r.hasAlloc && r.Layer != statement.LayerHost {
				r.Alloc, r.hasAlloc = n, true
			}
		}
	}
	for _, r := range e.Failed {
		if r.St.Topic("tpu") != nil {
			continue // what the compiler planned
		}
		r.believe(cmp.Or(r.Total, e.Total().Bytes))
	}
	e.autotuned()
	e.recovered()
}

// mostHeld is how many times the GPU's memory a program may hold: on Windows the driver spills
// into the host's memory. What is more is no size.
const mostHeld = 4

// believe forgets what cannot be on a GPU of total bytes; 0 is unknown.
func (r *Refusal) believe(total uint64) {
	absurd := func(n uint64) bool { return total > 0 && n/mostHeld > total }
	if absurd(r.Alloc) {
		r.Alloc, r.hasAlloc = 0, false
	}
	if absurd(r.kept) {
		r.kept = 0
	}
	if absurd(r.idle) {
		r.idle, r.hasIdle = 0, false
	}
	for _, n := range []*uint64{&r.this, &r.other, &r.programs} {
		if absurd(*n) {
			*n = 0
		}
	}
	r.listed = slices.DeleteFunc(r.listed, func(p listedProcess) bool { return absurd(p.used) })
}

// recovered marks refusals after which the same program went on: it tried again, with
// less, and serves or trains. An exception's line is not one of them.
func (e *Facts) recovered() {
	before := 0 // the last line of progress
	for _, st := range e.statements.all() {
		if st.Topic("success") == nil || st.Refused {
			continue
		}
		training := st.HasAny("step", "epoch", "iter")
		again := before == st.Line-1
		before = st.Line
		if training && !again {
			continue // it may be another program's
		}
		if len(e.Failed) > 0 && st.Line < e.Failed[0].St.Line {
			return // it is what goes on all the time
		}
		for _, r := range e.Failed {
			if r.St.Line < st.Line && r.St.From == st.From && r.St.Level != "F" && !exception.MatchString(r.St.Text) {
				r.mild, r.wentOn = true, st
			}
		}
	}
}

var exception = regexp.MustCompile(`\w(?:Error|Exception|bad_alloc)\b|terminate called|panic:|\(RuntimeError\)`)

// take adds what a statement says to a refusal, where it says something new.
func (r *Refusal) take(st *statement.Statement) {
	used := false
	for i := range st.Amounts {
		a := &st.Amounts[i]
		if a.Private && a.Role != statement.RoleWant || a.Cache && a.Role != statement.RoleWant && r.Layer != statement.LayerEngine || a.Initial || a.N >= saneTotal && a.Role != statement.RoleWant && a.Role != statement.RoleTotal {
			continue
		}
		used = true
		fill := func(at *uint64) bool {
			if *at > 0 {
				return false
			}
			*at = a.N
			return true
		}
		switch a.Role {
		case statement.RoleWant:
			if fill(&r.Want) {
				r.wantHigh = max(a.High, a.N)
			}
		case statement.RoleFree:
			if !r.HasFree && !a.Pool {
				r.Free, r.HasFree = a.N, true
			}
		case statement.RoleTotal:
			if st.Words["cupy"] { // what its pool has
				r.Alloc, r.hasAlloc = a.N, true
				break
			}
			fill(&r.Total)
		case statement.RoleLimit:
			fill(&r.limit)
		case statement.RoleAlloc, statement.RoleUse:
			switch {
			case a.Pid > 0:
				if !slices.ContainsFunc(r.listed, func(p listedProcess) bool { return p.pid == a.Pid }) {
					r.listed = append(r.listed, listedProcess{a.Pid, a.N})
				}
			case a.This:
				fill(&r.this)
			case a.Programs:
				r.programs += a.N
			case a.Pair && !a.Pool && !a.Torch && i+1 < len(st.Amounts) && st.Amounts[i+1].Role == statement.RoleTotal:
				// Of the GPU as a whole: 7.5 GiB/7.8 GiB.
				switch t := st.Amounts[i+1].N; {
				case t < a.N:
					r.Alloc, r.hasAlloc = a.N, true
				case !r.HasFree:
					r.Free, r.HasFree = t-a.N, true
				}
			case a.Other:
				r.other += a.N
			case !r.hasAlloc:
				r.Alloc, r.hasAlloc = a.N, true
			}
		case statement.RoleKept:
			fill(&r.kept)
		case statement.RoleIdle:
			if !r.hasIdle {
				r.idle, r.hasIdle = a.N, true
			}
		}
		if a.High > a.N {
			r.round += a.High - a.N
		}
	}
	if used && r.device < 0 {
		r.device = DeviceOf(st.Text)
	}
}

// autotuned marks refusals while algorithms are compared: another is taken.
func (e *Facts) autotuned() {
	if e.About("picker") == nil {
		return
	}
	var lines []int
	for _, st := range e.statements.all() {
		if st.Topic("picker") != nil {
			lines = append(lines, st.Line)
		}
	}
	for _, r := range e.Failed {
		if r.St.Topic("picker") != nil {
			r.mild = true
			continue
		}
		if r.Layer == statement.LayerDriver && slices.ContainsFunc(lines, func(n int) bool { return n+20 > r.St.Line && r.St.Line+20 > n }) {
			r.mild = true
		}
	}
}

// last is the last refusal for which ok holds, and nil.
func (e *Facts) last(ok func(*Refusal) bool) *Refusal {
	for _, r := range slices.Backward(e.Failed) {
		if ok(r) {
			return r
		}
	}
	return nil
}

// contextRefused is the last line that no context could be made for lack of memory.
func (e *Facts) contextRefused() *Refusal {
	return e.last(func(r *Refusal) bool { return r.Layer == statement.LayerContext })
}

// Fatal reports whether memory of the GPU was refused and that was no warning.
func (e *Facts) Fatal() bool {
	return e.last(func(r *Refusal) bool { return !r.mild && r.Layer != statement.LayerHost }) != nil
}

// SortEvidence orders by line; what is not of the log comes last. Lines that come twice
// are quoted once.
func SortEvidence(list []statement.Evidence) []statement.Evidence {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b statement.Evidence) int {
		if (a.Line == 0) != (b.Line == 0) {
			return b.Line - a.Line
		}
		return cmp.Compare(a.Line, b.Line)
	})
	var out []statement.Evidence
	for _, e := range list {
		if i := slices.IndexFunc(out, func(o statement.Evidence) bool { return o.Line == e.Line && o.Text == e.Text }); i >= 0 {
			if out[i].Reading == "" {
				out[i].Reading = e.Reading
			} else if e.Reading != "" && e.Reading != out[i].Reading {
				out[i].Reading += "; " + e.Reading
			}
			continue
		}
		out = append(out, e)
	}
	return out
}

// widths are the bytes of TensorFlow's element types.
var widths = map[string]uint64{"float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
	"int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "resource": 8}

var tensorShape = regexp.MustCompile(`shape ?\[([\d, ]+)\](?: and type (\w+?)(?:_ref)?\b)?`)

// tensorBytes is the size of the tensor in a message, 0 if it is not told. Without a type
// it is taken for float.
func tensorBytes(text string) uint64 {
	m := tensorShape.FindStringSubmatch(statement.Clipped64(text))
	if m == nil {
		return 0
	}
	n := uint64(4)
	if m[2] != "" {
		n = widths[m[2]]
	}
	for _, side := range strings.Split(m[1], ",") {
		s, err := strconv.ParseUint(strings.TrimSpace(side), 10, 63)
		if err != nil || s > 0 && n > math.MaxUint64/max(s, 1) {
			return 0
		}
		n *= s
	}
	return n
}

// poolState is the reported state of XLA's or TensorFlow's pool, in bytes.
type poolState struct {
	refused                     *Refusal // nil if none is reported
	want                        uint64
	limit, size, inUse, largest sized
}

// pool is the state of the pool at the last refusal, and nil if there is nothing of one.
func (e *Facts) pool() *poolState {
	p := &poolState{}
	is := func(r *Refusal) bool {
		return !r.mild && r.Layer == statement.LayerPool && r.Want > 0 && !e.torchLike(r)
	}
	for _, word := range []string{"rounded", "allocator", ""} {
		if p.refused == nil {
			p.refused = e.last(func(r *Refusal) bool { return is(r) && (word == "" || r.St.Words[word]) })
		}
	}
	if p.refused != nil {
		p.want = p.refused.Want
	}
	set := func(s *sized, f *statement.Fact, bytes uint64, what string) {
		*s = sized{bytes, f.Quoted(Human(bytes) + " " + what)}
	}
	for _, f := range e.facts("pool stats") {
		n := statement.SizeOf(f.Value)
		switch f.Name {
		case "Limit", "bytes_limit", "memory_limit_", "pool limit":
			set(&p.limit, &f, n, "is the pool's limit")
		case "InUse", "bytes_in_use":
			set(&p.inUse, &f, n, "in use")
		case "Sum Total of in-use chunks":
			if p.inUse.Bytes == 0 {
				set(&p.inUse, &f, n, "in use")
			}
		case "Reserved", "pool_bytes", "bytes_reserved", "Total bytes in pool", "Total size in pool", "total_region_allocated_bytes_", "pool size":
			if n > 0 {
				set(&p.size, &f, n, "taken from the GPU")
			}
		case "LargestFreeBlock", "largest_free_block_bytes", "largest free chunk usable by lower end", "largest free chunk usable by upper end":
			if n > 0 {
				set(&p.largest, &f, n, "is the largest free block")
			}
		}
	}
	if d := e.Dump; d != nil && d.Complete {
		at := statement.Evidence{Line: d.Line, Text: "the pool's report"}
		p.size, p.inUse, p.largest = sized{d.Pool, at}, sized{d.InUse, at}, sized{d.LargestFree, at}
		p.size.from.Reading, p.inUse.from.Reading = Human(d.Pool)+" taken from the GPU", Human(d.InUse)+" in use"
		p.largest.from.Reading = Human(d.LargestFree) + " is the largest free chunk"
		if p.limit.Bytes == 0 && d.Limit > 0 {
			p.limit = sized{d.Limit, at}
			p.limit.from.Reading = Human(d.Limit) + " is the pool's limit"
		}
	}
	if p.refused == nil && p.limit.Bytes == 0 && p.inUse.Bytes == 0 {
		return nil
	}
	return p
}

// torchLike reports whether a refusal tells of the device, or of a pool other than XLA's
// and TensorFlow's, in the same message.
func (e *Facts) torchLike(r *Refusal) bool {
	if r.St.Stats && !(r.Total > 0 && r.HasFree) {
		return false
	}
	return r.Total > 0 || r.hasAlloc || r.limit > 0 || r.HasFree || r.St.HasAny("torch", "cupy", "rmm", "tried", "mps", "xpu", "hip", "cudnn")
}

// Unified reports whether the pool may be larger than the GPU.
func (e *Facts) Unified() bool {
	v := e.Env["TF_FORCE_UNIFIED_MEMORY"]
	fraction, _ := e.Fraction()
	return v == "1" || strings.EqualFold(v, "true") || fraction > 1 // anything else means no to XLA
}

// Grows reports whether the pool grows as needed, as far as known.
func (e *Facts) Grows() bool {
	v := e.Env[Prealloc]
	return v == "false" || v == "False" || v == "0" || e.Env[TfGrowth] == "true" // in small letters only, as TensorFlow reads it
}

// Display is the state's word that a display hangs on the GPU.
func (e *Facts) Display() []statement.Evidence {
	if d := e.gpu(); d != nil && d.Display {
		reading := "a display is on the GPU"
		if d.InUse() > 0 {
			reading += ", and " + Human(d.InUse()) + " in use before"
		}
		return []statement.Evidence{{Text: "devices.display_active: true", Reading: reading}}
	}
	return nil
}

// madeAgain reports whether the program made its backend a second time.
func (e *Facts) madeAgain() bool {
	return e.About("cleared") != nil || e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil && *e.state.Process.BackendRecreated
}

// assigned is the compiler's total for a program that did not fit, in bytes, and the line.
func (e *Facts) assigned() (uint64, *statement.Statement) {
	for _, st := range slices.Backward(e.statements.all()) {
		if m := totalAllocation.FindStringSubmatch(st.Text); m != nil {
			return statement.SizeOf(m[1]), st
		}
	}
	return 0, nil
}

var totalAllocation = regexp.MustCompile(`\btotal allocation: +([\d.]+ ?\w+)`)

// parts are the program's buffers that a cut report still lists.
func (e *Facts) parts() (sum uint64, st *statement.Statement) {
	for _, s := range e.statements.all() {
		if m := partAllocation.FindStringSubmatch(s.Text); m != nil {
			sum += statement.SizeOf(m[1])
			st = s
		}
	}
	return sum, st
}

var partAllocation = regexp.MustCompile(`(?:parameter|constant|maybe_live_out|preallocated temp) allocation: +([\d.]+ ?\w+)`)
