package load

// The texts of attributes that are messages.

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/hlo"
)

// first adds the first of the dimensions, if there are any.
func (a *attributes) first(key string) {
	if list := a.ints(14); len(list) > 0 {
		a.add(key, number(list[0]))
	}
}

// triples are the texts of messages of three numbers. The third ones are left out where all
// are as usual.
func triples(f *fields, n protowire.Number, separator string, usual int64) (texts []string) {
	var list [][]int64
	shown := 2
	f.messages(n, func(d *fields) {
		list = append(list, []int64{d.int(1), d.int(2), d.int(3)})
		if d.int(3) != usual {
			shown = 3
		}
	})
	for _, d := range list {
		texts = append(texts, strings.ReplaceAll(join(d[:shown]), ",", separator))
	}
	return texts
}

// slices is the attribute of a slice: field 17.
func (a *attributes) slices() {
	parts := triples(a.fields, 17, ":", 1)
	for n, text := range parts {
		parts[n] = "[" + text + "]"
	}
	a.add("slice", "{"+strings.Join(parts, ", ")+"}")
}

// window is that of field 15, if it has dimensions.
func (a *attributes) window() {
	type dimension struct{ size, stride, low, high, dilation, base, reversed int64 }
	var list []dimension
	a.message(15).messages(1, func(d *fields) {
		list = append(list, dimension{d.int(1), d.int(2), d.int(3), d.int(4), d.int(5), d.int(6), d.int(7)})
	})
	if len(list) == 0 {
		return
	}
	var parts []string
	// A part is left out where no dimension differs from what is usual.
	part := func(key, usual string, text func(dimension) string) {
		var texts []string
		shown := false
		for _, d := range list {
			texts = append(texts, text(d))
			shown = shown || text(d) != usual
		}
		if shown {
			parts = append(parts, key+"="+strings.Join(texts, "x"))
		}
	}
	part("size", "", func(d dimension) string { return number(d.size) })
	part("stride", "1", func(d dimension) string { return number(d.stride) })
	part("pad", "0_0", func(d dimension) string { return number(d.low) + "_" + number(d.high) })
	part("lhs_dilate", "1", func(d dimension) string { return number(d.base) })
	part("rhs_dilate", "1", func(d dimension) string { return number(d.dilation) })
	part("rhs_reversal", "0", func(d dimension) string { return number(d.reversed) })
	a.add("window", "{"+strings.Join(parts, " ")+"}")
}

// padding is field 21.
func (a *attributes) padding() {
	a.add("padding", strings.Join(triples(a.message(21), 1, "_", 0), "x"))
}

// labels is the text of ConvolutionDimensionNumbers.
func labels(f *fields) string {
	side := func(letters string, first, second, spatial protowire.Number) string {
		digits := f.ints(spatial)
		text := make([]byte, len(digits)+2)
		put := func(at int64, c byte) {
			if at < 0 || at >= int64(len(text)) || text[at] != 0 {
				f.fail(fmt.Errorf("dimension %d of a convolution is out of range or there twice", at))
				return
			}
			text[at] = c
		}
		put(f.int(first), letters[0])
		put(f.int(second), letters[1])
		for n, at := range digits {
			put(at, byte('0'+n%10))
		}
		return string(text)
	}
	return side("bf", 7, 8, 11) + "_" + side("io", 3, 4, 6) + "->" + side("bf", 9, 10, 12)
}

func (a *attributes) convolution() {
	a.window()
	if a.has(16) {
		a.add("dim_labels", labels(a.message(16)))
	}
	a.above("feature_group_count", a.int(50), 1)
	a.above("batch_group_count", a.int(58), 1)
	a.precision()
}

var algorithms = []string{
	"unset", "dot_any_f8_any_f8_f32", "dot_any_f8_any_f8_f32_fast_accum", "dot_f16_f16_f16", "dot_f16_f16_f32", "dot_bf16_bf16_bf16", "dot_bf16_bf16_f32",
	"dot_bf16_bf16_f32_x3", "dot_bf16_bf16_f32_x6", "dot_tf32_tf32_f32", "dot_tf32_tf32_f32_x3", "dot_f32_f32_f32", "dot_f64_f64_f64", "dot_bf16_bf16_f32_x9",
}

// precision is that of field 51. Where all is as by default nothing is printed.
func (a *attributes) precision() {
	p := a.message(51)
	var names []string
	shown := false
	for _, v := range p.ints(1) {
		names = append(names, pick(v, "default", "high", "highest"))
		shown = shown || v != 0
	}
	if shown {
		a.add("operand_precision", "{"+strings.Join(names, ",")+"}")
	}
	if n := p.int(2); n != 0 {
		a.add("algorithm", pick(n, algorithms...))
	}
}

// dot is field 30. The dimensions that are contracted are printed even where there are none.
func (a *attributes) dot() {
	d := a.message(30)
	a.numbers("lhs_batch_dims", d.ints(3))
	a.add("lhs_contracting_dims", braced(d.ints(1)))
	a.numbers("rhs_batch_dims", d.ints(4))
	a.add("rhs_contracting_dims", braced(d.ints(2)))
	a.precision()
}

// indices are the attributes of a gather or a scatter, whose dimensions are in a message.
func (a *attributes) indices(message protowire.Number, offset, collapsed, starts, batching, startsBatching string) {
	d := a.message(message)
	a.add(offset, braced(d.ints(1)))
	a.add(collapsed, braced(d.ints(2)))
	a.add(starts, braced(d.ints(3)))
	a.numbers(batching, d.ints(5))
	a.numbers(startsBatching, d.ints(6))
	a.add("index_vector_dim", number(d.int(4)))
	if message == 33 {
		a.add("slice_sizes", braced(a.ints(34)))
	}
	a.set("indices_are_sorted", a.bool(67))
	a.set("unique_indices", a.bool(69))
}

// aliasing is field 74, output_to_operand_aliasing.
func (a *attributes) aliasing() {
	var texts []string
	a.messages(74, func(m *fields) {
		texts = append(texts, fmt.Sprintf("%s: (%d, %s)", braced(m.ints(1)), m.int(2), braced(m.ints(3))))
	})
	if len(texts) > 0 {
		a.add("output_to_operand_aliasing", "{"+strings.Join(texts, ", ")+"}")
	}
}

func (a *attributes) customCall() {
	a.convolution()
	a.add("custom_call_target", quoted(a.string(28)))
	if a.bool(56) {
		var shapes []string
		a.shapes(57, func(s *hlo.Shape) { shapes = append(shapes, s.String()) })
		a.add("operand_layout_constraints", "{"+strings.Join(shapes, ", ")+"}")
	}
	a.set("custom_call_has_side_effect", a.bool(65))
	if n := a.int(76); n != 0 {
		a.add("schedule", pick(n, "SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"))
	}
	a.aliasing()
	// Modules of before 2021 have none: it is the original one.
	if n := a.int(77); n > 1 {
		a.add("api_version", pick(n, "API_VERSION_UNSPECIFIED", "API_VERSION_ORIGINAL", "API_VERSION_STATUS_RETURNING", "API_VERSION_STATUS_RETURNING_UNIFIED", "API_VERSION_TYPED_FFI"))
	}
}

// collective adds what opcodes that send between devices have.
func (a *attributes) collective(op hlo.Opcode) {
	base := strings.TrimSuffix(strings.TrimSuffix(string(op), "-start"), "-done")
	switch base {
	case "send", "recv":
		a.above("channel_id", a.int(26), 0)
		a.set("is_host_transfer", a.bool(47))
		return
	case "copy":
		if a.has(80) {
			a.add("cross_program_prefetch_index", number(a.int(80)))
		}
		return
	case "async":
		if thread := a.string(79); thread != "" && thread != "main" && op == hlo.AsyncStart {
			a.add("async_execution_thread", quoted(thread))
		}
		return
	case "collective-permute", "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-broadcast", "ragged-all-to-all":
		if op.IsAsyncDone() {
			return
		}
	default:
		return
	}
	a.above("channel_id", a.int(26), 0)
	if base == "collective-permute" {
		var pairs []string
		a.messages(52, func(p *fields) { pairs = append(pairs, fmt.Sprintf("{%d,%d}", p.int(1), p.int(2))) })
		a.add("source_target_pairs", "{"+strings.Join(pairs, ",")+"}")
		a.numbers("slice_sizes", a.ints(20))
		return
	}
	a.add("replica_groups", groups(a.fields))
	a.set("constrain_layout", a.bool(56))
	if base == "all-gather" {
		a.numbers("dimensions", a.ints(14))
	}
	a.set("use_global_device_ids", a.bool(71))
	if base != "all-gather" && base != "all-reduce" {
		a.numbers("dimensions", a.ints(14))
	}
}

// groups is the text of the devices that take part: in field 92, in field 87
// before 2026, in field 49 before 2024.
func groups(f *fields) string {
	list := f.message(87)
	iota := list.bytes(2)
	if f.has(92) {
		iota = f.bytes(92)
	}
	f.use(49, true)
	if iota != nil {
		i := f.sub(iota)
		return fmt.Sprintf("[%d,%d]", i.int(1), i.int(2)) + iotaText(i.ints(3), i.ints(4))
	}
	var texts []string
	group := func(g *fields) { texts = append(texts, braced(g.ints(1))) }
	if list.has(1) {
		list.messages(1, group)
	} else {
		f.messages(49, group)
	}
	return "{" + strings.Join(texts, ",") + "}"
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

// sharding is the text of an OpSharding. It is empty for a named one.
func sharding(f *fields, depth int) string {
	if f.has(14) {
		return ""
	}
	if depth > 2 {
		f.fail(fmt.Errorf("shardings %d deep", depth))
		return ""
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
			f.fail(fmt.Errorf("a maximal sharding of %d devices", len(devices)))
			return ""
		}
		return "{maximal device=" + number(devices[0]) + group + "}"
	case 2:
		var parts []string
		f.messages(5, func(m *fields) { parts = append(parts, sharding(m, depth+1)) })
		if slices.Contains(parts, "") { // a named one
			return ""
		}
		return "{" + indexed(parts) + "}"
	case 3:
		text := "{devices=[" + join(f.ints(3)) + "]"
		if dims := f.ints(9); len(dims) > 0 {
			text += iotaText(dims, f.ints(10))
		} else {
			text += join(f.ints(4))
		}
		last := f.ints(8)
		if f.bool(6) || len(last) == 1 && last[0] == 0 {
			text += " last_tile_dim_replicate"
		} else if len(last) > 0 {
			var kinds []string
			for _, n := range last {
				kinds = append(kinds, kindOf(n))
			}
			text += " last_tile_dims={" + strings.Join(kinds, ", ") + "}"
		}
		return text + group + "}"
	default:
		return "{" + kindOf(n) + group + "}"
	}
}
