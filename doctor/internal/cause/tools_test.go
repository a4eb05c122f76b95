package cause

import (
	"regexp"
	"strings"
	"testing"

	"gpumem/internal/test/doctortest"
)

// toolsOfNVIDIA are those that other makers' GPUs, and programs that draw, do not have.
var toolsOfNVIDIA = regexp.MustCompile(`nvidia-smi|CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|compute-sanitizer|\bxid\b|gpumem (?:ps|run)`)

// TestToolsOfThePlace: whatever fails, on a GPU of another maker nothing is proposed that only
// NVIDIA's have, and on Windows nothing that only Linux has,
// or the other way round.
func TestToolsOfThePlace(t *testing.T) {
	linux := regexp.MustCompile(`\bdmesg\b|free -h|LD_DEBUG|ldconfig|\| grep|gpumem run`)
	windows := regexp.MustCompile(`Task Manager,|Event Viewer|findstr`)
	nvidia := regexp.MustCompile(`NVIDIA|Tesla|GeForce|MiB \|`)
	logs := append([]string{
		"torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n",
		"RuntimeError: CUDA error: device-side assert triggered\n",
		"RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n",
		"RuntimeError: CUDA error: unspecified launch failure\n",
	}, neutralLogs...)
	for i, c := range doctortest.Cases() {
		if i%5 == 0 && c.State == "" && !strings.Contains(c.Log, "gpumem") && !nvidia.MatchString(c.Log) {
			logs = append(logs, c.Log)
		}
	}
	for _, place := range []struct {
		name, line string
		foreign    *regexp.Regexp
	}{
		{"AMD", "found 1 ROCm devices:\n", toolsOfNVIDIA},
		{"Intel", "device: XPU 0\n", toolsOfNVIDIA},
		{"Ascend", "device: NPU 0\n", toolsOfNVIDIA},
		{"Tenstorrent", "TT_FATAL: out of range\n", toolsOfNVIDIA},
		{"Windows", "C:\\Users\\me\\run.exe\n", linux},
		{"WSL, which is Linux", "Linux node1 5.15.90.1-microsoft-standard-WSL2\nC:\\Users\\me\\run.exe\n", windows},
	} {
		seen := map[string]bool{}
		for _, log := range logs {
			for _, x := range explainedLog(t, place.line+log) {
				for _, s := range append([]string{string(x.Decide)}, x.Remedy.Steps...) {
					if tool := place.foreign.FindString(s); tool != "" && !seen[s] {
						seen[s] = true
						t.Errorf("%s, %s (%s): %q in %q", place.name, x.Cause, x.Argument, tool, s)
					}
				}
			}
		}
	}
}

// TestToolsOfAMakerThatIsNamed: the name of a card, or a code of a maker's runtime, shows whose tools there are.
func TestToolsOfAMakerThatIsNamed(t *testing.T) {
	for log, tool := range map[string]string{
		"info:  AMD Radeon RX 6600 (RADV NAVI23):\nerr:   DxvkMemoryAllocator: Memory allocation failed\n":                      "nvtop",
		"\"GPU\": \"AMD Radeon(TM) Graphics\",\n\"Error\": \"ID3D12Device::CreateCommittedResource failed HRESULT=8007000e\"\n": "Task Manager",
		"RuntimeError: level_zero backend failed with error: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)\n":                       "xpu-smi",
	} {
		var said []string
		for _, x := range explainedLog(t, log) {
			said = append(append(said, string(x.Decide)), x.Remedy.Steps...)
		}
		all := strings.Join(said, "\n")
		if !strings.Contains(all, tool) || toolsOfNVIDIA.MatchString(all) {
			t.Errorf("%swant %s, and nothing of NVIDIA's:\n%s", log, tool, all)
		}
	}
}

// TestToolsAreInOrder: no row of the table is hidden by one before it, and each has a place that
// is known.
func TestToolsAreInOrder(t *testing.T) {
	lines := 0
	for line := range strings.Lines(toolsText) {
		if line[0] != '#' {
			lines++
		}
	}
	if lines != len(tools) {
		t.Errorf("%d lines, and %d tools", lines, len(tools))
	}
	known := " windows wsl draws other hip amd xpu npu tt apple tpu "
	for i, late := range tools {
		for _, place := range late.places {
			if !strings.Contains(known, " "+place+" ") {
				t.Errorf("%q is no place", place)
			}
		}
		for _, early := range tools[:i] {
			if strings.Join(early.places, " ") == strings.Join(late.places, " ") && strings.Contains(late.words, early.words) {
				t.Errorf("%q is never reached behind %q", late.words, early.words)
			}
		}
	}
}
