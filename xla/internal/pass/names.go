package pass

// The names of clones and of their channels, as XLA gives them.
//
// A clone of dot.5 is asked for as dot.5.remat. Names are taken by root and number: of
// dot.5.remat the part behind the last dot is no number, so that its root is the whole name.
// The second clone of dot.5 is asked for with the same name, which is taken, and becomes
// dot.5.remat.1; a clone of the clone dot.5.remat is dot.5.remat2. Scripts and people find
// recomputation in a dump by these names, so that they have to be the original's.

import (
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// names are those taken in a module, each by what stands before a last .N
// (xla/service/name_uniquer.cc).
type names map[string]*numbers

// numbers are those taken behind one root. All below next are. Number 0 is the root by itself,
// so that dot and dot.0 have the same number.
type numbers struct {
	taken map[int]bool
	next  int
}

func newNames(m *hlo.Module) names {
	n := make(names, m.Instructions())
	for i := range m.All() {
		n.free(i.Name)
	}
	return n
}

// free takes a name and returns it, or if it is taken the first that is free with .1, .2 and so
// on instead.
func (n names) free(name string) string {
	root, number := name, 0
	dot := strings.LastIndexByte(name, '.')
	if dot > 0 && dot < len(name)-1 {
		if k, err := strconv.Atoi(name[dot+1:]); err == nil && k >= 0 && name[dot+1] != '+' {
			root, number = name[:dot], k
		} else {
			dot = -1
		}
	}
	list := n[root]
	if list == nil {
		list = &numbers{taken: map[int]bool{}}
		n[root] = list
	}
	if !list.taken[number] {
		list.taken[number] = true
		return name
	}
	for list.taken[list.next] {
		list.next++
	}
	list.taken[list.next] = true
	if list.next == 0 && root == name {
		return root
	}
	return root + "." + strconv.Itoa(list.next)
}

// cloneName returns the name of a clone: x.remat for x, x.remat2 for x.remat
// (HloInstruction::AddSuffixToInstructionName).
func cloneName(name string) string {
	const suffix = ".remat"
	at := strings.LastIndex(name, suffix)
	if at < 0 {
		return name + suffix
	}
	after := name[at+len(suffix):]
	if after == "" {
		return name + "2"
	}
	if k, err := strconv.ParseInt(after, 10, 63); err == nil {
		return name[:at] + suffix + strconv.FormatInt(k+1, 10)
	}
	return name + suffix
}

// nextChannel returns a channel above all in use. Two collectives with one channel would be
// one to the runtime, so that each clone needs another.
func nextChannel(m *hlo.Module) int64 {
	next := int64(1)
	for i := range m.All() {
		if k, ok := channel(i); ok && k >= next {
			next = k + 1
		}
	}
	return next
}

// channel returns an instruction's channel_id, and whether it has one.
func channel(i *hlo.Instruction) (int64, bool) {
	text, ok := i.Attribute("channel_id")
	if !ok {
		return 0, false
	}
	k, err := strconv.ParseInt(strings.TrimSpace(text), 10, 63)
	return k, err == nil
}

// setChannel gives a clone the next channel if its original has one. The attributes are the
// clone's own by then.
func (p *pass) setChannel(i *hlo.Instruction) {
	if _, ok := channel(i); !ok {
		return
	}
	at := slices.IndexFunc(i.Attributes, func(a hlo.Attribute) bool { return a.Key == "channel_id" })
	i.Attributes[at].Value = strconv.FormatInt(p.channel, 10)
	p.channel++
}
