package account

// How the refusals of a log are gathered: the statement that says so, and what the lines around it
// add.

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
)

// nearby is how many lines behind a refusal what belongs to it may stand.
const nearby = 8

// gather makes the refusals of the statements.
func (e *Case) gather() {
	all := e.Statements()
	for i, st := range all {
		if st.Refused && ofDevice(st.Layer) && afterNCCL(all[:i], st) {
			st.Layer = statement.LayerNCCL
		}
	}
	for i, st := range all {
		if refuses(st) {
			e.Failed = append(e.Failed, refusalAt(all, i))
		}
	}
	e.captures()
	for _, r := range e.Failed {
		if e.Live != nil && !r.hasAlloc && r.Layer != statement.LayerHost {
			r.Alloc = e.Live(r.Device)
			r.hasAlloc = r.Alloc > 0
		}
		if r.St.Topic("tpu") == nil { // whose numbers are what the compiler planned
			r.believe(cmp.Or(r.Total, e.Total().Bytes))
		}
	}
	e.autotuned()
	e.recovered()
}

// captures gives the refusals of an engine that captures graphs the line that says so.
func (e *Case) captures() {
	st := e.About("capture")
	if st == nil || st.Words["finished"] || !e.Uses("vllm", "sglang") {
		return
	}
	for _, r := range e.Failed {
		if r.Capture == nil && r.Want > 0 {
			r.Capture = st
		}
	}
}

// ofDevice reports whether the driver or a pool refused.
func ofDevice(l statement.Layer) bool {
	return l == statement.LayerDriver || l == statement.LayerPool
}

// afterNCCL reports whether a line of NCCL's stands right before a refusal: its own line names the
// size, and the one before it NCCL.
func afterNCCL(all []*statement.Statement, st *statement.Statement) bool {
	for _, before := range slices.Backward(all) {
		if before.Line+5 < st.Line {
			return false
		}
		if before.Layer == statement.LayerNCCL && before.From == st.From && before.HasAny("failed", "error", "unhandled") {
			return true
		}
	}
	return false
}

// refuses reports whether a statement is a refusal of its own, and not a hint, a warning of the
// compiler's, or the end of a process.
func refuses(st *statement.Statement) bool {
	switch {
	case !st.Refused, st.Advice && len(st.Amounts) == 0, st.Topic("exceeds") != nil:
		return false
	case st.Topic("remat") != nil && st.Layer != statement.LayerNCCL:
		return false
	case st.Topic("killed") != nil:
		return st.Amount(statement.RoleWant) != nil && !st.HasAny("evicted", "threshold", "kubelet")
	}
	return true
}

// refusalAt is the refusal of a statement, with what stands around it.
func refusalAt(all []*statement.Statement, i int) *Refusal {
	st := all[i]
	r := &Refusal{St: st, Layer: st.Layer, Device: DeviceOf(st.Text), Mild: st.Mild}
	if ofDevice(r.Layer) && len(st.Amounts) == 0 && makesContext(all, i) {
		r.Layer = statement.LayerContext
	}
	r.take(st)
	for _, next := range all[i+1 : min(len(all), i+1+4*nearby)] {
		if next.Line > st.Line+nearby || r.endsAt(next) {
			break
		}
		if r.goesWith(next) {
			r.take(next)
		}
	}
	if r.Want == 0 {
		r.Want = tensorBytes(st.Text)
		r.wantHigh = r.Want
	}
	if i > 0 && r.Want == 0 && r.Total == 0 && asksFor(all[i-1], st) {
		r.take(all[i-1])
	}
	r.before(all[:i])
	r.Pinning = r.Pinning || hostCall(st, all[i:])
	return r
}

// endsAt reports whether another refusal begins with a statement, so that what follows is its own.
func (r *Refusal) endsAt(next *statement.Statement) bool {
	asks := next.From == r.St.From && next.Refused && next.Amount(statement.RoleWant) != nil
	return asks && (r.Want > 0 || next.Line > r.St.Line+2)
}

// goesWith reports whether the figures of a statement behind a refusal belong to it, and not to a
// report, a list of heaps or of chunks, a library, or what a compiler planned.
func (r *Refusal) goesWith(next *statement.Statement) bool {
	switch {
	case next.From != r.St.From, next.Report, next.Library != "", len(next.Amounts) == 0:
		return false
	case next.HasAny("chunk", "chunks"), next.Topic("announced", "remat", "collection") != nil:
		return false
	case next.Words["allocation"] && next.HasAny("parameter", "constant", "live", "temp", "total"):
		return false
	}
	return r.subject != "" || !strings.HasPrefix(next.Amounts[0].Subject, "heap ")
}

// before looks for what the program did when memory was refused: it captured graphs, or pinned
// memory of the host.
func (r *Refusal) before(all []*statement.Statement) {
	for _, st := range slices.Backward(all[max(0, len(all)-100):]) {
		if st.Line < r.St.Line-60 {
			break
		}
		if st.From != r.St.From {
			continue
		}
		if st.Topic("capture") != nil && r.Capture == nil && !st.Words["finished"] {
			r.Capture = st
		}
		r.Pinning = r.Pinning || st.Topic("pinning") != nil
	}
	if r.St.Topic("capture") != nil {
		r.Capture = r.St
	}
}

// hostCall reports whether the call that was refused is one that gets, or pins, memory of the host:
// a program prints it with the status, or right after it.
func hostCall(st *statement.Statement, from []*statement.Statement) bool {
	for _, next := range from[:min(len(from), 3)] {
		if next.From == st.From && next.Line <= st.Line+1 && next.Topic("pinning") != nil {
			return true
		}
	}
	return false
}

// asksFor reports whether the line right before a refusal says how much is asked for.
func asksFor(before, st *statement.Statement) bool {
	return before.Line == st.Line-1 && !before.Refused && before.Library == "" && before.Amount(statement.RoleWant) != nil &&
		len(before.Amounts) == 1
}

// contextCall is a call that makes a context and takes no memory besides.
var contextCall = needle.MustCompile(`\bset_device\(|\bcudaSetDevice\b|\bcudaFree\(0\)|torch\._C\._cuda_init|\bcuda\.init\(|_lazy_init\(`)

// makesContext reports whether the stack beside a line without a size is that of a context that
// is made.
func makesContext(all []*statement.Statement, i int) bool {
	for _, next := range all[max(0, i-2*nearby):min(len(all), i+2*nearby)] {
		if st := all[i]; next.From != st.From || next.Line > st.Line+nearby || next.Line+nearby < st.Line {
			continue
		}
		if next.Words["ctx"] && next.HasAny("create", "retain") || contextCall.MatchString(next.Text) {
			return true
		}
	}
	return false
}

// take adds what a statement says to a refusal, where it says something new.
func (r *Refusal) take(st *statement.Statement) {
	used, unit := false, ""
	for _, a := range st.Amounts {
		if strings.HasPrefix(a.Subject, "each ") {
			unit = a.Subject // each bank, each heap: its own figures are compared, and not those of all
		}
	}
	for i := range st.Amounts {
		if a := &st.Amounts[i]; a.Role == statement.RoleFree && a.N >= saneTotal {
			r.oddFree = true
		}
		if !r.concerns(st, i, unit) {
			continue
		}
		used = true
		a := &st.Amounts[i]
		r.subject = cmp.Or(r.subject, a.Subject)
		switch {
		case a.Role == statement.RoleAlloc || a.Role == statement.RoleUse:
			r.takeUse(st, i)
		case a.Role == statement.RoleTotal && st.Words["cupy"]: // what its pool has
			r.Alloc, r.hasAlloc = a.N, true
		default:
			r.takeFigure(st, i)
		}
		r.addRounding(st, i)
	}
	if used && r.Device < 0 {
		r.Device = DeviceOf(st.Text)
	}
}

// addRounding adds how far a figure is rounded.
func (r *Refusal) addRounding(st *statement.Statement, i int) {
	a := &st.Amounts[i]
	by := Less(a.High, a.N)
	r.Round += by
	switch a.Role {
	case statement.RoleWant, statement.RoleFree, statement.RoleIdle:
		r.roundHole += by
	case statement.RoleKept, statement.RoleAlloc, statement.RoleUse:
		r.roundPool += by
	}
}

// concerns reports whether an amount is of what the refusal is of: its device or heap, the GPU and
// not a part of a pool, and a size at all.
func (r *Refusal) concerns(st *statement.Statement, i int, unit string) bool {
	a := &st.Amounts[i]
	want := a.Role == statement.RoleWant
	switch {
	case a.Initial, unit != "" && a.Subject != unit:
		return false
	case r.Device >= 0 && strings.HasPrefix(a.Subject, "gpu ") && a.Subject != "gpu "+strconv.Itoa(r.Device):
		return false // of another GPU
	case !want && (a.Private || a.Cache && r.Layer != statement.LayerEngine):
		return false
	case !want && a.Role != statement.RoleTotal && a.N >= saneTotal:
		return false
	}
	return a.Subject == "" || r.subject == "" || a.Subject == r.subject
}

// fill sets a figure that is not told yet.
func fill(at *uint64, n uint64) { *at = cmp.Or(*at, n) }

// takeFigure takes a figure other than what somebody holds.
func (r *Refusal) takeFigure(st *statement.Statement, i int) {
	switch a := &st.Amounts[i]; a.Role {
	case statement.RoleWant:
		if r.Want == 0 {
			r.Want, r.wantHigh = a.N, max(a.High, a.N)
		}
	case statement.RoleFree:
		if !r.HasFree && !a.Pool {
			r.Free, r.HasFree = a.N, true
		}
	case statement.RoleTotal:
		fill(&r.Total, a.N)
	case statement.RoleLimit:
		fill(&r.LimitTold, a.N)
	case statement.RoleKept:
		fill(&r.kept, a.N)
	case statement.RoleIdle:
		if !r.hasIdle {
			r.idle, r.hasIdle = a.N, true
		}
	}
}

// takeUse takes what somebody holds: a process, this one, others, a pool.
func (r *Refusal) takeUse(st *statement.Statement, i int) {
	a, behind := &st.Amounts[i], st.Amounts[i+1:]
	ofGPU := a.Pair && !a.Pool && !a.Torch && len(behind) > 0 && behind[0].Role == statement.RoleTotal // 7.5 GiB/7.8 GiB
	switch {
	case a.Pid > 0:
		if !slices.ContainsFunc(r.listed, func(p listedProcess) bool { return p.pid == a.Pid }) {
			r.listed = append(r.listed, listedProcess{a.Pid, a.N})
		}
	case a.This:
		fill(&r.this, a.N)
	case a.Programs:
		r.programs += a.N
	case ofGPU && behind[0].N < a.N:
		r.Alloc, r.hasAlloc = a.N, true
	case ofGPU:
		if !r.HasFree {
			r.Free, r.HasFree = behind[0].N-a.N, true
		}
	case a.Other:
		r.other += a.N
	case !r.hasAlloc:
		r.Alloc, r.hasAlloc = a.N, true
	}
}
