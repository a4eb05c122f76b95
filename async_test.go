package gpumem_test

import (
	"testing"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/policy/explain"
	"gpumem/policy/frameworks"
)

// TestAsyncPolicies: what the driver's pool takes at once, and what it keeps over
// a synchronise, by who asks for it. The device has 1 GiB; a pool grows by 32 MiB.
func TestAsyncPolicies(t *testing.T) {
	const (
		allocator   = "XLA_PYTHON_CLIENT_ALLOCATOR"
		preallocate = "XLA_PYTHON_CLIENT_PREALLOCATE"
		amount      = "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"
		tensorflow  = "TF_GPU_ALLOCATOR"
	)
	for _, tc := range []struct {
		name  string
		spec  string // "env": what our runtime makes of env; "": what JAX does
		env   map[string]string
		first uint64 // held after the first allocation of 1 MiB, in MiB
		kept  uint64 // after its free and a synchronise
		limit uint64 // bytes_limit, in MiB
	}{
		{"ours", "async", nil, 32, 32, 768},
		{"ours with an amount", "async:async_prealloc=100MiB", nil, 128, 128, 768},
		{"ours with a large amount", "async:async_prealloc=900MiB", nil, 928, 928, 900},
		{"ours with the default amount", "async:async_prealloc=-1", nil, 768, 768, 768},
		{"ours preallocating", "async:preallocate=true,fraction=.5", nil, 512, 512, 512},
		{"ours with a limit", "async:limit=64MiB", nil, 32, 32, 64},
		{"our environment", "env", map[string]string{allocator: "cuda_async"}, 768, 768, 768},
		{"our environment with an amount", "env", map[string]string{allocator: "cuda_async", amount: "104857600"}, 128, 128, 768},
		{"TensorFlow's variable", "env", map[string]string{tensorflow: "cuda_malloc_async"}, 32, 32, 768},
		{"TensorFlow's variable, with an amount", "env", map[string]string{tensorflow: "cuda_malloc_async", amount: "104857600"}, 128, 128, 768},
		{"TensorFlow's variable, with the default amount", "env", map[string]string{tensorflow: "cuda_malloc_async", amount: "-1"}, 768, 768, 768},
		{"TensorFlow's variable, preallocating", "env", map[string]string{tensorflow: "cuda_malloc_async", preallocate: "true"}, 768, 768, 768},
		{"JAX", "", map[string]string{allocator: "cuda_async"}, 768, 768, 768},
		{"JAX, where the amount is ignored", "", map[string]string{allocator: "cuda_async", amount: "104857600"}, 768, 768, 768},
		{"JAX without preallocation", "", map[string]string{allocator: "cuda_async", preallocate: "false"}, 32, 0, 0},
		{"JAX without it, with an amount", "", map[string]string{allocator: "cuda_async", preallocate: "false", amount: "104857600"}, 128, 0, 0},
		{"JAX without it, with the default amount", "", map[string]string{allocator: "cuda_async", preallocate: "false", amount: "-1"}, 32, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := frameworks.Parse(tc.spec)
			var lines []string
			for name, value := range tc.env {
				lines = append(lines, name+"="+value)
			}
			switch env := policy.Environ(lines); tc.spec {
			case "env":
				p, _, err = frameworks.FromEnv(env)
			case "":
				var a explain.Answer
				a, err = explain.Environment(env, frameworks.Release{Name: "jax"}, policy.Device{})
				p = a.Policy
			}
			if err != nil {
				t.Fatal(err)
			}
			dev, err := sim.New(sim.Config{Total: 1 << 30})
			if err != nil {
				t.Fatal(err)
			}
			pool, err := gpumem.Open(dev, p)
			if err != nil {
				t.Fatal(err)
			}
			held := func() uint64 { n, _ := dev.Held(); return n / mib }
			if held() != 0 {
				t.Errorf("%d MiB are held before the first allocation", held())
			}
			b, err := pool.Alloc(t.Context(), mib)
			if err != nil {
				t.Fatal(err)
			}
			if held() != tc.first || pool.Stats().BytesLimit != tc.limit*mib {
				t.Errorf("%d MiB are held after the first allocation, the limit is %d; want %d and %d",
					held(), pool.Stats().BytesLimit/mib, tc.first, tc.limit)
			}
			if err := pool.Free(b); err != nil {
				t.Fatal(err)
			}
			if err := dev.Synchronize(); err != nil {
				t.Fatal(err)
			}
			if held() != tc.kept {
				t.Errorf("%d MiB are held after a synchronise, want %d", held(), tc.kept)
			}
			if err := pool.Close(); err != nil || held() != 0 {
				t.Errorf("%d MiB are held after Close: %v", held(), err)
			}
		})
	}
}
