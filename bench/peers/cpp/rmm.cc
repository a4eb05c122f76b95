// RMM's pools as peers: pool_memory_resource, or arena_memory_resource with ARENA, above
// cuda_memory_resource. They are templates in the wheel's headers, compiled here.
//
// Stubbed: the CUDA runtime (cudart.h), in which an event costs nothing, while on a GPU
// RMM records one at every free; and the functions of librmm.so below. Logging is compiled out.
#include "cudart.h"

#include <optional>
#include <rmm/cuda_device.hpp>
#include <rmm/mr/arena_memory_resource.hpp>
#include <rmm/mr/cuda_memory_resource.hpp>
#include <rmm/mr/pool_memory_resource.hpp>

// In librmm.so they ask a CUDA runtime that is linked into it.
namespace rmm {
cuda_device_id get_current_cuda_device() { return cuda_device_id{0}; }
int get_num_cuda_devices() { return 1; }
std::pair<std::size_t, std::size_t> available_device_memory() {
  return {device::total - device::held, device::total};
}
void cuda_stream_view::synchronize() const {}
void cuda_stream_view::synchronize_no_throw() const noexcept {}
}  // namespace rmm

namespace {
rmm::mr::cuda_memory_resource upstream;
#ifdef ARENA
std::optional<rmm::mr::arena_memory_resource<rmm::mr::cuda_memory_resource>> pool;
#else
std::optional<rmm::mr::pool_memory_resource<rmm::mr::cuda_memory_resource>> pool;
#endif
}  // namespace

// The pool is the whole device from the start, as the others' are.
PEER int peer_open(uint64_t bytes) try {
  device::open(bytes);
  pool.emplace(&upstream, device::total);
  return 1;
} catch (const std::exception &) {
  return 0;
}

PEER int peer_alloc(uint64_t bytes, peer_block *out) try {
  out->addr = reinterpret_cast<uint64_t>(pool->allocate(rmm::cuda_stream_default, bytes));
  return 1;
} catch (const std::bad_alloc &) {
  return 0;
}

PEER void peer_free(peer_block block, uint64_t bytes) {
  pool->deallocate(rmm::cuda_stream_default, reinterpret_cast<void *>(block.addr), bytes);
}

PEER peer_device peer_state() { return device::state(); }

PEER void peer_close() { pool.reset(); }
