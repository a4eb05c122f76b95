package device_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"gpumem/device"
)

func TestCallError(t *testing.T) {
	other := errors.New("something else")
	for _, tc := range []struct {
		name string
		err  device.CallError
		want string
	}{
		{
			"bytes", device.CallError{Call: "cuMemAlloc", Device: "sim:80GiB", Bytes: 4096, Err: device.ErrOutOfMemory},
			"cuMemAlloc of 4096 bytes on sim:80GiB: CUDA_ERROR_OUT_OF_MEMORY: out of memory",
		},
		{
			"no bytes", device.CallError{Call: "cuMemFree", Device: "NVIDIA H200", Err: device.ErrInvalidValue},
			"cuMemFree on NVIDIA H200: CUDA_ERROR_INVALID_VALUE: invalid argument",
		},
		{
			"lost", device.CallError{Call: "cuMemGetInfo", Device: "gpu", Err: device.ErrLost},
			"cuMemGetInfo on gpu: CUDA_ERROR_DEVICE_UNAVAILABLE: the device is lost; restart the program",
		},
		{
			"another error", device.CallError{Call: "cuMemAlloc", Device: "gpu", Bytes: 1, Err: other},
			"cuMemAlloc of 1 bytes on gpu: something else",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := tc.err.Error(); got != tc.want {
				t.Errorf("%q, want %q", got, tc.want)
			}
			// As an allocator passes it on.
			err := fmt.Errorf("pool: %w", &tc.err)
			for _, reason := range []error{device.ErrOutOfMemory, device.ErrInvalidValue, device.ErrLost, other} {
				if got, want := errors.Is(err, reason), reason == tc.err.Err; got != want {
					t.Errorf("errors.Is(err, %v) = %v", reason, got)
				}
			}
			var call *device.CallError
			if !errors.As(err, &call) || call.Call != tc.err.Call || call.Bytes != tc.err.Bytes {
				t.Errorf("errors.As gave %+v, want %+v", call, tc.err)
			}
		})
	}
}

// TestErrorNames: a reader finds each error in the driver's manual, by a name
// of its own.
func TestErrorNames(t *testing.T) {
	seen := map[string]bool{}
	for _, err := range []error{device.ErrOutOfMemory, device.ErrInvalidValue, device.ErrInvalidHandle, device.ErrLost} {
		name, rest, ok := strings.Cut(err.Error(), ": ")
		if !ok || !strings.HasPrefix(name, "CUDA_ERROR_") || rest == "" || seen[name] {
			t.Errorf("%q does not begin with a driver's name of its own", err)
		}
		seen[name] = true
	}
}

// TestInvalidHandleIsAnInvalidValue: who asks for the wider error finds the
// narrower one, and not the other way round.
func TestInvalidHandleIsAnInvalidValue(t *testing.T) {
	handle := &device.CallError{Call: "cuEventRecord", Device: "gpu", Err: device.ErrInvalidHandle}
	if !errors.Is(handle, device.ErrInvalidHandle) || !errors.Is(handle, device.ErrInvalidValue) || errors.Is(handle, device.ErrLost) {
		t.Errorf("%v is not what it should be", handle)
	}
	if errors.Is(&device.CallError{Err: device.ErrInvalidValue}, device.ErrInvalidHandle) {
		t.Error("an invalid value is an invalid handle")
	}
}
