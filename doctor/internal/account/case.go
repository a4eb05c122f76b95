package account

import (
	"cmp"
	"fmt"
	"gpumem/doctor/internal/inventory"
	"gpumem/doctor/internal/needle"
	"gpumem/doctor/internal/statement"
	"gpumem/node/machine"
	"gpumem/record/dump"
	"gpumem/size"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The case: the statements and facts of a log, and the state of the machine.

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
	N                    int // readings
	rises                int
	Low, High, lastValue uint64
	leastStep, mostStep  uint64 // between readings that rise
	Bare                 bool   // without a unit: in thousandths
	First, Last          statement.Evidence
}

// A Case is a log and a state, read. It is not safe for concurrent use.
type Case struct {
	statements kept[*statement.Statement]
	all        []*statement.Statement // of statements, once the log is read
	factsOf    map[string]*kept[statement.Fact]
	Marks      map[string]statement.Evidence // the first line that shows a framework
	series     map[string]*series
	state      *machine.Snapshot
	Dump       *dump.Dump
	Program    *dump.Program
	Live       func(gpu int) uint64 // bytes that were live on a GPU, by what was taken beside the log
	LiveSource string
	Env        map[string]string             // of the program that failed, as far as known
	envFrom    map[string]statement.Evidence // where the log shows it
	Place      Place
	Failed     []*Refusal           // in the order of the log
	Sticky     *statement.Statement // the first error after which every later call fails, and nil
	LastError  *statement.Statement // the last line that looks like a failure of any kind, and nil
	lastWeight int                  // of it, when it was read
	End        string               // what the log ends with

	// What follows from them, nil if there is nothing of the kind.
	Shortfall *Shortfall
	Library   *Library // a library that could not start, or do its work
	Driver    *Driver
	Engine    *Engine
	Plan      *Plan
	Pool      *Pool
	Compiled  *Compiled // never nil

	Inventory *inventory.Reader // where the memory is, whether or not it was refused; nil without a log

	Said bool // some line may speak of refused memory
}

// New returns the facts of a state alone; nil is none.
func New(state *machine.Snapshot) *Case {
	e := &Case{factsOf: map[string]*kept[statement.Fact]{}, Marks: map[string]statement.Evidence{},
		series: map[string]*series{}, state: state, Env: map[string]string{}, envFrom: map[string]statement.Evidence{}}
	if state != nil && state.Process != nil {
		for name, value := range state.Process.Env {
			e.Env[name] = value
		}
	}
	return e
}

// maxSeries bounds the figures that are followed.
const maxSeries = 100

// useful reports whether a statement is of use to a rule, and not only to the readers in Add.
func useful(st *statement.Statement) bool {
	fails := st.Refused || st.Faint || st.Sticky || st.Again || st.Mild
	subject := st.Advice || st.Library != "" || st.Layer == statement.LayerNCCL || len(st.Topics) > 0 || len(st.Amounts) > 0
	return fails || subject || st.HasAny("ctx", "fragmentation", "dst", "terminated") || contextCall.MatchString(st.Text)
}

// Add adds what a text of the log says.
func (e *Case) Add(st *statement.Statement) {
	e.sticky(st)
	e.Place.see(st)
	if st.Fails() {
		if w := st.Weight(); e.LastError == nil || w >= e.lastWeight {
			e.LastError, e.lastWeight = st, w
		}
	}
	if useful(st) {
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

// sticky keeps the first error after which every later call fails, whoever makes it.
func (e *Case) sticky(st *statement.Statement) {
	if st.Sticky && (e.Sticky == nil || e.Sticky.Topic("other") == nil) && st.Topic("other") != nil {
		e.Sticky = st
	}
}

// followBare adds a reading of the GPU's memory that has no unit.
func (e *Case) followBare(st *statement.Statement) {
	value := bareReading(st)
	if value == 0 {
		return
	}
	key := st.From + "\x00bare"
	s := e.series[key]
	if s == nil {
		s = &series{order: len(e.series), Bare: true}
		e.series[key] = s
	}
	s.add(st.Quoted(""), value)
}

var bareLabel = needle.MustCompile(`(?i)\b(?:current|cur|used|in use|allocated|usage)["']?\s*[:=]\s*(\d{1,3}\.\d{1,3})(?:[,;)\s]|$)`)

// bareReading is such a reading in thousandths, and 0.
func bareReading(st *statement.Statement) uint64 {
	if len(st.Amounts) > 0 || !st.HasAny("memory", "mem", "vram") || !st.HasAny("gpu", "cuda", "device", "vram") {
		return 0
	}
	m := bareLabel.FindStringSubmatch(statement.Clipped64(st.Text))
	if m == nil {
		return 0
	}
	f, _ := strconv.ParseFloat(m[1], 64) // six digits at most
	return uint64(math.Round(1000 * f))
}

func byOrder(a, b *series) int { return cmp.Compare(a.order, b.order) }

// Steady is a figure without a unit that rises by nearly the same at each of six readings or more,
// and nil.
func (e *Case) Steady() *series {
	for _, s := range slices.SortedFunc(maps.Values(e.series), byOrder) {
		if s.Bare && s.N >= 6 && s.rises == s.N-1 && s.mostStep <= 2*s.leastStep && s.High >= s.Low+s.Low/3 {
			return s
		}
	}
	return nil
}

// repeated reports whether a statement's figure is one of memory that a loop may print again:
// with the number of a step, or of a GPU's memory in so many words.
func repeated(st *statement.Statement) bool {
	counters := st.Words["memory"] && st.HasAny("allocated", "reserved")
	return counters || st.HasAny("epoch", "step", "iter", "iteration", "batch", "round", "bytes", "gpu", "cuda")
}

// follow adds a reading of memory in use to its series.
func (e *Case) follow(st *statement.Statement) {
	e.followBare(st)
	if !st.HasAny("epoch", "step", "iter", "iteration", "batch", "round", "reserved", "allocated", "use", "mem") {
		return
	}
	for i := range st.Amounts {
		a := &st.Amounts[i]
		if a.Role != statement.RoleUse && a.Role != statement.RoleAlloc && a.Role != statement.RoleKept || a.N < statement.Mib || a.Host {
			continue
		}
		if !repeated(st) {
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
	if s.N > 0 && v <= s.Low && s.lastValue > s.Low {
		s.N, s.rises = 0, 0 // it begins anew: another run
	}
	s.N++
	if s.N == 1 {
		s.First, s.Low, s.High = at, v, v
	} else if v > s.lastValue {
		step := v - s.lastValue
		if s.rises++; s.rises == 1 {
			s.leastStep, s.mostStep = step, step
		}
		s.leastStep, s.mostStep = min(s.leastStep, step), max(s.mostStep, step)
	}
	s.Low, s.High = min(s.Low, v), max(s.High, v)
	s.Last, s.lastValue = at, v
}

// facts are those of a kind.
func (e *Case) facts(kind string) []statement.Fact {
	if k := e.factsOf[kind]; k != nil {
		return k.all()
	}
	return nil
}

// pick is the last fact of a kind for which ok holds, and nil.
func (e *Case) pick(kind string, ok func(*statement.Fact) bool) *statement.Fact {
	all := e.facts(kind)
	for i := len(all) - 1; i >= 0; i-- {
		if ok == nil || ok(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// About is the last statement with one of these topics, and nil.
func (e *Case) About(ids ...string) *statement.Statement {
	all := e.Statements()
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Topic(ids...) != nil {
			return all[i]
		}
	}
	return nil
}

// Human is a size for people.
func Human(n uint64) string { return size.Format(n) }

// Say is a sentence. It formats as Sprintf does, and a uint64 is a size in bytes: "%v of %v is free".
func Say(format string, args ...any) string {
	for i, a := range args {
		if n, ok := a.(uint64); ok {
			args[i] = Human(n)
		}
	}
	return fmt.Sprintf(format, args...)
}

// percent is a share in whole percent.
func percent(part, whole uint64) int {
	if whole == 0 {
		return 0
	}
	return int(math.Round(100 * float64(part) / float64(whole)))
}

// Less is a - b, 0 at least.
func Less(a, b uint64) uint64 { return a - min(a, b) }

// Statements are those that matter, in the order of the log.
func (e *Case) Statements() []*statement.Statement {
	if e.all == nil {
		return e.statements.all()
	}
	return e.all
}

// conclude makes what follows from the log and the state.
func (e *Case) conclude() {
	e.all = e.statements.all()
	e.gather()
	e.Library = e.library()
	e.Shortfall, e.Driver, e.Engine, e.Plan = e.shortfall(), e.driver(), e.engine(), e.plan()
	e.Pool, e.Compiled = e.pool(), e.compiled()
}

// State is what is known of the machine, and nil.
func (e *Case) State() *machine.Snapshot { return e.state }

// Rising is the first figure in the log that only rises, and nil: an answer must not depend on
// the order of a map.
func (e *Case) Rising() *series {
	for _, s := range slices.SortedFunc(maps.Values(e.series), byOrder) {
		if !s.Bare && s.N >= 5 && s.rises >= s.N-1 && s.High >= s.Low+s.Low/2 && s.High >= 64*statement.Mib {
			return s
		}
	}
	return nil
}

// LiveHere is what was live on the GPU, and the file that says so. It is "" if there is none, or
// if nothing was live any more: that says nothing of the failure.
func (e *Case) LiveHere() (bytes uint64, source string) {
	if e.Live == nil || e.Live(e.ordinal()) == 0 {
		return 0, ""
	}
	return e.Live(e.ordinal()), e.LiveSource
}

// ReportPiece is a line of a pool's report that is cut.
func (e *Case) ReportPiece() statement.Evidence {
	if f := e.pick("chunks", nil); f != nil {
		return f.Quoted("")
	}
	return statement.Evidence{}
}
