package smi

// CSV of nvidia-smi --query-gpu and --query-compute-apps. A heading names the columns, or
// the command that stands before the rows does. Without either, rows are read whose values
// can mean one thing only; see bareRow.

import (
	"slices"
	"strings"
	"time"
)

// maxNameless is how many GPUs one reading may have that nothing tells apart. More rows than
// that are one GPU over time: no machine has more.
const maxNameless = 16

// maxBare is how many commas a row without a heading may have.
const maxBare = 16

type queryState struct {
	columns  []string
	margin   margin
	apps     bool // the rows are processes
	last     int  // the line of the heading or the last row
	nameless bool // rows are samples of one GPU
}

// queryHeader reads a heading, or a command with its columns.
func (r *Reader) queryHeader(n int, text string) bool {
	if _, query, ok := strings.Cut(text, "--query-"); ok {
		name, list, ok := strings.Cut(query, "=")
		if ok && (name == "gpu" || name == "compute-apps") {
			if end := strings.IndexAny(list, " \t'\"`\\)"); end >= 0 {
				list = list[:end]
			}
			r.setColumns(n, strings.Split(list, ","), margin{})
			return false // it is a line of a shell or a program, which need not have run it
		}
	}
	if !namesColumn(text) {
		return false
	}
	fields := strings.Split(text, ",")
	first := strings.TrimRight(fields[0], " \t")
	if i := strings.LastIndexByte(first, '['); i > 0 {
		first = strings.TrimRight(first[:i], " \t")
	}
	at := strings.LastIndexAny(first, " \t") + 1
	fields[0] = fields[0][at:]
	if at > maxMargin || at > 0 && len(fields) == 1 {
		return false
	}
	if !r.setColumns(n, fields, marginOf(text, at)) {
		return false
	}
	if r.query.apps { // a heading without rows lists no process
		r.begin(n, appsForm, "nvidia-smi").add(GPU{Index: -1, Line: n, ProcessesTold: true})
	}
	return true
}

// namesColumn reports whether a line may have the name of a column of memory, such as memory.used or
// used_gpu_memory. In prose a full stop follows the word.
func namesColumn(text string) bool {
	const memory = "memory."
	for rest := text; ; {
		i := strings.Index(rest, memory)
		if i < 0 {
			return strings.Contains(text, "used_")
		}
		rest = rest[i+len(memory):]
		if rest != "" && 'a' <= rest[0] && rest[0] <= 'z' {
			return true
		}
	}
}

// setColumns sets the columns of the rows that follow, if they are those of a query for
// memory.
func (r *Reader) setColumns(n int, fields []string, m margin) bool {
	columns := make([]string, len(fields))
	wanted := false
	apps := slices.ContainsFunc(fields, func(f string) bool { return strings.TrimSpace(f) == "pid" })
	for i, f := range fields {
		name := strings.TrimSpace(f)
		if at := strings.IndexByte(name, '['); at > 0 && strings.HasSuffix(name, "]") {
			name = strings.TrimSpace(name[:at])
		}
		if !property(name) {
			return false
		}
		if name == "name" && apps {
			name = "process_name"
		}
		name = strings.TrimPrefix(name, "gpu_")
		switch name {
		case "used_memory", "used_gpu_memory":
			name = "used"
		case "bus_id", "gpu_bus_id", "gpu.bus_id":
			name = "pci.bus_id"
		}
		wanted = wanted || name == "used" || name == "memory.used" || name == "memory.total" || name == "memory.free"
		columns[i] = strings.Clone(name)
	}
	if !wanted {
		return false
	}
	r.finish()
	r.query = queryState{columns: columns, margin: m, apps: apps, last: n}
	return true
}

// property reports whether a text is the name of a property, such as pci.baseClass.
func property(name string) bool {
	if name == "" || name[0] < 'a' || name[0] > 'z' {
		return false
	}
	for _, c := range []byte(name) {
		if letter := 'a' <= c|0x20 && c|0x20 <= 'z'; !letter && !digit(c) && c != '.' && c != '_' {
			return false
		}
	}
	return true
}

// queryRow reads a row below a heading.
func (r *Reader) queryRow(n int, text string) bool {
	q := &r.query
	units := strings.HasSuffix(text, "MiB") || strings.Contains(text, " MiB,")
	far := n-q.last > tableGap || len(q.columns) < 3 && n-q.last > 1
	if far && !units {
		return false
	}
	line, ok := q.margin.cut(text)
	if !ok {
		return false
	}
	values := strings.Split(line, ",")
	if extra := len(values) - len(q.columns); extra > 0 { // a command line may have commas
		at := slices.Index(q.columns, "process_name")
		if at < 0 {
			return false
		}
		values[at] = strings.Join(values[at:at+extra+1], ",")
		values = slices.Delete(values, at+1, at+1+extra)
	}
	if len(values) != len(q.columns) {
		return false
	}
	row, ok := q.read(n, values)
	if !ok {
		return false
	}
	q.last = n
	if q.apps {
		r.keepApp(n, row)
	} else {
		r.keepGPU(n, row)
	}
	return true
}

// A row is what a line of CSV says.
type row struct {
	GPU
	process Process
	at      time.Time
	driver  string
}

// read takes the values of a row. ok is false if one is not what its column has.
func (q *queryState) read(n int, values []string) (row, bool) {
	w := row{GPU: GPU{Index: -1, Line: n}, process: Process{Line: n}}
	for i, column := range q.columns {
		value, ok := strings.TrimSpace(values[i]), true
		switch column {
		case "timestamp":
			w.at = timestamp(value)
			ok = !w.at.IsZero() || strings.Contains(value, ":")
		case "index":
			w.Index, ok = number(value)
		case "name":
			w.Name = known(value)
		case "uuid":
			w.UUID = known(value)
			ok = w.UUID == "" || strings.HasPrefix(value, "GPU-") || strings.HasPrefix(value, "MIG-")
		case "pci.bus_id":
			w.Bus = known(value)
			ok = w.Bus == "" || busID(value)
		case "driver_version":
			w.driver = known(value)
		case "display_active":
			w.Display = value == "Enabled" || value == "Yes"
		case "compute_mode":
			w.ComputeMode = known(value)
		case "mig.mode.current":
			w.MIG = strings.Trim(clip(value), "[]")
		case "pid":
			w.process.PID, ok = number(value)
			ok = ok || unknown(value)
		case "process_name":
			w.process.Name, w.process.Gone = known(value), gone(value)
		case "used":
			w.process.Used, w.process.HasUsed = amount(value)
			ok = w.process.HasUsed || unknown(value)
		default:
			ok = w.memory(column, value)
		}
		if !ok {
			return w, false
		}
	}
	return w, !w.HasUsed || w.Total == 0 || w.Used <= w.Total
}

// memory takes the value of a column of memory; other columns are left out.
func (w *row) memory(column, value string) bool {
	bytes, ok := amount(value)
	switch column {
	case "memory.total":
		w.Total = bytes
	case "memory.used":
		w.Used, w.HasUsed, w.UsedLine = bytes, ok, w.Line
	case "memory.free":
		w.Free, w.HasFree = bytes, ok
	case "memory.reserved":
		w.Reserved, w.HasReserved = bytes, ok
	default:
		return true
	}
	return ok || unknown(value)
}

// keepGPU adds a row to the current sweep over the GPUs, or begins the next.
func (r *Reader) keepGPU(n int, w row) {
	q := &r.query
	c := r.current
	named := w.key() != ""
	switch {
	case !r.is(queryForm) || q.nameless:
		c = nil
	case named && slices.ContainsFunc(c.GPUs, func(g GPU) bool { return g.key() == w.key() }):
		c = nil
	case !named && !w.at.IsZero() && w.at.Sub(c.Time).Abs() > 300*time.Millisecond:
		c = nil // the rows of one sweep are some milliseconds apart
	case !named && w.at.IsZero() && len(c.GPUs) == maxNameless:
		q.nameless = true
		c = r.splitNameless()
	}
	if c == nil {
		c = r.begin(n, queryForm, "nvidia-smi")
		c.Time, c.Driver = w.at, w.driver
	}
	c.add(w.GPU)
}

// splitNameless makes a reading of each GPU of the current one.
func (r *Reader) splitNameless() *Reading {
	whole := r.current
	r.current = nil
	for _, g := range whole.GPUs {
		one := *whole
		one.Line, one.GPUs = g.Line, []GPU{g}
		r.current = &one
		r.finish()
	}
	return nil
}

// key is what tells a GPU from others of its reading, empty if nothing does.
func (g *GPU) key() string {
	switch {
	case g.UUID != "":
		return g.UUID
	case g.Index >= 0:
		return string(rune('0' + g.Index))
	}
	return g.Bus
}

// keepApp adds a process to the current list, or begins the next.
func (r *Reader) keepApp(n int, w row) {
	c := r.current
	if r.is(appsForm) && c.hasApp(w) || !r.is(appsForm) || !c.Time.IsZero() && w.at.Sub(c.Time).Abs() > 300*time.Millisecond {
		c = r.begin(n, appsForm, "nvidia-smi")
	}
	if c.Time.IsZero() {
		c.Time = w.at
	}
	if c.Driver == "" {
		c.Driver = w.driver
	}
	if len(c.GPUs) == 1 && len(c.GPUs[0].Processes) == 0 && c.GPUs[0].key() == "" {
		c.GPUs = c.GPUs[:0] // it stood for the heading
	}
	i := slices.IndexFunc(c.GPUs, func(g GPU) bool { return g.key() == w.key() })
	if i < 0 {
		w.ProcessesTold = true
		if c.add(w.GPU) == nil {
			return
		}
		i = len(c.GPUs) - 1
	}
	if w.process.PID > 0 {
		c.GPUs[i].addProcess(w.process)
	}
}

// hasApp reports whether a process is listed on the GPU already.
func (c *Reading) hasApp(w row) bool {
	return slices.ContainsFunc(c.GPUs, func(g GPU) bool {
		return g.key() == w.key() && slices.ContainsFunc(g.Processes, func(p Process) bool { return p.PID == w.process.PID })
	})
}

// bareRow reads a row without a heading whose values can mean one thing only:
//
//	0, NVIDIA A100, 1234 MiB, 40960 MiB     used and total, since used, total is what is asked for
//	GPU-..., 4242, python, 1234 MiB         a process
//
// The smaller one of two amounts is taken for what is used only if it stands first.
func (r *Reader) bareRow(n int, text string) bool {
	if commas := strings.Count(text, ","); commas == 0 || commas > maxBare {
		return false
	}
	values := strings.Split(text, ",")
	var columns []string
	sizes, named := 0, false
	for i, v := range values {
		v = strings.TrimSpace(v)
		bytes, isSize := amount(v)
		_, isNumber := number(v)
		switch {
		case isSize && strings.HasSuffix(v, " MiB"):
			if sizes++; sizes == 2 {
				if before, _ := amount(values[i-1]); before > bytes {
					return false
				}
			}
			columns = append(columns, [...]string{"memory.used", "memory.total", ""}[min(sizes, 3)-1])
		case strings.HasPrefix(v, "GPU-"):
			columns, named = append(columns, "uuid"), true
		case isNumber && i <= 1 && slices.Contains(columns, "uuid"):
			columns = append(columns, "pid")
		case isNumber && i == 0:
			columns = append(columns, "index")
		case gpuName(v) && !slices.Contains(columns, "pid"):
			columns, named = append(columns, "name"), true
		case i > 0 && columns[i-1] == "pid":
			columns = append(columns, "process_name")
		default:
			return false
		}
	}
	apps := slices.Contains(columns, "pid")
	if !named || apps && sizes != 1 || !apps && sizes != 2 {
		return false
	}
	if apps {
		columns[slices.Index(columns, "memory.used")] = "used"
	}
	if !slices.Equal(r.query.columns, columns) {
		r.query = queryState{columns: columns, apps: apps}
	}
	r.query.last = n
	return r.queryRow(n, text)
}

// gpuName reports whether a text looks like the name of a GPU.
func gpuName(text string) bool {
	for _, brand := range []string{"NVIDIA ", "Tesla ", "GeForce ", "Quadro ", "TITAN ", "GRID "} {
		if strings.HasPrefix(text, brand) {
			return true
		}
	}
	return false
}
