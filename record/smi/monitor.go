package smi

// Columns below a heading, again and again: dmon and pmon, whose heading begins with '#',
// and amd-smi monitor.
//
//	#Time        gpu    sm   mem    fb  bar1        # gpu        pid  type    fb   command
//	#HH:MM:SS    Idx     %     %    MB    MB        # Idx          #   C/G    MB   name
//	 21:54:15      0    17     7  2287    23            0       4242     C  7669   python

import (
	"slices"
	"strings"
	"time"
)

type monitorState struct {
	columns []string
	form    form
	margin  margin
	amd     bool
	foreign int // lines of others in a row
}

// monitorHeader reads a heading of dmon and pmon.
func (r *Reader) monitorHeader(n int, text string, at int) bool {
	rest := text[at+1:]
	if !strings.Contains(rest[:min(len(rest), 40)], "gpu") {
		return r.monitor.columns != nil && strings.Contains(rest, "Idx") // units
	}
	columns := strings.Fields(strings.ToLower(rest))
	gpu := slices.Index(columns, "gpu")
	if gpu < 0 || gpu > 2 || gpu >= 1 && columns[gpu-1] != "time" && columns[gpu-1] != "date" {
		return false
	}
	pid, sm, fb := slices.Contains(columns, "pid"), slices.Contains(columns, "sm"), slices.Contains(columns, "fb")
	if !sm && !fb && !slices.Contains(columns, "pwr") {
		return false
	}
	m := monitorState{columns: columns, form: dmonForm, margin: marginOf(text, at)}
	if pid {
		m.form = pmonForm
	}
	if !r.is(m.form) || !slices.Equal(r.monitor.columns, columns) { // a repeated heading changes nothing
		r.finish()
		r.monitor = m
	}
	return true
}

// amdMonitorHeader reads the heading of amd-smi monitor.
func (r *Reader) amdMonitorHeader(_ int, text string) bool {
	if !strings.Contains(text, "VRAM_US") {
		return false
	}
	columns := strings.Fields(strings.ToLower(text))
	gpu := slices.Index(columns, "gpu")
	if gpu < 0 || !slices.Contains(columns, "vram_used") && !slices.Contains(columns, "vram_usage") {
		return false
	}
	r.finish()
	r.monitor = monitorState{columns: columns[gpu:], form: dmonForm, margin: marginOf(text, strings.Index(text, "GPU")), amd: true}
	return true
}

// monitorRow reads a row below the heading.
func (r *Reader) monitorRow(n int, text string) bool {
	m := &r.monitor
	line, ok := m.margin.cut(text)
	switch {
	case !ok:
	case m.form == rocmForm:
		ok = r.rocmProcess(n, line)
	case m.amd:
		ok = r.monitorValues(n, joinUnits(strings.Fields(line)))
	default:
		ok = r.monitorValues(n, strings.Fields(line))
	}
	if m.foreign++; ok {
		m.foreign = 0
	} else if m.foreign > tableGap {
		m.columns = nil
	}
	return ok
}

// monitorValues takes the values of a row.
func (r *Reader) monitorValues(n int, values []string) bool {
	m := &r.monitor
	columns := m.columns
	if m.form == pmonForm && len(values) >= len(columns)-1 && columns[len(columns)-1] == "command" {
		name := strings.Join(values[min(len(values), len(columns)-1):], " ")
		values = append(values[:len(columns)-1:len(columns)-1], name)
	}
	if len(values) != len(columns) {
		return false
	}
	w := sample{GPU: GPU{Index: -1, Line: n, UsedLine: n}, process: Process{Line: n}}
	for i, name := range columns {
		memory := strings.HasPrefix(name, "vram")
		if !w.take(name, values[i]) && (!m.amd || memory || name == "gpu") {
			return false // of other columns amd-smi has many, with values of all kinds
		}
	}
	r.keepSample(n, w.GPU, w.process, clockOf(w.day, w.clock))
	return true
}

// A sample is what a row says.
type sample struct {
	GPU
	process    Process
	day, clock string
}

// take takes the value of a column, and reports whether it is one that the column may have.
func (w *sample) take(name, value string) (ok bool) {
	switch name {
	case "date":
		w.day = value
	case "time":
		w.clock = value
	case "gpu":
		w.Index, ok = number(value)
		return ok
	case "pid":
		w.process.PID, ok = number(value)
		return ok || value == "-"
	case "type":
		w.process.Type = known(value)
		return value == "-" || processType(value)
	case "command":
		w.process.Name = known(value)
	case "fb", "vram_used":
		w.Used, w.HasUsed = amount(value)
		return w.HasUsed || unknown(value)
	case "vram_total":
		w.Total, ok = amount(value)
		return ok || unknown(value)
	case "vram_usage": // 3.0/191.7 GB
		used, total, _ := strings.Cut(value, "/")
		if _, unit, cut := strings.Cut(total, " "); cut {
			w.Used, w.HasUsed = amount(used + " " + unit)
		}
		w.Total, ok = amount(total)
		return ok
	default:
		return value == "-" || digit(value[0])
	}
	return true
}

// keepSample adds the row to the current sweep over the GPUs, or begins the next.
func (r *Reader) keepSample(n int, g GPU, p Process, at time.Time) {
	f := r.monitor.form
	c := r.current
	tool := "nvidia-smi"
	if r.monitor.amd {
		tool = "amd-smi"
	}
	if f == dmonForm {
		if !r.is(f) || slices.ContainsFunc(c.GPUs, func(o GPU) bool { return o.Index >= g.Index }) {
			c = r.begin(n, f, tool)
			c.Time = at
		}
		c.add(g)
		return
	}
	p.Used, p.HasUsed = g.Used, g.HasUsed
	if !r.is(f) || !c.Time.Equal(at) || c.lastGPU().Index > g.Index || c.lastGPU().Index == g.Index && c.lastGPU().has(p.PID) {
		c = r.begin(n, f, tool)
		c.Time = at
	}
	if to := c.gpu(n, g.Index); to != nil {
		to.ProcessesTold = true
		if p.PID > 0 {
			to.addProcess(p)
		}
	}
}

// has reports whether the GPU lists a process, or lists none, which pmon says by a row.
func (g *GPU) has(pid int) bool {
	return len(g.Processes) == 0 || slices.ContainsFunc(g.Processes, func(p Process) bool { return p.PID == pid })
}

// clockOf is the time of a row: 20240104 and 13:54:35, either of them possibly missing.
func clockOf(day, clock string) (t time.Time) {
	switch {
	case day != "" && clock != "":
		t, _ = time.Parse("20060102 15:04:05", strings.ReplaceAll(strings.ReplaceAll(day, "/", ""), "-", "")+" "+clock)
	case clock != "":
		t, _ = time.Parse("15:04:05", clock)
	}
	return t
}

// joinUnits puts units to their numbers: 283 MB is one value.
func joinUnits(words []string) []string {
	var out []string
	for _, w := range words {
		switch w {
		case "W", "°C", "C", "%", "MHz", "MB", "GB", "KB", "B", "Mb/s", "RPM":
			if len(out) > 0 {
				out[len(out)-1] += " " + w
				continue
			}
		}
		out = append(out, w)
	}
	return out
}
