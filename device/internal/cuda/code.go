// Result codes of the CUDA driver: their names, what they mean for an
// allocator, and what someone who sees one can do.

package cuda

import (
	"errors"
	"fmt"

	"gpumem/device"
	"gpumem/internal/cudacode"
)

// Code is a result of a driver call other than success (CUresult). It is an
// error; errors.Is tells which error of package device it stands for, if any.
type Code int32

// codeText is what is known of one code.
type codeText struct {
	name, text string
	advice     string // what to do about it; "" where that depends on the call
	is         error  // the error of package device
	fatal      bool   // every later call of this process fails too
}

// errorsOf are the errors of package device by the words of the table.
var errorsOf = map[string]error{
	"illegal address": device.ErrIllegalAddress, "invalid handle": device.ErrInvalidHandle, "invalid value": device.ErrInvalidValue,
	"lost": device.ErrLost, "not permitted": device.ErrNotPermitted, "not supported": device.ErrNotSupported, "out of memory": device.ErrOutOfMemory,
}

// codes are the driver's results that the calls of this package may meet.
var codes = func() map[Code]codeText {
	m := map[Code]codeText{}
	for _, c := range cudacode.CUDA() {
		if c.Number != 0 {
			m[Code(c.Number)] = codeText{c.Name, c.Text, c.Advice, errorsOf[c.Is], c.Fatal}
		}
	}
	return m
}()

// Name is the driver's name, such as "CUDA_ERROR_OUT_OF_MEMORY", or
// "CUresult(N)" for a code that this package does not know.
func (c Code) Name() string {
	if t, ok := codes[c]; ok {
		return t.name
	}
	return fmt.Sprintf("CUresult(%d)", int32(c))
}

// Error is the name, what it means, and what to do about it.
func (c Code) Error() string {
	t, ok := codes[c]
	switch {
	case !ok:
		return c.Name() + ": a result that is not known here; look it up in NVIDIA's cuda.h"
	case t.advice == "":
		return t.name + ": " + t.text
	}
	return t.name + ": " + t.text + "; " + t.advice
}

// Is reports whether target is the error of package device that c stands for.
func (c Code) Is(target error) bool {
	is := codes[c].is
	return is != nil && errors.Is(is, target)
}

// fatal reports whether every later call of this process fails as well.
func (c Code) fatal() bool { return codes[c].fatal }
