// A peer for tests whose figures can be told beforehand: one driver grant for each
// block, as XLA's platform allocator.
#include "device.h"

PEER int peer_open(uint64_t bytes) {
  device::open(bytes);
  return 1;
}

PEER int peer_alloc(uint64_t bytes, peer_block *out) {
  out->addr = device::alloc(bytes);
  return out->addr != 0;
}

PEER void peer_free(peer_block block, uint64_t) { device::free(block.addr); }

PEER peer_device peer_state() { return device::state(); }

PEER void peer_close() {}
