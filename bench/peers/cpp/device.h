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
constexpr uint64_t kHigh = uint64_t(1) << 48;  // of the first range without memory

inline uint64_t total, held, calls;
inline uint64_t next = kBase, next_high = kHigh;
inline std::unordered_map<uint64_t, uint64_t> grants;  // address to bytes

// open makes a device with nothing on it. What is less than a grant at its end is left
// out, so that a pool can take all of it.
inline void open(uint64_t bytes) {
  total = bytes / kGranularity * kGranularity;
  held = calls = 0;
  next = kBase;
  next_high = kHigh;
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

// alloc returns 0 if the device has not enough free memory.
inline uint64_t alloc(uint64_t bytes) {
  calls++;
  bytes = round_up(bytes);
  if (!take(bytes)) return 0;
  uint64_t addr = next;
  next += bytes;
  grants[addr] = bytes;
  return addr;
}

// reserve returns addresses that nothing has used, without memory.
inline uint64_t reserve(uint64_t bytes) {
  calls++;
  uint64_t addr = next_high;
  next_high += round_up(bytes);
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
