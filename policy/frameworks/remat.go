package frameworks

import (
	"gpumem/policy"
	"gpumem/policy/internal/literal"
	"strings"
)

// XLA's recompute pass, rematerialization: whether it runs, and what it goes by.

const (
	rematVar     = "JAX_COMPILER_ENABLE_REMAT_PASS"
	disabledFlag = "xla_disable_hlo_passes"
	rematPass    = "rematerialization" // its name() in XLA, compared as a whole
)

// remat reads what is about the pass, and reports whether it is switched off. JAX
// reads its variable at import, before anything else of all this
// (jax/_src/config.py, bool_state).
func (n *notes) remat(r jaxRelease, flags xlaFlags) (off bool, err *policy.SettingError) {
	disabled := strings.Split(flags[disabledFlag], ",")
	has := false
	for _, pass := range disabled {
		has = has || pass == rematPass
	}
	if has {
		n.Effect(xlaFlagsVar, "%s=%s: XLA recomputes nothing to save memory", disabledFlag, rematPass)
	}
	text, set := n.Env.Lookup(rematVar)
	switch {
	case !set:
		return has, nil
	case !r.Remat:
		n.Warn(rematVar, "-"+rematVar, "not read before JAX 0.4.34, which has the pass and no option for it")
		return has, nil
	}
	switch strings.ToLower(text) {
	case "y", "yes", "t", "true", "on", "1":
		n.Effect(rematVar, "as by default: where a program's peak passes XLA's limit, values may be recomputed")
		return has, nil
	case "n", "no", "f", "false", "off", "0":
		n.Effect(rematVar, "XLA recomputes nothing to save memory")
		if !r.RematAdds && disabled[0] != "" && !has {
			n.Warn(rematVar, "", "up to JAX 0.11.0 it takes the place of %s in XLA_FLAGS: the passes named there run again", disabledFlag)
		}
		return true, nil
	default:
		return has, &policy.SettingError{Name: rematVar, Text: "invalid truth value " + literal.PyRepr(strings.ToLower(text)) + " for environment '" + rematVar + "'", Then: "import jax raises it as a ValueError", Fix: rematVar + "=false"}
	}
}
