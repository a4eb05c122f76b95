// A policy as the options of a PJRT GPU client, for programs that make one
// themselves: GoMLX, and others that do not go through JAX's Python.

package policy

import (
	"fmt"
	"math"
	"sort"
	"strconv"
	"strings"
)

// clientNames are the allocators' names in PJRT_Client_Create's option
// allocator (xla/pjrt/c/pjrt_c_api_gpu_internal.cc).
var clientNames = map[Kind]string{BFC: "bfc", Platform: "platform", Address: "address", Async: "cuda_async", VMM: "vmm"}

// ClientOptions returns the policy as options of PJRT_Client_Create, with the types
// that it wants: allocator (string), memory_fraction (float32), preallocate
// (bool), memory_fraction_policy (string) for a pool that grows, collective_memory_size
// (int64, bytes) and, if devices are named, visible_devices ([]int64). That is what go-xla's NamedValuesMap holds.
//
// XLA's client reads none of JAX's variables: JAX's Python does, and a program
// without it passes options instead. A Limit in bytes, or a fraction of what is
// free, becomes a fraction of the total of d, the largest that does not exceed
// it.
//
// The error is one line that names what these options cannot say: the policy
// elastic, garbage collection, alignment, unified memory, and the like.
func (p Policy) ClientOptions(d Device, devices ...int) (map[string]any, error) {
	name, ok := clientNames[p.Kind]
	switch {
	case !ok:
		return nil, fmt.Errorf("policy %s: XLA has no allocator %s; its own are bfc, platform, address, cuda_async and vmm", p.Spec, p.Kind)
	case p.GC || p.Coalesce || p.Fragmentation != 0 || p.Align != 0:
		return nil, fmt.Errorf("policy %s: XLA's client has no option for gc, coalesce, fragmentation or align; leave them out", p.Spec)
	case p.Managed:
		return nil, fmt.Errorf("policy %s: unified memory is no option of XLA's client; set TF_FORCE_UNIFIED_MEMORY=true in the environment", p.Spec)
	case p.AsyncPrealloc != 0:
		return nil, fmt.Errorf("policy %s: what the driver's pool takes first is no option of XLA's client; set TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=%d in the environment", p.Spec, p.AsyncPrealloc)
	}
	options := map[string]any{"allocator": name}
	if p.Kind != Platform && p.Kind != Address {
		f := p.Fraction
		if p.Limit != 0 || p.GoesByFree() {
			if d.Total == 0 {
				return nil, fmt.Errorf("policy %s: a limit in bytes is a fraction of the device's total, which is not known", p.Spec)
			}
			f = FractionFor(p.LimitBytes(d), Policy{RoundLimit: p.RoundLimit}, d)
		}
		options["memory_fraction"] = float32(f)
		if p.Grows() { // goes before it
			options["memory_fraction_policy"] = FractionPolicy(p.Fraction, p.Cap)
		}
	}
	if p.Kind == BFC || p.Kind == Async {
		options["preallocate"] = p.Preallocate
		if p.CollectiveBytes > 0 {
			options["collective_memory_size"] = int64(p.CollectiveBytes)
		}
	}
	if len(devices) > 0 {
		visible := make([]int64, len(devices))
		for i, n := range devices {
			visible[i] = int64(n)
		}
		options["visible_devices"] = visible
	}
	return options, nil
}

// GoMLX returns the same as the text that GoMLX takes in GOMLX_BACKEND, such as
// "xla:cuda,allocator=bfc,memory_fraction=0.4,preallocate=true,visible_devices=0;1".
// Preallocation is always said, for GoMLX's default is not JAX's.
func (p Policy) GoMLX(d Device, devices ...int) (string, error) {
	options, err := p.ClientOptions(d, devices...)
	if err != nil {
		return "", err
	}
	words := []string{"xla:cuda"}
	for _, name := range []string{"allocator", "memory_fraction", "memory_fraction_policy", "preallocate", "collective_memory_size", "visible_devices"} {
		switch v := options[name].(type) {
		case nil:
		case float32:
			words = append(words, name+"="+strconv.FormatFloat(float64(v), 'f', -1, 32))
		case []int64:
			var list []string
			for _, n := range v {
				list = append(list, strconv.FormatInt(n, 10))
			}
			words = append(words, name+"="+strings.Join(list, ";"))
		default:
			words = append(words, fmt.Sprintf("%s=%v", name, v))
		}
	}
	return strings.Join(words, ","), nil
}

// FractionPolicy returns where a pool begins and how far it grows in the words of XLA's
// memory_fraction_policy: "0.75", "0.75+" or "0.75-0.85". most is at least start; equal,
// the pool does not grow.
func FractionPolicy(start, most float64) string {
	text := strconv.FormatFloat(start, 'g', -1, 64)
	switch {
	case most == start:
		return text
	case most == 1:
		return text + "+"
	}
	return text + "-" + strconv.FormatFloat(most, 'g', -1, 64)
}

// FractionFor returns the largest fraction, as a 32-bit float, with which the policy
// p takes no more than limit bytes of d: p's rounding up to 2 MiB is allowed
// for. 0 takes nothing.
func FractionFor(limit uint64, p Policy, d Device) float64 {
	p.Limit, p.Leave, p.Cap = 0, Leave{}, 0
	// The bits of positive floats are in the order of the floats, and a larger
	// fraction never takes less.
	most := int(math.Float32bits(math.MaxFloat32))
	bits := sort.Search(most, func(b int) bool {
		p.Fraction = float64(math.Float32frombits(uint32(b)))
		return p.LimitBytes(d) > limit
	})
	return float64(math.Float32frombits(uint32(max(bits-1, 0))))
}
