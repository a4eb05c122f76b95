// The CUDA runtime on the simulated device, as far as the peers call it. Included by one
// file of each peer.
//
// It stands in for libcudart: memory calls are those of device.h and are counted.
// Devices, streams and events do nothing, cost nothing, and are not counted: work is
// done at once, so every event has passed.
#pragma once

#include <cuda_runtime_api.h>

#include "device.h"

extern "C" {

cudaError_t cudaMalloc(void **out, size_t bytes) {
  uint64_t addr = device::alloc(bytes);
  *out = reinterpret_cast<void *>(addr);
  return addr ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *p) {
  if (!p) return cudaSuccess;
  return device::free(reinterpret_cast<uint64_t>(p)) ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  *free = device::total - device::held;
  *total = device::total;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *d) { return *d = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
  *p = {};
  p->major = 9;
  p->totalGlobalMem = device::total;
  p->multiProcessorCount = 132;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr, int) { return *value = 0, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  return *least = *greatest = 0, cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned) {
  *e = reinterpret_cast<cudaEvent_t>(8);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus *s) {
  return *s = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaStreamGetId(cudaStream_t, unsigned long long *id) { return *id = 1, cudaSuccess; }
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *) { return cudaSuccess; }

cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
const char *cudaGetErrorName(cudaError_t) { return "an error"; }
const char *cudaGetErrorString(cudaError_t) { return "an error"; }
}
