// The C interface of a peer: one allocator on a simulated device.
//
// A peer is a shared library that exports these five functions. They are called by
// one thread, and one allocator is open at a time. The driver, replay.cc, opens a
// fresh one for each replay and frees every block before it closes it.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
#define PEER extern "C" __attribute__((visibility("default")))
#else
#define PEER
#endif

// A block as its allocator knows it. The driver keeps it from alloc to free.
struct peer_block {
  uint64_t addr;    // of the first byte on the device
  uint64_t handle;  // what the allocator's free takes, if that is not the address
};

// The device since peer_open.
struct peer_device {
  uint64_t held;   // bytes that the allocator has from the driver now
  uint64_t calls;  // calls of the driver that take or release memory or addresses
};

// Opens an allocator on a device of that many bytes. Returns 0 if it cannot start.
PEER int peer_open(uint64_t device_bytes);
// Allocates at least 1 byte. Returns 0 if the request is refused.
PEER int peer_alloc(uint64_t bytes, struct peer_block *out);
// Frees a block; bytes is what was requested for it.
PEER void peer_free(struct peer_block block, uint64_t bytes);
PEER struct peer_device peer_state(void);
PEER void peer_close(void);
