// XLA's BFC allocator as a peer: tsl::BFCAllocator as the TensorFlow wheel has it, in
// libtensorflow_framework.so, compiled by its own build. Nothing of it is stubbed but
// what it takes its memory from, which is a SubAllocator of ours.
//
// Built twice. By default the pool is what JAX makes: all of the device at the first
// request. With GROWTH it grows, as with XLA_PYTHON_CLIENT_PREALLOCATE=false.
#include <optional>

#include "device.h"
#include "xla/tsl/framework/bfc_allocator.h"

namespace {

#ifdef GROWTH
constexpr bool kGrowth = true;
#else
constexpr bool kGrowth = false;
#endif

// What a GPU's sub-allocator is to the pool: regions are grants of the driver, and not
// joined. JAX's own has no visitors either.
class Grants : public tsl::SubAllocator {
 public:
  Grants() : SubAllocator({}, {}) {}
  void *Alloc(size_t, size_t bytes, size_t *received) override {
    *received = bytes;
    return reinterpret_cast<void *>(device::alloc(bytes));
  }
  void Free(void *p, size_t) override { device::free(reinterpret_cast<uint64_t>(p)); }
  bool SupportsCoalescing() const override { return false; }
};

std::optional<tsl::BFCAllocator> pool;
// A refusal is an answer at once, as where the program handles it, and not after ten
// seconds of waiting for memory.
tsl::AllocationAttributes once;

}  // namespace

PEER int peer_open(uint64_t bytes) {
  setenv("TF_CPP_MIN_LOG_LEVEL", "3", 1);
  device::open(bytes);
  tsl::BFCAllocator::Options options;
  options.allow_growth = kGrowth;
  options.allow_retry_on_failure = false;
  once.retry_on_failure = false;
  pool.emplace(std::make_unique<Grants>(), device::total, "peer", options);
  return 1;
}

PEER int peer_alloc(uint64_t bytes, peer_block *out) {
  out->addr = reinterpret_cast<uint64_t>(pool->AllocateRaw(256, bytes, once));
  return out->addr != 0;
}

PEER void peer_free(peer_block block, uint64_t) { pool->DeallocateRaw(reinterpret_cast<void *>(block.addr)); }

PEER peer_device peer_state() { return device::state(); }

PEER void peer_close() { pool.reset(); }
