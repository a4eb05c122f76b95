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
func scale(toks []token) {
	for i := 0; i+2 < len(toks); i++ {
		a, slash, b := &toks[i], &toks[i+1], &toks[i+2]
		if a.kind == 'n' && a.unit == "" && slash.kind == '/' && b.kind == 'n' && units[b.unit] > 1 && !(a.glued && i > 0 && toks[i-1].kind == 'w') {
			f := units[b.unit]
			half := (a.high - a.low) / 2
			if !a.integer {
				half = .005
			}
			a.low, a.high, a.value, a.unit = (a.value-half)*f, (a.value+half)*f, a.value*f, b.unit
		}
	}
}

// amounts reads the numbers of a text.
func amounts(toks tokenList) (list []amount) {
	scale(toks)
	sides := toks.compared()
	if last := len(toks) - 1; toks.ofRequest() && toks[last].value >= 4*kib {
		toks[last].bytes = true
		sides = map[int]role{last: RoleWant}
	}
	previous := -1 // the last number that was read
	taken := -1    // the word that the last number took
	for i := range toks {
		t := &toks[i]
		var before *token
		if i > 0 {
			before = &toks[i-1]
		}
		if !t.quantity(before) {
			continue
		}
		if len(list) == maxAmounts {
			break
		}
		if previous >= 0 && len(list) > 0 && i-previous <= 4 && sameAgain(toks, previous, i, &list[len(list)-1]) {
			previous = i
			continue
		}
		pre, from := toks.before(i, taken)
		post, to := toks.after(i)
		a := amount{token: i, N: bytesOf(t.value), low: bytesOf(t.low), High: bytesOf(t.high)}
		pick := pre
		weak := pre.role == RoleUse && pre.at >= 0 && toks[pre.at].is("usage", "use")
		if post.at >= 0 && (pre.at < 0 || post.distance < pre.distance || weak && post.distance == 0) {
			pick = post
		}
		switch {
		case sides[i] != roleNone:
			a.Role, a.Label = sides[i], "compared"
		case previous >= 0 && i == previous+2 && toks[i-1].kind == '/' && len(list) > 0:
			// The second of A/B.
			first := &list[len(list)-1]
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
			if i+1 < len(toks) && toks[i+1].is("allocatable") { // 512/2048 MB allocatable, as OpenCL's programs have it
				first.Role, a.Role = RoleLimit, RoleTotal
			}
			a.Pool, a.Host, a.Torch, a.Cache, a.Label = first.Pool, first.Host, first.Torch, first.Cache, first.Label
		case pick.at >= 0:
			a.Role, a.Label = pick.role, toks[pick.at].word
			if pick == post {
				taken = pick.at
			}
		case previous >= 0 && len(list) > 0 && onlyMarks(toks[previous+1:i]):
			// One of a list.
			a.Role, a.Label = list[len(list)-1].Role, list[len(list)-1].Label
		}
		if k := len(list) - 1; k >= 0 && toks[i-1].is("of") && pre.at < 0 && (post.at < 0 || post.distance > 0) && i-previous < 6 && (list[k].Role == RoleUse || list[k].Role == RoleFree) {
			a.Role, list[k].Pair = RoleTotal, true // A of B
		}
		if a.Role == roleNone && t.unit != "" && toks.ofCard(i) {
			a.Role, a.Label = RoleTotal, "card"
		}
		if a.Role == roleNone && t.unit == "" {
			continue // a number of something else
		}
		a.about(toks, from, i, to)
		list = append(list, a)
		previous = i
	}
	inherit(list)
	// "It needs A, more than B": B is what is available.
	for i := 1; i < len(list); i++ {
		if a := &list[i-1]; a.Role == RoleWant && list[i].Role == roleNone && list[i].N < a.N && toks.beyond(list[i-1].token, list[i].token) {
			list[i].Role, list[i].Host = RoleFree, a.Host
		}
	}
	return list
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
	if n < 3 || n > 8 || toks[n-1].kind != 'n' || !toks[n-1].integer || toks[n-2].kind != ':' && toks[n-2].kind != '=' {
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
	fails, free := false, false
	for i := range toks {
		fails = fails || toks[i].class&(CFail|cScarce|cBeyond) != 0
		free = free || toks[i].class&cFree != 0 || toks[i].is("found")
	}
	for i := 1; fails && i+1 < len(toks); i++ {
		if toks[i].kind != '>' && toks[i].kind != '<' || !toks[i+1].quantity(nil) {
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
		if !toks[k].quantity(nil) || toks[less].value >= toks[more].value {
			continue
		}
		sides = map[int]role{more: RoleWant, less: RoleLimit}
		if free {
			sides[less] = RoleFree
		}
	}
	return sides
}

// ofCard reports whether the number is the size of a card that is named behind it, as in
// "the 40 GB device" and "a 24 GB RTX 3090".
func (toks tokenList) ofCard(i int) bool {
	k := i + 1
	for k < len(toks) && (toks[k].kind == '-' || toks[k].is("nvidia", "geforce")) {
		k++
	}
	if k >= len(toks) {
		return false
	}
	model := k+1 < len(toks) && toks[k+1].kind == 'n' && toks[k+1].glued && toks[k].is("a", "h", "v", "b", "l", "t")
	return model || toks[k].is("rtx", "gtx", "tesla", "quadro") || toks[k].is("card", "gpu", "device") && !toks.near(k, 1, 1, cMemory|cUse|cAlloc)
}

// onlyMarks reports whether there are no words.
func onlyMarks(toks []token) bool {
	for i := range toks {
		if toks[i].kind == 'w' && !toks[i].is("or", "and") || toks[i].kind == '|' || toks[i].kind == ';' || toks[i].kind == '.' {
			return false
		}
	}
	return len(toks) > 0
}

// sameAgain reports whether the number at i repeats the one before it, as in
// "2.44G (2617515264 bytes)" and "1.25TiB (rounded to 1374521760000)". The exact one is
// kept.
func sameAgain(toks []token, before, i int, a *amount) bool {
	open := false
	for _, t := range toks[before+1 : i] {
		switch {
		case t.kind == '(' || t.kind == '~' || t.kind == '=':
			open = true
		case t.is("rounded", "to", "or", "about"):
			open = open || t.is("rounded")
		default:
			return false
		}
	}
	if !open {
		return false
	}
	t := &toks[i]
	if i+1 < len(toks) && toks[i+1].class&(cKept|cFree|cAlloc|cUse|cIdle|cTotal|cLimit) != 0 {
		return false
	}
	v := float64(a.N)
	if math.Abs(t.value-v) > math.Max(.012*v, 512) {
		return false
	}
	if t.integer && (t.unit == "" || units[t.unit] == 1) && i == before+2 {
		a.N, a.low, a.High = bytesOf(t.value), bytesOf(t.value), bytesOf(t.value)
	}
	return true
}

// A tokenList is a text.
type tokenList []token

// stop reports whether a segment of words ends at token k.
func (toks tokenList) stop(k int) bool {
	t := &toks[k]
	switch t.kind {
	case ';', '|', '{', '}':
		return true
	case '-':
		return !t.glued && k > 0 // a dash between blanks
	case '.':
		return k+1 >= len(toks) || !toks[k+1].glued
	case ',':
		// But not behind a number of something else, as in "(0.9, 65.32 GiB)".
		return k == 0 || toks[k-1].kind != 'n' || toks.stop(k-1)
	case 'n':
		var before *token
		if k > 0 {
			before = &toks[k-1]
		}
		return t.quantity(before)
	}
	return false
}

// most is how many words away a word may give a number its role.
const most = 9

// before finds the word before number i that says what it is. from is where the words
// that are about the number begin.
func (toks tokenList) before(i, taken int) (c candidate, from int) {
	c.at = -1
	from = i
	words, distance := 0, 0
	labelled, bracket := false, false
scan:
	for k := i - 1; k >= 0 && words < most && k > taken; k-- {
		t := &toks[k]
		switch {
		case t.kind == ')' || t.kind == ']':
			// Look past what stands in brackets, if it has no number.
			open := k
			for open > 0 && k-open < 10 && toks[open].kind != '(' && toks[open].kind != '[' {
				open--
				if toks[open].kind == 'n' && toks.stop(open) {
					break scan
				}
			}
			if toks[open].kind != '(' && toks[open].kind != '[' {
				break scan
			}
			k = open
			continue
		case t.kind == ':' || t.kind == '=' || t.kind == '-' && words == 0:
			if c.at >= 0 || words > 2 || k > 0 && (toks[k-1].class&CFail != 0 || k > 1 && toks[k-1].class&cAsk != 0 && toks[k-2].is("the", "this", "a") && (k < 3 || !toks[k-3].is("of"))) {
				break scan
			}
			labelled = labelled || words == 0 && t.kind != '-'
			if words > 0 {
				distance += 2
			}
			continue
		case toks.stop(k):
			break scan
		case t.kind == '(' || t.kind == '[':
			distance += 2 // what stands outside of a bracket says less of a number in it
			bracket = bracket || c.at < 0
			continue
		case t.kind != 'w':
			if t.kind == 'n' {
				distance++
			}
			continue
		}
		from = k
		words++
		if c.at < 0 {
			if r := toks.roleAt(k, i); r != roleNone {
				c = candidate{r, k, distance}
				if labelled {
					c.distance--
				}
			} else if t.class&cFiller == 0 {
				distance++
			}
		}
	}
	// "VRAM: 15095 MiB", "device memory 79 GiB".
	if k := i - 1; (c.at < 0 || bracket) && k > 0 {
		has := false
		for k > 0 && (toks[k].kind == ':' || toks[k].kind == '=' || toks[k].is("of", "is", "has", "with")) {
			has = has || toks[k].is("has", "with")
			k--
		}
		if has && (toks[k].is("card", "gpu", "device") || toks[k].kind == 'n' && toks.prev(k).is("card", "gpu", "device")) {
			c = candidate{RoleTotal, k, 1}
		}
		if toks[k].is("vram") || toks[k].is("memory") && k > 0 && toks[k-1].is("device", "gpu", "card") {
			c = candidate{RoleTotal, k, 1}
		}
	}
	return c, from
}

// after finds the word behind number i that says what it is.
func (toks tokenList) after(i int) (c candidate, to int) {
	c.at = -1
	to = i
	words, distance := 0, 0
	for k := i + 1; k < len(toks) && words < most; k++ {
		t := &toks[k]
		switch {
		case t.kind == ':' || t.kind == '=':
			// The words before it are the label of the next number.
			c.at = -1
			return c, to
		case t.kind == '(' || t.kind == ')' || t.kind == '/' || t.kind == ']' || toks.stop(k):
			return c, to
		case t.kind != 'w':
			continue
		case t.is("of") && k+1 < len(toks) && toks[k+1].is("which", "that"), t.is("while", "whereas", "but") && k+1 < len(toks) && toks[k+1].is("only", "just", "has", "have"), t.is("while", "whereas", "than"):
			return c, to
		}
		to = k
		words++
		if c.at < 0 {
			if r := toks.roleAt(k, i); r != roleNone {
				c = candidate{r, k, distance}
			} else if t.class&cFiller == 0 {
				distance++
			}
		}
	}
	return c, to
}

// near reports whether a word with one of these classes is among the n words beside token
// k, forward or backward, before a number or the end of a clause.
func (toks tokenList) near(k, n, step int, c class) bool {
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
	for k := from + 1; k < to; k++ {
		if toks[k].class&cBeyond != 0 || toks[k].kind == '>' {
			return true
		}
	}
	return false
}

// prev is the word before token k, within a name.
func (toks tokenList) prev(k int) *token {
	for k--; k >= 0 && (toks[k].kind == '_' || toks[k].kind == '-'); k-- {
	}
	if k < 0 {
		return &token{}
	}
	return &toks[k]
}

// next is the word after token k, within a name.
func (toks tokenList) next(k int) *token {
	for k++; k < len(toks) && (toks[k].kind == '_' || toks[k].kind == '-'); k++ {
	}
	if k == len(toks) {
		return &token{}
	}
	return &toks[k]
}

// nowOrPeak is what "alloc cur" or "reserved peak" at word k says of the number at token i. Behind
// the number it is the label of the next one.
func (toks tokenList) nowOrPeak(k, i int) (r role, ok bool) {
	t := &toks[k]
	if t.class&(cAlloc|cKept|cUse|cAcquire) == 0 || !toks.next(k).is("cur", "curr", "current", "peak", "max") {
		return roleNone, false
	}
	switch {
	case k > i:
		return roleNone, true
	case toks.next(k).is("peak", "max"):
		return rolePeak, true
	}
	return RoleAlloc, t.is("alloc")
}

// roleAt is what word k says of the number at token i.
func (toks tokenList) roleAt(k, i int) role {
	t := &toks[k]
	c := t.class
	peak := toks.near(k, 2, -1, cPeak) && !toks.near(k, 2, -1, cLimit)
	if r, ok := toks.nowOrPeak(k, i); ok {
		return r
	}
	switch {
	case c&cLargest != 0:
		return roleLargest
	case c&cIdle != 0:
		if k > i && (toks.near(k, 3, 1, cDevice) || k+1 < len(toks) && toks[k+1].is("of")) {
			return RoleFree
		}
		return RoleIdle
	case c&cKept != 0:
		if toks.near(k, 5, 1, cIdle) || toks.near(k, 5, 1, CNot) && !toks.near(k, 5, 1, CFail) {
			return RoleIdle
		}
		if peak {
			return rolePeak
		}
		return RoleKept
	case c&cAlloc != 0:
		switch {
		case toks.near(k, 3, -1, CFail) || toks.near(k, 1, -1, CNot) && k > i && !toks.near(k, 6, -1, cKept):
			return RoleWant // could not be allocated
		case toks.near(k, 1, -1, CNot):
			return RoleIdle
		case peak:
			return rolePeak
		}
		return RoleAlloc
	case c&cAcquire != 0:
		if toks.near(k, 2, -1, cPeak) || toks.prev(k).is("total", "temp", "parameter", "constant", "out", "preallocated") {
			return roleNone
		}
		return RoleWant
	case c&(cAsk|cTry) != 0, t.is("offload"):
		return RoleWant
	case c&cFree != 0:
		if toks.near(k, 3, -1, cLargest) || toks.near(k, 2, 1, cLargest) {
			return roleLargest
		}
		return RoleFree
	case t.is("room", "space") && k < i && toks.near(k, 2, -1, CNot|cScarce):
		return RoleWant
	case t.is("others") && k < i:
		return RoleUse
	case t.is("get", "find", "serve") && toks.near(k, 3, -1, CFail|CNot) && k < i:
		return RoleWant
	case t.is("utilization"):
		if toks.near(k, 3, -1, cAsk) {
			return RoleWant
		}
	case c&cLimit != 0:
		if k < i && (toks.prev(k).is("device", "gpu", "card") || toks.near(k, 3, 1, cDevice)) {
			return RoleTotal
		}
		return RoleLimit
	case c&cUse != 0:
		switch {
		case peak:
			return rolePeak
		case k+1 < len(toks) && toks[k+1].is("up"):
			return RoleLimit
		case t.is("holds", "held") && k < i && toks.prev(k).class&cPool != 0:
			return RoleKept
		}
		return RoleUse
	case c&cPeak != 0:
		if t.is("peak") || toks.near(k, 3, 1, cUse|cAlloc|cKept|cAcquire) {
			return rolePeak
		}
		if t.is("most", "highest") && !toks.prev(k).is("at") {
			return roleNone
		}
		return RoleLimit
	case c&cTotal != 0:
		switch {
		case k > i && toks.near(k, 2, 1, cFree):
			return RoleFree
		case k > i && toks.near(k, 2, 1, cUse|cAlloc):
			return RoleUse
		case toks.near(k, 3, 1, cAcquire):
			return roleNone
		case toks.near(k, 3, 1, cPool):
			return RoleKept
		case k+1 < len(toks) && toks[k+1].kind == 'w' && toks[k+1].class&(cMemory|cDevice|cSize|cTotal|cFiller|cUse|cFree|cPool|cHost) == 0 && k < i:
			return roleNone // of something else
		}
		return RoleTotal
	case c&cSize != 0:
		switch {
		case toks.prev(k).is("bank"):
			return RoleTotal
		case toks.prev(k).class&cPool != 0:
			return RoleKept
		case toks.near(k, 8, -1, cAcquire|cTry|cAsk) || k > 0 && toks.prev(k).is("allocation", "request", "tensor", "block", "rounded") || k > 1 && toks[k-2].is("buffer", "tensor", "array"):
			return RoleWant
		case toks.near(k, 2, -1, cPool):
			return RoleKept
		case toks.near(k, 2, -1, cMemory|cDevice):
			return RoleTotal
		}
	}
	return roleNone
}

// numbered is the word at k with the number that it has, as in "GPU 1", "cuda:1" and "heap 2"; "" if
// it has none, or if that is the amount at token i.
func (toks tokenList) numbered(k, i int) string {
	n := k + 1
	if n < len(toks) && (toks[n].kind == ':' || toks[n].kind == '#') {
		n++
	}
	if n >= len(toks) || n == i || toks[n].kind != 'n' || !toks[n].integer || toks[n].unit != "" || toks[n].value > 64 {
		return ""
	}
	word := toks[k].word
	if word != "heap" {
		word = "gpu"
	}
	return fmt.Sprintf("%s %d", word, int(toks[n].value))
}

// about looks at the words around a number for whose memory it is.
func (a *amount) about(toks tokenList, from, i, to int) {
	for k := from; k <= to && k < len(toks); k++ {
		t := &toks[k]
		if t.kind != 'w' {
			continue
		}
		if t.is("gpu", "device", "cuda", "card", "heap") && a.Subject == "" {
			a.Subject = toks.numbered(k, i)
		}
		if t.is("bank", "heap", "device", "card", "gpu") && k > 0 && toks[k-1].is("each", "every", "per") && a.Subject == "" {
			a.Subject = "each " + t.word
		}
		switch {
		case t.is("process", "pid"):
			if k+1 < len(toks) && toks[k+1].kind == 'n' && toks[k+1].integer && toks[k+1].unit == "" && k+1 != i {
				a.Pid = int(min(toks[k+1].value, math.MaxInt32))
			} else if k+2 < len(toks) && toks[k+1].kind == '=' && toks[k+2].kind == 'n' {
				a.Pid = int(min(toks[k+2].value, math.MaxInt32))
			} else if k > 0 && (toks[k-1].is("this", "the", "own")) {
				a.This = true
			}
		case t.class&cHost != 0 && !(t.is("host", "cpu") && k+1 < len(toks) && toks[k+1].kind == ':'):
			a.Host = true
		case t.class&cPool != 0:
			a.Pool = true
		case t.is("pytorch", "torch"):
			if k > 0 && toks[k-1].kind == '-' || k > 1 && toks[k-1].is("non") {
				break
			}
			a.Torch = true
		case t.is("private"):
			a.Private = true
		case t.is("kv", "cache", "caches") && a.Role != RoleKept:
			a.Cache = true
		case t.is("other", "others") || t.is("processes") && k > 0 && toks[k-1].is("other"):
			a.Other = true
			a.Programs = a.Programs || !t.is("others") && k+1 < len(toks) && toks[k+1].is("programs", "program", "processes", "process", "users", "jobs", "applications") || t.is("others")
		case t.is("initial", "initially", "before"):
			a.Initial = true
		}
	}
}
