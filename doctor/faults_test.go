package doctor

import (
	"slices"
	"strings"
	"testing"
)

// TestPastedLogs: what a log's words and numbers decide, and what they leave open.
func TestPastedLogs(t *testing.T) {
	const free = "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.98 GiB of which 17.21 GiB is free. Of the allocated memory 6.01 GiB is allocated by PyTorch, and 112.00 MiB is reserved by PyTorch but unallocated.\n"
	const ladder = "E external/xla/xla/stream_executor/cuda/cuda_driver.cc:1032] failed to allocate 29.57GiB (31750881280 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n" +
		"E external/xla/xla/stream_executor/cuda/cuda_driver.cc:1032] failed to allocate 26.61GiB (28575793152 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n" +
		"E external/xla/xla/stream_executor/cuda/cuda_driver.cc:1032] failed to allocate 23.95GiB (25718212608 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY: out of memory\n"
	for _, tt := range []struct {
		name, log, state string
		verdict          Verdict
		first            CauseID
		says, not        string // in the answer
	}{
		{"use above four times the card is no evidence", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.21 GiB is free. Process 4242 has 22.40 GiB memory in use. Of the allocated memory 170212.01 GiB is allocated by PyTorch.\n", "",
			VerdictNeeds, ProgramTooBig, "who holds memory", "170212"},
		{"use of seven times the card is no evidence", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23.65 GiB of which 1.21 GiB is free. Process 4242 has 22.40 GiB memory in use. Of the allocated memory 170.21 GiB is allocated by PyTorch.\n", "",
			VerdictNeeds, ProgramTooBig, "who holds memory", "170.21"},
		{"the locks of a database are no memory", "2024-05-11 10:22:31.112 UTC [4211] ERROR:  out of shared memory\n2024-05-11 10:22:31.112 UTC [4211] HINT:  You might need to increase max_locks_per_transaction.\n", "",
			VerdictNotMemory, NotMemory, "", "shm-size"},
		{"shared memory alone decides nothing", "ERROR:  out of shared memory\n", "", VerdictUnknown, "", "", "shm-size"},
		{"TensorFlow's allocator of the host", "ResourceExhaustedError: OOM when allocating tensor with shape[128,64,512,512] and type float on /job:localhost/replica:0/task:0/device:CPU:0 by allocator cpu\n", "",
			VerdictCause, HostMemory, "8 GiB of the host's memory", ""},
		{"a full machine is no container", "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,task_memcg=/user.slice,task=python3,pid=4242,uid=1000\nOut of memory: Killed process 4242 (python3) total-vm:48211344kB, anon-rss:31203344kB\n", "",
			VerdictCause, HostMemory, "the whole machine was full", "docker"},
		{"a launcher's word for the kernel's signal", "[launch.py:325:sigkill_handler] main process exits with return code = -9\n", "",
			VerdictNeeds, HostMemory, "", ""},
		{"a few segments' ends are no holes", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 2.00 GiB total capacity; 1.71 GiB already allocated; 0 bytes free; 1.75 GiB reserved in total by PyTorch)\n", "", VerdictCause, ProgramTooBig, "", "expandable_segments"},
		{"an NPU's total is not a Jetson's", "RuntimeError: NPU out of memory. Tried to allocate 4.00 GiB (NPU 0; 61.27 GiB total capacity; 57.31 GiB already allocated; 57.31 GiB current active; 1.52 GiB free; 58.02 GiB reserved in total by PyTorch)\n", "", VerdictCause, ProgramTooBig, "", "Jetson"},
		{"an executor's memory of the CPU", "com.nvidia.spark.rapids.jni.CpuRetryOOM: CPU OutOfMemory\n", "", VerdictCause, HostMemory, "",
			"nvidia-smi"},
		{"AMD's GPUs have no limiter of CUDA", free, "", VerdictNeeds, HostMemory, "rocm-smi", "MPS_PINNED"},
		{"a list without anybody does not say who it was",
			"XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 12884901888 bytes. Memory usage: 2147483648 bytes free, 42297262080 bytes total.\n",
			`{"version":1,"devices":[{"index":0,"total_bytes":42297262080,"processes":[]}]}`, VerdictEither, ProgramTooBig, "", ""},
		{"a pool that got less has candidates", ladder + "I external/xla/xla/pjrt/gpu/gpu_helpers.cc:114] XLA backend allocating 23146391552 bytes on device 0 for BFCAllocator.\n", "",
			VerdictNeeds, MultiProcess, "down to 23.95 GiB", ""},
		{"a pool that got nothing has not", ladder, "", VerdictUnknown, "", "lines 1 to 3 are one request", ""},
		{"a card is known by its name", "GPU name: Tesla T4\nCUDA out of memory. Tried to allocate 33.34 GiB\n", "", VerdictCause,
			ProgramTooBig, "15 GiB", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, tt.state)
			var all strings.Builder
			all.WriteString(inWords(d))
			for _, c := range d.Causes {
				all.WriteString(strings.Join(c.Steps, "\n"))
			}
			if first := append(ids(d), "")[0]; d.Verdict != tt.verdict || first != string(tt.first) {
				t.Errorf("%s %s, want %s %s", d.Verdict, first, tt.verdict, tt.first)
			}
			if !strings.Contains(all.String(), tt.says) || tt.not != "" && strings.Contains(all.String(), tt.not) {
				t.Errorf("%s\nwant %q, and not %q", all.String(), tt.says, tt.not)
			}
		})
	}
}

// TestBesideIsOfTheGPUThatFailed: of a snapshot of several GPUs that one counts which the log
// names.
func TestBesideIsOfTheGPUThatFailed(t *testing.T) {
	b := &Beside{Most: 20 << 30, pools: map[int]uint64{0: 20 << 30, 1: 1 << 30}}
	for gpu, want := range map[int]uint64{0: 20 << 30, 1: 1 << 30, 7: 20 << 30, -1: 20 << 30} {
		if got := b.On(gpu); got != want {
			t.Errorf("GPU %d: %d bytes, want %d", gpu, got, want)
		}
	}
	log := "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 23.65 GiB of which 0.20 GiB is free.\n"
	d, err := DiagnoseWith(strings.NewReader(log), nil, b)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(ids(d), string(DeviceOccupied)) {
		t.Errorf("%s", inWords(d))
	}
}
