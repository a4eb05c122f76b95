//go:build libgpumem

package main

// #include "front.h"
// #include <stdlib.h>
import "C"

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/internal/cudacode"
)

// code is a CUresult.
type code int32

// The codes that the library returns, by the driver's numbers.
const (
	success               code = 0
	invalidValue          code = 1
	outOfMemory           code = 2
	notInitialized        code = 3
	deinitialized         code = 4
	deviceUnavailable     code = 46
	noDevice              code = 100
	invalidDevice         code = 101
	invalidContext        code = 201
	peerAccessUnsupported code = 217
	invalidHandle         code = 400
	illegalState          code = 401
	notFound              code = 500
	notReady              code = 600
	illegalAddress        code = 700
	primaryContextActive  code = 708
	contextDestroyed      code = 709
	hostAlreadyRegistered code = 712
	hostNotRegistered     code = 713
	notPermitted          code = 800
	notSupported          code = 801
	captureUnsupported    code = 900
	captureInvalidated    code = 901
	captureMerge          code = 902
	captureUnmatched      code = 903
	captureUnjoined       code = 904
	captureImplicit       code = 906
	captureWrongThread    code = 908
	unknown               code = 999
)

// names are the codes' names and descriptions, as cuGetErrorName and cuGetErrorString give
// them.
var names = func() map[code][2]string {
	m := map[code][2]string{}
	for _, c := range cudacode.CUDA() {
		m[code(c.Number)] = [2]string{c.Name, c.Text}
	}
	return m
}()

// check refuses the call with e unless ok: simCall returns e to the program. Handlers call
// it, and must, before they change anything.
func check(ok bool, e code) {
	if !ok {
		panic(e)
	}
}

// must refuses the call if the device has.
func must(err error) {
	if err != nil {
		panic(codeOf(err))
	}
}

// causes are the errors of the device with the driver's code for each.
var causes = []struct {
	err  error
	code code
}{
	{device.ErrOutOfMemory, outOfMemory},
	{device.ErrInvalidHandle, invalidHandle},
	{device.ErrInvalidValue, invalidValue},
	{device.ErrLost, deviceUnavailable},
	{device.ErrIllegalAddress, illegalAddress},
	{device.ErrNotSupported, notSupported},
	{device.ErrNotPermitted, notPermitted},
	{device.ErrClosed, deinitialized},
}

// codeOf is the driver's code for an error of the device.
func codeOf(err error) code {
	if h := (*sim.Hazard)(nil); errors.As(err, &h) {
		theDriver.logHazard(h)
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	logf("%v", err)
	warnUnknown(err)
	return unknown
}

var unknownWarned sync.Once

// warnUnknown says once why the program gets an error without a meaning, such as that the file of a shared
// device is locked, or full.
func warnUnknown(err error) {
	unknownWarned.Do(func() {
		line := C.CString(fmt.Sprintf("libcudasim: %v\n", err))
		defer C.free(unsafe.Pointer(line))
		C.simWarn(line)
	})
}

// errorText answers cuGetErrorName (which 0) and cuGetErrorString (1). The text
// is C's for as long as the program runs.
func errorText(which int) handler {
	texts := map[code]unsafe.Pointer{}
	return func(c *call) {
		wanted := code(c.int(0))
		text, ok := names[wanted]
		if !ok {
			put(c, 1, uintptr(0))
			panic(invalidValue)
		}
		if texts[wanted] == nil {
			texts[wanted] = unsafe.Pointer(C.CString(text[which]))
		}
		give(c, 1, texts[wanted])
	}
}
