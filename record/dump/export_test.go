package dump

// What the tests outside of the package use.

import (
	"errors"
	"io"
)

type (
	Remat = remat
	Tag   = tag
)

var IsBinary = isBinary

// ErrNone is the error of Read for a log without a dump.
var ErrNone = errors.New("no dump of a pool")

// Read returns the dump of a log.
func Read(r io.Reader) (*Dump, error) {
	d, _, err := ReadLog(r)
	if d == nil && err == nil {
		err = ErrNone
	}
	return d, err
}
