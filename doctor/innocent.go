package doctor

// Failures that share words with memory, or come in its place, and have
// nothing to do with how much there is.

import (
	"regexp"
	"strings"
)

// innocents are failures of CUDA by status. The words are those of
// cudaGetErrorString and cuGetErrorString, which frameworks print with or
// without the status (CUDA 12.9's driver_types.h and cuda.h).
var innocents = []struct {
	name, code, runtime, words string
}{
	{"an illegal address", "CUDA_ERROR_ILLEGAL_ADDRESS", "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
	{"a misaligned address", "CUDA_ERROR_MISALIGNED_ADDRESS", "cudaErrorMisalignedAddress", "misaligned address"},
	{"a wrong address space", "CUDA_ERROR_INVALID_ADDRESS_SPACE", "cudaErrorInvalidAddressSpace", "operation not supported on global/shared address space"},
	{"an illegal instruction", "CUDA_ERROR_ILLEGAL_INSTRUCTION", "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
	{"an assertion", "CUDA_ERROR_ASSERT", "cudaErrorAssert", "device-side assert triggered"},
	{"a launch that timed out", "CUDA_ERROR_LAUNCH_TIMEOUT", "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
	{"a failed launch", "CUDA_ERROR_LAUNCH_FAILED", "cudaErrorLaunchFailure", "unspecified launch failure"},
	{"a kernel's registers", "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
	{"an ECC error", "CUDA_ERROR_ECC_UNCORRECTABLE", "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
	{"no device", "CUDA_ERROR_NO_DEVICE", "cudaErrorNoDevice", "no CUDA-capable device is detected"},
	{"no such device", "CUDA_ERROR_INVALID_DEVICE", "cudaErrorInvalidDevice", "invalid device ordinal"},
	{"an old driver", "CUDA_ERROR_INSUFFICIENT_DRIVER", "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
	{"a driver mismatch", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "cudaErrorSystemDriverMismatch", "system has unsupported display driver / cuda driver combination"},
	{"an unsupported driver", "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "cudaErrorCompatNotSupportedOnDevice", "forward compatibility was attempted on non supported HW"},
	{"a fabric not ready", "CUDA_ERROR_SYSTEM_NOT_READY", "cudaErrorSystemNotReady", "system not yet initialized"},
}

// images are the statuses of compiled code that the device cannot run.
var images = []struct{ code, runtime, words string }{
	{"CUDA_ERROR_NO_BINARY_FOR_GPU", "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
	{"CUDA_ERROR_INVALID_IMAGE", "cudaErrorInvalidKernelImage", "device kernel image is invalid"},
	{"CUDA_ERROR_INVALID_PTX", "cudaErrorInvalidPtx", "a PTX JIT compilation failed"},
	{"CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "cudaErrorUnsupportedPtxVersion", "the provided PTX was compiled with an unsupported toolchain"},
}

// failurePatterns come before all others: a status that is told here is no
// CUDAError. Within another message, such as that of a CUBIN, the status is told too.
var failurePatterns = func() (all []pattern) {
	add := func(kind Kind, name, code, runtime, words string) {
		again := `(?:\W{0,4}` + regexp.QuoteMeta(words) + `)?`
		all = append(all,
			pattern{kind: kind, name: name, code: code, within: true, anchors: []string{code, runtime}, rest: `\b` + again},
			pattern{kind: kind, name: name, code: code, anchors: []string{words, strings.ToUpper(words[:1]) + words[1:]}, rest: ``})
	}
	for _, f := range innocents {
		add(OtherFailure, f.name, f.code, f.runtime, f.words)
	}
	for _, f := range images {
		add(LibraryMismatch, "image", f.code, f.runtime, f.words)
	}
	return append(all,
		pattern{kind: OtherFailure, name: "a driver mismatch", anchors: []string{"Driver/library version mismatch"}, rest: ``},
		pattern{kind: OtherFailure, name: "a fork", anchors: []string{"Cannot re-initialize CUDA in forked subprocess"}, rest: ``},
		// The host's disk, its /dev/shm and its files.
		pattern{kind: OtherFailure, name: "a full disk", code: "ENOSPC", anchors: []string{"No space left on device"}, rest: ``},
		pattern{kind: OtherFailure, name: "too many open files", code: "EMFILE", anchors: []string{"Too many open files"}, rest: ``},
		pattern{kind: OtherFailure, name: "thread-local storage", anchors: []string{"cannot allocate memory in static TLS block"}, rest: ``},
		// A kernel of PyTorch that checks its indices.
		pattern{kind: OtherFailure, name: "an assertion", framework: "torch", anchors: []string{": block: ["}, rest: `\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion .{1,80} failed`},
		// A kernel's shared memory: Triton, XLA's use of it, and ptxas.
		pattern{kind: OtherFailure, name: "shared memory", framework: "triton", anchors: []string{"out of resource: "}, rest: `(?P<value>[\w ]+), Required: {want}, Hardware limit: {limit}`},
		pattern{kind: OtherFailure, name: "shared memory", framework: "xla", anchors: []string{"Shared memory size limit exceeded"}, rest: `(?:: requested {want}, available: {limit})?`},
		pattern{kind: OtherFailure, name: "shared memory", anchors: []string{"uses too much shared data"}, rest: ``},
		pattern{kind: OtherFailure, name: "a gRPC message", code: "RESOURCE_EXHAUSTED", anchors: []string{"Received message larger than max", "Sent message larger than max"}, rest: `(?: \({want} vs\. {limit}\))?`},
	)
}()
