package probe

import (
	"testing"

	"gpumem/internal/proc"
	"gpumem/policy"
	"gpumem/policy/frameworks"
)

func TestAsksBrief(t *testing.T) {
	async := []string{"XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", "TF_GPU_ALLOCATOR=cuda_malloc_async", "XLA_CLIENT_MEM_FRACTION=.875"}
	for _, tc := range []struct {
		env  []string
		as   frameworks.Release
		want string
	}{
		{async[:2], frameworks.Release{Name: "jax", Version: "0.11.0"}, "18 GiB at once (1 warning)"},
		{async, frameworks.Release{Name: "jax", Version: "0.11.0"}, "as needed (1 warning)"}, // less is free
		{async[1:2], frameworks.Release{Name: "tensorflow"}, "as needed"},
		{append([]string{"TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC=1073741824"}, async[1]), frameworks.Release{Name: "tensorflow"}, "1 GiB at once"},
		{nil, frameworks.Release{Name: "jax", Version: "0.4.30"}, "18 GiB at once"},
		{nil, frameworks.Release{Name: "jax", Version: "99"}, "18 GiB at once"},
		{[]string{"XLA_PYTHON_CLIENT_PREALLOCATE=false"}, frameworks.Release{Name: "jax", Version: "0.4.30"}, "up to 18 GiB"},
		{[]string{"XLA_PYTHON_CLIENT_PREALLOCATE=off"}, frameworks.Release{Name: "jax", Version: "0.11.0"}, "18 GiB at once (1 warning)"},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=platform"}, frameworks.Release{Name: "jax", Version: "0.11.0"}, "as needed, keeps nothing"},
		{[]string{"XLA_PYTHON_CLIENT_ALLOCATOR=vmm"}, frameworks.Release{Name: "jax", Version: "0.11.0"}, "up to 18 GiB"},
		{[]string{"XLA_CLIENT_MEM_FRACTION=.5", "XLA_PYTHON_CLIENT_MEM_FRACTION=.6"}, frameworks.Release{Name: "jax", Version: "0.11.0"}, "XLA_CLIENT_MEM_FRACTION is refused"},
		{[]string{"CUDA_VISIBLE_DEVICES=-1"}, frameworks.Release{Name: "jax", Version: "0.4.30"}, "sees no GPU"},
	} {
		d := policy.Device{Total: 24 << 30, Free: 20 << 30, Granularity: 2 << 20, CCMajor: 9}
		a := asksFor(policy.Environ(tc.env), []proc.Framework{{Name: "nosuch"}, {Name: tc.as.Name, Version: tc.as.Version}}, d)
		if a.Brief != tc.want {
			t.Errorf("%v in %v: %s, want %s", tc.env, tc.as, a.Brief, tc.want)
		}
	}
	// A release that is too old to be known is explained as the newest.
	if a := asksFor(policy.Environ(nil), []proc.Framework{{Name: "jax", Version: "0.0.1"}}, policy.Device{Total: 1 << 30}); a == nil || a.Version == "0.0.1" {
		t.Errorf("%+v", a)
	}
	if a := asksFor(policy.Environ(nil), []proc.Framework{{Name: "nosuch"}}, policy.Device{}); a != nil {
		t.Errorf("%+v", a)
	}
}
