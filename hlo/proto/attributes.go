package proto

// The texts of attributes that are messages.

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/hlo"
)

// window is that of field 15, if it has dimensions.
func window(f *fields, add func(key, value string)) error {
	type dimension struct{ size, stride, low, high, dilation, base, reversed int64 }
	var list []dimension
	w := fieldsOf(f.bytes(15))
	w.each(1, func(x field) error {
		d := fieldsOf(x.bytes)
		list = append(list, dimension{d.int(1), d.int(2), d.int(3), d.int(4), d.int(5), d.int(6), d.int(7)})
		return d.err
	})
	if w.err != nil || len(list) == 0 {
		return w.err
	}
	var parts []string
	part := func(key string, always bool, shown func(dimension) bool, text func(dimension) string) {
		var texts []string
		for _, d := range list {
			always = always || shown(d)
			texts = append(texts, text(d))
		}
		if always {
			parts = append(parts, key+"="+strings.Join(texts, "x"))
		}
	}
	part("size", true, nil, func(d dimension) string { return number(d.size) })
	part("stride", false, func(d dimension) bool { return d.stride != 1 }, func(d dimension) string { return number(d.stride) })
	part("pad", false, func(d dimension) bool { return d.low != 0 || d.high != 0 }, func(d dimension) string { return number(d.low) + "_" + number(d.high) })
	part("lhs_dilate", false, func(d dimension) bool { return d.base != 1 }, func(d dimension) string { return number(d.base) })
	part("rhs_dilate", false, func(d dimension) bool { return d.dilation != 1 }, func(d dimension) string { return number(d.dilation) })
	part("rhs_reversal", false, func(d dimension) bool { return d.reversed != 0 }, func(d dimension) string { return number(d.reversed) })
	add("window", "{"+strings.Join(parts, " ")+"}")
	return nil
}

func padding(b []byte) (string, error) {
	f := fieldsOf(b)
	var dims [][3]int64
	interior := false
	f.each(1, func(x field) error {
		d := fieldsOf(x.bytes)
		dims = append(dims, [3]int64{d.int(1), d.int(2), d.int(3)})
		interior = interior || d.int(3) != 0
		return d.err
	})
	var parts []string
	for _, d := range dims {
		text := number(d[0]) + "_" + number(d[1])
		if interior {
			text += "_" + number(d[2])
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "x"), f.err
}

// labels is the text of ConvolutionDimensionNumbers.
func labels(b []byte) (string, error) {
	f := fieldsOf(b)
	side := func(first, second int64, letters string, spatial []int64) (string, error) {
		text := make([]byte, len(spatial)+2)
		put := func(at int64, c byte) error {
			if at < 0 || at >= int64(len(text)) || text[at] != 0 {
				return fmt.Errorf("dimension %d of a convolution is out of range or there twice", at)
			}
			text[at] = c
			return nil
		}
		err := put(first, letters[0])
		if err == nil {
			err = put(second, letters[1])
		}
		for n, at := range spatial {
			if err == nil {
				err = put(at, byte('0'+n%10))
			}
		}
		return string(text), err
	}
	input, err := side(f.int(7), f.int(8), "bf", f.ints(11))
	if err != nil {
		return "", err
	}
	kernel, err := side(f.int(3), f.int(4), "io", f.ints(6))
	if err != nil {
		return "", err
	}
	output, err := side(f.int(9), f.int(10), "bf", f.ints(12))
	if err != nil {
		return "", err
	}
	return input + "_" + kernel + "->" + output, f.err
}

func convolution(f *fields, add func(key, value string)) error {
	if err := window(f, add); err != nil {
		return err
	}
	if f.has(16) {
		text, err := labels(f.bytes(16))
		if err != nil {
			return err
		}
		add("dim_labels", text)
	}
	if n := f.int(50); n > 1 {
		add("feature_group_count", number(n))
	}
	if n := f.int(58); n > 1 {
		add("batch_group_count", number(n))
	}
	return precision(f, add)
}

var algorithms = []string{
	"unset", "dot_any_f8_any_f8_f32", "dot_any_f8_any_f8_f32_fast_accum", "dot_f16_f16_f16", "dot_f16_f16_f32", "dot_bf16_bf16_bf16", "dot_bf16_bf16_f32",
	"dot_bf16_bf16_f32_x3", "dot_bf16_bf16_f32_x6", "dot_tf32_tf32_f32", "dot_tf32_tf32_f32_x3", "dot_f32_f32_f32", "dot_f64_f64_f64", "dot_bf16_bf16_f32_x9",
}

// precision is that of field 51. Where all is as by default nothing is printed.
func precision(f *fields, add func(key, value string)) error {
	p := fieldsOf(f.bytes(51))
	var names []string
	shown := false
	for _, v := range p.ints(1) {
		names = append(names, pick(v, "default", "high", "highest"))
		shown = shown || v != 0
	}
	if shown {
		add("operand_precision", "{"+strings.Join(names, ",")+"}")
	}
	if n := p.int(2); n != 0 {
		add("algorithm", pick(n, algorithms...))
	}
	return p.err
}

func dot(f *fields, add func(key, value string)) error {
	d := fieldsOf(f.bytes(30))
	for _, x := range []struct {
		key string
		n   protowire.Number
	}{{"lhs_batch_dims", 3}, {"lhs_contracting_dims", 1}, {"rhs_batch_dims", 4}, {"rhs_contracting_dims", 2}} {
		list := d.ints(x.n)
		// Those that are contracted are printed even where there are none.
		if len(list) > 0 || x.n < 3 {
			add(x.key, braced(list))
		}
	}
	if d.err != nil {
		return d.err
	}
	return precision(f, add)
}

func indexed(op hlo.Opcode, f *fields, add func(key, value string)) error {
	keys := []string{"offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims", "start_indices_batching_dims"}
	message := protowire.Number(33)
	if op == hlo.Scatter {
		keys = []string{"update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims", "scatter_indices_batching_dims"}
		message = 48
	}
	d := fieldsOf(f.bytes(message))
	for n, number := range []protowire.Number{1, 2, 3, 5, 6} {
		if list := d.ints(number); len(list) > 0 || n < 3 {
			add(keys[n], braced(list))
		}
	}
	add("index_vector_dim", number(d.int(4)))
	if op == hlo.Gather {
		add("slice_sizes", braced(f.ints(34)))
	}
	if f.bool(67) {
		add("indices_are_sorted", "true")
	}
	if f.bool(69) {
		add("unique_indices", "true")
	}
	return d.err
}

// aliasing is field 74, output_to_operand_aliasing.
func aliasing(f *fields, add func(key, value string)) error {
	var texts []string
	f.each(74, func(x field) error {
		a := fieldsOf(x.bytes)
		texts = append(texts, fmt.Sprintf("%s: (%d, %s)", braced(a.ints(1)), a.int(2), braced(a.ints(3))))
		return a.err
	})
	if len(texts) > 0 {
		add("output_to_operand_aliasing", "{"+strings.Join(texts, ", ")+"}")
	}
	return nil
}

func (d *decoder) customCall(f *fields, add func(key, value string)) error {
	if err := convolution(f, add); err != nil {
		return err
	}
	add("custom_call_target", quoted(f.string(28)))
	if f.bool(56) {
		var shapes []string
		f.each(57, func(x field) error {
			s, err := d.shape(x.bytes)
			if err == nil {
				shapes = append(shapes, s.String())
			}
			return err
		})
		add("operand_layout_constraints", "{"+strings.Join(shapes, ", ")+"}")
	}
	if f.bool(65) {
		add("custom_call_has_side_effect", "true")
	}
	if n := f.int(76); n != 0 {
		add("schedule", pick(n, "SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"))
	}
	if err := aliasing(f, add); err != nil {
		return err
	}
	// Modules of before 2021 have none: it is the original one.
	if n := f.int(77); n > 1 {
		add("api_version", pick(n, "API_VERSION_UNSPECIFIED", "API_VERSION_ORIGINAL", "API_VERSION_STATUS_RETURNING", "API_VERSION_STATUS_RETURNING_UNIFIED", "API_VERSION_TYPED_FFI"))
	}
	return nil
}

// collective adds what opcodes that send between devices have.
func collective(op hlo.Opcode, f *fields, add func(key, value string)) error {
	base := strings.TrimSuffix(strings.TrimSuffix(string(op), "-start"), "-done")
	done := strings.HasSuffix(string(op), "-done")
	channel := func() {
		if n := f.int(26); n > 0 {
			add("channel_id", number(n))
		}
	}
	switch base {
	case "send", "recv":
		channel()
		if f.bool(47) {
			add("is_host_transfer", "true")
		}
		return nil
	case "copy":
		if f.has(80) {
			add("cross_program_prefetch_index", number(f.int(80)))
		}
		return nil
	case "async":
		if thread := f.string(79); thread != "" && thread != "main" && op == hlo.AsyncStart {
			add("async_execution_thread", quoted(thread))
		}
		return nil
	case "collective-permute":
		if done {
			return nil
		}
		channel()
		var pairs []string
		f.each(52, func(x field) error {
			p := fieldsOf(x.bytes)
			pairs = append(pairs, fmt.Sprintf("{%d,%d}", p.int(1), p.int(2)))
			return p.err
		})
		add("source_target_pairs", "{"+strings.Join(pairs, ",")+"}")
		if list := f.ints(20); len(list) > 0 {
			add("slice_sizes", braced(list))
		}
		return nil
	case "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast", "ragged-all-to-all":
	default:
		return nil
	}
	if done {
		return nil
	}
	channel()
	text, err := groups(f)
	if err != nil {
		return err
	}
	add("replica_groups", text)
	if f.bool(56) {
		add("constrain_layout", "true")
	}
	dimensions := func() {
		if list := f.ints(14); len(list) > 0 && base != "all-reduce" {
			add("dimensions", braced(list))
		}
	}
	if base == "all-gather" {
		dimensions()
	}
	if f.bool(71) {
		add("use_global_device_ids", "true")
	}
	if base != "all-gather" {
		dimensions()
	}
	return nil
}

// groups is the text of the devices that take part: in field 92, in field 87
// before 2026, in field 49 before 2024.
func groups(f *fields) (string, error) {
	list := fieldsOf(f.bytes(87))
	iota := list.bytes(2)
	if f.has(92) {
		iota = f.bytes(92)
	}
	f.use(49, true)
	f.use(87, true)
	if iota != nil {
		i := fieldsOf(iota)
		return fmt.Sprintf("[%d,%d]", i.int(1), i.int(2)) + iotaText(i.ints(3), i.ints(4)), i.err
	}
	var texts []string
	group := func(x field) error {
		g := fieldsOf(x.bytes)
		texts = append(texts, braced(g.ints(1)))
		return g.err
	}
	if list.has(1) {
		list.each(1, group)
	} else {
		f.each(49, group)
	}
	return "{" + strings.Join(texts, ",") + "}", list.err
}

// iotaText is <=[8] or <=[2,4]T(1,0).
func iotaText(dims, order []int64) string {
	text := "<=[" + join(dims) + "]"
	for n, d := range order {
		if d != int64(n) {
			return text + "T(" + join(order) + ")"
		}
	}
	return text
}

// sharding is the text of an OpSharding, and empty for a named one.
func sharding(b []byte, depth int) (string, error) {
	f := fieldsOf(b)
	if f.has(14) {
		return "", f.err
	}
	if depth > 2 {
		return "", fmt.Errorf("shardings %d deep", depth)
	}
	group := ""
	if f.bool(11) {
		group = fmt.Sprintf(" shard_%s %d", pick(f.int(13), "as", "like"), f.int(12))
	}
	kindOf := func(n int64) string {
		return pick(n, "replicated", "maximal", "tuple", "other", "manual", "unknown", "unreduced")
	}
	switch n := f.int(1); n {
	case 1:
		devices := f.ints(4)
		if len(devices) != 1 {
			return "", fmt.Errorf("a maximal sharding of %d devices", len(devices))
		}
		return "{maximal device=" + number(devices[0]) + group + "}", f.err
	case 2:
		var parts []string
		named := false
		f.each(5, func(x field) error {
			text, err := sharding(x.bytes, depth+1)
			if text == "" {
				named = true
			}
			if len(parts)%5 == 0 && len(parts) > 0 {
				text = fmt.Sprintf("/*index=%d*/%s", len(parts), text)
			}
			parts = append(parts, text)
			return err
		})
		if named {
			return "", f.err
		}
		return "{" + strings.Join(parts, ", ") + "}", f.err
	case 3:
		text := "{devices=[" + join(f.ints(3)) + "]"
		if dims := f.ints(9); len(dims) > 0 {
			text += iotaText(dims, f.ints(10))
		} else {
			text += join(f.ints(4))
		}
		if f.bool(6) {
			text += " last_tile_dim_replicate"
		}
		if last := f.ints(8); len(last) > 0 {
			var kinds []string
			for _, n := range last {
				kinds = append(kinds, kindOf(n))
			}
			if len(last) == 1 && last[0] == 0 {
				text += " last_tile_dim_replicate"
			} else {
				text += " last_tile_dims={" + strings.Join(kinds, ", ") + "}"
			}
		}
		return text + group + "}", f.err
	default:
		return "{" + kindOf(n) + group + "}", f.err
	}
}

func domain(f *fields, add func(key, value string)) error {
	var sides [2]string
	// What the text calls entry the message calls exit, and the other way round.
	for n, number := range []protowire.Number{55, 54} {
		text, err := sharding(f.bytes(number), 0)
		if err != nil {
			return err
		}
		sides[n] = text
	}
	add("domain", `{kind="sharding", entry=`+sides[0]+", exit="+sides[1]+"}")
	return nil
}
