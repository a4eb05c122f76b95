// A peer with the error that the driver must notice: after the tenth block, each lies
// one byte into the one before.
#include "device.h"

namespace {
uint64_t next, count;
}

PEER int peer_open(uint64_t bytes) {
  device::open(bytes);
  next = device::kBase;
  count = 0;
  return 1;
}

PEER int peer_alloc(uint64_t bytes, peer_block *out) {
  out->addr = next;
  next += ++count > 10 ? bytes - 1 : bytes;
  return 1;
}

PEER void peer_free(peer_block, uint64_t) {}

PEER peer_device peer_state() { return device::state(); }

PEER void peer_close() {}
