// Package spool stores blocks of bytes that may be too many for memory: in memory up to a
// limit, after that in one temporary file.
package spool

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
)

// Block is where one block lies.
type Block struct {
	mem []byte // in memory; nil if it is in the file
	off int64  // in the file
	n   int32  // bytes
}

// Spool stores blocks. One goroutine stores them; after that any number may load them at
// once.
type Spool struct {
	limit int    // bytes that may stay in memory
	dir   string // of the temporary file
	inMem int

	file *os.File
	path string // to be removed on close; "" if it is already
	size int64  // of the file

	closing sync.Once
	err     error // of closing
}

// Errors of [Spool.Load].
var (
	// ErrClosed is the error after Close.
	ErrClosed = errors.New("trace: the trace is closed")
	// ErrDamaged is for readers that find anything but what was stored. The spool is memory
	// or an unlinked file that only this process writes, so it is a failing disk or a bug.
	ErrDamaged = errors.New("trace: the spooled recording is damaged; check the disk of the temporary directory")
)

// New returns an empty spool that may keep limit bytes in memory. dir is where the
// temporary file is made; "" is os.TempDir().
func New(limit int, dir string) *Spool { return &Spool{limit: limit, dir: dir} }

// Store keeps a copy of data.
func (s *Spool) Store(data []byte) (Block, error) {
	if s.file == nil && len(data) <= s.limit-s.inMem {
		s.inMem += len(data)
		mem := make([]byte, len(data))
		copy(mem, data)
		return Block{mem: mem, n: int32(len(data))}, nil
	}
	if s.file == nil {
		if err := s.create(); err != nil {
			return Block{}, err
		}
	}
	if _, err := s.file.Write(data); err != nil {
		return Block{}, fmt.Errorf("trace: the temporary file for the recording's events cannot be written "+
			"(set TMPDIR to a directory with more room): %w", err)
	}
	blk := Block{off: s.size, n: int32(len(data))}
	s.size += int64(len(data))
	return blk, nil
}

// create makes the temporary file and removes its name at once: the file lives
// as long as it is open, so that even a killed process leaves nothing behind.
// Where an open file cannot be removed (Windows), close removes it.
func (s *Spool) create() error {
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

// Load returns the bytes of a block: those in memory, or the file's in buf, which grows as
// needed.
func (s *Spool) Load(blk Block, buf *[]byte) ([]byte, error) {
	if blk.mem != nil {
		return blk.mem, nil
	}
	if cap(*buf) < int(blk.n) {
		*buf = make([]byte, blk.n)
	}
	data := (*buf)[:blk.n]
	if _, err := s.file.ReadAt(data, blk.off); err != nil {
		if errors.Is(err, fs.ErrClosed) {
			return nil, ErrClosed
		}
		return nil, fmt.Errorf("trace: the temporary file of the recording's events cannot be read: %w", err)
	}
	return data, nil
}

// Close closes and removes the file; blocks in memory go with the spool. A second Close
// does nothing.
func (s *Spool) Close() error {
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
