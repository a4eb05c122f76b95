// Package frameworks reads an environment as each release of JAX with XLA,
// TensorFlow, PyTorch, CuPy and this project's own runtime does, and makes a
// [policy.Policy] of it. It knows the words and the quirks of each release;
// apart from policy/torchconf nothing else in this module knows versions.
//
// # From an environment to a policy
//
// A user of JAX types
//
//	XLA_PYTHON_CLIENT_MEM_FRACTION=.9 XLA_PYTHON_CLIENT_PREALLOCATE=no python train.py
//
// and two programs read it, so [Framework.Read] does it in two steps.
//
// First Python (jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options). The
// fraction stands under its deprecated name, which still works as long as the
// new one, XLA_CLIENT_MEM_FRACTION, is not set as well: that would be a
// ValueError, here a [policy.SettingError] in Python's words. The allocator is not
// set, so it is "default", which is BFC. float(".9") is the double 0.9. "no" is
// none of false, False and 0, the only texts that mean no: preallocation stays
// on, although the user asked for the contrary. That is a [policy.Warning].
//
// Then C++ (XLA's PJRT_Client_Create and CreateBFCAllocator). The fraction
// passes through a 32-bit float and becomes 0.89999997615814. Preallocation is
// on, so the pool is divided between two ends (Spatial), with ordinary memory
// at the upper one (TopDown).
//
// The policy holds the fraction and not yet the bytes, because it does not know
// the device. [policy.Policy.LimitBytes] gives them. On a GPU of 85,045,542,912 bytes
// the product is 76,540,986,593; arithmetic in doubles alone would have given
// 76,540,988,620. Since JAX 0.10.2 it is rounded up to a multiple of 2 MiB, so
// the limit is 76,541,853,696 bytes.
//
// # From a command line to a policy
//
// [Parse] reads NAME[@VERSION][:key=value,...]. The name chooses the defaults,
// the version one row of a table (jax.txt, tensorflow.txt), the keys change single
// fields:
//
//	jax                            the newest JAX with nothing set
//	jax@0.4.0:preallocate=false    an older one, growing as needed
//	tensorflow:fraction=.5         the newest TensorFlow, with the fraction set in code
//	bfc:limit=10GiB,gc=true        XLA's allocator alone, every setting by hand
//	env                            what FromEnv says
//
// # What is known, and from where
//
// The files testdata/*/*.txt are answers of the frameworks themselves, made with
// stand-ins for the GPU's driver; every answer is a test. A release that changes
// something is one entry of a table, such as jax.txt, with its source.
package frameworks

import (
	"fmt"
	"strings"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/torchconf"
)

// A Release names a framework and one of its releases.
type Release struct {
	Name    string // "jax", "tensorflow", "pytorch", "cupy", or "gpumem" for our own runtime
	Version string // such as "0.4.30"; empty means the newest known
}

// A Framework is one of those known.
type Framework struct {
	Name   string         // as in [Release]
	Title  string         // as people write it
	Newest policy.Version // the newest release that was looked at; zero for a framework without versions
	When   string         // the variables are read

	example string              // a version, for errors; empty for a framework without versions
	table   func() releaseTable // nil for a framework without versions
	read    func(policy.Environment, policy.Version) (policy.Reading, *policy.SettingError)
}

// releaseTable is the [releases.Table] of a framework.
type releaseTable interface {
	Find(text, framework, like string) (policy.Version, error)
	Changes() []policy.Change
}

// All are the frameworks that are known, the default first.
var All = []Framework{
	{
		Name: "jax", Title: "JAX", Newest: newestJAX, example: "0.4.30",
		read: func(e policy.Environment, v policy.Version) (policy.Reading, *policy.SettingError) {
			return readJAX(e, v, jaxReleases().At(v))
		},
		table: func() releaseTable { return jaxReleases() },
		When:  "once, at the first operation; to set them in Python after that is too late",
	},
	{
		Name: "tensorflow", Title: "TensorFlow", Newest: newestTensorFlow, example: "2.15",
		read:  readTensorFlow,
		table: func() releaseTable { return tfReleases() },
		When:  "once, when the GPU is first used or listed; to set them in Python after that is too late",
	},
	{
		Name: "pytorch", Title: "PyTorch", Newest: torchconf.Newest, example: "2.8.0",
		read:  torchconf.Read,
		table: func() releaseTable { return torchconf.Releases() },
		When:  "once: the backend at import torch, the rest when a GPU is first used; to set them in Python after that is too late",
	},
	{
		Name: "cupy", Title: "CuPy", Newest: newestCuPy, example: "13.6.0",
		read:  readCuPy,
		table: func() releaseTable { return cupyReleases() },
		When:  "when the pool is made: at the first allocation on a GPU",
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
		n := notes{Notes: r.Notes}
		r.Hidden = n.devices(f)
		r.Notes = n.Notes
	}
	return r, err
}

// Changes returns what each release changed, the oldest first.
func (f Framework) Changes() []policy.Change {
	if f.table == nil {
		return nil
	}
	return f.table().Changes()
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

// String returns NAME, or NAME@VERSION if the release has a version.
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
	name = Canonical(name)
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
	if err != nil || r.Version == "" || f.table == nil {
		return f, f.Newest, err
	}
	v, err := f.table().Find(r.Version, f.Title, f.example)
	return f, v, err
}

// Canonical returns the name of a framework for one that people use: that of its package or a
// short one. Other names are returned as they are.
func Canonical(name string) string {
	switch name {
	case "torch":
		return "pytorch"
	case "tf":
		return "tensorflow"
	}
	return name
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
	for _, c := range f.Changes() {
		if v, _ := policy.ParseVersion(c.Version, f.Title, f.example); from.Less(v) && !to.Less(v) {
			list = append(list, c)
		}
	}
	return list
}
