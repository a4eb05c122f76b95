package trace

// This file is for where the encoded blocks lie: in memory up to a limit, after
// that in one temporary file.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// block is where one encoded block lies.
type block struct {
	mem    []byte // in memory; nil if it is in the file
	off    int64  // in the file
	n      int32  // bytes, padding included
	events uint32
	timed  bool
}

// spool stores the blocks of all pools of a trace. It is written by one
// goroutine, while the trace is built; after that its fields do not change, and
// reads are concurrent.
type spool struct {
	limit int    // bytes that may stay in memory
	dir   string // of the temporary file
	inMem int

	file *os.File
	path string // to be removed on close; "" if it is already
	size int64  // of the file

	closing sync.Once
	err     error // of closing
}

// store keeps a copy of data.
func (s *spool) store(data []byte) (block, error) {
	if s.file == nil && len(data) <= s.limit-s.inMem {
		s.inMem += len(data)
		mem := make([]byte, len(data))
		copy(mem, data)
		return block{mem: mem, n: int32(len(data))}, nil
	}
	if s.file == nil {
		if err := s.create(); err != nil {
			return block{}, err
		}
	}
	if _, err := s.file.Write(data); err != nil {
		return block{}, fmt.Errorf("trace: the temporary file for the recording's events cannot be written "+
			"(set TMPDIR to a directory with more room): %w", err)
	}
	blk := block{off: s.size, n: int32(len(data))}
	s.size += int64(len(data))
	return blk, nil
}

// create makes the temporary file and removes its name at once: the file lives
// as long as it is open, so that even a killed process leaves nothing behind.
// Where an open file cannot be removed (Windows), close removes it.
func (s *spool) create() error {
	f, err := os.CreateTemp(s.dir, "gpumem-trace-*")
	if err != nil {
		return fmt.Errorf("trace: no temporary file for the recording's events "+
			"(set TMPDIR to a directory that can be written): %w", err)
	}
	s.file = f
	if os.Remove(f.Name()) != nil {
		s.path = f.Name()
	}
	return nil
}

// load returns a block's bytes: those in memory, or the file's in buf, which
// grows as needed.
func (s *spool) load(blk block, buf []byte) ([]byte, error) {
	if blk.mem != nil {
		return blk.mem, nil
	}
	if cap(buf) < int(blk.n) {
		buf = make([]byte, blk.n)
	}
	buf = buf[:blk.n]
	if _, err := s.file.ReadAt(buf, blk.off); err != nil {
		if errors.Is(err, fs.ErrClosed) {
			return nil, errClosedTrace
		}
		return nil, fmt.Errorf("trace: the temporary file of the recording's events cannot be read: %w", err)
	}
	return buf, nil
}

var errClosedTrace = errors.New("trace: the trace is closed")

// close closes and removes the file; blocks in memory go with the trace.
func (s *spool) close() error {
	s.closing.Do(func() {
		if s.file == nil {
			return
		}
		s.err = s.file.Close()
		if s.path != "" {
			s.err = errors.Join(s.err, os.Remove(s.path))
		}
	})
	return s.err
}
