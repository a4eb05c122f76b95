package doctor

// What is known: the statements and facts of a log, and the state of the machine; and
// what follows from both without judgement: which frameworks there are, how large the
// GPU is, who is on it.

import (
	"cmp"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/dump"
	"gpumem/machine"
	"gpumem/size"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
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
	first, last          Evidence
}

// evidence is a log and a state, read.
type evidence struct {
	statements kept[*statement]
	factsOf    map[string]*kept[fact]
	marks      map[string]Evidence // the first line that shows a framework
	series     map[string]*series
	state      *machine.Snapshot
	dump       *dump.Dump
	program    *dump.Program
	beside     *Beside
	env        map[string]string   // of the program that failed, as far as known
	envFrom    map[string]Evidence // where the log shows it
	failed     []*refusal          // in the order of the log
	end        string              // what the log ends with
	said       bool                // some line may speak of refused memory
}

func newEvidence(state *machine.Snapshot) *evidence {
	e := &evidence{factsOf: map[string]*kept[fact]{}, marks: map[string]Evidence{}, series: map[string]*series{}, state: state, env: map[string]string{}, envFrom: map[string]Evidence{}}
	if state != nil && state.Process != nil {
		for name, value := range state.Process.Env {
			e.env[name] = value
		}
	}
	return e
}

// region reads a part of the log.
func (e *evidence) region(lines []rawLine) {
	for _, p := range passages(lines) {
		if strings.TrimSpace(p.text) == "" && p.head == "" {
			continue
		}
		e.add(readPassage(p))
	}
}

// maxSeries bounds the figures that are followed.
const maxSeries = 100

func (e *evidence) add(st *statement) {
	if st.refused || st.faint || st.advice || st.mild || st.library != "" || st.layer == layerNCCL || len(st.topics) > 0 || len(st.amounts) > 0 || st.hasAny("fragmentation", "dst", "terminated") {
		e.statements.add(st)
	}
	e.said = e.said || st.refused || st.faint || st.topic("killed", "sigkill", "nvrm", "tegra", "shm") != nil
	if st.library == "" && !st.refused {
		e.follow(st)
	}
	for _, f := range st.facts() {
		if f.kind == "pool stats" && strings.HasPrefix(f.name, "pool ") && !strings.Contains(st.text, "llocator memory summary") {
			continue // a message with other words for a pool
		}
		if strings.HasPrefix(f.kind, "smi") || f.kind == "pool stats" && !st.words["while"] && !st.words["ran"] {
			st.stats = st.stats || f.kind == "pool stats"
			st.report = st.report || !st.refused || st.derived
			st.refused = st.refused && !(st.derived && f.kind == "pool stats")
		}
		k := e.factsOf[f.kind]
		if k == nil {
			k = &kept[fact]{}
			e.factsOf[f.kind] = k
		}
		k.add(f)
		if f.kind == "setting seen" {
			if _, ok := e.envFrom[f.name]; !ok {
				e.envFrom[f.name] = Evidence{f.line, f.text, ""}
				if _, known := e.env[f.name]; !known {
					e.env[f.name] = f.value
				}
			}
		}
	}
	for _, f := range st.frameworksShown() {
		if _, ok := e.marks[f]; !ok {
			e.marks[f] = Evidence{st.line, st.quote(), ""}
		}
	}
}

// follow adds a reading of memory in use to its series.
func (e *evidence) follow(st *statement) {
	if !st.hasAny("epoch", "step", "iter", "iteration", "batch", "round", "reserved", "allocated", "use", "mem") {
		return
	}
	for i := range st.amounts {
		a := &st.amounts[i]
		if a.role != roleUse && a.role != roleAlloc && a.role != roleKept || a.n < mib || a.host {
			continue
		}
		if !st.hasAny("epoch", "step", "iter", "iteration", "batch", "round") && !(st.words["memory"] && (st.words["allocated"] || st.words["reserved"])) && !st.words["bytes"] && !st.words["gpu"] && !st.words["cuda"] {
			continue
		}
		key := st.from + "\x00" + a.label + strconv.Itoa(int(a.role))
		s := e.series[key]
		if s == nil {
			if len(e.series) >= maxSeries {
				return
			}
			s = &series{order: len(e.series)}
			e.series[key] = s
		}
		s.add(Evidence{st.line, st.quote(), ""}, a.n)
	}
}

func (s *series) add(at Evidence, v uint64) {
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
func (e *evidence) facts(kind string) []fact {
	if k := e.factsOf[kind]; k != nil {
		return k.all()
	}
	return nil
}

// pick is the last fact of a kind for which ok holds, and nil.
func (e *evidence) pick(kind string, ok func(*fact) bool) *fact {
	all := e.facts(kind)
	for i := len(all) - 1; i >= 0; i-- {
		if ok == nil || ok(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// about is the last statement with one of these topics, and nil.
func (e *evidence) about(ids ...string) *statement {
	all := e.statements.all()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].topic(ids...) != nil {
			return all[i]
		}
	}
	return nil
}

// quoted is a statement with what it shows.
func (st *statement) quoted(reading string) Evidence { return Evidence{st.line, st.quote(), reading} }

func (f *fact) quoted(reading string) Evidence { return Evidence{f.line, f.text, reading} }

// human is a size for people.
func human(n uint64) string { return size.Format(n) }

// percent is a share in whole percent.
func percent(part, whole uint64) int {
	if whole == 0 {
		return 0
	}
	return int(math.Round(100 * float64(part) / float64(whole)))
}

// less is a - b, 0 at least.
func less(a, b uint64) uint64 { return a - min(a, b) }

// Frameworks.

// uses reports whether the failing program uses one of these: jax, tensorflow, torch, ...
func (e *evidence) uses(names ...string) bool {
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
		if _, ok := e.marks[name]; ok {
			return true
		}
		if e.pick("version", func(f *fact) bool { return f.name == name || f.name == name+"lib" }) != nil {
			return true
		}
	}
	return false
}

// frameworksTold reports whether the state lists the program's frameworks.
func (e *evidence) frameworksTold() bool {
	return e.state != nil && e.state.Process != nil && len(e.state.Process.Frameworks) > 0
}

// onTensorFlow reports whether the program is TensorFlow and not JAX.
func (e *evidence) onTensorFlow() bool { return e.uses("tensorflow") && !e.uses("jax") }

// onTorch reports whether the program is PyTorch and not JAX.
func (e *evidence) onTorch() bool { return e.uses("torch", "vllm", "sglang") && !e.uses("jax") }

// jaxAndTF gives the readings that show both in one process, or nil.
func (e *evidence) jaxAndTF() []Evidence {
	if e.frameworksTold() {
		if e.uses("jax") && e.uses("tensorflow") {
			return []Evidence{{Text: "process.frameworks: " + strings.Join(e.state.Process.Frameworks, ", "), Reading: "both are loaded in the process"}}
		}
		return nil
	}
	jax, ok := e.marks["jax"]
	tf := e.facts("tf device")
	if !ok || len(tf) == 0 {
		return nil
	}
	reading := "TensorFlow made its own device in the program that fails in JAX"
	if tf[0].limit > 0 {
		reading = "TensorFlow takes up to " + human(tf[0].limit) + " for itself, in the program that fails in JAX"
	}
	jax.Reading = "a line of JAX"
	return []Evidence{tf[0].quoted(reading), jax}
}

// version is what is known of the release of a framework; empty if nothing is.
func (e *evidence) version(name string) string {
	if e.state != nil && e.state.Process != nil {
		for _, n := range []string{name, name + "lib"} {
			if v := e.state.Process.Versions[n]; v != "" {
				return v
			}
		}
	}
	for _, n := range []string{name + "lib", name} {
		for _, f := range e.facts("version") {
			if f.name == n {
				return f.version
			}
		}
	}
	return ""
}

// The GPU.

// ordinal is the GPU that the failure is about, and -1.
func (e *evidence) ordinal() int {
	n := -1
	for _, r := range e.failed {
		if r.device >= 0 && !r.mild {
			n = r.device
		}
	}
	return n
}

// gpu is what the state says of it, and nil.
func (e *evidence) gpu() *machine.Device { return e.state.Device(e.ordinal()) }

// A sized is a size and the line it is from.
type sized struct {
	bytes uint64
	from  Evidence
}

// saneTotal is no GPU's memory or more: what a driver that is out of memory reports may
// be anything.
const saneTotal = 1 << 42

// total is the memory of the GPU in bytes, 0 if unknown. What the state says goes before
// what the log says.
func (e *evidence) total() sized {
	if d := e.gpu(); d != nil && d.Total > 0 {
		return sized{d.Total, Evidence{Text: "devices.total_bytes: " + strconv.FormatUint(d.Total, 10), Reading: "the GPU has " + human(d.Total)}}
	}
	for _, r := range e.failed {
		if r.total > mib && r.total < saneTotal && r.layer != layerHost {
			return sized{r.total, r.st.quoted("the GPU has " + human(r.total))}
		}
	}
	for _, kind := range []string{"smi memory", "found", "vllm usage", "simulated"} {
		if f := e.pick(kind, func(f *fact) bool { return f.total > 0 && f.total < saneTotal }); f != nil {
			return sized{f.total, f.quoted("the GPU has " + human(f.total))}
		}
	}
	for _, st := range e.statements.all() {
		a := st.amount(roleTotal)
		if a != nil && a.n >= 256*mib && a.n < saneTotal && !a.host && !st.hasAny("chunks", "cupy") && (st.amount(roleFree) != nil || !a.pool) && (st.words["memory"] || st.words["vram"] || a.label == "card") && st.topic("remat") == nil {
			return sized{a.n, st.quoted("the GPU has " + human(a.n))}
		}
	}
	for _, kind := range []string{"tf device", "device", "smi gpu"} {
		f := e.pick(kind, func(f *fact) bool { least, most, ok := cardTotals(f.name); return ok && most-least <= most/50 })
		if f != nil {
			least, _, _ := cardTotals(f.name)
			return sized{least, f.quoted("a GPU of this name has " + human(least))}
		}
	}
	return sized{}
}

// free is the last reading of the driver, with the total beside it; nil if there is none.
func (e *evidence) free() (st *statement, free, total uint64) {
	all := e.statements.all()
	for i := len(all) - 1; i >= 0; i-- {
		f, t := all[i].amount(roleFree), all[i].amount(roleTotal)
		if f != nil && t != nil && t.n > 0 && t.n < saneTotal && !f.host && !all[i].refused && !f.pool && all[i].topic("nvshare") == nil {
			return all[i], f.n, t.n
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
	from       Evidence
}

func holderOf(p machine.Program, from Evidence) holder {
	return holder{p.PID, p.Name, p.Kind, p.Holds(), p.Frameworks, p.ParentGone != nil && *p.ParentGone, from}
}

// holders are the processes on the GPU that the state or a pasted nvidia-smi table lists.
// told is false where nothing lists them.
func (e *evidence) holders() (list []holder, told bool) {
	if d := e.gpu(); d != nil && d.Programs != nil {
		for _, p := range d.Programs {
			text := "devices.processes: pid " + strconv.Itoa(p.PID)
			if p.Name != "" {
				text += " " + p.Name
			}
			if len(p.Frameworks) > 0 {
				text += " (" + strings.Join(p.Frameworks, ", ") + ")"
			}
			list = append(list, holderOf(p, Evidence{Text: text}))
		}
		return list, true
	}
	n := e.ordinal()
	for _, f := range e.facts("smi process") {
		if n >= 0 && f.device >= 0 && f.device != n || slices.ContainsFunc(list, func(h holder) bool { return h.PID == f.pid }) {
			continue
		}
		kind := ""
		if f.value == "G" {
			kind = "graphics"
		}
		list = append(list, holder{PID: f.pid, Name: f.name, Kind: kind, Used: f.inUse, from: f.quoted("")})
	}
	return list, len(list) > 0
}

// isJAX reports whether the process looks like a JAX that preallocated: it says so, or it
// is a Python with a default pool and a context.
func (h holder) isJAX(total uint64) (bool, string) {
	if slices.ContainsFunc(h.Frameworks, func(f string) bool { return strings.EqualFold(f, "jax") || strings.EqualFold(f, "jaxlib") }) {
		if h.Used > 0 {
			return true, "another JAX process holds " + human(h.Used)
		}
		return true, "another JAX process is on the GPU"
	}
	if len(h.Frameworks) > 0 || total == 0 || !strings.Contains(strings.ToLower(h.Name), "python") {
		return false, ""
	}
	for _, part := range []float64{.75, .9} {
		pool := uint64(part * float64(total))
		// Contexts, with the modules in them, have been seen between 80 MiB and 1 GiB.
		if h.Used >= pool && h.Used <= pool+gib {
			return true, "another Python process holds " + human(h.Used) + ", the size of JAX's default pool (" + strconv.Itoa(int(part*100)) + " % of " + human(total) + ") and a context"
		}
	}
	return false, ""
}

var desktops = regexp.MustCompile(`(?i)xorg|gnome-shell|xwayland|kwin|firefox|chrome`)

func (h holder) isDesktop() bool { return h.Kind == "graphics" || desktops.MatchString(h.Name) }

// others are the processes on the GPU but the program that failed. told is false where
// nothing lists them.
//
// Which one is the program itself is known by its pid or, else, by arithmetic: PyTorch's
// message says what it holds; and where the list accounts for all that was in use at the
// failure, the program is in the list, for it had a context at least. A program that could
// not even make a context is not in it.
func (e *evidence) others() (list []holder, told bool) {
	list, told = e.holders()
	if own := e.own(list); own >= 0 {
		list = slices.Delete(slices.Clone(list), own, own+1)
	}
	return list, told
}

// own is the place in the list of the program that failed, or -1.
func (e *evidence) own(list []holder) int {
	if e.state != nil && e.state.Process != nil && e.state.Process.PID > 0 {
		return slices.IndexFunc(list, func(h holder) bool { return h.PID == e.state.Process.PID })
	}
	for i, h := range list {
		for _, r := range e.failed {
			if r.st.pid == h.PID && h.PID > 1 && r.st.from != "" {
				return i
			}
		}
	}
	if e.contextRefused() != nil {
		return -1
	}
	for _, r := range e.failed {
		reserved := r.reserved()
		if reserved == 0 {
			continue
		}
		best, at := uint64(math.MaxUint64), -1
		for i, h := range list {
			if h.Used+mib >= reserved && less(h.Used, reserved) < best && !h.isDesktop() {
				best, at = less(h.Used, reserved), i
			}
		}
		if at >= 0 && (best < 2*gib || len(list) == 1) {
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
		used := less(total, free)
		if sum+used/50+256*mib < used || used+used/50+256*mib < sum {
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
func readings(list []holder) []Evidence {
	var q []Evidence
	for _, h := range list {
		if h.isDesktop() && len(list) > 1 {
			continue
		}
		r := h.from
		r.Reading = "another process is on the GPU"
		if h.Used > 0 {
			r.Reading = "another process holds " + human(h.Used)
		}
		if h.ParentGone {
			r.Reading += "; the one that started it is gone"
		}
		q = append(q, r)
	}
	return q
}

// Refusals.

// A refusal is one time that memory was refused, with all that the log says of it. What
// is not told is 0; the has fields say whether free, allocated and others were told.
type refusal struct {
	st       *statement
	layer    layer
	device   int
	mild     bool
	want     uint64
	wantHigh uint64
	free     uint64
	hasFree  bool
	total    uint64
	limit    uint64
	alloc    uint64
	hasAlloc bool
	kept     uint64 // with what is allocated
	idle     uint64
	hasIdle  bool
	other    uint64 // allocated by others in the process
	programs uint64 // held by other programs, as far as the message says
	this     uint64 // held by the process
	listed   []listedProcess
	pinning  bool
	capture  *statement
	round    uint64 // how far its sizes are rounded
}

// A listedProcess is a process in a message.
type listedProcess struct {
	pid  int
	used uint64
}

// reserved is what its pool took from the driver.
func (r *refusal) reserved() uint64 {
	switch {
	case r.hasIdle:
		return r.alloc + r.idle
	case r.kept > 0:
		return max(r.kept, r.alloc)
	}
	return r.alloc
}

// unallocated is what its pool holds and does not use.
func (r *refusal) unallocated() uint64 {
	if r.hasIdle {
		return r.idle
	}
	return less(r.reserved(), r.alloc)
}

var poolDevice = regexp.MustCompile(`(?:GPU|gpu_async|SE|GPU_?collectivememory|CUDA)_?(\d{1,4})\b|GPU:(\d{1,4})\b|GPU (\d{1,4})\b|(?:device|Device)(?: ordinal)? (?:cuda:)?(\d{1,4})\b|\[(\d{1,2})\] (?:F|f)ailed|CUDA:(\d{1,2})\b|cuda:(\d{1,2})\b`)

// deviceOf is the GPU that a text names, or -1.
func deviceOf(text string) int {
	m := poolDevice.FindStringSubmatch(clipped64(text))
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

// gather makes the refusals of the statements.
func (e *evidence) gather() {
	all := e.statements.all()
	for i, st := range all {
		// NCCL's own line names the size, and the one before it NCCL.
		if st.refused && (st.layer == layerDriver || st.layer == layerPool) {
			for _, before := range slices.Backward(all[:i]) {
				if before.line+5 < st.line {
					break
				}
				if before.layer == layerNCCL && before.from == st.from && before.hasAny("failed", "error", "unhandled") {
					st.layer = layerNCCL
				}
			}
		}
		if !st.refused || st.advice && len(st.amounts) == 0 || st.topic("exceeds") != nil || st.topic("remat") != nil && st.layer != layerNCCL || st.topic("killed") != nil && st.amount(roleWant) == nil {
			continue
		}
		r := &refusal{st: st, layer: st.layer, device: deviceOf(st.text), mild: st.mild}
		r.take(st)
		for _, next := range all[i+1 : min(len(all), i+1+4*nearby)] {
			if next.line > st.line+nearby || next.from == st.from && next.refused && (next.amount(roleWant) != nil && r.want > 0 || next.line > st.line+2 && next.amount(roleWant) != nil) {
				break
			}
			if next.from != st.from || next.report || next.hasAny("chunk", "chunks") || next.topic("announced") != nil || next.library != "" || len(next.amounts) == 0 || next.topic("remat", "collection") != nil || next.words["allocation"] && next.hasAny("parameter", "constant", "live", "temp", "total") {
				continue
			}
			r.take(next)
		}
		for _, before := range slices.Backward(all[max(0, i-100):i]) {
			if before.line < st.line-60 {
				break
			}
			if before.from != st.from {
				continue
			}
			if before.topic("capture") != nil && r.capture == nil {
				r.capture = before
			}
			r.pinning = r.pinning || before.topic("pinning") != nil
		}
		if st.topic("capture") != nil {
			r.capture = st
		}
		e.failed = append(e.failed, r)
	}
	if s := e.about("capture"); s != nil && e.uses("vllm", "sglang") {
		for _, r := range e.failed {
			if r.capture == nil && r.want > 0 {
				r.capture = s
			}
		}
	}
	if b := e.beside; b != nil && b.Most > 0 {
		for _, r := range e.failed {
			if !r.hasAlloc && r.layer != layerHost {
				r.alloc, r.hasAlloc = b.Most, true
			}
		}
	}
	e.autotuned()
	e.recovered()
}

// recovered marks refusals after which the same program went on: it tried again, with
// less, and serves or trains. An exception's line is not one of them.
func (e *evidence) recovered() {
	before := 0 // the last line of progress
	for _, st := range e.statements.all() {
		if st.topic("success") == nil || st.refused {
			continue
		}
		training := st.hasAny("step", "epoch", "iter")
		again := before == st.line-1
		before = st.line
		if training && !again {
			continue // it may be another program's
		}
		if len(e.failed) > 0 && st.line < e.failed[0].st.line {
			return // it is what goes on all the time
		}
		for _, r := range e.failed {
			if r.st.line < st.line && r.st.from == st.from && r.st.level != "F" && !exception.MatchString(r.st.text) {
				r.mild = true
			}
		}
	}
}

var exception = regexp.MustCompile(`\w(?:Error|Exception|bad_alloc)\b|terminate called|panic:|\(RuntimeError\)`)

// take adds what a statement says to a refusal, where it says something new.
func (r *refusal) take(st *statement) {
	used := false
	for i := range st.amounts {
		a := &st.amounts[i]
		if a.private && a.role != roleWant || a.cache && a.role != roleWant && r.layer != layerEngine || a.initial || a.n >= saneTotal && a.role != roleWant && a.role != roleTotal {
			continue
		}
		used = true
		fill := func(at *uint64) bool {
			if *at > 0 {
				return false
			}
			*at = a.n
			return true
		}
		switch a.role {
		case roleWant:
			if fill(&r.want) {
				r.wantHigh = max(a.high, a.n)
			}
		case roleFree:
			if !r.hasFree && !a.pool {
				r.free, r.hasFree = a.n, true
			}
		case roleTotal:
			if st.words["cupy"] { // what its pool has
				r.alloc, r.hasAlloc = a.n, true
				break
			}
			fill(&r.total)
		case roleLimit:
			fill(&r.limit)
		case roleAlloc, roleUse:
			switch {
			case a.pid > 0:
				if !slices.ContainsFunc(r.listed, func(p listedProcess) bool { return p.pid == a.pid }) {
					r.listed = append(r.listed, listedProcess{a.pid, a.n})
				}
			case a.this:
				fill(&r.this)
			case a.programs:
				r.programs += a.n
			case a.pair && !a.pool && !a.torch && i+1 < len(st.amounts) && st.amounts[i+1].role == roleTotal:
				// Of the GPU as a whole: 7.5 GiB/7.8 GiB.
				switch t := st.amounts[i+1].n; {
				case t < a.n:
					r.alloc, r.hasAlloc = a.n, true
				case !r.hasFree:
					r.free, r.hasFree = t-a.n, true
				}
			case a.other:
				r.other += a.n
			case !r.hasAlloc:
				r.alloc, r.hasAlloc = a.n, true
			}
		case roleKept:
			fill(&r.kept)
		case roleIdle:
			if !r.hasIdle {
				r.idle, r.hasIdle = a.n, true
			}
		}
		if a.high > a.n {
			r.round += a.high - a.n
		}
	}
	if used && r.device < 0 {
		r.device = deviceOf(st.text)
	}
}

// autotuned marks refusals while algorithms are compared: another is taken.
func (e *evidence) autotuned() {
	if e.about("picker") == nil {
		return
	}
	var lines []int
	for _, st := range e.statements.all() {
		if st.topic("picker") != nil {
			lines = append(lines, st.line)
		}
	}
	for _, r := range e.failed {
		if r.st.topic("picker") != nil {
			r.mild = true
			continue
		}
		if r.layer == layerDriver && slices.ContainsFunc(lines, func(n int) bool { return n+20 > r.st.line && r.st.line+20 > n }) {
			r.mild = true
		}
	}
}

// last is the last refusal for which ok holds, and nil.
func (e *evidence) last(ok func(*refusal) bool) *refusal {
	for _, r := range slices.Backward(e.failed) {
		if ok(r) {
			return r
		}
	}
	return nil
}

// contextRefused is the last line that no context could be made for lack of memory.
func (e *evidence) contextRefused() *refusal {
	return e.last(func(r *refusal) bool { return r.layer == layerContext })
}

// fatal reports whether memory of the GPU was refused and that was no warning.
func (e *evidence) fatal() bool {
	return e.last(func(r *refusal) bool { return !r.mild && r.layer != layerHost }) != nil
}

// sortEvidence orders by line; what is not of the log comes last. Lines that come twice
// are quoted once.
func sortEvidence(list []Evidence) []Evidence {
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Evidence) int {
		if (a.Line == 0) != (b.Line == 0) {
			return b.Line - a.Line
		}
		return cmp.Compare(a.Line, b.Line)
	})
	var out []Evidence
	for _, e := range list {
		if i := slices.IndexFunc(out, func(o Evidence) bool { return o.Line == e.Line && o.Text == e.Text }); i >= 0 {
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
	m := tensorShape.FindStringSubmatch(clipped64(text))
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

// poolState is what is told of XLA's or TensorFlow's pool, in bytes.
type poolState struct {
	refused                     *refusal // nil if none is told
	want                        uint64
	limit, size, inUse, largest sized
}

// pool is the state of the pool at the last refusal, and nil if there is nothing of one.
func (e *evidence) pool() *poolState {
	p := &poolState{}
	is := func(r *refusal) bool {
		return !r.mild && r.layer == layerPool && r.want > 0 && !e.torchLike(r)
	}
	for _, word := range []string{"rounded", "allocator", ""} {
		if p.refused == nil {
			p.refused = e.last(func(r *refusal) bool { return is(r) && (word == "" || r.st.words[word]) })
		}
	}
	if p.refused != nil {
		p.want = p.refused.want
	}
	set := func(s *sized, f *fact, bytes uint64, what string) {
		*s = sized{bytes, f.quoted(human(bytes) + " " + what)}
	}
	for _, f := range e.facts("pool stats") {
		n := sizeOf(f.value)
		switch f.name {
		case "Limit", "bytes_limit", "memory_limit_", "pool limit":
			set(&p.limit, &f, n, "is the pool's limit")
		case "InUse", "bytes_in_use":
			set(&p.inUse, &f, n, "in use")
		case "Sum Total of in-use chunks":
			if p.inUse.bytes == 0 {
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
	if d := e.dump; d != nil && d.Complete {
		at := Evidence{Line: d.Line, Text: "the pool's report"}
		p.size, p.inUse, p.largest = sized{d.Pool, at}, sized{d.InUse, at}, sized{d.LargestFree, at}
		p.size.from.Reading, p.inUse.from.Reading = human(d.Pool)+" taken from the GPU", human(d.InUse)+" in use"
		p.largest.from.Reading = human(d.LargestFree) + " is the largest free chunk"
		if p.limit.bytes == 0 && d.Limit > 0 {
			p.limit = sized{d.Limit, at}
			p.limit.from.Reading = human(d.Limit) + " is the pool's limit"
		}
	}
	if p.refused == nil && p.limit.bytes == 0 && p.inUse.bytes == 0 {
		return nil
	}
	return p
}

// torchLike reports whether a refusal tells of the device, or of a pool other than XLA's
// and TensorFlow's, in the same message.
func (e *evidence) torchLike(r *refusal) bool {
	if r.st.stats && !(r.total > 0 && r.hasFree) {
		return false
	}
	return r.total > 0 || r.hasAlloc || r.limit > 0 || r.hasFree || r.st.hasAny("torch", "cupy", "rmm", "tried", "mps", "xpu", "hip", "cudnn")
}

// unified reports whether the pool may be larger than the GPU.
func (e *evidence) unified() bool {
	v := e.env["TF_FORCE_UNIFIED_MEMORY"]
	fraction, _ := e.fraction()
	return v == "1" || strings.EqualFold(v, "true") || fraction > 1 // anything else means no to XLA
}

// grows reports whether the pool grows as needed, as far as known.
func (e *evidence) grows() bool {
	v := e.env[prealloc]
	return v == "false" || v == "False" || v == "0" || e.env[tfGrowth] == "true" // in small letters only, as TensorFlow reads it
}

// display is the state's word that a display hangs on the GPU.
func (e *evidence) display() []Evidence {
	if d := e.gpu(); d != nil && d.Display {
		reading := "a display is on the GPU"
		if d.InUse() > 0 {
			reading += ", and " + human(d.InUse()) + " in use before"
		}
		return []Evidence{{Text: "devices.display_active: true", Reading: reading}}
	}
	return nil
}

// madeAgain reports whether the program made its backend a second time.
func (e *evidence) madeAgain() bool {
	return e.about("cleared") != nil || e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil && *e.state.Process.BackendRecreated
}

// assigned is the compiler's total for a program that did not fit, in bytes, and the line.
func (e *evidence) assigned() (uint64, *statement) {
	for _, st := range slices.Backward(e.statements.all()) {
		if m := totalAllocation.FindStringSubmatch(st.text); m != nil {
			return sizeOf(m[1]), st
		}
	}
	return 0, nil
}

var totalAllocation = regexp.MustCompile(`\btotal allocation: +([\d.]+ ?\w+)`)

// parts are the program's buffers that a cut report still lists.
func (e *evidence) parts() (sum uint64, st *statement) {
	for _, s := range e.statements.all() {
		if m := partAllocation.FindStringSubmatch(s.text); m != nil {
			sum += sizeOf(m[1])
			st = s
		}
	}
	return sum, st
}

var partAllocation = regexp.MustCompile(`(?:parameter|constant|maybe_live_out|preallocated temp) allocation: +([\d.]+ ?\w+)`)
