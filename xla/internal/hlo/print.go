package hlo

// Writing modules as text, the way that XLA does.

import (
	"bufio"
	"io"
	"strconv"
	"strings"
)

// String is the shape as XLA prints it: "f32[2,3]{1,0}".
func (s *Shape) String() string { return string(s.append(nil, true)) }

func shapeText(s *Shape) string {
	text := s.String()
	if len(text) > 200 {
		text = text[:200] + "..."
	}
	return text
}

func (s *Shape) append(b []byte, layout bool) []byte {
	if s.Buffer {
		b = append(b, "b("...)
	}
	if s.Type == Tuple {
		b = append(b, '(')
		for n, e := range s.Elements {
			b = e.append(separate(b, n), layout)
		}
		return append(b, ')')
	}
	b = append(append(b, s.Type...), '[')
	for n, d := range s.Dims {
		if n > 0 {
			b = append(b, ',')
		}
		if d < 0 {
			b = append(b, '?')
			continue
		}
		if n < len(s.Dynamic) && s.Dynamic[n] {
			b = append(b, "<="...)
		}
		b = strconv.AppendInt(b, d, 10)
	}
	b = append(b, ']')
	if layout && s.Layout != "" {
		b = append(b, '{')
		b = append(b, s.Layout...)
		b = append(b, '}')
	}
	if s.Buffer {
		b = append(b, ')')
	}
	return b
}

// separate puts what stands before element n of a list: XLA numbers every fifth.
func separate(b []byte, n int) []byte {
	if n == 0 {
		return b
	}
	b = append(b, ", "...)
	if n%5 == 0 {
		b = append(b, "/*index="...)
		b = strconv.AppendInt(b, int64(n), 10)
		b = append(b, "*/"...)
	}
	return b
}

// Write writes the module as text, in its own Style. [ParseString] gives an equal one
// back, unless a computation stands before one that it calls: they are put in order.
// Comments are lost.
func (m *Module) Write(w io.Writer) error {
	out := bufio.NewWriterSize(w, 1<<16)
	var b []byte
	b = append(m.appendHeader(b), '\n')
	for _, c := range m.CalleesFirst() {
		b = c.appendHead(b)
		for _, i := range c.Instructions {
			b = i.append(b)
			if _, err := out.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
		b = append(b, '}')
		if c.Thread != "" {
			b = append(append(append(b, `, execution_thread="`...), c.Thread...), '"')
		}
		b = append(b, "\n\n"...)
	}
	if _, err := out.Write(b); err != nil {
		return err
	}
	return out.Flush()
}

// CalleesFirst are the computations so that each comes after those that it calls, which
// parsers want. Otherwise their order stays. The module must have no recursion.
func (m *Module) CalleesFirst() []*Computation {
	list := make([]*Computation, 0, len(m.Computations))
	seen := make(map[*Computation]bool, len(m.Computations))
	// The stack is a list, as a chain of calls may be as long as the module.
	type call struct {
		c    *Computation
		left []*Computation // what it calls and is not visited yet
	}
	var stack []call
	visit := func(c *Computation) {
		if seen[c] {
			return
		}
		seen[c] = true
		var left []*Computation
		for _, i := range c.Instructions {
			for _, a := range i.Attributes {
				left = append(left, a.Calls...)
			}
		}
		stack = append(stack, call{c, left})
	}
	for _, c := range m.Computations {
		for visit(c); len(stack) > 0; {
			top := &stack[len(stack)-1]
			if len(top.left) == 0 {
				list = append(list, top.c)
				stack = stack[:len(stack)-1]
				continue
			}
			next := top.left[0]
			top.left = top.left[1:]
			visit(next)
		}
	}
	return list
}

// String is the module as text: see [Module.Write].
func (m *Module) String() string {
	var s strings.Builder
	s.Grow(150 * m.Instructions()) // some 100 to 250 bytes each in real modules
	m.Write(&s)                    // a Builder has no errors
	return s.String()
}

func (m *Module) appendHeader(b []byte) []byte {
	b = append(append(b, "HloModule "...), m.Name...)
	if _, has := m.Attribute("is_scheduled"); !has && m.Scheduled {
		b = append(b, ", is_scheduled=true"...)
	}
	if _, has := m.Attribute("input_output_alias"); !has {
		b = m.appendAliases(b)
	}
	for _, a := range m.Attributes {
		switch {
		case a.Key == "input_output_alias":
			b = m.appendAliases(b)
		case a.Key == "is_scheduled":
			if m.Scheduled || a.Value == "false" {
				b = strconv.AppendBool(append(b, ", is_scheduled="...), m.Scheduled)
			}
		default:
			b = append(append(append(append(b, ", "...), a.Key...), '='), a.Value...)
		}
	}
	b = append(b, '\n')
	if m.Tables != "" {
		b = append(append(append(b, '\n'), m.Tables...), "\n\n"...)
	}
	return b
}

func (m *Module) appendAliases(b []byte) []byte {
	if len(m.Aliases) == 0 {
		return b
	}
	b = append(b, ", input_output_alias={ "...)
	for n, a := range m.Aliases {
		if n > 0 {
			b = append(b, ", "...)
		}
		b = append(append(b, indexText(a.Output)...), ": ("...)
		b = strconv.AppendInt(b, int64(a.Parameter), 10)
		b = append(append(b, ", "...), indexText(a.Index)...)
		if a.Must {
			b = append(b, ", must-alias)"...)
		} else {
			b = append(b, ", may-alias)"...)
		}
	}
	return append(b, " }"...)
}

// indexText is an index into nested tuples: "{}", "{0,1}".
func indexText(index []int) string {
	b := []byte{'{'}
	for n, i := range index {
		if n > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(i), 10)
	}
	return string(append(b, '}'))
}

func (m *Module) appendName(b []byte, name string) []byte {
	if m.Style.Percent {
		b = append(b, '%')
	}
	return append(b, name...)
}

func (c *Computation) appendHead(b []byte) []byte {
	m := c.Module
	if c == m.Entry {
		b = append(b, "ENTRY "...)
	}
	b = m.appendName(b, c.Name)
	if m.Style.Signatures {
		b = append(b, " ("...)
		for n, p := range c.Parameters() {
			if n > 0 {
				b = append(b, ", "...)
			}
			if p != nil {
				b = append(append(b, p.Name...), ": "...)
				b = p.Shape.append(b, false)
			}
		}
		b = append(b, ") -> "...)
		b = c.Root.Shape.append(b, false)
	}
	return append(b, " {\n"...)
}

// Text is the line of the module's text that has the instruction.
func (i *Instruction) Text() string { return string(i.append(nil)) }

func (i *Instruction) append(b []byte) []byte {
	m := i.module()
	b = append(b, "  "...)
	if i == i.Parent.Root {
		b = append(b, "ROOT "...)
	}
	b = append(m.appendName(b, i.Name), " = "...)
	b = append(i.Shape.append(b, true), ' ')
	b = append(append(b, i.Opcode...), '(')
	switch i.Opcode {
	case Parameter:
		b = strconv.AppendInt(b, int64(i.Parameter), 10)
	case Constant:
		b = append(b, i.Literal...)
	default:
		for n, o := range i.Operands {
			b = separate(b, n)
			if m.Style.OperandShapes {
				b = append(o.Shape.append(b, true), ' ')
			}
			b = m.appendName(b, o.Name)
		}
	}
	b = append(b, ')')
	after := len(i.After) > 0
	for _, a := range i.Attributes {
		if after && behindControl(a.Key) {
			b, after = i.appendControl(b), false
		}
		b = append(append(append(b, ", "...), a.Key...), '=')
		switch {
		case a.List:
			b = append(b, '{')
			for n, c := range a.Calls {
				if n > 0 {
					b = append(b, ", "...)
				}
				b = m.appendName(b, c.Name)
			}
			b = append(b, '}')
		case len(a.Calls) > 0:
			b = m.appendName(b, a.Calls[0].Name)
		default:
			b = append(b, a.Value...)
		}
	}
	if after {
		b = i.appendControl(b)
	}
	return append(b, '\n')
}

// behindControl reports whether XLA prints an attribute behind the control predecessors.
func behindControl(key string) bool {
	switch key {
	case "statistics", "origin", "metadata", "backend_config":
		return true
	}
	return false
}

func (i *Instruction) appendControl(b []byte) []byte {
	b = append(b, ", control-predecessors={"...)
	for n, p := range i.After {
		if n > 0 {
			b = append(b, ", "...)
		}
		b = i.module().appendName(b, p.Name)
	}
	return append(b, '}')
}
