package alloctest_test

import (
	"testing"

	"gpumem/alloc/internal/test/alloctest"
)

// TestStreams runs the contract for streams over every policy.
func TestStreams(t *testing.T) {
	for _, spec := range []string{
		"jax", "jax:limit=64MiB,preallocate=false", "bfc:limit=64MiB,preallocate=false,gc=true", "tensorflow",
		"platform", "address", "elastic", "elastic:eager=true", "elastic:limit=64MiB", "vmm", "async", "pytorch", "pytorch:expandable_segments=True", "pytorch:max_split_size_mb=32", "async:async_prealloc=32MiB",
	} {
		t.Run(spec, func(t *testing.T) { alloctest.RunStreams(t, spec) })
	}
}
