//go:build linux && (amd64 || arm64) && !nodriver

// The driver as a whole: its two libraries, whether they work, and if not, what
// to do about it.

package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"gpumem/device"
)

// machine is the driver of a machine. Tests make their own.
type machine struct {
	host    host
	cuda    *library // nil: not loaded, see broken
	version int      // of CUDA that the driver has, such as 12080; 0 before cuInit
	nvml    *nvml
	broken  error // why no device can be used; nil if they can
}

// here is this machine. The libraries are loaded once: what they answer to
// cuInit does not change while the process lives.
var here = sync.OnceValue(func() *machine {
	find, err := open("libcuda.so.1", "libcuda.so")
	findNVML, errNVML := open("libnvidia-ml.so.1", "libnvidia-ml.so")
	return newMachine(realHost, find, err, newNVML(findNVML, errNVML))
})

// newMachine starts the driver whose symbols find finds, or that could not be
// loaded for the reason err.
func newMachine(h host, find lookup, err error, nv *nvml) *machine {
	m := &machine{host: h, nvml: nv}
	if err != nil {
		advice := "install the NVIDIA driver, or in a container start it with --gpus all and the nvidia-container-toolkit"
		if names := nv.names(); names != nil {
			advice = fmt.Sprintf("NVML is there and sees %d GPUs (%s): in a container set NVIDIA_DRIVER_CAPABILITIES=compute,utility, else install the driver's CUDA library",
				len(names), strings.Join(names, ", "))
		}
		m.broken = fmt.Errorf("%w: %v; %s, or name a simulated GPU: gpumem devices --help shows how", ErrNoDriver, err, advice)
		return m
	}
	m.cuda = bind(cuFunctions, find)
	for _, f := range needed {
		if m.cuda.at[f] == 0 {
			m.broken = fmt.Errorf("%w: libcuda has no %s, so it is older than CUDA 11.0; update the NVIDIA driver to 450 or newer", ErrNoDriver, cuFunctions[f].symbol)
			return m
		}
	}
	if code := Code(m.cuda.ask(cuInit, 0)); code != success {
		m.broken = &initError{code: code, hint: m.explain(code)}
		return m
	}
	var v int32
	if m.cuda.ask(cuDriverGetVersion, uintptr(unsafe.Pointer(&v))) == 0 {
		m.version = int(v)
	}
	return m
}

// initError is cuInit's refusal.
type initError struct {
	code Code
	hint string // what was found out about it; may be empty
}

func (e *initError) Error() string {
	s := ErrNoDriver.Error() + ": " + e.code.Error()
	if e.hint != "" {
		s += "; " + e.hint
	}
	return s
}

func (e *initError) Unwrap() []error { return []error{ErrNoDriver, e.code} }

// explain looks for the reason why cuInit answered code.
func (m *machine) explain(code Code) string {
	var hints []string
	switch code {
	case 100, 304, 999:
		if hint := m.host.nodes(); hint != "" {
			hints = append(hints, hint)
		}
	}
	if code == 100 {
		if v, ok := m.host.lookupEnv("CUDA_VISIBLE_DEVICES"); ok {
			hint := fmt.Sprintf("CUDA_VISIBLE_DEVICES=%q hides every GPU", v)
			if names := m.nvml.names(); names != nil {
				hint += fmt.Sprintf(" of the %d that NVML sees (%s)", len(names), strings.Join(names, ", "))
			}
			hints = append(hints, hint+"; unset it, or name one of them")
		}
	}
	return strings.Join(hints, "; ")
}

// count is how many devices there are.
func (m *machine) count() (int, error) {
	if m.broken != nil {
		return 0, m.broken
	}
	var n int32
	if code := Code(m.cuda.ask(cuDeviceGetCount, uintptr(unsafe.Pointer(&n)))); code != success {
		return 0, m.refused(cuDeviceGetCount, "the driver", code)
	}
	if n <= 0 {
		return 0, &initError{code: 100, hint: m.explain(100)}
	}
	return int(n), nil
}

// refused is the error of a call that is no Device's.
func (m *machine) refused(f int, who string, code Code) error {
	return &device.CallError{Call: cuFunctions[f].name(), Device: who, Err: m.cause(f, code)}
}

// cause is the error for a result of function f.
func (m *machine) cause(f int, code Code) error {
	if code == missing {
		return &missingError{function: cuFunctions[f], version: m.version}
	}
	if _, ok := codes[code]; ok {
		return code
	}
	// A newer driver than this table: it knows its own codes.
	return &newCodeError{Code: code, name: m.codeText(cuGetErrorName, code), text: m.codeText(cuGetErrorString, code)}
}

// codeText asks the driver for a text about a code; "" if it has none.
func (m *machine) codeText(f int, code Code) string {
	s := new(uintptr)
	if m.cuda.ask(f, uintptr(code), uintptr(unsafe.Pointer(s))) != 0 {
		return ""
	}
	return textAt(s)
}

// newCodeError is a code that only the driver can name.
type newCodeError struct {
	Code
	name, text string
}

func (e *newCodeError) Error() string {
	if e.name == "" {
		return e.Code.Error()
	}
	return e.name + " (" + e.Code.Name() + "): " + e.text + "; see NVIDIA's cuda.h"
}

func (e *newCodeError) Unwrap() error { return e.Code }

// missingError: the driver lacks a function.
type missingError struct {
	function function
	version  int
}

func (e *missingError) Error() string {
	s := device.ErrNotSupported.Error() + ": the driver"
	if e.version != 0 {
		s += " (CUDA " + version(e.version) + ")"
	}
	s += " has no " + e.function.symbol
	if e.function.since > e.version {
		return s + "; update it to one for CUDA " + version(e.function.since) + " or newer"
	}
	return s + "; update it"
}

func (e *missingError) Unwrap() error { return device.ErrNotSupported }

// Count is how many GPUs the driver shows to this program: those that
// CUDA_VISIBLE_DEVICES lets through, MIG slices counted as such. It is at least
// 1, or an error says why there is none.
func Count() (int, error) { return here().count() }

// Available is nil if a driver loads and has at least one GPU for this program,
// else why not. It is cheap after the first call of this package, which loads
// the driver.
func Available() error {
	_, err := here().count()
	return err
}

// Open opens the GPU with the given number, counted from 0 as the driver does
// under CUDA_VISIBLE_DEVICES. It retains the device's primary context, which on
// the GPU takes some hundred MiB and a tenth of a second unless the process has
// it already.
func Open(ordinal int) (*Device, error) { return here().open(ordinal) }

// List tells about every GPU that the driver shows to this program, and who
// uses it, without using one: it makes no context and takes no memory. What
// cannot be told without NVML, or is refused by it, is left zero with a line in
// Notes.
func List() ([]device.Status, error) { return here().list() }

// asCall makes err a CallError of the named call, unless it is one.
func asCall(err error, call, who string) error {
	var ce *device.CallError
	if errors.As(err, &ce) {
		return err
	}
	return &device.CallError{Call: call, Device: who, Err: err}
}
