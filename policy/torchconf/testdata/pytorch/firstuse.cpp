// What the caching allocator of an installed PyTorch says of its settings when a
// GPU is first used: CUDAHooks calls init, which reads them. See firstuse.py.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/Exception.h>
#include <cstdio>

int main() {
  try {
    c10::cuda::CUDACachingAllocator::get()->init(1);
    printf("ok\n");
  } catch (const c10::Error& e) {
    printf("use ! %s\n", e.what_without_backtrace());
  } catch (const std::exception& e) {
    printf("use ! %s\n", e.what());
  }
}
