// The environment as JAX reads it, in the two steps of the package comment:
// Python makes options of the variables, XLA makes an allocator of the options
// and of variables that it reads itself.

package frameworks

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// The variables that Python reads, once, when the GPU backend is looked for:
// at the first operation (jaxlib/xla_client.py).
const (
	allocatorVar   = "XLA_PYTHON_CLIENT_ALLOCATOR"
	fractionVar    = "XLA_CLIENT_MEM_FRACTION"
	oldFractionVar = "XLA_PYTHON_CLIENT_MEM_FRACTION" // deprecated by XLA PR 16457, 2024-08
	preallocateVar = "XLA_PYTHON_CLIENT_PREALLOCATE"
	collectiveVar  = "XLA_PYTHON_CLIENT_COLLECTIVE_MEM_SIZE_MB"
	abortVar       = "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE"
	tfrtVar        = "XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT"
)

// jaxKinds are what XLA makes of the allocators' names.
var jaxKinds = map[string]policy.Kind{
	"default": policy.BFC, "bfc": policy.BFC, "platform": policy.Platform, "address": policy.Address, "cuda_async": policy.Async, "vmm": policy.VMM,
}

// An Option is one of the named values that a PJRT client is created with. The
// value is a string, bool, int64, float64, []int64, or a *big.Int where Python
// has an integer that an int64 cannot hold.
type Option struct {
	Name  string
	Value any
}

// jaxOptions follows generate_pjrt_gpu_plugin_options step by step: the order
// of the steps decides which of several errors is raised. In releases without
// that function it is the same steps in make_gpu_client.
func jaxOptions(env policy.Environment, r jaxRelease) ([]Option, *policy.SettingError) {
	fraction, from := "", oldFractionVar
	if r.NewFraction {
		fraction, from = env.Get(fractionVar), fractionVar
	}
	if old := env.Get(oldFractionVar); old != "" {
		if fraction != "" {
			return nil, &policy.SettingError{Name: fractionVar, Text: "XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION. Remove the latter one, it is deprecated.", Fix: "-" + oldFractionVar}
		}
		fraction, from = old, oldFractionVar
	}

	// Set but empty is not the default here: "" is an unknown allocator.
	allocator, ok := env.Lookup(allocatorVar)
	if !ok {
		allocator = "default"
	}
	allocator = literal.PyLower(allocator)
	if !slices.Contains(r.Allocators, allocator) {
		return nil, &policy.SettingError{Name: allocatorVar, Fix: r.meant(allocator), Text: "XLA_PYTHON_CLIENT_ALLOCATOR env var must be " + r.oneOf() + `, got "` + allocator + `"`}
	}
	options := []Option{{"allocator", allocator}}

	if fraction != "" {
		f, ok := literal.PyFloat(fraction)
		if !ok {
			return nil, &policy.SettingError{Name: from, Fix: meantFraction(from, fraction), Text: "could not convert string to float: " + literal.PyRepr(fraction)}
		}
		options = append(options, Option{"memory_fraction", f})
	} else if r.Grow {
		options = append(options, Option{growOption, policy.FractionPolicy(r.Fraction, 1)})
	}
	if text := env.Get(preallocateVar); text != "" {
		options = append(options, Option{"preallocate", !meansNo(text)}) // whatever else it says
	}

	if text := env.Get(collectiveVar); r.Collective && text != "" {
		n, problem := literal.PyInt(text)
		if problem != "" {
			return nil, &policy.SettingError{Name: collectiveVar, Fix: "-" + collectiveVar, Text: problem}
		}
		options = append(options, Option{"collective_memory_size", integer(n.Lsh(n, 20))})
	}
	for _, flag := range []struct {
		read         bool
		name, option string
	}{
		{r.Abort, abortVar, "abort_collectives_on_failure"},
		{r.TFRT, tfrtVar, "use_tfrt_gpu_client"},
	} {
		if !flag.read {
			continue
		}
		text, set := env.Lookup(flag.name)
		if !set {
			text = "0"
		}
		n, problem := literal.PyInt(text) // "" included
		if problem != "" {
			return nil, &policy.SettingError{Name: flag.name, Fix: "-" + flag.name, Text: problem}
		}
		options = append(options, Option{flag.option, n.Sign() != 0})
	}
	return options, nil
}

// meant returns the allocator that a text was meant to be, as a repair.
func (r *jaxRelease) meant(text string) string {
	if known := map[string]string{"async": "cuda_async", "cuda_malloc_async": "cuda_async", "cudamallocasync": "cuda_async", "cuda_malloc": "platform"}[text]; known != "" {
		return allocatorVar + "=" + known
	}
	if near := spelling.Nearest(strings.TrimSpace(text), r.Allocators); near != "" {
		return allocatorVar + "=" + near
	}
	return "-" + allocatorVar
}

// meantFraction returns the fraction that a text was meant to be, as a repair: .75
// for "75%", and none where that is not clear.
func meantFraction(name, text string) string {
	digits := strings.TrimRight(strings.TrimSpace(text), "% ")
	if f, ok := literal.PyFloat(strings.ReplaceAll(digits, ",", ".")); ok && f > 0 && f <= 100 {
		if f > 1 {
			return name + "=" + literal.Hundredth(f)
		}
		return name + "=" + strconv.FormatFloat(f, 'g', -1, 64)
	}
	return "-" + name
}

// integer returns n as an int64 where it fits.
func integer(n *big.Int) any {
	if n.IsInt64() {
		return n.Int64()
	}
	return n
}

// oneOf returns the list of allocators as the release's error has it.
func (r *jaxRelease) oneOf() string {
	var quoted []string
	for _, a := range r.Allocators {
		quoted = append(quoted, `"`+a+`"`)
	}
	last := len(quoted) - 1
	if slices.Contains(r.Allocators, "address") {
		return "one of " + strings.Join(quoted, ", ")
	}
	return strings.Join(quoted[:last], ", ") + ", or " + quoted[last]
}

// readJAX returns what a release of JAX does with an environment, in its order: import,
// the clients of its platforms one by one, and the choice between them.
func readJAX(env policy.Environment, v policy.Version, r jaxRelease) (policy.Reading, *policy.SettingError) {
	n := newNotes(env)
	flags, badFlags := n.flags(v)
	off, err := n.remat(r, flags)
	if err != nil {
		return policy.Reading{Notes: n.Notes}, err
	}
	options, noPlugin := jaxOptions(env, r) // refused: JAX goes on without the plugin
	choice := n.backends()
	result := policy.Reading{Notes: n.Notes}
	var copies *policy.SettingError
	var made []string
	for _, name := range choice.list {
		switch {
		case name == "cpu":
			err = badFlags
		case name != "cuda":
			err = r.refusePlatform(name, noPlugin == nil)
			if noPlugin != nil && !v.Less(policy.Version{0, 4, 21}) { // which reads the variables before it looks for ROCm
				err.Text = strings.Replace(err.Text, noROCm, noPlugin.Text, 1)
			}
			err.Fix = n.fixPlatforms()
		case noPlugin != nil && choice.explicit:
			noPlugin.Then = r.stops(r.refusePlatform(name, false))
			return policy.Reading{Notes: n.Notes}, noPlugin
		case noPlugin != nil:
			continue
		default:
			client := notes{Notes: policy.Notes{Env: env, Settings: slices.Clone(n.Settings), Warnings: slices.Clone(n.Warnings)}}
			if result, copies, err = client.client(options, v, r, flags, badFlags); err == nil {
				result.NoRemat = off
			}
		}
		if err != nil {
			return policy.Reading{Notes: n.Notes}, err
		}
		if !slices.Contains(made, name) {
			made = append(made, name)
		}
	}
	platform, by, err := n.choose(r, choice, made)
	switch {
	case err != nil && noPlugin != nil:
		noPlugin.Then = r.stops(err)
		return policy.Reading{Notes: n.Notes}, noPlugin
	case err != nil:
		return policy.Reading{Notes: n.Notes}, err
	case platform == "cuda":
		return result, copies
	case by == "":
		noPlugin.Then = r.swallows()
		return policy.Reading{Notes: n.Notes}, noPlugin
	}
	return policy.Reading{Notes: n.Notes}, n.cpuChosen(by, slices.Contains(made, "cuda"), result.Policy)
}

// client returns what the GPU's client makes of its options and of the variables that
// XLA reads. copies is what becomes of copies to the GPU once the client is made;
// nil if they work.
func (n *notes) client(options []Option, v policy.Version, r jaxRelease, flags xlaFlags, badFlags *policy.SettingError) (reading policy.Reading, copies, err *policy.SettingError) {
	if r.Float32 { // there is a C API
		if options, err = createOptions(n.Env, options); err != nil {
			return policy.Reading{}, nil, err
		}
		if err := tooLarge(options); err != nil {
			return policy.Reading{}, nil, err
		}
		if err := checkOptions(n.Env, options, v, r); err != nil {
			return policy.Reading{}, nil, err
		}
	}
	refused := r.NeedPages && n.Env.NoPages
	_, badNumber := n.deviceLimit(r.Plus)                                    // read before anything asks the device for pages
	if _, known := flagKind(noPagesFlag, v); refused && known != flagKnown { // the flags are not looked at
		return policy.Reading{}, nil, cmp.Or(badNumber, n.noPages(v))
	}
	if badFlags != nil {
		return policy.Reading{}, nil, badFlags
	}
	if refused && !flags.on(noPagesFlag) {
		return policy.Reading{}, nil, cmp.Or(badNumber, n.noPages(v))
	}
	if err := n.hostFirst(r); err != nil {
		return policy.Reading{}, nil, cmp.Or(badNumber, err)
	}
	a := r.asked(options)
	if strings.Contains(n.Env.Get(createVar), growOption+":") {
		a.says = createVar
	}
	p, err := n.xla(&a, flags, r)
	if err != nil {
		return policy.Reading{}, nil, err
	}
	if copies, err = n.host(r); err != nil {
		return policy.Reading{}, nil, err
	}
	n.python(p, a, r)
	return policy.Reading{Policy: p, Pools: func(d policy.Device) []policy.Pool { return jaxPools(p, a, r, n.hostLimit, d) }, Notes: n.Notes}, copies, nil
}

// tooLarge returns the error of an integer that Python can hold and the C API cannot.
func tooLarge(options []Option) *policy.SettingError {
	for _, o := range options {
		if _, ok := o.Value.(*big.Int); ok {
			// It goes over as a float.
			return &policy.SettingError{Name: collectiveVar, Text: "INVALID_ARGUMENT: Option passed to PJRT_Client_Create with name collective_memory_size has type index 4 but expected type index is 1", Then: notInitialized, Fix: "-" + collectiveVar}
		}
	}
	return nil
}

// jaxPools returns the pools that XLA makes for a device.
func jaxPools(p policy.Policy, a asked, r jaxRelease, host uint64, d policy.Device) []policy.Pool {
	main := policy.Pool{Space: "device", First: p.Granted(d)}
	limit, initial := p.LimitBytes(d), p.Granted(d)
	main.Limit = &limit
	switch {
	case p.Kind == policy.Platform || p.Kind == policy.Address:
		main.Name, main.Text, main.Limit = fmt.Sprintf("SE_%d_space_0", d.Ordinal), "no pool: each allocation is one of the driver's", nil
	case p.Kind == policy.VMM:
		main.Name, main.Text = fmt.Sprintf("vmm_%d", d.Ordinal), "pages are mapped as they are needed"
	case p.Kind == policy.Async:
		main.Name, main.Text, main.Limit = fmt.Sprintf("gpu_async_%d", d.Ordinal), "the driver's pool, which grows as needed; what it takes first it takes when the backend starts", nil
	case a.allocator == "platform":
		main.Name, main.Text = fmt.Sprintf("XLA_backend_%d_bfc", d.Ordinal), "grows as needed"
	case p.Grows():
		main.Name, main.Text = fmt.Sprintf("GPU_%d_bfc", d.Ordinal), "its first part at the first operation; more where nothing free is large enough"
	case p.Preallocate:
		main.Name, main.Text = fmt.Sprintf("GPU_%d_bfc", d.Ordinal), "the whole limit at the first operation"
	default:
		main.Name, main.Text = fmt.Sprintf("GPU_%d_bfc", d.Ordinal), "grows as needed: 2 MiB, 4 MiB, 8 MiB and so on"
	}
	pools := []policy.Pool{main}
	if r.Collective && (p.Kind == policy.Async || p.Kind == policy.BFC && a.allocator != "platform") {
		c := policy.Pool{Name: fmt.Sprintf("GPU_collectivememory_%d_bfc", d.Ordinal), Space: "collective"}
		sane := p.Fraction >= 0 && p.Fraction <= 1
		most := policy.Policy{Fraction: 1 - p.Fraction, RoundLimit: r.RoundLimit}.LimitBytes(d)
		switch {
		case p.Spatial:
			end := "upper"
			if p.TopDown {
				end = "lower"
			}
			c.Name, c.Text, c.Limit = main.Name, "the "+end+" end of the same pool", main.Limit
			if p.Grows() {
				c.Text, c.Limit = c.Text+", within what it takes first", &initial
			}
		case p.CollectiveBytes > 0:
			most = policy.Policy{Limit: p.CollectiveBytes}.LimitBytes(d)
			c.First, c.Limit, c.Text = most, &most, "its whole size with the first collective operation that asks for it"
		case !sane:
			c.Limit, c.Text = &most, "a growing pool whose limit makes no sense: it is 1 less the fraction"
		default:
			c.Limit, c.Text = &most, "a growing pool, if a collective operation asks for it"
		}
		pools = append(pools, c)
	}
	host = cmp.Or(host, 64<<30)
	return append(pools, policy.Pool{Name: "xla_gpu_host_bfc", Space: "host", Limit: &host, Text: "pinned host memory for transfers, as needed"})
}

// swallows returns what becomes of an error that Python raises while it reads the
// variables: none reaches the program as an exception.
func (r *jaxRelease) swallows() string {
	if r.Float32 { // raised while the plugin is registered
		return "JAX logs it as a plugin configuration error and goes on without the GPU: the program runs on the CPU (with JAX_PLATFORMS=cuda it stops: the backend is not known)"
	}
	return "JAX says that it falls back to the CPU, and the program runs there (with JAX_PLATFORMS=cuda it stops: Unable to initialize backend 'cuda')"
}

// stops returns what becomes of such an error where the GPU was asked for by name: JAX
// then raises another.
func (r *jaxRelease) stops(then *policy.SettingError) string {
	if r.Float32 {
		return "JAX logs it as a plugin configuration error and then raises RuntimeError: " + then.Text
	}
	return notInitialized
}

// python says what the variables that Python reads do to p and what they do
// not.
func (n *notes) python(p policy.Policy, a asked, r jaxRelease) {
	said := newNotes(n.Env) // these come first: people look for them
	said.allocator(p, a)
	said.fraction(p, a, r)
	said.preallocate(p, a, r)
	said.collective(p, a, r)
	n.Settings = append(said.Settings, n.Settings...)
	n.Warnings = append(said.Warnings, n.Warnings...)
}

func (n *notes) allocator(p policy.Policy, a asked) {
	if _, set := n.Env.Lookup(allocatorVar); !set {
		return
	}
	switch {
	case p.Kind == policy.VMM && a.allocator != "vmm": // an XLA flag said so, and has its own note
	case p.Kind == policy.Platform || p.Kind == policy.Address:
		n.Effect(allocatorVar, "each allocation is a separate one of the driver's, which its free releases; slow")
	case p.Kind == policy.Async:
		n.Effect(allocatorVar, "the driver's own pool (cudaMallocAsync)")
	case p.Kind == policy.VMM:
		n.Effect(allocatorVar, "pages are mapped as they are needed and kept; nothing is preallocated")
	case a.allocator == "platform":
		n.Warn(allocatorVar, "", "in this release platform gives a growing pool (bfc) of the whole GPU, which gives nothing back; JAX 0.11.0 repaired that")
	default:
		n.Effect(allocatorVar, "the pool (bfc), as by default")
	}
}

func (n *notes) fraction(p policy.Policy, a asked, r jaxRelease) {
	name := oldFractionVar
	if text := n.Env.Get(fractionVar); text != "" {
		if !r.NewFraction {
			n.Warn(fractionVar, "-"+fractionVar+" "+assign(oldFractionVar, text), "this release does not read it, only JAX 0.4.32 and later do; write %s=%s", oldFractionVar, text)
		} else {
			name = fractionVar
		}
	}
	if n.Env.Get(name) == "" {
		return
	}
	f := a.fraction
	text := strings.TrimSpace(n.Env.Get(name))
	switch {
	case a.says != "" && p.Kind == policy.BFC:
		n.Warn(name, "-"+name, "ignored: what %s says of the fraction goes before it", a.says)
	case a.allocator == "platform" && p.Kind == policy.BFC:
		n.Warn(name, "", "ignored: in this release platform is a pool of the whole GPU")
	case p.Kind == policy.Platform || p.Kind == policy.Address:
		n.Warn(name, "-"+name, "ignored: the allocator %s has no limit", a.allocator)
	case !a.fractionSet: // 0, in the releases with boolAsText
		n.Warn(name, "", "this release takes 0 for unset: the fraction is %g", r.Fraction)
	case p.Kind == policy.Async && !p.Preallocate && !p.AsyncKeep:
		n.Warn(name, "-"+name, "ignored: without preallocation the driver's pool has no limit")
	case math.IsNaN(f):
		n.Warn(name, name+"=.75", "not a number, which XLA takes for an enormous limit: the pool takes nearly all that is free; write .75 for 75 %%")
	case f <= 0:
		n.Warn(name, name+"=.75", "%s", outOfRange(f, text))
	case p.Managed && f <= 1:
		n.Warn(name, "", "with %s a fraction below 1 counts as 1", unifiedVar)
	case p.Managed:
		n.Effect(name, "the pool may take %s of the GPU's memory, the rest of it from the host", literal.Percent(f))
	case f >= 2 && f <= 100:
		n.Warn(name, name+"="+literal.Hundredth(f), "a fraction, not a percentage: this asks for %s times the GPU; for %s %% write %s", text, text, literal.Hundredth(f))
	case f > 1:
		n.Warn(name, name+"=.75", "asks for %s times the GPU; the whole is 1, and .75 is 75 %%", text)
	default:
		old := ""
		if name == oldFractionVar && r.NewFraction {
			old = "; the name is deprecated, today it is " + fractionVar
		}
		n.Effect(name, "%s of the %s memory%s", literal.Percent(f), p.Of, old)
	}
}

// outOfRange returns what becomes of a fraction that is not above 0.
func outOfRange(f float64, text string) string {
	if f < 0 {
		return text + " makes no sense, and XLA takes it for an enormous limit: the pool takes nearly all that is free; write .75 for 75 %"
	}
	return text + " leaves no memory to allocate; write .75 for 75 %"
}

func (n *notes) preallocate(p policy.Policy, a asked, r jaxRelease) {
	text := n.Env.Get(preallocateVar)
	meant := !meansNo(text)
	switch {
	case text == "":
	case p.Kind == policy.Platform || p.Kind == policy.Address || p.Kind == policy.VMM:
		n.Warn(preallocateVar, "-"+preallocateVar, "ignored: the allocator %s never preallocates", p.Kind)
	case a.allocator == "platform":
		n.Warn(preallocateVar, "-"+preallocateVar, "ignored: in this release platform is a pool that grows")
	case !meant && r.BoolAsText:
		n.Warn(preallocateVar, "", "in this release every text means yes: preallocation stays on; JAX 0.4.24 repaired that")
	case a.preallocate && !literal.MeansYes(text):
		n.Warn(preallocateVar, preallocateVar+"=false", "%s is not recognised, preallocation stays on; only false, False and 0 turn it off", literal.PyRepr(text))
	case p.Grows():
		n.Effect(preallocateVar, "what the pool begins with is preallocated, as by default")
	case a.preallocate:
		n.Effect(preallocateVar, "the whole limit is preallocated, as by default")
	default:
		n.Effect(preallocateVar, "memory is allocated on demand")
	}
}

// meansNo reports whether the framework takes a text for no.
func meansNo(text string) bool { return text == "false" || text == "False" || text == "0" }

func (n *notes) collective(p policy.Policy, a asked, r jaxRelease) {
	switch {
	case n.Env.Get(collectiveVar) == "":
	case !r.Collective:
		n.Warn(collectiveVar, "", "this release does not read it, only JAX 0.4.24 and later do")
	case a.collective == 0:
		n.Effect(collectiveVar, "no effect: the pool for collective memory grows as needed")
	case p.Kind != policy.BFC && p.Kind != policy.Async || a.allocator == "platform":
		n.Warn(collectiveVar, "-"+collectiveVar, "ignored: the allocator %s has no separate pool for collective memory", a.allocator)
	case p.Spatial:
		n.Warn(collectiveVar, "-"+collectiveVar, "ignored since JAX 0.11.0: with preallocation, collective memory comes from the one pool")
	case a.collective < 0:
		n.Warn(collectiveVar, "-"+collectiveVar, "%d MiB makes no sense and counts as 0 here; write a number above 0", a.collective>>20)
	default:
		n.Effect(collectiveVar, "a second pool of that size for collective memory")
	}
}
