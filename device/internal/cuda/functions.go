//go:build linux && (amd64 || arm64) && !nodriver

// The driver's functions that this package calls, and the few numbers and
// structures that they take.

package cuda

// cuFunctions are the driver's functions by number. The variables below fill it.
var cuFunctions []function

// driver enters a function of the driver and returns its number.
func driver(f function) int {
	cuFunctions = append(cuFunctions, f)
	return len(cuFunctions) - 1
}

// The driver's functions: their symbols, with the first CUDA version whose driver has
// them where that is later than the oldest driver that works here (11.0, for
// cuDevicePrimaryCtxRelease_v2), and their C arguments. The order counts: see
// firstPoolFunction.
var (
	cuInit                            = driver(function{symbol: "cuInit"})                                               // unsigned flags
	cuDriverGetVersion                = driver(function{symbol: "cuDriverGetVersion"})                                   // int *version
	cuGetErrorName                    = driver(function{symbol: "cuGetErrorName"})                                       // CUresult, const char **
	cuGetErrorString                  = driver(function{symbol: "cuGetErrorString"})                                     // CUresult, const char **
	cuDeviceGetCount                  = driver(function{symbol: "cuDeviceGetCount"})                                     // int *count
	cuDeviceGet                       = driver(function{symbol: "cuDeviceGet"})                                          // CUdevice *, int ordinal
	cuDeviceGetName                   = driver(function{symbol: "cuDeviceGetName"})                                      // char *, int length, CUdevice
	cuDeviceGetUuid                   = driver(function{symbol: "cuDeviceGetUuid"})                                      // CUuuid *, CUdevice; of the whole GPU
	cuDeviceGetUuid_v2                = driver(function{symbol: "cuDeviceGetUuid_v2", since: 11040})                     // CUuuid *, CUdevice; of the MIG slice
	cuDeviceTotalMem                  = driver(function{symbol: "cuDeviceTotalMem_v2"})                                  // size_t *, CUdevice
	cuDeviceGetAttribute              = driver(function{symbol: "cuDeviceGetAttribute"})                                 // int *, CUdevice_attribute, CUdevice
	cuDevicePrimaryCtxRetain          = driver(function{symbol: "cuDevicePrimaryCtxRetain"})                             // CUcontext *, CUdevice
	cuDevicePrimaryCtxRelease         = driver(function{symbol: "cuDevicePrimaryCtxRelease_v2"})                         // CUdevice
	cuDevicePrimaryCtxGetState        = driver(function{symbol: "cuDevicePrimaryCtxGetState"})                           // CUdevice, unsigned *flags, int *active
	cuCtxGetCurrent                   = driver(function{symbol: "cuCtxGetCurrent"})                                      // CUcontext *
	cuCtxPushCurrent                  = driver(function{symbol: "cuCtxPushCurrent_v2"})                                  // CUcontext
	cuCtxPopCurrent                   = driver(function{symbol: "cuCtxPopCurrent_v2"})                                   // CUcontext *
	cuCtxGetId                        = driver(function{symbol: "cuCtxGetId", since: 12000})                             // CUcontext (0: the current one), unsigned long long *id
	cuCtxSynchronize                  = driver(function{symbol: "cuCtxSynchronize"})                                     // void
	cuThreadExchangeStreamCaptureMode = driver(function{symbol: "cuThreadExchangeStreamCaptureMode"})                    // CUstreamCaptureMode *, in and out
	cuMemGetInfo                      = driver(function{symbol: "cuMemGetInfo_v2"})                                      // size_t *free, size_t *total
	cuMemAlloc                        = driver(function{symbol: "cuMemAlloc_v2"})                                        // CUdeviceptr *, size_t
	cuMemAllocManaged                 = driver(function{symbol: "cuMemAllocManaged"})                                    // CUdeviceptr *, size_t, unsigned flags
	cuMemFree                         = driver(function{symbol: "cuMemFree_v2"})                                         // CUdeviceptr
	cuMemGetAddressRange              = driver(function{symbol: "cuMemGetAddressRange_v2"})                              // CUdeviceptr *base, size_t *, CUdeviceptr
	cuMemcpyHtoD                      = driver(function{symbol: "cuMemcpyHtoDAsync_v2", as: "cuMemcpyHtoD"})             // CUdeviceptr, const void *, size_t, CUstream
	cuMemcpyDtoH                      = driver(function{symbol: "cuMemcpyDtoHAsync_v2", as: "cuMemcpyDtoH"})             // void *, CUdeviceptr, size_t, CUstream
	cuMemsetD8                        = driver(function{symbol: "cuMemsetD8Async", as: "cuMemsetD8"})                    // CUdeviceptr, unsigned char, size_t, CUstream
	cuMemcpyDtoDAsync                 = driver(function{symbol: "cuMemcpyDtoDAsync_v2", ordered: true})                  // CUdeviceptr to, from, size_t, CUstream
	cuMemsetD8Async                   = driver(function{symbol: "cuMemsetD8Async", ordered: true})                       // CUdeviceptr, unsigned char, size_t, CUstream
	cuStreamCreate                    = driver(function{symbol: "cuStreamCreate"})                                       // CUstream *, unsigned flags
	cuStreamDestroy                   = driver(function{symbol: "cuStreamDestroy_v2"})                                   // CUstream
	cuStreamQuery                     = driver(function{symbol: "cuStreamQuery"})                                        // CUstream
	cuStreamSynchronize               = driver(function{symbol: "cuEventSynchronize", as: "cuStreamSynchronize"})        // CUevent; see wait.go
	cuStreamIsCapturing               = driver(function{symbol: "cuStreamIsCapturing"})                                  // CUstream, CUstreamCaptureStatus *
	cuStreamWaitEvent                 = driver(function{symbol: "cuStreamWaitEvent", ordered: true})                     // CUstream, CUevent, unsigned flags
	cuEventCreate                     = driver(function{symbol: "cuEventCreate"})                                        // CUevent *, unsigned flags
	cuEventDestroy                    = driver(function{symbol: "cuEventDestroy_v2"})                                    // CUevent
	cuEventRecord                     = driver(function{symbol: "cuEventRecord", ordered: true})                         // CUevent, CUstream
	cuEventQuery                      = driver(function{symbol: "cuEventQuery"})                                         // CUevent
	cuEventSynchronize                = driver(function{symbol: "cuEventSynchronize"})                                   // CUevent
	cuDeviceGetDefaultMemPool         = driver(function{symbol: "cuDeviceGetDefaultMemPool", since: 11020})              // CUmemoryPool *, CUdevice
	cuMemPoolCreate                   = driver(function{symbol: "cuMemPoolCreate", since: 11020})                        // CUmemoryPool *, const CUmemPoolProps *
	cuMemPoolDestroy                  = driver(function{symbol: "cuMemPoolDestroy", since: 11020})                       // CUmemoryPool
	cuMemPoolGetAttribute             = driver(function{symbol: "cuMemPoolGetAttribute", since: 11020})                  // CUmemoryPool, attribute, void *
	cuMemPoolSetAttribute             = driver(function{symbol: "cuMemPoolSetAttribute", since: 11020})                  // CUmemoryPool, attribute, void *
	cuMemPoolTrimTo                   = driver(function{symbol: "cuMemPoolTrimTo", since: 11020})                        // CUmemoryPool, size_t keep
	cuMemAllocFromPoolAsync           = driver(function{symbol: "cuMemAllocFromPoolAsync", since: 11020, ordered: true}) // CUdeviceptr *, size_t, CUmemoryPool, CUstream
	cuMemFreeAsync                    = driver(function{symbol: "cuMemFreeAsync", since: 11020, ordered: true})          // CUdeviceptr, CUstream
	cuMemGetAllocationGranularity     = driver(function{symbol: "cuMemGetAllocationGranularity"})                        // size_t *, const CUmemAllocationProp *, option
	cuMemAddressReserve               = driver(function{symbol: "cuMemAddressReserve"})                                  // CUdeviceptr *, size_t, size_t align, CUdeviceptr hint, u64 flags
	cuMemAddressFree                  = driver(function{symbol: "cuMemAddressFree"})                                     // CUdeviceptr, size_t
	cuMemCreate                       = driver(function{symbol: "cuMemCreate"})                                          // handle *, size_t, const CUmemAllocationProp *, u64 flags
	cuMemRelease                      = driver(function{symbol: "cuMemRelease"})                                         // handle
	cuMemMap                          = driver(function{symbol: "cuMemMap"})                                             // CUdeviceptr, size_t, size_t offset, handle, u64 flags
	cuMemSetAccess                    = driver(function{symbol: "cuMemSetAccess"})                                       // CUdeviceptr, size_t, const CUmemAccessDesc *, size_t count
	cuMemUnmap                        = driver(function{symbol: "cuMemUnmap"})                                           // CUdeviceptr, size_t
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
	captureRelaxed = 2 // CU_STREAM_CAPTURE_MODE_RELAXED
	captureNone    = 0 // CU_STREAM_CAPTURE_STATUS_NONE

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
