// Package smi reads what nvidia-smi, amd-smi and rocm-smi print, wherever it stands in a
// text: pasted into an issue, in the log of a program, or recorded over time.
//
// What is read, of NVIDIA's drivers 340 to 610:
//
//	nvidia-smi                      the table, with processes and MIG devices
//	nvidia-smi -L                   names and UUIDs
//	nvidia-smi -q                   memory, modes, processes, MIG devices
//	nvidia-smi --query-gpu=...      CSV, once or over time, with or without header and units
//	nvidia-smi --query-compute-apps=...
//	nvidia-smi dmon, pmon           with -o D, T or DT
//	amd-smi, amd-smi monitor        the table; VRAM_USED, VRAM_TOTAL, VRAM_USAGE
//	rocm-smi --showmeminfo vram, --showpids
//
// Not read: XML and JSON, accounted processes, topology, rocm-smi's table of percentages,
// amd-smi metric and process, xpu-smi, lines that were wrapped, and UTF-16, which callers
// decode.
//
// A [Reader] takes line by line and keeps what it found: whole tables, or parts where
// the text was cut. All sizes are bytes; all units of these tools are powers of 1024.
package smi

import (
	"io"
	"time"

	"gpumem/internal/input"
)

// Reading is what one run of a tool printed at one moment, or one row of a recording.
type Reading struct {
	// Time is as the tool printed it, taken for UTC; zero if unknown. Year 0 means that
	// only the time of the day is known.
	Time         time.Time
	Line         int    // where it begins
	Tool         string // nvidia-smi, amd-smi or rocm-smi
	Driver, CUDA string // versions, empty if unknown
	GPUs         []GPU

	form form
}

// GPU is what a reading says of one GPU.
type GPU struct {
	Index           int // -1 if unknown
	Name, UUID, Bus string
	// Total is 0 if unknown. The others are known where Has... is set. In a container with a
	// limiter that lost count Used can be above Total, up to 2^64.
	Total, Used, Free, Reserved   uint64
	HasUsed, HasFree, HasReserved bool
	Display                       bool   // it drives a display
	ComputeMode                   string // as printed: Default, E. Process, Exclusive_Process, Prohibited
	MIG                           string // as printed: Enabled, Disabled, N/A; empty if unknown
	Line                          int
	UsedLine                      int        // where Used stands, 0 if unknown
	TotalLine                     int        // where Total stands, if that is another line
	FreeLine, ReservedLine        int        // likewise
	Instances                     []Instance // MIG devices
	Processes                     []Process
	// ProcessesTold reports whether the reading lists processes, so that no process means
	// that the tool saw none. In a container it sees none of other containers.
	ProcessesTold bool

	untold bool // the tool printed that it cannot list the processes of this GPU
}

// Instance is a MIG device.
type Instance struct {
	Index   int // of the MIG device on its GPU
	GI, CI  int // -1 if unknown
	Name    string
	UUID    string
	Total   uint64 // 0 if unknown
	Used    uint64
	HasUsed bool
	Line    int
}

// Process is a process that uses a GPU.
type Process struct {
	PID        int
	Name, Type string // Type is C, G, C+G or M+C; empty if unknown
	// Gone is set where the tool found no program of this number and printed Unknown Error or
	// [Not Found]: it has ended, or is of another PID namespace, such as a container.
	Gone    bool
	GI      int    // of the MIG device in a table; below 0 if unknown
	Used    uint64 // device memory
	HasUsed bool
	Line    int
}

// Read reads a text to its end, in memory that does not grow with its length: of a long
// recording only some of the readings are kept. The error is that of r.
func Read(r io.Reader) ([]Reading, error) {
	all, err := readAll(r)
	return all.Readings(), err
}

// Summary reads a text to its end and sums up the use of each GPU over time; see
// [Reader.Summary].
func Summary(r io.Reader) ([]Series, error) {
	all, err := readAll(r)
	return all.Summary(), err
}

func readAll(in io.Reader) (*Reader, error) {
	var r Reader
	lines := input.NewLines(in)
	for lines.Next() {
		r.Line(lines.Number(), string(lines.Text()))
	}
	return &r, lines.Err()
}
