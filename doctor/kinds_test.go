package doctor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestInnocents: each status of CUDA that is no want of memory, in each of its
// spellings, is one fact and never a CUDAError.
func TestInnocents(t *testing.T) {
	check := func(t *testing.T, kind Kind, name, code, runtime, words string) {
		t.Helper()
		for _, line := range []string{
			code, runtime, words, strings.ToUpper(words[:1]) + words[1:],
			"RuntimeError: CUDA error: " + words,
			"INTERNAL: failed to synchronize: " + code + ": " + words,
			runtime + " (" + words + ")",
			"CUDA call failed with " + runtime + ": " + words + " at file.cu:7",
			"E0101 01:02:03.456789 12 driver.cc:9] could not wait: " + code,
		} {
			got := facts(t, line)
			if len(got) != 1 || got[0].Kind != kind || got[0].Name != name || got[0].Code != code || got[0].Nonfatal {
				t.Errorf("%q: %+v", line, got)
			}
		}
		for _, line := range []string{code + "_X", runtime + "X", code[:len(code)-1]} {
			if got := facts(t, line); len(got) > 0 && got[0].Kind == kind && got[0].Code == code {
				t.Errorf("%q: %+v", line, got)
			}
		}
	}
	for _, f := range innocents {
		t.Run(f.code, func(t *testing.T) { check(t, OtherFailure, f.name, f.code, f.runtime, f.words) })
	}
	for _, f := range images {
		t.Run(f.code, func(t *testing.T) { check(t, LibraryMismatch, "image", f.code, f.runtime, f.words) })
	}
}

// kindLines are further wordings of some kinds, and what only looks like them.
// Line and Text are left out.
var kindLines = []struct {
	name, line string
	want       Fact // Kind "": none of the kinds below
}{
	{"a full /tmp", "tar: write error: No space left on device", Fact{Kind: OtherFailure, Device: -1, Name: "a full disk", Code: "ENOSPC"}},
	{"thread-local storage", "ImportError: libgomp.so.1: cannot allocate memory in static TLS block", Fact{Kind: OtherFailure, Device: -1, Name: "thread-local storage"}},
	{"an index", "../aten/src/ATen/native/cuda/Indexing.cu:1422: indexSelectLargeIndex: block: [7,0,0], thread: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed.",
		Fact{Kind: OtherFailure, Device: -1, Name: "an assertion", Framework: "torch"}},
	{"a sent message", "Sent message larger than max (5000000 vs. 4194304)", Fact{Kind: OtherFailure, Device: -1, Name: "a gRPC message", Code: "RESOURCE_EXHAUSTED", Want: 5000000, Limit: 4194304, Has: HasWant | HasLimit}},
	{"a message, without numbers", "Received message larger than max", Fact{Kind: OtherFailure, Device: -1, Name: "a gRPC message", Code: "RESOURCE_EXHAUSTED"}},
	{"shared memory, without numbers", "Shared memory size limit exceeded", Fact{Kind: OtherFailure, Device: -1, Name: "shared memory", Framework: "xla"}},
	{"registers of triton", "triton.runtime.errors.OutOfResources: out of resource: threads, Required: 2048, Hardware limit: 1024.",
		Fact{Kind: OtherFailure, Device: -1, Name: "shared memory", Value: "threads", Framework: "triton", Want: 2048, Limit: 1024, Has: HasWant | HasLimit}},
	{"a resource of others", "the job is out of resource: none", Fact{}},

	{"host warning, up to 2.1", "Allocation of 805306368 exceeds 10% of system memory.", Fact{Kind: HostWarning, Nonfatal: true, Device: -1, Want: 805306368, Has: HasWant, Value: "10", Framework: "tensorflow"}},
	{"host warning with its prefix", "2031-02-03 04:05:06.789012: W tensorflow/core/framework/cpu_allocator_impl.cc:82] Allocation of 7 exceeds 20% of free system memory.",
		Fact{Kind: HostWarning, Level: "W", Nonfatal: true, Device: -1, Want: 7, Has: HasWant, Value: "20", Framework: "tensorflow"}},
	{"a part of something else", "Allocation of 7 exceeds 20% of the quota.", Fact{}},

	{"backends, new path", "    jax.extend.backend.clear_backends()", Fact{Kind: BackendCleared, Device: -1, Framework: "jax"}},
	{"backends, inner path", "  File \"a.py\", line 3, in f: xla_bridge._clear_backends()", Fact{Kind: BackendCleared, Device: -1, Framework: "jax"}},
	{"backends, the name alone", "from jax.extend.backend import clear_backends", Fact{}},

	{"reading, reserved", "torch.cuda.memory_reserved(0)=2147483648", Fact{Kind: Reading, Device: -1, Name: "memory_reserved", InUse: 2 * gib, Has: HasInUse, Framework: "torch"}},
	{"reading, the most reserved", "max_memory_reserved: 2.0 GB", Fact{Kind: Reading, Device: -1, Name: "max_memory_reserved", InUse: 2 * gib, Has: HasInUse, Framework: "torch"}},
	{"reading, of a device by name", "memory_allocated('cuda:1'): 512.0MB", Fact{Kind: Reading, Device: -1, Name: "memory_allocated", InUse: 512 * mib, Has: HasInUse, Framework: "torch"}},
	{"reading, the peak of jax", "peak_bytes_in_use = 123456789", Fact{Kind: Reading, Device: -1, Name: "peak_bytes_in_use", InUse: 123456789, Has: HasInUse, Framework: "jax"}},
	{"reading, cuda", "CUDA memory allocated: 1.5 GiB", Fact{Kind: Reading, Device: -1, Name: "CUDA memory allocated", InUse: 3 * gib / 2, Has: HasInUse}},
	{"reading, in brackets", "gpu_memory (reserved): 1.5 GiB", Fact{Kind: Reading, Device: -1, Name: "gpu_memory", InUse: 3 * gib / 2, Has: HasInUse}},
	{"reading of an iteration", "iter 12 | loss 0.5 | max memory: 1024 MiB", Fact{Kind: Reading, Device: -1, Name: "max memory", InUse: gib, Has: HasInUse}},
	{"reading of a batch", "batch=7 memory=2G", Fact{Kind: Reading, Device: -1, Name: "memory", InUse: 2 * gib, Has: HasInUse}},
	{"a reading without a unit", "GPU memory: 12", Fact{}},
	{"a count", "memory_allocated: 12", Fact{}},
	{"a longer name", "my_bytes_in_use=123456789", Fact{}},
	{"memory of no step", "memory: 2 GiB", Fact{}},
	{"a function's name", "def memory_allocated(device):", Fact{}},

	{"a name with its index", "Using device cuda:3: Tesla V100-SXM2-32GB", Fact{Kind: DeviceName, Device: 3, Name: "Tesla V100-SXM2-32GB"}},
	{"a name of python", `'device_name': 'NVIDIA A100-SXM4-80GB', 'n': 8`, Fact{Kind: DeviceName, Device: -1, Name: "NVIDIA A100-SXM4-80GB"}},
	{"a name in a form", "- GPU model: NVIDIA GeForce RTX 4090", Fact{Kind: DeviceName, Device: -1, Name: "NVIDIA GeForce RTX 4090"}},
	{"a name of ollama", `msg="inference compute" id=GPU-1 name="NVIDIA GeForce RTX 3060"`, Fact{Kind: DeviceName, Device: -1, Name: "NVIDIA GeForce RTX 3060"}},
	{"a name of tensorflow 2", "device: 2, name: NVIDIA A10, pci bus id: 0000:1e:00.0, compute capability: 8.6", Fact{Kind: DeviceName, Device: 2, Name: "NVIDIA A10", Framework: "tensorflow"}},
	{"a name of ggml without more", "  Device 1: Tesla P40, VMM: yes", Fact{Kind: DeviceName, Device: 1, Name: "Tesla P40", Framework: "llama.cpp"}},
	{"a device without a name", "Using device 0: the first", Fact{}},
	{"a device of another kind", "Device: cpu", Fact{}},
	{"somebody's name", "name: The model, trained", Fact{}},
}

func TestKindLines(t *testing.T) {
	kinds := map[Kind]bool{OtherFailure: true, HostWarning: true, BackendCleared: true, Reading: true, DeviceName: true}
	for _, tt := range kindLines {
		t.Run(tt.name, func(t *testing.T) {
			var want, got []Fact
			if tt.want.Kind != "" {
				want = append(want, tt.want)
			}
			for _, f := range facts(t, tt.line) {
				if kinds[f.Kind] {
					f.Line, f.Text = 0, ""
					got = append(got, f)
				}
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}
