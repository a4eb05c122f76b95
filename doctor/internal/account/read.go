// Package account is what a log and a state of the machine say of memory, in types.
//
// A Case has the statements that matter, the program with its settings, the processes, the GPU,
// and each time that memory was refused. From these follow accounts: the shortfall of a message
// with numbers, a library that could not start, a request to the driver, an engine's check, a
// pool's report, a program's buffers. What the GPU has is what this program's pool took, what the
// program holds outside of it, what others hold, and what is free. What is not told stays unknown.
package account

import (
	"gpumem/doctor/internal/inventory"
	"gpumem/doctor/internal/statement"
	"gpumem/record/dump"
	"io"
)

// Read reads the log for facts, for a pool's dump, for a program's buffers, and for where the
// memory is, all at once.
func (e *Case) Read(log io.Reader, besideLog *dump.Dump) error {
	in, out := io.Pipe()
	var d *dump.Dump
	var p *dump.Program
	done := make(chan error, 1)
	go func() {
		var err error
		d, p, err = dump.ReadLog(in)
		done <- err
		in.CloseWithError(err) // so that the writer does not wait for a reader that left
	}()
	lines, all := io.Pipe()
	told := make(chan *inventory.Reader, 1)
	go func() {
		r, err := inventory.ReadAll(lines)
		lines.CloseWithError(err)
		told <- r
	}()
	end, err := statement.Read(log, io.MultiWriter(quiet{out}, all), e.Add)
	e.End = end
	out.CloseWithError(err) // nil is the end
	all.CloseWithError(err)
	e.Inventory = <-told
	if failed := <-done; err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	if e.Dump, e.Program = d, p; d == nil {
		e.Dump = besideLog
	}
	e.conclude()
	return nil
}

// quiet is a writer whose reader may leave early.
type quiet struct{ w io.Writer }

func (q quiet) Write(p []byte) (int, error) {
	_, _ = q.w.Write(p)
	return len(p), nil
}
