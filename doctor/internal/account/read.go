// Package account weighs who lacks memory, and who could have given it.
//
// Facts are what a log and a state of the machine say: statements, processes, settings, the
// GPU, and each time that memory was refused. The numbers are one account: what the GPU has
// is what this program's pool took, what the program holds outside of it, what others hold,
// and what is free. The table (inequalities.txt) has the inequalities between them; table.go
// walks it, and scenes.go makes the quantities that it names. A fact that would change the
// answer is missing, and the command that reads it decides.
package account

import (
	"gpumem/doctor/internal/statement"
	"gpumem/record/dump"
	"io"
)

// Read reads the log for facts, for a pool's dump and for a program's buffers,
// all at once.
func (e *Facts) Read(log io.Reader) error {
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
	end, err := statement.Read(log, quiet{out}, e.Add)
	e.End = end
	e.Gather()
	out.CloseWithError(err) // nil is the end
	if failed := <-done; err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	e.Dump, e.Program = d, p
	return nil
}

// quiet is a writer whose reader may leave early.
type quiet struct{ w io.Writer }

func (q quiet) Write(p []byte) (int, error) {
	_, _ = q.w.Write(p)
	return len(p), nil
}
