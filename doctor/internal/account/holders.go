package account

import (
	"fmt"
	"gpumem/doctor/internal/statement"
	"gpumem/node/machine"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// The processes on the GPU, and which of them is the program that failed.

// A Holder is a process that uses the GPU, with the line that names it.
type Holder struct {
	PID        int
	Name, Kind string
	Used       uint64 // bytes, 0 if unknown
	Frameworks []string
	ParentGone bool
	from       statement.Evidence
}

func holderOf(p machine.Program, from statement.Evidence) Holder {
	return Holder{p.PID, p.Name, p.Kind, p.Holds(), p.Frameworks, p.ParentGone != nil && *p.ParentGone, from}
}

// holders are the processes on the GPU that the state or a pasted nvidia-smi table lists.
// told is false where nothing lists them.
func (e *Case) holders() (list []Holder, told bool) {
	if d := e.gpu(); d != nil && d.Programs != nil {
		for _, p := range d.Programs {
			text := "devices.processes: pid " + strconv.Itoa(p.PID)
			if p.Name != "" {
				text += " " + p.Name
			}
			if len(p.Frameworks) > 0 {
				text += " (" + strings.Join(p.Frameworks, ", ") + ")"
			}
			list = append(list, holderOf(p, statement.Evidence{Text: text}))
		}
		return list, true
	}
	n := e.ordinal()
	for _, f := range e.facts("smi process") {
		if n >= 0 && f.Device >= 0 && f.Device != n || slices.ContainsFunc(list, func(h Holder) bool { return h.PID == f.Pid }) {
			continue
		}
		kind := ""
		if f.Value == "G" {
			kind = "graphics"
		}
		list = append(list, Holder{PID: f.Pid, Name: f.Name, Kind: kind, Used: f.InUse, from: f.Quoted("")})
	}
	return list, len(list) > 0
}

// IsJAX reports whether the process looks like a JAX that preallocated: it says so, or it
// is a Python with a default pool and a context.
func (h Holder) IsJAX(total uint64) (bool, string) {
	if slices.ContainsFunc(h.Frameworks, func(f string) bool { return strings.EqualFold(f, "jax") || strings.EqualFold(f, "jaxlib") }) {
		if h.Used > 0 {
			return true, "another JAX process holds " + Human(h.Used)
		}
		return true, "another JAX process is on the GPU"
	}
	if len(h.Frameworks) > 0 || total == 0 || !strings.Contains(strings.ToLower(h.Name), "python") {
		return false, ""
	}
	for _, part := range []float64{.75, .9} {
		pool := uint64(part * float64(total))
		// Contexts, with the modules in them, have been seen between 80 MiB and 1 GiB.
		if h.Used >= pool && h.Used <= pool+statement.Gib {
			return true, "another Python process holds " + Human(h.Used) + ", the size of JAX's default pool " +
				"(" + strconv.Itoa(int(part*100)) + " % of " + Human(total) + ") and a context"
		}
	}
	return false, ""
}

var desktops = regexp.MustCompile(`(?i)xorg|gnome-shell|xwayland|kwin|firefox|chrome`)

func (h Holder) IsDesktop() bool { return h.Kind == "graphics" || desktops.MatchString(h.Name) }

// Others are the processes on the GPU but the program that failed. told is false where
// nothing lists them.
//
// Which one is the program itself is known by its pid or, else, by arithmetic: PyTorch's
// message says what it holds; and where the list accounts for all that was in use at the
// failure, the program is in the list, for it had a context at least. A program that could
// not even make a context is not in it.
func (e *Case) Others() (list []Holder, told bool) {
	list, told = e.holders()
	if own := e.own(list); own >= 0 {
		list = slices.Delete(slices.Clone(list), own, own+1)
	}
	return list, told
}

// own is the place in the list of the program that failed, or -1.
func (e *Case) own(list []Holder) int {
	if e.state != nil && e.state.Process != nil && e.state.Process.PID > 0 {
		return slices.IndexFunc(list, func(h Holder) bool { return h.PID == e.state.Process.PID })
	}
	for i, h := range list {
		for _, r := range e.Failed {
			if r.St.Pid == h.PID && h.PID > 1 && r.St.From != "" {
				return i
			}
		}
	}
	if e.ContextRefused() != nil {
		return -1
	}
	for _, r := range e.Failed {
		reserved := r.reserved()
		if reserved == 0 {
			continue
		}
		best, at := uint64(math.MaxUint64), -1
		for i, h := range list {
			if h.Used+statement.Mib >= reserved && Less(h.Used, reserved) < best && !h.IsDesktop() {
				best, at = Less(h.Used, reserved), i
			}
		}
		if at >= 0 && (best < 2*statement.Gib || len(list) == 1) {
			return at
		}
	}
	smallest := func() int {
		at := -1
		for i, h := range list {
			alike := strings.Contains(strings.ToLower(h.Name), "python") || len(h.Frameworks) > 0
			if alike && !h.IsDesktop() && (at < 0 || h.Used < list[at].Used) {
				at = i
			}
		}
		return at
	}
	var sum uint64
	desktop := 0
	for _, h := range list {
		sum += h.Used
		if h.IsDesktop() {
			desktop++
		}
	}
	if st, free, total := e.free(); st != nil && sum > 0 {
		used := Less(total, free)
		if sum+used/50+256*statement.Mib < used || used+used/50+256*statement.Mib < sum {
			return -1 // somebody is missing, the program among others
		}
		return smallest()
	}
	if len(list)-desktop > 1 && sum > 0 {
		return smallest()
	}
	return -1
}

// OneMayBeOwn reports whether the only process of the list, the desktop's apart, may be the program that
// failed: a list that is taken while it fails has it, and nothing tells its pid or its size.
func (e *Case) OneMayBeOwn() bool {
	list, _ := e.Others()
	list = slices.DeleteFunc(slices.Clone(list), Holder.IsDesktop)
	pid := e.state != nil && e.state.Process != nil && e.state.Process.PID > 0
	if len(list) != 1 || pid || list[0].ParentGone || e.ContextRefused() != nil {
		return false
	}
	name := strings.ToLower(list[0].Name)
	return (name == "" || strings.Contains(name, "python")) &&
		!slices.ContainsFunc(e.Failed, func(r *Refusal) bool { return r.reserved() > 0 })
}

// SeveralGPUs reports whether what lists processes has more than one GPU, and the refusal names none.
func (e *Case) SeveralGPUs() bool {
	if e.ordinal() >= 0 {
		return false
	}
	first := -1
	for _, f := range e.facts("smi process") {
		if first >= 0 && f.Device >= 0 && f.Device != first {
			return true
		}
		first = max(first, f.Device)
	}
	return len(e.facts("smi memory")) > 1 || e.state != nil && len(e.state.Devices) > 1
}

// HeldBy is what these processes hold together.
func HeldBy(list []Holder) (sum uint64) {
	for _, h := range list {
		sum += h.Used
	}
	return sum
}

// Readings are the lines of these processes, the desktop's left out, each with what it
// holds.
func Readings(list []Holder) []statement.Evidence {
	var q []statement.Evidence
	for _, h := range list {
		if h.IsDesktop() && len(list) > 1 {
			continue
		}
		r := h.from
		r.Reading = "another process is on the GPU"
		if h.Used > 0 {
			r.Reading = "another process holds " + Human(h.Used)
		}
		if h.ParentGone {
			r.Reading += "; its parent is gone"
		}
		q = append(q, r)
	}
	return q
}

// Shows is the line that names the process, with what it shows.
func (h Holder) Shows(reading string) statement.Evidence {
	from := h.from
	from.Reading = reading
	return from
}

// AnyHolder reports whether a list of the GPU's processes has any.
func (e *Case) AnyHolder() bool {
	list, _ := e.holders()
	return len(list) > 0
}

// JAXOther is the line of another process that looks like a JAX which preallocated on a GPU of
// total bytes.
func (e *Case) JAXOther(total uint64) []statement.Evidence {
	others, _ := e.Others()
	for _, o := range others {
		if yes, why := o.IsJAX(total); yes && !o.IsDesktop() {
			return []statement.Evidence{o.Shows(why)}
		}
	}
	return nil
}

// ContextNeighbours are the lines of processes, by the state, on the GPUs whose contexts were
// refused.
func (e *Case) ContextNeighbours() (q []statement.Evidence) {
	seen := map[int]bool{}
	for _, c := range e.Failed {
		d := e.state.Device(c.Device)
		if c.Layer != statement.LayerContext || d == nil || seen[d.Index] {
			continue
		}
		seen[d.Index] = true
		for _, p := range d.Programs {
			if e.state.Process == nil || e.state.Process.PID != p.PID || p.PID == 0 {
				q = append(q, Readings([]Holder{holderOf(p, statement.Evidence{Text: fmt.Sprintf("devices[%d].processes: pid %d %s", d.Index, p.PID,
					p.Name)})})...)
			}
		}
	}
	return q
}
