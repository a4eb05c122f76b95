package proto

// One instruction: its fields and, in the order of XLA's printer, its attributes.

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/hlo"
)

// An instruction is one that is read but not linked.
type instruction struct {
	i                       *hlo.Instruction
	id                      int64
	operands, after, called []int64
	// behind are the attributes that are printed behind those that call.
	behind []hlo.Attribute
	order  string // of a comparison: TOTAL or PARTIAL
}

// fields are those of a message. The first error of reading one stays.
type fields struct {
	list []field
	read [4]uint64 // a bit for each number below 256 that was asked for
	err  error
}

func fieldsOf(b []byte) *fields {
	f := &fields{}
	f.err = walk(b, func(x field) error {
		f.list = append(f.list, x)
		return nil
	})
	return f
}

// each reads all that a number has.
func (f *fields) each(n protowire.Number, read func(field) error) {
	f.use(n, true)
	for _, x := range f.list {
		if x.n == n && f.err == nil {
			f.err = read(x)
		}
	}
}

// use says that a field was read, or that it was not after all.
func (f *fields) use(n protowire.Number, read bool) {
	if f.read[n/64&3] |= 1 << (n % 64); !read {
		f.read[n/64&3] &^= 1 << (n % 64)
	}
}

func (f *fields) has(n protowire.Number) bool {
	return slices.ContainsFunc(f.list, func(x field) bool { return x.n == n })
}

func (f *fields) int(n protowire.Number) (v int64) {
	f.each(n, func(x field) error { return x.int(&v) })
	return v
}

func (f *fields) bool(n protowire.Number) bool { return f.int(n) != 0 }

func (f *fields) ints(n protowire.Number) (list []int64) {
	f.each(n, func(x field) error { return x.ints(&list) })
	return list
}

func (f *fields) string(n protowire.Number) (s string) {
	f.each(n, func(x field) error { return x.string(&s) })
	return s
}

// bytes is a bytes field or a message, the last if there are several.
func (f *fields) bytes(n protowire.Number) (b []byte) {
	f.each(n, func(x field) error { return x.message(&b) })
	return b
}

func (d *decoder) instruction(b []byte) (*instruction, error) {
	f := fieldsOf(b)
	if err := d.count(264 + 2*len(b) + 64*len(f.list)); err != nil {
		return nil, err
	}
	x := &instruction{id: f.int(35), operands: f.ints(36), after: f.ints(37), called: f.ints(38)}
	name, op := f.string(1), hlo.Opcode(f.string(2))
	if f.err != nil {
		return nil, f.err
	}
	if err := d.count(32 * (len(x.operands) + len(x.after) + len(x.called))); err != nil {
		return nil, err
	}
	x.i = d.m.NewInstruction(name, op, nil)
	if err := named(name); err != nil {
		return nil, fmt.Errorf("its name: %w", err)
	}
	if err := named(string(op)); err != nil {
		return x, fmt.Errorf("its opcode: %w", err)
	}
	if !f.has(3) {
		return x, errors.New("it has no shape")
	}
	var err error
	if x.i.Shape, err = d.shape(f.bytes(3)); err != nil {
		return x, err
	}
	add := func(key, value string) {
		x.i.Attributes = append(x.i.Attributes, hlo.Attribute{Key: key, Value: value})
	}
	if err := d.own(x, f, add); err != nil {
		return x, err
	}
	add = func(key, value string) { x.behind = append(x.behind, hlo.Attribute{Key: key, Value: value}) }
	if err := d.common(f, add); err != nil {
		return x, err
	}
	if f.err != nil {
		return x, f.err
	}
	d.left(x.i, f)
	return x, nil
}

// silent are fields that mean something only for opcodes whose text shows them, or are
// superseded by others: 4 to 6, 10 and 12 of old releases, 45 by the channel.
var silent = []protowire.Number{4, 5, 6, 9, 10, 12, 14, 26, 45, 50, 51, 56, 57, 58, 63, 70, 77}

// left notes the fields with a value that nothing has read.
func (d *decoder) left(i *hlo.Instruction, f *fields) {
	var numbers []protowire.Number
	for _, x := range f.list {
		if len(numbers) == maxNotes {
			break
		}
		read := x.n < 256 && f.read[x.n/64]>>(x.n%64)&1 != 0
		if !read && (x.value != 0 || len(x.bytes) > 0) && !slices.Contains(silent, x.n) && !slices.Contains(numbers, x.n) {
			numbers = append(numbers, x.n)
		}
	}
	for _, n := range numbers {
		d.note("%s (%s): field %d of HloInstructionProto is left out", i.Name, i.Opcode, n)
	}
}

// own adds the attributes of an opcode of its own.
func (d *decoder) own(x *instruction, f *fields, add func(key, value string)) error {
	i := x.i
	switch i.Opcode {
	case hlo.Parameter:
		n := f.int(9)
		if n < 0 || n > 1<<31 {
			return fmt.Errorf("parameter number %d", n)
		}
		i.Parameter, i.Literal = int(n), strconv.FormatInt(n, 10)
		if list := boolsIn(f.bytes(61)); len(list) > 0 {
			add("parameter_replication", "{"+strings.Join(list, ",")+"}")
		}
	case hlo.Constant:
		if !f.has(8) {
			return errors.New("a constant without its literal")
		}
		var err error
		if i.Literal, err = d.literal(i.Shape, f.bytes(8)); err != nil {
			return fmt.Errorf("its literal: %w", err)
		}
	case hlo.GetTupleElement:
		add("index", number(f.int(13)))
	case hlo.Iota:
		if list := f.ints(14); len(list) > 0 {
			add("iota_dimension", number(list[0]))
		}
	case hlo.Reverse, hlo.Concatenate, hlo.Reduce, hlo.Transpose, hlo.Broadcast, hlo.Map, "get-dimension-size", hlo.SetDimensionSize:
		add("dimensions", braced(f.ints(14)))
	case hlo.Sort:
		add("dimensions", braced(f.ints(14)))
		if f.bool(60) {
			add("is_stable", "true")
		}
	case hlo.Reshape:
		if list := f.ints(14); len(list) > 0 {
			add("inferred_dimension", number(list[0]))
		}
	case hlo.Compare:
		add("direction", f.string(63))
		// Up to 2025 field 72 said how to compare, then field 102: what is the operands'
		// own way is not printed, see finish.
		if f.string(72) == "TOTALORDER" {
			add("type", "TOTALORDER")
		}
		x.order = f.string(102)
	case hlo.Slice:
		var dims [][3]int64
		strides := false
		f.each(17, func(x field) error {
			s := fieldsOf(x.bytes)
			dims = append(dims, [3]int64{s.int(1), s.int(2), s.int(3)})
			strides = strides || s.int(3) != 1
			return s.err
		})
		var parts []string
		for _, d := range dims {
			text := fmt.Sprintf("[%d:%d", d[0], d[1])
			if strides {
				text += ":" + number(d[2])
			}
			parts = append(parts, text+"]")
		}
		add("slice", "{"+strings.Join(parts, ", ")+"}")
	case hlo.DynamicSlice:
		add("dynamic_slice_sizes", braced(f.ints(20)))
	case hlo.Pad:
		text, err := padding(f.bytes(21))
		if err != nil {
			return err
		}
		add("padding", text)
	case hlo.ReduceWindow, hlo.SelectAndScatter:
		return window(f, add)
	case hlo.Convolution:
		return convolution(f, add)
	case hlo.Dot:
		return dot(f, add)
	case hlo.Gather, hlo.Scatter:
		return indexed(i.Opcode, f, add)
	case hlo.Fusion:
		add("kind", f.string(11))
		return aliasing(f, add)
	case hlo.CustomCall:
		return d.customCall(f, add)
	case hlo.Rng:
		add("distribution", pick(f.int(23), "rng_invalid", "rng_uniform", "rng_normal"))
	case hlo.RngBitGenerator:
		add("algorithm", pick(f.int(70), "rng_default", "rng_three_fry", "rng_philox"))
	case hlo.RngGetAndUpdateState:
		add("delta", number(f.int(66)))
	case "reduce-precision":
		add("exponent_bits", number(f.int(18)))
		add("mantissa_bits", number(f.int(19)))
	case "batch-norm-training", "batch-norm-inference", "batch-norm-grad":
		var epsilon float32
		f.each(24, func(x field) error { return x.float32(&epsilon) })
		add("epsilon", shortFloat(float64(epsilon), 6))
		add("feature_index", number(f.int(25)))
	case "fft":
		add("fft_type", pick(f.int(31), "FFT", "IFFT", "RFFT", "IRFFT"))
		add("fft_length", braced(f.ints(32)))
	case hlo.TriangularSolve:
		o := fieldsOf(f.bytes(59))
		for _, part := range []struct {
			key string
			n   protowire.Number
		}{{"left_side", 1}, {"lower", 2}, {"unit_diagonal", 3}} {
			if o.bool(part.n) {
				add(part.key, "true")
			}
		}
		if t := o.int(4); t != 0 {
			add("transpose_a", pick(t, "TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))
		}
		return o.err
	case "cholesky":
		o := fieldsOf(f.bytes(62))
		if o.bool(1) {
			add("lower", "true")
		}
		return o.err
	case "topk":
		add("k", number(f.int(81)))
		add("largest", strconv.FormatBool(f.bool(85)))
		if f.bool(60) {
			add("is_stable", "true")
		}
	case hlo.Infeed:
		if f.has(27) {
			add("infeed_config", quoted(string(f.bytes(27))))
		}
	case hlo.Outfeed:
		if f.has(29) {
			s, err := d.shape(f.bytes(29))
			if err != nil {
				return err
			}
			add("outfeed_shape", s.String())
		}
		if len(f.bytes(22)) > 0 {
			add("outfeed_config", quoted(string(f.bytes(22))))
		}
	case hlo.Domain:
		return domain(f, add)
	default:
		return collective(i.Opcode, f, add)
	}
	return nil
}

// finish adds what calls, and what is printed behind it.
func (d *decoder) finish(x *instruction, called []*hlo.Computation) error {
	i := x.i
	call := func(key string, list bool, callees ...*hlo.Computation) {
		i.Attributes = append(i.Attributes, hlo.Attribute{Key: key, Calls: callees, List: list})
	}
	count := func(n int) error {
		if len(called) != n {
			return fmt.Errorf("%s calls %d computations: expected %d", i.Opcode, len(called), n)
		}
		return nil
	}
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
		if err := count(2); err != nil {
			return err
		}
		call("condition", false, called[1])
		call("body", false, called[0])
	case i.Opcode == hlo.SelectAndScatter:
		if err := count(2); err != nil {
			return err
		}
		call("select", false, called[0])
		call("scatter", false, called[1])
	case i.Opcode == hlo.Conditional:
		if len(called) == 2 && len(i.Operands) > 0 && i.Operands[0].Shape.Type == "pred" {
			call("true_computation", false, called[0])
			call("false_computation", false, called[1])
		} else {
			call("branch_computations", true, called...)
		}
	case len(called) == 0:
	case i.Opcode == hlo.Fusion, i.Opcode == hlo.AsyncStart:
		if err := count(1); err != nil {
			return err
		}
		call("calls", false, called...)
	case i.Opcode == hlo.AsyncUpdate, i.Opcode == hlo.AsyncDone:
		// It is that of the start.
	case len(called) == 1 && i.Opcode != hlo.CustomCall:
		call("to_apply", false, called...)
	default:
		call("called_computations", true, called...)
	}
	i.Attributes = append(i.Attributes, x.behind...)
	return nil
}

// common adds the attributes that any instruction may have.
func (d *decoder) common(f *fields, add func(key, value string)) error {
	if f.has(40) {
		text, err := sharding(f.bytes(40), 0)
		if err != nil {
			return fmt.Errorf("its sharding: %w", err)
		}
		if text == "" {
			f.use(40, false) // noted as left out
		} else {
			add("sharding", text)
		}
	}
	if f.has(68) {
		text, err := stringMap(f.bytes(68))
		if err != nil {
			return fmt.Errorf("its frontend_attributes: %w", err)
		}
		if text != "{}" {
			add("frontend_attributes", text)
		}
	}
	if f.has(7) {
		text, err := metadata(f.bytes(7))
		if err != nil {
			return fmt.Errorf("its metadata: %w", err)
		}
		if text != "" {
			add("metadata", "{"+text+"}")
		}
	}
	if config := string(f.bytes(43)); config != "" {
		add("backend_config", jsonOrQuoted(config))
	}
	return nil
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// pick is the name of an enum's value.
func pick(n int64, names ...string) string {
	if n < 0 || n >= int64(len(names)) {
		return number(n)
	}
	return names[n]
}

// boolsIn are the values of a message's repeated field 1.
func boolsIn(b []byte) (list []string) {
	for _, v := range fieldsOf(b).ints(1) {
		list = append(list, strconv.FormatBool(v != 0))
	}
	return list
}

// metadata is the text of an OpMetadata.
func metadata(b []byte) (string, error) {
	f := fieldsOf(b)
	var parts []string
	for _, x := range []struct {
		key  string
		n    protowire.Number
		text bool
	}{
		{"op_type", 1, true}, {"op_name", 2, true}, {"source_file", 3, true}, {"source_line", 4, false}, {"source_end_line", 17, false},
		{"source_column", 18, false}, {"source_end_column", 19, false}, {"deduplicated_name", 12, true}, {"scheduling_name", 16, true}, {"stack_frame_id", 15, false},
	} {
		if x.text {
			if s := f.string(x.n); s != "" {
				parts = append(parts, x.key+"="+quoted(s))
			}
		} else if n := f.int(x.n); n != 0 {
			parts = append(parts, x.key+"="+number(n))
		}
	}
	return strings.Join(parts, " "), f.err
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

// stringMap is the text of FrontendAttributes, sorted by key.
func stringMap(b []byte) (string, error) {
	f := fieldsOf(b)
	pairs := map[string]string{}
	f.each(1, func(x field) error {
		pair := fieldsOf(x.bytes)
		pairs[pair.string(1)] = pair.string(2)
		return pair.err
	})
	var keys []string
	for key := range pairs {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	for n, key := range keys {
		keys[n] = key + "=" + jsonOrQuoted(pairs[key])
	}
	return "{" + strings.Join(keys, ",") + "}", f.err
}
