package doctor

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/cause"
	"gpumem/doctor/internal/statement"
	"gpumem/internal/test/doctortest"
)

// drops returns the sentences that are dropped while f runs, each with the reason.
func drops(f func()) (list []string) {
	old := dropped
	dropped = func(why, sentence string) { list = append(list, why+": "+sentence) }
	defer func() { dropped = old }()
	f()
	return list
}

// TestEverySentenceIsBorne: no sentence of an answer to an unbroken log says what its numbers
// do not bear. In broken logs a number may be cut: there the count is told.
func TestEverySentenceIsBorne(t *testing.T) {
	asked := 0
	ask := func(name, log, state string) {
		asked++
		for _, s := range drops(func() { diagnose(t, log, state) }) {
			t.Errorf("%s: dropped: %s", name, s)
		}
	}
	broken := map[string]int{}
	for i, s := range doctortest.Samples(5) {
		ask(s.Class, s.Log, s.State)
		ask(s.Class+", reworded", doctortest.Paraphrase(s.Log, i), s.State)
		if i%5 == 0 {
			for _, b := range doctortest.Breakages() {
				for _, d := range drops(func() { diagnose(t, b.Apply(s.Log, i), s.State) }) {
					broken[b.Name+": "+d]++
				}
			}
		}
	}
	for _, c := range doctortest.Cases() {
		ask(c.Name, c.Log, c.State)
	}
	for _, cases := range readStored(t) {
		for _, c := range cases {
			ask(c.name, c.log, c.state)
		}
	}
	for _, dir := range append(filepath.SplitList(os.Getenv("GPUMEM_OOMLOGS")), "../../shared/data/oomlogs", "../../shared/data/oomlogs2") {
		text, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
		if err != nil {
			t.Logf("skipped: no logs in %s beside the checkout", strings.TrimPrefix(dir, "../"))
			continue
		}
		var list []settled
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		for _, s := range list {
			log, _ := os.ReadFile(filepath.Join(dir, s.File))
			state, _ := os.ReadFile(filepath.Join(dir, strings.TrimSuffix(s.File, ".log")+".state.json"))
			ask(s.File, string(log), "")
			if len(state) > 0 {
				ask(s.File+" with its state", string(log), string(state))
			}
		}
	}
	t.Logf("%d logs; sentences dropped in broken ones: %v", asked, broken)
}

// claimsLogs are what the sentences below are about.
var claimsLogs = map[string]string{
	"torch": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.60 GiB. GPU 0 has a total capacity of 14.74 GiB of which 2.44 GiB is free. " +
		"Process 812 has 5.00 GiB memory in use. Including non-PyTorch memory, this process has 7.30 GiB memory in use. " +
		"Of the allocated memory 6.50 GiB is allocated by PyTorch, and 310.00 MiB is reserved by PyTorch but unallocated.",
	"small": "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 512.00 MiB of which 42.00 MiB is free. " +
		"Of the allocated memory 382.00 MiB is allocated by PyTorch, and 72.00 MiB is reserved by PyTorch but unallocated.",
	"xpu":   "torch.OutOfMemoryError: XPU out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 15.56 GiB. Of the allocated memory 9.10 GiB is allocated by PyTorch.",
	"gpus":  "GPU 0: 24.00 GiB total, 3.50 GiB free memory\nGPU 1: 80.00 GiB total, 61.25 GiB free memory\nCUDA error: out of memory on GPU 1, tried to allocate 70.00 GiB",
	"heaps": "vkAllocateMemory failed: out of device memory, tried to allocate 300 MiB\nheap 0: 287 MiB used of 8192 MiB total memory\nheap 2: 240 MiB used of 246 MiB total memory",
	"xla":   "2031-02-03 04:05:06.789: E cuda_dnn.cc:443] Memory usage: 214958080 bytes free, 8361017344 bytes total.\n2031-02-03 04:05:06.788: E cuda_dnn.cc:439] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR",
}

// TestClaims: of each pair of logs and sentences it is known whether the numbers bear it.
func TestClaims(t *testing.T) {
	for _, c := range []struct {
		log         string
		true, false []string
	}{
		{"torch", []string{
			"2.60 GiB requested, 2.44 GiB free: 163.84 MiB was lacking, and others hold 5 GiB of 14.74 GiB (process 812: 5 GiB)",
			"12.30 GiB of 14.74 GiB is in use, and this program's pool reserved 6.80 GiB of it",
			"this process holds 7.30 GiB, of which its pool reserved 6.80 GiB: 509.20 MiB belongs to another allocator in it",
			"310 MiB is reserved and not in use, and 2.44 GiB is free: together enough for the 2.60 GiB requested, but not in one piece",
			"the program's own allocations hold 6.50 GiB of 14.74 GiB, 310 MiB of its pool is unused, 2.44 GiB is free: 2.60 GiB more does not fit",
			"PyTorch's hint at fragmentation is printed whatever the cause; 310 MiB is reserved and unused, too little for 2.60 GiB",
			"5.50 GiB of 14.74 GiB is neither free nor in this program's pool",
			"2.60 GiB requested, 2.44 GiB of 14.74 GiB free; who holds the rest is unknown",
			"2.44 GiB of 14.74 GiB was free (17 %)",
			"12.30 GiB of 14.74 GiB was in use before this engine took any, and it wants 2.60 GiB",
			"9.10 GiB taken by request and pool of 14.74 GiB",
			"a pool of 11.05 GiB: 9.10 GiB are needed, and 3.69 GiB of the GPU's 14.74 GiB are left to libraries",
			"2.60 GiB and a reserve of 256 MiB are 20 % of 14.74 GiB: take that off the 0.9 of now",
		}, []string{
			"2.44 GiB requested, 2.60 GiB free: 163.84 MiB was lacking, and others hold 5 GiB of 14.74 GiB",
			"2.60 GiB requested, 2.44 GiB free: 163.84 MiB was lacking, and others hold 14.74 GiB of 5 GiB",
			"2.60 GiB requested, 2.44 GiB free: 183.84 MiB was lacking, and others hold 5 GiB of 14.74 GiB",
			"12.30 GiB of 14.74 GiB is in use, and this program's pool reserved 14.74 GiB of it",
			"13.53 GiB of 14.74 GiB is in use, and this program's pool reserved 6.80 GiB of it",
			"14.74 GiB of 12.30 GiB is in use, and this program's pool reserved 6.80 GiB of it",
			"this process holds 6.80 GiB, of which its pool reserved 7.30 GiB: 509.20 MiB belongs to another allocator in it",
			"this process holds 8.03 GiB, of which its pool reserved 6.80 GiB: 509.20 MiB belongs to another allocator in it",
			"310 MiB is reserved and not in use, and 2.44 GiB is free: together enough for the 5 GiB requested, but not in one piece",
			"310 MiB is reserved and not in use: enough for the 2.60 GiB requested, but not in one piece",
			"the program's own allocations hold 6.50 GiB of 14.74 GiB, 2.60 GiB is free: 2.44 GiB more does not fit",
			"the program's own allocations hold 7.15 GiB of 14.74 GiB, 2.44 GiB is free: 2.60 GiB more does not fit",
			"2.60 GiB is reserved and unused, too little for 310 MiB",
			"one request of 2.60 GiB is more than the GPU's 14.74 GiB",
			"2.44 GiB is free and 2.60 GiB was requested: the GPU was not full",
			"the GPU had 2.44 GiB free when 2.60 GiB was refused, so the GPU was not full",
			"2.44 GiB of 14.74 GiB was free (23 %)",
			"163.84 MiB was lacking: others hold 5 GiB, and 310 MiB is reserved and not in use; neither alone is enough",
			"2.60 GiB taken and 2.44 GiB requested pass the limit of 14.74 GiB",
			"5 GiB and 14.74 GiB more would fit into 14.74 GiB",
			"2.60 GiB and a reserve of 256 MiB are 25 % of 14.74 GiB: take that off the 0.9 of now",
			"a pool of 12.80 GiB: 9.10 GiB are needed, and 3.69 GiB of the GPU's 14.74 GiB are left to libraries",
		}},
		{"small", []string{
			"72 MiB is reserved and not in use: enough for the 2 MiB requested, but not in one piece",
			"the GPU had 42 MiB free when 2 MiB was refused",
		}, []string{
			"the program's own allocations hold 382 MiB of 512 MiB, 72 MiB of its pool is unused, 42 MiB is free: 2 MiB more does not fit",
			"72 MiB is reserved and not in use, and 42 MiB is free: whether that is enough for the 2 MiB requested is lost in the rounding",
		}},
		{"xpu", []string{
			"6.46 GiB of 15.56 GiB is not of this program's pool",
			"the program's own allocations hold 9.10 GiB of 15.56 GiB: 1.25 GiB more was refused",
		}, []string{
			"15.56 GiB of 15.56 GiB is not of this program's pool",
			"1.25 GiB in one piece is more than any device has",
		}},
		{"gpus", []string{
			"3.50 GiB of 24 GiB is free",
			"61.25 GiB of 80 GiB is free (77 %)",
			"70 GiB requested, 61.25 GiB of 80 GiB free; who holds the rest is unknown",
			"18.75 GiB of 80 GiB is in use",
		}, []string{
			"3.50 GiB of 80 GiB is free",
			"61.25 GiB is free beside 24 GiB",
			"one request of 70 GiB is more than the GPU's 24 GiB",
			"3.50 GiB of 24 GiB is free, and 70 GiB was refused",
		}},
		{"heaps", []string{
			"287 MiB of 8 GiB is in use",
			"240 MiB of 246 MiB is in use (98 %)",
			"6 MiB of 246 MiB is free",
		}, []string{
			"287 MiB of 246 MiB is in use (117 %)",
			"240 MiB of 8 GiB is in use",
			"300 MiB is more than the 8192 MiB of the heap",
			"one request of 300 MiB is more than the GPU's 246 MiB",
		}},
		{"xla", []string{
			"205 MiB of 7.79 GiB was free (3 %)",
			"less was free than the 520 MiB that cuDNN takes with its first convolution",
			"5.22 GiB of 7.79 GiB, 637.89 MiB less than before, leave libraries 780 MiB; a fraction of 0.67",
			"a pool of 5.84 GiB takes 0.75 of 7.79 GiB",
			"in both programs: each then takes 2.34 GiB, and up to 1.50 GiB for its context and libraries; both fit into 7.79 GiB; 0.30 of it",
			"7.79 GiB is what the GPU has",
		}, []string{
			"205 MiB of 7.79 GiB was free (6 %)",
			"205 MiB of 7.79 GiB free (3 %) is what JAX's default pool leaves by design (a quarter, less a context)",
			"less was free than the 570 MiB that cuDNN takes with its first convolution",
			"in both programs: each then takes 3.12 GiB, and up to 1.50 GiB for its context and libraries; both fit into 7.79 GiB; 0.40 of it",
			"225.50 MiB of 7.79 GiB was free (3 %)",
		}},
	} {
		e := account.New(nil)
		if err := e.Read(strings.NewReader(claimsLogs[c.log]), nil); err != nil {
			t.Fatal(err)
		}
		var lines []statement.Evidence
		for i, l := range strings.Split(claimsLogs[c.log], "\n") {
			lines = append(lines, statement.Evidence{Line: i + 1, Text: l})
		}
		said := func(s string) []string {
			x := cause.Explanation{Evidence: slices.Clone(lines)}
			x.Evidence[0].Reading = s
			return drops(func() { newClaims(e).keep(x) })
		}
		for _, s := range c.true {
			if d := said(s); d != nil {
				t.Errorf("%s: true, and dropped: %s", c.log, d)
			}
		}
		for _, s := range c.false {
			if said(s) == nil {
				t.Errorf("%s: false, and kept: %s", c.log, s)
			}
		}
	}
}

// TestClaimsOffByTenPercent: of the sentences with a size that is a tenth too large nearly none
// is kept.
func TestClaimsOffByTenPercent(t *testing.T) {
	asked, kept := 0, 0
	for _, s := range doctortest.Samples(3) {
		e := account.New(nil)
		if err := e.Read(strings.NewReader(s.Log), nil); err != nil {
			t.Fatal(err)
		}
		for _, x := range cause.Explain(e) {
			for i, q := range x.Evidence {
				for _, size := range statement.Sizes(q.Reading) {
					wrong := x
					wrong.Evidence = slices.Clone(x.Evidence)
					wrong.Evidence[i].Reading = q.Reading[:size.At] + account.Human(uint64(1.1*size.N)) + q.Reading[size.End:]
					asked++
					if drops(func() { newClaims(e).keep(wrong) }) == nil {
						kept++
						t.Logf("%s: kept: %s", s.Class, wrong.Evidence[i].Reading)
					}
				}
			}
		}
	}
	if t.Logf("%d of %d kept", kept, asked); kept > asked/20 {
		t.Error("more than a twentieth")
	}
}

// TestClaimsOfTwoDevices: what one GPU has is not said of another, and where that was all that
// spoke for a cause nothing is sure.
func TestClaimsOfTwoDevices(t *testing.T) {
	const log = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 0 has a total capacity of 15.56 GiB of which 1.00 GiB is free.\nstep 1\nstep 2\n" +
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 30.25 GiB. GPU 1 has 12.50 GiB free.\n"
	d := diagnose(t, log, "")
	if text := inWords(d); strings.Contains(text, "30.25 GiB is more than the GPU's 15.56 GiB") {
		t.Error(text)
	}
	t.Log(inWords(d))
}
