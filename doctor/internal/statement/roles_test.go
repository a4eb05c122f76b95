package statement

import (
	"cmp"
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
		{"alloc cur 1.0GB alloc peak 3.0GB reserved cur 4.0GB reserved peak 5.0GB", "alloc 1 GiB, peak 3 GiB, kept 4 GiB, peak 5 GiB"},
		{"enforce allocating <= available failed, 3221225472 > 1073741824", "want 3 GiB, free 1 GiB"},
		{"insufficient GPU memory: 1073741824 bytes of memory found < 3221225472 bytes of memory required", "free 1 GiB, want 3 GiB"},
		{"3221225472 > 1073741824", ""},
		{"12.00 GiB total in use, 1.00 GiB free, tried to allocate 2.00 GiB", "use 12 GiB, free 1 GiB, want 2 GiB"}, // of what is used the total
		{"  Size:      4194304", "want 4 MiB"},
		{"Pool Size: 48000000 KB", "kept 45.78 GiB"},
		{"memory need is536870912", "want 512 MiB"},
		{"Failed to allocate memory for requested buffer of size 524288", "want 512 KiB"},
		{"a batch of size 524288", ""},
		{"- Device #1: a card, 512/2048 MB allocatable", "limit 512 MiB, total 2 GiB"},
		{"step 12000 of 50000, loss 0.25", ""},
		{"shape[1000,1000,250,4] version 12.4.1 at 0x7f00aa", ""},
		{"2 Chunks of size 983040000 totalling 1.83GiB", "- 1.83 GiB"},
		{"limit: 10.00 GiB (10737418240)", "limit 10 GiB"},                  // the same again
		{"limit: 10.00 GiB (11500000000)", "limit 10 GiB, limit 10.71 GiB"}, // another number: a hundredth is what rounding hides
	} {
		var got []string
		toks := tokenize(tt.text)
		markBytes(toks)
		for _, a := range amounts(toks) {
			got = append(got, fmt.Sprintf("%s %s", roleNames[a.Role], size.Format(a.N)))
		}
		if s := strings.Join(got, ", "); s != tt.want {
			t.Errorf("%q\n got %s\nwant %s", tt.text, s, tt.want)
		}
	}
}

// TestUnitsKeepTheirFigures: what is told of each bank or of a heap is of that alone.
func TestUnitsKeepTheirFigures(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"cannot place 4294967296 B in 8 banks: each bank needs to store 536870912 B, but bank size is 786432000 B (allocated: 734003200 B, free: 52428800 B)",
			"- 4 GiB -, want 512 MiB each bank, total 750 MiB each bank, alloc 700 MiB each bank, free 50 MiB each bank"},
		{"Heap 1: 300 MB allocated, 200 MB used, 8000 MB budget (driver), 8192 MB total", "alloc 300 MiB heap 1, use 200 MiB heap 1, limit 7.81 GiB heap 1, total 8 GiB heap 1"},
		{"GPU 0 has 8.00 GiB in total. Process 9 has 1.00 GiB memory in use.", "total 8 GiB gpu 0, use 1 GiB -"},
	} {
		var got []string
		for _, a := range amounts(tokenize(tt.text)) {
			got = append(got, fmt.Sprintf("%s %s %s", roleNames[a.Role], size.Format(a.N), cmp.Or(a.Subject, "-")))
		}
		if s := strings.Join(got, ", "); s != tt.want {
			t.Errorf("%q\n got %s\nwant %s", tt.text, s, tt.want)
		}
	}
}

// TestWeightOfFailures: an exception tells more of a program's end than what follows from it.
func TestWeightOfFailures(t *testing.T) {
	for text, want := range map[string]int{
		"RuntimeError: CUDA driver error: device not ready":             3,
		"thread 'main' panicked at src/main.rs:9: no adapter":           3,
		"F0412 10:11:12.123456  77 net.cpp:9] Check failed: error == 0": 3,
		"error: out of device memory":                                   2,
		"could not load: the file failed its check":                     1,
		"Aborted (core dumped)":                                         0,
		"subprocess.CalledProcessError: Command failed":                 0,
		"WARNING: failed to load libextra.so":                           0,
	} {
		var got int
		_, _ = Read(strings.NewReader(text+"\n"), func(st *Statement) { got = st.Weight() })
		if got != want {
			t.Errorf("%q: %d, want %d", text, got, want)
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
