// The processes of a run: their files, and one recording of all.
//
// A process leaves in the folder of the run, PID being its number, if it uses a GPU:
//
//	record.PID       the driver's calls, by the pool library
//	whole.PID        beside it, while nothing is lost, with its GPUs and times
//	found.PID.torch  PyTorch's recording, which has requests where the driver sees segments
//	found.PID.open   beside it, and before: there is to be one
//
// and if it is of Python and imports a framework, also without a GPU:
//
//	found.PID        what the start-up file found: the framework, why it ended
//
// All but those of JAX use the simulated GPUs of one file, so that what one holds the others do not
// have. Those of JAX use GPUs of 1 TiB, of a second file. The start-up file writes found.PID when it knows
// the framework and when the process ends, and PyTorch's recording when the process ends and when another
// one is about to end it by a signal. Of one that is ended otherwise the driver's calls are the recording.

package fit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gpumem/device/card"
	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/internal/procstat"
	"gpumem/record/formats"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/torch"
	"gpumem/record/trace"
	"gpumem/size"
)

// ran is a run of the program that has ended.
type ran struct {
	folder    string
	found     string // the names of what the start-up file wrote begin so
	failed    *FailedError
	stopped   bool           // by Config.Stop
	processes []*process     // that used a GPU, in the order of their numbers
	members   []tape.Member  // those, of several
	gone      map[int]uint64 // when they were seen to have ended, however they did, see watchEnds
	lost      bool           // something of a recording is
	uuids     []string       // of the GPUs, in hexadecimal; twice, see cards
}

// process is one process of the program that used a GPU.
type process struct {
	pid        int
	record     string // its recording: PyTorch's if it wrote one
	gpus       []usedGPU
	begin, end uint64 // nanoseconds since 1970: its first GPU, its end; 0 if unknown
	gone       uint64 // its end at the latest, however it ended; 0 if unknown, and after all had agreed to end
	refused    bool   // it was refused a context
	trace      *trace.Trace
	framework  string // "" if it is not known
	name       string // of its own beside its number, such as its rank; "" if there is none
	peak       uint64 // by PyTorch's allocator; 0 if it is not known
	beyond     bool   // it was refused nothing that a GPU of 1 TiB has, see servedBeyond
	segments   bool   // the recording of a PyTorch program is of the driver's calls
}

// usedGPU is a GPU of a process: its number there, and in the program.
type usedGPU struct{ own, number int }

func (r *ran) file(name string) string { return filepath.Join(r.folder, name) }

// cards makes a file with the GPUs of a run, and returns the words that name it.
func (r *ran) cards(cfg Config, name string, total uint64) (string, error) {
	// All features, for the pool that records maps pages.
	one := sim.Config{Total: total, CCMajor: cfg.Sim.CCMajor, CCMinor: cfg.Sim.CCMinor, Name: cfg.Sim.Name}
	if total != largest { // there a program is not refused anything
		one.Used, one.Display, one.Context, one.Beyond = cfg.Sim.Used, cfg.Sim.Display, cfg.Context, largest-min(total, largest)
	}
	if known, err := card.Find(strings.TrimPrefix(cfg.Sim.Name, "sim:")); err == nil {
		one.Name = known.DriverName() // some programs go by it
	}
	list := make([]sim.Config, max(cfg.GPUs, 1))
	for i := range list {
		list[i] = one
	}
	path := r.file(name)
	for i := range list {
		id := open.Spec{Kind: open.Shared, File: path}.UUID(i)
		r.uuids = append(r.uuids, fmt.Sprintf("%x", id[:]))
	}
	return "sim@" + path, sim.CreateFile(path, list...)
}

// close closes the recordings.
func (r *ran) close() {
	for _, p := range r.processes {
		if p.trace != nil {
			_ = p.trace.Close()
		}
	}
}

// find finds the processes that used a GPU.
func (r *ran) find() error {
	files, err := os.ReadDir(r.folder)
	if err != nil {
		return err
	}
	found := map[int]*process{}
	for _, f := range files {
		name, number, _ := strings.Cut(f.Name(), ".")
		number, suffix, _ := strings.Cut(number, ".")
		pid, err := strconv.Atoi(number)
		ofGPU := (name == "record" || name == "whole") && suffix == "" || name == "found" && suffix == "torch"
		if err == nil && ofGPU {
			found[pid] = &process{pid: pid}
		}
	}
	for pid, p := range found {
		if err := r.open(p); err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		r.processes = append(r.processes, p)
	}
	slices.SortFunc(r.processes, func(a, b *process) int { return cmp.Compare(a.pid, b.pid) })
	return nil
}

// open finds the recording of a process, with its GPUs and times.
func (r *ran) open(p *process) error {
	own := fmt.Sprintf("%s.%d", r.found, p.pid)
	calls := r.file(fmt.Sprint("record.", p.pid))
	if p.record = calls; exists(own + ".torch") {
		p.record = own + ".torch"
	}
	p.segments = p.record == calls && exists(own+".open")
	text, err := os.ReadFile(r.file(fmt.Sprint("whole.", p.pid)))
	if errors.Is(err, fs.ErrNotExist) && p.record == calls {
		r.lost = true
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if !p.note(r, line) {
			return fmt.Errorf("whole.%d is damaged: %q is no line of it", p.pid, line)
		}
	}
	p.isGone(r, r.gone[p.pid])
	is, err := readProgram(own)
	p.end, p.peak, p.framework, p.name = cmp.Or(max(p.end, is.end), p.gone), is.peak, is.Framework, is.name
	p.beyond = is.servedBeyond()
	return err
}

// isCut reports whether the recording has the last events alone, and the peak came before them.
func (p *process) isCut() bool {
	if p.trace == nil || p.trace.Format != torch.Format.Name {
		return false
	}
	most := uint64(0)
	for _, pool := range p.trace.Pools {
		most += pool.PeakLive
	}
	return p.peak > most
}

// noteLine is a line of whole.PID, see fit_note in front.c. A time has 19 digits until 2286.
var noteLine = regexp.MustCompile(`^(?:(end|gone|refused)|gpu ([0-9]{1,2}) ([0-9a-f]+)) ([1-9][0-9]{18})\n$`)

// note reads a line of whole.PID. It returns false for what is none.
func (p *process) note(r *ran, line string) bool {
	words := noteLine.FindStringSubmatch(line)
	if words == nil {
		return false
	}
	when, err := strconv.ParseUint(words[4], 10, 64)
	if err != nil {
		return false
	}
	switch words[1] {
	case "end":
		p.end = when
		return true
	case "gone":
		p.isGone(r, when)
		return true
	case "refused":
		p.refused = true
		return true
	}
	own, _ := strconv.Atoi(words[2]) // two digits at most
	number := slices.Index(r.uuids, words[3])
	if number < 0 {
		return true // none of the run's
	}
	if p.begin == 0 {
		p.begin = when
	}
	if used := (usedGPU{own, number % (len(r.uuids) / 2)}); !slices.Contains(p.gpus, used) {
		p.gpus = append(p.gpus, used)
	}
	return true
}

// isGone notes that the process was seen to have ended. One that has agreed to end would have gone on.
func (p *process) isGone(r *ran, when uint64) {
	is, err := os.Stat(r.found + ".stop")
	if when == 0 || err == nil && when >= uint64(is.ModTime().UnixNano()) {
		return
	}
	p.gone = min(when, cmp.Or(p.gone, when))
}

// watchEnds notes when processes that use a GPU are gone, until ctx ends: of one that is killed or
// crashes nothing else may say it.
func (r *ran) watchEnds(ctx context.Context) {
	for alive := true; alive; alive = pauseFor(ctx, lookEvery) {
		list, _ := filepath.Glob(escaped(r.file("whole")) + ".*")
		for _, path := range list {
			pid, err := strconv.Atoi(strings.TrimPrefix(filepath.Ext(path), "."))
			if is, ok := procstat.Read(pid); err == nil && r.gone[pid] == 0 && (!ok || is.Ended()) {
				r.gone[pid] = uint64(time.Now().UnixNano())
			}
		}
	}
}

// lookEvery is how long a process that is gone may be taken to hold its memory, where no other
// process of the program knows better.
const lookEvery = 20 * time.Millisecond

// program returns what the start-up files of all processes found. The framework is that of a
// process that used a GPU, if one of those has any.
func (r *ran) program() (program, error) {
	all := program{Compiled: []Compiled{}}
	list, err := filepath.Glob(escaped(r.found) + ".[0-9]*")
	if err != nil {
		return all, err
	}
	var users, others []program
	for _, path := range list {
		pid, err := strconv.Atoi(strings.TrimPrefix(path, r.found+"."))
		if err != nil {
			continue // of another kind
		}
		p, err := readProgram(path)
		if err != nil {
			return all, err
		}
		if slices.ContainsFunc(r.processes, func(p *process) bool { return p.pid == pid }) {
			users = append(users, p)
		} else {
			others = append(others, p)
		}
	}
	for _, p := range append(users, others...) {
		all.add(p)
	}
	// One that was ended before it had written all has not said why.
	reason, _ := os.ReadFile(r.found + ".stop")
	all.Repeats = all.Repeats || string(reason) == "repeats"
	all.Stepped = all.Stepped || string(reason) == "steps"
	text, err := os.ReadFile(r.file("notes"))
	if errors.Is(err, fs.ErrNotExist) {
		return all, nil
	}
	all.Notes = slices.Compact(slices.Sorted(strings.Lines(string(text))))
	for i, line := range all.Notes {
		all.Notes[i] = strings.TrimSpace(line)
	}
	return all, err
}

// escaped returns a path as a pattern for itself.
func escaped(path string) string {
	return strings.NewReplacer(`[`, `\[`, `*`, `\*`, `?`, `\?`, `\`, `\\`).Replace(path)
}

// read reads the recordings. There are no processes if none of them has an allocation.
func (r *ran) read(ctx context.Context) error {
	var first error
	for _, p := range r.processes {
		t, err := formats.Open(ctx, p.record, trace.Options{})
		if ctx.Err() == nil && p.tookNothing(err) {
			continue // but a context
		}
		if err != nil {
			first = cmp.Or(first, err)
			continue
		}
		p.trace = t
		if len(r.processes) > 1 && len(p.gpus) == 0 {
			r.lost = true // of which GPUs its memory is
		}
	}
	if !slices.ContainsFunc(r.processes, func(p *process) bool { return p.trace != nil && p.trace.Allocs > 0 }) && first == nil {
		r.close()
		r.processes = nil
	}
	return first
}

// tookNothing reports whether a recording is none, by the error of its reader, since the process took no memory of its GPUs.
func (p *process) tookNothing(err error) bool {
	bad := new(trace.Error)
	if !errors.As(err, &bad) {
		return false
	}
	// PyTorch may be asked for a GPU without a context there.
	return bad.Msg == tape.NoEvents && strings.HasSuffix(p.record, ".torch") || len(p.gpus) > 0 && isEmpty(p.record)
}

// isEmpty reports whether a recording of the driver's calls has its head alone.
func isEmpty(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() <= emptyRecording
}

// emptyRecording is the size of a recording without events.
const emptyRecording = 8

// mixed returns an error if the processes use several frameworks, whose pools cannot be replayed as one's.
func (r *ran) mixed() error {
	var names []string
	for _, p := range r.processes {
		if p.framework != "" && !slices.Contains(names, p.framework) {
			names = append(names, p.framework)
		}
	}
	if len(names) < 2 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("processes of the program use %s, and the answer is in the settings of one: --as %s chooses it, or run the parts apart",
		strings.Join(names, " and "), names[0])
}

func (r *ran) refused() bool { return slices.ContainsFunc(r.processes, (*process).wasRefused) }

// wasRefused reports whether the process was refused memory of a GPU, or a context.
func (p *process) wasRefused() bool { return p.refused || p.trace != nil && p.trace.Refused > 0 }

// largestTrace returns the recording with the highest peak; nil if there is none.
func (r *ran) largestTrace() (t *trace.Trace) {
	for _, p := range r.processes {
		if p.trace != nil && (t == nil || p.trace.PeakLive > t.PeakLive) {
			t = p.trace
		}
	}
	return t
}

// join returns the recording of all processes, which the caller closes: the only one as it is.
func (r *ran) join(ctx context.Context, cfg Config) (t *trace.Trace, err error) {
	notes := r.notes()
	if len(r.processes) == 1 {
		t, r.processes[0].trace = r.processes[0].trace, nil
	} else {
		for _, p := range r.processes {
			r.members = append(r.members, p.member())
		}
		if t, err = tape.Join(ctx, strings.Join(cfg.Command, " "), r.members, trace.Options{}); err != nil {
			return nil, err
		}
	}
	t.Notes = append(t.Notes, notes...)
	return t, nil
}

// notes are what is missing of the recordings.
func (r *ran) notes() (notes []string) {
	for _, p := range r.processes {
		if p.isCut() {
			notes = append(notes, "the recording has the last million events: the peak of "+size.Format(p.peak)+" came before them; let the program end earlier")
		}
	}
	if slices.ContainsFunc(r.processes, func(p *process) bool { return p.segments }) {
		notes = append(notes, segmentsNote)
	}
	return notes
}

// segmentsNote says what is known of a process of PyTorch that wrote no recording.
const segmentsNote = "a process of PyTorch was ended from outside before it could write what its allocator recorded: " +
	"of it the answer has the segments that the allocator took from the driver"

// member returns the process for a joined recording.
func (p *process) member() tape.Member {
	name := fmt.Sprint("process ", p.pid)
	if p.name != "" {
		name += " (" + p.name + ")"
	}
	m := tape.Member{Name: name, Trace: p.trace, Begins: p.begin, Ends: p.end}
	own := "GPU_%d"
	if p.trace != nil && p.trace.Format == torch.Format.Name {
		own = "cuda:%d"
	}
	for _, g := range p.gpus {
		m.GPUs = append(m.GPUs, tape.MemberGPU{Pool: fmt.Sprintf(own, g.own), Joint: fmt.Sprintf("cuda:%d", g.number)})
	}
	return m
}

// keep copies the recordings to new files: to FILE, and where there are several to FILE.PID.
func (r *ran) keep(to string) error {
	if len(r.processes) == 1 {
		return keep(r.processes[0].record, to)
	}
	kept := false
	for _, p := range r.processes {
		if p.trace == nil {
			continue
		}
		kept = true
		if err := keep(p.record, fmt.Sprintf("%s.%d", to, p.pid)); err != nil {
			return err
		}
	}
	if !kept {
		return notKept(to)
	}
	return nil
}

// notServed is the error of a recording that is to be kept in a file, of a program that was refused memory: what it
// has is not what the program needs.
func notServed(to string) error {
	return fmt.Errorf("%s: no recording is kept: the program was refused memory, and a recording is of one that is served", to)
}

// notKept is the error of a recording that is to be kept in a file, and that there is not.
func notKept(to string) error {
	return fmt.Errorf("%s: there is no recording to keep: no allocation of the program was recorded", to)
}

// Share is what one process has of a GPU.
type Share struct {
	GPU     string `json:"gpu"`
	Process string `json:"process"`
	Peak    uint64 `json:"peak_bytes"`        // live at its own peak
	AtPeak  uint64 `json:"bytes_at_gpu_peak"` // live when most is live on the GPU
}

// shares returns what each process of a joined recording has.
func shares(ctx context.Context, t *trace.Trace) (list []Share, err error) {
	for _, pool := range t.Pools {
		parts := tape.Parts(pool)
		if parts == nil {
			continue
		}
		now, peaks, at := make([]uint64, len(parts)), make([]uint64, len(parts)), make([]uint64, len(parts))
		of := make([]int, pool.Streams) // the part of each stream
		for i, p := range parts {
			for s := p.Stream; s < p.Stream+p.Streams && s < pool.Streams; s++ {
				of[s] = i
			}
		}
		sum, most := uint64(0), uint64(0)
		err = pool.Walk().Each(ctx, nil, func(e *trace.Event, _ *trace.Block) {
			i := of[e.Stream]
			switch {
			case e.Op == trace.Free:
				now[i] -= e.Bytes
				sum -= e.Bytes
			case !e.Refused:
				now[i] += e.Bytes
				sum += e.Bytes
			}
			peaks[i] = max(peaks[i], now[i])
			if sum > most {
				most = sum
				copy(at, now)
			}
		})
		if err != nil {
			return nil, err
		}
		for i, p := range parts {
			list = append(list, Share{pool.Name, p.Name, peaks[i], at[i]})
		}
	}
	return list, nil
}
