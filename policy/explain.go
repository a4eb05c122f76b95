// What an environment asks for, told to a person: which allocator a framework
// builds, what it takes and when, which variable plays which part, which plays
// none, and what to write instead.

package policy

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Framework is whose words an environment is read in, and of which release.
type Framework struct {
	Name    string // "jax", "tensorflow", "pytorch", "cupy", or "gpumem" for our own runtime
	Version string // such as "0.4.30"; empty means the newest known
}

// framework is one of those known.
type framework struct {
	name, title string
	newest      version // the newest release that was looked at
	like        string  // a release, for errors
	oldest      version // before it nothing is known
	read        func(Environment, version) (reading, *SettingError)
	changes     []Change // oldest first
	when        string   // the variables are read
}

// A Change is what a release of a framework does otherwise than those before.
type Change struct {
	Version string `json:"version"`
	Date    string `json:"date"`
	Text    string `json:"text"` // one or two sentences
	Source  string `json:"source"`
}

// Changes are those of the releases after a up to b, or the other way round;
// none if the two are of different frameworks, or not known.
func Changes(a, b Framework) []Change {
	f, err := frameworkOf(a.Name)
	if err != nil || a.Name != b.Name {
		return nil
	}
	from, err1 := f.version(a.Version)
	to, err2 := f.version(b.Version)
	if err1 != nil || err2 != nil {
		return nil
	}
	if to.less(from) {
		from, to = to, from
	}
	var list []Change
	for _, c := range f.changes {
		if v, _ := parseVersion(c.Version, f.title, f.like); from.less(v) && !to.less(v) {
			list = append(list, c)
		}
	}
	return list
}

// frameworks, the default first.
var frameworks = []framework{
	{"jax", "JAX", newestJAX, "0.4.30", jaxReleases[0].version,
		func(e Environment, v version) (reading, *SettingError) { return readJAX(e, v, at(jaxReleases, v)) },
		changesOf(jaxReleases),
		"once, at the first operation; to set them in Python after that is too late"},
	{"tensorflow", "TensorFlow", newestTensorFlow, "2.15", tfReleases[0].version,
		func(e Environment, v version) (reading, *SettingError) {
			return readTensorFlow(e, at(tfReleases, v))
		},
		changesOf(tfReleases),
		"once, when the GPU is first used or listed; to set them in Python after that is too late"},
	{"pytorch", "PyTorch", newestTorch, "2.8.0", torchReleases[0].version, readPyTorch, changesOf(torchReleases),
		"once: the backend at import torch, the rest when a GPU is first used; to set them in Python after that is too late"},
	{"cupy", "CuPy", newestCuPy, "13.6.0", cupyReleases[0].version, readCuPy, changesOf(cupyReleases),
		"when the pool is made: at the first allocation on a GPU"},
	{"gpumem", "gpumem", version{}, "", version{},
		func(e Environment, _ version) (reading, *SettingError) { return readOurs(e) },
		nil,
		"when the pool is opened with the policy env"},
}

// text is NAME or NAME@VERSION.
func (f Framework) text() string {
	if f.Version == "" {
		return f.Name
	}
	return f.Name + "@" + f.Version
}

// ParseFramework reads NAME or NAME@VERSION, such as "jax", "jax@0.4.30" or
// "tensorflow@2.15". The error is one line that says what is accepted.
func ParseFramework(text string) (Framework, error) {
	name, version, has := strings.Cut(text, "@")
	f, err := frameworkOf(name)
	switch {
	case err != nil:
		return Framework{}, err
	case has && f.like == "":
		return Framework{}, fmt.Errorf("%s has no versions; write %s alone", name, name)
	case has && version == "":
		return Framework{}, fmt.Errorf("no version after @ in %q; want one such as %s@%s, or %s alone for the newest", text, name, f.like, name)
	}
	_, err = f.version(version)
	return Framework{name, version}, err
}

func frameworkOf(name string) (framework, error) {
	var known []string
	for _, f := range frameworks {
		if f.name == name {
			return f, nil
		}
		known = append(known, f.name)
	}
	return framework{}, fmt.Errorf("unknown framework %q%s; want one of %s", name, didYouMean(name, known), strings.Join(known, ", "))
}

// version reads a version of the framework; "" is the newest known.
func (f *framework) version(text string) (version, error) {
	if text == "" {
		return f.newest, nil
	}
	v, err := parseVersion(text, f.title, f.like)
	if err == nil && v.less(f.oldest) {
		err = fmt.Errorf("%s %s is not known; the oldest known release is %s", f.title, text, f.oldest)
	}
	return v, err
}

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
	Fraction    *float64 `json:"fraction"` // nil: no fraction plays a part, or it is no number
	Of          string   `json:"of"`       // what it is a fraction of: total or free; empty: of nothing
	Limit       *uint64  `json:"limit_bytes"`
	First       uint64   `json:"taken_at_first_operation_bytes"` // asked for first, before any back-off
	// Gets is what comes of First where that much is not free: the pool asks
	// for 0.9 times as much, again and again.
	Gets uint64 `json:"gets_bytes"`
	// Pools are all that the framework makes for a device, the main one first.
	Pools []Pool `json:"pools"`

	Settings []Setting      `json:"settings"`
	Warnings []Warning      `json:"warnings"`
	Errors   []SettingError `json:"errors"`

	// Set is what to set instead, from all warnings and errors: words NAME=value
	// and -NAME, each name once.
	Set []string `json:"set"`
	// Read says when the framework reads its variables.
	Read string `json:"read"`
	// Note is what else a reader should know; empty: nothing.
	Note string `json:"note,omitempty"`
	// Device is what is known of the device.
	Device Device `json:"-"`
	// NoRemat says that XLA's recompute pass is switched off.
	NoRemat bool `json:"-"`
	// Policy is what is built; the zero one where nothing is.
	Policy Policy `json:"-"`

	hidden bool // the program sees no GPU
}

// A Pool is one of those that a framework makes for a device.
type Pool struct {
	Name  string  `json:"name"`  // as the framework's logs have it
	Space string  `json:"space"` // device, collective (memory that GPUs exchange), or host (pinned)
	Limit *uint64 `json:"limit_bytes"`
	First uint64  `json:"taken_first_bytes"` // with the first request, or as Text says
	Text  string  `json:"text"`              // how it grows, one sentence
}

// Title is the framework's name as people write it.
func (f Framework) Title() string {
	if known, err := frameworkOf(f.Name); err == nil {
		return known.title
	}
	return f.Name
}

// Explain says what a framework makes of an environment on a device. It always
// has an answer; the error is about the framework's name or version alone.
func Explain(env Environment, as Framework, d Device) (Answer, error) {
	f, err := frameworkOf(as.Name)
	if err != nil {
		return Answer{}, err
	}
	v, err := f.version(as.Version)
	if err != nil {
		return Answer{}, err
	}
	a := Answer{Framework: f.name, Version: as.Version, Device: d, Read: f.when,
		Pools: []Pool{}, Settings: []Setting{}, Warnings: []Warning{}, Errors: []SettingError{}, Set: []string{}}
	switch {
	case a.Version == "" && f.like != "":
		a.Version = v.String()
	case f.newest.less(v):
		a.Note = fmt.Sprintf("%s %s is newer than any release known here (%s) and is taken to do as that does.", f.title, a.Version, f.newest)
		if f.name == "jax" {
			a.Note += " Under way for it: a preallocated pool that grows (openxla/xla#48985) and a limit in bytes (#48907)."
		}
	}

	env.noPages = d.NoPages
	r, raised := f.read(env, v)
	if raised != nil {
		a.Errors = append(a.Errors, *raised)
		// What would come next, once that is repaired. No error is met twice, so
		// this ends.
		rest, seen := env, map[SettingError]bool{}
		for next := raised; next != nil && !seen[*next]; {
			seen[*next] = true
			if rest = rest.apply(next.Fix); next.Fix == "" {
				rest = rest.without(next.Name)
			}
			if r, next = f.read(rest, v); next != nil && !seen[*next] {
				text := "is refused, too, once " + raised.Name + " is repaired: " + next.Text
				if next.CPU {
					text = "once " + raised.Name + " is repaired, " + next.Then
				}
				a.Warnings = append(a.Warnings, Warning{next.Name, text, next.Fix})
			}
		}
		a.Set = fixes(a)
		return a, nil
	}
	hidden := r.devices(f)
	if hidden { // nothing is built
		a.Settings, a.hidden = append(a.Settings, r.settings...), true
		a.Warnings = append(append(a.Warnings, r.warnings...), unread(env, f, v, r)...)
		a.Set = fixes(a)
		return a, nil
	}
	a.Policy, a.NoRemat = r.policy, r.noRemat
	if f.like != "" { // the words of the framework, not of our own runtime
		a.Policy.Spec, a.Policy.Version = as.text(), as.Version
	}
	a.Settings = append(a.Settings, r.settings...)
	a.Warnings = append(a.Warnings, r.warnings...)
	a.Warnings = append(a.Warnings, unread(env, f, v, r)...)
	a.fill(d)
	if r.pools != nil {
		a.Pools = r.pools(d)
	}
	a.Set = fixes(a)
	return a, nil
}

// fill computes what depends on the policy and the device.
func (a *Answer) fill(d Device) {
	p := a.Policy
	a.Allocator = p.builtName()
	a.Preallocate = p.Preallocate
	a.First = p.FirstGrant(d)
	a.Gets = a.First
	if p.Kind == BFC && !p.Managed {
		a.Gets = backOff(a.First, p.GrantLimit, d)
		if unit := p.RegionUnit; unit > 0 {
			a.Gets = (a.Gets + unit - 1) / unit * unit
		}
	}
	if p.Kind == Platform || p.Kind == Address {
		return
	}
	if p.Kind == Caching && p.Fraction == 0 { // a limit in bytes, or none
		if p.Limit != 0 {
			a.Limit = &p.Limit
		}
		return
	}
	a.Of = p.Of.String()
	if !math.IsNaN(p.Fraction) && !math.IsInf(p.Fraction, 0) {
		a.Fraction = &p.Fraction
	}
	if limit := p.LimitBytes(d); p.Kind != Async { // whose pool grows beyond it
		a.Limit = &limit
	}
}

// backOff is what a pool of XLA or TensorFlow gets of a device where one grant
// may be at most most bytes (0: any): it asks for 0.9 times as much until the
// device grants it (BFCAllocator::Extend, in 32-bit floats).
func backOff(ask, most uint64, d Device) uint64 {
	unit := d.Granularity
	if unit == 0 {
		unit = 2 << 20
	}
	for ask > 0 {
		if (most == 0 || ask <= most) && ask <= d.Free && (ask+unit-1)/unit*unit <= d.Free {
			return ask
		}
		next := (uint64(float32(ask)*float32(0.9)) + 255) &^ 255
		if next >= ask {
			break
		}
		ask = next
	}
	return 0
}

// builtName is the allocator in the words of the frameworks.
func (p Policy) builtName() string {
	switch {
	case p.Kind == Async:
		return "cuda_async"
	case p.Kind == Platform && (p.Name == "tensorflow" || p.Name == "pytorch"):
		return "cuda_malloc"
	}
	return p.Kind.String()
}

// fixes joins what the errors and warnings say should be set. Of a name that
// several speak of, the first counts.
func fixes(a Answer) []string {
	set := []string{}
	seen := map[string]bool{}
	add := func(fix string) {
		for word := range strings.FieldsSeq(fix) {
			name, _, _ := strings.Cut(strings.TrimPrefix(word, "-"), "=")
			if !seen[name] {
				seen[name] = true
				set = append(set, word)
			}
		}
	}
	for _, e := range a.Errors {
		add(e.Fix)
	}
	for _, w := range a.Warnings {
		add(w.Fix)
	}
	// What is removed comes first, as in env -u NAME OTHER=value.
	slices.SortStableFunc(set, func(x, y string) int {
		return strings.Compare(first(y), first(x))
	})
	return set
}

// first sorts removals before assignments.
func first(word string) string {
	if strings.HasPrefix(word, "-") {
		return "1"
	}
	return "0"
}
