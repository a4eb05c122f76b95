//go:build linux && (amd64 || arm64) && !nodriver

// The driver's functions that this package calls, and the few numbers and
// structures that they take.

package cuda

// Numbers of the driver's functions, in the order of cuFunctions.
const (
	cuInit = iota
	cuDriverGetVersion
	cuGetErrorName
	cuGetErrorString
	cuDeviceGetCount
	cuDeviceGet
	cuDeviceGetName
	cuDeviceGetUuid
	cuDeviceGetUuid_v2
	cuDeviceTotalMem
	cuDeviceGetAttribute
	cuDevicePrimaryCtxRetain
	cuDevicePrimaryCtxRelease
	cuCtxSetCurrent
	cuCtxSynchronize
	cuMemGetInfo
	cuMemAlloc
	cuMemAllocManaged
	cuMemFree
	cuMemcpyHtoD
	cuMemcpyDtoH
	cuMemsetD8
	cuMemcpyDtoDAsync
	cuMemsetD8Async
	cuStreamCreate
	cuStreamDestroy
	cuStreamQuery
	cuStreamSynchronize
	cuStreamWaitEvent
	cuEventCreate
	cuEventDestroy
	cuEventRecord
	cuEventQuery
	cuEventSynchronize
	cuDeviceGetDefaultMemPool
	cuMemPoolCreate
	cuMemPoolDestroy
	cuMemPoolGetAttribute
	cuMemPoolSetAttribute
	cuMemPoolTrimTo
	cuMemAllocFromPoolAsync
	cuMemFreeAsync
	cuMemGetAllocationGranularity
	cuMemAddressReserve
	cuMemAddressFree
	cuMemCreate
	cuMemRelease
	cuMemMap
	cuMemSetAccess
	cuMemUnmap
	numCUDA
)

// cuFunctions are their symbols, with the first CUDA version whose driver has
// them where that is later than the oldest driver that works here (11.0, for
// cuDevicePrimaryCtxRelease_v2), and their C arguments.
var cuFunctions = [numCUDA]function{
	cuInit:                        {"cuInit", 0},                        // unsigned flags
	cuDriverGetVersion:            {"cuDriverGetVersion", 0},            // int *version
	cuGetErrorName:                {"cuGetErrorName", 0},                // CUresult, const char **
	cuGetErrorString:              {"cuGetErrorString", 0},              // CUresult, const char **
	cuDeviceGetCount:              {"cuDeviceGetCount", 0},              // int *count
	cuDeviceGet:                   {"cuDeviceGet", 0},                   // CUdevice *, int ordinal
	cuDeviceGetName:               {"cuDeviceGetName", 0},               // char *, int length, CUdevice
	cuDeviceGetUuid:               {"cuDeviceGetUuid", 0},               // CUuuid *, CUdevice; of the whole GPU
	cuDeviceGetUuid_v2:            {"cuDeviceGetUuid_v2", 11040},        // CUuuid *, CUdevice; of the MIG slice
	cuDeviceTotalMem:              {"cuDeviceTotalMem_v2", 0},           // size_t *, CUdevice
	cuDeviceGetAttribute:          {"cuDeviceGetAttribute", 0},          // int *, CUdevice_attribute, CUdevice
	cuDevicePrimaryCtxRetain:      {"cuDevicePrimaryCtxRetain", 0},      // CUcontext *, CUdevice
	cuDevicePrimaryCtxRelease:     {"cuDevicePrimaryCtxRelease_v2", 0},  // CUdevice
	cuCtxSetCurrent:               {"cuCtxSetCurrent", 0},               // CUcontext
	cuCtxSynchronize:              {"cuCtxSynchronize", 0},              // void
	cuMemGetInfo:                  {"cuMemGetInfo_v2", 0},               // size_t *free, size_t *total
	cuMemAlloc:                    {"cuMemAlloc_v2", 0},                 // CUdeviceptr *, size_t
	cuMemAllocManaged:             {"cuMemAllocManaged", 0},             // CUdeviceptr *, size_t, unsigned flags
	cuMemFree:                     {"cuMemFree_v2", 0},                  // CUdeviceptr
	cuMemcpyHtoD:                  {"cuMemcpyHtoD_v2", 0},               // CUdeviceptr, const void *, size_t
	cuMemcpyDtoH:                  {"cuMemcpyDtoH_v2", 0},               // void *, CUdeviceptr, size_t
	cuMemsetD8:                    {"cuMemsetD8_v2", 0},                 // CUdeviceptr, unsigned char, size_t
	cuMemcpyDtoDAsync:             {"cuMemcpyDtoDAsync_v2", 0},          // CUdeviceptr to, from, size_t, CUstream
	cuMemsetD8Async:               {"cuMemsetD8Async", 0},               // CUdeviceptr, unsigned char, size_t, CUstream
	cuStreamCreate:                {"cuStreamCreate", 0},                // CUstream *, unsigned flags
	cuStreamDestroy:               {"cuStreamDestroy_v2", 0},            // CUstream
	cuStreamQuery:                 {"cuStreamQuery", 0},                 // CUstream
	cuStreamSynchronize:           {"cuStreamSynchronize", 0},           // CUstream
	cuStreamWaitEvent:             {"cuStreamWaitEvent", 0},             // CUstream, CUevent, unsigned flags
	cuEventCreate:                 {"cuEventCreate", 0},                 // CUevent *, unsigned flags
	cuEventDestroy:                {"cuEventDestroy_v2", 0},             // CUevent
	cuEventRecord:                 {"cuEventRecord", 0},                 // CUevent, CUstream
	cuEventQuery:                  {"cuEventQuery", 0},                  // CUevent
	cuEventSynchronize:            {"cuEventSynchronize", 0},            // CUevent
	cuDeviceGetDefaultMemPool:     {"cuDeviceGetDefaultMemPool", 11020}, // CUmemoryPool *, CUdevice
	cuMemPoolCreate:               {"cuMemPoolCreate", 11020},           // CUmemoryPool *, const CUmemPoolProps *
	cuMemPoolDestroy:              {"cuMemPoolDestroy", 11020},          // CUmemoryPool
	cuMemPoolGetAttribute:         {"cuMemPoolGetAttribute", 11020},     // CUmemoryPool, attribute, void *
	cuMemPoolSetAttribute:         {"cuMemPoolSetAttribute", 11020},     // CUmemoryPool, attribute, void *
	cuMemPoolTrimTo:               {"cuMemPoolTrimTo", 11020},           // CUmemoryPool, size_t keep
	cuMemAllocFromPoolAsync:       {"cuMemAllocFromPoolAsync", 11020},   // CUdeviceptr *, size_t, CUmemoryPool, CUstream
	cuMemFreeAsync:                {"cuMemFreeAsync", 11020},            // CUdeviceptr, CUstream
	cuMemGetAllocationGranularity: {"cuMemGetAllocationGranularity", 0}, // size_t *, const CUmemAllocationProp *, option
	cuMemAddressReserve:           {"cuMemAddressReserve", 0},           // CUdeviceptr *, size_t, size_t align, CUdeviceptr hint, u64 flags
	cuMemAddressFree:              {"cuMemAddressFree", 0},              // CUdeviceptr, size_t
	cuMemCreate:                   {"cuMemCreate", 0},                   // handle *, size_t, const CUmemAllocationProp *, u64 flags
	cuMemRelease:                  {"cuMemRelease", 0},                  // handle
	cuMemMap:                      {"cuMemMap", 0},                      // CUdeviceptr, size_t, size_t offset, handle, u64 flags
	cuMemSetAccess:                {"cuMemSetAccess", 0},                // CUdeviceptr, size_t, const CUmemAccessDesc *, size_t count
	cuMemUnmap:                    {"cuMemUnmap", 0},                    // CUdeviceptr, size_t
}

// needed are the functions without which there is no device at all.
var needed = []int{
	cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName,
	cuDeviceTotalMem, cuDeviceGetAttribute, cuDevicePrimaryCtxRetain,
	cuDevicePrimaryCtxRelease, cuCtxSetCurrent, cuStreamCreate, cuStreamDestroy,
}

// poolFunctions and pageFunctions are those of device.Pools and device.Pages,
// both in the order of the table.
const (
	firstPoolFunction, lastPoolFunction = cuDeviceGetDefaultMemPool, cuMemFreeAsync
	firstPageFunction, lastPageFunction = cuMemGetAllocationGranularity, cuMemUnmap
)

// Numbers of cuda.h.
const (
	success  Code = 0
	notReady Code = 600 // work is under way; no failure

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
