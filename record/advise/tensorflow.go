package advise

// TensorFlow's settings, by release.

import (
	"fmt"
	"strings"

	"gpumem/policy"
)

const (
	tfGrowth    = "TF_FORCE_GPU_ALLOW_GROWTH=true"
	tfAllocator = "TF_GPU_ALLOCATOR="
)

// tensorFlow returns the candidates of a release of TensorFlow. A limit is set by the
// program: no variable has it.
func (a *adviser) tensorFlow(has features) []*Candidate {
	name := a.source.release().String()
	// limit returns ways with a limit in MiB, whose names begin with spec.
	limit := func(spec string, set ...string) func(int, uint64) way {
		return func(percent int, total uint64) way {
			n := max(1, total/100*uint64(percent)/mib)
			w := named(fmt.Sprintf("%slimit=%dMiB", spec, n), set...)
			w.call = []string{a.tensorFlowLimit(n)}
			w.brief = append(tensorFlowBrief(set), fmt.Sprintf("memory_limit=%d", n))
			w.limits = &Range{Least: fmt.Sprint(n)}
			return w
		}
	}
	grow := named(name+":preallocate=false", tfGrowth)
	grow.brief = tensorFlowBrief(grow.set)
	list := []*Candidate{
		fixed(named(name)),
		limited(nil, limit(name+":")),
		limited(&grow, limit(name+":preallocate=false,", tfGrowth)),
	}
	other := func(spec, value string) {
		set := []string{tfAllocator + value}
		if p, ok := a.read(has, set...); ok {
			p.Spec = spec
			list = append(list, fixed(way{policy: p, set: set, brief: tensorFlowBrief(set)}))
		}
	}
	if p, _ := a.read(has, tfAllocator+"cuda_malloc_async"); has.pools && p.Kind == policy.Async {
		other(asyncSpec(p), "cuda_malloc_async")
	}
	other("platform", "cuda_malloc")
	return list
}

func tensorFlowBrief(set []string) []string {
	var list []string
	for _, s := range set {
		list = append(list, strings.TrimPrefix(strings.TrimPrefix(s, "TF_"), "FORCE_GPU_"))
	}
	return list
}

// tensorFlowLimit returns the statement that limits the pool of each GPU to n MiB. It has
// another name before TensorFlow 2.4.
func (a *adviser) tensorFlowLimit(n uint64) string {
	set, class := "set_logical_device_configuration", "LogicalDeviceConfiguration"
	if _, v, err := a.source.release().Find(); err == nil && v.Less(policy.Version{2, 4}) {
		set, class = "experimental.set_virtual_device_configuration", "experimental.VirtualDeviceConfiguration"
	}
	return fmt.Sprintf(`for gpu in tf.config.list_physical_devices("GPU"): tf.config.%s(gpu, [tf.config.%s(memory_limit=%d)])`, set, class, n)
}
