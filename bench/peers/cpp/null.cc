// The peer that does nothing: what the driver itself costs. Each block has addresses
// that nothing used before, and the device is a number.
#include "device.h"

namespace {
uint64_t next;
}

PEER int peer_open(uint64_t bytes) {
  device::open(bytes);
  next = device::kBase;
  return 1;
}

PEER int peer_alloc(uint64_t bytes, peer_block *out) {
  out->addr = next;
  next += bytes;
  return 1;
}

PEER void peer_free(peer_block, uint64_t) {}

PEER peer_device peer_state() { return device::state(); }

PEER void peer_close() {}
