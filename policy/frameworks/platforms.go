// The choice between JAX's backends by an environment (jax/_src/xla_bridge.py,
// backends and get_backend), measured with testdata/jax/platforms.txt.

package frameworks

import (
	"slices"
	"strings"

	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

const (
	platformsVar = "JAX_PLATFORMS"
	platformVar  = "JAX_PLATFORM_NAME"
)

// The end of a program that finds no backend, or another than the GPU's.
const (
	notChosen = "JAX raises RuntimeError at the first operation, and the program stops"
	onCPU     = "the program runs on the CPU"
)

// JAX's errors about platforms that it knows and that are not there.
const (
	noTPU   = "INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory"
	noROCm  = "module 'jaxlib.xla_extension' has no attribute 'GpuAllocatorConfig'"
	noProxy = "The 'proxy' backend requires the address of an IFRT Proxy server. Set it via the JAX_BACKEND_TARGET environment variable or the jax_backend_target config option, e.g. JAX_BACKEND_TARGET=grpc://localhost:29000."
)

// A backendChoice is what JAX_PLATFORMS asks for.
type backendChoice struct {
	list     []string // the platforms whose clients are made, in order
	explicit bool     // JAX_PLATFORMS names them: the first is the default, and each has to work
}

// backends reads JAX_PLATFORMS. Without it JAX makes a client of every platform
// that it can. Names are compared as they are, with blanks and case.
func (n *notes) backends() backendChoice {
	text := n.Env.Get(platformsVar)
	if text == "" {
		return backendChoice{list: []string{"cpu", "cuda"}}
	}
	c := backendChoice{explicit: true}
	for name := range strings.SplitSeq(text, ",") {
		if name == "gpu" {
			c.list = append(c.list, "cuda", "rocm")
		} else {
			c.list = append(c.list, name)
		}
	}
	return c
}

// refusePlatform returns the error of an explicit platform without a client. jaxlib up to
// 0.5.3 has a name and a client of its own for CUDA, whether there is a plugin or not.
func (r *jaxRelease) refusePlatform(name string, plugin bool) *policy.SettingError {
	known := slices.Clone(r.Platforms)
	if plugin && !slices.Contains(known, "cuda") {
		known = append(known, "cuda")
	}
	why := "Backend '" + name + "' is not in the list of known backends: ['" + strings.Join(known, "', '") + "']."
	switch {
	case !slices.Contains(known, name):
	case name == "cuda": // its own client reads the same variables as the plugin
		why = "the same error"
	case name == "tpu":
		why = noTPU
	case name == "rocm":
		why = noROCm
	case name == "proxy":
		why = noProxy
	}
	return &policy.SettingError{Name: platformsVar, Text: "Unable to initialize backend '" + name + "': " + why + " (set JAX_PLATFORMS='' to automatically choose an available backend)", Then: notChosen}
}

// fixPlatforms returns the value that JAX_PLATFORMS was meant to have: the names in
// small letters and without blanks, those for NVIDIA's GPUs as JAX has them.
func (n *notes) fixPlatforms() string {
	var names []string
	for name := range strings.SplitSeq(n.Env.Get(platformsVar), ",") {
		name = strings.ToLower(strings.TrimSpace(name))
		if name == "gpu" || name == "nvidia" || strings.HasPrefix(name, "cuda") {
			name = "cuda"
		}
		if (name == "cuda" || name == "cpu") && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "-" + platformsVar
	}
	return platformsVar + "=" + strings.Join(names, ",")
}

// choose returns the platform of the default backend, given the clients that were
// made, and the variable that chose it; "" where JAX's own order did.
func (n *notes) choose(r jaxRelease, c backendChoice, made []string) (platform, by string, err *policy.SettingError) {
	name := literal.PyLower(n.Env.Get(platformVar))
	if name != "" {
		if name == "gpu" {
			if !slices.Contains(made, "cuda") {
				return "", "", &policy.SettingError{Name: platformVar, Text: "Unknown backend: 'gpu' requested, but no platforms that are instances of gpu are present. Platforms present are: " + strings.Join(made, ","), Then: notChosen, Fix: "-" + platformVar}
			}
			name = "cuda"
		}
		if slices.Contains(made, name) {
			return name, platformVar, nil
		}
		text := "Unknown backend " + name
		if !c.explicit && (name == "tpu" || name == "proxy" || name == "rocm") && slices.Contains(r.Platforms, name) {
			why := map[string]string{"tpu": noTPU, "proxy": noProxy, "rocm": noROCm}[name]
			text = "Backend '" + name + "' failed to initialize: " + why
		}
		text += ". Available backends are ['" + strings.Join(made, "', '") + "']"
		return "", "", &policy.SettingError{Name: platformVar, Text: text, Then: notChosen, Fix: "-" + platformVar}
	}
	if c.explicit {
		return c.list[0], platformsVar, nil
	}
	if slices.Contains(made, "cuda") {
		return "cuda", "", nil
	}
	return "cpu", "", nil
}

// cpuChosen returns the answer where the settings choose the CPU; client is whether
// one of the GPU is made beside it, with the policy p.
func (n *notes) cpuChosen(by string, client bool, p policy.Policy) *policy.SettingError {
	e := &policy.SettingError{Name: by, Text: by + "=" + n.Env.Get(by) + " chooses the CPU, and no client of the GPU is made", Then: onCPU + ", and takes no GPU memory", Fix: "-" + by, CPU: true}
	switch {
	case client && p.Kind == policy.Async && (p.Preallocate || p.AsyncPrealloc != 0):
		e.Text = by + "=" + n.Env.Get(by) + " chooses the CPU, although a client of the GPU is made, too"
		e.Then = onCPU + ", and the driver's pool asks for its GPU memory all the same"
	case client:
		e.Text = by + "=" + n.Env.Get(by) + " chooses the CPU, although a client of the GPU is made, too"
		e.Then = onCPU + ", and takes GPU memory only for what it puts there itself"
	}
	return e
}
