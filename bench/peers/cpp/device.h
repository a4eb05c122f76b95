// The simulated device below the peers, by the rules of device/sim: a grant is rounded
// up to 2 MiB and refused if it does not fit in what is free; each lies at the first
// 2 MiB boundary after the last; an address is never used twice. Every call is counted,
// refused ones too.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "peer.h"

namespace device {

constexpr uint64_t kGranularity = 2 << 20;
constexpr uint64_t kBase = 0x7f0000000000;  // of the first grant

inline uint64_t total, held, calls;
inline uint64_t next = kBase;
inline std::unordered_map<uint64_t, uint64_t> grants;  // address to bytes

inline void open(uint64_t bytes) {
  total = bytes;
  held = calls = 0;
  next = kBase;
}

inline uint64_t round_up(uint64_t bytes) {
  return (bytes + kGranularity - 1) / kGranularity * kGranularity;
}

// take counts bytes as held. It returns false if they are not free.
inline bool take(uint64_t bytes) {
  if (bytes > total - held) return false;
  held += bytes;
  return true;
}

// range returns addresses that nothing has used.
inline uint64_t range(uint64_t bytes) {
  uint64_t addr = next;
  next += round_up(bytes);
  return addr;
}

// alloc returns 0 if the device has not enough free memory.
inline uint64_t alloc(uint64_t bytes) {
  calls++;
  bytes = round_up(bytes);
  if (!take(bytes)) return 0;
  uint64_t addr = range(bytes);
  grants[addr] = bytes;
  return addr;
}

// free returns false if there is no grant at the address.
inline bool free(uint64_t addr) {
  calls++;
  auto it = grants.find(addr);
  if (it == grants.end()) return false;
  held -= it->second;
  grants.erase(it);
  return true;
}

inline peer_device state() { return {held, calls}; }

}  // namespace device
