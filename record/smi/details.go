package smi

// nvidia-smi -L and -q. The first is a line for each GPU and MIG device:
//
//	GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-...)
//	  MIG 1g.5gb      Device  0: (UUID: MIG-...)
//
// The second is "Name : value", indented by sections.

import (
	"slices"
	"strings"
)

type detailsState struct {
	open    bool
	margin  margin
	section string
	indent  int // of the section MIG Device
	inMIG   bool
	count   int // of the attached GPUs
}

// listLine reads a line of -L.
func (r *Reader) listLine(n int, text string) bool {
	if i := strings.Index(text, "MIG "); i >= 0 && r.is(listForm) && strings.Contains(text[i:], "(UUID: MIG-") {
		return r.listInstance(n, text[i:])
	}
	at := strings.Index(text, "GPU ")
	uuid := strings.LastIndex(text, " (UUID: ")
	if at < 0 || uuid < at+len("GPU ") {
		return false
	}
	id, name, _ := strings.Cut(text[at+len("GPU "):uuid], ": ")
	index, ok := number(id)
	if !ok {
		return false
	}
	if g := r.lastOf(listForm); g == nil || g.Index >= index || n-r.last > tableGap {
		r.begin(n, listForm, "nvidia-smi")
	}
	r.current.add(GPU{Index: index, Name: clip(name), UUID: clip(text[uuid+len(" (UUID: ") : len(text)-1]), Line: n})
	r.last = n
	return true
}

// lastOf returns the last GPU of the current reading, nil if that has another form.
func (r *Reader) lastOf(f form) *GPU {
	if !r.is(f) {
		return nil
	}
	return r.current.lastGPU()
}

// listInstance reads a MIG device of -L: MIG 1g.5gb Device 0: (UUID: ...), or before driver
// 470 MIG Device 0: (UUID: ...).
func (r *Reader) listInstance(n int, text string) bool {
	before, uuid, _ := strings.Cut(text, "(UUID: ")
	words := strings.Fields(strings.TrimRight(before, ": "))
	index, ok := number(words[len(words)-1])
	g := r.current.lastGPU()
	if !ok || g == nil || len(words) < 3 || len(g.Instances) == maxGPUs {
		return ok
	}
	i := Instance{Index: index, GI: -1, CI: -1, UUID: clip(strings.TrimSuffix(uuid, ")")), Line: n}
	if len(words) > 3 {
		i.Name = clip(words[1])
	}
	g.Instances = append(g.Instances, i)
	r.last = n
	return true
}

// heading is what -q begins with.
const heading = "==============NVSMI LOG=============="

// detailsBegin begins -q at its heading, at a GPU, or at the section of memory.
func (r *Reader) detailsBegin(n int, text string) bool {
	at := -1
	switch last := text[len(text)-1]; {
	case last == '=':
		at = strings.Index(text, heading)
	case digit(last):
		at = busAt(text)
	case strings.HasSuffix(text, "FB Memory Usage"):
		at = max(0, len(text)-len("    FB Memory Usage"))
	}
	if at < 0 || at > maxMargin {
		return false
	}
	if strings.Trim(text[:at], "`") == "" {
		at = 0 // the beginning of a quotation
	}
	r.begin(n, detailsForm, "nvidia-smi")
	r.details = detailsState{open: true, margin: marginOf(text, at)}
	return r.detail(n, text)
}

// busAt is where "GPU " and the address of a device stand at the end of a text, -1 if they
// do not.
func busAt(text string) int {
	for _, width := range []int{len("0000:01:00.0"), len("00000000:01:00.0")} {
		at := len(text) - width - len("GPU ")
		if at >= 0 && text[at:at+len("GPU ")] == "GPU " && busID(text[at+len("GPU "):]) {
			return at
		}
	}
	return -1
}

// detail reads a line of -q.
func (r *Reader) detail(n int, text string) bool {
	d := &r.details
	if !r.is(detailsForm) {
		d.open = false
		return false
	}
	line, ok := d.margin.cut(text)
	if !ok {
		d.open = len(text) < d.margin.width // nothing but a prefix
		return false
	}
	indent := len(line) - len(strings.TrimLeft(line, " "))
	key, value, pair := strings.Cut(line[indent:], " : ")
	key, value = strings.Trim(key, " `"), strings.TrimSpace(value)
	switch {
	case strings.HasPrefix(key, "=====") && strings.HasSuffix(key, "====="):
		if len(r.current.GPUs) > 0 || r.current.Driver != "" {
			r.begin(n, detailsForm, "nvidia-smi")
			*d = detailsState{open: true, margin: d.margin}
		}
	case !pair && strings.HasPrefix(key, "GPU ") && busID(key[len("GPU "):]):
		r.detailsGPU(n, key[len("GPU "):])
	case indent < 4 && !(pair && r.general(key, value)):
		d.open = false // what follows may be indented as well
		return false
	case !pair:
		if g := r.current.lastGPU(); strings.HasSuffix(key, "FB Memory Usage") && g != nil && g.HasUsed && g.Bus == "" && !d.inMIG {
			r.current.add(GPU{Index: -1, Line: n}) // cut out of what was printed of another one, or at another time
		}
		d.enter(key, indent)
	case indent >= 4:
		r.value(n, key, value)
	}
	r.last = n
	return true
}

// detailsGPU begins a GPU.
func (r *Reader) detailsGPU(n int, bus string) {
	for _, g := range r.current.GPUs {
		if g.Bus == bus { // -q with -l
			count := r.details.count
			r.begin(n, detailsForm, "nvidia-smi")
			r.details.count = count
			break
		}
	}
	r.details.section, r.details.inMIG = "", false
	r.current.add(GPU{Index: -1, Bus: clip(bus), Line: n})
}

// general reads a value that stands before the GPUs.
func (r *Reader) general(key, value string) bool {
	switch key {
	case "Timestamp":
		r.current.Time = timestamp(value)
	case "Driver Version", "KMD Version":
		r.current.Driver = after(value, "") // without the remark of driver 610 that it has a new name
	case "CUDA Version", "CUDA UMD Version":
		r.current.CUDA = after(value, "")
	case "Attached GPUs":
		r.details.count, _ = number(value)
	default:
		return len(r.current.GPUs) == 0
	}
	return true
}

// enter enters a section.
func (d *detailsState) enter(name string, indent int) {
	switch {
	case strings.HasPrefix(name, "MIG Device"):
		d.inMIG, d.indent = true, indent
	case d.inMIG && indent <= d.indent:
		d.inMIG = false
	}
	d.section = strings.TrimPrefix(name, "Shared ")
}

// value reads a value of a GPU.
func (r *Reader) value(n int, key, value string) {
	g := r.current.lastGPU()
	if g == nil { // the text begins within a GPU
		g = r.current.add(GPU{Index: -1, Line: n})
	}
	switch key {
	case "Product Name":
		g.Name = known(value)
	case "GPU UUID":
		g.UUID = known(value)
	case "Display Active":
		g.Display = value == "Enabled" || value == "Yes"
	case "Compute Mode":
		g.ComputeMode = known(value)
	case "Processes": // Processes : None
		g.ProcessesTold = value == "None"
	}
	switch section := r.details.section; {
	case r.details.inMIG:
		g.instanceValue(n, section, key, value)
	case section == "MIG Mode" && key == "Current":
		g.MIG = clip(value)
	case section == "FB Memory Usage":
		g.memoryValue(n, key, value)
	case section == "Processes":
		g.processValue(n, key, value)
	}
}

func (g *GPU) memoryValue(n int, key, value string) {
	bytes, ok := amount(value)
	switch {
	case !ok:
	case key == "Total":
		g.Total, g.TotalLine = bytes, n
	case key == "Used":
		g.Used, g.HasUsed, g.UsedLine = bytes, true, n
	case key == "Free":
		g.Free, g.HasFree, g.FreeLine = bytes, true, n
	case key == "Reserved":
		g.Reserved, g.HasReserved, g.ReservedLine = bytes, true, n
	}
}

func (g *GPU) processValue(n int, key, value string) {
	if key == "Process ID" {
		if pid, ok := number(value); ok {
			g.ProcessesTold = true
			g.addProcess(Process{PID: pid, Line: n})
		}
		return
	}
	if len(g.Processes) == 0 {
		return
	}
	switch p := &g.Processes[len(g.Processes)-1]; key {
	case "Type":
		p.Type = known(value)
	case "Name":
		p.Name, p.Gone = known(value), gone(value)
	case "Used GPU Memory":
		p.Used, p.HasUsed = amount(value)
	}
}

func (g *GPU) instanceValue(n int, section, key, value string) {
	if index, ok := number(value); key == "Index" && ok && len(g.Instances) < maxGPUs {
		g.Instances = append(g.Instances, Instance{Index: index, GI: -1, CI: -1, Line: n})
	}
	if len(g.Instances) == 0 {
		return
	}
	i := &g.Instances[len(g.Instances)-1]
	memory := strings.HasPrefix(section, "FB Memory")
	switch {
	case key == "GPU Instance ID":
		i.GI, _ = number(value)
	case key == "Compute Instance ID":
		i.CI, _ = number(value)
	case key == "MIG UUID" || key == "MIG Device UUID":
		i.UUID = known(value)
	case memory && key == "Total":
		i.Total, _ = amount(value)
	case memory && key == "Used":
		i.Used, i.HasUsed = amount(value)
	}
}

// says reports whether the reading has more than an address.
func (d *detailsState) says(c *Reading) bool {
	return c.Driver != "" || slices.ContainsFunc(c.GPUs, func(g GPU) bool {
		return g.Total > 0 || g.HasUsed || g.Name != "" || g.ProcessesTold || len(g.Instances) > 0
	})
}

// number gives the GPUs their indexes, if all that are attached are listed.
func (d *detailsState) number(c *Reading) {
	if d.count == len(c.GPUs) {
		for i := range c.GPUs {
			c.GPUs[i].Index = i
		}
	}
}
