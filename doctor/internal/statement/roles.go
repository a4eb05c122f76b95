package statement

// Roles, the meanings of numbers. "Tried to allocate 2.60 GiB. GPU 0 has a total capacity of
// 14.74 GiB of which 2.44 GiB is free" has three numbers. Before the first stands
// "tried to allocate", so that it is what was wanted; before the second "total
// capacity of"; the third has "of which" before it, which says nothing, and "is free"
// behind it. The nearest word that says something decides; of two that are as near the
// one before the number does, for in a list of labels and numbers the label comes
// first.

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A role is what a number says of memory.
type role uint8

const (
	roleNone    role = iota
	RoleWant         // requested
	RoleFree         // free
	RoleTotal        // of the device
	RoleLimit        // of a pool, a program or a quota
	RoleUse          // in use
	RoleAlloc        // allocated from a pool
	RoleKept         // taken from the driver by a pool
	RoleIdle         // of that, not allocated
	roleLargest      // the largest free block
	rolePeak         // at most so far
)

// An amount is a number of bytes with its role.
type amount struct {
	Role      role
	N         uint64
	low, High uint64 // what may round to n
	Host      bool   // it is of the host's memory
	Pool      bool   // it is of a pool
	Torch     bool   // it is of PyTorch
	Private   bool   // of private pools
	Cache     bool   // of a cache of keys and values
	Other     bool   // of other programs
	Programs  bool   // and those are other programs
	This      bool   // of this process as a whole
	Pid       int    // of a process; 0 if none is named
	Pair      bool   // the first of A/B
	Initial   bool
	Label     string // the word that gave the role
	Subject   string // the device or heap that the words beside it name, such as gpu 1; empty if they name none
	token     int
}

// candidate is a word that may give a number its role.
type candidate struct {
	role     role
	at       int // the token, -1 if there is none
	distance int
}

// maxAmounts bounds the work for one text.
const maxAmounts = 60

// scale gives the first number of A/B GiB its unit.
func scale(toks tokenList) {
	for i := range toks {
		a, b := &toks[i], toks.at(i+2)
		bare := a.kind == 'n' && a.unit == "" && !(a.glued && toks.at(i-1).kind == 'w')
		if f := units[b.unit]; bare && f > 1 && b.kind == 'n' && toks.at(i+1).kind == '/' {
			half := (a.high - a.low) / 2
			if !a.integer {
				half = .005
			}
			a.low, a.high, a.value, a.unit = (a.value-half)*f, (a.value+half)*f, a.value*f, b.unit
		}
	}
}

// amounts reads the numbers of a text.
func amounts(toks tokenList) []amount {
	scale(toks)
	r := amountReader{toks: toks, sides: toks.compared(), previous: -1, taken: -1}
	if last := len(toks) - 1; toks.ofRequest() && toks[last].value >= 4*kib {
		toks[last].bytes = true
		r.sides = map[int]role{last: RoleWant}
	}
	for i := range toks {
		if len(r.list) < maxAmounts && toks.quantity(i) {
			r.read(i)
		}
	}
	inherit(r.list)
	// "It needs A, more than B": B is what is available.
	for i := 1; i < len(r.list); i++ {
		a, b := &r.list[i-1], &r.list[i]
		if a.Role == RoleWant && b.Role == roleNone && b.N < a.N && toks.beyond(a.token, b.token) {
			b.Role, b.Host = RoleFree, a.Host
		}
	}
	return r.list
}

// An amountReader reads the numbers of a text, from its first to its last.
type amountReader struct {
	toks     tokenList
	sides    map[int]role // of what is compared
	list     []amount
	previous int // the last number that was read
	taken    int // the word behind it that it took
}

// read reads the number at i.
func (r *amountReader) read(i int) {
	toks, t := r.toks, &r.toks[i]
	last := &amount{token: -1}
	if len(r.list) > 0 {
		last = &r.list[len(r.list)-1]
	}
	if r.previous >= 0 && i-r.previous <= 4 && sameAgain(toks, r.previous, i, last) {
		r.previous = i
		return
	}
	pre, from := toks.before(i, r.taken)
	post, to := toks.after(i)
	a := amount{token: i, N: bytesOf(t.value), low: bytesOf(t.low), High: bytesOf(t.high)}
	pick := toks.nearer(pre, post)
	switch {
	case r.sides[i] != roleNone:
		a.Role, a.Label = r.sides[i], "compared"
	case r.previous >= 0 && i == r.previous+2 && toks[i-1].kind == '/':
		a.secondOf(last, toks.at(i+1).is("allocatable"))
	case pick.at >= 0:
		a.Role, a.Label = pick.role, toks[pick.at].word
		if pick.at > i {
			r.taken = pick.at
		}
	case r.previous >= 0 && onlyMarks(toks[r.previous+1:i]): // one of a list
		a.Role, a.Label = last.Role, last.Label
	}
	said := pre.at >= 0 || post.at >= 0 && post.distance == 0
	if !said && toks.at(i-1).is("of") && i-r.previous < 6 && (last.Role == RoleUse || last.Role == RoleFree) {
		a.Role, last.Pair = RoleTotal, true // A of B
	}
	if a.Role == roleNone && t.unit != "" && toks.ofCard(i) {
		a.Role, a.Label = RoleTotal, "card"
	}
	if a.Role == roleNone && t.unit == "" {
		return // a number of something else
	}
	a.about(toks, from, i, to)
	r.list = append(r.list, a)
	r.previous = i
}

// nearer is the candidate that decides. "Usage" before a number says less than what is right behind it.
func (toks tokenList) nearer(pre, post candidate) candidate {
	weak := pre.role == RoleUse && toks.at(pre.at).is("usage", "use")
	if post.at >= 0 && (pre.at < 0 || post.distance < pre.distance || weak && post.distance == 0) {
		return post
	}
	return pre
}

// secondOf makes the amount the second of A/B, or of "512/2048 MB allocatable", as OpenCL's programs
// have it.
func (a *amount) secondOf(first *amount, allocatable bool) {
	first.Pair = true
	switch first.Role {
	case RoleFree, RoleUse, RoleAlloc, RoleTotal:
		a.Role = RoleTotal
	default:
		a.Role = RoleLimit
	}
	if first.Role == RoleTotal || first.Role == roleNone {
		first.Role = RoleUse
	}
	if allocatable {
		first.Role, a.Role = RoleLimit, RoleTotal
	}
	a.Pool, a.Host, a.Torch, a.Cache, a.Label = first.Pool, first.Host, first.Torch, first.Cache, first.Label
}

// inherit gives the amounts behind one of a heap, or of each bank, that subject, where the text names
// no other.
func inherit(list []amount) {
	at, subject := -1, ""
	for i := range list {
		switch s := list[i].Subject; {
		case s == "":
		case subject == "":
			at, subject = i, s
		case s != subject:
			return
		}
	}
	if !strings.HasPrefix(subject, "heap ") && !strings.HasPrefix(subject, "each ") {
		return
	}
	for i := range list[at:] {
		list[at+i].Subject = subject
	}
}

// ofRequest makes the number of a line that has nothing else than a request's size one:
// "Size: 4102400", "requested size = 643840".
func (toks tokenList) ofRequest() bool {
	n := len(toks)
	if n < 3 || n > 8 || !toks[n-1].bare() || toks[n-2].kind != ':' && toks[n-2].kind != '=' {
		return false
	}
	size := false
	for _, t := range toks[:n-2] {
		size = size || t.is("size")
		if t.kind == 'w' && !t.is("err", "error", "warn", "info", "requested", "request", "allocation", "alloc", "size", "in", "bytes") {
			return false
		}
	}
	return size
}

// compared are the roles of numbers on the sides of > or < in a text that speaks of a failure, as in
// "allocating <= available failed, 9663676416 > 1073741824": the larger is what was wanted.
func (toks tokenList) compared() map[int]role {
	var sides map[int]role
	fails, lesser := false, RoleLimit
	for i := range toks {
		fails = fails || toks[i].class&(CFail|cScarce|cBeyond) != 0
		if toks[i].class&cFree != 0 || toks[i].is("found") {
			lesser = RoleFree
		}
	}
	for i := 1; fails && i+1 < len(toks); i++ {
		if toks[i].kind != '>' && toks[i].kind != '<' || !toks[i+1].quantity(&noToken) {
			continue
		}
		k := i - 1
		for k > max(i-6, 0) && toks[k].kind == 'w' {
			k--
		}
		less, more := k, i+1
		if toks[i].kind == '>' {
			less, more = more, less
		}
		if toks[k].quantity(&noToken) && toks[less].value < toks[more].value {
			sides = map[int]role{more: RoleWant, less: lesser}
		}
	}
	return sides
}

// ofCard reports whether the number is the size of a card that is named behind it, as in
// "the 40 GB device" and "a 24 GB RTX 3090".
func (toks tokenList) ofCard(i int) bool {
	k := i + 1
	for toks.at(k).kind == '-' || toks.at(k).is("nvidia", "geforce") {
		k++
	}
	name, number := toks.at(k), toks.at(k+1)
	model := name.is("a", "h", "v", "b", "l", "t") && number.kind == 'n' && number.glued
	return model || name.is("rtx", "gtx", "tesla", "quadro") || name.is("card", "gpu", "device") && !toks.near(k, 1, cMemory|cUse|cAlloc)
}

// onlyMarks reports whether there are no words.
func onlyMarks(toks tokenList) bool {
	return len(toks) > 0 && !slices.ContainsFunc(toks, func(t token) bool {
		return t.kind == 'w' && !t.is("or", "and") || strings.IndexByte("|;.", t.kind) >= 0
	})
}

// sameAgain reports whether the number at i repeats the one before it, as in
// "2.44G (2617515264 bytes)" and "1.25TiB (rounded to 1374521760000)". The exact one is
// kept.
func sameAgain(toks tokenList, before, i int, a *amount) bool {
	open := false
	for _, t := range toks[before+1 : i] {
		if !t.is("rounded", "to", "or", "about") && strings.IndexByte("(~=", t.kind) < 0 {
			return false
		}
		open = open || t.kind != 'w' || t.is("rounded")
	}
	t, v := &toks[i], float64(a.N)
	labelled := toks.at(i+1).class&(cKept|cFree|cAlloc|cUse|cIdle|cTotal|cLimit) != 0
	if !open || labelled || math.Abs(t.value-v) > math.Max(.012*v, 512) {
		return false
	}
	if t.integer && units[t.unit] <= 1 && i == before+2 {
		a.N, a.low, a.High = bytesOf(t.value), bytesOf(t.value), bytesOf(t.value)
	}
	return true
}

// stop reports whether a segment of words ends at token k.
func (toks tokenList) stop(k int) bool {
	t := &toks[k]
	switch t.kind {
	case ';', '|', '{', '}':
		return true
	case '-':
		return !t.glued && k > 0 // a dash between blanks
	case '.':
		return !toks.at(k + 1).glued
	case ',':
		// But not behind a number of something else, as in "(0.9, 65.32 GiB)".
		return toks.at(k-1).kind != 'n' || toks.stop(k-1)
	}
	return toks.quantity(k)
}

// most is how many words away a word may give a number its role.
const most = 9

// before finds the word before number i that says what it is. from is where the words
// that are about the number begin.
func (toks tokenList) before(i, taken int) (c candidate, from int) {
	c.at, from = -1, i
	words, distance := 0, 0
	labelled, bracket := false, false
	for k := i - 1; k >= 0 && words < most && k > taken; k-- {
		t := &toks[k]
		switch {
		case t.kind == ')' || t.kind == ']':
			if k = toks.opening(k); k < 0 {
				return toks.ofDevice(i, c, bracket), from
			}
		case t.kind == ':' || t.kind == '=' || t.kind == '-' && words == 0:
			if c.at >= 0 || words > 2 || toks.saysFailure(k) {
				return toks.ofDevice(i, c, bracket), from
			}
			labelled = labelled || words == 0 && t.kind != '-'
			if words > 0 {
				distance += 2
			}
		case toks.stop(k):
			return toks.ofDevice(i, c, bracket), from
		case t.kind == '(' || t.kind == '[':
			distance += 2 // what stands outside of a bracket says less of a number in it
			bracket = bracket || c.at < 0
		case t.kind == 'n':
			distance++
		case t.kind == 'w':
			from = k
			words++
			if c.at >= 0 {
				break
			}
			if c.role = toks.roleAt(k, i); c.role != roleNone {
				c.at, c.distance = k, distance
				if labelled {
					c.distance--
				}
			} else if t.class&cFiller == 0 {
				distance++
			}
		}
	}
	return toks.ofDevice(i, c, bracket), from
}

// opening is where the bracket begins that ends at k, if it is short and has no number; -1 if not.
func (toks tokenList) opening(k int) int {
	for open := k; open >= 0 && k-open <= 10; open-- {
		switch toks[open].kind {
		case '(', '[':
			return open
		case 'n':
			if toks.stop(open) {
				return -1
			}
		}
	}
	return -1
}

// saysFailure reports whether the word before a colon says what failed, or names the request: what
// stands behind the colon is something else.
func (toks tokenList) saysFailure(colon int) bool {
	asked := toks.at(colon-1).class&cAsk != 0 && toks.at(colon-2).is("the", "this", "a") && !toks.at(colon-3).is("of")
	return asked || toks.at(colon-1).class&CFail != 0
}

// ofDevice is the role of a number right behind the name of a device's memory, if nothing nearer
// gives it one: "VRAM: 15095 MiB", "device memory 79 GiB", "GPU 0 has 8 GiB".
func (toks tokenList) ofDevice(i int, c candidate, bracket bool) candidate {
	if c.at >= 0 && !bracket || i < 2 {
		return c
	}
	k, has := i-1, false
	for toks.at(k).kind == ':' || toks.at(k).kind == '=' || toks.at(k).is("of", "is", "has", "with") {
		has = has || toks[k].is("has", "with")
		k--
	}
	t := toks.at(k)
	card := t.is("card", "gpu", "device") || t.kind == 'n' && toks.prev(k).is("card", "gpu", "device")
	if has && card || t.is("vram") || t.is("memory") && toks.at(k-1).is("device", "gpu", "card") {
		return candidate{RoleTotal, k, 1}
	}
	return c
}

// after finds the word behind number i that says what it is.
func (toks tokenList) after(i int) (c candidate, to int) {
	c.at, to = -1, i
	words, distance := 0, 0
	for k := i + 1; k < len(toks) && words < most; k++ {
		t := &toks[k]
		switch {
		case t.kind == ':' || t.kind == '=':
			// The words before it are the label of the next number.
			return candidate{at: -1}, to
		case strings.IndexByte("()/]", t.kind) >= 0 || toks.stop(k) || toks.turns(k):
			return c, to
		case t.kind != 'w':
			continue
		}
		to = k
		words++
		if c.at >= 0 {
			continue
		}
		if c.role = toks.roleAt(k, i); c.role != roleNone {
			c.at, c.distance = k, distance
		} else if t.class&cFiller == 0 {
			distance++
		}
	}
	return c, to
}

// turns reports whether the words from k on are about another number.
func (toks tokenList) turns(k int) bool {
	t, next := &toks[k], toks.at(k+1)
	return t.is("while", "whereas", "than") || t.is("of") && next.is("which", "that") || t.is("but") && next.is("only", "just", "has", "have")
}

// near reports whether a word with one of these classes is among the n words behind token k, or
// before it where n is negative, within a clause and up to a number.
func (toks tokenList) near(k, n int, c class) bool {
	step := 1
	if n < 0 {
		step, n = -1, -n
	}
	for k += step; k >= 0 && k < len(toks) && n > 0; k += step {
		if toks.stop(k) || toks[k].kind == ':' || toks[k].kind == '=' {
			return false
		}
		if toks[k].kind == 'w' {
			if toks[k].class&c != 0 {
				return true
			}
			n--
		}
	}
	return false
}

// beyond reports whether a word between two tokens says that the first is more.
func (toks tokenList) beyond(from, to int) bool {
	return slices.ContainsFunc(toks[from+1:to], func(t token) bool { return t.class&cBeyond != 0 || t.kind == '>' })
}

// prev is the word before token k, within a name.
func (toks tokenList) prev(k int) *token {
	for k--; toks.at(k).kind == '_' || toks.at(k).kind == '-'; k-- {
	}
	return toks.at(k)
}

// next is the word after token k, within a name.
func (toks tokenList) next(k int) *token {
	for k++; toks.at(k).kind == '_' || toks.at(k).kind == '-'; k++ {
	}
	return toks.at(k)
}

// subject is the device or heap that word k names, as in "GPU 1", "cuda:1", "heap 2" and "each bank";
// empty if it names none, or if its number is the amount at token i.
func (toks tokenList) subject(k, i int) string {
	t, n := &toks[k], k+1
	if toks.at(n).kind == ':' || toks.at(n).kind == '#' {
		n++
	}
	numbered := toks.at(n).bare() && n != i && toks.at(n).value <= 64
	switch {
	case numbered && t.is("heap"):
		return fmt.Sprintf("heap %d", int(toks.at(n).value))
	case numbered && t.is("gpu", "device", "cuda", "card"):
		return fmt.Sprintf("gpu %d", int(toks.at(n).value))
	case t.is("gpu", "device", "card", "heap", "bank") && toks.at(k-1).is("each", "every", "per"):
		return "each " + t.word
	}
	return ""
}

// about looks at the words around the number at i for whose memory it is.
func (a *amount) about(toks tokenList, from, i, to int) {
	for k := from; k <= to; k++ {
		t := &toks[k]
		if t.kind != 'w' {
			continue
		}
		if a.Subject == "" {
			a.Subject = toks.subject(k, i)
		}
		before, next := toks.at(k-1), toks.at(k+1)
		switch {
		case t.is("process", "pid"):
			a.process(toks, k, i)
		case t.class&cHost != 0 && !(t.is("host", "cpu") && next.kind == ':'):
			a.Host = true
		case t.class&cPool != 0:
			a.Pool = true
		case t.is("pytorch", "torch"):
			a.Torch = a.Torch || before.kind != '-' && !before.is("non")
		case t.is("private"):
			a.Private = true
		case t.is("kv", "cache", "caches") && a.Role != RoleKept:
			a.Cache = true
		case t.is("others"):
			a.Other, a.Programs = true, true
		case t.is("other") || t.is("processes") && before.is("other"):
			a.Other = true
			a.Programs = a.Programs || next.is("programs", "program", "processes", "process", "users", "jobs", "applications")
		case t.is("initial", "initially", "before"):
			a.Initial = true
		}
	}
}

// process reads the process that word k of the text names.
func (a *amount) process(toks tokenList, k, i int) {
	switch next := toks.at(k + 1); {
	case next.bare() && k+1 != i:
		a.Pid = int(min(next.value, math.MaxInt32))
	case next.kind == '=' && toks.at(k+2).kind == 'n':
		a.Pid = int(min(toks.at(k+2).value, math.MaxInt32))
	case toks.at(k-1).is("this", "the", "own"):
		a.This = true
	}
}
