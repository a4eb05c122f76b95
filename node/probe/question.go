// The question of gpumem explain: an environment, a framework and a device.

package probe

import (
	"fmt"
	"os"
	"strings"

	"gpumem/device/open"
	"gpumem/internal/proc"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// visibleVar chooses the GPUs that a program sees, and their order.
const visibleVar = "CUDA_VISIBLE_DEVICES"

// Question is what is to be explained.
type Question struct {
	Env   policy.Environment
	As    frameworks.Release // that reads it
	On    policy.Device      // as the framework finds it when it starts
	GPUs  int                // that the program sees; 0 if unknown
	Notes []string           // for the user
	About
}

// About says what a question is about.
type About struct {
	Device  Device   `json:"device"`
	Process *Running `json:"process,omitempty"` // nil if the environment is this program's own
}

// Device is the device of a question.
type Device struct {
	Spec    string  `json:"device"` // as --device takes it
	Name    string  `json:"name"`
	Total   uint64  `json:"total_bytes"`
	Free    *uint64 `json:"free_bytes"` // nil if the driver does not report it
	Unified bool    `json:"-"`          // its memory is the host's
}

// Running is a running process and the environment that it was started with.
type Running struct {
	PID        int                `json:"pid"`
	Frameworks []proc.Framework   `json:"frameworks"` // that it has loaded
	Used       *uint64            `json:"used_bytes"` // of the device; nil if the driver does not report it
	Env        policy.Environment `json:"-"`
}

// ReadRunning reads a running process.
func ReadRunning(pid int) (*Running, error) {
	environ, err := proc.Environ(pid)
	if err != nil {
		return nil, err
	}
	loaded, err := proc.Frameworks(pid)
	if err != nil {
		return nil, err
	}
	return &Running{PID: pid, Frameworks: append([]proc.Framework{}, loaded...), Env: environment(pid, environ)}, nil
}

// Ask makes a question. Without a process it is about this program's own environment.
// Without a framework, or its version, that is what the process has loaded, else the
// newest jax. The device is a spec as --device takes it; empty is the default.
func Ask(as frameworks.Release, device string, of *Running) (*Question, error) {
	q := &Question{Env: policy.Environ(os.Environ()), As: as, About: About{Process: of}}
	if of != nil {
		q.Env = of.Env
		q.chooseLoaded()
	}
	if q.As.Name == "" {
		q.As.Name = "jax"
	}
	if note := q.As.Note(); note != "" {
		q.note("%s", note)
	}
	spec, note, err := open.Choose(device, os.LookupEnv, false)
	if err != nil {
		return nil, err
	}
	list, err := spec.Status()
	if err != nil {
		return nil, err
	}
	q.setDevice(list[0])
	if note != "" {
		q.note("%s", note)
	}
	theirs, ours := q.Env.Get(visibleVar), os.Getenv(visibleVar)
	if theirs == ours {
		q.GPUs = countGPUs(spec)
	} else if spec.Kind == open.CUDA && device == "" {
		q.note("process %d has %s=%q and this program %q: %s may be another GPU there; --device chooses", of.PID, visibleVar, theirs, ours, spec.Text)
	}
	return q, nil
}

// countGPUs returns the number of devices of the kind of a spec, 0 if unknown.
func countGPUs(spec open.Spec) int {
	var list []open.Listed
	var err error
	switch spec.Kind {
	case open.Private:
		return 1
	case open.Shared:
		list, err = open.Spec{Kind: open.Shared, File: spec.File, All: true}.Status()
	case open.CUDA:
		list, _, err = open.All(func(string) (string, bool) { return "", false })
	}
	if err != nil {
		return 0
	}
	return len(list)
}

func (q *Question) note(format string, args ...any) {
	q.Notes = append(q.Notes, fmt.Sprintf(format, args...))
}

// chooseLoaded takes the framework, or the release of the one that was named, from what
// the process has loaded.
func (q *Question) chooseLoaded() {
	p := q.Process
	named, versioned := q.As.Name != "", q.As.Version != ""
	chosen := named
	var others []string
	for _, f := range p.Frameworks {
		loaded := release(frameworks.Release{Name: f.Name, Version: f.Version})
		_, err := frameworks.ParseRelease(f.Name)
		switch {
		case named && f.Name != q.As.Name:
		case named && versioned:
		case err != nil:
			q.note("process %d has loaded %s, which this version does not explain", p.PID, loaded)
		case named || !chosen:
			q.take(f)
			chosen = true
		default:
			others = append(others, loaded)
		}
	}
	if !chosen {
		q.note("process %d has loaded no framework known here: explained as jax; --as names another", p.PID)
	}
	if len(others) > 0 {
		q.note("process %d has also loaded %s; --as names the one to explain", p.PID, strings.Join(others, ", "))
	}
}

// take makes a loaded framework the one to explain.
func (q *Question) take(f proc.Framework) {
	q.As = frameworks.Release{Name: f.Name, Version: f.Version}
	if f.Version == "" {
		q.note("process %d: the release of %s is unknown: the newest is explained; --as %s@VERSION names it", q.Process.PID, f.Name, f.Name)
	} else if _, err := frameworks.ParseRelease(release(q.As)); err != nil {
		q.note("process %d: %v; the newest is explained", q.Process.PID, err)
		q.As.Version = ""
	}
}

// release is NAME or NAME@VERSION.
func release(f frameworks.Release) string {
	if f.Version == "" {
		return f.Name
	}
	return f.Name + "@" + f.Version
}

// setDevice takes what is known of the device. What the process holds there was free
// when it started.
func (q *Question) setDevice(d open.Listed) {
	q.Device = Device{Spec: d.Words, Name: d.Name, Total: d.Total, Unified: d.Unified}
	if d.Free > 0 || d.Used > 0 {
		q.Device.Free = &d.Free
	}
	for _, n := range d.Notes {
		q.note("%s: %s", d.Words, n)
	}
	held := uint64(0)
	if q.Process != nil {
		for _, p := range d.Processes {
			if p.PID == q.Process.PID && p.Known { // twice if it computes and draws
				held = max(held, p.Used)
				q.Process.Used = &held
			}
		}
	}
	q.On = asFound(d, held)
}
