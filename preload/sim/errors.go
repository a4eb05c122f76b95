//go:build libgpumem

package main

// #include <stdlib.h>
import "C"

import (
	"errors"
	"unsafe"

	"gpumem/device"
	"gpumem/device/sim"
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

// names are the codes' names and descriptions, as cuGetErrorName and
// cuGetErrorString give them.
var names = map[code][2]string{
	success:               {"CUDA_SUCCESS", "no error"},
	invalidValue:          {"CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	outOfMemory:           {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	notInitialized:        {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	deinitialized:         {"CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
	deviceUnavailable:     {"CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
	noDevice:              {"CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	invalidDevice:         {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
	invalidContext:        {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	peerAccessUnsupported: {"CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
	invalidHandle:         {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	illegalState:          {"CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
	notFound:              {"CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	notReady:              {"CUDA_ERROR_NOT_READY", "device not ready"},
	illegalAddress:        {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
	primaryContextActive:  {"CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process"},
	contextDestroyed:      {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
	hostAlreadyRegistered: {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
	hostNotRegistered:     {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
	notPermitted:          {"CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
	notSupported:          {"CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
	captureUnsupported:    {"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
	captureInvalidated:    {"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
	captureMerge:          {"CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences"},
	captureUnmatched:      {"CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began"},
	captureUnjoined:       {"CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work"},
	captureImplicit:       {"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream"},
	captureWrongThread:    {"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "attempt to terminate a thread-local capture sequence from another thread"},
	unknown:               {"CUDA_ERROR_UNKNOWN", "unknown error"},
}

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
		logf("hazard: %v", h)
	}
	for _, c := range causes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	logf("%v", err)
	return unknown
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
