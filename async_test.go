package gpumem_test

import (
	"testing"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/policy"
)

// TestAsyncPolicies: what the driver's pool takes at once, and what it keeps over
// a synchronise, by who asks for it. The device has 1 GiB; a pool grows by 32 MiB.
func TestAsyncPolicies(t *testing.T) {
	const allocator, preallocate, amount = "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_PREALLOCATE", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"
	for _, tc := range []struct {
		name  string
		spec  string            // "" means what env asks for
		env   map[string]string // of JAX
		first uint64            // held after the first allocation of 1 MiB, in MiB
		kept  uint64            // after its free and a synchronise
		limit uint64            // bytes_limit, in MiB
	}{
		{"ours", "async", nil, 32, 32, 768},
		{"ours with an amount", "async:async_prealloc=100MiB", nil, 128, 128, 768},
		{"ours with a large amount", "async:async_prealloc=900MiB", nil, 928, 928, 900},
		{"ours with the default amount", "async:async_prealloc=-1", nil, 768, 768, 768},
		{"ours preallocating", "async:preallocate=true,fraction=.5", nil, 512, 512, 512},
		{"ours with a limit", "async:limit=64MiB", nil, 32, 32, 64},
		{"JAX", "", map[string]string{allocator: "cuda_async"}, 768, 768, 768},
		{"JAX, where the amount is ignored", "", map[string]string{allocator: "cuda_async", amount: "104857600"}, 768, 768, 768},
		{"JAX without preallocation", "", map[string]string{allocator: "cuda_async", preallocate: "false"}, 32, 0, 0},
		{"JAX without it, with an amount", "", map[string]string{allocator: "cuda_async", preallocate: "false", amount: "104857600"}, 128, 0, 0},
		{"JAX without it, with the default amount", "", map[string]string{allocator: "cuda_async", preallocate: "false", amount: "-1"}, 32, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := policy.Parse(tc.spec)
			if tc.spec == "" {
				p, _, err = policy.FromEnv(func(key string) (string, bool) { v, ok := tc.env[key]; return v, ok })
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
