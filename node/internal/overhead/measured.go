// Measurements of earlier runs, kept between runs.

package overhead

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"gpumem/device"
	"gpumem/node/internal/privdir"
	"gpumem/size"
)

// Store is a folder of measured overheads, private to this user: one file for
// each program. Several processes may use it at once; of two that save at the same
// instant the later one may undo the earlier one's measurement.
type Store struct {
	open func() (*privdir.Dir, error)
}

// NewStore returns the store in this user's private folder, see [privdir.User].
func NewStore() Store {
	return Store{func() (*privdir.Dir, error) {
		user, err := privdir.User(nil)
		if err != nil {
			return nil, err
		}
		defer user.Close()
		return privdir.Open(filepath.Join(user.Path(), "measured"))
	}}
}

// Key says what a measurement is of.
type Key struct {
	Framework string `json:"framework"`         // as [Of] has it
	Release   string `json:"release,omitempty"` // of the framework; "" if unknown
	GPU       string `json:"gpu"`               // as [GPUName] has it
}

// Measurement is what one run of a program held outside of its pool.
type Measurement struct {
	Bytes    uint64    `json:"bytes"`
	Measured uint64    `json:"measured_bytes"` // more than Bytes where that was cut, see [Bound]
	When     time.Time `json:"when"`
	Run      string    `json:"run"` // the identity of its lease
	// Given is what the run was taken to hold, so that its pool had the rest of the lease; nil
	// if unknown.
	Given *uint64 `json:"given_bytes,omitempty"`
}

// Figure is what a program is taken to hold outside of its pool: the maximum of its last 8
// measurements, plus an eighth, and at most the Bound of the GPU. The eighth is no more than
// what each of these runs was given: a run that stayed within its lease would have a smaller
// pool the next time, and could fail in the same lease. On a simulated GPU it is the maximum
// alone: nothing there varies from run to run.
type Figure struct {
	Program string `json:"program"`
	Key
	Bytes        uint64        `json:"bytes"`
	Measurements []Measurement `json:"measurements"` // the oldest first

	simulated bool
}

// Bound is the most that is learned to lie outside of a pool on a GPU of total bytes: a
// quarter. The largest figures that are known are 1.6 GB on GPUs of 80 GB (context, cuDNN and
// NCCL's first communicator), and a tenth of one of 8 GB. More is memory that was taken beside
// the pool and that nothing counted: to believe it would leave the next run no lease.
func Bound(total uint64) uint64 { return total / 4 }

// GPUName names a GPU for a Key: a program holds as much on each of that model and size.
func GPUName(i device.Info) string {
	name := i.Name + ", " + size.Format(i.Total)
	if i.Simulated && i.Context > 0 {
		name += ", context " + size.Format(i.Context)
	}
	return name
}

// From says in a line where a figure is from.
func (f Figure) From() string {
	last := f.Measurements[len(f.Measurements)-1]
	times, atMost := "once,", ""
	if n := len(f.Measurements); n > 1 {
		times, atMost = fmt.Sprintf("in %d runs, the last", n), "at most "
	}
	measured, believed, given := uint64(0), mostOf(f.Measurements), leastGiven(f.Measurements)
	for _, m := range f.Measurements {
		measured = max(measured, m.Measured)
	}
	when := last.When.Local().Format("2006-01-02 15:04")
	text := fmt.Sprintf("measured %s %s, lease %s: %s%s", times, when, cmp.Or(last.Run, "unknown"), atMost, size.Format(measured))
	switch {
	case measured > believed:
		const why = "more is memory beside the pool that nothing counted"
		return fmt.Sprintf("%s, cut to %s, the most that is believed of this GPU: %s", text, size.Format(f.Bytes), why)
	case f.simulated:
		return text
	case f.Bytes == withMargin(believed):
		return text + ", and an eighth more"
	case given <= believed:
		return text + ", and no eighth more, for which a run was given no room"
	case given == f.Bytes:
		return text + ", and of an eighth more what a run was given"
	}
	return text + ", and of an eighth more what a quarter of the GPU has"
}

// withMargin adds an eighth: runs of one program differ by the kernels that they load.
func withMargin(bytes uint64) uint64 { return bytes + bytes/8 }

// mostOf returns the largest measurement.
func mostOf(runs []Measurement) (most uint64) {
	for _, r := range runs {
		most = max(most, r.Bytes)
	}
	return most
}

// leastGiven returns the least that one of the runs was given; the largest number if that is
// known of none.
func leastGiven(runs []Measurement) uint64 {
	least := uint64(math.MaxUint64)
	for _, r := range runs {
		if r.Given != nil {
			least = min(least, *r.Given)
		}
	}
	return least
}

// kept is how many measurements of a program are kept for each Key.
const kept = 8

// format is that of a file. Files of format 1 had programs by their base names, and whatever
// was taken beside the pool in their figures: they are not read.
const format = 2

// measurements is one file.
type measurements struct {
	Format  int    `json:"format"`
	Program string `json:"program"`
	Of      []kind `json:"of"`
}

// kind has the measurements of one Key.
type kind struct {
	Key
	Total     uint64        `json:"total_bytes"`             // of the GPU
	Simulated bool          `json:"simulated,omitempty"`     // the GPU is
	Context   uint64        `json:"context_bytes,omitempty"` // of a simulated GPU
	Runs      []Measurement `json:"runs"`                    // the oldest first
}

// bound is the most that is learned: the [Bound] of the GPU, but no less than what every
// program on a simulated one holds.
func (k kind) bound() uint64 { return max(Bound(k.Total), k.Context) }

func (m measurements) figures() (list []Figure) {
	for _, k := range m.Of {
		most := mostOf(k.Runs)
		bytes := most
		if !k.Simulated {
			bytes = max(most, min(withMargin(most), leastGiven(k.Runs)))
		}
		list = append(list, Figure{m.Program, k.Key, min(bytes, k.bound()), k.Runs, k.Simulated})
	}
	return list
}

// Load returns what a program was measured with. It is empty for one that was never
// measured, and for "".
//
// The error is a note: the file is damaged or cannot be read, and is not used.
func (s Store) Load(program string) ([]Figure, error) {
	if program == "" {
		return nil, nil
	}
	dir, err := s.open()
	if err != nil { // no folder, no measurements
		return nil, nil
	}
	defer dir.Close()
	file, err := read(dir, program)
	return file.figures(), err
}

// List returns all figures, by program. Errors are notes: damaged files are left out.
func (s Store) List() (list []Figure, err error) {
	dir, err := s.open()
	if err != nil {
		return nil, fmt.Errorf("what was measured cannot be read: %w", err)
	}
	defer dir.Close()
	names, err := fs.Glob(dir.FS(), "*.json")
	errs := []error{err}
	for _, name := range names {
		file, err := readFile(dir, name)
		list, errs = append(list, file.figures()...), append(errs, err)
	}
	slices.SortStableFunc(list, func(a, b Figure) int { return cmp.Compare(a.Program, b.Program) })
	return list, errors.Join(errs...)
}

// Forget removes what was measured of the programs that a name stands for, and returns them: a
// program as List has it, its script, module or file, the last element of a path in one, such
// as train.py, or "all". note is about damaged files that are left, err is that there is none
// of that name, or the file system's.
func (s Store) Forget(name string) (programs []string, note, err error) {
	dir, err := s.open()
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	files, err := fs.Glob(dir.FS(), "*.json")
	if err != nil {
		return nil, nil, err
	}
	var left []error
	removed := 0
	for _, f := range files {
		file, err := readFile(dir, f)
		if name != "all" && f != fileName(name) && !meant(file.Program, name) {
			left = append(left, err)
			continue
		}
		if err := dir.Remove(f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return programs, nil, fmt.Errorf("forget %s: %w", filepath.Join(dir.Path(), f), err)
		}
		removed++
		if program := file.Program; program != "" {
			programs = append(programs, program)
		} else if f == fileName(name) { // it is damaged
			programs = append(programs, name)
		}
	}
	note = errors.Join(left...)
	if removed == 0 && name != "all" {
		remedy := "gpumem ps --overhead lists those that were"
		if len(files) == 0 {
			remedy = "none was"
		}
		return nil, note, fmt.Errorf("forget %q: no program of that name was measured; %s", name, remedy)
	}
	slices.Sort(programs)
	return programs, note, nil
}

// meant reports whether a name stands for a program.
func meant(program, name string) bool {
	if program == "" || name == "" {
		return false
	}
	file, what := split(program)
	module, _ := strings.CutPrefix(what, "-m ")
	names := []string{program, file, what, filepath.Base(file), module}
	if filepath.IsAbs(what) {
		names = append(names, filepath.Base(what))
	}
	return slices.Contains(names, name)
}

// isWhat finds what an interpreter runs in the name of a program: a path, a module, code or
// its arguments. Before it and in it there may be blanks.
var isWhat = regexp.MustCompile(` (/.*|-[mc] .*|\(arguments [0-9a-f]{12}\)$)`)

// split returns the file of a program, and what it runs if it is an interpreter.
func split(program string) (file, what string) {
	at := isWhat.FindStringIndex(program)
	if at == nil {
		return program, ""
	}
	return program[:at[0]], program[at[0]+1:]
}

// Save adds a measurement of a program on a GPU, cut to the Bound. A damaged file is replaced.
func (s Store) Save(program string, of Key, gpu device.Info, m Measurement) error {
	if program == "" {
		return nil
	}
	dir, err := s.open()
	if err != nil {
		return fmt.Errorf("cannot save the measurement of %s: %w", program, err)
	}
	defer dir.Close()
	file, err := read(dir, program)
	if err != nil || file.Format == 0 {
		file = measurements{Format: format, Program: program}
	}
	i := slices.IndexFunc(file.Of, func(k kind) bool { return k.Key == of })
	if i < 0 {
		i = len(file.Of)
		file.Of = append(file.Of, kind{Key: of})
	}
	k := &file.Of[i]
	k.Total, k.Simulated = gpu.Total, gpu.Simulated
	if gpu.Simulated {
		k.Context = gpu.Context
	}
	m.Measured = m.Bytes
	m.Bytes = min(m.Bytes, k.bound())
	k.Runs = append(k.Runs, m)
	k.Runs = k.Runs[max(0, len(k.Runs)-kept):]
	file.Of = file.Of[max(0, len(file.Of)-mostKeys):]
	data, err := json.Marshal(file)
	if err == nil {
		err = dir.WriteFile(fileName(program), append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("cannot save the measurement of %s: %w", program, err)
	}
	return nil
}

// Bounds of a file: no GPU has as many bytes, and no program runs on as many kinds of GPU with
// as many releases.
const (
	sane     = 1 << 50
	mostKeys = 64
)

// read reads the file of a program; it is empty if there is none.
func read(dir *privdir.Dir, program string) (measurements, error) {
	file, err := readFile(dir, fileName(program))
	if err == nil && file.Format != 0 && file.Program != program {
		return measurements{}, damaged(filepath.Join(dir.Path(), fileName(program)), "of another program")
	}
	return file, err
}

func readFile(dir *privdir.Dir, name string) (measurements, error) {
	path := filepath.Join(dir.Path(), name)
	data, err := dir.ReadFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return measurements{}, nil
	case err != nil:
		return measurements{}, fmt.Errorf("%s: cannot be read, and is not used: %w", path, err)
	}
	return parse(path, data)
}

func damaged(path, why string) error {
	return fmt.Errorf("%s is damaged (%s) and not used; the next measurement replaces it", path, why)
}

// parse reads one file. One of format 1 is empty.
func parse(path string, data []byte) (measurements, error) {
	var file measurements
	if err := json.Unmarshal(data, &file); err != nil {
		return measurements{}, damaged(path, "no JSON of ours")
	}
	if file.Format == 1 {
		return measurements{}, nil
	}
	if why := file.wrong(); why != "" {
		return measurements{}, damaged(path, why)
	}
	return file, nil
}

// wrong says what makes no sense in a file; "" if nothing does.
func (m measurements) wrong() string {
	switch {
	case m.Format != format:
		return fmt.Sprintf("format %d, want %d", m.Format, format)
	case m.Program == "":
		return "of no program"
	case len(m.Of) > mostKeys:
		return "too many GPUs and releases"
	}
	for _, k := range m.Of {
		isNamed, runs := k.Framework != "" && k.GPU != "", len(k.Runs)
		switch {
		case !isNamed || runs == 0 || runs > kept:
			return "measurements missing or too many"
		case k.Total > sane || k.Context > sane:
			return "more bytes than any GPU has"
		}
		for _, r := range k.Runs {
			if r.Measured > sane || r.Bytes > min(r.Measured, k.bound()) {
				return "more bytes than any GPU has, or than are learned of one"
			}
		}
	}
	return ""
}

// fileName returns the name of a program's file, whatever the program's name contains.
func fileName(program string) string {
	return fmt.Sprintf("%x.json", sha256.Sum256([]byte(program)))[:16] + ".json"
}
