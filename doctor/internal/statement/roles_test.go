package statement

import (
	"fmt"
	"strings"
	"testing"

	"gpumem/size"
)

var roleNames = map[role]string{roleNone: "-", RoleWant: "want", RoleFree: "free", RoleTotal: "total", RoleLimit: "limit", RoleUse: "use", RoleAlloc: "alloc", RoleKept: "kept", RoleIdle: "idle", roleLargest: "largest", rolePeak: "peak"}

// TestAmountsHaveTheRoleOfTheNearestWord: what each number of a sentence means, in the
// wordings of several programs.
func TestAmountsHaveTheRoleOfTheNearestWord(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is free.", "want 2 GiB, total 8 GiB, free 1 GiB"},
		{"Process 21197 has 366.00 MiB memory in use. this process has 4.00 GiB memory in use.", "use 366 MiB, use 4 GiB"},
		{"Of the allocated memory 3.00 GiB is allocated by PyTorch, and 86.00 MiB is reserved by PyTorch but unallocated.", "alloc 3 GiB, idle 86 MiB"},
		{"(GPU 0; 8.00 GiB total capacity; 3.00 GiB already allocated; 1.00 GiB free; 4.00 GiB reserved in total by PyTorch)", "total 8 GiB, alloc 3 GiB, free 1 GiB, kept 4 GiB"},
		{"failed to allocate 2.50G (2684354560 bytes) from device", "want 2.50 GiB"},
		{"Out of memory allocating 1,073,741,824 bytes (allocated so far: 536,870,912 bytes, limit set to: 2,147,483,648 bytes).", "want 1 GiB, alloc 512 MiB, limit 2 GiB"},
		{"Memory usage: 1073741824 bytes free, 8589934592 bytes total.", "free 1 GiB, total 8 GiB"},
		{"Free memory on device cuda:0 (2.00/8.00 GiB) on startup is less than desired GPU memory utilization (0.9, 7.00 GiB)", "free 2 GiB, total 8 GiB, want 7 GiB"},
		{"Limit: 2147483648 InUse: 1073741824", "limit 2 GiB, use 1 GiB"},
		{"Available memory of 1048576 is smaller than requested bytes of 2097152", "free 1 MiB, want 2 MiB"},
		{"Effective GPU memory usage: 90.00% (7.00 GiB/8.00 GiB)", "use 7 GiB, total 8 GiB"},
		{"requires more system memory (8.0 GiB) than is available (5.0 GiB)", "want 8 GiB, free 5 GiB"},
		{"(MPS allocated: 5.00 GB, other allocations: 2.00 GB, max allowed: 6.00 GB). Tried to allocate 1.00 GB on private pool.", "alloc 5 GiB, alloc 2 GiB, limit 6 GiB, want 1 GiB"},
		{"step 12000 of 50000, loss 0.25", ""},
		{"shape[1000,1000,250,4] version 12.4.1 at 0x7f00aa", ""},
		{"2 Chunks of size 983040000 totalling 1.83GiB", "- 1.83 GiB"},
	} {
		var got []string
		for _, a := range amounts(tokenize(tt.text)) {
			got = append(got, fmt.Sprintf("%s %s", roleNames[a.Role], size.Format(a.N)))
		}
		if s := strings.Join(got, ", "); s != tt.want {
			t.Errorf("%q\n got %s\nwant %s", tt.text, s, tt.want)
		}
	}
}

// TestRefusalsAreKnownByTheirWords: whether a sentence says that memory was refused.
func TestRefusalsAreKnownByTheirWords(t *testing.T) {
	for text, want := range map[string]bool{
		"RuntimeError: CUDA error: out of memory":                                           true,
		"hipErrorOutOfMemory":                                                               true,
		"could not reserve 3 GiB on the device":                                             true,
		"Not enough VRAM for the buffer":                                                    true,
		"MemoryError: std::bad_alloc: cudaErrorMemoryAllocation":                            true,
		"OSError: [Errno 12] Cannot allocate memory":                                        true,
		"Maximum pool size exceeded":                                                        true,
		"the pool's memory is exhausted":                                                    true,
		"needs 8 GiB of memory, 3 GiB is free":                                              true,
		"try setting max_split_size_mb to avoid out of memory":                              false,
		"an illegal memory access was encountered":                                          false,
		"Received message larger than max (35249841 vs. 4194304)":                           false,
		"Allocation of 79148544 exceeds 10% of free system memory.":                         false,
		"BufferAssignment OOM Debugging.":                                                   false,
		"step 12 loss 0.5 gpu mem 3.5 GiB / 8 GiB":                                          false,
		"Failure to initialize cublas may be due to OOM (cublas needs some free memory)":    false,
		"Memory usage: 1073741824 bytes free, 8589934592 bytes total.":                      false,
		"requested context length is greater than model max":                                false,
		"XLA backend allocating 5341446144 bytes on device 0 for BFCAllocator.":             false,
		"GPU 0 has 8 GiB of memory, of which 7 GiB is in use by 3 processes and 1 GiB free": false,
	} {
		if got := readPassage(passage{Line: 1, Text: text}).Refused; got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}
