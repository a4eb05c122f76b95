package pass

import (
	"errors"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/remattest"
)

func TestLimit(t *testing.T) {
	const gib = 1 << 30
	module := func(alias, p, r string) string {
		return "HloModule m" + alias + "\nENTRY e {\n  p = " + p + " parameter(0)\n  ROOT r = " + r + " custom-call(p), custom_call_target=\"f\"\n}\n"
	}
	tests := []struct {
		name, text string
		base       uint64
		want       uint64
		err        error
	}{
		// The 80 GB card of public logs: 0.75 x 79.2 GiB, logged as 56.48 GiB with small arguments.
		{"small arguments", module("", "f32[1]", "f32[1]"), 63780790272, 60591750750, nil},
		{"arguments and results", module("", "f32[268435456]", "f32[536870912]"), 10 * gib, 7 * gib / 100 * 95, nil},
		{"a donated argument", module(", input_output_alias={ {}: (0, {}, may-alias) }", "f32[268435456]", "f32[268435456]"), 10 * gib, 9 * gib / 100 * 95, nil},
		{"tables of tuples", module("", "(f32[1], f32[1])", "f32[1]"), 100 + 28, 95, nil},
		{"on the host", module("", "f32[268435456]{0:S(5)}", "f32[1]"), gib + 4, gib / 100 * 95, nil},
		{"no room", module("", "f32[1024]", "f32[1024]"), 8191, 0, ErrNoRoom},
		{"just none", module("", "f32[1024]", "f32[1024]"), 8192, 0, nil},
		{"all that there is", module("", "f32[]", "f32[]"), 1<<64 - 1, (1<<64 - 9) / 100 * 95, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Limit(remattest.Parsed(t, tt.text), tt.base)
			if !errors.Is(err, tt.err) {
				t.Fatal(err)
			}
			if got < tt.want || got > tt.want+100 { // the products above are cut off before
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
	if _, err := Limit(remattest.Parsed(t, module("", "f32[?]", "f32[1]")), gib); !errors.Is(err, hlo.ErrUnbounded) {
		t.Errorf("a dimension without bound: %v", err)
	}
}
