package load

// One instruction: its fields and, in the order of XLA's printer, its attributes.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// An instruction is one that is read but not linked.
type instruction struct {
	i                       *hlo.Instruction
	raw                     []byte // the HloInstructionProto
	id                      int64
	operands, after, called []int64
	// behind are the attributes that are printed behind those that call.
	behind []hlo.Attribute
	order  string // of a comparison: TOTAL or PARTIAL
}

func (d *decoder) instruction(b []byte) (*instruction, error) {
	f := d.fields(b)
	if err := d.count(264 + 2*len(b) + 64*len(f.list)); err != nil {
		return nil, err
	}
	x := &instruction{
		raw:      b,
		id:       f.int(instructionID),
		operands: f.ints(instructionOperandIDs),
		after:    f.ints(instructionControlPredecessorIDs),
		called:   f.ints(instructionCalledComputationIDs),
	}
	name, op := f.string(instructionName), hlo.Opcode(f.string(instructionOpcode))
	if *f.err != nil {
		return nil, *f.err
	}
	if err := d.count(32 * (len(x.operands) + len(x.after) + len(x.called))); err != nil {
		return nil, err
	}

	x.i = d.m.NewInstruction(name, op, nil)
	if err := checkName(name); err != nil {
		return nil, fmt.Errorf("its name: %w", err)
	}
	if err := checkName(string(op)); err != nil {
		return x, fmt.Errorf("its opcode: %w", err)
	}
	f.shapes(instructionShape, func(s *hlo.Shape) { x.i.Shape = s })
	if *f.err == nil && x.i.Shape == nil {
		f.fail(errors.New("it has no shape"))
	}
	if *f.err != nil {
		return x, *f.err
	}

	d.readValue(x, f)
	x.i.Attributes = appendAttributes(nil, f, opcodeRules[hlo.Opcode(strings.TrimSuffix(string(op), "-start"))])
	if op == hlo.Compare {
		x.order = f.string(instructionComparisonOrder)
	}
	for k, r := range commonRules {
		if f.has(r.field) {
			f.within("its "+r.key, func() { x.behind = appendAttributes(x.behind, f, commonRules[k:k+1]) })
		}
	}
	if config := string(f.bytes(instructionBackendConfig)); config != "" {
		x.behind = append(x.behind, hlo.Attribute{Key: "backend_config", Value: jsonOrQuoted(config)})
	}
	if *f.err != nil {
		return x, *f.err
	}
	d.noteUnread(x.i, f)
	return x, nil
}

// readValue reads what only some opcodes have and no attribute says.
func (d *decoder) readValue(x *instruction, f *fields) {
	i := x.i
	switch i.Opcode {
	case hlo.Parameter:
		n := f.int(instructionParameterNumber)
		if n < 0 || n > 1<<31 {
			f.fail(fmt.Errorf("parameter number %d", n))
		}
		i.Parameter, i.Literal = int(n), number(n)
	case hlo.Constant:
		if !f.has(instructionLiteral) {
			f.fail(errors.New("a constant without its literal"))
		}
		f.within("its literal", func() { i.Literal = literal(i.Shape, f.bytes(instructionLiteral), f) })
	}
}

// noteUnread notes the fields with a value that nothing has read.
func (d *decoder) noteUnread(i *hlo.Instruction, f *fields) {
	var numbers []no
	for _, x := range f.list {
		if len(numbers) == maxNotes {
			break
		}
		noted := f.wasRead(x.n) || x.value == 0 && len(x.bytes) == 0 || slices.Contains(unprinted, x.n)
		if !noted && !slices.Contains(numbers, x.n) {
			numbers = append(numbers, x.n)
		}
	}
	for _, n := range numbers {
		d.note("%s (%s): field %d of HloInstructionProto is left out", i.Name, i.Opcode, n)
	}
}

// finish adds what calls, and what is printed behind it.
func (d *decoder) finish(x *instruction, called []*hlo.Computation) error {
	i := x.i
	list := func(key string) {
		i.Attributes = append(i.Attributes, hlo.Attribute{Key: key, Calls: called, List: true})
	}
	// each names the computations one by one.
	each := func(keys ...string) error {
		if len(called) != len(keys) {
			return fmt.Errorf("%s calls %d computations: expected %d", i.Opcode, len(called), len(keys))
		}
		for n, key := range keys {
			i.Attributes = append(i.Attributes, hlo.Attribute{Key: key, Calls: called[n : n+1 : n+1]})
		}
		return nil
	}
	var err error
	switch {
	case i.Opcode == hlo.Compare && len(i.Operands) > 0:
		usual := "TOTAL"
		if t := i.Operands[0].Shape.Type; t[0] == 'f' || t[0] == 'b' || t[0] == 'c' {
			usual = "PARTIAL" // floats and complex numbers
		}
		if x.order != "" && x.order != usual {
			i.Attributes = append(i.Attributes, hlo.Attribute{Key: "order", Value: x.order})
		}
	case i.Opcode == hlo.While:
		slices.Reverse(called)
		err = each("condition", "body")
	case i.Opcode == hlo.SelectAndScatter:
		err = each("select", "scatter")
	case i.Opcode == hlo.Conditional:
		if len(called) == 2 && len(i.Operands) > 0 && i.Operands[0].Shape.Type == "pred" {
			err = each("true_computation", "false_computation")
		} else {
			list("branch_computations")
		}
	case len(called) == 0:
	case i.Opcode == hlo.Fusion, i.Opcode == hlo.AsyncStart:
		err = each("calls")
	case i.Opcode == hlo.AsyncUpdate, i.Opcode == hlo.AsyncDone:
		// It is that of the start.
	case len(called) == 1 && i.Opcode != hlo.CustomCall:
		err = each("to_apply")
	default:
		list("called_computations")
	}
	i.Attributes = append(i.Attributes, x.behind...)
	return err
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// enumName is the name of an enum's value.
func enumName(n int64, names ...string) string {
	if n < 0 || n >= int64(len(names)) {
		return number(n)
	}
	return names[n]
}

// quoted is a string with C escapes, as the printer writes it.
func quoted(s string) string {
	b := []byte{'"'}
	for n := range len(s) {
		switch c := s[n]; {
		case c == '\n':
			b = append(b, `\n`...)
		case c == '\r':
			b = append(b, `\r`...)
		case c == '\t':
			b = append(b, `\t`...)
		case c == '"', c == '\'', c == '\\':
			b = append(b, '\\', c)
		case c < ' ' || c > '~':
			b = fmt.Appendf(b, `\%03o`, c)
		default:
			b = append(b, c)
		}
	}
	return string(append(b, '"'))
}

// jsonOrQuoted is a text as it is if it is one thing in braces, else in quotes.
func jsonOrQuoted(s string) string {
	depth, inString := 0, false
	for n := 0; n < len(s); n++ {
		switch c := s[n]; {
		case inString && c == '\\':
			n++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{':
			depth++
		case c == '}':
			depth--
			if depth == 0 && n < len(s)-1 || depth < 0 {
				return quoted(s)
			}
		case depth == 0:
			return quoted(s)
		}
	}
	if depth != 0 || inString || s == "" {
		return quoted(s)
	}
	return s
}

// stringMap is the text of FrontendAttributes, sorted by key, and empty if there are none.
func stringMap(f *fields) string {
	pairs := map[string]string{}
	f.messages(frontendAttributesMap, func(pair *fields) { pairs[pair.string(entryKey)] = pair.string(entryValue) })
	keys := slices.Sorted(maps.Keys(pairs))
	for n, key := range keys {
		keys[n] = key + "=" + jsonOrQuoted(pairs[key])
	}
	return bracedTexts(keys, ",")
}
