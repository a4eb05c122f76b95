// The command line's --policy: NAME[@VERSION][:key=value,...].

package frameworks

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"

	"gpumem/size"

	"gpumem/internal/spelling"
	"gpumem/policy"
)

// names are all names of policies, in the order of the documentation.
var names = []string{"jax", "tensorflow", "bfc", "platform", "address", "async", "vmm", "elastic", "env"}

// named gives the kinds under their own names: what the allocator does alone,
// with no framework around it.
var named = map[string]policy.Policy{
	// XLA's BFCAllocator as it was before partitioning, collecting and rounding.
	"bfc": {Kind: policy.BFC, Preallocate: true, Fraction: 0.75},
	// No limit.
	"platform": {Kind: policy.Platform},
	"address":  {Kind: policy.Address},
	// Reserves nothing. The fraction says what -1 in async_prealloc means.
	"async": {Kind: policy.Async, Fraction: 0.75, AsyncKeep: true},
	// May use the whole device.
	"vmm":     {Kind: policy.VMM, Fraction: 1},
	"elastic": {Kind: policy.Elastic, Fraction: 1},
}

// A key changes one field.
type key struct {
	name  string
	kinds []policy.Kind                     // that it applies to
	want  string                            // the accepted values, for the error
	set   func(*policy.Policy, string) bool // false: not an accepted value
}

// maxLimit bounds the limits on the command line.
const maxLimit = 1 << 63

var keys = []key{
	{"preallocate", []policy.Kind{policy.BFC, policy.Async}, wantBool, setBool(func(p *policy.Policy) *bool { return &p.Preallocate })},
	{"fraction", []policy.Kind{policy.BFC, policy.Async, policy.VMM, policy.Elastic}, "a number above 0, such as 0.75 for 75 %", setFraction},
	{"of", []policy.Kind{policy.BFC, policy.Async, policy.VMM, policy.Elastic}, "total or free", setOf},
	{"limit", []policy.Kind{policy.BFC, policy.Async, policy.VMM, policy.Elastic}, "a size above 0 with its unit, such as 10GiB",
		setSize(1, func(p *policy.Policy) *uint64 { return &p.Limit })},
	{"spatial", []policy.Kind{policy.BFC}, wantBool, setBool(func(p *policy.Policy) *bool { return &p.Spatial })},
	{"topdown", []policy.Kind{policy.BFC}, wantBool, setBool(func(p *policy.Policy) *bool { return &p.TopDown })},
	{"gc", []policy.Kind{policy.BFC}, wantBool, setBool(func(p *policy.Policy) *bool { return &p.GC })},
	{"coalesce", []policy.Kind{policy.BFC}, wantBool, setBool(func(p *policy.Policy) *bool { return &p.Coalesce })},
	{"fragmentation", []policy.Kind{policy.BFC}, "a number from 0 to 1", setFragmentation},
	{"align", []policy.Kind{policy.BFC}, "a power of two, such as 512 or 2MiB", setAlign},
	{"async_prealloc", []policy.Kind{policy.Async}, "a size with its unit, such as 4GiB, or -1", setAsyncPrealloc},
	{"reserve", []policy.Kind{policy.Elastic}, "a size with its unit, such as 256MiB", setSize(0, func(p *policy.Policy) *uint64 { return &p.Reserve })},
	{"eager", []policy.Kind{policy.Elastic}, wantBool, setBool(func(p *policy.Policy) *bool { return &p.Eager })},
}

// Parse reads NAME[@VERSION][:key=value,...], for example "jax",
// "jax@0.4.0:preallocate=false" or "bfc:limit=10GiB,gc=true".
//
// NAME is jax, tensorflow, bfc, platform, address, async, vmm, elastic or env;
// jax and tensorflow take a version. The keys, with the kinds of policy that take them:
//
//	preallocate     true or false                 bfc jax tensorflow async
//	fraction        a number above 0              bfc jax tensorflow async vmm elastic
//	of              total or free                 bfc jax tensorflow async vmm elastic
//	limit           a size above 0, up to 8EiB;   bfc jax tensorflow async vmm elastic
//	                it wins over fraction
//	spatial         true or false; needs          bfc jax
//	                preallocate, whose value it
//	                follows in the newest jax
//	gc, coalesce    true or false                 bfc jax tensorflow
//	fragmentation   a number from 0 to 1          bfc jax tensorflow
//	align           a power of two, in bytes      bfc jax tensorflow
//	async_prealloc  a size, or -1                 async
//	reserve         a size                        elastic
//	eager           true or false                 elastic
//
// true is also 1 or yes, false also 0 or no; sizes are those of
// [size.ParseFlag], align is in bytes.
// env is [FromEnv] on this process's environment, without the warnings, and
// takes no keys; its error wraps a [SettingError] if the framework would raise
// one. No other name looks at the environment. In tensorflow, preallocate=false
// is allow_growth, fraction is per_process_gpu_memory_fraction, and limit is
// that of a logical device; without either the pool is what is free less what
// that release leaves to the driver.
//
// Every error is one line that names the policy, the part of it that is wrong
// and what is accepted.
func Parse(spec string) (policy.Policy, error) {
	p, err := parse(spec)
	if err != nil {
		return policy.Policy{}, fmt.Errorf("policy %q: %w", spec, err)
	}
	return p, nil
}

func parse(spec string) (policy.Policy, error) {
	head, settings, hasSettings := strings.Cut(spec, ":")
	name, version, hasVersion := strings.Cut(head, "@")

	var p policy.Policy
	var err error
	switch {
	case !slices.Contains(names, name):
		return p, fmt.Errorf("unknown policy %q%s; want one of %s", name, spelling.DidYouMean(name, names), strings.Join(names, ", "))
	case hasVersion && name != "jax" && name != "tensorflow":
		return p, fmt.Errorf("%s has no versions; only jax and tensorflow take one, as in jax@0.4.30", name)
	case hasVersion && version == "":
		return p, fmt.Errorf("no version after @; want one such as jax@0.4.30, or %s alone for the newest", name)
	case name == "env" && hasSettings:
		return p, errors.New("env takes no keys; set the environment's variables instead")
	case name == "env":
		p, _, err = FromEnv(policy.Environ(os.Environ()))
		var setting *policy.SettingError
		if errors.As(err, &setting) { // whose text may not say where
			err = fmt.Errorf("%s: %w", setting.Name, err)
		}
		return p, err
	case name == "jax":
		if p, err = JAX(version); err != nil {
			return p, err
		}
	case name == "tensorflow":
		if p, err = TensorFlow(version, GPUOptions{}); err != nil {
			return p, err
		}
	default:
		p = named[name]
		p.Name = name
	}
	p.Spec = spec
	if hasSettings {
		err = applyKeys(&p, settings)
	}
	return p, err
}

// applyKeys reads key=value,...
func applyKeys(p *policy.Policy, settings string) error {
	seen := map[string]bool{}
	for setting := range strings.SplitSeq(settings, ",") {
		name, value, ok := strings.Cut(setting, "=")
		if !ok {
			return fmt.Errorf("%q is not key=value; %s", setting, takes(p))
		}
		i := slices.IndexFunc(keys, func(k key) bool { return k.name == name })
		switch {
		case i < 0:
			return fmt.Errorf("unknown key %q%s; %s", name, spelling.DidYouMean(name, keyNames(p)), takes(p))
		case !slices.Contains(keys[i].kinds, p.Kind):
			return fmt.Errorf("key %q does not apply; %s", name, takes(p))
		case seen[name]:
			return fmt.Errorf("key %q is given twice; give it once", name)
		case !keys[i].set(p, value):
			return fmt.Errorf("key %q: got %q, want %s", name, value, keys[i].want)
		}
		seen[name] = true
	}
	if p.Spatial && !p.Preallocate {
		if seen["spatial"] { // INVALID_ARGUMENT in XLA, too
			return errors.New(`key "spatial": true needs preallocate=true; leave one of the two out`)
		}
		p.Spatial = false
	}
	if !p.Spatial {
		if p.TopDown && seen["topdown"] {
			return errors.New(`key "topdown": true needs spatial=true; leave one of the two out`)
		}
		setEnds(p, false, false)
	}
	return nil
}

// keyNames are the keys that apply to p.
func keyNames(p *policy.Policy) []string {
	var list []string
	for _, k := range keys {
		if slices.Contains(k.kinds, p.Kind) {
			list = append(list, k.name)
		}
	}
	return list
}

// takes says in an error what keys there are.
func takes(p *policy.Policy) string {
	if list := keyNames(p); len(list) > 0 {
		return p.Name + " takes " + strings.Join(list, ", ")
	}
	return p.Name + " takes no keys"
}

const wantBool = "true or false"

func setBool(field func(*policy.Policy) *bool) func(*policy.Policy, string) bool {
	return func(p *policy.Policy, s string) bool {
		switch s {
		case "true", "1", "yes":
			*field(p) = true
		case "false", "0", "no":
			*field(p) = false
		default:
			return false
		}
		return true
	}
}

func setSize(least uint64, field func(*policy.Policy) *uint64) func(*policy.Policy, string) bool {
	return func(p *policy.Policy, s string) bool {
		n, err := size.ParseFlag(s)
		*field(p) = n
		return err == nil && n >= least && n <= maxLimit
	}
}

func setFraction(p *policy.Policy, s string) bool {
	f, err := strconv.ParseFloat(s, 64)
	if p.Name == "jax" {
		r, _ := jaxAt(p.Version)
		f = r.convert(f)
	}
	p.Fraction = f
	if p.Name == "tensorflow" { // per_process_gpu_memory_fraction
		p.Leave, p.Of, p.Managed = policy.Leave{}, policy.Total, f > 1
	}
	return err == nil && f > 0 && !math.IsInf(f, 0)
}

func setOf(p *policy.Policy, s string) bool {
	switch s {
	case "total":
		p.Of = policy.Total
	case "free":
		p.Of = policy.Free
	default:
		return false
	}
	return true
}

func setFragmentation(p *policy.Policy, s string) bool {
	f, err := strconv.ParseFloat(s, 64)
	p.Fragmentation = f
	return err == nil && f >= 0 && f <= 1
}

func setAlign(p *policy.Policy, s string) bool {
	n, err := size.Parse(s)
	p.Align = n
	return err == nil && bits.OnesCount64(n) == 1
}

func setAsyncPrealloc(p *policy.Policy, s string) bool {
	if s == "-1" {
		p.AsyncPrealloc = -1
		return true
	}
	n, err := size.ParseFlag(s)
	p.AsyncPrealloc = int64(n)
	return err == nil && n <= math.MaxInt64
}
