// Package formats opens recordings in any format that gpumem reads.
//
// "text": one event a line. Blank lines are skipped, and so are lines whose
// first character that is not a blank is '#'.
//
//	a ID BYTES    ID asks for BYTES bytes
//	f ID          ID is freed
//
// ID is any text without blanks. An ID that begins with 'u' asks for
// collective memory: alloc.Upper. An ID may be used again after its free.
//
// "torch": what PyTorch's torch.cuda.memory._dump_snapshot writes, in the
// layouts of 2023, 2025 and 2026, with times from 2025 on; see package record/internal/torch.
//
// "kineto": a trace of PyTorch's profiler with profile_memory=True, JSON for Chrome's viewer,
// with times. A pool is a device, "cuda:0" or "cpu". What a pool held before the recording is
// seeded; see package record/internal/kineto.
//
// "torch-timeline": what torch.profiler's export_memory_timeline writes with a path that ends
// in .raw.json.gz, one device, with times. A site is PyTorch's category of the block; see
// record/internal/kineto/memtimeline.go.
//
// "rmm": the CSV of RMM's logging adaptor, with times; see record/internal/logs/rmm.go.
//
// "nsys": CUDA's memory events of a report of Nsight Systems, as a CSV, with times. A pool is a
// device, "cuda:0"; see record/internal/logs/nsys.go.
//
// "memdebug": the lines "[mem-debug] AllocateRaw" and "DeallocateRaw" of XLA's
// and TensorFlow's BFC allocator in the log of a program, with times where the
// lines have them; a pool per allocator; see record/internal/logs/memdebug.go.
//
// "minimalloc": a problem of MiniMalloc, CSV with id, lower, upper and size; see
// record/internal/logs/minimalloc.go.
//
// "gpumem": our own, which [trace.Trace.Save] writes of a recording in any format, and
// [trace.Writer] of a running program: compact, with everything that the model has,
// readable up to where a killed program left it; see
// record/internal/tape/binary.go.
//
// "xplane": what the profiler of XLA writes for JAX and TensorFlow,
// NAME.xplane.pb. A pool is an allocator, by its name or the number of its
// device, "GPU_0_bfc" or "0". What a pool held before the recording is seeded;
// see
// package record/internal/xplane. A site is an operation with the type, shape and use of its
// block.
//
// "memdump": what XLA's BFC allocator writes when it refuses a request and
// TF_BFC_MEMORY_DUMP is set: one pool at one instant, so allocations only.
//
// "pprof": what jax.profiler.save_device_memory_profile writes: one instant, so
// allocations only. A pool is a device, "cuda:0", or "executable" for programs,
// which lie outside of the devices' pools.
//
// Each may be gzip-compressed; that is seen from the content.
package formats

import (
	"context"
	"io"
	"slices"

	"gpumem/record/dump"
	"gpumem/record/internal/kineto"
	"gpumem/record/internal/logs"
	"gpumem/record/internal/profile"
	"gpumem/record/internal/tape"
	"gpumem/record/internal/torch"
	"gpumem/record/internal/xplane"
	"gpumem/record/trace"
)

// list is the formats. Text is first, so tried last, and before it a log: a comment in the
// one and the lines of the other may hold anything.
var list = trace.Formats{
	tape.Text,
	logs.MemDebug,
	torch.Format,
	kineto.Format,
	kineto.Timeline,
	xplane.Format,
	logs.RMM,
	logs.Nsys,
	dump.Format,
	profile.Format,
	logs.MiniMalloc,
	tape.Binary,
}

// all is the list, which refuses other files by what they are.
var all = refusing(slices.Clone(list))

// All returns the formats.
func All() trace.Formats { return all }

// Open reads the recording at path, see [trace.Formats.Open].
func Open(ctx context.Context, path string, opt trace.Options) (*trace.Trace, error) {
	return all.Open(ctx, path, opt)
}

// Read reads a recording from r, see [trace.Formats.Read].
func Read(ctx context.Context, r io.Reader, name string, opt trace.Options) (*trace.Trace, error) {
	return all.Read(ctx, r, name, opt)
}
