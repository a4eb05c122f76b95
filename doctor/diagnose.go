// Package doctor reads what programs print when GPU memory runs out, and says why it did.
//
// From a log to a verdict there are four rooms, each on top of the one before. Package
// statement reads the log: passages, numbers and their roles, who refused memory. Package
// account says who lacks bytes, and who has them. Package cause has the explanations,
// with what to do in the words of the program's release. Here weigh.go makes one diagnosis
// of what fits, claims.go drops each sentence that its numbers do not bear, and text.go and
// json.go write it.
//
// A walk. The log of a JAX program ends with
//
//	1  E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR
//	2  E cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.
//
// Both lines matter, for "cudnn" and "memory" are among the words that do. The first is a
// library that could not be started: a library's name, a word for failing and "handle". The
// second has two amounts: behind the first number stands "free", behind the second "total".
// The account compares: 205 MiB is less than the 520 MiB that cuDNN takes, so that memory was
// missing. Who has it is not known: this program's own pool, another program that
// preallocates, or any other program. The three are candidates, devices.processes is
// missing, and nvidia-smi decides. With a state file that lists a second JAX process the
// verdict is that cause.
package doctor

import (
	"io"

	"gpumem/doctor/internal/account"
	"gpumem/node/machine"
	"gpumem/record/dump"
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
	e := account.New(state)
	var besides *dump.Dump
	if beside != nil {
		e.Live, e.LiveSource, besides = beside.On, beside.Source, beside.Dump
	}
	if err := e.Read(log, besides); err != nil {
		return nil, err
	}
	d := weigh(e)
	d.account(e)
	d.Settings, d.windows = settingsOf(state), e.Place.Windows && !e.Place.WSL
	if said := beside.said(); said != "" {
		d.Certain = append(d.Certain, said)
	}
	d.Dump, d.Program = e.Dump, e.Program
	if beside != nil && d.Dump != nil && d.Dump == beside.Dump {
		d.DumpSource = beside.Source
	}
	return d, nil
}
