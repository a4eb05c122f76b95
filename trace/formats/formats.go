// Package formats opens recordings in any format that gpumem reads.
package formats

import (
	"context"
	"io"

	"gpumem/trace"
	"gpumem/trace/logs"
	"gpumem/trace/profile"
	"gpumem/trace/torch"
	"gpumem/trace/xplane"
)

// all is the list. Text is first, so tried last, and before it a log: a comment in the
// one and the lines of the other may hold anything.
var all = trace.Formats{
	trace.Text,
	logs.MemDebug,
	torch.Format,
	xplane.Format,
	logs.RMM,
	logs.MemDump,
	profile.Format,
	logs.MiniMalloc,
	trace.Binary,
}

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
