//go:build linux && (amd64 || arm64) && !nodriver

// The driver's functions that this package calls, and the few numbers and
// structures that they take.

package cuda

// cuFunctions are the driver's functions by number. The variables below fill it.
var cuFunctions []function

// driver enters a function of the driver by its symbol, and returns its number.
func driver(symbol string, options ...func(*function)) int {
	f := function{symbol: symbol}
	for _, set := range options {
		set(&f)
	}
	cuFunctions = append(cuFunctions, f)
	return len(cuFunctions) - 1
}

func since(version int) func(*function) { return func(f *function) { f.since = version } }
func as(name string) func(*function)    { return func(f *function) { f.as = name } }
func ordered(f *function)               { f.ordered = true }

// The driver's functions: their symbols, with the first CUDA version whose driver has
// them where that is later than the oldest driver that works here (11.0, for
// cuDevicePrimaryCtxRelease_v2), and their C arguments. The order counts: see
// firstPoolFunction.
var (
	cuInit                     = driver("cuInit")                           // unsigned flags
	cuDriverGetVersion         = driver("cuDriverGetVersion")               // int *version
	cuGetErrorName             = driver("cuGetErrorName")                   // CUresult, const char **
	cuGetErrorString           = driver("cuGetErrorString")                 // CUresult, const char **
	cuDeviceGetCount           = driver("cuDeviceGetCount")                 // int *count
	cuDeviceGet                = driver("cuDeviceGet")                      // CUdevice *, int ordinal
	cuDeviceGetName            = driver("cuDeviceGetName")                  // char *, int length, CUdevice
	cuDeviceGetUuid            = driver("cuDeviceGetUuid")                  // CUuuid *, CUdevice; of the whole GPU
	cuDeviceGetUuid_v2         = driver("cuDeviceGetUuid_v2", since(11040)) // CUuuid *, CUdevice; of the MIG slice
	cuDeviceTotalMem           = driver("cuDeviceTotalMem_v2")              // size_t *, CUdevice
	cuDeviceGetAttribute       = driver("cuDeviceGetAttribute")             // int *, CUdevice_attribute, CUdevice
	cuDevicePrimaryCtxRetain   = driver("cuDevicePrimaryCtxRetain")         // CUcontext *, CUdevice
	cuDevicePrimaryCtxRelease  = driver("cuDevicePrimaryCtxRelease_v2")     // CUdevice
	cuDevicePrimaryCtxGetState = driver("cuDevicePrimaryCtxGetState")       // CUdevice, unsigned *flags, int *active

	cuCtxGetCurrent                   = driver("cuCtxGetCurrent")                   // CUcontext *
	cuCtxPushCurrent                  = driver("cuCtxPushCurrent_v2")               // CUcontext
	cuCtxPopCurrent                   = driver("cuCtxPopCurrent_v2")                // CUcontext *
	cuCtxGetId                        = driver("cuCtxGetId", since(12000))          // CUcontext (0: the current one), unsigned long long *id
	cuCtxSynchronize                  = driver("cuCtxSynchronize")                  // void
	cuThreadExchangeStreamCaptureMode = driver("cuThreadExchangeStreamCaptureMode") // CUstreamCaptureMode *, in and out

	cuMemGetInfo         = driver("cuMemGetInfo_v2")         // size_t *free, size_t *total
	cuMemAlloc           = driver("cuMemAlloc_v2")           // CUdeviceptr *, size_t
	cuMemAllocManaged    = driver("cuMemAllocManaged")       // CUdeviceptr *, size_t, unsigned flags
	cuMemFree            = driver("cuMemFree_v2")            // CUdeviceptr
	cuMemGetAddressRange = driver("cuMemGetAddressRange_v2") // CUdeviceptr *base, size_t *, CUdeviceptr
	cuMemHostAlloc       = driver("cuMemHostAlloc")          // void **, size_t, unsigned flags
	cuMemFreeHost        = driver("cuMemFreeHost")           // void *

	cuMemcpyHtoD      = driver("cuMemcpyHtoDAsync_v2", as("cuMemcpyHtoD")) // CUdeviceptr, const void *, size_t, CUstream
	cuMemcpyDtoH      = driver("cuMemcpyDtoHAsync_v2", as("cuMemcpyDtoH")) // void *, CUdeviceptr, size_t, CUstream
	cuMemsetD8        = driver("cuMemsetD8Async", as("cuMemsetD8"))        // CUdeviceptr, unsigned char, size_t, CUstream
	cuMemcpyDtoDAsync = driver("cuMemcpyDtoDAsync_v2", ordered)            // CUdeviceptr to, from, size_t, CUstream
	cuMemsetD8Async   = driver("cuMemsetD8Async", ordered)                 // CUdeviceptr, unsigned char, size_t, CUstream

	cuStreamCreate      = driver("cuStreamCreate")                                // CUstream *, unsigned flags
	cuStreamDestroy     = driver("cuStreamDestroy_v2")                            // CUstream
	cuStreamQuery       = driver("cuStreamQuery")                                 // CUstream
	cuStreamSynchronize = driver("cuEventSynchronize", as("cuStreamSynchronize")) // CUevent; see wait.go
	cuStreamIsCapturing = driver("cuStreamIsCapturing")                           // CUstream, CUstreamCaptureStatus *
	cuStreamWaitEvent   = driver("cuStreamWaitEvent", ordered)                    // CUstream, CUevent, unsigned flags

	cuEventCreate      = driver("cuEventCreate")          // CUevent *, unsigned flags
	cuEventDestroy     = driver("cuEventDestroy_v2")      // CUevent
	cuEventRecord      = driver("cuEventRecord", ordered) // CUevent, CUstream
	cuEventQuery       = driver("cuEventQuery")           // CUevent
	cuEventSynchronize = driver("cuEventSynchronize")     // CUevent

	cuDeviceGetDefaultMemPool = driver("cuDeviceGetDefaultMemPool", since(11020))        // CUmemoryPool *, CUdevice
	cuMemPoolCreate           = driver("cuMemPoolCreate", since(11020))                  // CUmemoryPool *, const CUmemPoolProps *
	cuMemPoolDestroy          = driver("cuMemPoolDestroy", since(11020))                 // CUmemoryPool
	cuMemPoolGetAttribute     = driver("cuMemPoolGetAttribute", since(11020))            // CUmemoryPool, attribute, void *
	cuMemPoolSetAttribute     = driver("cuMemPoolSetAttribute", since(11020))            // CUmemoryPool, attribute, void *
	cuMemPoolTrimTo           = driver("cuMemPoolTrimTo", since(11020))                  // CUmemoryPool, size_t keep
	cuMemAllocFromPoolAsync   = driver("cuMemAllocFromPoolAsync", since(11020), ordered) // CUdeviceptr *, size_t, CUmemoryPool, CUstream
	cuMemFreeAsync            = driver("cuMemFreeAsync", since(11020), ordered)          // CUdeviceptr, CUstream

	cuMemGetAllocationGranularity = driver("cuMemGetAllocationGranularity") // size_t *, const CUmemAllocationProp *, option
	cuMemAddressReserve           = driver("cuMemAddressReserve")           // CUdeviceptr *, size_t, size_t align, CUdeviceptr hint, u64 flags
	cuMemAddressFree              = driver("cuMemAddressFree")              // CUdeviceptr, size_t
	cuMemCreate                   = driver("cuMemCreate")                   // handle *, size_t, const CUmemAllocationProp *, u64 flags
	cuMemRelease                  = driver("cuMemRelease")                  // handle
	cuMemMap                      = driver("cuMemMap")                      // CUdeviceptr, size_t, size_t offset, handle, u64 flags
	cuMemSetAccess                = driver("cuMemSetAccess")                // CUdeviceptr, size_t, const CUmemAccessDesc *, size_t count
	cuMemUnmap                    = driver("cuMemUnmap")                    // CUdeviceptr, size_t
)

// needed are the functions without which there is no device at all.
var needed = []int{
	cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName,
	cuDeviceTotalMem, cuDeviceGetAttribute, cuDevicePrimaryCtxRetain,
	cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxGetState, cuCtxGetCurrent,
	cuCtxPushCurrent, cuCtxPopCurrent, cuThreadExchangeStreamCaptureMode,
	cuStreamCreate, cuStreamDestroy,
}

// poolFunctions and pageFunctions are those of device.Pools and device.Pages,
// both in the order of the table.
var (
	firstPoolFunction, lastPoolFunction = cuDeviceGetDefaultMemPool, cuMemFreeAsync
	firstPageFunction, lastPageFunction = cuMemGetAllocationGranularity, cuMemUnmap
)

// Results that are treated by name.
const (
	success          Code = 0
	invalidValue     Code = 1
	outOfMemory      Code = 2
	invalidContext   Code = 201
	invalidHandle    Code = 400
	notFound         Code = 500
	notReady         Code = 600 // work is under way; no failure
	contextDestroyed Code = 709
	notSupported     Code = 801
	captureForbids   Code = 900
)

// Numbers of cuda.h.
const (
	captureRelaxed  = 2   // CU_STREAM_CAPTURE_MODE_RELAXED
	captureNone     = 0   // CU_STREAM_CAPTURE_STATUS_NONE
	captureImplicit = 906 // CUDA_ERROR_STREAM_CAPTURE_IMPLICIT

	streamNonBlocking   = 1 // CU_STREAM_NON_BLOCKING
	eventDisableTiming  = 2 // CU_EVENT_DISABLE_TIMING
	attachGlobal        = 1 // CU_MEM_ATTACH_GLOBAL
	recommended         = 1 // CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
	locationDevice      = 1 // CU_MEM_LOCATION_TYPE_DEVICE
	allocationPinned    = 1 // CU_MEM_ALLOCATION_TYPE_PINNED
	accessReadWrite     = 3 // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	versionPoolMaxBytes = 12020

	attributeKernelTimeout = 17 // a watchdog ends long kernels, because a display is drawn
	attributeIntegrated    = 18 // the memory is the host's
	attributeCCMajor       = 75
	attributeCCMinor       = 76
	attributeManaged       = 83  // CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
	attributeOversubscribe = 89  // CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
	attributePages         = 102 // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	attributePools         = 115 // CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
)

// memLocation is CUmemLocation.
type memLocation struct {
	kind int32
	id   int32
}

// memProps is CUmemAllocationProp: 32 bytes.
type memProps struct {
	kind       int32
	handles    int32
	location   memLocation
	win32      uint64
	compressed uint8
	rdma       uint8
	usage      uint16
	_          [4]uint8
}

// memAccess is CUmemAccessDesc: 12 bytes.
type memAccess struct {
	location memLocation
	flags    int32
}

// poolProps is CUmemPoolProps: 88 bytes. Before CUDA 12.2 all from max on was
// reserved and had to be 0.
type poolProps struct {
	kind     int32
	handles  int32
	location memLocation
	win32    uint64
	max      uint64
	usage    uint16
	_        [54]uint8
}

// granularity is what a plain grant is rounded up to, in bytes. Documented is
// an alignment of at least 256, measured a distance of 512 between small
// grants. Beneath, the driver takes whole blocks of 2 MiB, which small grants
// share; so what MemInfo tells moves in steps of 2 MiB.
const granularity = 512
