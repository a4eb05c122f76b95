// The notes of a reader in this package.

package frameworks

import (
	"gpumem/policy"
	"strings"
)

// notes are what a reader has found so far.
type notes struct {
	policy.Notes
	hostLimit uint64 // of pinned host memory in bytes, as the environment sets it; 0 is the default
}

func newNotes(env policy.Environment) notes { return notes{Notes: policy.Notes{Env: env}} }

// devices says which GPUs the program sees, and whether it sees none.
func (n *notes) devices(f Framework) (hidden bool) {
	if text, set := n.Env.Lookup(visibleVar); set && f.Versioned() {
		if first, _, _ := strings.Cut(text, ","); strings.TrimSpace(first) == "" || strings.TrimSpace(first) == "-1" {
			n.Effect(visibleVar, "hides every GPU: the program runs on the CPU and takes no GPU memory")
			hidden = true
		} else {
			n.Effect(visibleVar, "only these GPUs are seen, and memory is taken on each of them")
		}
	}
	for _, name := range []string{"JAX_CUDA_VISIBLE_DEVICES", "JAX_ROCM_VISIBLE_DEVICES", "JAX_ONEAPI_VISIBLE_DEVICES"} {
		if text := n.Env.Get(name); text != "" && f.Name == "jax" {
			fix := "-" + name
			if other := assign(visibleVar, text); other != "" && name == "JAX_CUDA_VISIBLE_DEVICES" && text != "all" {
				fix += " " + other
			}
			n.Warn(name, fix, "no release reads it: the flag of this name is set in code only; write %s", visibleVar)
		}
	}
	return hidden
}

// visibleVar is the driver's.
const visibleVar = "CUDA_VISIBLE_DEVICES"

// assign returns the repair NAME=value, or none where the value has blanks, which a
// repair cannot hold, or is empty.
func assign(name, value string) string {
	value = strings.TrimSpace(value)
	if value == "" || len(strings.Fields(value)) > 1 {
		return ""
	}
	return name + "=" + value
}
