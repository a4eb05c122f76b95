// PyTorch's releases: what each does otherwise than those before it.

package torchconf

import (
	"gpumem/policy"
)

// release is what a release of PyTorch's builds for CUDA does.
type release struct {
	grammar   torchGrammar
	keys      []torchKey
	divisions string // the word in its errors
	noStep    bool   // divisions of 0 in a list mean none
	crashes   bool   // a list without its end is read beyond it
	scolds    bool   // calls PYTORCH_CUDA_ALLOC_CONF deprecated and reads nothing else
	hipNoPool bool   // PYTORCH_NO_HIP_MEMORY_CACHING counts, too
	noPoolIs1 bool   // only the value 1 turns the pool off, not that the variable is set
	// places are where failed assertions are in PyTorch's source, by a part of
	// their text; none where that is not known.
	places map[string]string
}

// releases, oldest first.
var releases = []policy.Row[release]{
	{Version: policy.Version{1, 13, 0}, Date: "2022-10-28",
		Change: "The oldest release known here. `PYTORCH_CUDA_ALLOC_CONF` has `max_split_size_mb`, `roundup_power2_divisions` and `garbage_collection_threshold`; what has no value is passed over in silence.",
		Source: "PyTorch 1.13.1, asked",
		Apply: func(r *release) {
			r.divisions = "divisons"
			r.know(true, (*reader).megabytes, keyMaxSplit)
			r.know(true, (*reader).threshold, keyGC)
			r.know(true, (*reader).roundup, keyRoundup)
		}},
	{Version: policy.Version{2, 0, 0}, Date: "2023-03-15",
		Change: "The list is read strictly: all that is not understood is an error. `backend`; `roundup_power2_divisions` may be a list.",
		Source: "PyTorch 2.0.1, asked",
		Apply: func(r *release) {
			r.grammar, r.crashes = torchStrict, true
			r.know(false, (*reader).backend, keyBackend)
		}},
	{Version: policy.Version{2, 1, 0}, Date: "2023-10-04",
		Change: "`expandable_segments`.",
		Source: "PyTorch 2.1.2, asked",
		Apply:  func(r *release) { r.know(true, (*reader).truth, keyExpandable) }},
	{Version: policy.Version{2, 2, 0}, Date: "2024-01-30",
		Change: "`release_lock_on_cudamalloc`, `pinned_use_cuda_host_register`, `pinned_num_register_threads`.",
		Source: "PyTorch 2.2.2, asked",
		Apply: func(r *release) {
			r.know(false, (*reader).truth, "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register", "pinned_use_hip_host_register")
			r.know(false, (*reader).threads, "pinned_num_register_threads")
		}},
	{Version: policy.Version{2, 4, 0}, Date: "2024-07-24",
		Change: "In a list of `roundup_power2_divisions`, 0 means no rounding.",
		Source: "PyTorch 2.3.1 and 2.4.1, asked",
		Apply:  func(r *release) { r.noStep = true }},
	{Version: policy.Version{2, 6, 0}, Date: "2025-01-29",
		Change: "`max_non_split_rounding_mb`, `pinned_use_background_threads`. `PYTORCH_NO_HIP_MEMORY_CACHING` turns the pool off in builds for CUDA, too.",
		Source: "PyTorch 2.5.1 and 2.6.0, asked; the names in their libraries",
		Apply: func(r *release) {
			r.crashes, r.hipNoPool = false, true
			r.know(true, (*reader).megabytes, keyNonSplit)
			r.know(true, (*reader).truth, "pinned_use_background_threads")
		}},
	{Version: policy.Version{2, 7, 0}, Date: "2025-04-23",
		Change: "`PYTORCH_NO_CUDA_MEMORY_CACHING` turns the pool off with the value 1 only; before, with any.",
		Source: "`forceUncachedAllocator` in libc10_cuda.so of PyTorch 2.6.0, 2.7.1 and 2.8.0 (has_env, then check_env); PyTorch 2.14.1, asked",
		Apply:  func(r *release) { r.noPoolIs1 = true }},
	{Version: policy.Version{2, 8, 0}, Date: "2025-08-06",
		Change: "An error spells \"divisions\" right.",
		Source: "PyTorch 2.7.1 and 2.8.0, asked",
		Apply:  func(r *release) { r.divisions = "divisions" }},
	{Version: policy.Version{2, 9, 0}, Date: "2025-10-15",
		Change: "`graph_capture_record_stream_reuse`. A warning calls `PYTORCH_CUDA_ALLOC_CONF` deprecated in favour of `PYTORCH_ALLOC_CONF`, which the pool for CUDA does not read.",
		Source: "PyTorch 2.9.0 and 2.9.1, asked",
		Apply: func(r *release) {
			r.scolds = true
			r.know(false, (*reader).truth, "graph_capture_record_stream_reuse")
		}},
	{Version: policy.Version{2, 10, 0}, Date: "2026-01-21",
		Change: "`per_process_memory_fraction`, `pinned_reserve_segment_size_mb`. `PYTORCH_ALLOC_CONF` is read where `PYTORCH_CUDA_ALLOC_CONF` is not set. Separators are not checked any more. 20 MiB is enough for `max_split_size_mb`.",
		Source: "PyTorch 2.10.0, asked; c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of 2025-11",
		Apply: func(r *release) {
			r.grammar, r.scolds = torchTwice, false
			r.know(false, (*reader).fraction, keyFraction)
			r.know(false, (*reader).count, keyReserve)
		}},
	{Version: policy.Version{2, 11, 0}, Date: "2026-03",
		Change: "`large_segment_size_mb`.",
		Source: "PyTorch 2.11.0, asked",
		Apply:  func(r *release) { r.know(true, (*reader).megabytes, keyLarge) }},
	{Version: policy.Version{2, 12, 0}, Date: "2026-05",
		Change: "`throw_on_cudamalloc_oom`, `pinned_free_catch_all`.",
		Source: "PyTorch 2.12.1, asked; PyTorch PR 179473",
		Apply:  func(r *release) { r.know(false, (*reader).truth, keyThrow, "pinned_free_catch_all") }},
	{Version: policy.Version{2, 13, 0}, Date: "2026-07",
		Change: "`pinned_max_round_threshold_mb`, `pinned_max_cached_size_mb`.",
		Source: "PyTorch 2.12.1 and 2.13.0, asked",
		Apply:  func(r *release) { r.know(true, (*reader).megabytes, keyRoundMost, keyCacheMost) }},
	{Version: policy.Version{2, 15, 0}, Date: "2026-11",
		Change: "`expandable_segments_reserve`, `expandable_segments_reserve_by_class`.",
		Source: "PyTorch 2.15.0, asked; PyTorch PR 192269",
		Apply: func(r *release) {
			r.know(false, (*reader).reserve, keyAddresses)
			r.know(false, (*reader).reserves, keyAddresses+"_by_class")
			const header = `"/__w/pytorch/pytorch/c10/core/AllocatorConfig.h":`
			r.places = map[string]string{
				"Index out of bounds": header + "123", "Expected closing bracket": header + "114",
				"Allocator backend": `"/__w/pytorch/pytorch/c10/cuda/CUDAAllocatorConfig.cpp":64`,
			}
		}},
}

// Changes is what each release changed, oldest first.
var Changes = policy.ChangesOf(releases)

// Oldest is the oldest release that is known.
var Oldest = releases[0].Version

// Newest is the newest release that was looked at.
var Newest = policy.Version{2, 15}
