// Package doctor reads what programs print when GPU memory runs out, and says why it did.
//
// From a log to a verdict there are five steps. scan.go goes through the log once and finds
// the parts that matter; lines.go makes texts of them again, whatever a terminal, a chat or
// a collector did to them; words.go and roles.go read the numbers of a text and what each
// means; notice.go finds whether memory was refused, and by whom; and the judge's files draw
// up the account of the GPU's memory and weigh who could have given what was lacking.
//
// A walk. The log of a JAX program ends with
//
//	1  E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR
//	2  E cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.
//
// Both lines matter, for "cudnn" and "memory" are among the words that do. The first is a
// library that could not be started: a library's name, a word for failing and "handle". The
// second has two amounts: behind the first number stands "free", behind the second "total".
// The judge compares: 205 MiB is less than the 520 MiB that cuDNN takes, so that memory was
// missing. Who has it is not known: this program's own pool, another program that
// preallocates, or any other program. The three are candidates, devices.processes is
// missing, and nvidia-smi decides. With a state file that lists a second JAX process the
// verdict is that cause.
package doctor

import (
	"errors"
	"io"
	"strings"

	"gpumem/dump"
	"gpumem/machine"
)

// Diagnose says why the program of this log failed. The state is what is known
// of the machine; nil: nothing. The log is read once, to its end, and may be of any size,
// in UTF-8 or, with a byte order mark, in UTF-16. It may also be a binary dump of a pool
// (TF_BFC_MEMORY_DUMP). The error is that of reading it.
func Diagnose(log io.Reader, state *machine.Snapshot) (*Diagnosis, error) {
	return DiagnoseWith(log, state, nil)
}

// DiagnoseWith is Diagnose with what was taken beside the log; nil if there is nothing.
func DiagnoseWith(log io.Reader, state *machine.Snapshot, beside *Beside) (*Diagnosis, error) {
	e := newEvidence(state)
	e.beside = beside
	if err := e.read(log); err != nil {
		return nil, err
	}
	if beside != nil && beside.Dump != nil && e.dump == nil {
		e.dump = beside.Dump
	}
	d := e.weigh()
	if said := beside.said(); said != "" {
		d.Certain = append(d.Certain, said)
	}
	d.Dump, d.Program = e.dump, e.program
	if beside != nil && d.Dump != nil && d.Dump == beside.Dump {
		d.DumpSource = beside.Source
	}
	return d, nil
}

// read reads the log for facts, for a pool's dump and for a program's buffers,
// all at once.
func (e *evidence) read(log io.Reader) error {
	type result[T any] struct {
		value *T
		err   error
	}
	dumpIn, dumpOut := io.Pipe()
	programIn, programOut := io.Pipe()
	dumps, programs := make(chan result[dump.Dump], 1), make(chan result[dump.Program], 1)
	go func() {
		d, err := dump.Read(dumpIn)
		dumps <- result[dump.Dump]{d, err}
		dumpIn.CloseWithError(err) // so that nobody writes to a reader that left
	}()
	go func() {
		p, err := dump.ReadProgram(programIn)
		programs <- result[dump.Program]{p, err}
		programIn.CloseWithError(err)
	}()
	s := scanner{region: e.region}
	err := s.scan(io.TeeReader(decoded(log), io.MultiWriter(quiet{dumpOut}, quiet{programOut})))
	for _, p := range passages(s.last()) {
		if st := (statement{passage: p}); strings.TrimSpace(p.text) != "" {
			e.end = st.quote()
		}
	}
	e.gather()
	dumpOut.CloseWithError(err) // nil is the end
	programOut.CloseWithError(err)
	d, p := <-dumps, <-programs
	if err != nil {
		return err
	}
	if d.err == nil {
		e.dump = d.value
	} else if !errors.Is(d.err, dump.ErrNone) {
		return d.err
	}
	if p.err == nil {
		e.program = p.value
	} else if !errors.Is(p.err, dump.ErrNoProgram) {
		return p.err
	}
	return nil
}

// quiet is a writer whose reader may leave early.
type quiet struct{ w io.Writer }

func (q quiet) Write(p []byte) (int, error) {
	_, _ = q.w.Write(p)
	return len(p), nil
}
