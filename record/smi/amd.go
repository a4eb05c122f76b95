package smi

// AMD's tools. amd-smi's table has the frame of nvidia-smi's, and other rows:
//
//	| 0000:2d:00.0  AMD Radeon RX 9070 XT | 6 %      62 °C   0           189/266 W |
//	|   0       0     N/A             N/A | 100 %   29.8 %          11541/16304 MB |
//
// rocm-smi prints a line for each value: GPU[0] : VRAM Total Used Memory (B): 1048576.

import (
	"strconv"
	"strings"
)

// amdRow reads one of the two rows of a GPU.
func (r *Reader) amdRow(n int, cells [4]string) bool {
	left, right := strings.Fields(cells[1]), strings.TrimSpace(cells[0])
	if len(left) < 2 {
		return false
	}
	if busID(left[0]) && strings.HasSuffix(right, " W") {
		c := r.current
		if !r.inTable(n) || r.table.part != gpuPart {
			c = r.beginTable(n, "amd-smi")
			r.table.amd = true
		}
		r.table.half = c.add(GPU{Index: -1, Name: clip(strings.Join(left[1:], " ")), Bus: clip(left[0]), Line: n}) != nil
		return true
	}
	index, ok := number(left[0])
	if !ok || !strings.HasSuffix(right, " MB") || !r.inTable(n) || !r.table.amd || !r.table.half {
		return false
	}
	r.table.half = false
	g := r.current.lastGPU()
	g.Index = index
	words := strings.Fields(right)
	if used, total, ok := strings.Cut(words[len(words)-2], "/"); ok {
		g.Used, g.HasUsed = amount(used)
		g.Total, _ = amount(total)
		g.UsedLine = n
	}
	return true
}

// amdProcess reads a process of amd-smi's table, whose sizes are host memory that the GPU
// sees (GTT), device memory, and both.
func (r *Reader) amdProcess(n, index int, words []string) bool {
	p := Process{}
	var ok bool
	if p.PID, ok = number(words[1]); !ok {
		return false
	}
	var sizes []uint64
	name := len(words)
	for i := 2; i+1 < len(words); i++ {
		if amount, ok := amount(words[i] + " " + words[i+1]); ok && strings.HasSuffix(words[i+1], "B") {
			sizes, name = append(sizes, amount), min(name, i)
			i++
		}
	}
	if len(sizes) == 3 {
		p.Used, p.HasUsed = sizes[1], true
	}
	p.Name = known(strings.Join(words[2:name], " "))
	r.keepProcess(n, index, p)
	return true
}

// rocmLine reads a value that rocm-smi prints for a GPU, and its list of processes.
func (r *Reader) rocmLine(n int, text string) bool {
	if strings.Contains(text, "GPU(s)") && strings.Contains(text, "VRAM USED") && strings.Contains(text, "PID") {
		r.begin(n, rocmForm, "rocm-smi").add(GPU{Index: -1, Line: n, ProcessesTold: true})
		r.monitor = monitorState{columns: []string{"PID"}, form: rocmForm, margin: marginOf(text, strings.Index(text, "PID"))}
		return true
	}
	_, rest, ok := strings.Cut(text, "GPU[")
	if !ok {
		return false
	}
	id, rest, ok := strings.Cut(rest, "]")
	index, isNumber := number(id)
	if !ok || !isNumber {
		return false
	}
	what, value, _ := strings.Cut(strings.TrimLeft(rest, " \t:"), ": ")
	value = strings.TrimSpace(value)
	bytes, err := strconv.ParseUint(value, 10, 50)
	switch what = strings.ToLower(what); {
	case what == "card series" || what == "card model":
		if g := r.rocmGPU(n, index, what); g != nil && g.Name == "" {
			g.Name = known(value)
		}
	case err != nil:
		return false
	case what == "vram total memory (b)":
		if g := r.rocmGPU(n, index, what); g != nil {
			g.Total, g.TotalLine = bytes, n
		}
	case what == "vram total used memory (b)":
		if g := r.rocmGPU(n, index, what); g != nil {
			g.Used, g.HasUsed, g.UsedLine = bytes, true, n
		}
	default:
		return false
	}
	return true
}

// rocmGPU returns the GPU to which a value belongs; the same value again is another reading.
func (r *Reader) rocmGPU(n, index int, what string) *GPU {
	if r.is(rocmForm) && r.monitor.columns == nil && n-r.last <= tableGap {
		g := r.current.gpu(n, index)
		again := g != nil && (what == "vram total memory (b)" && g.Total > 0 || what == "vram total used memory (b)" && g.HasUsed)
		if !again {
			r.last = n
			return g
		}
	}
	r.monitor = monitorState{}
	return r.begin(n, rocmForm, "rocm-smi").gpu(n, index)
}

// rocmProcess reads a row of rocm-smi's list of processes: PID, name, GPUs, device memory,
// SDMA, occupancy.
func (r *Reader) rocmProcess(n int, text string) bool {
	words := strings.Fields(text)
	if len(words) < 6 || !r.is(rocmForm) {
		return false
	}
	pid, ok := number(words[0])
	used, err := strconv.ParseUint(words[len(words)-3], 10, 50)
	if _, isCount := number(words[len(words)-4]); !ok || err != nil || !isCount {
		return false
	}
	name := known(strings.Join(words[1:len(words)-4], " "))
	r.current.lastGPU().addProcess(Process{PID: pid, Name: name, Used: used, HasUsed: true, Line: n})
	return true
}
