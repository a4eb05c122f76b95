package statement

// Words that give a number its role, by their classes and by what stands beside them. See roles.go for
// an overview.

// A place is word k of a text, as it may say something of the number at i.
type place struct {
	tokenList
	k, i int
}

func (p place) word() *token             { return &p.tokenList[p.k] }
func (p place) next() *token             { return p.at(p.k + 1) }
func (p place) prev() *token             { return p.tokenList.prev(p.k) }
func (p place) behind() bool             { return p.k > p.i }
func (p place) near(n int, c class) bool { return p.tokenList.near(p.k, n, c) }

// peak reports whether the word is a figure's highest value, and no limit of it.
func (p place) peak() bool { return p.near(-2, cPeak) && !p.near(-2, cLimit) }

// current reports whether the word is the label of a counter, as in "reserved cur" and "alloc peak".
func (p place) current() bool {
	return p.tokenList.next(p.k).is("cur", "curr", "current", "peak", "max")
}

// unallocated reports whether reserved memory is said to be not allocated.
func (p place) unallocated() bool {
	return p.near(5, cIdle) || p.near(5, CNot) && !p.near(5, CFail)
}

// notAllocated reports whether the word is what failed: "could not be allocated".
func (p place) notAllocated() bool {
	return p.near(-3, CFail) || p.near(-1, CNot) && p.behind() && !p.near(-6, cKept)
}

// ofAnother reports whether the word is the total of something else than memory: "total steps 5000".
func (p place) ofAnother() bool {
	return !p.behind() && p.next().kind == 'w' && p.next().class&(cMemory|cDevice|cSize|cTotal|cFiller|cUse|cFree|cPool|cHost) == 0
}

// ofRequest reports whether the word is the size of what was wanted.
func (p place) ofRequest() bool {
	thing := p.prev().is("allocation", "request", "tensor", "block", "rounded") || p.at(p.k-2).is("buffer", "tensor", "array")
	return thing || p.near(-8, cAcquire|cTry|cAsk)
}

// A roleRule gives a role to the number of a place whose word has one of the classes, or is one of the
// words, where the condition holds.
type roleRule struct {
	class class
	words []string
	when  func(p place) bool // nil is always
	role  role
}

// roleRules are tried in their order. The rules of a class end with what it says by itself.
var roleRules = []roleRule{
	{cAlloc | cKept | cUse | cAcquire, nil, func(p place) bool { return p.behind() && p.current() }, roleNone}, // the label of the next number
	{0, []string{"alloc"}, place.current, RoleAlloc},

	{cLargest, nil, nil, roleLargest},

	{cIdle, nil, func(p place) bool { return p.behind() && (p.near(3, cDevice) || p.next().is("of")) }, RoleFree},
	{cIdle, nil, nil, RoleIdle},

	{cKept, nil, place.unallocated, RoleIdle},
	{cKept, nil, place.peak, rolePeak},
	{cKept, nil, nil, RoleKept},

	{cAlloc, nil, place.notAllocated, RoleWant},
	{cAlloc, nil, func(p place) bool { return p.near(-1, CNot) }, RoleIdle},
	{cAlloc, nil, place.peak, rolePeak},
	{cAlloc, nil, nil, RoleAlloc},

	{cAcquire, nil, func(p place) bool { return p.near(-2, cPeak) }, roleNone},
	{cAcquire, nil, func(p place) bool {
		return p.prev().is("total", "temp", "parameter", "constant", "out", "preallocated")
	}, roleNone},
	{cAcquire | cAsk | cTry, []string{"offload"}, nil, RoleWant},

	{cFree, nil, func(p place) bool { return p.near(-3, cLargest) || p.near(2, cLargest) }, roleLargest},
	{cFree, nil, nil, RoleFree},

	{0, []string{"room", "space"}, func(p place) bool { return !p.behind() && p.near(-2, CNot|cScarce) }, RoleWant},
	{0, []string{"others"}, func(p place) bool { return !p.behind() }, RoleUse},
	{0, []string{"get", "find", "serve"}, func(p place) bool { return !p.behind() && p.near(-3, CFail|CNot) }, RoleWant},
	{0, []string{"utilization"}, func(p place) bool { return p.near(-3, cAsk) }, RoleWant},

	{cLimit, nil, func(p place) bool { return !p.behind() && (p.prev().is("device", "gpu", "card") || p.near(3, cDevice)) }, RoleTotal},
	{cLimit, nil, nil, RoleLimit},

	{cUse, nil, place.peak, rolePeak},
	{cUse, nil, func(p place) bool { return p.next().is("up") }, RoleLimit},
	{0, []string{"holds", "held"}, func(p place) bool { return !p.behind() && p.prev().class&cPool != 0 }, RoleKept},
	{cUse, nil, nil, RoleUse},

	{0, []string{"peak"}, nil, rolePeak},
	{cPeak, nil, func(p place) bool { return p.near(3, cUse|cAlloc|cKept|cAcquire) }, rolePeak},
	{0, []string{"most", "highest"}, func(p place) bool { return !p.prev().is("at") }, roleNone},
	{cPeak, nil, nil, RoleLimit},

	{cTotal, nil, func(p place) bool { return p.behind() && p.near(2, cFree) }, RoleFree},
	{cTotal, nil, func(p place) bool { return p.behind() && p.near(2, cUse|cAlloc) }, RoleUse},
	{cTotal, nil, func(p place) bool { return p.near(3, cAcquire) }, roleNone},
	{cTotal, nil, func(p place) bool { return p.near(3, cPool) }, RoleKept},
	{cTotal, nil, place.ofAnother, roleNone},
	{cTotal, nil, nil, RoleTotal},

	{cSize, nil, func(p place) bool { return p.prev().is("bank") }, RoleTotal},
	{cSize, nil, func(p place) bool { return p.prev().class&cPool != 0 }, RoleKept},
	{cSize, nil, place.ofRequest, RoleWant},
	{cSize, nil, func(p place) bool { return p.near(-2, cPool) }, RoleKept},
	{cSize, nil, func(p place) bool { return p.near(-2, cMemory|cDevice) }, RoleTotal},
}

// roleAt is what word k says of the number at token i.
func (toks tokenList) roleAt(k, i int) role {
	p := place{toks, k, i}
	for r := range roleRules {
		rule := &roleRules[r]
		if (p.word().class&rule.class != 0 || p.word().is(rule.words...)) && (rule.when == nil || rule.when(p)) {
			return rule.role
		}
	}
	return roleNone
}
