package hlo

// The parser of shapes. Equal texts give the same shape: a real module has some
// thousand instructions for each.

import (
	"math"
	"slices"
	"strings"
)

// maxDepth is how deep shapes, nested instructions and inline computations may
// stand in each other, all together. Tuples in tuples are rare, async ones have three levels.
const maxDepth = 256

// deeper counts a level of nesting; the caller takes it back.
func (p *parser) deeper() {
	if p.depth++; p.depth > maxDepth {
		panic(p.fail(p.at, "more than %d levels of nesting", maxDepth))
	}
}

// atShape reports whether a shape begins here, and not a name or an opcode.
func (p *parser) atShape() bool {
	if p.peek() == '(' {
		return true
	}
	if !isLetter[p.peek()] {
		return false
	}
	end := p.at
	for end < len(p.text) && isName[p.text[end]] {
		end++
	}
	if end == len(p.text) {
		return false
	}
	switch p.text[end] {
	case '[':
		return true
	case '(':
		return p.text[p.at:end] == "b"
	case ' ':
		_, is := widths[Type(p.text[p.at:end])]
		return is
	}
	return false
}

func (p *parser) shape() (s *Shape) {
	p.deeper()
	switch start := p.at; {
	case p.peek() == '(':
		s = p.tupleShape()
	case strings.HasPrefix(p.text[start:], "b("):
		p.at++
		p.eat('(')
		element := p.shape()
		if !element.IsArray() || element.Buffer {
			panic(p.fail(start, "b(...) is for arrays"))
		}
		if p.skip(); p.peek() != ')' {
			panic(p.wanted("')' behind the buffer's shape"))
		}
		p.at++
		s = p.share(start, func() *Shape {
			s := *element
			s.Buffer = true
			return &s
		})
	default:
		s = p.arrayShape()
	}
	p.depth--
	return s
}

// share is the shape of the text from start to here: an old one or a new one.
func (p *parser) share(start int, make func() *Shape) *Shape {
	text := p.text[start:p.at]
	s := p.shapes[text]
	if s == nil {
		s = make()
		p.shapes[text] = s
		p.held += 200 + 16*(len(s.Dims)+len(s.Elements))
	}
	return s
}

func (p *parser) tupleShape() *Shape {
	start, base := p.at, len(p.elements)
	p.eat('(')
	p.row(')', "or ')' in a tuple's shape", "another shape of the tuple", func() {
		e := p.shape() // which has its own use for p.elements
		p.elements = append(p.elements, e)
	})
	s := p.share(start, func() *Shape {
		return &Shape{Type: Tuple, Elements: slices.Clone(p.elements[base:])}
	})
	p.elements = p.elements[:base]
	return s
}

// row reads what stands in an open bracket, without a comma behind the last item, and
// stays right behind the bracket that closes.
func (p *parser) row(close byte, behind, another string, item func()) {
	for p.peek() != close {
		item()
		p.skip()
		if p.peek() == close {
			break
		}
		p.expect(',', behind)
		if p.peek() == close {
			panic(p.wanted(another))
		}
	}
	p.at++
}

func (p *parser) arrayShape() *Shape {
	start := p.at
	// Almost every shape was there before: so its end is looked for first.
	if end := p.arrayEnd(); end > 0 {
		if s := p.shapes[p.text[start:end]]; s != nil {
			p.at = end
			return s
		}
	}
	s := &Shape{Type: Type(p.word())}
	switch _, known := widths[s.Type]; {
	case s.Type == "":
		panic(p.wanted("a shape"))
	case !known:
		panic(p.fail(start, "%s is no type of XLA's", quote(string(s.Type))))
	}
	p.expect('[', "behind a type")
	p.row(']', "or ']' behind a dimension", "another dimension", func() { p.dimension(s) })
	p.layout(s)
	return p.share(start, func() *Shape { return s })
}

// arrayEnd is where the array's shape ends that begins here, if that is plain to see, and 0.
func (p *parser) arrayEnd() int {
	n := strings.IndexByte(p.text[p.at:], ']')
	if n < 0 {
		return 0
	}
	end := p.at + n + 1
	if end+1 >= len(p.text) {
		return 0
	}
	switch p.text[end] {
	case ',', ')':
		return end
	case ' ':
		// A layout may follow behind blanks and comments: not so plain.
		if c := p.text[end+1]; isLetter[c] || c == '%' || c == ')' {
			return end
		}
	case '{':
		if !isDigit(p.text[end+1]) {
			return 0
		}
		if n := strings.IndexAny(p.text[end:], "}("); n > 0 && p.text[end+n] == '}' {
			return end + n + 1
		}
	}
	return 0
}

func (p *parser) dimension(s *Shape) {
	size := int64(-1)
	dynamic := false
	switch p.peek() {
	case '?':
		p.at++
	case '<':
		if !strings.HasPrefix(p.text[p.at:], "<=") {
			panic(p.wanted("a dimension"))
		}
		p.at += 2
		p.skip()
		dynamic = true
		fallthrough
	default:
		size = p.integer("a dimension")
	}
	s.Dims = append(s.Dims, size)
	if dynamic && s.Dynamic == nil {
		s.Dynamic = make([]bool, len(s.Dims)-1)
	}
	if s.Dynamic != nil {
		s.Dynamic = append(s.Dynamic, dynamic)
	}
}

// layout reads the braces behind an array's dimensions if they are a layout: the brace
// of a computation's body is followed by neither a number nor a colon.
func (p *parser) layout(s *Shape) {
	behind := p.at
	p.skip()
	if p.peek() != '{' {
		p.at = behind
		return
	}
	open := p.at
	p.eat('{')
	if c := p.peek(); !isDigit(c) && c != ':' {
		p.at = behind
		return
	}
	rank := 0
	for isDigit(p.peek()) {
		n := p.integer("a dimension's number")
		if n > math.MaxInt32 || int(n) >= len(s.Dims) {
			panic(p.fail(open, "the layout names dimension %d of a shape that has %d", n, len(s.Dims)))
		}
		rank++
		if !p.eat(',') {
			break
		}
	}
	if rank != len(s.Dims) {
		panic(p.fail(open, "a layout of %d dimensions for a shape that has %d", rank, len(s.Dims)))
	}
	// The rest is kept as it stands: tiles, bits, memory space. P() has a shape of its
	// own, with its own braces.
	p.at = open
	text := p.json()
	s.Layout, s.HasLayout = strings.TrimSpace(text[1:len(text)-1]), true
}
