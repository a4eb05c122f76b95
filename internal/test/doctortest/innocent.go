// Cases that are no failure of memory, or of which the text tells too little:
// warnings, wrong settings, busy devices, other errors with the word memory in them.
package doctortest

import (
	"fmt"
	"math"
)

// warningCases are lines that look like the failure and are not.
func warningCases() []Case {
	var cases []Case
	for i, c := range []card{rtx2070, t4, rtx4090, h100} {
		e := eras[i]
		mild := "but this may mean that there could be performance gains if more memory were available."
		if i%2 == 0 {
			mild = "but may mean that there could be performance gains if more memory were available."
		}
		end := ""
		if e == era2026 {
			end = " from the lower end"
		}
		text := fmt.Sprintf("Allocator (GPU_0_bfc) ran out of memory trying to allocate %s%s with freed_by_count=0. The caller indicates that this is not a failure, %s", xla(part(c.total, 40)), end, mild)
		line := e.at("W", bfcFile, 310, text)
		cases = append(cases, verdict(VerdictNonfatal, "optional-"+c.key, line+line+"step 400: loss 1.204, 3.1 it/s\nstep 500: loss 1.187, 3.1 it/s\n",
			"the caller said that it can do without, and the program went on", []string{"nonfatal_warning"}, text))
		text = fmt.Sprintf("Allocation of %d exceeds 10%% of free system memory.", part(c.total, 30))
		cases = append(cases, verdict(VerdictNonfatal, "tenth-"+c.key, e.at("W", "tensorflow/tsl/framework/cpu_allocator_impl.cc", 83, text)+"Epoch 2/10 - loss: 0.4410\n",
			"it is a warning about the size of a request that was served", []string{"nonfatal_warning"}, text))
	}
	return cases
}

// settingCases are variables that cannot be read, and devices that cannot do what is asked.
func settingCases() []Case {
	var cases []Case
	for i, text := range []string{
		"ValueError: XLA_CLIENT_MEM_FRACTION is specified together with XLA_PYTHON_CLIENT_MEM_FRACTION. Remove the latter one, it is deprecated.",
		`ValueError: XLA_PYTHON_CLIENT_ALLOCATOR env var must be "default", "platform", "bfc", or "cuda_async", got "cuda_malloc_async"`,
		`ValueError: XLA_PYTHON_CLIENT_ALLOCATOR env var must be one of "default", "platform", "bfc", "cuda_async", "vmm", "address", got "async"`,
		"INVALID_ARGUMENT: Option passed to PJRT_Client_Create with name memory_fraction has type index 0 but expected type index is 4",
		"UNIMPLEMENTED: Allocator BFC not supported for PJRT GPU plugin.",
		"INVALID_ARGUMENT: Unexpected option name passed to PJRT_Client_Create: mem_fraction",
		`The TF_FORCE_GPU_ALLOW_GROWTH environment variable is set but could not be parsed: "1".`,
	} {
		cases = append(cases, cause("bad_setting", fmt.Sprint("setting-", i), text+"\n", "the text names the setting that could not be read; no amount of memory is in question", text))
	}
	busy := "CUDA_ERROR_DEVICE_UNAVAILABLE: CUDA-capable device(s) is/are busy or unavailable"
	for _, e := range eras[1:] {
		cases = append(cases, mend("device_busy", "context-"+string(e), e.at("W", "xla/service/platform_util.cc", 199, "unable to create StreamExecutor for CUDA:0: failed initializing StreamExecutor for CUDA device ordinal 0: INTERNAL: failed call to cuDevicePrimaryCtxRetain: "+busy),
			"the driver's code is that the device is not available, as in exclusive mode, and no size is told", busy))
	}
	busy = "CUDA error: all CUDA-capable devices are busy or unavailable"
	cases = append(cases, mend("device_busy", "torch", "RuntimeError: "+busy+"\n", "the driver's code is that the device is not available", busy))
	for i := range 3 {
		text := fmt.Sprintf("Device %d does not support CUDA Virtual Memory Management", i)
		cases = append(cases, cause("vmm_unsupported", fmt.Sprint("device-", i), []string{"jax.errors.JaxRuntimeError: UNIMPLEMENTED: ", "RuntimeError: Unable to initialize backend 'cuda': INTERNAL: ", "jaxlib._jax.XlaRuntimeError: INTERNAL: "}[i]+text+"\n",
			"the device or its profile lacks what this release allocates with", text))
	}
	text := "CUDA error: no kernel image is available for execution on the device"
	return append(cases, mend(idMismatch, "torch-image", "RuntimeError: "+text+"\n", "the build has no code for this GPU", text))
}

// notMemoryCases are errors that only share words with a failure of memory.
func notMemoryCases() []Case {
	var cases []Case
	for i, v := range [][2]string{
		{"CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered", "a wrong address is a fault of a program, whatever is free"},
		{"CUDA error: an illegal memory access was encountered", "a wrong address is a fault of a program, whatever is free"},
		{"CUDA error: device-side assert triggered", "a check in a kernel failed"},
		{"OSError: [Errno 28] No space left on device", "the device is a disk"},
		{"out of resource: shared memory, Required: 163840, Hardware limit: 101376", "shared memory is a kernel's scratch of some hundred KiB, not the card's memory"},
		{"RESOURCE_EXHAUSTED: Received message larger than max (5242880 vs. 4194304)", "the limit is that of a message between hosts"},
		{"NCCL WARN Cuda failure 'invalid argument'", "NCCL's code is not that of memory"},
		{"CUDA_ERROR_LAUNCH_TIMEOUT: the launch timed out and was terminated", "a kernel ran too long"},
	} {
		cases = append(cases, verdict(VerdictNotMemory, fmt.Sprint("words-", i), "Traceback (most recent call last):\n  File \"train.py\", line 88, in step\nRuntimeError: "+v[0]+"\n", v[1], []string{idNotMemory}, v[0]))
	}
	return cases
}

// unknownCases are true failures whose text does not tell why.
func unknownCases() []Case {
	var cases []Case
	for i, c := range []card{rtx2070, t4, rtx4090, h100} {
		e := eras[i]
		want := part(c.total, 21)
		log, quotes := ladder(e, want, 5)
		cases = append(cases, verdict(VerdictUnknown, "ladder-"+c.key, log,
			"each request is nine tenths of the one before, so the driver had less than was wanted; who held it is not told", nil, quotes...))
		p := pool{want: want}
		text := fmt.Sprintf("Allocator (GPU_0_bfc) ran out of memory trying to allocate %s with freed_by_count=0. The caller indicates that this is not a failure,", xla(want+want/4))
		cases = append(cases, verdict(VerdictUnknown, "warning-then-failure-"+c.key,
			e.at("W", bfcFile, 310, text+" but this may mean that there could be performance gains if more memory were available.")+p.exception(e),
			"the last line is the failure, and neither the pool nor the card is told", nil, "Out of memory while trying to allocate"))
		text = "Dst tensor is not initialized."
		cases = append(cases, verdict(VerdictUnknown, "copy-"+c.key, "tensorflow.python.framework.errors_impl.InternalError: "+text+"\n"+
			fmt.Sprintf("\t [[Node: layer%d/kernel/Assign]]\n", i),
			"a copy found no room on the device; how full it is and with whose memory is not told", nil, text))
		tiny := pool{limit: 480 * mib << i, inUse: 480*mib<<i - 209356}
		cases = append(cases, verdict(VerdictUnknown, fmt.Sprint("full-pool-", i), e.at("I", bfcFile, 696, "Sum Total of in-use chunks: "+xla(tiny.inUse))+e.at("I", bfcFile, 698, "Stats: ")+tiny.stats(era2018),
			"the pool is full at its limit; why the limit is that low, and what failed, is not told", nil, lines(tiny.stats(era2018))[:2]...))
	}
	text := fmt.Sprintf("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY; total memory reported: %d", uint64(math.MaxUint64-83886079))
	return append(cases, verdict(VerdictUnknown, "context-underflow", text+"\n", "a total just below 2^64 is no size, and nothing else is told", nil, text))
}
