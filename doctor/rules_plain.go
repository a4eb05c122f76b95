package doctor

// Rules for texts that can have one reason only: refused settings, busy GPUs,
// missing libraries, the host, limiters.

import (
	"fmt"
	"math"
	"strings"
)

// busy says whether a fact is that the GPU cannot be had at all.
func busy(f *Fact) bool {
	return f.Code == "CUDA_ERROR_DEVICE_UNAVAILABLE" || strings.Contains(f.Text, "busy or unavailable")
}

// cudaLibraries are those without which a GPU program cannot start. Others,
// such as TensorRT's libnvinfer, are missed without harm.
func cudaLibrary(name string) bool {
	if name == "" {
		return true // the message is about cuDNN
	}
	for _, l := range []string{"libcudnn", "libcublas", "libcusolver", "libcusparse", "libcufft", "libcudart", "libcurand", "libnccl", "libnvrtc", "zlibwapi"} {
		if strings.Contains(strings.ToLower(name), l) {
			return true
		}
	}
	return false
}

var plainRules = []rule{
	{
		name: "the setting is refused in the framework's own words", cause: BadSetting,
		seen:   "a ValueError, an INVALID_ARGUMENT or the like that names a setting",
		not:    "a refusal of memory: the setting is then a second finding",
		source: "jaxlib/xla_client.py; XLA's PJRT options; PyTorch's allocator config; trymirai/lalamo#311",
		test: func(e *evidence) *finding {
			if f := e.pick(Setting, func(f *Fact) bool { return !f.Nonfatal }); f != nil {
				return shown(cureSetting(e, f), quote(f, "the setting could not be used; the program never came to ask for memory with it"))
			}
			if f := e.pick(Setting, nil); f != nil && !e.fails(failures...) && !e.fails(CUDAError) {
				return shown(cureSetting(e, f), quote(f, "the setting could not be read; the program goes on as if it were not there"))
			}
			return nil
		},
	},
	{
		name: "no virtual memory management", cause: VMMMissing,
		seen:   "\"does not support CUDA Virtual Memory Management\"",
		source: "openxla/xla#49252, #42028",
		test: func(e *evidence) *finding {
			f := e.pick(VMMUnsupported, nil)
			if f == nil {
				return nil
			}
			return shown(cureVMM, quote(f, "this release of XLA allocates with cuMemCreate, and the GPU, or the profile of its virtual GPU, cannot"))
		},
	},
	{
		name: "the GPU is busy", cause: DeviceBusy,
		seen:   "CUDA_ERROR_DEVICE_UNAVAILABLE",
		source: "jax-ml/jax#23770; CUDA driver API, CUresult 46",
		test: func(e *evidence) *finding {
			for _, k := range []Kind{Context, Backend, CUDAError} {
				if f := e.pick(k, busy); f != nil {
					return shown(cureBusy, quote(f, "the driver does not give the GPU at all: no amount is asked for yet"))
				}
			}
			return nil
		},
	},
	{
		name: "a library is of another version", cause: LibraryMismatched,
		seen:   "the versions of the library that is loaded and of the one it was built for",
		source: "jax-ml/jax#14480; cuda_dnn.cc",
		test: func(e *evidence) *finding {
			f := e.pick(LibraryMismatch, nil)
			if f == nil {
				return nil
			}
			reading := "version " + f.Version + " is loaded, and " + f.Value + " is what the program was built for"
			if f.Name == "image" {
				reading = "the build has no code that this GPU can run"
			}
			return shown(cureLibrary(e), quote(f, reading))
		},
	},
	{
		name: "a library is missing", cause: LibraryMismatched,
		seen:   "a CUDA library that could not be loaded",
		not:    "a failure of memory in a library that was loaded",
		source: "jax-ml/jax#16078; the dynamic loader's own words",
		test: func(e *evidence) *finding {
			f := e.first(LibraryMissing, func(f *Fact) bool { return cudaLibrary(f.Name) })
			if f == nil || e.fails(refusals...) {
				return nil
			}
			name := f.Name
			if name == "" {
				name = "cuDNN"
			}
			return shown(cureLibrary(e), quote(f, name+" is not where the loader looks; no amount of memory starts it"))
		},
	},
	{
		name: "compiled code for another GPU", cause: LibraryMismatched,
		seen:   "a module that could not be loaded, with a status that is not that of memory",
		source: "CUDA driver API, CUresult 200, 209, 218",
		test: func(e *evidence) *finding {
			f := e.pick(CUBIN, func(f *Fact) bool { return f.Code != "" && !isOOM(f.Code) && strings.HasPrefix(f.Code, "CUDA_") })
			if f == nil {
				return nil
			}
			return shown(cureLibrary(e), quote(f, "the driver's status is "+f.Code+", which is about the code and not about memory"))
		},
	},
	{
		name: "another failure", cause: NotMemory,
		seen:   "a failure that shares words with memory: a wrong address, a full disk, a kernel's shared memory, a message's size",
		not:    "a refusal of memory",
		source: "CUDA driver API, CUresult",
		test: func(e *evidence) *finding {
			f := e.pick(OtherFailure, nil)
			if f == nil || e.fails(refusals...) || e.fails(CUDAError) {
				return nil
			}
			r := shown(cureOther, quote(f, "the failure is "+f.Name+", whatever is free"))
			r.verdict = VerdictNotMemory
			return r
		},
	},
	{
		name: "NCCL fails for another reason", cause: NotMemory,
		seen:   "NCCL's message with a CUDA error that is not out of memory",
		source: "NCCL's src/debug.cc",
		test: func(e *evidence) *finding {
			f := e.pick(NCCL, func(f *Fact) bool { return f.Value != "" && strings.Contains(f.Text, "'"+f.Value) && !isOOM(f.Value) })
			if f == nil || e.pick(NCCL, ncclMemory) != nil || e.fails(refusals...) {
				return nil
			}
			r := shown(cureOther, quote(f, "NCCL's error is '"+f.Value+"'"))
			r.verdict = VerdictNotMemory
			return r
		},
	},
}

// outOfMemory says whether a CUDA error is that of memory.
func outOfMemory(f *Fact) bool { return isOOM(f.Code) || isOOM(f.Value) }

// doing is the last line of a traceback, of those before a failure, that says what
// was being done.
func (e *evidence) doing(what string, f *Fact) *Fact {
	if f == nil {
		return nil
	}
	return e.pick(Doing, func(d *Fact) bool {
		return d.Name == what && d.Line <= f.Line && d.Line+60 > f.Line && d.From == f.From
	})
}

// ncclMemory says whether a line of NCCL is about memory of the GPU.
func ncclMemory(f *Fact) bool {
	return isOOM(f.Value) || f.Tells(HasWant) || isOOM(f.Text)
}

var hostRules = []rule{
	{
		name: "the pool of pinned memory", cause: HostMemory,
		seen:   "an allocator with host in its name that ran out",
		source: "tensorflow/tensorflow#11915",
		test: func(e *evidence) *finding {
			f := e.pick(BFCRefused, func(f *Fact) bool { return isHost(f.Allocator) })
			if f == nil {
				f = e.pick(TFOOM, func(f *Fact) bool { return isHost(f.Allocator) })
			}
			if f == nil {
				return nil
			}
			return shown(cureHostPool(e), quote(f, "the allocator "+f.Allocator+" is that of the host's memory; the GPU is not asked"))
		},
	},
	{
		name: "pinned memory", cause: HostMemory,
		seen:   "memory on the host that the driver did not give",
		source: "tensorflow/tensorflow#11915; microsoft/WSL#8447; cuda_driver.cc",
		test: func(e *evidence) *finding {
			f := e.pick(HostPinned, nil)
			if f == nil || f.Nonfatal {
				return nil
			}
			reading := "the memory asked for is the host's"
			if f.Tells(HasWant) {
				reading = human(f.Want) + " of the host's memory were asked for, not of the GPU's"
			}
			return shown(cureHostPool(e), quote(f, reading))
		},
	},
	{
		name: "pinning host memory", cause: HostMemory,
		seen:   "a CUDA error out of memory in a call that pins memory",
		source: "docker/for-win#14104; CUDA on WSL's limit on pinned memory",
		test: func(e *evidence) *finding {
			f := e.pick(CUDAError, outOfMemory)
			d := e.doing("pinned", f)
			if d == nil || e.fails(refusals...) {
				return nil
			}
			return shown(cureHostPool(e), quote(d, "host memory was to be pinned"), quote(f, "and the driver refused it: the GPU's memory was not asked for"))
		},
	},
	{
		name: "a full /dev/shm", cause: HostMemory,
		seen:   "a worker process that died on the memory that it shares with the others",
		source: "pytorch/pytorch#5040; docker's --shm-size",
		test: func(e *evidence) *finding {
			f := e.pick(HostShared, nil)
			if f == nil || e.fails(refusals...) {
				return nil
			}
			return shown(cureShared, quote(f, "processes hand tensors to each other in /dev/shm, which is memory of the host with a limit: 64 MiB in a container of Docker by default"))
		},
	},
	{
		name: "the kernel killed it", cause: HostMemory,
		seen:   "the kernel's line about a killed process, a container's OOMKilled",
		not:    "a mere \"Killed\", which anybody's SIGKILL gives",
		source: "google-research/jax3d#121; Linux mm/oom_kill.c",
		test: func(e *evidence) *finding {
			if f := e.pick(HostOOMKilled, func(f *Fact) bool { return f.Value != "SIGKILL" }); f != nil {
				reading := "the kernel killed the process because the machine had no memory left"
				if f.Value == "CONSTRAINT_MEMCG" || strings.Contains(f.Text, "cgroup") || strings.Contains(f.Text, "OOMKilled") {
					reading = "the kernel killed the process at its container's limit of host memory"
				}
				if f.Tells(HasInUse) {
					reading += "; it had " + human(f.InUse)
				}
				return shown(cureHostKilled, quote(f, reading))
			}
			f := e.pick(HostOOMKilled, nil)
			if f == nil || e.fails(failures...) {
				return nil
			}
			return fits(cureHostKilled, "dmesg | grep -i -A2 'killed process'", need(needKernelLog), quote(f, "somebody sent SIGKILL: most often the kernel, for lack of host memory")).
				with("the program was killed from outside; it did not fail by itself")
		},
	},
	{
		name: "the kernel's driver", cause: HostMemory,
		seen:   "NVRM ... NV_ERR_NO_MEMORY in the kernel's log",
		source: "NVIDIA/open-gpu-kernel-modules#1358",
		test: func(e *evidence) *finding {
			f := e.pick(HostDriver, nil)
			if f == nil {
				return nil
			}
			return shown(cureHostKilled, quote(f, "the driver's part in the kernel could not get pages of the host"))
		},
	},
	{
		name: "the host's own allocator", cause: HostMemory,
		seen:   "MemoryError, std::bad_alloc, DefaultCPUAllocator",
		not:    "a refusal of GPU memory, or RMM, which throws std::bad_alloc too",
		source: "NumPy's _ArrayMemoryError; PyTorch's alloc_cpu.cpp",
		test: func(e *evidence) *finding {
			f := e.pick(HostRefused, nil)
			if f == nil || e.has(RMMOOM) || e.fails(refusals...) {
				return nil
			}
			reading := "the request was for the host's memory"
			if f.Tells(HasWant) {
				reading = human(f.Want) + " of the host's memory were asked for"
			}
			return shown(cureHostKilled, quote(f, reading))
		},
	},
}

var limiterRules = []rule{
	{
		name: "a count below zero", cause: LimiterBug,
		seen:   "a limiter's figure just below 2^64",
		source: "Project-HAMi/HAMi#1181; Project-HAMi/HAMi-core#100",
		test: func(e *evidence) *finding {
			f := e.pick(Limiter, func(f *Fact) bool { return f.Tells(HasInUse) && f.InUse > math.MaxInt64 })
			if f == nil {
				return nil
			}
			return shown(cureLimiterBug, quote(f, fmt.Sprintf("%d is %s below 2^64: a count that went below zero, not a size", f.InUse, human(-f.InUse))))
		},
	},
	{
		name: "HAMi's quota", cause: ExternalQuota,
		seen:   "\"Device N OOM A / B\" with A above B",
		source: "Project-HAMi/HAMi#1003; HAMi-core's allocator.c",
		test: func(e *evidence) *finding {
			f := e.pick(Limiter, func(f *Fact) bool { return f.Tells(HasInUse|HasLimit) && f.InUse <= math.MaxInt64 })
			if f == nil {
				return nil
			}
			return shown(cureQuota(e, f.Limit), quote(f, fmt.Sprintf("with this request %s would be in use, %s above the quota of %s", human(f.InUse), human(f.InUse-min(f.InUse, f.Limit)), human(f.Limit))))
		},
	},
	{
		name: "nvshare's view", cause: ExternalQuota,
		seen:   "nvshare shows a program less than the driver has, and a request",
		source: "grgalex/nvshare#26",
		test: func(e *evidence) *finding {
			seen := e.pick(Limiter, func(f *Fact) bool { return f.Name == "nvshare" && f.Value == "shown" })
			want := e.pick(Limiter, func(f *Fact) bool { return f.Name == "nvshare" && f.Tells(HasWant) })
			if seen == nil || want == nil {
				return nil
			}
			q := []Evidence{quote(seen, "nvshare lets the program see "+human(seen.Free)+" free"), quote(want, human(want.Want)+" are asked for")}
			if real := e.pick(Limiter, func(f *Fact) bool { return f.Name == "nvshare" && f.Value == "real" }); real != nil {
				q = append(q, quote(real, "the driver has "+human(real.Free)+" free"))
			}
			if want.Want > seen.Free {
				return shown(cureQuota(e, 0), q...)
			}
			return fits(cureQuota(e, 0), "run it without nvshare: unset LD_PRELOAD", nil, q...)
		},
	},
}
