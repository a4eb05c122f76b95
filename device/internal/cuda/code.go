// Result codes of the CUDA driver: their names, what they mean for an
// allocator, and what someone who sees one can do.

package cuda

import (
	"errors"
	"fmt"

	"gpumem/device"
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

// What to do after errors that end a process's use of the GPU.
const (
	restart = "the process cannot use the GPU any more; restart it"
	noMPS   = "look at the MPS control daemon's log, and restart it"
)

// codes are the driver's results that the calls of this package may meet, with
// the driver's own texts (cuda.h and cuGetErrorString of CUDA 12.8), so that
// they have names even where the library is gone.
//
// Fatal are those of which cuda.h says that the process must be terminated and
// relaunched (226, 700, 702, 714-719, 721, 810, 911) or that the context cannot
// be used any more and all its memory is invalid (709, 710); and those that say
// that the hardware is gone or has lost data (46, 214, 220). Not fatal: 101,
// which blames the argument, and 999, of which nothing is promised: the driver
// answers for itself at the next call. 46 is also what a busy GPU in exclusive
// mode answers; that happens in Open, where nothing is remembered.
var codes = map[Code]codeText{
	1:   {name: "CUDA_ERROR_INVALID_VALUE", text: "invalid argument", is: device.ErrInvalidValue},
	2:   {name: "CUDA_ERROR_OUT_OF_MEMORY", text: "out of memory", is: device.ErrOutOfMemory},
	3:   {name: "CUDA_ERROR_NOT_INITIALIZED", text: "initialization error", advice: "see what cuInit said first"},
	4:   {name: "CUDA_ERROR_DEINITIALIZED", text: "driver shutting down", advice: "the process is ending; make no more calls"},
	34:  {name: "CUDA_ERROR_STUB_LIBRARY", text: "CUDA driver is a stub library", advice: "take the toolkit's lib64/stubs out of LD_LIBRARY_PATH"},
	35:  {name: "CUDA_ERROR_INSUFFICIENT_DRIVER", text: "CUDA driver version is insufficient", advice: "update the NVIDIA driver"},
	36:  {name: "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", text: "API call is not supported in the installed CUDA driver", advice: "update the NVIDIA driver", is: device.ErrNotSupported},
	46:  {name: "CUDA_ERROR_DEVICE_UNAVAILABLE", text: "CUDA-capable device(s) is/are busy or unavailable", advice: "another process may have it in exclusive mode (nvidia-smi -c 0 ends that), or it is lost (see dmesg for Xid); then restart the program", is: device.ErrLost, fatal: true},
	100: {name: "CUDA_ERROR_NO_DEVICE", text: "no CUDA-capable device is detected", advice: "see CUDA_VISIBLE_DEVICES, and in a container --gpus all"},
	101: {name: "CUDA_ERROR_INVALID_DEVICE", text: "invalid device ordinal", advice: "gpumem devices lists those there are"},
	102: {name: "CUDA_ERROR_DEVICE_NOT_LICENSED", text: "device doesn't have valid Grid license", advice: "see the vGPU license server", is: device.ErrNotPermitted},
	200: {name: "CUDA_ERROR_INVALID_IMAGE", text: "device kernel image is invalid"},
	201: {name: "CUDA_ERROR_INVALID_CONTEXT", text: "invalid device context", advice: "the primary context was reset or another library ended it; restart the program"},
	202: {name: "CUDA_ERROR_CONTEXT_ALREADY_CURRENT", text: "context already current"},
	205: {name: "CUDA_ERROR_MAP_FAILED", text: "mapping of buffer object failed"},
	206: {name: "CUDA_ERROR_UNMAP_FAILED", text: "unmapping of buffer object failed"},
	208: {name: "CUDA_ERROR_ALREADY_MAPPED", text: "resource already mapped"},
	211: {name: "CUDA_ERROR_NOT_MAPPED", text: "resource not mapped"},
	214: {name: "CUDA_ERROR_ECC_UNCORRECTABLE", text: "uncorrectable ECC error encountered", advice: restart + ", and look at nvidia-smi -q -d ECC", is: device.ErrLost, fatal: true},
	216: {name: "CUDA_ERROR_CONTEXT_ALREADY_IN_USE", text: "exclusive-thread device already in use by a different thread", advice: "end the other program, or nvidia-smi -c 0"},
	220: {name: "CUDA_ERROR_NVLINK_UNCORRECTABLE", text: "uncorrectable NVLink error detected during the execution", advice: restart + ", and look at nvidia-smi nvlink -e", is: device.ErrLost, fatal: true},
	226: {name: "CUDA_ERROR_CONTAINED", text: "Invalid access of peer GPU memory over nvlink or a hardware error", advice: restart, is: device.ErrLost, fatal: true},
	302: {name: "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", text: "shared object symbol not found", advice: "the driver's libraries are of different versions; install the driver again"},
	303: {name: "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED", text: "shared object initialization failed", advice: "the driver's libraries are of different versions; install the driver again"},
	304: {name: "CUDA_ERROR_OPERATING_SYSTEM", text: "OS call failed or operation not supported on this OS", advice: "see dmesg, ulimit -v and the permissions of /dev/nvidia*"},
	400: {name: "CUDA_ERROR_INVALID_HANDLE", text: "invalid resource handle", is: device.ErrInvalidHandle},
	401: {name: "CUDA_ERROR_ILLEGAL_STATE", text: "the operation cannot be performed in the present state"},
	500: {name: "CUDA_ERROR_NOT_FOUND", text: "named symbol not found"},
	600: {name: "CUDA_ERROR_NOT_READY", text: "device not ready"},
	700: {name: "CUDA_ERROR_ILLEGAL_ADDRESS", text: "an illegal memory access was encountered", advice: restart, is: device.ErrIllegalAddress, fatal: true},
	701: {name: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", text: "too many resources requested for launch"},
	702: {name: "CUDA_ERROR_LAUNCH_TIMEOUT", text: "the launch timed out and was terminated", advice: restart + "; a display's watchdog ends long kernels", is: device.ErrLost, fatal: true},
	708: {name: "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", text: "cannot set while device is active in this process"},
	709: {name: "CUDA_ERROR_CONTEXT_IS_DESTROYED", text: "context is destroyed", advice: "another library in this process reset the GPU (cudaDeviceReset): its memory, streams and events are gone; close the device and open it again, or restart the process", is: device.ErrLost, fatal: true},
	710: {name: "CUDA_ERROR_ASSERT", text: "device-side assert triggered", advice: restart, is: device.ErrLost, fatal: true},
	714: {name: "CUDA_ERROR_HARDWARE_STACK_ERROR", text: "hardware stack error", advice: restart, is: device.ErrLost, fatal: true},
	715: {name: "CUDA_ERROR_ILLEGAL_INSTRUCTION", text: "an illegal instruction was encountered", advice: restart, is: device.ErrLost, fatal: true},
	716: {name: "CUDA_ERROR_MISALIGNED_ADDRESS", text: "misaligned address", advice: restart, is: device.ErrLost, fatal: true},
	717: {name: "CUDA_ERROR_INVALID_ADDRESS_SPACE", text: "operation not supported on global/shared address space", advice: restart, is: device.ErrLost, fatal: true},
	718: {name: "CUDA_ERROR_INVALID_PC", text: "invalid program counter", advice: restart, is: device.ErrLost, fatal: true},
	719: {name: "CUDA_ERROR_LAUNCH_FAILED", text: "unspecified launch failure", advice: restart, is: device.ErrLost, fatal: true},
	721: {name: "CUDA_ERROR_TENSOR_MEMORY_LEAK", text: "tensor memory not completely freed", advice: restart, is: device.ErrLost, fatal: true},
	800: {name: "CUDA_ERROR_NOT_PERMITTED", text: "operation not permitted", is: device.ErrNotPermitted},
	801: {name: "CUDA_ERROR_NOT_SUPPORTED", text: "operation not supported", is: device.ErrNotSupported},
	802: {name: "CUDA_ERROR_SYSTEM_NOT_READY", text: "system not yet initialized", advice: "start nvidia-fabricmanager (machines with NVSwitch need it), or wait until it is up"},
	803: {name: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", text: "system has unsupported display driver / cuda driver combination", advice: "the kernel module and libcuda are of different versions: reboot or reload the module after an update; in a container, take cuda-compat out of LD_LIBRARY_PATH"},
	804: {name: "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", text: "forward compatibility was attempted on non supported HW", advice: "take the cuda-compat package's libcuda out of LD_LIBRARY_PATH, or update the driver"},
	805: {name: "CUDA_ERROR_MPS_CONNECTION_FAILED", text: "MPS client failed to connect to the MPS control daemon or the MPS server", advice: noMPS},
	806: {name: "CUDA_ERROR_MPS_RPC_FAILURE", text: "the remote procedural call between the MPS server and the MPS client failed", advice: noMPS},
	807: {name: "CUDA_ERROR_MPS_SERVER_NOT_READY", text: "MPS server is not ready to accept new MPS client requests", advice: "wait, and try again"},
	808: {name: "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED", text: "the hardware resources required to create MPS client have been exhausted", advice: "end other MPS clients"},
	809: {name: "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED", text: "the hardware resources required to support device connections have been exhausted", advice: "end other MPS clients"},
	810: {name: "CUDA_ERROR_MPS_CLIENT_TERMINATED", text: "the MPS client has been terminated by the server", advice: restart, is: device.ErrLost, fatal: true},
	900: {name: "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", text: "operation not permitted when stream is capturing", advice: "end the capture first", is: device.ErrNotPermitted},
	901: {name: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", text: "operation failed due to a previous error during capture", advice: "end the capture first"},
	906: {name: "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", text: "operation would make the legacy stream depend on a capturing blocking stream", advice: "end the capture first"},
	907: {name: "CUDA_ERROR_CAPTURED_EVENT", text: "operation not permitted on an event last recorded in a capturing stream", advice: "end the capture first"},
	909: {name: "CUDA_ERROR_TIMEOUT", text: "wait operation timed out"},
	911: {name: "CUDA_ERROR_EXTERNAL_DEVICE", text: "an async error has occurred in external entity outside of CUDA", advice: restart, is: device.ErrLost, fatal: true},
	999: {name: "CUDA_ERROR_UNKNOWN", text: "unknown error", advice: "see dmesg for Xid or nvidia-uvm; after a suspend, reload nvidia-uvm"},
}

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
