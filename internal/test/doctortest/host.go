// Cases in which the host's memory is the one that ended.
package doctortest

import "fmt"

const idHost = "host_memory"

func hostCases() []Case {
	var cases []Case
	for i, want := range []uint64{3 * gib, 12 * gib, 40 * gib, 72 * gib} {
		key := fmt.Sprintf("%dg", want/gib)
		e := eras[i]
		limit := uint64(64 * gib)
		full := pool{want: want, limit: limit, inUse: limit - want/2}
		text := fmt.Sprintf("Allocator (cuda_host_bfc) ran out of memory trying to allocate %s", xla(want))
		cases = append(cases, cause(idHost, "pool-"+key,
			e.at("W", "tensorflow/core/common_runtime/bfc_allocator.cc", 273, text+".  Current allocation summary follows.")+
				e.at("I", "tensorflow/core/common_runtime/bfc_allocator.cc", 702, "Stats: ")+full.stats(era2018),
			"the allocator's name says that it is the host's", text))
		text = fmt.Sprintf("could not allocate pinned host memory of size: %d", want)
		cases = append(cases, cause(idHost, "pinned-"+key, e.at("W", "tensorflow/core/common_runtime/gpu/gpu_host_allocator.h", 44, text), "the memory asked for is the host's", text))
		text = fmt.Sprintf("failed to alloc %d bytes on host: CUDA_ERROR_OUT_OF_MEMORY", want)
		cases = append(cases, cause(idHost, "driver-"+key, e.at("W", driverFile, 1633, text+": out of memory"), "the driver's code is for memory on the host", text))
		if i%2 == 0 {
			text = fmt.Sprintf("RESOURCE_EXHAUSTED: Out of host memory while trying to allocate %s.", xla(want))
			cases = append(cases, cause(idHost, "xla-"+key, "jax.errors.JaxRuntimeError: "+text+" Please set the environment variable XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB\n",
				"the text names host memory and the variable of its limit", text))
			text = fmt.Sprintf("DefaultCPUAllocator: can't allocate memory: you tried to allocate %d bytes.", want)
			cases = append(cases, cause(idHost, "torch-"+key, "RuntimeError: [enforce fail at alloc_cpu.cpp:114] err == 0. "+text+" Error code 12 (Cannot allocate memory)\n",
				"the allocator is the CPU's", text))
			continue
		}
		text = "oom-kill:constraint=CONSTRAINT_MEMCG"
		cases = append(cases, cause(idHost, "cgroup-"+key,
			fmt.Sprintf("[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name\n[  %d]  1000 %d %d  %d %d   0             0 python\n", ownPID, ownPID, want/kib, want/(4*kib), want/512)+
				text+",nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod7,task_memcg=/kubepods/pod7/main\n",
			"the kernel killed the process at the limit of its control group", text))
		text = "NV_ERR_NO_MEMORY"
		cases = append(cases, cause(idHost, "kernel-"+key,
			fmt.Sprintf("NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [%s] (0x00000051)\nOut of memory: Killed process %d (python) total-vm:%dkB, anon-rss:%dkB\n", text, ownPID, 2*want/kib, want/kib),
			"the kernel's driver module and the kernel's killer speak of the host's pages", "Out of memory: Killed process"))
	}
	return cases
}
