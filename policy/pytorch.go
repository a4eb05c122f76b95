// PyTorch: its variables, the list of settings in them as each release reads
// it, and what the settings do.

package policy

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// torchRelease is what a release of PyTorch's builds for CUDA does.
type torchRelease struct {
	grammar   torchGrammar
	keys      []torchKey
	divisions string // the word in its errors
	noStep    bool   // divisions of 0 in a list mean none
	crashes   bool   // a list without its end is read beyond it
	scolds    bool   // calls PYTORCH_CUDA_ALLOC_CONF deprecated and reads nothing else
	hipNoPool bool   // PYTORCH_NO_HIP_MEMORY_CACHING counts, too
}

// torchGrammar is how a list is read.
type torchGrammar uint8

const (
	torchSplit  torchGrammar = iota // cut at blanks, commas and colons; what has no value is passed over
	torchStrict                     // tokens, and what is between them is looked at
	torchTwice                      // tokens, and what is between them may be anything; read by two readers, see torchReader
)

// know adds keys to those of a release.
func (r *torchRelease) know(common bool, read torchRead, names ...string) {
	for _, name := range names {
		r.keys = append(r.keys, torchKey{name, common, read})
	}
}

// torchReleases, oldest first.
var torchReleases = []row[torchRelease]{
	{version{1, 13, 0}, "2022-10-28",
		"The oldest release known here. `PYTORCH_CUDA_ALLOC_CONF` has `max_split_size_mb`, `roundup_power2_divisions` and `garbage_collection_threshold`; what has no value is passed over in silence.",
		"PyTorch 1.13.1, asked",
		func(r *torchRelease) {
			r.divisions = "divisons"
			r.know(true, (*torchReader).megabytes, torchMaxSplit)
			r.know(true, (*torchReader).threshold, torchGC)
			r.know(true, (*torchReader).roundup, torchRoundup)
		}},
	{version{2, 0, 0}, "2023-03-15",
		"The list is read strictly: all that is not understood is an error. `backend`; `roundup_power2_divisions` may be a list.",
		"PyTorch 2.0.1, asked",
		func(r *torchRelease) {
			r.grammar, r.crashes = torchStrict, true
			r.know(false, (*torchReader).backend, torchBackend)
		}},
	{version{2, 1, 0}, "2023-10-04",
		"`expandable_segments`.",
		"PyTorch 2.1.2, asked",
		func(r *torchRelease) { r.know(true, (*torchReader).truth, torchExpandable) }},
	{version{2, 2, 0}, "2024-01-30",
		"`release_lock_on_cudamalloc`, `pinned_use_cuda_host_register`, `pinned_num_register_threads`.",
		"PyTorch 2.2.2, asked",
		func(r *torchRelease) {
			r.know(false, (*torchReader).truth, "release_lock_on_cudamalloc", "release_lock_on_hipmalloc", "pinned_use_cuda_host_register", "pinned_use_hip_host_register")
			r.know(false, (*torchReader).threads, "pinned_num_register_threads")
		}},
	{version{2, 4, 0}, "2024-07-24",
		"In a list of `roundup_power2_divisions`, 0 means no rounding.",
		"PyTorch 2.3.1 and 2.4.1, asked",
		func(r *torchRelease) { r.noStep = true }},
	{version{2, 5, 0}, "2024-10-17",
		"`pinned_use_background_threads`.",
		"PyTorch 2.4.1 and 2.5.1, asked",
		func(r *torchRelease) { r.know(true, (*torchReader).truth, "pinned_use_background_threads") }},
	{version{2, 6, 0}, "2025-01-29",
		"`max_non_split_rounding_mb`. `PYTORCH_NO_HIP_MEMORY_CACHING` turns the pool off in builds for CUDA, too.",
		"PyTorch 2.5.1 and 2.6.0, asked; the names in their libraries",
		func(r *torchRelease) {
			r.crashes, r.hipNoPool = false, true
			r.know(true, (*torchReader).megabytes, torchNonSplit)
		}},
	{version{2, 8, 0}, "2025-08-06",
		"An error spells \"divisions\" right.",
		"PyTorch 2.7.1 and 2.8.0, asked",
		func(r *torchRelease) { r.divisions = "divisions" }},
	{version{2, 9, 0}, "2025-10-15",
		"`graph_capture_record_stream_reuse`. A warning calls `PYTORCH_CUDA_ALLOC_CONF` deprecated in favour of `PYTORCH_ALLOC_CONF`, which the pool for CUDA does not read.",
		"PyTorch 2.9.0 and 2.9.1, asked",
		func(r *torchRelease) {
			r.scolds = true
			r.know(false, (*torchReader).truth, "graph_capture_record_stream_reuse")
		}},
	{version{2, 10, 0}, "2026-01-21",
		"`per_process_memory_fraction`, `pinned_reserve_segment_size_mb`. `PYTORCH_ALLOC_CONF` is read where `PYTORCH_CUDA_ALLOC_CONF` is not set. Separators are not checked any more. 20 MiB is enough for `max_split_size_mb`.",
		"PyTorch 2.10.0, asked; c10/core/AllocatorConfig.cpp and c10/cuda/CUDAAllocatorConfig.cpp of 2025-11",
		func(r *torchRelease) {
			r.grammar, r.scolds = torchTwice, false
			r.know(false, (*torchReader).fraction, torchFraction)
			r.know(false, (*torchReader).count, torchReserve)
		}},
	{version{2, 11, 0}, "2026-03",
		"`large_segment_size_mb`.",
		"PyTorch 2.11.0, asked",
		func(r *torchRelease) { r.know(true, (*torchReader).megabytes, torchLarge) }},
	{version{2, 13, 0}, "2026-07",
		"`throw_on_cudamalloc_oom`, `pinned_free_catch_all`, `pinned_max_round_threshold_mb`, `pinned_max_cached_size_mb`.",
		"PyTorch 2.13.0, asked",
		func(r *torchRelease) {
			r.know(false, (*torchReader).truth, torchThrow, "pinned_free_catch_all")
			r.know(true, (*torchReader).megabytes, torchRoundMost, torchCacheMost)
		}},
	{version{2, 15, 0}, "2026-11",
		"`expandable_segments_reserve`, `expandable_segments_reserve_by_class`.",
		"PyTorch 2.15.0, asked; PyTorch PR 192269",
		func(r *torchRelease) {
			r.know(false, (*torchReader).reserve, torchAddresses)
			r.know(false, (*torchReader).reserves, torchAddresses+"_by_class")
		}},
}

// newestTorch is the newest release that was looked at.
var newestTorch = version{2, 15}

// The keys that this file speaks of.
const (
	torchMaxSplit   = "max_split_size_mb"
	torchNonSplit   = "max_non_split_rounding_mb"
	torchLarge      = "large_segment_size_mb"
	torchGC         = "garbage_collection_threshold"
	torchRoundup    = "roundup_power2_divisions"
	torchExpandable = "expandable_segments"
	torchAddresses  = "expandable_segments_reserve"
	torchBackend    = "backend"
	torchFraction   = "per_process_memory_fraction"
	torchThrow      = "throw_on_cudamalloc_oom"
	torchReserve    = "pinned_reserve_segment_size_mb"
	torchRoundMost  = "pinned_max_round_threshold_mb"
	torchCacheMost  = "pinned_max_cached_size_mb"

	torchNative = "native"
	torchAsync  = "cudaMallocAsync"
	torchNoHIP  = "PYTORCH_NO_HIP_MEMORY_CACHING"
)

