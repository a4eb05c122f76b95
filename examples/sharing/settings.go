// The reading of the environment: a policy, the CPU, or an end.

package main

import (
	"fmt"
	"strconv"
	"strings"

	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// limitVar is the cap that a launcher gives to TensorFlow, in MiB. TensorFlow
// reads no variable for that: a start-up hook in Python reads this one and makes
// a logical device of that size. This program reads it, too.
const limitVar = "GPUMEM_TF_LIMIT_MIB"

// outcome is how a program begins. The zero value is one that uses the GPU.
type outcome struct {
	cpu    bool   // it goes on without
	status int    // it ends with this one
	text   string // the framework's words on stderr, if any
}

// choose returns the policy and the outcome of an environment, as the framework reads
// it. The policy is for a program that uses the GPU.
func choose(as frameworks.Release, env policy.Environment) (policy.Policy, outcome) {
	// The policy is the same on all devices, so none is named.
	a, err := explain.Environment(env, as, policy.Device{})
	switch {
	case err != nil:
		return policy.Policy{}, outcome{status: 2, text: "sharing: " + err.Error()}
	case len(a.Errors) > 0:
		return policy.Policy{}, refused(a.Errors[0])
	case a.Allocator == "": // no GPU is visible
		return policy.Policy{}, outcome{cpu: true}
	}
	p := a.Policy
	// Without a pool there is nothing to limit.
	if text, set := env.Lookup(limitVar); set && as.Name == "tensorflow" && p.Kind != policy.Platform {
		mib, err := strconv.ParseFloat(text, 64)
		if err != nil || !(mib >= 1 && mib < 1<<43) {
			return p, outcome{status: 1, text: fmt.Sprintf("sharing: %s=%s: want a number of MiB, 1 or more", limitVar, text)}
		}
		// It replaces the pool's size of the environment, and leaves all other settings.
		asked, err := frameworks.TensorFlow(as.Version, frameworks.GPUOptions{Limit: &mib})
		if err != nil {
			return p, outcome{status: 1, text: "sharing: " + err.Error()}
		}
		p.Limit = asked.Limit
	}
	return p, outcome{}
}

// refused returns what the newest JAX does and writes about a setting that it rejects
// (jax/_src/xla_bridge.py of 0.12.0). TensorFlow refuses only what aborts it.
func refused(e policy.SettingError) outcome {
	log := "Jax plugin configuration error: " + e.Text + "\n"
	_, raised, _ := strings.Cut(e.Then, " then raises ")
	switch {
	case e.CPU:
		return outcome{cpu: true}
	case strings.Contains(e.Then, "aborts"):
		return outcome{status: 134, text: e.Text} // 128 and SIGABRT
	case raised != "": // the plugin is not there, and was asked for
		return outcome{status: 1, text: log + raised}
	case strings.Contains(e.Then, "runs on the CPU"):
		return outcome{cpu: true, text: log + "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu."}
	case strings.Contains(e.Then, "Unable to initialize"):
		return outcome{status: 1, text: "RuntimeError: Unable to initialize backend 'cuda': " + e.Text}
	}
	return outcome{status: 1, text: "RuntimeError: " + e.Text}
}
