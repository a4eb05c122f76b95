package frameworks

import (
	"slices"
	"strings"
	"testing"

	"gpumem/policy"
)

func TestRemat(t *testing.T) {
	const off, asBefore = "XLA recomputes nothing to save memory", "as by default: where a program's peak passes XLA's limit, values may be recomputed"
	tests := []struct {
		as, env string // NAME=VALUE, a line each
		effects []string
		warns   string // part of the warning; empty: none
		raises  string
	}{
		{"0.12.0", "", nil, "", ""},
		{"0.4.34", "JAX_COMPILER_ENABLE_REMAT_PASS=False", []string{off}, "", ""},
		{"0.12.0", "JAX_COMPILER_ENABLE_REMAT_PASS=N", []string{off}, "", ""},
		{"0.12.0", "JAX_COMPILER_ENABLE_REMAT_PASS=on", []string{asBefore}, "", ""},
		{"0.4.33", "JAX_COMPILER_ENABLE_REMAT_PASS=0", nil, "not read before JAX 0.4.34", ""},
		{"0.4.33", "JAX_COMPILER_ENABLE_REMAT_PASS=maybe", nil, "not read before JAX 0.4.34", ""},
		{"0.12.0", "JAX_COMPILER_ENABLE_REMAT_PASS=", nil, "", "invalid truth value '' for environment 'JAX_COMPILER_ENABLE_REMAT_PASS'"},
		{"0.12.0", "JAX_COMPILER_ENABLE_REMAT_PASS=Maybe", nil, "", "invalid truth value 'maybe' for environment 'JAX_COMPILER_ENABLE_REMAT_PASS'"},
		{"0.11.0", "JAX_COMPILER_ENABLE_REMAT_PASS=0\nXLA_FLAGS=--xla_disable_hlo_passes=fusion", []string{off}, "takes the place of xla_disable_hlo_passes", ""},
		{"0.11.1", "JAX_COMPILER_ENABLE_REMAT_PASS=0\nXLA_FLAGS=--xla_disable_hlo_passes=fusion", []string{off}, "", ""},
		{"0.11.0", "XLA_FLAGS=--xla_disable_hlo_passes=fusion,rematerialization", []string{"xla_disable_hlo_passes=rematerialization: " + off}, "", ""},
		{"0.11.0", "XLA_FLAGS=--xla_disable_hlo_passes=rematerialization-2", nil, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.as+" "+tt.env, func(t *testing.T) {
			a, raised := readAs(t, "jax", tt.as, policy.Environ(strings.Split(tt.env, "\n")), policy.Device{Total: 24 << 30, Free: 24 << 30})
			var effects []string
			for _, s := range a.Settings {
				effects = append(effects, s.Effect)
			}
			if off := slices.ContainsFunc(tt.effects, func(e string) bool { return strings.HasSuffix(e, off) }); a.NoRemat != off && tt.raises == "" {
				t.Errorf("NoRemat is %v", a.NoRemat)
			}
			if !slices.Equal(effects, tt.effects) {
				t.Errorf("effects %q, want %q", effects, tt.effects)
			}
			warned := slices.ContainsFunc(a.Warnings, func(w policy.Warning) bool { return strings.Contains(w.Text, tt.warns) })
			if tt.warns == "" && len(a.Warnings) > 0 || tt.warns != "" && !warned {
				t.Errorf("warnings %+v, want %q", a.Warnings, tt.warns)
			}
			if raised.Text != tt.raises {
				t.Errorf("raises %+v, want %q", raised, tt.raises)
			}
		})
	}
}
