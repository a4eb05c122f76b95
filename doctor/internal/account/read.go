// Package account is what a log and a state of the machine say of memory, in types.
//
// A Case has the statements that matter, the program with its settings, the processes, the GPU,
// and each time that memory was refused. From these follow accounts: the shortfall of a message
// with numbers, a library that could not start, a request to the driver, an engine's check, a
// pool's report, a program's buffers. What the GPU has is what this program's pool took, what the
// program holds outside of it, what others hold, and what is free. What is not told stays unknown.
package account

import (
	"io"
	"sync"

	"gpumem/doctor/internal/inventory"
	"gpumem/doctor/internal/statement"
	"gpumem/record/dump"
)

// Read reads the log for facts, for a pool's dump, for a program's buffers, and for where the
// memory is, all at once.
func (e *Case) Read(log io.Reader, besideLog *dump.Dump) error {
	feeds := spread(statement.Decoded(log), 3)
	var readers sync.WaitGroup
	var damaged error
	readers.Go(func() {
		e.Dump, e.Program, damaged = dump.ReadLog(feeds[0])
		_, _ = io.Copy(io.Discard, feeds[0]) // nobody waits for a reader that left
	})
	readers.Go(func() { e.Inventory, _ = inventory.ReadAll(feeds[1]) }) // statements have the error of reading
	end, err := statement.Read(feeds[2], e.Add)
	readers.Wait()
	if err == nil {
		err = damaged
	}
	if err != nil {
		return err
	}
	if e.End = end; e.Dump == nil {
		e.Dump = besideLog
	}
	e.conclude()
	return nil
}

// A log is handed on in pieces of pieceSize bytes, and one reader may be so many ahead of another.
const (
	pieceSize = 64 << 10
	ahead     = 32
)

// A feed is a log for one of its readers, which must read to its end.
type feed struct {
	pieces chan []byte
	piece  []byte // what is left of one
	err    *error // that of the log, once it has ended
}

// spread gives a log to n readers, each at its own pace.
func spread(log io.Reader, n int) []*feed {
	var ended error
	feeds := make([]*feed, n)
	for i := range feeds {
		feeds[i] = &feed{pieces: make(chan []byte, ahead), err: &ended}
	}
	go func() {
		var err error
		for err == nil {
			piece, read := make([]byte, pieceSize), 0
			for n := 0; err == nil && read < pieceSize; read += n {
				n, err = log.Read(piece[read:])
			}
			for _, f := range feeds {
				f.pieces <- piece[:read]
			}
		}
		ended = err
		for _, f := range feeds {
			close(f.pieces)
		}
	}()
	return feeds
}

// Read reads on.
func (f *feed) Read(p []byte) (int, error) {
	for len(f.piece) == 0 {
		piece, more := <-f.pieces
		if !more {
			return 0, *f.err
		}
		f.piece = piece
	}
	n := copy(p, f.piece)
	f.piece = f.piece[n:]
	return n, nil
}
