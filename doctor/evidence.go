package doctor

// What the rules look at: the facts of a log, by kind, and what follows from
// them and from the state without any judgement: which frameworks there are,
// how large the GPU is, who is on it.

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/dump"
	"gpumem/machine"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// maxKept is how many facts of a kind are kept from the beginning of a log, and
// as many from its end: a log of a gigabyte may have millions.
const maxKept = 64

// kept are the facts of one kind.
type kept struct {
	n           int
	first, last []Fact // last: those after first, the newest maxKept
}

func (k *kept) add(f Fact) {
	k.n++
	switch {
	case len(k.first) < maxKept:
		k.first = append(k.first, f)
	case len(k.last) < maxKept:
		k.last = append(k.last, f)
	default:
		copy(k.last, k.last[1:])
		k.last[maxKept-1] = f
	}
}

// A series is the readings of one figure over time.
type series struct {
	name                 string
	n, rises, falls      int
	low, high, lastValue uint64
	first, last          Fact
}

func (s *series) add(f Fact, v uint64) {
	s.n++
	if s.n == 1 {
		s.first, s.low, s.high = f, v, v
	} else {
		switch {
		case v > s.lastValue:
			s.rises++
		case v < s.lastValue:
			s.falls++
		}
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
	s.last, s.lastValue = f, v
}

// evidence is a log and a state, read.
type evidence struct {
	facts   map[Kind]*kept
	series  map[string]*series
	lines   int // of the last fact
	state   *machine.Snapshot
	dump    *dump.Dump
	program *dump.Program
	env     map[string]string // of the program that failed, as far as known
	envFrom map[string]Fact   // where the log shows it
}

func newEvidence(state *machine.Snapshot) *evidence {
	e := &evidence{facts: map[Kind]*kept{}, series: map[string]*series{}, state: state, env: map[string]string{}, envFrom: map[string]Fact{}}
	if state != nil && state.Process != nil {
		for name, value := range state.Process.Env {
			e.env[name] = value
		}
	}
	return e
}

// maxSeries bounds the figures that are followed.
const maxSeries = 100

func (e *evidence) add(f Fact) {
	k := e.facts[f.Kind]
	if k == nil {
		k = new(kept)
		e.facts[f.Kind] = k
	}
	k.add(f)
	e.lines = f.Line
	if f.Kind == XLADevice && f.Nonfatal {
		e.harmless(f)
	}
	switch f.Kind {
	case SettingSeen:
		if _, ok := e.envFrom[f.Name]; !ok {
			e.envFrom[f.Name] = f
			if _, told := e.env[f.Name]; !told {
				e.env[f.Name] = f.Value
			}
		}
	case Reading, PoolStats:
		if f.Name == "bytes_in_use" || f.Kind == Reading {
			key := f.From + "\x00" + f.Name
			s := e.series[key]
			if s == nil {
				if len(e.series) >= maxSeries {
					return
				}
				s = &series{name: f.Name}
				e.series[key] = s
			}
			s.add(f, f.InUse)
		}
	}
}

// harmless marks the driver's refusal of the same size just before one that says
// that the program goes on.
func (e *evidence) harmless(f Fact) {
	k := e.facts[DeviceRefused]
	if k == nil {
		return
	}
	for _, list := range [][]Fact{k.first, k.last} {
		for i := range list {
			if g := &list[i]; g.Want == f.Want && g.Line < f.Line && g.Line+20 > f.Line {
				g.Nonfatal = true
			}
		}
	}
}

// all are the facts of these kinds that were kept, by line.
func (e *evidence) all(kinds ...Kind) []Fact {
	var all []Fact
	for _, k := range kinds {
		if kept := e.facts[k]; kept != nil {
			all = append(append(all, kept.first...), kept.last...)
		}
	}
	if len(kinds) > 1 {
		slices.SortStableFunc(all, func(a, b Fact) int { return cmp.Compare(a.Line, b.Line) })
	}
	return all
}

// pick is the last fact of a kind for which ok holds.
func (e *evidence) pick(kind Kind, ok func(*Fact) bool) *Fact {
	all := e.all(kind)
	for i := len(all) - 1; i >= 0; i-- {
		if ok == nil || ok(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// first is the first fact of a kind for which ok holds.
func (e *evidence) first(kind Kind, ok func(*Fact) bool) *Fact {
	for _, f := range e.all(kind) {
		if ok == nil || ok(&f) {
			return &f
		}
	}
	return nil
}

func (e *evidence) has(kinds ...Kind) bool {
	return slices.ContainsFunc(kinds, func(k Kind) bool { return e.facts[k] != nil })
}

// refusals are kinds that say that GPU memory was refused, unless they are marked
// otherwise.
var refusals = []Kind{XLARefused, XLADevice, DeviceRefused, VMMRefused, BFCRefused, TFOOM, TFCopy, TorchOOM, CuPyOOM, RMMOOM, LlamaOOM, VLLMCache, VLLMFree}

// failures are refusals, and what may be one behind another text.
var failures = append([]Kind{CuDNNHandle, CuDNNCall, CuDNNConv, CuBLASHandle, CuBLASCall, CuSolver, CuSparse, CuFFT, CUBIN, NCCL, Graph, Context, Limiter}, refusals...)

// fails says whether one of these kinds occurs and is no warning.
func (e *evidence) fails(kinds ...Kind) bool {
	for _, k := range kinds {
		if e.pick(k, func(f *Fact) bool { return !f.Nonfatal && !(k == CUDAError && !isOOM(f.Code+f.Value)) }) != nil {
			return true
		}
	}
	return false
}

// isOOM says whether a status or its text means that memory was refused.
func isOOM(code string) bool {
	return strings.Contains(code, "OUT_OF_MEMORY") || strings.Contains(code, "MemoryAllocation") || strings.Contains(code, "out of memory") || strings.Contains(code, "ALLOC_FAILED") ||
		strings.Contains(code, "resource allocation failed")
}

// Frameworks.

// framework says whether the failing program uses one: jax, tensorflow, torch, ...
func (e *evidence) framework(name string) bool {
	if e.state != nil && e.state.Process != nil {
		for _, f := range e.state.Process.Frameworks {
			if f = strings.ToLower(f); f == name || f == "pytorch" && name == "torch" || f == "jaxlib" && name == "jax" {
				return true
			}
		}
		if len(e.state.Process.Frameworks) > 0 {
			return false // told, and it is not among them
		}
	}
	return e.spoken(name) != nil
}

// spoken is the line in which the log shows a framework, and nil.
func (e *evidence) spoken(name string) *Fact {
	is := func(f *Fact) bool {
		return f.Framework == name || name == "jax" && (f.Framework == "jaxlib" || f.Framework == "flax")
	}
	if f := e.first(Loaded, is); f != nil {
		return f
	}
	switch name {
	case "tensorflow":
		for _, k := range []Kind{TFDevice, TFOOM, TFCopy, GarbageCollection} {
			if f := e.first(k, nil); f != nil {
				return f
			}
		}
	case "torch":
		for _, k := range []Kind{TorchOOM, VLLMFree, VLLMCache, VLLMMemory, Doing} {
			if f := e.first(k, nil); f != nil {
				return f
			}
		}
		for _, k := range []Kind{CuBLASHandle, CUDAError} {
			if f := e.first(k, is); f != nil {
				return f
			}
		}
		return e.first(NCCL, func(f *Fact) bool {
			return strings.Contains(f.Text, "ProcessGroupNCCL") || strings.Contains(f.Text, "torch.")
		})
	case "jax":
		for _, k := range []Kind{CuSolver, Preallocating, Backend} {
			if f := e.first(k, nil); f != nil && (f.Framework == "jax" || k != Backend) {
				return f
			}
		}
		return e.first(PoolStats, is)
	}
	return e.first(Version, func(f *Fact) bool { return f.Name == name })
}

// frameworksTold says whether the state lists the program's frameworks.
func (e *evidence) frameworksTold() bool {
	return e.state != nil && e.state.Process != nil && len(e.state.Process.Frameworks) > 0
}

// jaxAndTF gives the readings that show both in one process, or nil.
func (e *evidence) jaxAndTF() []Evidence {
	if e.frameworksTold() {
		if e.framework("jax") && e.framework("tensorflow") {
			return []Evidence{{Text: "process.frameworks: " + strings.Join(e.state.Process.Frameworks, ", "), Reading: "both are loaded in the process"}}
		}
		return nil
	}
	jax := e.spoken("jax")
	tf := e.first(TFDevice, nil)
	if jax == nil || tf == nil || jax.From != tf.From {
		return nil
	}
	reading := "TensorFlow made its own device in the program that fails in JAX"
	if tf.Tells(HasLimit) {
		reading = "TensorFlow takes up to " + human(tf.Limit) + " for itself, in the program that fails in JAX"
	}
	return []Evidence{quote(tf, reading), quote(jax, "a line of JAX")}
}

// version is what is known of the release of a framework; empty: nothing.
func (e *evidence) version(name string) string {
	if e.state != nil && e.state.Process != nil {
		for _, n := range []string{name, name + "lib"} {
			if v := e.state.Process.Versions[n]; v != "" {
				return v
			}
		}
	}
	for _, n := range []string{name + "lib", name} {
		if f := e.first(Version, func(f *Fact) bool { return f.Name == n }); f != nil {
			return f.Version
		}
	}
	return ""
}

// The GPU.

// ordinal is the GPU that the failure is about, and -1.
func (e *evidence) ordinal() int {
	n := -1
	for _, f := range e.all(failures...) {
		if f.Device >= 0 && !f.Nonfatal {
			n = f.Device
		}
	}
	return n
}

// gpu is what the state tells of it, and nil.
func (e *evidence) gpu() *machine.Device { return e.state.Device(e.ordinal()) }

// A sized is a size and the line it is from.
type sized struct {
	bytes uint64
	from  Evidence
}

// saneTotal is no GPU's memory or more: what a driver that is out of memory
// reports may be anything.
const saneTotal = 1 << 42

// total is the memory of the GPU in bytes, 0 if it is not told. What the state
// says goes before what the log says.
func (e *evidence) total() sized {
	if d := e.gpu(); d != nil && d.Total > 0 {
		return sized{d.Total, Evidence{Text: "devices.total_bytes: " + strconv.FormatUint(d.Total, 10), Reading: "the GPU has " + human(d.Total)}}
	}
	for _, k := range []Kind{TorchOOM, DeviceFree, VLLMFree, VLLMMemory, SmiMemory, LlamaMemory, RMMDevice, Limiter} {
		if f := e.pick(k, func(f *Fact) bool { return f.Tells(HasTotal) && f.Total > 0 && f.Total < saneTotal }); f != nil {
			return sized{f.Total, quote(f, "the GPU has "+human(f.Total))}
		}
	}
	// A context that fails reports the total, which is nonsense on some drivers.
	if f := e.pick(Context, func(f *Fact) bool { return f.Tells(HasTotal) && f.Total > 0 && f.Total < saneTotal }); f != nil {
		return sized{f.Total, quote(f, "the GPU has "+human(f.Total))}
	}
	for _, k := range []Kind{TFDevice, DeviceName, SmiGPU, LlamaMemory} {
		f := e.pick(k, func(f *Fact) bool { least, most, ok := cardTotals(f.Name); return ok && most-least <= most/50 })
		if f != nil {
			least, _, _ := cardTotals(f.Name)
			return sized{least, quote(f, "a GPU of this name has "+human(least))}
		}
	}
	return sized{}
}

// free is what was free when the program failed, by the last reading of the
// driver, with the total beside it.
func (e *evidence) free() *Fact {
	return e.pick(DeviceFree, func(f *Fact) bool { return f.Tells(HasFree|HasTotal) && f.Total > 0 })
}

// holders are the processes on the GPU that the state or a pasted nvidia-smi
// table lists. told is false where nothing lists them.
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
	for _, f := range e.all(SmiProcess) {
		if n >= 0 && f.Device >= 0 && f.Device != n || slices.ContainsFunc(list, func(h holder) bool { return h.PID == f.PID }) {
			continue
		}
		kind := ""
		if f.Value == "G" {
			kind = "graphics"
		}
		list = append(list, holder{PID: f.PID, Name: f.Name, Kind: kind, Used: f.InUse, from: quote(&f, "")})
	}
	return list, len(list) > 0
}

// A holder is a process on the GPU, with the line that names it.
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

// isJAX says whether the process looks like a JAX that preallocated: it says
// so, or it is a Python with a default pool and a context.
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

func (h holder) isDesktop() bool {
	if h.Kind == "graphics" {
		return true
	}
	name := strings.ToLower(h.Name)
	return strings.Contains(name, "xorg") || strings.Contains(name, "gnome-shell") || strings.Contains(name, "xwayland") || strings.Contains(name, "kwin") || strings.Contains(name, "firefox") || strings.Contains(name, "chrome")
}

// others are the processes on the GPU but the program that failed. told is
// false where nothing lists them.
//
// Which one is the program itself is told by its pid or, else, by arithmetic: PyTorch's
// message says what it holds; and where the list accounts for all that was in use at the failure, the
// program is in the list, for it had a context at least. A program
// that could not even make a context is not in it.
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
		for _, f := range e.all(failures...) {
			if f.PID == h.PID && f.PID > 1 && f.From != "" {
				return i
			}
		}
	}
	if e.fails(Context) {
		return -1
	}
	if m := e.torch(); m != nil && m.reserved > 0 {
		best, at := uint64(math.MaxUint64), -1
		for i, h := range list {
			if h.Used+mib >= m.reserved && h.Used-min(h.Used, m.reserved) < best && !h.isDesktop() {
				best, at = h.Used-min(h.Used, m.reserved), i
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
	if f := e.free(); f != nil && sum > 0 {
		used := f.Total - min(f.Free, f.Total)
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

// PyTorch's message.

// A torchState is what PyTorch's message tells, in bytes.
type torchState struct {
	fact                             Fact
	want, total, free                uint64
	allocated, unallocated, reserved uint64
	cap                              uint64   // 0: none told
	sizes, use                       bool     // the device's, PyTorch's are told
	async                            bool     // of the driver's pool: what is reserved is not told
	this, others                     uint64   // held by this process, and by all others
	listed                           bool     // the message lists processes
	othersFrom                       []string // "process 812: 4 GiB"
}

// slack is free memory that PyTorch can be refused with: the driver gives whole
// pages, and the reading is a moment younger than the refusal.
const slack = 64 * mib

// enough says whether the GPU had what was asked for.
func (m *torchState) enough() bool { return m.sizes && m.free >= m.want+slack }

// lacking is what the GPU had too little, in bytes.
func (m *torchState) lacking() uint64 { return m.want - min(m.want, m.free) }

// torch is PyTorch's last message, and nil.
func (e *evidence) torch() *torchState {
	f := e.pick(TorchOOM, func(f *Fact) bool { return f.Tells(HasWant) })
	if f == nil {
		return nil
	}
	if f.Name == "async" {
		return e.torchAsync(f)
	}
	m := &torchState{fact: *f, want: f.Want, total: f.Total, free: f.Free, allocated: f.Allocated, cap: f.Limit,
		sizes: f.Tells(HasTotal | HasFree), use: f.Tells(HasAllocated)}
	if !m.sizes {
		if d := e.first(TorchOOM, func(g *Fact) bool { return g.Name == "device" && g.Line >= f.Line }); d != nil {
			m.total, m.free, m.sizes = d.Total, d.Free, true
		}
	}
	reserved := f.Reserved
	if !m.use {
		if u := e.first(TorchOOM, func(g *Fact) bool { return g.Name == "use" && g.Line >= f.Line }); u != nil {
			m.allocated, reserved, m.use = u.Allocated, u.Reserved, true
		}
	}
	if m.use {
		if old := strings.Contains(f.Text, "total capacity;"); old {
			m.reserved = max(reserved, m.allocated)
			m.unallocated = m.reserved - m.allocated
		} else {
			m.unallocated = reserved
			m.reserved = m.allocated + reserved
		}
	}
	var listed []Fact
	for _, p := range e.all(TorchProcess) {
		if p.Line != f.Line && (p.Line < f.Line || p.Line > f.Line+6) {
			continue
		}
		if p.Name == "this" {
			m.this = p.InUse
			continue
		}
		if !slices.ContainsFunc(listed, func(g Fact) bool { return g.PID == p.PID }) {
			listed = append(listed, p)
		}
	}
	m.listed = len(listed) > 0 || m.this > 0
	if m.this == 0 && m.use {
		// The newer releases list this process as any other. It is the one that
		// holds what PyTorch reserved and least beside that.
		at := -1
		for i, p := range listed {
			if p.InUse+p.InUse/200+mib >= m.reserved && (at < 0 || p.InUse < listed[at].InUse) {
				at = i
			}
		}
		if at >= 0 {
			m.this = listed[at].InUse
			listed = slices.Delete(listed, at, at+1)
		}
	}
	for _, p := range listed {
		m.others += p.InUse
		if len(m.othersFrom) < 8 {
			m.othersFrom = append(m.othersFrom, fmt.Sprintf("process %d: %s", p.PID, human(p.InUse)))
		}
	}
	return m
}

// torchAsync is the message of the backend cudaMallocAsync, which has a figure in a
// line. What its pool reserves is not told.
func (e *evidence) torchAsync(f *Fact) *torchState {
	m := &torchState{fact: *f, want: f.Want, async: true}
	for _, g := range e.all(TorchOOM) {
		if g.Name != "async" || g.Line+4 < f.Line || g.Line > f.Line+4 {
			continue
		}
		if g.Tells(HasAllocated) {
			m.allocated, m.use = g.Allocated, true
		}
		if g.Tells(HasTotal) {
			m.total = g.Total
		}
		if g.Tells(HasFree) {
			m.free, m.sizes = g.Free, m.total > 0
		}
	}
	m.reserved = m.allocated
	return m
}

// The pool.

// A poolState is what is told of XLA's or TensorFlow's pool when it refused, in bytes.
type poolState struct {
	refused *Fact // the refusal that counts
	want    uint64
	limit   sized // the most it may take
	size    sized // what it has taken
	inUse   sized
	largest sized // free block
}

// pool is the state of the pool at the last refusal, and nil if none refused.
func (e *evidence) pool() *poolState {
	f := e.pick(BFCRefused, func(f *Fact) bool { return f.Tells(HasWant) && !isHost(f.Allocator) })
	if x := e.pick(XLARefused, func(f *Fact) bool { return f.Tells(HasWant) }); f == nil && x != nil {
		f = x
	}
	p := &poolState{refused: f}
	if f != nil {
		p.want = f.Want
	}
	if f == nil {
		if f = e.pick(TFOOM, func(f *Fact) bool { return !isHost(f.Allocator) }); f == nil {
			return nil
		}
		p.refused = f
		p.want = tensorBytes(f)
	}
	set := func(s *sized, f *Fact, bytes uint64, what string) {
		if bytes > 0 || what == "in use" {
			*s = sized{bytes, quote(f, human(bytes)+" "+what)}
		}
	}
	for _, f := range e.all(PoolStats) {
		switch f.Name {
		case "Limit", "bytes_limit":
			set(&p.limit, &f, f.Limit, "is the pool's limit")
		case "InUse", "bytes_in_use":
			set(&p.inUse, &f, f.InUse, "in use")
		case "Sum Total":
			if p.inUse.bytes == 0 {
				set(&p.inUse, &f, f.InUse, "in use")
			}
		case "Reserved", "pool_bytes":
			set(&p.size, &f, f.Reserved, "taken from the GPU")
		case "LargestFreeBlock", "largest_free_block_bytes":
			set(&p.largest, &f, f.LargestFree, "is the largest free block")
		}
	}
	if s := e.pick(PoolSummary, nil); s != nil {
		if s.Tells(HasLimit) && p.limit.bytes == 0 {
			set(&p.limit, s, s.Limit, "is the pool's limit")
		}
		if s.Tells(HasTotal) && p.size.bytes == 0 {
			set(&p.size, s, s.Total, "taken from the GPU")
		}
		if s.Tells(HasLargestFree) {
			set(&p.largest, s, s.LargestFree, "is the largest free block")
		}
	}
	if d := e.dump; d != nil && d.Complete {
		at := Evidence{Line: d.Line, Text: "the pool's report"}
		p.size, p.inUse = sized{d.Pool, at}, sized{d.InUse, at}
		p.largest = sized{d.LargestFree, at}
		p.size.from.Reading, p.inUse.from.Reading = human(d.Pool)+" taken from the GPU", human(d.InUse)+" in use"
		p.largest.from.Reading = human(d.LargestFree) + " is the largest free chunk"
		if p.limit.bytes == 0 && d.Limit > 0 {
			p.limit = sized{d.Limit, at}
			p.limit.from.Reading = human(d.Limit) + " is the pool's limit"
		}
	}
	return p
}

// isHost says whether a pool's name is that of host memory.
func isHost(allocator string) bool {
	a := strings.ToLower(allocator)
	return strings.Contains(a, "host") || strings.HasPrefix(a, "cpu") || a == "mklcpu"
}

// widths are the bytes of TensorFlow's element types.
var widths = map[string]uint64{"float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
	"int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "resource": 8}

// tensorBytes is the size of the tensor in TensorFlow's message, 0 if it is not
// told. Without a type it is taken for float.
func tensorBytes(f *Fact) uint64 {
	n := uint64(4)
	if _, after, ok := strings.Cut(f.Text, " and type "); ok {
		word, _, _ := strings.Cut(after, " ")
		if n = widths[strings.TrimSuffix(word, "_ref")]; n == 0 {
			return 0
		}
	}
	shape := strings.Trim(f.Value, " []")
	if shape == "" || strings.Contains(shape, "?") {
		return 0
	}
	for _, side := range strings.Split(shape, ",") {
		s, err := strconv.ParseUint(strings.TrimSpace(side), 10, 63)
		if err != nil || s > 0 && n > math.MaxUint64/max(s, 1) {
			return 0
		}
		n *= s
	}
	return n
}

// quote is a fact's line with what it shows.
func quote(f *Fact, reading string) Evidence { return Evidence{f.Line, f.Text, reading} }
