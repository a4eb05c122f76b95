// TensorFlow: how large its pool is, and its variables. What its Python or
// ConfigProto say comes as GPUOptions, for a variable changes what is asked for
// there. Measured with TensorFlow itself (testdata/tensorflow/pools.txt).

package frameworks

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"gpumem/size"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// The variables that TensorFlow reads, when its GPU device is made: at the first
// operation, or earlier if the program lists its logical devices.
const (
	tfGrowthVar  = "TF_FORCE_GPU_ALLOW_GROWTH"
	tfCollectVar = "TF_ENABLE_GPU_GARBAGE_COLLECTION"
	tfSystemVar  = "TF_DEVICE_MIN_SYS_MEMORY_IN_MB"
	tfHostVar    = "TF_GPU_HOST_MEM_LIMIT_IN_MB"
)

// GPUOptions is what a program asks of TensorFlow in code, as far as memory is
// concerned: the fields of tensorflow.GPUOptions (ConfigProto.gpu_options), of
// which tf.config sets the same. The zero value is a program that asks nothing.
type GPUOptions struct {
	Fraction    float64 // per_process_gpu_memory_fraction; 0 means unset; above 1 is unified memory
	AllowGrowth bool    // allow_growth; tf.config.experimental.set_memory_growth
	// Limit is experimental.virtual_devices.memory_limit_mb of the first logical
	// device, in MiB (tf.config.LogicalDeviceConfiguration); nil means unset.
	Limit     *float64
	SystemMiB int32 // experimental.gpu_system_memory_size_in_mb; not above 0 means unset
	Unified   bool  // experimental.use_unified_memory
	Async     bool  // experimental.use_cuda_malloc_async
}

// TensorFlow returns the policy of a TensorFlow release, "" for the newest, with
// nothing set in the environment and o asked for in code. The error is about
// the version.
func TensorFlow(version string, o GPUOptions) (policy.Policy, error) {
	_, v, err := Release{"tensorflow", version}.Find()
	if err != nil {
		return policy.Policy{}, err
	}
	n := notes{}
	p, refused := n.tensorflow(tfReleases().At(v), o)
	if refused != nil { // no variable is set that could be refused
		return policy.Policy{}, refused
	}
	p.Version = version
	p.Spec = Release{"tensorflow", version}.String()
	return p, nil
}

// readTensorFlow returns what a release of TensorFlow does with an environment in a
// program that asks for nothing.
func readTensorFlow(env policy.Environment, v policy.Version) (policy.Reading, *policy.SettingError) {
	return readGPUOptions(env, tfReleases().At(v), GPUOptions{})
}

func readGPUOptions(env policy.Environment, r tfRelease, o GPUOptions) (policy.Reading, *policy.SettingError) {
	n := newNotes(env)
	p, err := n.tensorflow(r, o)
	return policy.Reading{Policy: p, Pools: func(d policy.Device) []policy.Pool { return tfPools(p, cmp.Or(n.hostLimit, r.HostLimitGiB<<30), d) }, Notes: n.Notes}, err
}

// tensorflow returns the policy, in the order in which TensorFlow decides
// (SingleVirtualDeviceMemoryLimit, then GPUProcessState::GetGPUAllocator).
func (n *notes) tensorflow(r tfRelease, o GPUOptions) (policy.Policy, *policy.SettingError) {
	p := policy.Policy{Name: "tensorflow", Kind: policy.BFC, Preallocate: !o.AllowGrowth, GC: true, FirstRegion: r.FirstRegionMiB << 20, RegionUnit: plainUnit,
		Managed: o.Unified || o.Fraction > 1}
	switch {
	case o.Limit != nil:
		p.Limit = uint64(int64(*o.Limit)) << 20
	case o.Fraction != 0:
		p.Fraction = o.Fraction
	default:
		p.Of, p.Leave.Rule = policy.Free, r.Leave
	}
	if o.Limit == nil && o.SystemMiB > 0 {
		p.Of, p.Leave.Set, p.Leave.Bytes = policy.Free, true, uint64(o.SystemMiB)<<20
	}
	n.systemMemory(&p, r, o)
	n.growth(&p, o)
	n.collection(&p)
	if _, err := n.deviceLimit(r.Plus); err != nil { // read before an allocator is made
		return p, err
	}
	if err := n.tfAllocatorOf(&p, r, o); err != nil {
		return p, err
	}
	unread := ""
	if p.Kind == policy.Async {
		unread = "ignored: the driver's pool does not ask StreamExecutor"
	}
	if err := n.perDevice(&p, unread, r.Plus); err != nil {
		return p, err
	}
	n.tfOthers()
	return p, n.tfHost(r)
}

// systemMemory reads TF_DEVICE_MIN_SYS_MEMORY_IN_MB.
func (n *notes) systemMemory(p *policy.Policy, r tfRelease, o GPUOptions) {
	text := n.Env.Get(tfSystemVar)
	if text == "" {
		return
	}
	mib, ok := readInt(text, r.Plus)
	switch {
	case !r.System:
		n.Warn(tfSystemVar, "-"+tfSystemVar, "this release does not read it, only TensorFlow 2.5 and later do")
	case o.Limit != nil:
		n.Warn(tfSystemVar, "-"+tfSystemVar, "ignored: the program sets a limit for its logical device")
	case !ok || mib < 0:
		n.Warn(tfSystemVar, "", "%s is not a number of MiB and is ignored; write one such as 1024", literal.PyRepr(text))
	default:
		bytes := uint64(mib) << 20
		if r.Wraps && bytes != uint64(int32(bytes)) {
			bytes = uint64(int32(bytes))
			n.Warn(tfSystemVar, "", "this release counts in 32 bits: the pool is what is free less %s; TensorFlow 2.7 repaired that", size.Format(bytes))
		} else {
			n.Effect(tfSystemVar, "the pool is what is free less %s, instead of any fraction", size.Format(bytes))
		}
		p.Of, p.Leave.Set, p.Leave.Bytes = policy.Free, true, bytes
	}
}

// growth reads TF_FORCE_GPU_ALLOW_GROWTH, which goes before the program.
func (n *notes) growth(p *policy.Policy, o GPUOptions) {
	text, set := n.Env.Lookup(tfGrowthVar)
	if !set {
		return
	}
	asked := "the pool is preallocated"
	if o.AllowGrowth {
		asked = "the pool grows"
	}
	switch text {
	case "true":
		p.Preallocate = false
		n.Effect(tfGrowthVar, "memory is allocated on demand")
	case "false":
		p.Preallocate = true
		n.Effect(tfGrowthVar, "the whole pool is preallocated, whatever the program asks for")
	default:
		fix := tfGrowthVar + "=true"
		if no := strings.ToLower(strings.TrimSpace(text)); no == "0" || no == "false" || no == "no" || no == "off" || no == "" {
			fix = "-" + tfGrowthVar
		}
		n.Warn(tfGrowthVar, fix, "%s is not recognised, so %s as the program asks; only true and false are, in small letters", literal.PyRepr(text), asked)
	}
}

// collection reads TF_ENABLE_GPU_GARBAGE_COLLECTION.
func (n *notes) collection(p *policy.Policy) {
	text, set := n.Env.Lookup(tfCollectVar)
	switch {
	case !set:
	case text == "true":
		n.Effect(tfCollectVar, "free regions are released before a request is refused, as by default")
	case text == "false":
		p.GC = false
		n.Effect(tfCollectVar, "free regions are kept, even where releasing them would serve a request")
	default:
		n.Warn(tfCollectVar, "", "%s is not recognised and means true; only true and false are, in small letters", literal.PyRepr(text))
	}
}

// tfAllocatorOf reads TF_GPU_ALLOCATOR and what the driver's pool reads.
func (n *notes) tfAllocatorOf(p *policy.Policy, r tfRelease, o GPUOptions) *policy.SettingError {
	text := n.Env.Get(tfAllocatorVar)
	async := r.Async && text == "cuda_malloc_async" || r.AsyncOption && o.Async
	switch {
	case text == "cuda_malloc":
		*p = policy.Policy{Name: p.Name, Kind: policy.Platform}
		n.Effect(tfAllocatorVar, "each allocation is a separate one of the driver's (cudaMalloc), which its free releases; slow")
	case async && n.Env.NoPools:
		return noPools(tfAllocatorVar)
	case async:
		*p = policy.Policy{Name: p.Name, Kind: policy.Async, Fraction: p.Fraction, Of: p.Of, Limit: p.Limit, Leave: p.Leave, AsyncKeep: true}
		if text == "cuda_malloc_async" {
			n.Effect(tfAllocatorVar, "the driver's own pool (cudaMallocAsync)")
		}
		if _, set := n.Env.Lookup(tfGrowthVar); set {
			n.Settings = without(n.Settings, tfGrowthVar)
			n.Warn(tfGrowthVar, "-"+tfGrowthVar, "ignored: the driver's pool always grows")
		}
	case text == "memory_guard":
		n.Effect(tfAllocatorVar, "the pool (bfc) with guard words around every block: for finding errors, slow")
	case text == "cuda_malloc_async":
		n.Warn(tfAllocatorVar, "-"+tfAllocatorVar, "this release does not know it and builds the pool (bfc); TensorFlow 2.5 and later do")
	case text != "":
		fix := ""
		if near := spelling.Nearest(strings.TrimSpace(text), []string{"cuda_malloc_async", "cuda_malloc", "memory_guard"}); near != "" {
			fix = tfAllocatorVar + "=" + near
		}
		n.Warn(tfAllocatorVar, fix, "%s is not recognised and means the pool (bfc); it may be cuda_malloc_async, cuda_malloc or memory_guard, in small letters", literal.PyRepr(text))
	}
	if r.Deterministic {
		if err := n.deterministic(p); err != nil {
			return err
		}
	}
	return n.tfPrealloc(p, r)
}

// without returns settings less those of one variable.
func without(settings []policy.Setting, name string) []policy.Setting {
	var list []policy.Setting
	for _, s := range settings {
		if s.Name != name {
			list = append(list, s)
		}
	}
	return list
}

// tfPrealloc reads TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC.
func (n *notes) tfPrealloc(p *policy.Policy, r tfRelease) *policy.SettingError {
	text, set := n.Env.Lookup(asyncVar)
	if !set {
		return nil
	}
	if p.Kind != policy.Async {
		if text != "" {
			n.Warn(asyncVar, "-"+asyncVar, "ignored: only %s=cuda_malloc_async reads it", tfAllocatorVar)
		}
		return nil
	}
	bytes, ok := readInt(text, r.Plus)
	switch {
	case !ok:
		return abort(asyncVar, cParse(asyncVar, text, "int64", "0"))
	case bytes > 0:
		p.AsyncPrealloc = bytes
		n.Effect(asyncVar, "preallocates %s if that much is free, else nothing; the pool can still grow", size.Format(uint64(bytes)))
	case bytes == 0:
		n.Effect(asyncVar, "no effect: the same as unset")
	case bytes == -1:
		p.AsyncPrealloc = bytes
		n.Effect(asyncVar, "preallocates the pool's whole limit if that much is free, else nothing; the pool can still grow")
	default:
		n.Warn(asyncVar, "-"+asyncVar, "%d is refused by the driver, so nothing is preallocated; write a number of bytes", bytes)
	}
	return nil
}

// tfHost reads TF_GPU_HOST_MEM_LIMIT_IN_MB. A text that is no number means the
// default, and since 2.20, whatever the log says, the number that it begins with.
func (n *notes) tfHost(r tfRelease) *policy.SettingError {
	text, set := n.Env.Lookup(tfHostVar)
	if !set {
		return nil
	}
	mib, ok := readInt(text, r.Plus)
	if !ok && r.Plus { // absl::SimpleAtoi leaves what it has read, or the nearest number
		digits := literal.CInteger.FindString(text)
		mib, _ = strconv.ParseInt(strings.TrimLeft(digits, " \t\n\v\f\r"), 10, 64)
	}
	switch limit := uint64(mib) << 20; {
	case !ok && !r.Plus:
		n.Warn(tfHostVar, "-"+tfHostVar, "%s is not a number of MiB and is ignored; write one such as 65536", literal.PyRepr(text))
	case limit == 0:
		return &policy.SettingError{Name: tfHostVar, Text: "SameWorkerRecvDone unable to allocate output tensor.", Then: "TensorFlow raises ResourceExhaustedError at a session's first copy from the GPU: the limit of pinned host memory is 0", Fix: "-" + tfHostVar}
	case !ok:
		n.Warn(tfHostVar, "-"+tfHostVar, "%s is not a number of MiB: the limit of pinned host memory is %s, not the default that the log names; write one such as 65536", literal.PyRepr(text), size.Format(limit))
	case mib < 0:
		n.Warn(tfHostVar, "-"+tfHostVar, "%d makes no sense, and TensorFlow takes it for no limit at all; write MiB, such as 65536", mib)
	default:
		n.hostLimit = limit
		n.Effect(tfHostVar, "at most %s of pinned host memory", size.Format(limit))
	}
	return nil
}

// tfOthers reads what changes no pool.
func (n *notes) tfOthers() {
	if text := n.Env.Get(unifiedVar); text != "" {
		n.Warn(unifiedVar, "-"+unifiedVar, "TensorFlow's own pool does not read it; unified memory is per_process_gpu_memory_fraction above 1, or experimental.use_unified_memory")
	}
	if text := n.Env.Get(memoryDumpVar); text != "" {
		n.Effect(memoryDumpVar, "each failed attempt of the pool writes a binary dump to %s_NAME.TIME", text)
	}
}

// tfPools returns the pools that TensorFlow makes for a device.
func tfPools(p policy.Policy, host uint64, d policy.Device) []policy.Pool {
	limit := p.LimitBytes(d)
	main := policy.Pool{Name: fmt.Sprintf("GPU_%d_bfc", d.Ordinal), Space: "device", Limit: &limit, First: p.Granted(d), Text: "the whole limit at the first operation"}
	switch {
	case p.Kind == policy.Async:
		main.Name, main.Text, main.Limit = fmt.Sprintf("gpu_async_%d", d.Ordinal), "the driver's pool, which grows as needed", nil
	case p.Kind == policy.Platform:
		main.Name, main.Text, main.Limit = "cuda_malloc", "no pool: each allocation is one of the driver's", nil
	case !p.Preallocate:
		main.Text = "grows as needed"
	}
	return []policy.Pool{main, {Name: "gpu_host_bfc", Space: "host", Limit: &host, Text: "pinned host memory for transfers, as needed"}}
}
