// XLA's GPU client: what it makes of its options and of the variables that it
// reads itself (xla/pjrt/gpu/se_gpu_pjrt_client.cc, gpu_helpers.cc), and what
// it leaves undone.

package frameworks

import (
	"strings"

	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// The variables that XLA itself reads, when the client is made; of the first
// two, what is no number ends the process.
const (
	asyncVar         = "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC" // by cuda_async alone
	perDeviceVar     = "TF_PER_DEVICE_MEMORY_LIMIT_MB"
	unifiedVar       = "TF_FORCE_UNIFIED_MEMORY"
	deterministicVar = "TF_DETERMINISTIC_ALLOCATOR"
	memoryDumpVar    = "TF_BFC_MEMORY_DUMP"
	hostLimitVar     = "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB"
	hostPreVar       = "XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE"
	xlaFlagsVar      = "XLA_FLAGS"
	// Read by TensorFlow alone, although JAX's documentation names it.
	tfAllocatorVar = "TF_GPU_ALLOCATOR"
)

// asked is the options as XLA has them.
type asked struct {
	allocator   string
	kind        policy.Kind
	fraction    float64
	fractionSet bool
	preallocate bool
	collective  int64 // bytes
	tfrt        bool
	grow        string  // memory_fraction_policy; empty: not given
	most        float64 // how far the pool may grow by it
	says        string  // the variable that says so before the fraction's; empty if none does
}

// asked reads the options.
func (r *jaxRelease) asked(options []Option) asked {
	a := asked{fraction: r.Fraction, preallocate: true}
	for _, o := range options {
		switch o.Name {
		case "allocator":
			a.allocator, _ = o.Value.(string)
		case "memory_fraction":
			f, _ := o.Value.(float64)
			if r.BoolAsText && f == 0 {
				continue
			}
			a.fraction, a.fractionSet = r.convert(f), true
		case "preallocate":
			yes, _ := o.Value.(bool)
			a.preallocate = yes || r.BoolAsText
		case "collective_memory_size":
			a.collective, _ = o.Value.(int64)
		case "use_tfrt_gpu_client":
			a.tfrt, _ = o.Value.(bool)
		case growOption: // goes before the fraction
			text, _ := o.Value.(string)
			a.grow = text
		}
	}
	if a.grow != "" {
		a.fraction, a.most, _ = growth(a.grow)
	}
	a.kind = jaxKinds[a.allocator]
	if a.kind == policy.Platform && r.PlatformPool {
		a.kind = policy.BFC
	}
	return a
}

// build returns what XLA builds. Each kind takes only what it looks at.
func (r *jaxRelease) build(a asked) policy.Policy {
	p := policy.Policy{Name: "jax", Kind: a.kind, Of: r.of()}
	switch {
	case a.allocator == "platform" && a.kind == policy.BFC: // 0.10.1 and 0.10.2
		p.Fraction, p.IgnoreAlign, p.RegionUnit = 1, r.IgnoreAlign, r.regionUnit()
	case a.kind == policy.BFC:
		p.Fraction, p.Preallocate, p.CollectiveBytes = a.fraction, a.preallocate, uint64(max(a.collective, 0))
		p.RoundLimit, p.IgnoreAlign, p.RegionUnit = r.RoundLimit, r.IgnoreAlign, r.regionUnit()
		if r.Grow && a.most > a.fraction {
			p.Cap = a.most
		}
		setEnds(&p, r.Spatial && a.preallocate, r.TopDown)
	case a.kind == policy.Async: // it and BFC have a second pool for collective memory
		p.Fraction, p.Preallocate, p.CollectiveBytes = a.fraction, a.preallocate, uint64(max(a.collective, 0))
		p.AsyncKeep = r.AsyncKeep && !a.preallocate
	case a.kind == policy.VMM:
		p.Fraction = a.fraction
	default:
		p.Of = policy.Total
	}
	return p
}

// xla is the second step of the reading.
func (n *notes) xla(a *asked, flags xlaFlags, r jaxRelease) (policy.Policy, *policy.SettingError) {
	if a.tfrt && a.kind == policy.Async && !r.TFRTAsync {
		return policy.Policy{}, &policy.SettingError{Name: tfrtVar, Text: "UNIMPLEMENTED: CudaAsync allocator is not supported in TfrtGpuClient.", Then: notInitialized, Fix: "-" + tfrtVar}
	}
	if mode, ok := flags[updateFlag]; ok && mode != "ALWAYS_UPDATE" && a.kind != policy.VMM {
		n.Warn(xlaFlagsVar, "", "%s=%s makes XLA use the allocator vmm, whatever %s says", updateFlag, mode, allocatorVar)
		a.kind = policy.VMM
	}
	if text, ok := flags[growFlag]; ok && a.kind == policy.BFC {
		start, most, problem := growth(text)
		if problem != "" {
			return policy.Policy{}, &policy.SettingError{Name: xlaFlagsVar, Text: "INVALID_ARGUMENT: " + problem, Then: notInitialized}
		}
		a.fraction, a.most, a.says = start, most, xlaFlagsVar
	} else if ok {
		n.Warn(xlaFlagsVar, "", "%s is ignored: only the pool (bfc) reads it", growFlag)
	}
	p := r.build(*a)
	if text, ok := flags[spatialFlag]; ok && p.Spatial {
		if !flags.on(spatialFlag) {
			more := ""
			if p.Grows() {
				more = ", and the pool does not grow"
			}
			setEnds(&p, false, false)
			n.Effect(xlaFlagsVar, "%s=%s: collective memory has a separate pool%s", spatialFlag, text, more)
		}
	}
	if p.Grows() && flags.on(pinFlag) && !n.managed() {
		p.Cap = 0
		n.Warn(xlaFlagsVar, "", "%s keeps the pool at the %s that it begins with", pinFlag, literal.Percent(p.Fraction))
	}
	unread := "" // the pool of pages does not ask StreamExecutor, with its plain allocations neither
	if p.Kind == policy.Async || p.Kind == policy.VMM || p.Kind == policy.BFC && r.PoolByPages {
		unread = "does not cap what JAX takes: it bounds single requests of the allocator platform; to cap the whole, set " + r.fractionName()
	}
	if flags.on(noPagesFlag) {
		if p.Grows() && !n.managed() {
			p.Cap = 0
			n.Warn(xlaFlagsVar, "", "with %s the pool would grow by separate regions, which is not modelled here: the figures are those of a pool that does not grow", noPagesFlag)
		}
		if r.PoolByPages = false; p.Kind == policy.BFC {
			p.RegionUnit = r.regionUnit()
		}
		n.Effect(xlaFlagsVar, "%s: the pool's regions are plain allocations (cuMemAlloc), which every GPU has", noPagesFlag)
	}

	if err := n.perDevice(&p, unread, r.Plus); err != nil {
		return p, err
	}
	n.unified(&p)
	n.fractionPolicy(p, *a, r)
	if p.Kind == policy.Async && n.Env.NoPools {
		name := allocatorVar
		if _, set := n.Env.Lookup(name); !set {
			name = createVar
		}
		return p, noPools(name)
	}
	if err := n.deterministic(&p); err != nil {
		return p, err
	}
	if err := n.asyncPrealloc(&p, r.Plus); err != nil {
		return p, err
	}
	if text := n.Env.Get(memoryDumpVar); text != "" {
		if p.Kind == policy.BFC {
			n.Effect(memoryDumpVar, "each failed attempt of the pool writes a binary dump to %s_NAME.TIME", text)
		} else {
			n.Warn(memoryDumpVar, "", "ignored: only the pool (bfc) writes such a dump")
		}
	}
	return p, nil
}

// perDevice reads TF_PER_DEVICE_MEMORY_LIMIT_MB into p: the most that the
// driver is asked for at once through StreamExecutor, as by platform and by the regions of
// a pool. unread is why it does not count; empty if it does.
func (n *notes) perDevice(p *policy.Policy, unread string, plus bool) *policy.SettingError {
	limit, err := n.deviceLimit(plus)
	switch _, set := n.Env.Lookup(perDeviceVar); {
	case err != nil || !set:
		return err
	case limit <= 0:
		n.Effect(perDeviceVar, "no effect: the same as unset")
	case unread != "":
		n.Warn(perDeviceVar, "-"+perDeviceVar, "%s", unread)
	case p.Kind == policy.BFC:
		p.GrantLimit = uint64(limit) << 20
		n.Effect(perDeviceVar, "no region of the pool may be above %d MiB: it backs off to that", limit)
	default:
		p.GrantLimit = uint64(limit) << 20
		n.Effect(perDeviceVar, "no single request may be above %d MiB; the sum of all may", limit)
	}
	return nil
}

// deviceLimit is TF_PER_DEVICE_MEMORY_LIMIT_MB; 0 if it is not set.
func (n *notes) deviceLimit(plus bool) (mib int64, err *policy.SettingError) {
	text, set := n.Env.Lookup(perDeviceVar)
	if !set {
		return 0, nil
	}
	mib, ok := readInt(text, plus)
	if !ok {
		return 0, abort(perDeviceVar, cParse(perDeviceVar, text, "int64", "0"))
	}
	return mib, nil
}

// readInt is strings::safe_strto64. plus reports whether a plus sign may come first, as
// since Abseil reads the numbers.
func readInt(text string, plus bool) (int64, bool) {
	if !plus && strings.HasPrefix(strings.TrimLeft(text, " \t\n\v\f\r"), "+") {
		return 0, false
	}
	return literal.CInt(text)
}

// deterministic reads TF_DETERMINISTIC_ALLOCATOR, which the driver's pool alone looks at.
func (n *notes) deterministic(p *policy.Policy) *policy.SettingError {
	text, set := n.Env.Lookup(deterministicVar)
	if !set || p.Kind != policy.Async {
		return nil
	}
	switch on, ok := literal.CBool(text); {
	case !ok:
		return abort(deterministicVar, cParse(deterministicVar, text, "bool", "0"))
	case on:
		n.Effect(deterministicVar, "the driver's pool reuses a block only where the order of the streams alone allows it")
	}
	return nil
}

// managed reports whether the pool would be of unified memory.
func (n *notes) managed() bool {
	on, _ := literal.CBool(n.Env.Get(unifiedVar))
	return on
}

// unified reads TF_FORCE_UNIFIED_MEMORY into p.
func (n *notes) unified(p *policy.Policy) {
	text, set := n.Env.Lookup(unifiedVar)
	if !set {
		return
	}
	on, ok := literal.CBool(text)
	switch {
	case !ok:
		n.Warn(unifiedVar, "", "%s is not recognised and means no; write true or 1", literal.PyRepr(text))
	case on && p.Kind != policy.BFC:
		n.Warn(unifiedVar, "-"+unifiedVar, "ignored: only the pool (bfc) takes unified memory")
	case on:
		p.Managed, p.RegionUnit, p.Cap = true, plainUnit, 0
		n.Effect(unifiedVar, "the pool's memory moves between the GPU and the host; a fraction above 1 is more than the GPU has, one below counts as 1")
	}
}

// asyncPrealloc reads TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC into p, and says
// what it does not do. In XLA, unlike TensorFlow, the pool's release threshold
// is what is preallocated, so the variable has an effect in one case alone.
func (n *notes) asyncPrealloc(p *policy.Policy, plus bool) *policy.SettingError {
	text, set := n.Env.Lookup(asyncVar)
	if !set {
		return nil
	}
	if p.Kind != policy.Async {
		if text != "" {
			n.Warn(asyncVar, "-"+asyncVar, "ignored: only %s=cuda_async reads it", allocatorVar)
		}
		return nil
	}
	bytes, ok := readInt(text, plus)
	if !ok {
		return abort(asyncVar, cParse(asyncVar, text, "int64", "0"))
	}
	switch {
	case bytes == 0 || bytes == -1 && p.Preallocate: // as without it
		n.Effect(asyncVar, "no effect: the same as unset")
	case p.Preallocate:
		n.Warn(asyncVar, preallocateVar+"=false", "ignored: preallocation is on and reserves its fraction of the GPU; %s=false makes JAX read it", preallocateVar)
	case bytes == -1 && p.AsyncKeep:
		p.AsyncPrealloc = -1
		n.Effect(asyncVar, "the fraction is reserved if that much is free, as with preallocation")
	case bytes == -1:
		n.Warn(asyncVar, "-"+asyncVar+" -"+preallocateVar, "reserves nothing in JAX while %s is off; leave both out to reserve the fraction", preallocateVar)
	case bytes < 0:
		n.Warn(asyncVar, "", "%d is refused by the driver, so nothing is reserved; write a number of bytes", bytes)
	default:
		p.AsyncPrealloc = bytes
		if p.AsyncKeep {
			n.Effect(asyncVar, "preallocates this many bytes if that much is free, else none")
		} else {
			n.Warn(asyncVar, "", "JAX takes this many bytes once, if that much is free, but the driver may take them back when the GPU is idle")
		}
	}
	return nil
}

// fractionPolicy says what becomes of memory_fraction_policy, where a variable says it: in the
// pool p as it is built, which other settings may keep from growing.
func (n *notes) fractionPolicy(p policy.Policy, a asked, r jaxRelease) {
	name := growOption
	if a.says == xlaFlagsVar {
		name = growFlag
	}
	switch {
	case a.says == "":
	case p.Kind != policy.BFC || a.allocator == "platform":
		n.Warn(a.says, "", "%s is ignored: only the pool (bfc) reads it", name)
	case !r.Grow && a.most > a.fraction:
		n.Warn(a.says, "", "%s: in this release the pool does not grow beyond the %s that it begins with; openxla/xla#48985, which no release has yet, makes it grow", name, literal.Percent(a.fraction))
	case p.Managed:
		n.Effect(a.says, "%s: the pool may take %s of the GPU's memory and does not grow", name, literal.Percent(max(p.Fraction, 1)))
	case p.Grows():
		n.Effect(a.says, "%s: the pool begins with %s and grows to %s", name, literal.Percent(p.Fraction), literal.Percent(p.Cap))
	default:
		n.Effect(a.says, "%s: the limit is %s, and the pool does not grow beyond it", name, literal.Percent(p.Fraction))
	}
}

// refuseHost returns the error of a variable about pinned host memory that makes no sense.
func (n *notes) refuseHost(name, kind, fallback string) *policy.SettingError {
	return &policy.SettingError{Name: name, Text: "INVALID_ARGUMENT: " + cParse(name, n.Env.Get(name), kind, fallback), Then: notInitialized, Fix: "-" + name}
}

// hostFirst is the error of XLA_PJRT_GPU_HOST_MEMORY_PREALLOCATE in releases that read it
// before they make an allocator.
func (n *notes) hostFirst(r jaxRelease) *policy.SettingError {
	text, set := n.Env.Lookup(hostPreVar)
	if _, ok := literal.CBool(text); r.HostFirst && set && !ok {
		return n.refuseHost(hostPreVar, "bool", "0")
	}
	return nil
}

// host reads what is about pinned host memory. What is neither a number nor a
// truth value fails the client; without any such memory, copies to the GPU fail.
func (n *notes) host(r jaxRelease) (copies, err *policy.SettingError) {
	limit := "64" // GiB, XLA's default
	if text, set := n.Env.Lookup(hostPreVar); set {
		on, ok := literal.CBool(text)
		switch {
		case !ok && !r.HostFails:
			n.Warn(hostPreVar, "-"+hostPreVar, "%s is not recognised and means no; write true or 1", literal.PyRepr(text))
		case !ok:
			return nil, n.refuseHost(hostPreVar, "bool", "0")
		case on:
			limit = "16"
			n.Effect(hostPreVar, "pinned host memory is preallocated: 16 GiB for each GPU, or what %s says", hostLimitVar)
		}
	}
	text, set := n.Env.Lookup(hostLimitVar)
	if !set {
		return nil, nil
	}
	gib, ok := readInt(text, r.Plus)
	switch {
	case !ok && !r.HostFails:
		n.Warn(hostLimitVar, "-"+hostLimitVar, "%s is not a number of GiB and is ignored; write one such as 64", literal.PyRepr(text))
	case !ok:
		return nil, n.refuseHost(hostLimitVar, "int64", limit)
	case gib<<30 == 0: // also what overflows
		none := r.NoHostMemory
		none.Name, none.Fix = hostLimitVar, "-"+hostLimitVar
		return &none, nil
	case gib < 0:
		n.Warn(hostLimitVar, "", "%d makes no sense, and XLA takes it for no limit at all; write GiB, such as 64", gib)
	default:
		n.hostLimit = uint64(gib) << 30
		n.Effect(hostLimitVar, "at most %d GiB of pinned host memory for each GPU", gib)
	}
	return nil, nil
}

// noPages returns the error of a device without virtual memory management.
func (n *notes) noPages(v policy.Version) *policy.SettingError {
	e := &policy.SettingError{Name: "device", Text: "INTERNAL: no supported devices found for platform CUDA", Then: notInitialized + ": the GPU has no virtual memory management"}
	cure := "--" + noPagesFlag + "=true"
	if _, known := flagKind(noPagesFlag, v); known != flagKnown {
		e.Then += ", and this release has no flag to do without"
		return e
	}
	e.Text += `: Device 0: Device 0 does not support CUDA Virtual Memory Management (VMM). VMM is required for device memory allocation in XLA. If it is expected that the VMM API is not available, use the "--` + noPagesFlag + `" flag. Note that this might slow down some operations, especially cross-GPU collectives.`
	if e.Then += "; " + cure + " does without"; n.Env.Get(xlaFlagsVar) == "" {
		e.Fix = xlaFlagsVar + "=" + cure
	}
	return e
}

// noPools returns the error of a device whose driver has no stream-ordered pools, of
// GpuCudaMallocAsyncAllocator: the same from JAX 0.4.36 to 0.12.0.1 and in TensorFlow 2.18
// and 2.21, which were asked. It names the variable of TensorFlow in JAX, too.
func noPools(name string) *policy.SettingError {
	return abort(name, "TF_GPU_ALLOCATOR=cuda_malloc_async isn't currently supported on GPU id 0: Possible causes: "+
		"device not supported (request SM60+), driver too old,  OS not supported, CUDA version too old(request CUDA11.2+).")
}

// abort returns an error that ends the process.
func abort(name, text string) *policy.SettingError {
	return &policy.SettingError{Name: name, Text: text, Then: aborts, Fix: "-" + name}
}

const aborts = "the process aborts when the GPU is first used"

// cParse returns the message of tsl/util/env_var.cc.
func cParse(name, text, kind, fallback string) string {
	return "Failed to parse the env-var ${" + name + "} into " + kind + ": " + text + ". Use the default value: " + fallback
}

// fractionName returns the name under which the release likes its fraction.
func (r *jaxRelease) fractionName() string {
	if r.NewFraction {
		return fractionVar
	}
	return oldFractionVar
}
