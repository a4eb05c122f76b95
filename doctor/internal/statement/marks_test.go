package statement

import (
	"slices"
	"strings"
	"testing"
)

// TestMarks: what a program prints, and the paths of its files, show it; the names of hosts,
// containers and folders do not.
func TestMarks(t *testing.T) {
	for _, tt := range []struct{ line, shows string }{
		{"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.", "vllm"},
		{`  File "/usr/lib/python3.12/site-packages/vllm/v1/engine/core.py", line 9, in f: out of memory`, "vllm"},
		{"vllm.v1.engine.exceptions.EngineDeadError: CUDA out of memory", "vllm"},
		{"INFO 05-01 vllm serve ran out of memory", "vllm"},
		{"vllm==0.8.5 out of memory", "vllm"},
		{"vllm-worker-0 kernel: out of memory", ""},
		{"root@vllm:/work# CUDA error: out of memory", ""},
		{"/data/vllm/run.log: CUDA error: out of memory", ""},
		{"pod ml/vllm-7f9c4 CUDA error: out of memory", ""},
		{"pod ml/sglang-7f9c4: CUDA error: out of memory", ""},
		{"ValueError: Not enough memory. Please try to increase --mem-fraction-static.", "sglang"},
		{"RuntimeError: alloc_req_slots runs out of memory. Please set a smaller number for `--max-running-requests`. ", "sglang"},
		{"docker: my-ollama-1 out of memory", ""},
		{"ollama[812]: cudaMalloc failed: out of memory", "ollama llama.cpp"},
		{"RuntimeError: Not enough memory to handle 4096 prefill tokens. You need to decrease `--max-batch-prefill-tokens`", "tgi"},
		{"RuntimeError: Executor creation failed due to insufficient GPU memory.", "trtllm"},
		{`  File "/usr/lib/site-packages/deepspeed/runtime/engine.py", line 1, in f: out of memory`, "deepspeed"},
		{"/mnt/deepspeed-models/a.bin: out of memory", ""},
		{`  File "/opt/site-packages/torch/distributed/fsdp/_flat_param.py", line 1: out of memory`, "fsdp torch"},
		{"lightning struck: out of memory", ""},
		{`  File "/opt/site-packages/lightning/pytorch/trainer/call.py", line 1: out of memory`, "lightning torch"},
		{"RuntimeError: CUDA failed with error out of memory", "ctranslate2"},
		{"RuntimeError: Not enough memory, use lower resolution (max approx. 832x832). Need: 5.1GB free, Have:3.9GB free", "a1111"},
		{"F0812 10:00:00.000000  1234 syncedmem.cpp:56] Check failed: error == cudaSuccess (2 vs. 0)  out of memory", "caffe"},
		{"clCreateBuffer failed: CL_MEM_OBJECT_ALLOCATION_FAILURE: out of memory", "opencl"},
		{"vkAllocateMemory failed: VK_ERROR_OUT_OF_DEVICE_MEMORY", "vulkan"},
		{"D3D12: CreateCommittedResource failed: E_OUTOFMEMORY, out of memory", "directx"},
		{"[h264_nvenc @ 0x55] OpenEncodeSessionEx failed: out of memory (10): (no details)", "nvenc"},
		{"System is out of GPU and shared host memory", "blender"},
		{"LogRHI: Error: Out of video memory trying to allocate a rendering resource", "unreal"},
	} {
		got := map[string]bool{}
		if _, err := Read(strings.NewReader(tt.line+"\n"), func(st *Statement) {
			for _, f := range st.FrameworksShown() {
				got[f] = true
			}
		}); err != nil {
			t.Fatal(err)
		}
		want := strings.Fields(tt.shows)
		for _, f := range want {
			if !got[f] {
				t.Errorf("%q does not show %s", tt.line, f)
			}
			delete(got, f)
		}
		for f := range got {
			if !slices.Contains(want, f) {
				t.Errorf("%q shows %s", tt.line, f)
			}
		}
	}
}
