package load

// The texts of attributes that are messages: what rules.go names.

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// triples are the texts of messages of three numbers. The third ones are left out where all
// are as usual.
func triples(f *fields, n no, separator string, usual int64) (texts []string) {
	var list [][]int64
	shown := 2
	f.messages(n, func(d *fields) {
		list = append(list, []int64{d.int(1), d.int(2), d.int(3)})
		if d.int(3) != usual {
			shown = 3
		}
	})
	for _, d := range list {
		texts = append(texts, strings.ReplaceAll(joinNumbers(d[:shown]), ",", separator))
	}
	return texts
}

// sliceText is the text of SliceDimensions: start, limit, stride.
func sliceText(f *fields, n no) string {
	parts := triples(f, n, ":", 1)
	for k, text := range parts {
		parts[k] = "[" + text + "]"
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

// paddingText is that of PaddingConfigDimensions: edge_padding_low, edge_padding_high,
// interior_padding.
func paddingText(f *fields, n no) string { return strings.Join(triples(f, n, "_", 0), "x") }

// windowParts are the parts of a window's text with the fields of WindowDimension. A part is left
// out where no dimension differs from what is usual.
var windowParts = []struct {
	key, usual string
	fields     []no
}{
	{"size", "", []no{1}},
	{"stride", "1", []no{2}},
	{"pad", "0_0", []no{3, 4}},     // padding_low, padding_high
	{"lhs_dilate", "1", []no{6}},   // base_dilation
	{"rhs_dilate", "1", []no{5}},   // window_dilation
	{"rhs_reversal", "0", []no{7}}, // window_reversal
}

func windowText(f *fields, n no) string {
	var dimensions []*fields
	f.messages(n, func(d *fields) { dimensions = append(dimensions, d) })
	if len(dimensions) == 0 {
		return ""
	}
	var parts []string
	for _, part := range windowParts {
		var texts []string
		for _, d := range dimensions {
			var numbers []string
			for _, n := range part.fields {
				numbers = append(numbers, number(d.int(n)))
			}
			texts = append(texts, strings.Join(numbers, "_"))
		}
		if slices.ContainsFunc(texts, func(s string) bool { return s != part.usual }) {
			parts = append(parts, part.key+"="+strings.Join(texts, "x"))
		}
	}
	return "{" + strings.Join(parts, " ") + "}"
}

// dimLabels is the text of ConvolutionDimensionNumbers, empty if there are none.
func dimLabels(f *fields, n no) string {
	if !f.has(n) {
		return ""
	}
	f = f.message(n)
	// side takes the fields of the batch or input feature, of the other feature, and of the spatial dimensions.
	side := func(letters string, first, second, spatial no) string {
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
	input, kernel, output := side("bf", 7, 8, 11), side("io", 3, 4, 6), side("bf", 9, 10, 12)
	return input + "_" + kernel + "->" + output
}

// bracedTexts is {a,b} for texts a and b, and empty if there are none.
func bracedTexts(texts []string, separator string) string {
	if len(texts) == 0 {
		return ""
	}
	return "{" + strings.Join(texts, separator) + "}"
}

// operandPrecisions is the text of operand_precision, empty where all is as by default.
func operandPrecisions(f *fields, n no) string {
	var names []string
	list := f.ints(n)
	for _, v := range list {
		names = append(names, enumName(v, "default", "high", "highest"))
	}
	if !slices.ContainsFunc(list, func(v int64) bool { return v != 0 }) {
		return ""
	}
	return bracedTexts(names, ",")
}

// booleanList is the text of a list of them, empty if the list is.
func booleanList(f *fields, n no) string {
	var list []string
	for _, v := range f.ints(n) {
		list = append(list, strconv.FormatBool(v != 0))
	}
	return bracedTexts(list, ",")
}

func epsilon(f *fields, n no) string { return shortFloat(float64(f.float32(n)), 6) }

// totalOrder is the text of comparison_type: what is the operands' own way is not printed.
func totalOrder(f *fields, n no) string {
	if f.string(n) == "TOTALORDER" {
		return "TOTALORDER"
	}
	return ""
}

// otherThread is the text of a thread's name, empty for the main one.
func otherThread(f *fields, n no) string {
	if thread := f.string(n); thread != "" && thread != "main" {
		return quoted(thread)
	}
	return ""
}

// threadOfStart reads the name of a thread that the text has at the operation's start.
func threadOfStart(f *fields, n no) string {
	_ = f.string(n)
	return ""
}

func infeedConfig(f *fields, n no) string {
	if f.has(n) {
		return quoted(string(f.bytes(n)))
	}
	return ""
}

func presentInt(f *fields, n no) string {
	if f.has(n) {
		return number(f.int(n))
	}
	return ""
}

func outfeedConfig(f *fields, n no) string {
	if config := f.bytes(n); len(config) > 0 {
		return quoted(string(config))
	}
	return ""
}

// lastShape is the text of a shape, the last if there are several.
func lastShape(f *fields, n no) (text string) {
	f.shapes(n, func(s *hlo.Shape) { text = s.String() })
	return text
}

// shapeTexts are the texts of a repeated field of shapes.
func shapeTexts(f *fields, n no) (texts []string) {
	f.shapes(n, func(s *hlo.Shape) { texts = append(texts, s.String()) })
	return texts
}

// layoutConstraints is the text of operand_shapes_with_layout.
func layoutConstraints(f *fields, n no) string {
	if !f.bool(instructionConstrainLayout) {
		return ""
	}
	return "{" + strings.Join(shapeTexts(f, n), ", ") + "}"
}

// outputAliases is the text of output_operand_aliasing: output_shape_index, operand_index,
// operand_shape_index.
func outputAliases(f *fields, n no) string {
	return bracedTexts(f.texts(n, func(m *fields) string {
		return fmt.Sprintf("%s: (%d, %s)", braced(m.ints(1)), m.int(2), braced(m.ints(3)))
	}), ", ")
}

// sourceTargetPairs is the text of source_target_pairs: source, target.
func sourceTargetPairs(f *fields, n no) string {
	texts := f.texts(n, func(p *fields) string { return fmt.Sprintf("{%d,%d}", p.int(1), p.int(2)) })
	return "{" + strings.Join(texts, ",") + "}"
}

// deviceGroups is the text of the devices that take part: in iota_collective_device_list, in
// collective_device_list before 2026, in replica_groups, the field n, before 2024.
func deviceGroups(f *fields, n no) string {
	list := f.message(instructionCollectiveDeviceList)
	iota := list.bytes(listIotaReplicaGroupList)
	if f.has(instructionIotaCollectiveDeviceList) {
		iota = f.bytes(instructionIotaCollectiveDeviceList)
	}
	f.use(n, true)
	if iota != nil {
		i := f.sub(iota)
		groups, devices := i.int(iotaNumReplicaGroups), i.int(iotaNumDevicesPerGroup)
		return fmt.Sprintf("[%d,%d]", groups, devices) + iotaText(i.ints(iotaReshapeDims), i.ints(iotaTransposePerm))
	}
	if list.has(listReplicaGroups) {
		f, n = list, listReplicaGroups
	}
	return "{" + strings.Join(f.texts(n, func(g *fields) string { return braced(g.ints(groupReplicaIDs)) }), ",") + "}"
}

// iotaText is <=[8] or <=[2,4]T(1,0).
func iotaText(dims, order []int64) string {
	text := "<=[" + joinNumbers(dims) + "]"
	for n, d := range order {
		if d != int64(n) {
			return text + "T(" + joinNumbers(order) + ")"
		}
	}
	return text
}

// domain is the text of a domain's shardings. What the text calls entry the message calls exit,
// and vice versa.
func domain(f *fields, exit no) string {
	of := func(n no) string { return shardingText(f.message(n), 0) }
	return `{kind="sharding", entry=` + of(exit) + ", exit=" + of(instructionDomainEntrySharding) + "}"
}

// wholeSharding is the text of an instruction's sharding. A named one is noted as left out.
func wholeSharding(f *fields, n no) string {
	text := shardingText(f.message(n), 0)
	f.use(n, text != "")
	return text
}

// shardingText is the text of an OpSharding. It is empty for a named one.
func shardingText(f *fields, depth int) string {
	if f.has(shardingNamedSharding) {
		return ""
	}
	if depth > 2 {
		f.fail(fmt.Errorf("shardings %d deep", depth))
		return ""
	}
	group := ""
	if f.bool(shardingIsShardGroup) {
		group = fmt.Sprintf(" shard_%s %d", enumName(f.int(shardingShardGroupType), "as", "like"), f.int(shardingShardGroupID))
	}
	kindOf := func(n int64) string {
		return enumName(n, "replicated", "maximal", "tuple", "other", "manual", "unknown", "unreduced")
	}
	switch n := f.int(shardingType); n {
	case 1:
		devices := f.ints(shardingTileAssignmentDevices)
		if len(devices) != 1 {
			f.fail(fmt.Errorf("a maximal sharding of %d devices", len(devices)))
			return ""
		}
		return "{maximal device=" + number(devices[0]) + group + "}"
	case 2:
		parts := f.texts(shardingTupleShardings, func(m *fields) string { return shardingText(m, depth+1) })
		if slices.Contains(parts, "") { // a named one
			return ""
		}
		return "{" + everyFifthNumbered(parts) + "}"
	case 3:
		text := "{devices=[" + joinNumbers(f.ints(shardingTileAssignmentDimensions)) + "]"
		if dims := f.ints(shardingIotaReshapeDims); len(dims) > 0 {
			text += iotaText(dims, f.ints(shardingIotaTransposePerm))
		} else {
			text += joinNumbers(f.ints(shardingTileAssignmentDevices))
		}
		last := f.ints(shardingLastTileDims)
		if f.bool(shardingReplicateOnLastTileDim) || len(last) == 1 && last[0] == 0 {
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
