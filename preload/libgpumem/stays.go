//go:build libgpumem

package main

/*
#include <dlfcn.h>
#include <stdlib.h>
#include "gpumem.h"

// confidential asks the driver's NVML whether the system computes confidentially; 0 where it does not say.
static int confidential(const char *library) {
  struct { unsigned environment, feature, tools; } state = {0, 0, 0}; // nvmlConfComputeSystemState_t
  void *nvml = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  int (*init)(void) = 0, (*end)(void) = 0, (*ask)(void *) = 0;
  if (!nvml) return 0;
  *(void **)&init = dlsym(nvml, "nvmlInit_v2"), *(void **)&end = dlsym(nvml, "nvmlShutdown");
  *(void **)&ask = dlsym(nvml, "nvmlSystemGetConfComputeState");
  if (!init || !end || !ask || init()) return dlclose(nvml), 0;
  if (ask(&state)) state.feature = 0;
  return end(), dlclose(nvml), state.feature != 0;
}
*/
import "C"

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"unsafe"

	"gpumem/node/ledger"
	"gpumem/policy"
)

// stays returns why the memory is not to leave now, of what the front and the pool know.
func (g *gpu) stays() ledger.Reason {
	tied := settings.gate.tied()
	switch {
	case settings.policy.Kind == policy.Async:
		return ledger.OtherPolicy
	case turning.Load() > 1: // one gate for several GPUs, each of which would have to be asked
		return ledger.SeveralGPUs
	case g.unified.Load():
		return ledger.IntegratedGPU
	case g.peers.Load():
		return ledger.PeerAccess
	case tied&C.GM_SHARED != 0:
		return ledger.SharingMemory
	case tied&C.GM_MANAGED != 0:
		return ledger.ManagedMemory
	case g.mapsMost():
		return ledger.OwnMappings
	}
	return ledger.NoReason
}

// mapsMost reports whether the program has mapped more memory by itself than its pool has: that
// stays on the GPU. Less does no harm, such as the buffers of NCCL with one rank.
func (g *gpu) mapsMost() bool {
	p, c := g.pool.Load(), g.charges.Load()
	if p == nil || c == nil {
		return false
	}
	held, _ := p.Reserved()
	return c.MappedBytes() > held
}

// look returns why not, of what the system knows. What it does not say is no reason.
func look() ledger.Reason {
	switch {
	case isConfidential():
		return ledger.ConfidentialGPU
	case hasDevice():
		return ledger.RegisteredMemory
	case hasRanks():
		return ledger.Communicating
	}
	return ledger.NoReason
}

var isConfidential = sync.OnceValue(func() bool {
	if settings.libnvml == "" {
		return false
	}
	path := C.CString(settings.libnvml)
	defer C.free(unsafe.Pointer(path))
	return C.confidential(path) != 0
})

// hasDevice reports whether the process has a device open with which memory of a GPU may be
// registered: those of RDMA, GDRCopy and GPUDirect Storage.
func hasDevice() bool {
	const folder = "/proc/self/fd"
	files, _ := os.ReadDir(folder)
	for _, f := range files {
		path, _ := os.Readlink(filepath.Join(folder, f.Name()))
		for _, device := range []string{"/dev/infiniband/", "/dev/gdrdrv", "/dev/nvidia-fs"} {
			if strings.HasPrefix(path, device) {
				return true
			}
		}
	}
	return false
}

// hasRanks reports whether NCCL has connected ranks in a way that the front does not see: by memory
// of the host that they map, or by a network, for which a rank and its proxy map some. Ranks that
// reach each other's GPU memory have exported or imported some. One rank alone connects to nobody.
func hasRanks() bool {
	maps, _ := os.ReadFile("/proc/self/maps")
	return strings.Contains(string(maps), " /dev/shm/nccl-")
}
