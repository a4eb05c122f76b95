package smi

// The table of nvidia-smi, and amd-smi's, which is made after it.
//
//	|   0  NVIDIA A100-PCIE-40GB          On  | 00000000:21:00.0 Off |                   On |
//	| N/A   28C    P0              31W / 250W |     50MiB / 40960MiB |     N/A      Default |
//	|                                         |                      |              Enabled |
//
// Cells are counted from the right, since a log may put a prefix before the table, bars in it
// included. A row is known by its cells alone, so that a table may be cut at its top.

import "strings"

// A part is a section of the table.
type part uint8

const (
	gpuPart part = iota
	migPart
	processPart
)

type tableState struct {
	part    part
	amd     bool
	untyped bool // processes have no type: up to driver 343
	rule    int  // the line of the last rule under a heading
	half    bool // the first row of a GPU came, and not its second
}

// inTable reports whether a line may go on with the current table.
func (r *Reader) inTable(n int) bool { return r.is(tableForm) && n-r.last <= tableGap }

// cellsOf are the last four cells of a line that ends in a bar, the rightmost first.
func cellsOf(text string) (cells [4]string, count int) {
	end := len(text) - 1
	for count < len(cells) {
		bar := strings.LastIndexByte(text[:end], '|')
		if bar < 0 {
			break
		}
		cells[count] = text[bar+1 : end]
		count++
		end = bar
	}
	return cells, count
}

// tableLine reads a line that ends in a bar.
func (r *Reader) tableLine(n int, text string) bool {
	cells, count := cellsOf(text)
	if count == 0 {
		return false
	}
	first := strings.TrimSpace(cells[0])
	switch {
	case r.wholeRow(n, first), r.processRow(n, first):
	case count >= 4 && r.migRow(n, cells):
	case count >= 3 && r.gpuRow(n, cells):
	case count >= 2 && r.amdRow(n, cells):
	default:
		if strings.HasSuffix(first, "==") {
			r.table.rule = n
		}
		return r.inTable(n) && columnHeading(first)
	}
	r.last = n
	return true
}

// columnHeading reports whether the last cell of a row is that of a rule or a heading. Logs
// have lines in bars, too.
func columnHeading(cell string) bool {
	if strings.Trim(cell, "-=+ ") == "" {
		return true
	}
	for _, heading := range []string{"GPU", "Volatile", "MIG M.", "Shared", "CE ", "ID ", "ECC", "No MIG devices", "VBIOS", "Platform", "Mem-Uti", "GFX-Uti"} {
		if strings.HasPrefix(cell, heading) {
			return true
		}
	}
	return false
}

// wholeRow reads a row of one cell that has a fixed text.
func (r *Reader) wholeRow(n int, cell string) bool {
	switch {
	case strings.HasPrefix(cell, "NVIDIA-SMI "):
		c := r.beginTable(n, "nvidia-smi")
		c.Driver = after(cell, "Driver Version:", "KMD Version:")
		c.CUDA = after(cell, "CUDA Version:", "CUDA UMD Version:")
	case strings.HasPrefix(cell, "AMD-SMI "):
		r.beginTable(n, "amd-smi").Driver = after(cell, "amdgpu version:")
		r.table.amd = true
	case !r.inTable(n) && !strings.HasPrefix(cell, "No running "):
		return false
	case strings.HasPrefix(cell, "MIG devices:"):
		r.table.part = migPart
	case strings.HasPrefix(cell, "Processes:"), strings.HasPrefix(cell, "Compute processes:"):
		r.table.part = processPart
		r.table.untyped = strings.HasPrefix(cell, "Compute")
	case strings.HasPrefix(cell, "No running ") && strings.Contains(cell, "processes found"):
		r.tellProcesses(n)
	case strings.HasSuffix(cell, " Not Supported") && r.table.part == processPart:
		if index, ok := number(strings.TrimSpace(strings.TrimSuffix(cell, "Not Supported"))); ok {
			if g := r.current.gpu(n, index); g != nil {
				g.untold, g.ProcessesTold = true, false
			}
		}
	default:
		return false
	}
	return true
}

// after is the word behind one of the labels; empty if it stands for no value.
func after(text string, labels ...string) string {
	for _, label := range labels {
		if _, rest, ok := strings.Cut(text, label); ok {
			if words := strings.Fields(rest); len(words) > 0 {
				return known(words[0])
			}
		}
	}
	return ""
}

// beginTable begins a reading, with the date that stands shortly before it.
func (r *Reader) beginTable(n int, tool string) *Reading {
	c := r.begin(n, tableForm, tool)
	if !r.date.IsZero() && n-r.dateLine <= 3 {
		c.Time = r.date
	}
	r.table = tableState{}
	return c
}

// tellProcesses marks that the processes of all GPUs are listed.
func (r *Reader) tellProcesses(n int) {
	if !r.inTable(n) {
		r.beginTable(n, "nvidia-smi")
	}
	c := r.current
	if len(c.GPUs) == 0 {
		c.add(GPU{Index: -1, Line: n})
	}
	for i := range c.GPUs {
		c.GPUs[i].ProcessesTold = !c.GPUs[i].untold
	}
	r.table.part = processPart
}

// gpuRow reads one of the three rows of a GPU.
func (r *Reader) gpuRow(n int, cells [4]string) bool {
	left, middle, right := strings.Fields(cells[2]), strings.Fields(cells[1]), strings.TrimSpace(cells[0])
	switch {
	case len(middle) == 2 && busID(middle[0]) && len(left) >= 2:
		return r.nameRow(n, left, middle)
	case len(left) == 0 && len(middle) == 0:
		return r.migMode(n, right)
	}
	used, total, ok := usage(cells[1])
	second := r.inTable(n) && r.table.half
	if len(left) < 3 || len(middle) == 0 || !ok && !second {
		return false
	}
	if !ok && !unknown(middle[0]) && !unknown(strings.Join(middle, " ")) {
		return false
	}
	if !second {
		if r.continueTable(n).add(GPU{Index: -1, Line: n}) == nil {
			return true
		}
	}
	r.table.half = false
	g := r.current.lastGPU()
	if ok {
		g.Used, g.HasUsed, g.UsedLine, g.Total = used, true, n, total
	}
	if words := strings.Fields(right); len(words) > 1 {
		g.ComputeMode = known(strings.Join(words[1:], " "))
	}
	return true
}

// continueTable returns the current table if GPUs may follow in it, or begins another.
func (r *Reader) continueTable(n int) *Reading {
	if r.inTable(n) && r.table.part == gpuPart {
		return r.current
	}
	return r.beginTable(n, "nvidia-smi")
}

// nameRow reads the first row of a GPU.
func (r *Reader) nameRow(n int, left, middle []string) bool {
	index, ok := number(left[0])
	if !ok {
		return false
	}
	c := r.continueTable(n)
	if g := c.lastGPU(); g != nil && g.Index >= index {
		c = r.beginTable(n, "nvidia-smi") // the same table again, without what stands above it
	} else if g != nil && g.Index < 0 {
		g.Index = index - 1 // the table was cut within the first GPU
	}
	name := left[1:]
	switch name[len(name)-1] {
	case "On", "Off", "N/A", "WDDM", "TCC", "MCDM":
		name = name[:len(name)-1]
	}
	g := c.add(GPU{Index: index, Name: clip(strings.Join(name, " ")), Bus: clip(middle[0]), Display: middle[1] == "On", Line: n})
	r.table.half = g != nil
	return true
}

// migMode reads the third row of a GPU.
func (r *Reader) migMode(n int, mode string) bool {
	if !r.inTable(n) {
		return false
	}
	switch strings.TrimSuffix(mode, "*") {
	case "Enabled", "Disabled", "N/A", "ERR!":
	default:
		return false
	}
	if g := r.current.lastGPU(); g != nil && r.table.part == gpuPart && g.MIG == "" {
		g.MIG = clip(mode)
	}
	return true
}

// migRow reads a MIG device; the row below has the memory of its BAR1.
func (r *Reader) migRow(n int, cells [4]string) bool {
	ids := strings.Fields(cells[3])
	used, total, ok := usage(cells[2])
	if len(ids) == 0 && ok && r.inTable(n) && r.table.part == migPart {
		return true
	}
	if len(ids) != 4 || !ok && strings.TrimSpace(cells[2]) != "" {
		return false
	}
	var at [4]int
	for i, id := range ids {
		if at[i], ok = number(id); !ok {
			return false
		}
	}
	if !r.inTable(n) {
		r.beginTable(n, "nvidia-smi")
	}
	r.table.part = migPart
	if g := r.current.gpu(n, at[0]); g != nil && len(g.Instances) < maxGPUs {
		if last := len(g.Instances) - 1; total == 0 && last >= 0 && g.Instances[last].GI == at[1] {
			used, total = g.Instances[last].Used, g.Instances[last].Total // the instance's memory, which both use
		}
		g.Instances = append(g.Instances, Instance{Index: at[3], GI: at[1], CI: at[2], Total: total, Used: used, HasUsed: total > 0, Line: n})
	}
	return true
}

// processRow reads a process: GPU, with or without instances, PID, type, name, memory.
func (r *Reader) processRow(n int, cell string) bool {
	words := strings.Fields(cell)
	if len(words) < 3 {
		return false
	}
	index, ok := number(words[0])
	if !ok {
		return false
	}
	if r.table.amd && r.inTable(n) {
		return r.amdProcess(n, index, words)
	}
	p, ok := processOf(words, r.table.untyped && r.table.part == processPart && r.inTable(n))
	if !ok {
		return false
	}
	r.keepProcess(n, index, p)
	return true
}

// keepProcess adds a process to its GPU in the current table, or begins one.
func (r *Reader) keepProcess(n, index int, p Process) {
	if !r.inTable(n) {
		r.beginTable(n, "nvidia-smi")
	}
	p.Line = n
	if c := r.current; len(c.GPUs) == 1 && c.GPUs[0].Index < 0 {
		c.GPUs[0].Index = index // the table was cut within its only GPU
	}
	r.current.gpu(n, index).addProcess(p)
	r.tellProcesses(n)
}

// processOf reads the words of a process's row.
func processOf(words []string, untyped bool) (p Process, ok bool) {
	p.GI = -1
	last := words[len(words)-1]
	if last == "MiB" && len(words) > 3 {
		words = words[:len(words)-1]
		last = words[len(words)-1] + "MiB"
	}
	if p.Used, p.HasUsed = amount(last); !strings.HasSuffix(last, "MiB") || !p.HasUsed {
		if p.Used, p.HasUsed = 0, false; !unknown(last) {
			return p, false
		}
	}
	words = words[1 : len(words)-1]
	switch {
	case len(words) >= 2 && processType(words[1]):
		p.Type, words = clip(words[1]), append(words[:1:1], words[2:]...)
	case len(words) >= 4 && processType(words[3]):
		if gi, ok := number(words[0]); ok {
			p.GI = gi
		}
		p.Type, words = clip(words[3]), append(words[2:3:3], words[4:]...)
	case !untyped || len(words) < 2:
		return p, false
	}
	name := strings.Join(words[1:], " ")
	p.Name, p.Gone = known(name), gone(name)
	p.PID, ok = number(words[0])
	return p, ok
}

func processType(text string) bool {
	switch text {
	case "C", "G", "C+G", "G+C", "M", "M+C", "C+M", "M+C+G":
		return true
	}
	return false
}

// bareMemory reads a line of nothing but "123MiB / 456MiB", as people cut it out of a table.
func (r *Reader) bareMemory(n int, text string) bool {
	used, total, ok := usage(strings.Trim(text, " \t|*`"))
	if !ok || used > total || total < 256<<20 || strings.Count(text, "MiB") != 2 {
		return false
	}
	r.continueTable(n).add(GPU{Index: -1, Used: used, HasUsed: true, UsedLine: n, Total: total, Line: n})
	r.last = n
	return true
}
