package vocabulary

import (
	"strings"
	"testing"
)

// TestDenied: the name between bars counts nothing, or it does.
func TestDenied(t *testing.T) {
	for line, want := range map[string]bool{
		"node_vmstat_oom_«kill» 0": true,
		"node_vmstat_oom_«kill» 3": false,
		`kube_pod_container_status_terminated_reason{reason="«OOMKilled»"} 0`: true,
		`kube_pod_container_status_terminated_reason{reason="«OOMKilled»"} 1`: false,
		`"«OOMKilled»": "false",`:                                                true,
		`"«OOMKilled»": true,`:                                                   false,
		"| «OOMKilled» | false |":                                                true,
		"Detected 0 «oom_kill» events in StepId=1.0":                             true,
		"Detected 2 «oom_kill» events in StepId=1.0":                             false,
		"«oom_kill»er: disabled":                                                 true,
		"slurmstepd: no «oom_kill» events":                                       true,
		"0 Workers (tasks / actors) «killed due to memory» pressure (OOM)":       true,
		"3 Workers (tasks / actors) «killed due to memory» pressure (OOM)":       false,
		"No workers were «killed due to memory» pressure":                        true,
		"the job has not «exceeded its memory limit»":                            true,
		"the job has «exceeded its memory limit»":                                false,
		"«memory limit exceeded»: 0 times":                                       true,
		"test_«oom_kill» PASSED":                                                 true,
		"No «illegal memory access» was found":                                   true,
		"INFO checking for «illegal memory access» ... ok":                       true,
		"CUDA_LAUNCH_BLOCKING=1 helps find an «illegal memory access»":           true,
		"«illegal memory access» count: 0":                                       true,
		"df -h: «No space left on device» check passed":                          true,
		"OSError: [Errno 28] «No space left on device»: 'a.pt'":                  false,
		"No CUDA «out of memory» error occurred.":                                true,
		"Caught 0 CUDA «out of memory» errors":                                   true,
		"did not run «out of GPU memory»":                                        true,
		"Finished without running «out of memory»":                               true,
		"memory.«oom».group 0":                                                   true,
		"Started systemd-oomd.service - Userspace «Out-Of-Memory» (OOM) Killer.": true,
		"«out of memory». 0 bytes free":                                          false,
		"0 «OOM» errors":                                                         true,
		"GPU 0 «out of memory»":                                                  false,
		"rank 0 «out of memory»":                                                 false,
		"[rank0]: 0 «out of memory»":                                             true,
		"no, «out of memory» once more":                                          false,
		"«out of memory» 0 of 4 blocks":                                          true, // a count stands there
		"could not allocate: «out of memory»":                                    false,
		"«out of memory» on device 0":                                            false,
		"the run ended without a «hipErrorIllegalAddress»":                       true,
		"«hipErrorIllegalAddress» did not occur":                                 true,
		"«CUDA_ERROR_OUT_OF_MEMORY»: 0.5 GiB free":                               false,
		"it was not restarted after «OOMKilled»":                                 false,
	} {
		from := strings.Index(line, "«")
		to := strings.Index(line, "»") - len("«")
		plain := strings.NewReplacer("«", "", "»", "").Replace(line)
		if got := Denied(plain, from, to); got != want {
			t.Errorf("%q: denied %v, want %v", line, got, want)
		}
	}
}
