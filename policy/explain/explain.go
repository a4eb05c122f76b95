// Package explain explains an environment to a person: which allocator a
// framework builds, what it takes and when, which variables play a part, which
// do not, and what to set instead.
//
// [Environment] gives the answer for one release and device, [Compare] the
// differences between two answers. Both are plain values, made to be written as
// JSON; [Answer.Summary] and [Answer.Command] put them into words.
package explain

import (
	"fmt"
	"math"
	"strings"

	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// An Answer is what a framework makes of an environment on one device. Sizes
// are in bytes.
type Answer struct {
	Framework string `json:"framework"`
	Version   string `json:"version"`
	// Allocator is what is really built: bfc, platform, address, vmm,
	// cuda_async, cuda_malloc, or caching for PyTorch's and CuPy's own. Empty
	// where the settings are refused, or hide every GPU, and nothing is built.
	Allocator   string   `json:"allocator"`
	Preallocate bool     `json:"preallocate"`
	Fraction    *float64 `json:"fraction"` // nil if no fraction plays a part, or it is not a number
	Of          string   `json:"of"`       // the basis of the fraction, total or free; empty if there is none
	Limit       *uint64  `json:"limit_bytes"`
	First       uint64   `json:"taken_at_first_operation_bytes"` // asked for first, before any back-off
	// Gets is what comes of First where that much is not free: the pool asks
	// for 0.9 times as much, again and again; the driver's pool gets nothing
	// and goes on.
	Gets uint64 `json:"gets_bytes"`
	// Pools are all that the framework makes for a device, the main one first.
	Pools []policy.Pool `json:"pools"`

	Settings []policy.Setting      `json:"settings"`
	Warnings []policy.Warning      `json:"warnings"`
	Errors   []policy.SettingError `json:"errors"`

	// Set is what to set instead, from all warnings and errors: words NAME=value
	// and -NAME, each name once.
	Set []string `json:"set"`
	// Read says when the framework reads its variables.
	Read string `json:"read"`
	// Note is what else a reader should know; may be empty.
	Note string `json:"note,omitempty"`
	// Ahead says that the documentation describes another pool than the release has, or
	// that this is that pool; may be empty.
	Ahead string `json:"ahead,omitempty"`
	// Device is what is known of the device.
	Device policy.Device `json:"-"`
	// NoRemat reports that XLA's rematerialization pass is switched off.
	NoRemat bool `json:"-"`
	// Policy is what is built; the zero one where nothing is.
	Policy policy.Policy `json:"-"`

	hidden bool // the program sees no GPU
}

// Environment returns what a release of a framework makes of an environment on a
// device. There is always an answer; the error is about the framework's name or
// version alone.
func Environment(env policy.Environment, as frameworks.Release, d policy.Device) (Answer, error) {
	f, v, err := as.Find()
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Framework: f.Name, Version: as.Version, Device: d, Read: f.When,
		Pools: []policy.Pool{}, Settings: []policy.Setting{}, Warnings: []policy.Warning{}, Errors: []policy.SettingError{}}
	switch {
	case a.Version == "" && f.Versioned():
		a.Version = v.String()
	case v == policy.Next:
		a.Ahead = fmt.Sprintf("This is what %s's documentation describes ahead of its releases, and could not be asked of one.", f.Title)
	case f.Newest.Less(v):
		a.Note = fmt.Sprintf("%s %s is newer than any release known here (%s) and is taken to do as that does.", f.Title, a.Version, f.Newest)
	}

	env.NoPages, env.NoPools = d.NoPages, d.NoPools
	r, raised := f.Read(env, v)
	if raised != nil {
		a.Errors = append(a.Errors, *raised)
		a.Warnings = append(a.Warnings, later(env, f, v, *raised)...)
	} else {
		a.Settings = append(a.Settings, r.Settings...)
		a.Warnings = append(append(a.Warnings, r.Warnings...), unread(env, f, v, r)...)
		if a.hidden = r.Hidden; !a.hidden {
			if a.built(r, as); v == policy.Next && r.Policy.Grows() {
				a.Ahead += " Where the host runs ahead of the GPU it maps more memory than a pool that waits for frees, and leaves less to cuDNN, NCCL and others: --xla_gpu_memory_fraction_policy=0.75-0.85 keeps some."
			}
			a.ahead(env, f, v)
		}
	}
	a.Set = fixes(a)
	return a, nil
}

// later warns of what would be raised once the first error is repaired.
func later(env policy.Environment, f frameworks.Framework, v policy.Version, first policy.SettingError) []policy.Warning {
	var list []policy.Warning
	// No error is met twice, so this ends.
	seen := map[policy.SettingError]bool{}
	for next := &first; next != nil && !seen[*next]; {
		seen[*next] = true
		if env = env.Apply(next.Fix); next.Fix == "" {
			env = env.Without(next.Name)
		}
		if _, next = f.Read(env, v); next != nil && !seen[*next] {
			text := "is refused, too, once " + first.Name + " is repaired: " + next.Text
			if next.CPU {
				text = "once " + first.Name + " is repaired, " + next.Then
			}
			list = append(list, policy.Warning{Name: next.Name, Text: text, Fix: next.Fix})
		}
	}
	return list
}

// ahead says that the documentation describes a pool that grows, for the newest release
// and those that are taken for it.
func (a *Answer) ahead(env policy.Environment, f frameworks.Framework, v policy.Version) {
	if f.Name != "jax" || v == policy.Next || v.Less(f.Newest) {
		return
	}
	next, err := f.Read(env, policy.Next)
	if err != nil || !next.Policy.Grows() {
		return
	}
	most := next.Policy.LimitBytes(a.Device)
	a.Ahead = fmt.Sprintf("%s's documentation is ahead of its releases: it describes a pool that grows from there up to %s. gpumem explain --diff %s next compares the two.",
		f.Title, part(most, a.Device.Total), a.Version)
}

// built fills in what is built on the device.
func (a *Answer) built(r policy.Reading, as frameworks.Release) {
	a.Policy, a.NoRemat = r.Policy, r.NoRemat
	if as.Name != "gpumem" { // the words of the framework, not of our own runtime
		a.Policy.Spec, a.Policy.Version = as.String(), as.Version
	}
	if r.Pools != nil {
		a.Pools = r.Pools(a.Device)
	}
	p := a.Policy
	a.Allocator = allocatorName(p)
	a.Preallocate = p.Preallocate
	a.First, a.Gets = p.FirstGrant(a.Device), p.Granted(a.Device)
	if p.Kind == policy.Platform || p.Kind == policy.Address {
		return
	}
	if p.Kind == policy.Caching && p.Fraction == 0 { // a limit in bytes, or none
		if p.Limit != 0 {
			a.Limit = &p.Limit
		}
		return
	}
	a.Of = p.Of.String()
	if !math.IsNaN(p.Fraction) && !math.IsInf(p.Fraction, 0) {
		a.Fraction = &p.Fraction
	}
	if limit := p.LimitBytes(a.Device); p.Kind != policy.Async { // whose pool grows beyond it
		a.Limit = &limit
	}
}

// allocatorName returns the allocator in the words of the frameworks.
func allocatorName(p policy.Policy) string {
	switch {
	case p.Kind == policy.Async:
		return "cuda_async"
	case p.Kind == policy.Platform && (p.Name == "tensorflow" || p.Name == "pytorch"):
		return "cuda_malloc"
	}
	return p.Kind.String()
}

// fixes joins what the errors and warnings say should be set. Of a name that
// several speak of, the first counts. What is removed comes first, as in
// env -u NAME OTHER=value.
func fixes(a Answer) []string {
	removed, set := []string{}, []string{}
	seen := map[string]bool{}
	add := func(fix string) {
		for word := range strings.FieldsSeq(fix) {
			removal, isRemoval := strings.CutPrefix(word, "-")
			name, _, _ := strings.Cut(removal, "=")
			switch {
			case seen[name]:
			case isRemoval:
				removed = append(removed, word)
			default:
				set = append(set, word)
			}
			seen[name] = true
		}
	}
	for _, e := range a.Errors {
		add(e.Fix)
	}
	for _, w := range a.Warnings {
		add(w.Fix)
	}
	return append(removed, set...)
}
