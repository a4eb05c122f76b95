package doctor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatFitsAnotherFailureIsNotBeside: what is sure of one failure has only those beside it that
// compete for the same: an engine's check of an earlier run is none.
func TestWhatFitsAnotherFailureIsNotBeside(t *testing.T) {
	const engine = "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.\n"
	message := card{2, 40, 1, 20, 19, 18, .3}.String()
	if d := diagnose(t, engine, ""); len(d.Causes) < 2 {
		t.Errorf("the check alone: %s", rules(d))
	}
	if d := diagnose(t, engine+strings.Repeat("restarting the job\n", 30)+message,
		""); string(d.Verdict)+": "+rules(d) != "cause: others in the message" {
		t.Errorf("%s: %s", d.Verdict, rules(d))
	}
}

// TestAccountBesideAFailureHasTwoRows: one figure is no account.
func TestAccountBesideAFailureHasTwoRows(t *testing.T) {
	const allocated, reserved = "torch.cuda.memory_allocated(): 536870912\n", "torch.cuda.memory_reserved(): 1073741824\n"
	message := card{2, 40, 1, 20, 19, 18, .3}.String()
	for log, want := range map[string]bool{allocated + message: false, allocated + reserved + message: true} {
		if d := diagnose(t, log, ""); (d.Account != nil) != want {
			t.Errorf("an account %v, want %v:\n%s", !want, want, log)
		}
	}
}

// TestListsHaveFourFigures: two lines with names and sizes may be a refusal's; four are a list.
func TestListsHaveFourFigures(t *testing.T) {
	lines := []string{"vram heap total: 16.00 GiB", "vram heap used: 3.00 GiB", "gtt total: 32.00 GiB", "gtt used: 1.00 GiB"}
	for n, want := range map[int]Verdict{2: VerdictUnknown, 4: VerdictAccount} {
		if d := diagnose(t, strings.Join(lines[:n], "\n")+"\n", ""); d.Verdict != want {
			t.Errorf("%d lines: %s, want %s", n, d.Verdict, want)
		}
	}
}

// TestEmptyLogBesideARecording: the recording says something, so that the empty log is no mistake.
func TestEmptyLogBesideARecording(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.log")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(t.Context(), path, nil, nil, nil); err == nil {
		t.Error("an empty log alone is taken")
	}
	if _, err := Read(t.Context(), path, nil, &Beside{Source: "r.txt", Live: 1 << 30, Blocks: 1, Most: 1 << 30}, nil); err != nil {
		t.Error(err)
	}
}

// TestNothingIsSureBehindNumbersThatDoNotAgree: a request of less than what is left cannot be what a
// lease refused. Where the most telling line is damaged, the next one only fits.
func TestNothingIsSureBehindNumbersThatDoNotAgree(t *testing.T) {
	const killed = "[ 1234.567891] Memory cgroup out of memory: Killed process 4242 (python) total-vm:64000000kB, anon-rss:33000000kB\n"
	for lease, want := range map[string]string{
		"a request of 3 GiB, and 1 GiB are left of the lease of 8 GiB": "cause: the lease of gpumem run",
		"a request of 1 GiB, and 3 GiB are left of the lease of 8 GiB": "needs: the kernel killed it",
	} {
		d := diagnose(t, "gpumem: out of memory: "+lease+"\n"+killed, "")
		if got := string(d.Verdict) + ": " + rules(d); got != want ||
			strings.Contains(inWords(d), "the numbers at line 1 do not agree") != (d.Verdict == VerdictNeeds) {
			t.Errorf("%s: want %s\n%s", lease, want, inWords(d))
		}
	}
}

// TestWhatDidNotComeIsNoFailure: counters of none, flags that are false and checks that went well, as
// people paste them.
func TestWhatDidNotComeIsNoFailure(t *testing.T) {
	for _, log := range []string{
		"low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n",
		`{"Status": "exited", "OOMKilled": false, "ExitCode": 1}` + "\n",
		`kube_pod_container_status_terminated_reason{reason="OOMKilled"} 0` + "\n",
		"slurmstepd: no oom_kill events\n",
		"Finished without running out of memory\n",
		"No CUDA out of memory error occurred.\n",
		"========= No illegal memory access was found\n========= ERROR SUMMARY: 0 errors\n",
		"check: No space left on device check passed\n",
	} {
		if d := diagnose(t, log, ""); d.Verdict != VerdictUnknown || len(d.Causes) > 0 ||
			!strings.Contains(inWords(d), "no line of the log says that memory was refused") {
			t.Errorf("%s: %s %v\n%s", log, d.Verdict, ids(d), inWords(d))
		}
	}
}
