package inventory

// GPUs with their processes, by nvidia-smi or by the state of a machine.

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gpumem/node/machine"
	"gpumem/record/smi"
)

// A card is a GPU with who uses it. A figure is known if its Text is not empty or Line is set.
type card struct {
	name              string
	total, used, free *figure
	processes         []process
	told              bool // the processes are known
}

// A process uses a card.
type process struct {
	pid, parent int
	name, kind  string
	command     string
	orphan, jax bool
	noJAX       bool // it has loaded other frameworks only
	used        *figure
	pool        *machine.PoolUse
}

// cards merges the last readings of each GPU.
func (r *Reader) cards() (cards []card) {
	at := map[string]int{}
	for _, reading := range r.smi.Readings() {
		for _, g := range reading.GPUs {
			bare := g.Index < 0 && g.Name == "" && g.UUID == ""
			if !g.HasUsed && g.Processes == nil || bare && !row.MatchString(r.texts[g.UsedLine]) {
				continue // other programs print "3 MiB / 8 MiB" as well
			}
			name := "GPU"
			switch {
			case g.Index >= 0:
				name = fmt.Sprintf("GPU %d", g.Index)
			case g.UUID != "":
				name = g.UUID
			}
			i, ok := at[name]
			if !ok {
				i = len(cards)
				at[name] = i
				cards = append(cards, card{name: name})
			}
			cards[i].read(g)
		}
	}
	return cards
}

// The list of gpumem ps: a line for each device, and a row for each program.
var (
	psDevice  = with(`^\s*(\S+)(?: .*)?: (SIZE), (SIZE) used, (SIZE) free`)
	psProgram = with(`^ +(\d+) {2,}\S+ +\S+ {2,}\+?(SIZE) {2,}.* {2,}(\S+)`)
)

// maxListed bounds the processes of a device.
const maxListed = 256

// ps reads a line of the list. It reports whether the line is one.
func (r *Reader) ps(n int, text string) bool {
	fig := func(size string) *figure {
		b, _ := bytesOf(size, "")
		return &figure{b, From{n, text}}
	}
	if strings.Contains(text, " used, ") {
		m := psDevice.FindStringSubmatch(text)
		if m == nil || len(r.listed) == maxSubjects {
			return false
		}
		name := strings.Replace(m[1], "cuda:", "GPU ", 1)
		r.listed = append(r.listed, card{name: name, total: fig(m[2]), used: fig(m[3]), free: fig(m[4]), told: true})
		r.listLine = n
		return true
	}
	if len(r.listed) == 0 || n > r.listLine+2 {
		return false
	}
	if m := psProgram.FindStringSubmatch(text); m != nil {
		pid, _ := strconv.Atoi(m[1])
		c := &r.listed[len(r.listed)-1]
		if r.listLine = n; len(c.processes) < maxListed {
			c.processes = append(c.processes, process{pid: pid, name: m[3], used: fig(m[2])})
		}
		return true
	}
	return false
}

// row is how a line of a table or of a recording begins.
var row = regexp.MustCompile(`^\s*[|\d]`)

func (c *card) read(g smi.GPU) {
	line := func(b uint64, known bool, line int) *figure {
		if !known {
			return nil
		}
		return &figure{b, From{Line: line}}
	}
	if g.HasUsed {
		at := max(g.UsedLine, g.Line)
		c.used, c.total, c.free = line(g.Used, true, at), line(g.Total, g.Total > 0, at), line(g.Free, g.HasFree, at)
	}
	if !g.ProcessesTold && len(g.Processes) == 0 {
		return
	}
	c.told, c.processes = true, nil
	for _, p := range g.Processes {
		kind := ""
		if p.Type == "G" {
			kind = "graphics"
		}
		c.processes = append(c.processes, process{pid: p.PID, name: p.Name, kind: kind, used: line(p.Used, p.HasUsed, p.Line)})
	}
}

// cardsIn are the GPUs of a machine.
func cardsIn(state *machine.Snapshot) (cards []card) {
	for i, d := range state.Devices {
		field := fmt.Sprintf("devices[%d]", i)
		fig := func(b *uint64, text string) *figure {
			if b == nil {
				return nil
			}
			return &figure{*b, From{Text: field + "." + text}}
		}
		name := d.Spec
		if name == "" || strings.HasPrefix(name, "cuda:") {
			name = fmt.Sprintf("GPU %d", d.Index)
		}
		c := card{name: name, total: fig(&d.Total, "total_bytes"), used: fig(d.Used, "used_bytes"), free: fig(d.Free, "free_bytes"), told: d.Programs != nil}
		for j, p := range d.Programs {
			q := process{pid: p.PID, name: p.Name, kind: p.Kind, command: strings.Join(p.Command, " "), orphan: p.ParentGone != nil && *p.ParentGone,
				jax: slices.Contains(p.Frameworks, "jax"), noJAX: len(p.Frameworks) > 0, pool: p.Pool, used: fig(p.Used, fmt.Sprintf("processes[%d].used_bytes", j))}
			if p.Parent != nil {
				q.parent = *p.Parent
			}
			c.processes = append(c.processes, q)
		}
		cards = append(cards, c)
	}
	return cards
}

// has reports whether a process is on the card.
func (c card) has(pid int) bool {
	return slices.ContainsFunc(c.processes, func(p process) bool { return p.pid == pid })
}

// mostProcesses is how many processes of a card have a row of their own.
const mostProcesses = 6

// card adds the rows of a GPU.
func (a *Account) card(c card, pid int) {
	var rows []Row
	var sum uint64
	add := func(what string, bytes uint64, from From) {
		rows = append(rows, Row{What: what, Bytes: bytes, From: from, Kind: Part})
		sum += bytes
	}
	own := slices.IndexFunc(c.processes, func(p process) bool { return p.pid == pid && pid > 0 })
	slices.SortStableFunc(c.processes, func(p, q process) int { return int(q.bytes()>>10) - int(p.bytes()>>10) })
	var more, display uint64
	n, untold := 0, 0
	for i, p := range c.processes {
		switch {
		case p.used == nil:
			untold++
		case p.pid == pid && pid > 0 && p.pool != nil && p.pool.InUse <= p.pool.Held && p.pool.Held+p.pool.Outside <= p.used.bytes:
			add("in use by pid "+number(pid)+", in its pool", p.pool.InUse, From{Text: strings.Replace(p.used.Text, "used_bytes", "pool.in_use_bytes", 1)})
			add("free in its pool", p.pool.Held-p.pool.InUse, From{Text: strings.Replace(p.used.Text, "used_bytes", "pool.held_bytes", 1)})
			add("outside its pool: context, libraries", p.used.bytes-p.pool.Held, p.used.From)
		case p.kind == "graphics" && len(c.processes) > 1:
			display += p.used.bytes
		case i < mostProcesses:
			what := fmt.Sprintf("pid %d %s", p.pid, base(p.name))
			if own >= 0 && p.pid != pid && p.kin(c.processes, pid) {
				what += ", of the same job"
			}
			add(what, p.used.bytes, p.used.From)
		default:
			more += p.used.bytes
			n++
		}
	}
	if n > 0 {
		add(fmt.Sprintf("%d more processes", n), more, c.last())
	}
	if display > 0 {
		add("the desktop", display, c.last())
	}
	switch {
	case c.used == nil:
	case sum == 0:
		add("in use", c.used.bytes, c.used.From)
	case c.used.bytes > sum:
		add("in use, not listed", c.used.bytes-sum, c.used.From)
	}
	switch {
	case c.free != nil:
		add("free", c.free.bytes, c.free.From)
	case c.total != nil && c.used != nil && c.total.bytes >= c.used.bytes:
		add("free", c.total.bytes-c.used.bytes, c.used.From)
	}
	if len(rows) == 0 {
		return
	}
	var total Row
	if c.total != nil {
		total = Row{What: "total", Bytes: c.total.bytes, From: c.total.From, Kind: Total}
	}
	a.add(c.name, total, rows)
	switch {
	case c.used != nil && c.told && c.used.bytes >= 64*mib && untold == 0 && len(c.processes) == 0:
		a.Odd = append(a.Odd, fmt.Sprintf("%s: %s is in use and no process is listed: another container or PID namespace, or a process that died: "+
			"fuser -v /dev/nvidia* as root, or gpumem ps, on the host", c.name, human(c.used.bytes)))
	case !c.told:
		a.NotTold = appendNew(a.NotTold, "which processes use it: nvidia-smi or gpumem ps lists them")
	case untold > 0:
		a.NotTold = appendNew(a.NotTold, fmt.Sprintf("how much %d of the processes on %s hold", untold, c.name))
	}
}

// base is the name of a program without its folder.
func base(name string) string {
	name = name[strings.LastIndexByte(name, '/')+1:]
	return name[strings.LastIndexByte(name, '\\')+1:]
}

func (p process) bytes() uint64 {
	if p.used == nil {
		return 0
	}
	return p.used.bytes
}

// kin reports whether a process is of the job of another: a rank beside it, its child or its parent.
func (p process) kin(all []process, pid int) bool {
	i := slices.IndexFunc(all, func(q process) bool { return q.pid == pid })
	q := all[i]
	return p.parent > 1 && p.parent == q.parent || p.parent == q.pid || q.parent == p.pid || p.command != "" && p.command == q.command
}

// last is where the processes are.
func (c card) last() From {
	for _, p := range slices.Backward(c.processes) {
		if p.used != nil {
			return p.used.From
		}
	}
	return From{}
}

// contextAtMost bounds a context with its libraries, in bytes.
const contextAtMost = 1536 * mib

// oddOfCard finds processes without a parent, and pools that are taken at once.
func (a *Account) oddOfCard(c card) {
	for _, p := range c.processes {
		held := p.bytes()
		if p.orphan && p.kind != "graphics" && held > 0 {
			a.Odd = append(a.Odd, fmt.Sprintf("%s: the process that started pid %d is gone; it still holds %s", c.name, p.pid, human(held)))
		}
		if c.total == nil || !p.jax && (p.noJAX || !strings.Contains(strings.ToLower(p.name), "python")) {
			continue
		}
		if pool := c.total.bytes / 4 * 3; held >= pool && held <= pool+gib {
			a.Odd = append(a.Odd, fmt.Sprintf("%s: pid %d holds %s of %s, the size of JAX's default pool (75 %%) and a context: taken at once by design, used or not",
				c.name, p.pid, human(held), human(c.total.bytes)))
			a.Returns = appendNew(a.Returns, "of a JAX program: XLA_PYTHON_CLIENT_PREALLOCATE=false takes memory as it is needed, XLA_PYTHON_CLIENT_MEM_FRACTION less at once")
		}
	}
}

// between compares GPUs: contexts of processes that compute elsewhere, and ranks of one job.
func (a *Account) between(cards []card) {
	if len(cards) < 2 {
		return
	}
	largest := map[int]uint64{}
	for _, c := range cards {
		for _, p := range c.processes {
			largest[p.pid] = max(largest[p.pid], p.bytes())
		}
	}
	for _, c := range cards {
		var sizes []uint64
		var sum uint64
		for _, p := range c.processes {
			if b := p.bytes(); p.pid > 0 && b > 0 && b <= contextAtMost && b < largest[p.pid] {
				sizes, sum = append(sizes, b), sum+b
			}
		}
		if len(sizes) == 0 || slices.Max(sizes) > slices.Min(sizes)+slices.Min(sizes)/4 {
			continue
		}
		odd := fmt.Sprintf("%s: %d processes that compute on other GPUs hold %s together here too: a context each", c.name, len(sizes), human(sum))
		if len(sizes) == 1 {
			odd = fmt.Sprintf("%s: a process that computes on another GPU holds %s here too: a context", c.name, human(sum))
		}
		a.Odd = append(a.Odd, odd)
		a.Returns = appendNew(a.Returns, fmt.Sprintf("torch.cuda.set_device(local_rank) before the first CUDA call, and torch.load(..., map_location=...), return %s on %s", human(sum), c.name))
	}
	a.ranks(cards)
}

// ranks finds processes of equal size, one on each GPU.
func (a *Account) ranks(cards []card) {
	var list, on []string
	var low, high uint64
	name := ""
	for _, c := range cards {
		i := slices.IndexFunc(c.processes, func(p process) bool { return p.kind != "graphics" && p.bytes() > contextAtMost })
		if i < 0 {
			return
		}
		p := c.processes[i]
		if name != "" && base(p.name) != name || slices.Contains(list, number(p.pid)) {
			return
		}
		if name == "" {
			low = p.bytes()
		}
		name, low, high = base(p.name), min(low, p.bytes()), max(high, p.bytes())
		list, on = append(list, number(p.pid)), append(on, c.name)
	}
	if high > low+low/20 {
		return
	}
	held := human(low) + " each"
	if human(low) != human(high) {
		held = human(low) + " to " + human(high)
	}
	a.Odd = append(a.Odd, fmt.Sprintf("pids %s hold %s on %s: equal sizes, as ranks of one job have; they are not strangers",
		strings.Join(list, ", "), held, strings.Join(on, ", ")))
}
