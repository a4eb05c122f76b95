package load

// One instruction: its fields and, in the order of XLA's printer, its attributes.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/hlo"
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

// attributes are those of an instruction, with the fields that they are read from.
type attributes struct {
	*fields
	list []hlo.Attribute
}

func (a *attributes) add(key, value string) {
	a.list = append(a.list, hlo.Attribute{Key: key, Value: value})
}

// some adds a value that is not empty.
func (a *attributes) some(key, value string) {
	if value != "" {
		a.add(key, value)
	}
}

// set adds what is true.
func (a *attributes) set(key string, is bool) {
	if is {
		a.add(key, "true")
	}
}

// above adds a number that is above least.
func (a *attributes) above(key string, n, least int64) {
	if n > least {
		a.add(key, number(n))
	}
}

// numbers adds a list that is not empty.
func (a *attributes) numbers(key string, list []int64) {
	if len(list) > 0 {
		a.add(key, braced(list))
	}
}

func (d *decoder) instruction(b []byte) (*instruction, error) {
	f := d.fields(b)
	if err := d.count(264 + 2*len(b) + 64*len(f.list)); err != nil {
		return nil, err
	}
	x := &instruction{raw: b, id: f.int(instructionID), operands: f.ints(instructionOperands), after: f.ints(instructionAfter), called: f.ints(instructionCalled)}
	name, op := f.string(instructionName), hlo.Opcode(f.string(instructionOpcode))
	if *f.err != nil {
		return nil, *f.err
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
	f.shapes(instructionShape, func(s *hlo.Shape) { x.i.Shape = s })
	if *f.err == nil && x.i.Shape == nil {
		f.fail(errors.New("it has no shape"))
	}
	if *f.err != nil {
		return x, *f.err
	}
	own, common := &attributes{fields: f}, &attributes{fields: f}
	d.own(x, own)
	common.common()
	x.i.Attributes, x.behind = own.list, common.list
	if *f.err != nil {
		return x, *f.err
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

// own adds the attributes that only its opcode has.
func (d *decoder) own(x *instruction, a *attributes) {
	i := x.i
	switch i.Opcode {
	case hlo.Parameter:
		n := a.int(9)
		if n < 0 || n > 1<<31 {
			a.fail(fmt.Errorf("parameter number %d", n))
		}
		i.Parameter, i.Literal = int(n), number(n)
		var list []string
		for _, v := range a.message(61).ints(1) {
			list = append(list, strconv.FormatBool(v != 0))
		}
		if len(list) > 0 {
			a.add("parameter_replication", "{"+strings.Join(list, ",")+"}")
		}
	case hlo.Constant:
		if !a.has(8) {
			a.fail(errors.New("a constant without its literal"))
		}
		a.within("its literal", func() { i.Literal = literal(i.Shape, a.bytes(8), a.fields) })
	case hlo.GetTupleElement:
		a.add("index", number(a.int(instructionIndex)))
	case hlo.Iota:
		a.first("iota_dimension")
	case hlo.Reverse, hlo.Concatenate, hlo.Reduce, hlo.Transpose, hlo.Broadcast, hlo.Map, "get-dimension-size", hlo.SetDimensionSize:
		a.add("dimensions", braced(a.ints(14)))
	case hlo.Sort:
		a.add("dimensions", braced(a.ints(14)))
		a.set("is_stable", a.bool(60))
	case hlo.Reshape:
		a.first("inferred_dimension")
	case hlo.Compare:
		a.add("direction", a.string(63))
		// Up to 2025 field 72 said how to compare, then field 102: what is the operands'
		// own way is not printed, see finish.
		if a.string(72) == "TOTALORDER" {
			a.add("type", "TOTALORDER")
		}
		x.order = a.string(102)
	case hlo.Slice:
		a.slices()
	case hlo.DynamicSlice:
		a.add("dynamic_slice_sizes", braced(a.ints(20)))
	case hlo.Pad:
		a.padding()
	case hlo.ReduceWindow, hlo.SelectAndScatter:
		a.window()
	case hlo.Convolution:
		a.convolution()
	case hlo.Dot:
		a.dot()
	case hlo.Gather:
		a.indices(33, "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims", "start_indices_batching_dims")
	case hlo.Scatter:
		a.indices(48, "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims", "scatter_indices_batching_dims")
	case hlo.Fusion:
		a.add("kind", a.string(11))
		a.aliasing()
	case hlo.CustomCall:
		a.customCall()
	case hlo.Rng:
		a.add("distribution", pick(a.int(23), "rng_invalid", "rng_uniform", "rng_normal"))
	case hlo.RngBitGenerator:
		a.add("algorithm", pick(a.int(70), "rng_default", "rng_three_fry", "rng_philox"))
	case hlo.RngGetAndUpdateState:
		a.add("delta", number(a.int(66)))
	case "reduce-precision":
		a.add("exponent_bits", number(a.int(18)))
		a.add("mantissa_bits", number(a.int(19)))
	case "batch-norm-training", "batch-norm-inference", "batch-norm-grad":
		a.add("epsilon", shortFloat(float64(a.float32(24)), 6))
		a.add("feature_index", number(a.int(25)))
	case "fft":
		a.add("fft_type", pick(a.int(31), "FFT", "IFFT", "RFFT", "IRFFT"))
		a.add("fft_length", braced(a.ints(32)))
	case hlo.TriangularSolve:
		o := a.message(59)
		a.set("left_side", o.bool(1))
		a.set("lower", o.bool(2))
		a.set("unit_diagonal", o.bool(3))
		if t := o.int(4); t != 0 {
			a.add("transpose_a", pick(t, "TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"))
		}
	case "cholesky":
		a.set("lower", a.message(62).bool(1))
	case "topk":
		a.add("k", number(a.int(81)))
		a.add("largest", strconv.FormatBool(a.bool(85)))
		a.set("is_stable", a.bool(60))
	case hlo.Infeed:
		if a.has(27) {
			a.add("infeed_config", quoted(string(a.bytes(27))))
		}
	case hlo.Outfeed:
		a.shapes(29, func(s *hlo.Shape) { a.add("outfeed_shape", s.String()) })
		if config := a.bytes(22); len(config) > 0 {
			a.add("outfeed_config", quoted(string(config)))
		}
	case hlo.Domain:
		// What the text calls entry the message calls exit, and vice versa.
		a.add("domain", `{kind="sharding", entry=`+sharding(a.message(55), 0)+", exit="+sharding(a.message(54), 0)+"}")
	default:
		a.collective(i.Opcode)
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

// common adds the attributes that any instruction may have.
func (a *attributes) common() {
	if a.has(40) {
		text := ""
		a.within("its sharding", func() { text = sharding(a.message(40), 0) })
		a.some("sharding", text)
		a.use(40, text != "") // else it is noted as left out
	}
	if a.has(68) {
		a.within("its frontend_attributes", func() { a.some("frontend_attributes", stringMap(a.message(68))) })
	}
	if a.has(7) {
		a.within("its metadata", func() { a.some("metadata", metadata(a.message(7))) })
	}
	if config := string(a.bytes(43)); config != "" {
		a.add("backend_config", jsonOrQuoted(config))
	}
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

// pick is the name of an enum's value.
func pick(n int64, names ...string) string {
	if n < 0 || n >= int64(len(names)) {
		return number(n)
	}
	return names[n]
}

// metadata is the text of an OpMetadata, empty if nothing is in it.
func metadata(f *fields) string {
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
	if len(parts) == 0 {
		return ""
	}
	return "{" + strings.Join(parts, " ") + "}"
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
	f.messages(1, func(pair *fields) { pairs[pair.string(1)] = pair.string(2) })
	keys := slices.Sorted(maps.Keys(pairs))
	if len(keys) == 0 {
		return ""
	}
	for n, key := range keys {
		keys[n] = key + "=" + jsonOrQuoted(pairs[key])
	}
	return "{" + strings.Join(keys, ",") + "}"
}
