// VulkanMemoryAllocator's virtual block as a peer: VMA's TLSF without Vulkan. Nothing of
// it is stubbed, and no Vulkan function is linked. The whole device is one block, taken
// at the start. Its locking is the caller's, so there is none. Sizes are rounded up to the
// alignment, as the others do themselves: without that it walks past holes which are only
// large enough before they are aligned.
#define VMA_IMPLEMENTATION
#define VMA_STATIC_VULKAN_FUNCTIONS 0
#define VMA_DYNAMIC_VULKAN_FUNCTIONS 0
#define VMA_STATS_STRING_ENABLED 0
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wall"
#pragma GCC diagnostic ignored "-Wextra"
#include <vk_mem_alloc.h>
#pragma GCC diagnostic pop

#include "device.h"

namespace {
VmaVirtualBlock block;
uint64_t base;
constexpr uint64_t kAlignment = 256;
}  // namespace

PEER int peer_open(uint64_t bytes) {
  device::open(bytes);
  VmaVirtualBlockCreateInfo info = {};
  info.size = device::total;
  base = device::alloc(info.size);
  return base && vmaCreateVirtualBlock(&info, &block) == VK_SUCCESS;
}

PEER int peer_alloc(uint64_t bytes, peer_block *out) {
  VmaVirtualAllocationCreateInfo info = {};
  info.size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  info.alignment = kAlignment;
  VmaVirtualAllocation a;
  VkDeviceSize offset;
  if (vmaVirtualAllocate(block, &info, &a, &offset) != VK_SUCCESS) return 0;
  *out = {base + offset, uint64_t(a)};
  return 1;
}

PEER void peer_free(peer_block b, uint64_t) { vmaVirtualFree(block, VmaVirtualAllocation(b.handle)); }

PEER peer_device peer_state() { return device::state(); }

PEER void peer_close() { vmaDestroyVirtualBlock(block); }
