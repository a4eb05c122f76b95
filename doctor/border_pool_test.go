package doctor

// Borders in the account of a message that border_test.go does not stand at: each row is one figure
// beside the next, and what it decides follows from the figures.

import (
	"fmt"
	"strings"
	"testing"
)

// allowed is a message of a PyTorch whose memory is capped, in GiB.
type allowed struct{ want, total, free, others, process, cap, alloc, idle float64 }

func (a allowed) String() string {
	text := card{a.want, a.total, a.free, a.others, a.process, a.alloc, a.idle}.String()
	return strings.Replace(text, "Of the allocated", fmt.Sprintf("%.2f GiB allowed; Of the allocated", a.cap), 1)
}

// older is a message of a PyTorch before 2.1, which names no process.
func older(want, total, alloc, free, reserved string) string {
	return fmt.Sprintf("RuntimeError: CUDA out of memory. Tried to allocate %s (GPU 0; %s total capacity; %s already allocated; %s free; %s reserved in total by PyTorch)\n", want, total, alloc, free, reserved)
}

// summary is PyTorch's list of what is allocated, and active, in MiB.
func summary(allocated, active int) string {
	return fmt.Sprintf("| Allocated memory      |  %d MiB |  %[1]d MiB |  99999 MiB |  61599 MiB |\n"+
		"| Active memory         |  %d MiB |  %[2]d MiB |  99999 MiB |  61579 MiB |\n", allocated, active)
}

func TestBordersOfAPool(t *testing.T) {
	const holes, waiting, limit = "holes in the pool", "either: holes in the pool; freed, and waiting for a stream",
		"cause: the pool's own limit"
	for _, tt := range []struct{ name, log, want string }{
		{"unused, ten times the request and more", older("1.00 GiB", "40.00 GiB", "22.00 GiB", "256.00 MiB", "37.00 GiB"), waiting},
		{"unused, nine times the request", older("1.00 GiB", "40.00 GiB", "28.00 GiB", "256.00 MiB", "37.00 GiB"), "cause: " + holes},
		{"unused, far above a request of 110 MiB", older("110.00 MiB", "40.00 GiB", "23.00 GiB", "64.00 MiB", "37.00 GiB"), waiting},
		{"unused, far above a request of 90 MiB, which gaps may refuse",
			older("90.00 MiB", "40.00 GiB", "23.00 GiB", "64.00 MiB", "37.00 GiB"), "cause: " + holes},

		// 7 GiB, 7,168 MiB, were lacking.
		{"as much waits for a stream as was lacking", card{8, 40, 1, 0, 39, 31, 7}.String() + summary(31<<10, 38<<10),
			"cause: freed, and waiting for a stream"},
		{"a MiB less waits", card{8, 40, 1, 0, 39, 31, 7}.String() + summary(31<<10, 38<<10-1),
			"either: holes in the pool, or just too few; holes in the pool, or just too few"},
		{"20 MiB wait, of a program that fills the GPU", card{8, 40, 1, 0, 39, 37.5, 1}.String() + summary(38400, 38420),
			"cause: the program's own allocations fill the GPU"},

		// 3.5 GiB were lacking, and 4 are unused in a pool of 74 to 76: 5 of 100.
		{"holes, and others with what was lacking", card{4, 80, .5, 3.55, 75.9, 70.5, 4}.String(),
			"either: holes in the pool, or just too few; holes in the pool, or just too few; others in the message"},
		{"holes, and others with less", card{4, 80, .5, 2, 77.5, 72, 4}.String(),
			"either: holes in the pool, or just too few; holes in the pool, or just too few"},

		// The next request would pass 0.9 of 40 GiB, which are 36: from 35.95 in the pool with one of 90 MiB, as the
		// figures are printed. 35.91 and 90 MiB are 35.998, and the rounding of each hides what lacks.
		{"a round part, as far as rounding tells", older("90.00 MiB", "40.00 GiB", "35.50 GiB", "1.00 GiB", "35.91 GiB"),
			"cause: just below a round part of the GPU"},

		// A cap of 38 of 40 GiB is one: 37.2 and 1 pass it, and 2 are free.
		{"a cap of nineteen twentieths", allowed{1, 40, 2, 0, 38, 38, 37, .2}.String(), limit},
		{"a cap of all of the GPU is none", allowed{1, 40, 2, 0, 38, 39.8, 37, .2}.String(),
			"needs: refused while enough is free; refused while enough is free; refused while enough is free"},
		// 18 allocated and 1.5 free are 19.5, and not the cap of 20: 1.5 is what the GPU has.
		{"free is the GPU's, and others have it", allowed{3, 40, 1.5, 20, 18.5, 20, 18, .2}.String(), "cause: others in the message"},
		{"free is what the cap leaves", allowed{3, 40, 2, 20, 18.5, 20, 18, .2}.String(), limit},
		// 16 and 2.5 do not pass 20.
		// Beside 2 of this pool, others in the process have 10 of the 13 that it may take: Metal's buffers are so, and no other's.
		{"an XPU's process with much besides PyTorch", strings.Replace(mpsLog(2, 15.5), "MPS", "XPU", 2), limit},
		{"a request that the cap has room for", allowed{2.5, 40, 20, 0, 16.5, 20, 15.8, .2}.String(),
			"needs: refused while enough is free; refused while enough is free; refused while enough is free"},
		// 38 and 3 are more than 40: a higher cap would not help.
		{"a cap, and more than the GPU", "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 3.00 GiB. GPU 0 has a total capacity of 40.00 GiB. 39.00 GiB allowed; Of the allocated memory 38.00 GiB is allocated by PyTorch, and 0.20 GiB is reserved by PyTorch but unallocated.\n", "cause: the program's own allocations fill the GPU"},

		// Beside its pool the process has 6 GiB: twice 2.9, and not twice 4.
		{"beside the pool, twice what is unused in it", card{4.3, 20.5, .5, 0, 20, 11.1, 2.9}.String(),
			"cause: another allocator in the process"},
		{"beside the pool, less than that", card{4.3, 20.5, .5, 0, 20, 10, 4}.String(), "either: one of several holders; one of several holders"},

		// A segment for small requests has 20 MiB. A fortieth of 16 GiB is 0.4.
		{"a small request, and unused less than a fortieth",
			"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 17.00 GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has 16.90 GiB memory in use. Of the allocated memory 16.00 GiB is allocated by PyTorch, and 0.30 GiB is reserved by PyTorch but unallocated.\n", "cause: the program's own allocations fill the GPU"},
		{"a small request, and unused more than that", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 17.00 GiB of which 10.00 MiB is free. Including non-PyTorch memory, this process has 16.90 GiB memory in use. Of the allocated memory 16.00 GiB is allocated by PyTorch, and 0.55 GiB is reserved by PyTorch but unallocated.\n", "either: holes in the pool, or just too few; holes in the pool, or just too few"},

		// 7 GiB are lacking. A tenth of it is 0.7.
		{"others nearly have it, and holes are less than a tenth", card{8, 39.1, 1, 6.8, 31.3, 30.5, .5}.String(),
			"cause: the program's own allocations fill the GPU"},
		{"others nearly have it, and holes are more than a tenth", card{8, 39.4, 1, 6.8, 31.6, 30.5, .8}.String(),
			"either: others and holes together; others and holes together; others and holes together"},

		// 7 GiB of 40 are in nobody's account, which is less than a fifth; 31.5 live are less than nine tenths.
		{"four fifths are live, and some is nobody's", older("2.00 GiB", "40.00 GiB", "31.50 GiB", "1.00 GiB", "32.00 GiB"),
			"needs: the program's own allocations; the rest of the GPU"},
		{"nine tenths are live", older("2.00 GiB", "40.00 GiB", "36.50 GiB", "1.00 GiB", "37.00 GiB"),
			"cause: the program's own allocations fill the GPU"},

		// Another process has more than the 10 MiB that lack, and less than rounding and a context hide.
		{"a small neighbour has what lacks", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 16.00 GiB of which 10.00 MiB is free. Process 4242 has 100.00 MiB memory in use. Including non-PyTorch memory, this process has 10.40 GiB memory in use. Of the allocated memory 10.00 GiB is allocated by PyTorch, and 60.00 MiB is reserved by PyTorch but unallocated.\n", "needs: the program's own allocations; the rest of the GPU"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := diagnose(t, tt.log, "")
			if got := string(d.Verdict) + ": " + rules(d); got != tt.want {
				t.Errorf("%s\nwant %s", got, tt.want)
			}
		})
	}
}

// Processes of one size are ranks of a job from three on: two may be anybody's. They hold 8 of 20.5
// GiB, 2.2 were lacking, and 2.5 are unused in the pool.
func TestThreeProcessesAlikeAreRanks(t *testing.T) {
	const log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.80 GiB. GPU 0 has a total capacity of 20.50 GiB of which 0.60 GiB is free. %s" +
		"Including non-PyTorch memory, this process has 11.50 GiB memory in use. Of the allocated memory 8.50 GiB is allocated by PyTorch, and 2.50 GiB is reserved by PyTorch but unallocated.\n"
	for listed, want := range map[string]string{
		"Process 11 has 4.00 GiB memory in use. Process 12 has 4.00 GiB memory in use. ":                                        "holes in the pool",
		"Process 11 has 2.70 GiB memory in use. Process 12 has 2.70 GiB memory in use. Process 13 has 2.70 GiB memory in use. ": "others in the message",
	} {
		if d := diagnose(t, fmt.Sprintf(log, listed), ""); rules(d) != want {
			t.Errorf("%s: %s, want %s", listed, rules(d), want)
		}
	}
}
