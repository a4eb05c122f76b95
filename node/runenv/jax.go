// JAX, and GoMLX, which has the same XLA behind it: one fraction of the GPU.

package runenv

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

const (
	// The old name of the fraction works in every release, 0.1.16 to 0.12.0.1;
	// the new one since 0.4.32, and from then on both together are refused.
	fractionVar    = "XLA_PYTHON_CLIENT_MEM_FRACTION"
	newFractionVar = "XLA_CLIENT_MEM_FRACTION"
	preallocateVar = "XLA_PYTHON_CLIENT_PREALLOCATE"
	allocatorVar   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	unifiedVar     = "TF_FORCE_UNIFIED_MEMORY"
	createVar      = "JAX_PJRT_CLIENT_CREATE_OPTIONS"
	gomlxVar       = "GOMLX_BACKEND"

	// What a limit is rounded up to since JAX 0.10.2. Releases before take less
	// with the same fraction.
	jaxRound = 2 << 20
)

// jax sets JAX's fraction.
func (e *editor) jax(lim Limits) error {
	fractions, err := lim.fractions("jax", jaxRound)
	if err != nil {
		return err
	}
	most, i := least(fractions)
	e.fraction(most, lim.why("jax", i))
	if lim.Allocator != "" {
		if text := refused(allocatorVar, lim.Allocator); text != "" {
			return fmt.Errorf("allocator %q: %s", lim.Allocator, text)
		}
		e.set(allocatorVar, lim.Allocator, "as requested (--allocator)")
	}
	if lim.Growth {
		e.set(preallocateVar, "false", "JAX allocates on demand, up to its fraction")
	}
	e.unset(unifiedVar, "with it JAX takes a fraction below 1 for 1, and the pool could be the whole GPU")
	e.createOptions()
	e.jaxRemarks(lim)
	return nil
}

// fraction sets JAX's fraction to most, or keeps a smaller one of the user's.
func (e *editor) fraction(most float64, why string) {
	ours := strconv.FormatFloat(most, 'f', -1, 64) // reads as this very float, in 64 bits and in 32
	old, renamed := e.get(fractionVar), e.get(newFractionVar)
	text := old
	if text == "" {
		text = renamed
	}
	theirs, ok := jaxFraction(text)
	switch {
	case text == "":
		e.set(fractionVar, ours, why)
	case !ok: // in every release, once it stands under the name that all read
		e.set(fractionVar, text, "is no number, which JAX is left to say")
	case theirs > 0 && theirs <= most:
		e.set(fractionVar, text, "the user's own fraction is within "+why)
	default:
		e.set(fractionVar, ours, why+"; "+text+" would be outside of it")
	}
	if old == "" || renamed == "" { // else JAX refuses both: see jaxRemarks
		e.unset(newFractionVar, "the fraction stands under its old name, which every release reads; JAX refuses both together")
	}
}

// jaxFraction returns the largest fraction that any release reads from a text. ok is
// false if it is not a number.
func jaxFraction(text string) (f float64, ok bool) {
	// Until 0.4.29 a fraction is a double, later a 32-bit float.
	a, err := explain.Environment(policy.Environ([]string{fractionVar + "=" + text}), frameworks.Release{Name: "jax", Version: "0.4.29"}, policy.Device{})
	if err != nil || len(a.Errors) > 0 {
		return 0, false
	}
	f = a.Policy.Fraction
	return math.Max(f, float64(float32(f))), true // NaN stays NaN
}

// refused returns the newest JAX's error for one variable alone, or "".
func refused(name, value string) string {
	a, err := explain.Environment(policy.Environ([]string{name + "=" + value}), frameworks.Release{Name: "jax"}, policy.Device{})
	if err == nil && len(a.Errors) > 0 {
		return a.Errors[0].Text
	}
	return ""
}

// createOptions removes from JAX_PJRT_CLIENT_CREATE_OPTIONS what takes precedence over
// the fraction: memory_fraction_policy, since JAX 0.12.0. Earlier releases refuse it.
func (e *editor) createOptions() {
	parts := strings.Split(e.get(createVar), ";")
	rest := slices.DeleteFunc(slices.Clone(parts), func(p string) bool { return strings.HasPrefix(p, "memory_fraction_policy:") })
	const why = "memory_fraction_policy goes before the fraction, and could be more than the lease"
	switch {
	case len(rest) == len(parts):
	case len(rest) == 0:
		e.unset(createVar, why)
	default:
		e.set(createVar, strings.Join(rest, ";"), why)
	}
}

// jaxRemarks tells what JAX refuses, and what has no limit.
func (e *editor) jaxRemarks(lim Limits) {
	l := lim.Leases[0]
	a, err := explain.Environment(e.environment(), frameworks.Release{Name: "jax"}, policy.Device{Ordinal: l.Ordinal, Total: l.Total, Free: l.Total, CCMajor: l.CCMajor})
	if err != nil { // of the framework's name
		return
	}
	for _, x := range a.Errors {
		if x.CPU {
			e.keep(x.Name, "left as it is: "+x.Then)
			continue
		}
		e.keep(x.Name, "left as it is: JAX refuses it ("+x.Text+"); "+x.Then)
	}
	switch a.Allocator {
	case "platform", "address", "cuda_async":
		name := allocatorVar
		if !e.has(name) || strings.Contains(e.get(createVar), "allocator:") {
			name = createVar
		}
		e.keep(name, "the lease is not enforced: JAX's allocator "+a.Allocator+" has no limit")
	}
}

// gomlx puts the lease into GoMLX's backend. Where GOMLX_BACKEND is not set, or
// names another than CUDA's, it is left alone, with --allocator too: setting it
// would choose the backend of a program that may want another one.
func (e *editor) gomlx(lim Limits) error {
	text := e.get(gomlxVar)
	if !strings.HasPrefix(text, "xla:cuda") {
		return nil
	}
	fractions, err := lim.fractions("jax", jaxRound)
	if err != nil {
		return err
	}
	most, i := least(fractions)
	words := strings.Split(text, ",")
	value := func(name string) string {
		for _, w := range words[1:] {
			if v, ok := strings.CutPrefix(w, name+"="); ok {
				return v
			}
		}
		return ""
	}
	put := func(name, v string) {
		words = slices.DeleteFunc(words, func(w string) bool { return strings.HasPrefix(w, name+"=") })
		if v != "" {
			words = append(words, name+"="+v)
		}
	}
	put("visible_devices", "") // CUDA_VISIBLE_DEVICES does it; these would count within that list
	if f, err := strconv.ParseFloat(value("memory_fraction"), 32); err != nil || !(f > 0 && f <= most) {
		put("memory_fraction", strconv.FormatFloat(most, 'f', -1, 32))
	}
	if lim.Growth {
		put("preallocate", "false")
	}
	if lim.Allocator != "" {
		put("allocator", lim.Allocator)
	}
	why := lim.why("jax", i) + "; GoMLX up to 0.26.0 knows no such options, and only logs that"
	if a := value("allocator"); a == "platform" || a == "address" || a == "cuda_async" {
		why = "the lease is not enforced: the allocator " + a + " has no limit"
	}
	e.set(gomlxVar, strings.Join(words, ","), why)
	return nil
}
