// The frameworks that are known, and releases as users write them.

package frameworks

import (
	"fmt"
	"strings"

	"gpumem/policy"
	"gpumem/policy/internal/spelling"
	"gpumem/policy/torchconf"
)

// A Release names a framework and one of its releases.
type Release struct {
	Name    string // "jax", "tensorflow", "pytorch", "cupy", or "gpumem" for our own runtime
	Version string // such as "0.4.30"; empty means the newest known
}

// A Framework is one of those known.
type Framework struct {
	Name    string          // as in [Release]
	Title   string          // as people write it
	Newest  policy.Version  // the newest release that was looked at; zero for a framework without versions
	Changes []policy.Change // by release, oldest first
	When    string          // the variables are read

	example string         // a version, for errors; empty for a framework without versions
	oldest  policy.Version // before it nothing is known
	read    func(policy.Environment, policy.Version) (policy.Reading, *policy.SettingError)
}

// All are the frameworks that are known, the default first.
var All = []Framework{
	{
		Name: "jax", Title: "JAX", Newest: newestJAX, example: "0.4.30", oldest: jaxReleases[0].Version,
		read: func(e policy.Environment, v policy.Version) (policy.Reading, *policy.SettingError) {
			return readJAX(e, v, policy.At(jaxReleases, v))
		},
		Changes: policy.ChangesOf(jaxReleases),
		When:    "once, at the first operation; to set them in Python after that is too late",
	},
	{
		Name: "tensorflow", Title: "TensorFlow", Newest: newestTensorFlow, example: "2.15", oldest: tfReleases[0].Version,
		read:    readTensorFlow,
		Changes: policy.ChangesOf(tfReleases),
		When:    "once, when the GPU is first used or listed; to set them in Python after that is too late",
	},
	{
		Name: "pytorch", Title: "PyTorch", Newest: torchconf.Newest, example: "2.8.0", oldest: torchconf.Oldest,
		read:    torchconf.Read,
		Changes: torchconf.Changes,
		When:    "once: the backend at import torch, the rest when a GPU is first used; to set them in Python after that is too late",
	},
	{
		Name: "cupy", Title: "CuPy", Newest: newestCuPy, example: "13.6.0", oldest: cupyReleases[0].Version,
		read:    readCuPy,
		Changes: policy.ChangesOf(cupyReleases),
		When:    "when the pool is made: at the first allocation on a GPU",
	},
	{
		Name: "gpumem", Title: "gpumem",
		read: func(e policy.Environment, _ policy.Version) (policy.Reading, *policy.SettingError) {
			return readOurs(e)
		},
		When: "when the pool is opened with the policy env",
	},
}

// Read returns what a release of the framework makes of an environment. The error
// is what the release would raise, and then the reading has no more than the
// notes up to it.
func (f Framework) Read(env policy.Environment, v policy.Version) (policy.Reading, *policy.SettingError) {
	r, err := f.read(env, v)
	if err == nil {
		n := notes{r.Notes}
		r.Hidden = n.devices(f)
		r.Notes = n.Notes
	}
	return r, err
}

// Versioned reports whether the framework has versions.
func (f Framework) Versioned() bool { return f.example != "" }

// Release returns the release v of the framework.
func (f Framework) Release(v policy.Version) Release {
	if !f.Versioned() {
		return Release{Name: f.Name}
	}
	return Release{f.Name, v.String()}
}

// String is NAME or NAME@VERSION.
func (r Release) String() string {
	if r.Version == "" {
		return r.Name
	}
	return r.Name + "@" + r.Version
}

// ParseRelease reads NAME or NAME@VERSION, such as "jax", "jax@0.4.30" or
// "tensorflow@2.15". The error is one line that says what is accepted.
func ParseRelease(text string) (Release, error) {
	name, version, has := strings.Cut(text, "@")
	f, err := find(name)
	switch {
	case err != nil:
		return Release{}, err
	case has && !f.Versioned():
		return Release{}, fmt.Errorf("%s has no versions; write %s alone", name, name)
	case has && version == "":
		return Release{}, fmt.Errorf("no version after @ in %q; want one such as %s@%s, or %s alone for the newest", text, name, f.example, name)
	}
	r := Release{name, version}
	_, _, err = r.Find()
	return r, err
}

// Find returns the framework of a release, and the version; that of the newest
// known release if r has none. The error is one line that says what is accepted.
func (r Release) Find() (Framework, policy.Version, error) {
	f, err := find(r.Name)
	if err != nil || r.Version == "" {
		return f, f.Newest, err
	}
	v, err := policy.ParseVersion(r.Version, f.Title, f.example)
	if err == nil && v.Less(f.oldest) {
		err = fmt.Errorf("%s %s is not known; the oldest known release is %s", f.Title, r.Version, f.oldest)
	}
	return f, v, err
}

func find(name string) (Framework, error) {
	var known []string
	for _, f := range All {
		if f.Name == name {
			return f, nil
		}
		known = append(known, f.Name)
	}
	return Framework{}, fmt.Errorf("unknown framework %q%s; want one of %s", name, spelling.DidYouMean(name, known), strings.Join(known, ", "))
}

// Changes returns what the releases after a up to b changed, or those after b up
// to a; nothing if the two are of different frameworks, or not known.
func Changes(a, b Release) []policy.Change {
	f, from, err1 := a.Find()
	_, to, err2 := b.Find()
	if err1 != nil || err2 != nil || a.Name != b.Name {
		return nil
	}
	if to.Less(from) {
		from, to = to, from
	}
	var list []policy.Change
	for _, c := range f.Changes {
		if v, _ := policy.ParseVersion(c.Version, f.Title, f.example); from.Less(v) && !to.Less(v) {
			list = append(list, c)
		}
	}
	return list
}
