// PyTorch's caching allocator as a peer: c10's sources from Debian's package, unchanged,
// with expandable segments if built with EXPANDABLE.
//
// Stubbed: the CUDA runtime (cudart.h), and the driver's calls for virtual memory below,
// by the rules of device/sim: a piece of physical memory counts as held from its creation
// to its release, a range of addresses costs nothing. NVML is absent, and so is the other
// backend, cudaMallocAsync.
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/driver_api.h>

#include "cudart.h"

namespace {

std::unordered_map<CUmemGenericAllocationHandle, uint64_t> pieces;
CUmemGenericAllocationHandle last_piece;

CUresult reserve(CUdeviceptr *out, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *out = device::reserve(bytes);
  return CUDA_SUCCESS;
}
CUresult unreserve(CUdeviceptr, size_t) {
  device::calls++;
  return CUDA_SUCCESS;
}
CUresult create(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *, unsigned long long) {
  device::calls++;
  if (!device::take(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  pieces[*out = ++last_piece] = bytes;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle h) {
  device::calls++;
  device::held -= pieces[h];
  pieces.erase(h);
  return CUDA_SUCCESS;
}
CUresult map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  device::calls++;
  return CUDA_SUCCESS;
}
CUresult unmap(CUdeviceptr, size_t) {
  device::calls++;
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) {
  device::calls++;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char **s) {
  *s = "an error";
  return CUDA_SUCCESS;
}

}  // namespace

// In place of driver_api.cpp, which loads libcuda.
namespace c10::cuda {
DriverAPI *DriverAPI::get() {
  static DriverAPI api = [] {
    DriverAPI a{};
    a.cuMemAddressReserve_ = reserve;
    a.cuMemAddressFree_ = unreserve;
    a.cuMemCreate_ = create;
    a.cuMemRelease_ = release;
    a.cuMemMap_ = map;
    a.cuMemUnmap_ = unmap;
    a.cuMemSetAccess_ = set_access;
    a.cuGetErrorString_ = error_string;
    return a;
  }();
  return &api;
}
void *DriverAPI::get_nvml_handle() { return nullptr; }
}  // namespace c10::cuda

namespace c10::cuda::CUDACachingAllocator::CudaMallocAsync {
CUDAAllocator *allocator() { return nullptr; }
}  // namespace c10::cuda::CUDACachingAllocator::CudaMallocAsync

namespace caching = c10::cuda::CUDACachingAllocator;

// There is one allocator in a process. It is fresh again when its cache is emptied.
PEER int peer_open(uint64_t bytes) {
  device::open(bytes);
  static bool once = [] {
#ifdef EXPANDABLE
    caching::setAllocatorSettings("expandable_segments:True");
#endif
    caching::init(1);
    return true;
  }();
  return once;
}

PEER int peer_alloc(uint64_t bytes, peer_block *out) try {
  out->addr = reinterpret_cast<uint64_t>(caching::raw_alloc(bytes));
  return 1;
} catch (const c10::OutOfMemoryError &) {
  return 0;
}

PEER void peer_free(peer_block block, uint64_t) { caching::raw_delete(reinterpret_cast<void *>(block.addr)); }

PEER peer_device peer_state() { return device::state(); }

PEER void peer_close() { caching::emptyCache(); }
