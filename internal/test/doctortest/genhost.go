// Generated messages of the host: killers, limits, shared memory; and errors that
// are none of memory, with sizes around them.
package doctortest

import "fmt"

func hostClasses() []class {
	return []class{
		{"host/kernel-killer", func(d draw) Sample {
			rss := d.between(4*gib, 200*gib)
			pid := d.pid()
			text := fmt.Sprintf("Out of memory: Killed process %d (%s) total-vm:%dkB, anon-rss:%dkB, file-rss:%dkB, shmem-rss:0kB, UID:1000 pgtables:%dkB oom_score_adj:0\n", pid, d.one("python", "python3", "java", "ollama"), 3*rss/kib, rss/kib, d.IntN(90000), rss/mib)
			if d.chance(50) {
				text = "Memory cgroup o" + text[1:]
			}
			return hostSample(progress(d, d.IntN(3)) + text)
		}},
		{"host/cgroup", func(d draw) Sample {
			limit := d.between(2*gib, 100*gib) / kib
			return hostSample(fmt.Sprintf("python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=%d\nmemory: usage %dkB, limit %dkB, failcnt %d\noom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/kubepods/pod7,task_memcg=/kubepods/pod7/main,task=python,pid=%d,uid=0\n", d.IntN(1000), limit, limit, d.IntN(900), d.pid()))
		}},
		{"host/kubernetes", func(d draw) Sample {
			return hostSample(fmt.Sprintf("    State:          Terminated\n      Reason:       OOMKilled\n      Exit Code:    137\n    Limits:\n      memory:          %dGi\n      nvidia.com/gpu:  1\n", 1+d.IntN(128)))
		}},
		{"host/evicted", func(d draw) Sample {
			used := d.between(2*gib, 200*gib) / kib
			return hostSample(fmt.Sprintf("Status:  Failed\nReason:  Evicted\nMessage: The node was low on resource: memory. Threshold quantity: 100Mi, available: %dKi. Container train was using %dKi, request is 0, has larger consumption of memory.\n", 20000+d.IntN(80000), used))
		}},
		{"host/xla-cpu", func(d draw) Sample {
			return hostSample(fmt.Sprintf("WARNING:jax._src.xla_bridge:No GPU/TPU found, falling back to CPU.\njaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating %d bytes.\n", d.between(40*gib, 900*gib)))
		}},
		{"host/systemd", func(d draw) Sample {
			unit := d.one("train.service", "ollama.service", "jupyter.service")
			return hostSample(fmt.Sprintf("systemd[1]: %s: A process of this unit has been killed by the OOM killer.\nsystemd[1]: %s: Main process exited, code=killed, status=9/KILL\nsystemd[1]: %s: Failed with result 'oom-kill'.\n", unit, unit, unit))
		}},
		{"host/slurm", func(d draw) Sample {
			return hostSample(fmt.Sprintf("slurmstepd: error: Detected %d oom_kill event in StepId=%d.0. Some of the step tasks have been OOM Killed.\nsrun: error: node7: task 0: Out Of Memory\n", 1+d.IntN(3), d.pid()))
		}},
		{"host/systemd-oomd", func(d draw) Sample {
			scope := "/user.slice/user-1000.slice/user@1000.service/app.slice/" + d.one("train.scope", "vte-spawn-1.scope", "jupyter.service")
			total := d.between(8*gib, 200*gib)
			used := d.percent(total, 90, 99)
			return hostSample(progress(d, 2) + fmt.Sprintf("systemd-oomd[%d]: Killed %s due to %s\n", d.pid(), scope, d.one(
				fmt.Sprintf("memory pressure for %s being %.2f%% > 50.00%% for > 20s with reclaim activity", scope, 50+40*d.Float64()),
				fmt.Sprintf("memory used (%d) / total (%d) and swap used (%d) / total (%d) being more than 90.00%%", used, total, used/8, total/8))))
		}},
		{"host/ray-monitor", func(d draw) Sample {
			total := float64(d.between(30*gib, 900*gib)) / gib
			used := total * (0.951 + 0.04*d.Float64())
			return hostSample(d.one(
				fmt.Sprintf("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nMemory on the node (IP: 10.0.0.7, ID: 4f2a) where the task (task ID: 16310a0f, name=train, pid=%d, memory used=%.2fGB) was running was %.2fGB / %.2fGB (%.4f), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 8c1d) because it was the most recently scheduled task; to see more information about memory usage on this node, use `ray logs raylet.out -ip 10.0.0.7`.\n", d.pid(), used/3, used, total, used/total),
				fmt.Sprintf("(raylet) node_manager.cc:3064: %d Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed due to other reasons at node (ID: 4f2a, IP: 10.0.0.7) over the last time period.\n", 1+d.IntN(4))))
		}},
		{"host/machine-full", func(d draw) Sample {
			rss, pid := d.between(4*gib, 200*gib), d.pid()
			s := hostSample(fmt.Sprintf("[%d.678901] python3 invoked oom-killer: gfp_mask=0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO), order=0, oom_score_adj=0\n[%[1]d.679000] oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=user.slice,mems_allowed=0,global_oom,task_memcg=/user.slice/user-1000.slice,task=python3,pid=%d,uid=1000\n[%[1]d.679100] Out of memory: Killed process %d (python3) total-vm:%dkB, anon-rss:%dkB, file-rss:2048kB, shmem-rss:0kB, UID:1000 pgtables:62144kB oom_score_adj:0\n", 1000+d.IntN(90000), pid, pid, 2*rss/kib, rss/kib))
			s.Why = "the kernel says that no container's limit was the wall"
			return s
		}},
		{"host/tensorflow-cpu", func(d draw) Sample {
			return hostSample(fmt.Sprintf("tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[%d,64,512,512] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator %s\n", 64+d.IntN(900), d.one("cpu", "mklcpu")))
		}},
		{"host/metal", func(d draw) Sample {
			return Sample{Causes: []string{idUnified}, Why: "Apple's GPUs have no memory but the host's", Log: d.one(
				"libc++abi: terminating due to uncaught exception of type std::runtime_error: [METAL] Command buffer execution failed: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n",
				fmt.Sprintf("ggml_metal_graph_compute: command buffer %d failed with status 5\nerror: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)\n", d.IntN(4)))}
		}},
		{"cards/named", func(d draw) Sample {
			c := d.bigCard()
			return Sample{Causes: []string{idTooBig}, Why: "one request is more than a card of this name has", Log: d.one("Using device cuda:0: ", "GPU name: ") + c.name + "\n" +
				traceback(d, fmt.Sprintf("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate %.2f GiB\n", float64(d.percent(c.total, 115, 300))/gib))}
		}},
		{"host/worker-killed", func(d draw) Sample {
			s := hostSample(progress(d, 2) + fmt.Sprintf("RuntimeError: DataLoader worker (pid %d) is killed by signal: Killed.\n", d.pid()))
			s.Asks = true
			return s
		}},
		{"host/worker-shm", func(d draw) Sample {
			return hostSample(fmt.Sprintf("ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\nRuntimeError: DataLoader worker (pid %d) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.\n", d.pid()))
		}},
		{"host/nccl-shm", func(d draw) Sample {
			head := fmt.Sprintf("node%d:%d:%d [%d] ", d.IntN(9), d.pid(), d.pid(), d.IntN(8))
			n := 4194304 + d.IntN(9000000)
			return hostSample(fmt.Sprintf("%smisc/shmutils.cc:88 NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to %d bytes, error: No space left on device (28)\n%smisc/shmutils.cc:132 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-WU88OE (size %d), error: No space left on device (28)\n", head, n+4, head, n))
		}},
		{"host/exit-137", func(d draw) Sample {
			s := hostSample(progress(d, 2) + d.one("ERROR: process exited with exit code 137\n", "Killed\n", "command terminated with exit code 137\n", "Process finished with exit code 137 (interrupted by signal 9: SIGKILL)\n"))
			s.Asks = true
			return s
		}},
		{"host/numpy", func(d draw) Sample {
			n := d.between(20*gib, 900*gib)
			return hostSample(fmt.Sprintf("numpy.core._exceptions.MemoryError: Unable to allocate %.1f GiB for an array with shape (%d,) and data type float64\n", float64(n)/gib, n/8))
		}},
		{"host/torch-cpu", func(d draw) Sample {
			return hostSample(traceback(d, fmt.Sprintf("RuntimeError: [enforce fail at alloc_cpu.cpp:%d] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate %d bytes. Error code 12 (Cannot allocate memory)\n", 75+d.IntN(60), d.between(8*gib, 300*gib))))
		}},
		{"host/pinned", func(d draw) Sample {
			n := d.between(gib, 60*gib)
			return hostSample(era2022.at("W", "xla/tsl/framework/device_host_allocator.h", 46, fmt.Sprintf("could not allocate pinned host memory of size: %d", n)) +
				era2022.at("E", driverFile, 796, fmt.Sprintf("failed to alloc %d bytes on host: CUDA_ERROR_OUT_OF_MEMORY: out of memory", n)))
		}},
		{"host/llama-cpu", func(d draw) Sample {
			n := d.between(4*gib, 200*gib)
			return hostSample(fmt.Sprintf("ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size %d\nalloc_tensor_range: failed to allocate CPU buffer of size %d\nllama_model_load: error loading model: unable to allocate CPU buffer\n", n, n))
		}},
		{"host/heap", func(d draw) Sample {
			n := 1000 + d.Float64()*7000
			return hostSample(d.one("Exception in thread \"main\" java.lang.OutOfMemoryError: Java heap space\n", fmt.Sprintf("[31877:0x5c1e0a0]    93811 ms: Mark-sweep %.1f (%.1f) -> %.1f (%.1f) MB, 1204.9 / 0.0 ms  (average mu = 0.101)\nFATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory\n", n, n+30, n-1, n+31)))
		}},
		{"innocent/healthy", func(d draw) Sample {
			s := innocentSample(readings(d) + progress(d, 3) + readings(d))
			s.Asks = true
			return s
		}},
		{"innocent/talk-of-memory", func(d draw) Sample {
			c := d.bigCard()
			s := innocentSample(fmt.Sprintf("Found %s with %.1f GiB, memory limit set to %.1f GiB\nreserving %d MiB for the cache, memory efficient attention is on\n%sTraceback (most recent call last):\n  File \"serve.py\", line %d, in load\nValueError: unknown model type 'abc'\n",
				c.name, float64(c.total)/gib, float64(c.total)*0.9/gib, 512+d.IntN(4096), readings(d), 10+d.IntN(300)))
			s.Asks = true
			return s
		}},
		{"innocent/download", func(d draw) Sample {
			s := innocentSample(fmt.Sprintf("Collecting torch\n  Downloading torch-2.4.0-cp311-cp311-manylinux1_x86_64.whl (%.1f MB)\nmodel.safetensors:  %d%%|###   | %.2fG/%.2fG [00:33<00:12, 110MB/s]\nrequests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub', port=443): Read timed out.\n", 700+d.Float64()*90, d.IntN(99), 1+d.Float64(), 4+d.Float64()))
			s.Asks = true
			return s
		}},
		{"innocent/disk-of-packages", func(d draw) Sample {
			need := 2000 + d.IntN(9000)
			return innocentSample(fmt.Sprintf("Filesystem      Size  Used Avail Use%% Mounted on\n/dev/sda1        98G   %dG     0 100%% /\nAfter this operation, %d MB of additional disk space will be used.\nERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", 97+d.IntN(2), need))
		}},
		{"innocent/illegal-address", func(d draw) Sample {
			return innocentSample(readings(d) + "RuntimeError: CUDA error: an illegal memory access was encountered\n")
		}},
		{"innocent/key-error", func(d draw) Sample {
			s := innocentSample(readings(d) + "Traceback (most recent call last):\n  File \"train.py\", line 88, in step\nKeyError: 'input_ids'\n")
			s.Asks = true
			return s
		}},
		{"innocent/disk", func(d draw) Sample {
			return innocentSample(readings(d) + fmt.Sprintf("OSError: [Errno 28] No space left on device: '/data/ckpt/step-%d.pt'\n", d.IntN(9000)))
		}},
		{"innocent/database-locks", func(d draw) Sample {
			return innocentSample(fmt.Sprintf("2024-05-11 10:22:31.112 UTC [%d] ERROR:  out of shared memory\n2024-05-11 10:22:31.112 UTC [%[1]d] HINT:  You might need to increase max_locks_per_transaction.\n", d.pid()))
		}},
		{"innocent/grpc", func(d draw) Sample {
			return innocentSample(fmt.Sprintf("grpc._channel._InactiveRpcError: RESOURCE_EXHAUSTED: Received message larger than max (%d vs. 4194304)\n", 4194305+d.IntN(90000000)))
		}},
		{"innocent/shared-memory-of-kernel", func(d draw) Sample {
			return innocentSample(fmt.Sprintf("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: %d, Hardware limit: 101376. Reducing block sizes or `num_stages` may help.\n", 101377+d.IntN(200000)))
		}},
		{"innocent/tenth-of-host", func(d draw) Sample {
			s := innocentSample(era2022.at("W", "xla/tsl/framework/cpu_allocator_impl.cc", 83, fmt.Sprintf("Allocation of %d exceeds 10%% of free system memory.", d.between(gib, 30*gib))) + progress(d, 4))
			s.Causes = append(s.Causes, idNonfatal)
			return s
		}},
		{"innocent/interrupt", func(d draw) Sample {
			s := innocentSample(readings(d) + "Traceback (most recent call last):\n  File \"train.py\", line 88, in step\nKeyboardInterrupt\n")
			s.Asks = true
			return s
		}},
		{"innocent/version", func(d draw) Sample {
			return innocentSample(era2025.at("E", dnnFile, 454, fmt.Sprintf("Loaded runtime CuDNN library: 8.%d.2 but source was compiled with: 8.9.4.  CuDNN library needs to have matching major version and equal or higher minor version.", d.IntN(8))))
		}},
	}
}

// hostSample is a log that the host's memory decides.
func hostSample(log string) Sample {
	return Sample{Log: log, Causes: []string{idHost}, Why: "the memory is the host's"}
}

// innocentSample is a log in which memory is not to blame.
func innocentSample(log string) Sample {
	return Sample{Log: log, Causes: []string{idNotMemory, idMismatch}, Why: "the failure has another reason, whatever the sizes around it"}
}

// readings are lines with sizes of a healthy training.
func readings(d draw) string {
	c := d.bigCard()
	s := ""
	for i := range 2 + d.IntN(4) {
		s += fmt.Sprintf("epoch %d | loss %.3f | gpu mem %s / %s\n", i, d.Float64(), d.size(d.percent(c.total, 20, 60)), d.size(c.total))
	}
	return s
}
