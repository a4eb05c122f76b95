package account

import (
	"cmp"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Refusal is one time that memory was refused, with all that the log says of it. What
// is not told is 0; the has fields report whether free, allocated and others were told.
type Refusal struct {
	St        *statement.Statement
	Layer     statement.Layer
	Device    int
	Mild      bool
	Want      uint64
	wantHigh  uint64
	Free      uint64
	HasFree   bool
	Total     uint64
	LimitTold uint64 // by the message
	Alloc     uint64
	hasAlloc  bool
	kept      uint64 // with what is allocated
	idle      uint64
	hasIdle   bool
	other     uint64 // allocated by others in the process
	programs  uint64 // held by other programs, as far as the message says
	this      uint64 // held by the process
	listed    []listedProcess
	Pinning   bool
	oddFree   bool // what it calls free is more than any GPU has: it fell below zero
	Capture   *statement.Statement
	WentOn    *statement.Statement // the progress after it
	subject   string               // the device or heap that its amounts are of, empty if none is named
	Round     uint64               // how far its sizes are rounded
	roundHole uint64               // how far those are of what was wanted, is free, and is idle
	roundPool uint64               // how far those are of what the pool has and allocated
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

var poolDevice = needle.MustCompile(`(?:GPU|gpu_async|SE|GPU_?collectivememory|CUDA)_?(\d{1,4})\b|GPU:(\d{1,4})\b|GPU (\d{1,4})\b|` +
	`(?:device|Device)(?: ordinal)? (?:cuda:)?(\d{1,4})\b|\[(\d{1,2})\] (?:F|f)ailed|CUDA:(\d{1,2})\b|cuda:(\d{1,2})\b`)

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

// unit is the unit that the refusal's figures are of, where they are those of each bank or heap; or "".
func (r *Refusal) unit() string {
	if strings.HasPrefix(r.subject, "each ") {
		return r.subject
	}
	return ""
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
func (e *Case) recovered() {
	before := 0 // the last line of progress
	for _, st := range e.Statements() {
		if st.Again {
			e.goesOn(st)
		}
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
				r.Mild, r.WentOn = true, st
			}
		}
	}
	e.survived()
	e.alike()
}

// survived marks exceptions that the program caught: it tried again, was started anew, or went on for two steps, and
// then failed of something else, or ended well. Progress alone shows nothing: what was printed before the exception may
// have been kept back, and come after it.
func (e *Case) survived() {
	end := e.LastError
	another := end != nil && end.Weight() == 3 && !ofOthers.MatchString(end.Text)
	before := 0
	for _, st := range e.Statements() {
		goesOn := st.Again || st.Topic("restart") != nil
		if st.Topic("success") != nil && !st.Refused {
			goesOn = goesOn || before == st.Line-1
			before = st.Line
		}
		failsLater := another && end.Line > st.Line && end.From == st.From
		if !goesOn || !failsLater && !endedWell.MatchString(e.End) {
			continue
		}
		for _, r := range e.Failed {
			near := r.St.Line+nearby >= st.Line || !st.Again
			if r.St.Line < st.Line && near && r.St.From == st.From && r.St.Level != "F" {
				r.Mild, r.WentOn = true, st
			}
		}
	}
}

// ofOthers is what other ranks say when one has failed.
var ofOthers = needle.MustCompile(`(?i)nccl|collective|watchdog|broken pipe|connection (?:reset|closed|refused)`)

// endedWell is the last line of a program that came to its end.
var endedWell = needle.MustCompile(`(?i)\b(?:training|run|job|all|evaluation) (?:is |has )?(?:completed?|finished|done)\b|\bexit(?:ed)?(?: with)?(?: code| status)? 0\b`)

// alike marks refusals that say what another said after which the program went on.
func (e *Case) alike() {
	survived := map[string]*statement.Statement{}
	for _, r := range e.Failed {
		if r.WentOn != nil {
			survived[figures.ReplaceAllString(r.St.Text, "0")] = r.WentOn
		}
	}
	for _, r := range e.Failed {
		if st := survived[figures.ReplaceAllString(r.St.Text, "0")]; st != nil && !exception.MatchString(r.St.Text) {
			r.Mild, r.WentOn = true, st
		}
	}
}

var figures = regexp.MustCompile(`[0-9a-f]*\d[0-9a-f]*`)

// goesOn marks the refusals right before a line that says that the program tries again, or with
// something else.
func (e *Case) goesOn(st *statement.Statement) {
	for _, r := range e.Failed {
		if r.St.Line < st.Line && r.St.Line+nearby >= st.Line && r.St.From == st.From && !exception.MatchString(r.St.Text) {
			r.Mild, r.WentOn = true, st
		}
	}
}

var exception = needle.MustCompile(`\w(?:Error|Exception|bad_alloc)\b|terminate called|panic:|\(RuntimeError\)`)

// autotuned marks refusals while algorithms are compared: another is taken.
func (e *Case) autotuned() {
	if e.About("picker") == nil {
		return
	}
	var lines []int
	for _, st := range e.Statements() {
		if st.Topic("picker") != nil {
			lines = append(lines, st.Line)
		}
	}
	for _, r := range e.Failed {
		if r.St.Topic("picker") != nil {
			r.Mild = true
			continue
		}
		if r.Layer == statement.LayerDriver && slices.ContainsFunc(lines,
			func(n int) bool { return n+20 > r.St.Line && r.St.Line+20 > n }) {
			r.Mild = true
		}
	}
}

// Last is the last refusal for which ok holds, and nil.
func (e *Case) Last(ok func(*Refusal) bool) *Refusal {
	for _, r := range slices.Backward(e.Failed) {
		if ok(r) {
			return r
		}
	}
	return nil
}

// ContextRefused is the last line that no context could be made for lack of memory.
func (e *Case) ContextRefused() *Refusal {
	return e.Last(func(r *Refusal) bool { return r.Layer == statement.LayerContext })
}

// Fatal reports whether memory of the GPU was refused and that was no warning.
func (e *Case) Fatal() bool {
	return e.Last(func(r *Refusal) bool { return !r.Mild && r.Layer != statement.LayerHost }) != nil
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
		if i := slices.IndexFunc(out,
			func(o statement.Evidence) bool { return o.Line == e.Line && o.Text == e.Text }); i >= 0 {
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
var widths = map[string]uint64{"float": 4, "float32": 4, "double": 8, "float64": 8, "half": 2, "float16": 2,
	"bfloat16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
	"int16": 2, "uint16": 2, "int8": 1, "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16, "resource": 8}

var tensorShape = needle.MustCompile(`shape ?\[([\d, ]+)\](?: and type (\w+?)(?:_ref)?\b)?`)

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

// Ranks are processes that the message lists with nearly the same size, three of them at least, and
// that size: the ranks of one job look so. It is 0 where there are none.
func (r *Refusal) Ranks() (n int, each uint64) {
	list := r.listed
	if r.this > 0 {
		list = append(slices.Clone(list), listedProcess{used: r.this})
	}
	for _, p := range list {
		alike := 0
		for _, q := range list {
			if q.used <= p.used+p.used/50+8*statement.Mib && p.used <= q.used+q.used/50+8*statement.Mib {
				alike++
			}
		}
		if alike > n {
			n, each = alike, p.used
		}
	}
	if n < 3 || each == 0 {
		return 0, 0
	}
	return n, each
}

// RefusedTensor is the last tensor that was refused, by its shape.
func (e *Case) RefusedTensor() (t Sized) {
	for _, r := range e.Failed {
		if bytes := tensorBytes(r.St.Text); bytes > 0 && !r.Mild && r.Want == bytes && r.Layer != statement.LayerHost {
			t = Sized{bytes, r.St.Quoted("")}
		}
	}
	return t
}

// Warned reports whether a line of memory says itself that the program goes on.
func (e *Case) Warned() bool {
	return slices.ContainsFunc(e.Statements(), func(st *statement.Statement) bool {
		return st.Mild && (st.Refused || st.HasAny("memory", "vram", "oom", "alloc"))
	})
}
