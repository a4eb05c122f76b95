package doctor

// Messages of BFC, the pool of XLA and TensorFlow (bfc_allocator.cc). The
// lines of single chunks and bins are left to a reader of whole reports.

import "regexp"

// inWord is an end of a longer label, such as RateLimit.
var inWord = regexp.MustCompile(`\w$`)

var poolPatterns = []pattern{
	// The same head means a warning if its sentence ends so. freed_by_count is
	// of 2021 on; the two wordings differ in "this may mean".
	{kind: BFCWarning, nonfatal: true, anchors: []string{"Allocator ("},
		rest: `(?P<allocator>[^)]+)\) ran out of memory t(?:r)?ying to allocate {want}.*? The caller indicates that this is not a failure`},
	// Until 2025-12 no blank before "requested"; then the end of the pool; in
	// TensorFlow 1 neither rounding nor op.
	{kind: BFCRefused, anchors: []string{"Allocator ("},
		rest: `(?P<allocator>[^)]+)\) ran out of memory t(?:r)?ying to allocate {want}(?: \(rounded to {size}\))?(?: from the (?P<value>lower|upper) end)?(?: ?requested by op (?P<name>\S*))?`},
	{kind: PoolFragmented, nonfatal: true, anchors: []string{"If the cause is memory fragmentation", "If this is caused by memory fragmentation"}, rest: ``},
	// Stats: labels of allocator_retry.h; integers until 2025-12.
	{kind: PoolStats, name: "Limit", unless: inWord, anchors: []string{"Limit: "}, rest: ` +(?P<value>{limit})\s*$`},
	{kind: PoolStats, name: "MaxInUse", anchors: []string{"MaxInUse: "}, rest: ` +(?P<value>{inuse})\s*$`},
	{kind: PoolStats, name: "InUse", unless: inWord, anchors: []string{"InUse: "}, rest: ` +(?P<value>{inuse})\s*$`},
	{kind: PoolStats, name: "NumAllocs", anchors: []string{"NumAllocs: "}, rest: ` +(?P<value>\d+)\s*$`},
	{kind: PoolStats, name: "MaxAllocSize", anchors: []string{"MaxAllocSize: "}, rest: ` +(?P<value>{want})\s*$`},
	{kind: PoolStats, name: "PeakReserved", anchors: []string{"PeakReserved: "}, rest: ` +(?P<value>{reserved})\s*$`},
	{kind: PoolStats, name: "Reserved", unless: inWord, anchors: []string{"Reserved: "}, rest: ` +(?P<value>{reserved})\s*$`},
	{kind: PoolStats, name: "PeakAllocated", anchors: []string{"PeakAllocated: "}, rest: ` +(?P<value>{allocated})\s*$`},
	{kind: PoolStats, name: "LargestFreeBlock", anchors: []string{"LargestFreeBlock: "}, rest: ` +(?P<value>{largest})\s*$`},
	{kind: PoolStats, name: "Sum Total", anchors: []string{"Sum Total of in-use chunks: "}, rest: `(?P<value>{inuse})`},
	// device.memory_stats() of JAX, printed.
	{kind: PoolStats, framework: "jax", anchors: []string{"'peak_bytes_in_use'", "'bytes_in_use'"}, whole: true, rest: `'(?P<name>\w+)': (?P<value>{inuse})`},
	{kind: PoolStats, framework: "jax", anchors: []string{"'bytes_limit'"}, whole: true, rest: `'(?P<name>\w+)': (?P<value>{limit})`},
	{kind: PoolStats, framework: "jax", anchors: []string{"'pool_bytes'", "'bytes_reserved'"}, whole: true, rest: `'(?P<name>\w+)': (?P<value>{reserved}|None)`},
	{kind: PoolStats, framework: "jax", anchors: []string{"'largest_free_block_bytes'"}, whole: true, rest: `'(?P<name>\w+)': (?P<value>{largest})`},
	// Bytes until 2025-12, then readable, then the newer sentence (2026-06).
	{kind: PoolSummary, anchors: []string{"total_region_allocated_bytes_: "}, rest: `{total} memory_limit_: {limit} available bytes: {size} curr_region_allocation_bytes_: {size}`},
	{kind: PoolSummary, anchors: []string{"Total bytes in pool: ", "Total size in pool: "}, rest: `{total} memory_limit_: {limit}`},
	{kind: PoolSummary, anchors: []string{"Allocator memory summary: "},
		rest: `rounded request {want}, total free in pool {free}, largest free chunk usable by (?P<value>\w+) end {largest}, unallocated bytes {size}, pool size {total}, pool limit {limit}`},
	{kind: PoolMap, anchors: []string{"bfc_allocator.cc:"}, rest: `\d+\] (?P<value>[*x_]{100})\s*$`},
	{kind: GarbageCollection, framework: "tensorflow", nonfatal: true, anchors: []string{"Garbage collection: deallocate free memory regions"}, rest: ``},
}
