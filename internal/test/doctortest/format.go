// The shapes of messages and the machines they are printed for.
package doctortest

import (
	"encoding/json"
	"fmt"
	"strings"

	"gpumem/size"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// A card is a GPU with the total that its driver reports, in bytes.
type card struct {
	key, name string
	total     uint64
}

var (
	gt1000  = card{"4g", "Quadro P1000", 4240965632}
	rtx2070 = card{"8g", "NVIDIA GeForce RTX 2070", 8370061312}
	gtx1080 = card{"11g", "NVIDIA GeForce GTX 1080 Ti", 11720982528}
	t4      = card{"16g", "Tesla T4", 15828320256}
	rtx4090 = card{"24g", "NVIDIA GeForce RTX 4090", 25386352640}
	a100x40 = card{"40g", "NVIDIA A100-SXM4-40GB", 42298834944}
	h100    = card{"80g", "NVIDIA H100 80GB HBM3", 85045542912}
	h200    = card{"141g", "NVIDIA H200", 150109880320}
)

// part gives percent of n, rounded down to 256 bytes as pools round.
func part(n uint64, percent float64) uint64 {
	return uint64(float64(n)*percent/100) &^ 255
}

// An era is how a release prints the head of a log line.
type era string

const (
	era2018 era = "2018" // TensorFlow 1: the letter of the level first
	era2022 era = "2022" // TSL: the date, then the level
	era2025 era = "2025" // absl: the level and the date in one word, then the thread
	era2026 era = "2026" // absl before it is initialised: seconds since 1970
)

var eras = []era{era2018, era2022, era2025, era2026}

// at gives text as a log line of source file:line at level W, E, I or F.
func (e era) at(level, file string, line int, text string) string {
	switch e {
	case era2018:
		return fmt.Sprintf("%s tensorflow/%s:%d] %s\n", level, strings.TrimPrefix(file, "tensorflow/"), line, text)
	case era2022:
		return fmt.Sprintf("2022-11-05 14:03:27.482113: %s external/org_tensorflow/%s:%d] %s\n", level, file, line, text)
	case era2025:
		return fmt.Sprintf("%s0417 09:21:44.120934   31877 %s:%d] %s\n", level, file, line, text)
	default:
		return fmt.Sprintf("%s0000 00:00:1771234567.654321   31877 %s:%d] %s\n", level, file, line, text)
	}
}

// A state is what is known of the machine, in the schema of a state file.
type state struct {
	Devices []stateDevice  `json:"devices,omitempty"`
	Process *stateProcess  `json:"process,omitempty"`
	Tried   []stateAttempt `json:"tried,omitempty"`
}

type stateDevice struct {
	Index     int             `json:"index"`
	Name      string          `json:"name,omitempty"`
	Total     uint64          `json:"total_bytes,omitempty"`
	Used      uint64          `json:"used_bytes,omitempty"`
	Display   bool            `json:"display_active,omitempty"`
	Processes []stateNeighbor `json:"processes,omitempty"`
}

type stateNeighbor struct {
	PID        int      `json:"pid"`
	Name       string   `json:"name"`
	Used       uint64   `json:"used_bytes,omitempty"`
	Frameworks []string `json:"frameworks,omitempty"`
	ParentGone bool     `json:"parent_gone,omitempty"`
}

type stateProcess struct {
	Frameworks       []string          `json:"frameworks,omitempty"`
	Env              map[string]string `json:"env,omitempty"`
	Fraction         float64           `json:"per_process_memory_fraction,omitempty"`
	BackendRecreated bool              `json:"backend_recreated,omitempty"`
}

type stateAttempt struct {
	Env    map[string]string `json:"env"`
	Helped bool              `json:"helped"`
}

// json gives the state as text. Marshalling these types cannot fail.
func (s state) json() string {
	text, _ := json.MarshalIndent(s, "", " ")
	return string(text) + "\n"
}

// device gives the state of a card with its processes; what they use is its used memory.
func (c card) device(processes ...stateNeighbor) stateDevice {
	d := stateDevice{Name: c.name, Total: c.total, Processes: processes}
	for _, p := range processes {
		d.Used += p.Used
	}
	return d
}

// A row is a process of an nvidia-smi table.
type row struct {
	pid  int
	name string
	used uint64
}

// smi gives an nvidia-smi table of the card with these processes.
func smi(c card, rows ...row) string {
	var used uint64
	for _, r := range rows {
		used += r.used
	}
	var b strings.Builder
	b.WriteString("+-----------------------------------------------------------------------------------------+\n")
	b.WriteString("| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |\n")
	b.WriteString("|-----------------------------------------+------------------------+----------------------+\n")
	fmt.Fprintf(&b, "|   0  %-30.30s Off |   00000000:01:00.0 Off |                  N/A |\n", c.name)
	fmt.Fprintf(&b, "| 34%%   47C    P2             71W /  300W | %s |     12%%      Default |\n", smiMemory(used, c.total))
	b.WriteString("+-----------------------------------------+------------------------+----------------------+\n")
	b.WriteString("| Processes:                                                                              |\n")
	b.WriteString("|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |\n")
	for _, r := range rows {
		b.WriteString(smiRow(r) + "\n")
	}
	b.WriteString("+-----------------------------------------------------------------------------------------+\n")
	return b.String()
}

// smiMemory gives the memory column of an nvidia-smi table.
func smiMemory(used, total uint64) string {
	return fmt.Sprintf("%7dMiB / %6dMiB", used/mib, total/mib)
}

// smiRow gives the line of a process in an nvidia-smi table.
func smiRow(r row) string {
	return fmt.Sprintf("|    0   N/A  N/A   %8d      C   %-38.38s %8dMiB |", r.pid, r.name, r.used/mib)
}

// xla prints n as XLA's logs do, such as 1.50GiB.
func xla(n uint64) string { return size.XLA(int64(n)) }

// xlaLong prints n as messages with both forms do: 1.50GiB (1610612736 bytes).
func xlaLong(n uint64) string { return fmt.Sprintf("%s (%d bytes)", xla(n), n) }

// oldG prints n as StreamExecutor did until 2023, such as 2.44G.
func oldG(n uint64) string { return strings.TrimSuffix(xla(n), "iB") }

// torchSize prints n as PyTorch does, such as 20.00 MiB.
func torchSize(n uint64) string {
	switch {
	case n <= kib:
		return fmt.Sprintf("%d bytes", n)
	case n <= mib:
		return fmt.Sprintf("%.2f KiB", float64(n)/kib)
	case n <= gib:
		return fmt.Sprintf("%.2f MiB", float64(n)/mib)
	default:
		return fmt.Sprintf("%.2f GiB", float64(n)/gib)
	}
}

// gigabytes prints n as vLLM does, without a unit.
func gigabytes(n uint64) string { return fmt.Sprintf("%.2f", float64(n)/gib) }

// commas prints n with commas between thousands, as CuPy does.
func commas(n uint64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// memoryUsage is the line under a refused library handle since 2023.
func memoryUsage(free, total uint64) string {
	return fmt.Sprintf("Memory usage: %d bytes free, %d bytes total.", free, total)
}
