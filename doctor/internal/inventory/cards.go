package inventory

// GPUs with their processes, by nvidia-smi or by the state of a machine.

import (
	"cmp"
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
	name                        string
	total, used, free, reserved *figure
	processes                   []process
	told                        bool     // the processes are known
	pool                        *subject // of PyTorch, if it is that of the only process, or no process is known
}

// A process uses a card.
type process struct {
	pid, parent int
	name, kind  string
	command     string
	orphan, jax bool
	noJAX       bool // it has loaded other frameworks only
	gone        bool // no program has its number
	used        *figure
	pool        *machine.PoolUse
}

// cards merges the last readings of each GPU.
func (r *Reader) cards() (cards []card) {
	at := func(name string) *card {
		i := slices.IndexFunc(cards, func(c card) bool { return c.name == name })
		if i < 0 {
			i, cards = len(cards), append(cards, card{name: name})
		}
		return &cards[i]
	}
	for _, reading := range r.smi.Readings() {
		for _, g := range reading.GPUs {
			bare := g.Index < 0 && g.Name == "" && g.UUID == ""
			if bare && g.HasUsed && !row.MatchString(r.texts[g.UsedLine]) {
				continue // other programs print "3 MiB / 8 MiB" as well
			}
			name := "GPU"
			switch {
			case g.Index >= 0:
				name = fmt.Sprintf("GPU %d", g.Index)
			case g.UUID != "":
				name = g.UUID
			}
			if c := at(name); bare && c.total != nil && c.total.bytes != g.Total { // another one
				name += fmt.Sprintf(", from line %d", g.Line)
			}
			of := g.Processes
			for _, mig := range g.Instances {
				if !mig.HasUsed {
					continue
				}
				c := at(fmt.Sprintf("%s, MIG %d", name, mig.Index))
				c.read(smi.GPU{Used: mig.Used, HasUsed: true, UsedLine: mig.Line, Total: mig.Total, ProcessesTold: g.ProcessesTold,
					Processes: slices.DeleteFunc(slices.Clone(g.Processes), func(p smi.Process) bool { return p.GI != mig.GI })})
				of = slices.DeleteFunc(slices.Clone(of), func(p smi.Process) bool { return p.GI == mig.GI })
			}
			g.Processes = of
			at(name).read(g)
		}
	}
	return slices.DeleteFunc(cards, func(c card) bool { return c.used == nil && len(c.processes) == 0 })
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

// row is how a line of a table, of a recording or of -q begins.
var row = regexp.MustCompile(`^\s*(?:[|\d]|Used +:)`)

func (c *card) read(g smi.GPU) {
	line := func(b uint64, known bool, line int) *figure {
		if !known {
			return nil
		}
		return &figure{b, From{Line: line}}
	}
	if g.HasUsed {
		at := max(g.UsedLine, g.Line)
		c.used, c.total = line(g.Used, true, at), line(g.Total, g.Total > 0, cmp.Or(g.TotalLine, at))
		c.free, c.reserved = line(g.Free, g.HasFree, cmp.Or(g.FreeLine, at)), line(g.Reserved, g.HasReserved, cmp.Or(g.ReservedLine, at))
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
		c.processes = append(c.processes, process{pid: p.PID, name: p.Name, kind: kind, gone: p.Gone, used: line(p.Used, p.HasUsed, p.Line)})
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

// measured are the GPUs that cudaMemGetInfo was asked of.
func (r *Reader) measured() (cards []card) {
	for _, s := range r.subjects {
		if s.source == device && s.has("free", "total") {
			s.less("used", "total", "free")
			get := func(key string) *figure { f := s.figures[key]; return &f }
			cards = append(cards, card{name: cmp.Or(s.name, "The GPU, by mem_get_info"), total: get("total"), used: get("used"), free: get("free")})
		}
	}
	return cards
}

// has reports whether a process is on the card.
func (c card) has(pid int) bool {
	return slices.ContainsFunc(c.processes, func(p process) bool { return p.pid == pid })
}

// mostProcesses is how many processes of a card have a row of their own.
const mostProcesses = 6

// tally are the rows of a card and their sum.
type tally struct {
	rows []Row
	sum  uint64
}

func (t *tally) add(what string, bytes uint64, from From) {
	t.rows = append(t.rows, Row{What: what, Bytes: bytes, From: from, Kind: Part})
	t.sum += bytes
}

// card adds the rows of a GPU.
func (a *Account) card(c card, pid int) {
	slices.SortStableFunc(c.processes, func(p, q process) int { return int(q.bytes()>>10) - int(p.bytes()>>10) })
	var t tally
	c.programs(&t, pid)
	c.remainder(&t)
	if len(t.rows) == 0 {
		return
	}
	var total Row
	if c.total != nil {
		total = Row{What: "total", Bytes: c.total.bytes, From: c.total.From, Kind: Total}
	}
	a.add(c.name, total, t.rows)
	untold := 0
	for _, p := range c.processes {
		if p.used == nil {
			untold++
		}
	}
	switch {
	case c.used != nil && c.told && c.used.bytes >= 64*mib && len(c.processes) == 0:
		a.Odd = append(a.Odd, fmt.Sprintf("%s: %s is in use and no process is listed: another container or PID namespace, or a process that died: "+
			"fuser -v /dev/nvidia* as root, or gpumem ps, on the host", c.name, human(c.used.bytes)))
	case !c.told:
		a.NotTold = appendNew(a.NotTold, "which processes use it: gpumem ps, or the second table of nvidia-smi, which is empty in a container and full on its host")
	case untold > 0:
		a.NotTold = appendNew(a.NotTold, fmt.Sprintf("how much %d of the processes on %s hold", untold, c.name))
	}
}

// programs adds a row for each program: several for the process with this number, whose pool is
// known, and for the one that has PyTorch's.
func (c *card) programs(t *tally, pid int) {
	own := slices.IndexFunc(c.processes, func(p process) bool { return p.pid == pid && pid > 0 })
	var more, display uint64
	n := 0
	for i, p := range c.processes {
		what := strings.TrimSpace(fmt.Sprintf("pid %d %s", p.pid, base(p.name)))
		if p.gone {
			what += ", which is gone"
		}
		switch {
		case p.used == nil:
		case i == own && p.pool != nil && p.pool.InUse <= p.pool.Held && p.pool.Held+p.pool.Outside <= p.used.bytes:
			field := func(name string) From { return From{Text: strings.Replace(p.used.Text, "used_bytes", "pool."+name, 1)} }
			t.add("in use by pid "+number(pid)+", in its pool", p.pool.InUse, field("in_use_bytes"))
			t.add("free in its pool", p.pool.Held-p.pool.InUse, field("held_bytes"))
			t.add("outside its pool: context, libraries", p.used.bytes-p.pool.Held, p.used.From)
		case p.kind == "graphics" && len(c.processes) > 1:
			display += p.used.bytes
		case i >= mostProcesses:
			more += p.used.bytes
			n++
		case c.pool != nil:
			c.split(t, *p.used, what+", outside it: context, libraries")
		default:
			if own >= 0 && i != own && p.kin(c.processes, pid) {
				what += ", of the same job"
			}
			t.add(what, p.used.bytes, p.used.From)
		}
	}
	if n > 0 {
		t.add(fmt.Sprintf("%d more processes", n), more, c.last())
	}
	if display > 0 {
		t.add("the desktop", display, c.last())
	}
}

// split adds the pool of PyTorch, and what the figure has beside it.
func (c *card) split(t *tally, of figure, rest string) {
	held := c.pool.figures["reserved"]
	t.add("PyTorch's pool (reserved)", held.bytes, held.From)
	t.add(rest, of.bytes-held.bytes, of.From)
}

// remainder adds what is in use and of no program, what is free, and the figures that the rows are
// differences of.
func (c *card) remainder(t *tally) {
	listed := t.sum > 0
	switch {
	case c.used == nil:
	case !listed && c.pool != nil:
		c.split(t, *c.used, "beside it: context, libraries, others")
	case !listed:
		t.add("in use", c.used.bytes, c.used.From)
	case c.used.bytes > t.sum:
		t.add("in use, not listed", c.used.bytes-t.sum, c.used.From)
	}
	inUse := len(t.rows)
	if c.reserved != nil && c.free != nil && c.total != nil && t.sum+c.free.bytes+c.reserved.bytes <= c.total.bytes+4*mib {
		t.add("reserved by the driver", c.reserved.bytes, c.reserved.From)
		c.reserved = nil
	}
	switch {
	case c.free != nil:
		t.add("free", c.free.bytes, c.free.From)
	case c.total != nil && c.used != nil && c.total.bytes >= c.used.bytes:
		t.add("free", c.total.bytes-c.used.bytes, c.used.From)
	}
	if c.reserved != nil {
		t.rows = append(t.rows, Row{"", "reserved by the driver", c.reserved.bytes, c.reserved.From, Other})
	}
	if c.used != nil && inUse > 1 {
		t.rows = append(t.rows, Row{"", "in use, all together", c.used.bytes, c.used.From, Other})
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
	siblings := p.parent > 1 && p.parent == q.parent
	ranks := p.command != "" && p.command == q.command
	return siblings || ranks || p.parent == q.pid || q.parent == p.pid
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

// pair gives GPUs the pool of PyTorch where one pool and one process, or none that is known, are of a
// GPU: then the rest of what is in use is the context and others.
func pair(cards []card, subjects []*subject) {
	for i := range cards {
		c := &cards[i]
		var pools []*subject
		for _, s := range subjects {
			if s.source == torch && s.has("reserved") && (s.name == c.name || s.name == "" && len(cards) == 1) {
				pools = append(pools, s)
			}
		}
		whole := c.used
		compute := slices.DeleteFunc(slices.Clone(c.processes), func(p process) bool { return p.kind == "graphics" })
		if len(compute) == 1 {
			whole = compute[0].used
		}
		if len(pools) == 1 && len(compute) < 2 && whole != nil && pools[0].figures["reserved"].bytes <= whole.bytes {
			c.pool = pools[0]
		}
	}
}

// contextAtMost bounds a context with its libraries, in bytes.
const contextAtMost = 1536 * mib

// oddOfCard finds processes that have ended or lost their parent, and pools that are taken at once.
func (a *Account) oddOfCard(c card) {
	var gone []string
	var left uint64
	for _, p := range c.processes {
		if p.gone {
			gone, left = append(gone, number(p.pid)), left+p.bytes()
		}
	}
	if len(gone) > 0 {
		a.Odd = append(a.Odd, fmt.Sprintf("%s: no program has the number %s any more, and %s is still held: it ended and left a child or a thread, or it is in a container",
			c.name, strings.Join(gone, ", "), human(left)))
		a.Returns = appendNew(a.Returns, "of a program that has ended: sudo fuser -v /dev/nvidia* lists who has the GPU open; kill -9 what is left of it. "+
			"If nobody has, nvidia-smi --gpu-reset -i N (nothing else may run there), or a restart; in a container look from the host")
	}
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
