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
var names = []string{"jax", "tensorflow", "pytorch", "bfc", "platform", "address", "async", "vmm", "elastic", "env"}

// versioned are those of them that take a version.
var versioned = []string{"jax", "tensorflow", "pytorch"}

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
	kinds []policy.Kind // that it applies to
	want  string        // the accepted values, for the error
}

// maxLimit bounds the limits on the command line.
const maxLimit = 1 << 63

var keys = []key{
	{"preallocate", []policy.Kind{policy.BFC, policy.Async}, wantBool},
	{"fraction", []policy.Kind{policy.BFC, policy.Async, policy.VMM, policy.Elastic}, "a number above 0 (vmm and elastic: up to 1), such as 0.75 for 75 %; jax@next also 0.75+ or 0.75-0.85"},
	{"of", []policy.Kind{policy.BFC, policy.Async, policy.VMM, policy.Elastic}, "total or free"},
	{"limit", []policy.Kind{policy.BFC, policy.Async, policy.VMM, policy.Elastic}, "a size above 0 with its unit, such as 10GiB"},
	{"spatial", []policy.Kind{policy.BFC}, wantBool},
	{"topdown", []policy.Kind{policy.BFC}, wantBool},
	{"gc", []policy.Kind{policy.BFC}, wantBool},
	{"coalesce", []policy.Kind{policy.BFC}, wantBool},
	{"fragmentation", []policy.Kind{policy.BFC}, "a number from 0 to 1"},
	{"align", []policy.Kind{policy.BFC}, "a power of two, such as 512 or 2MiB"},
	{"async_prealloc", []policy.Kind{policy.Async}, "a size with its unit, such as 4GiB, or -1"},
	{"reserve", []policy.Kind{policy.Elastic}, "a size with its unit, such as 256MiB"},
	{"eager", []policy.Kind{policy.Elastic}, wantBool},
}

const wantBool = "true or false"

// Parse reads NAME[@VERSION][:key=value,...], for example "jax",
// "jax@0.4.0:preallocate=false" or "bfc:limit=10GiB,gc=true".
//
// NAME is jax, tensorflow, pytorch, bfc, platform, address, async, vmm, elastic or
// env; jax, tensorflow and pytorch take a version. The keys of pytorch are those of
// PYTORCH_ALLOC_CONF that the release knows, as in
// "pytorch@2.8:max_split_size_mb=128,expandable_segments=True", and fraction, which
// is torch.cuda.set_per_process_memory_fraction. The keys of the others, with the kinds
// of policy that take them:
//
//	preallocate     true or false                 bfc jax tensorflow async
//	fraction        a number above 0; of vmm      bfc jax tensorflow async vmm elastic
//	                and elastic up to 1; of
//	                jax@next also 0.75+, to grow
//	                to all, and 0.75-0.85
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
	name = Canonical(name)

	var p policy.Policy
	var err error
	switch {
	case !slices.Contains(names, name):
		return p, fmt.Errorf("unknown policy %q%s; want one of %s", name, spelling.DidYouMean(name, names), strings.Join(names, ", "))
	case hasVersion && !slices.Contains(versioned, name):
		return p, fmt.Errorf("%s has no versions; only jax, tensorflow and pytorch take one, as in jax@0.4.30", name)
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
	case name == "pytorch":
		var list []string
		if hasSettings {
			list = splitSettings(settings)
		}
		p, err = pyTorch(version, list)
		p.Spec = spec
		return p, err
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
	grows := false // as the fraction says
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
		case !set(p, name, value):
			if problem := growthProblem(p, name, value); problem != "" {
				return fmt.Errorf("key %q: %s", name, problem)
			}
			return fmt.Errorf("key %q: got %q, want %s", name, value, keys[i].want)
		}
		seen[name] = true
		grows = grows || name == "fraction" && p.Cap > p.Fraction
	}
	isDivided, isOfTotal := p.Preallocate && p.Spatial && p.TopDown, p.Of == policy.Total && p.Limit == 0
	if grows && (!isDivided || !isOfTotal) {
		return errors.New(`key "fraction": a pool grows with preallocate, spatial and topdown, of the total, and without limit; leave the others out, or write one number`)
	}
	if p.Spatial && !p.Preallocate {
		if seen["spatial"] { // INVALID_ARGUMENT in XLA, too
			return errors.New(`key "spatial": true needs preallocate=true; leave one of the two out`)
		}
		p.Spatial = false
	}
	if !p.TopDown || p.Of == policy.Free || p.Limit != 0 {
		p.Cap = 0
	}
	if p.Grows() && (p.GC || p.Coalesce) {
		return errors.New("a pool that grows in reserved addresses has no garbage collection and one region; leave gc and coalesce out, or write fraction=0.75")
	}
	if !p.Spatial {
		if p.TopDown && seen["topdown"] {
			return errors.New(`key "topdown": true needs spatial=true; leave one of the two out`)
		}
		setEnds(p, false, false)
	}
	return nil
}

// growthProblem returns what is wrong with a fraction that says how far a pool grows;
// empty where the release has none, or the value is none.
func growthProblem(p *policy.Policy, name, value string) string {
	_, v, _ := Release{"jax", p.Version}.Find()
	if name != "fraction" || p.Name != "jax" || !jaxReleases().At(v).Grow {
		return ""
	}
	_, _, problem := growth(value)
	return problem
}

// keyNames returns the keys that apply to p.
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

// set gives the field of a key its value, and reports whether the key takes it.
func set(p *policy.Policy, name, value string) (ok bool) {
	truth, isTruth := map[string]bool{"true": true, "1": true, "yes": true, "false": false, "0": false, "no": false}[value]
	number, notNumber := strconv.ParseFloat(value, 64)
	bytes, notSize := size.ParseFlag(value)
	isSize := notSize == nil && bytes <= maxLimit
	switch name {
	case "preallocate":
		p.Preallocate, ok = truth, isTruth
	case "spatial":
		p.Spatial, ok = truth, isTruth
	case "topdown":
		p.TopDown, ok = truth, isTruth
	case "gc":
		p.GC, ok = truth, isTruth
	case "coalesce":
		p.Coalesce, ok = truth, isTruth
	case "eager":
		p.Eager, ok = truth, isTruth
	case "of":
		p.Of, ok = map[string]policy.Basis{"total": policy.Total, "free": policy.Free}[value]
	case "limit":
		p.Limit, ok = bytes, isSize && bytes > 0
	case "reserve":
		p.Reserve, ok = bytes, isSize
	case "fragmentation":
		p.Fragmentation, ok = number, notNumber == nil && number >= 0 && number <= 1
	case "align":
		n, err := size.Parse(value)
		p.Align, ok = n, err == nil && bits.OnesCount64(n) == 1
	case "async_prealloc":
		if p.AsyncPrealloc, ok = int64(bytes), isSize && bytes <= math.MaxInt64; value == "-1" {
			p.AsyncPrealloc, ok = -1, true
		}
	case "fraction":
		p.Fraction, ok = number, notNumber == nil && number > 0 && !math.IsInf(number, 0)
		switch p.Name {
		case "jax":
			_, v, _ := Release{p.Name, p.Version}.Find() // it has been read before
			r := jaxReleases().At(v)
			if r.Grow && notNumber != nil { // a double, as in the flag for it
				start, most, problem := growth(value)
				if p.Fraction, p.Cap = start, most; start == most {
					p.Cap = 0
				}
				return problem == ""
			}
			p.Fraction, p.Cap = r.convert(number), 0
			ok = ok && p.Fraction > 0 && !math.IsInf(p.Fraction, 0)
		case "tensorflow": // per_process_gpu_memory_fraction
			p.Leave, p.Of, p.Managed = policy.Leave{}, policy.Total, number > 1
		case "vmm", "elastic": // a percentage would be as no limit, without a word
			ok = ok && number <= 1
		}
	}
	return ok
}
