package hlo

// The parser of modules.

import (
	"fmt"
	"math"
	"strings"
)

// ParseString reads a module from HLO text of any release since 2020. The module
// keeps the text in memory: its names and values are parts of it. The error is a
// [*SyntaxError].
//
// What XLA's parser gives a name that it makes up has one here too: nested
// instructions and computations that stand in an attribute. An instruction
// behind the # of a tuple (%x#1) becomes a get-tuple-element.
func ParseString(text string) (*Module, error) { return ParseWithin(text, nil) }

// ParseWithin is ParseString for text that may be damaged or made to harm: hold is called
// with the bytes of memory that the module takes beside its text, a part at a time, and its
// first error ends reading. It may be nil.
func ParseWithin(text string, hold func(bytes int64) error) (m *Module, err error) {
	defer catch(&err)
	p := &parser{
		lexer:        lexer{text: text},
		m:            &Module{},
		computations: map[string]*Computation{},
		shapes:       map[string]*Shape{},
		named:        map[string]int{},
		line:         1,
		scope:        &scope{instructions: map[string]*Instruction{}},
		hold:         hold,
	}
	p.module()
	return p.m, nil
}

// maxAttributes is how many attributes one instruction or module may have. Real
// ones have some ten.
const maxAttributes = 256

type parser struct {
	lexer
	m            *Module
	computations map[string]*Computation
	shapes       map[string]*Shape   // by text
	elements     []*Shape            // of the tuples that are being read
	inline       []inlineComputation // computations still without a name
	named        map[string]int      // how many names were made up from each
	depth        int
	line, lineAt int // the line of an earlier place
	hold         func(bytes int64) error
	held         int // bytes of memory that hold was not called with yet
	*scope
}

// A scope is a computation that is being read.
type scope struct {
	c *Computation
	// instructions are those of this computation by name, and of some read before.
	instructions map[string]*Instruction
	parameters   []parameterAt
	// unnamed are nested instructions and made get-tuple-elements, named at the end.
	unnamed []*Instruction
	parts   map[part]*Instruction
}

type parameterAt struct {
	i  *Instruction
	at int
}

type inlineComputation struct {
	c    *Computation
	name string // what it is made from
}

// A part is an element of a tuple that # selects.
type part struct {
	of    *Instruction
	index int64
}

func (p *parser) module() {
	p.skip()
	header := p.keyword("HloModule")
	if header {
		p.m.Name = p.name("the module's name")
		p.eat(':') // as some write by hand
		p.attributes(&p.m.Attributes, p.moduleAttribute)
	}
	p.tables()
	for p.at < len(p.text) || len(p.m.Computations) == 0 {
		p.computation()
		p.skip()
	}
	if p.m.Entry == nil {
		p.m.Entry = p.m.Computations[len(p.m.Computations)-1]
	}
	if !header {
		p.m.Name = "module_" + p.m.Entry.Name // as XLA does
	}
	for _, i := range p.inline {
		i.c.Name = p.makeName(i.name, func(name string) bool { return p.computations[name] != nil })
		p.computations[i.c.Name] = i.c
	}
}

// makeName is base, or base.1, base.2 and so on, that was neither made before nor is taken.
func (p *parser) makeName(base string, taken func(string) bool) string {
	for {
		name := base
		if n := p.named[base]; n > 0 {
			name = fmt.Sprintf("%s.%d", base, n)
		}
		p.named[base]++
		if !taken(name) {
			return name
		}
	}
}

// tables reads FileNames and the like, and keeps them as they stand.
func (p *parser) tables() {
	start, end := p.at, p.at
	for p.keyword("FileNames") || p.keyword("FunctionNames") || p.keyword("FileLocations") || p.keyword("StackFrames") {
		end = p.at
		for isDigit(p.peek()) {
			p.integer("the number of an entry")
			p.skip()
			switch p.peek() {
			case '"', '\'':
				p.quoted()
			case '{':
				p.json()
			default:
				panic(p.wanted("a string or braces in the table"))
			}
			end = p.at
			p.skip()
		}
	}
	p.m.Tables = strings.TrimSpace(p.text[start:end])
}

// attributes reads ", key=value" as often as it stands here. The value is read by
// read, which reports whether to keep the attribute.
func (p *parser) attributes(list *[]Attribute, read func(a *Attribute) (keep bool)) {
	for n := 0; p.eat(','); n++ {
		at := p.at
		a := Attribute{Key: p.word()}
		if a.Key == "" {
			panic(p.wanted("an attribute's name"))
		}
		if n == maxAttributes {
			panic(p.fail(at, "more than %d attributes", maxAttributes))
		}
		for _, b := range *list {
			if b.Key == a.Key {
				panic(p.fail(at, "a second attribute %s", quote(a.Key)))
			}
		}
		p.expect('=', "behind an attribute's name")
		if read(&a) {
			*list = append(*list, a)
		}
		p.skip()
	}
}

// moduleAttribute reads the value of an attribute of the module.
func (p *parser) moduleAttribute(a *Attribute) (keep bool) {
	at := p.at
	a.Value = p.value(a.Key)
	behind := p.at
	switch a.Key {
	case "is_scheduled":
		if a.Value != "true" && a.Value != "false" {
			panic(p.fail(at, "is_scheduled is %s, expected true or false", quote(a.Value)))
		}
		p.m.Scheduled = a.Value == "true"
	case "input_output_alias":
		p.at = at
		p.aliases()
		p.at = behind
	}
	return true
}

// value is the text of an attribute's value.
func (p *parser) value(key string) string {
	if (key == "backend_config" || key == "frontend_attributes") && p.peek() == '{' {
		return p.json()
	}
	start := p.at
	s := p.raw(true)
	if s == "" {
		p.at = start
		panic(p.wanted("the value of " + quote(key)))
	}
	if key == "literal" && strings.HasSuffix(s, "]") { // a scalar's value stands behind its shape: f32[] 0.1
		p.skip()
		v := p.raw(true)
		if v == "" {
			panic(p.wanted("a value behind the shape of a literal"))
		}
		s += " " + v
	}
	return s
}

// aliases reads those of the module, one for each output.
func (p *parser) aliases() {
	outputs := map[string]bool{}
	p.lexer.aliases(func(at int, a Alias) {
		key := indexText(a.Output)
		if outputs[key] {
			panic(p.fail(at, "a second alias of output %s", key))
		}
		outputs[key] = true
		p.m.Aliases = append(p.m.Aliases, a)
	})
}

// aliases reads "{ {0}: (2, {1}, may-alias), ... }" and calls each with every alias and its
// place.
func (l *lexer) aliases(each func(at int, a Alias)) {
	l.list("the aliases", func() {
		at := l.at
		a := Alias{Output: l.index()}
		l.expect(':', "behind the output of an alias")
		l.expect('(', "before the parameter of an alias")
		a.Parameter = l.small("the number of a parameter")
		l.expect(',', "behind the parameter of an alias")
		a.Index = l.index()
		if l.eat(',') {
			at := l.at
			kind := l.word()
			if a.Must = kind == "must-alias"; !a.Must && kind != "may-alias" {
				l.at = at
				panic(l.wanted("may-alias or must-alias"))
			}
		}
		l.expect(')', "behind an alias")
		each(at, a)
	})
}

// index reads an index into nested tuples: "{}", "{0,1}".
func (l *lexer) index() (list []int) {
	l.list("an index", func() { list = append(list, l.small("an index")) })
	return list
}

// small is an integer that 31 bits hold.
func (l *lexer) small(what string) int {
	at := l.at
	n := l.integer(what)
	if n > math.MaxInt32 {
		panic(l.fail(at, "%s is at most %d", what, math.MaxInt32))
	}
	return int(n)
}
