package hlo_test

import (
	"testing"

	"gpumem/xla/internal/hlo"
)

func TestBackend(t *testing.T) {
	module := func(attributes, root string) string {
		return "HloModule m" + attributes + "\n\nENTRY e {\n  p = f32[2] parameter(0)\n  ROOT n = f32[2] " + root + "\n}\n"
	}
	for _, tc := range []struct {
		name, text string
		want       hlo.Backend
	}{
		{"no mark", module("", "negate(p)"), hlo.AnyBackend},
		{"a fingerprint", module(`, frontend_attributes={fingerprint_before_lhs="4d6a"}`, "negate(p)"), hlo.GPU},
		{"another attribute", module(`, frontend_attributes={a="4d6a"}`, "negate(p)"), hlo.AnyBackend},
		{"a configuration of the GPU", module("", `negate(p), backend_config={"operation_queue_id":"0","fusion_backend_config":{}}`), hlo.GPU},
		{"a configuration of the CPU", module("", `negate(p), backend_config={"outer_dimension_partitions":["2"]}`), hlo.CPU},
		{"a loop's configuration", module("", `negate(p), backend_config={"known_trip_count":{"n":"5"}}`), hlo.AnyBackend},
		{"a library of the GPU", module("", `custom-call(p), custom_call_target="__cublas$gemm"`), hlo.GPU},
		{"a custom call", module("", `custom-call(p), custom_call_target="callback"`), hlo.AnyBackend},
	} {
		m, err := hlo.ParseString(tc.text)
		if err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := m.Backend(); got != tc.want {
			t.Errorf("%s: %d, want %d", tc.name, got, tc.want)
		}
	}
}
