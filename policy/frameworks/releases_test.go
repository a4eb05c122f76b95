// Tests of the release table: each default on both sides of its change.
package frameworks_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/policy"
	"gpumem/policy/frameworks"
)

func TestJAX(t *testing.T) {
	const (
		ninety      = 0.9
		seventyFive = 0.75
		mib2        = 2 << 20
	)
	for _, tc := range []struct {
		version     string
		fraction    float64
		of          policy.Basis
		ignoreAlign bool
		round       uint64
		spatial     bool
		topDown     bool
	}{
		{"0.1.16", ninety, policy.Free, true, 0, false, false},
		{"0.2", ninety, policy.Free, true, 0, false, false},
		{"0.4.0", ninety, policy.Free, true, 0, false, false},
		{"0.4.1", ninety, policy.Total, true, 0, false, false},
		{"0.4.3", ninety, policy.Total, true, 0, false, false},
		{"0.4.4", seventyFive, policy.Total, true, 0, false, false},
		{"0.4.30", seventyFive, policy.Total, true, 0, false, false}, // 30 is after 4
		{"0.10.0", seventyFive, policy.Total, true, 0, false, false},
		{"0.10.1", seventyFive, policy.Total, false, 0, false, false},
		{"0.10.2", seventyFive, policy.Total, false, mib2, false, false},
		{"0.11", seventyFive, policy.Total, false, mib2, true, false},
		{"0.11.0", seventyFive, policy.Total, false, mib2, true, false},
		{"0.11.1.dev20260808+cec06d11", seventyFive, policy.Total, false, mib2, true, false},
		{"0.4.1rc1", ninety, policy.Total, true, 0, false, false},
		{"0.4.30+cuda12", seventyFive, policy.Total, true, 0, false, false},
		{"0.11.2", seventyFive, policy.Total, false, mib2, true, false},
		{"0.12.0", seventyFive, policy.Total, false, mib2, true, true},
		{"0.12.0.1", seventyFive, policy.Total, false, mib2, true, true},
		{"3.0.0", seventyFive, policy.Total, false, mib2, true, true}, // like the newest known
	} {
		t.Run(tc.version, func(t *testing.T) {
			got, err := frameworks.JAX(tc.version)
			if err != nil {
				t.Fatal(err)
			}
			unit := tc.round // regions are made of pages from the same release on
			if unit == 0 {
				unit = 256
			}
			collective := uint64(0)
			if tc.spatial {
				collective = mib2
			}
			want := policy.Policy{
				RegionUnit: unit, CollectiveAlign: collective,
				Spec: "jax@" + tc.version, Name: "jax", Version: tc.version,
				Kind: policy.BFC, Preallocate: true,
				Fraction: tc.fraction, Of: tc.of, RoundLimit: tc.round,
				Spatial: tc.spatial, TopDown: tc.topDown, IgnoreAlign: tc.ignoreAlign,
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("want -, got +:\n%s", diff)
			}
		})
	}
}

func TestJAXNewest(t *testing.T) {
	got, err := frameworks.JAX("")
	if err != nil {
		t.Fatal(err)
	}
	want := policy.Policy{
		Spec: "jax", Name: "jax", Kind: policy.BFC, Preallocate: true,
		Fraction: 0.75, RoundLimit: 2 << 20, RegionUnit: 2 << 20, Spatial: true, TopDown: true, CollectiveAlign: 2 << 20,
	}
	if got != want || frameworks.Default() != want {
		t.Errorf("JAX(\"\") = %+v, Default() = %+v; want %+v", got, frameworks.Default(), want)
	}
}

func TestJAXErrors(t *testing.T) {
	for _, tc := range []struct{ version, want string }{
		{"0.1.15", "oldest known release is 0.1.16"},
		{"0.0.0", "oldest known release is 0.1.16"},
		{"new", `"new" is not a JAX release; want one such as 0.4.30`},
		{"v0.4.30", "is not a JAX release"},
		{"1", "is not a JAX release"},
		{"0.4.30.1.2", "is not a JAX release"},
		{"0.4.", "is not a JAX release"},
		{" 0.4.1", "is not a JAX release"},
		{"-1.0", "is not a JAX release"},
		{"0.4.1\n", "is not a JAX release"},
		{"0.99999999999999999999", "too large"},
	} {
		if p, err := frameworks.JAX(tc.version); err == nil || !strings.Contains(err.Error(), tc.want) || p != (policy.Policy{}) {
			t.Errorf("JAX(%q) = %+v, %v; want an error with %q", tc.version, p, err, tc.want)
		}
	}
}
