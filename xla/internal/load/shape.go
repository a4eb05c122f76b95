package load

// Shapes and layouts (ShapeProto and LayoutProto of xla/xla_data.proto).

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// types are the values of PrimitiveType.
var types = map[int64]hlo.Type{
	1: "pred", 30: "s1", 26: "s2", 21: "s4", 2: "s8", 3: "s16", 4: "s32", 5: "s64",
	31: "u1", 27: "u2", 22: "u4", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
	10: "f16", 11: "f32", 16: "bf16", 12: "f64",
	19: "f8e5m2", 28: "f8e4m3", 20: "f8e4m3fn", 23: "f8e4m3b11fnuz", 29: "f8e3m4", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz",
	32: "f4e2m1fn", 33: "f8e8m0fnu", 15: "c64", 18: "c128",
	tupleType: hlo.Tuple, 14: hlo.Opaque, 17: hlo.Token,
}

const (
	tupleType  = 13
	bufferType = 34
)

// maxDepth is how deep tuples may lie in each other.
const maxDepth = 100

// shape reads a ShapeProto. The same bytes give the same shape, which saves most of
// the memory: a module has few.
func (d *decoder) shape(b []byte) (*hlo.Shape, error) { return d.shapeAt(b, 0) }

func (d *decoder) shapeAt(b []byte, depth int) (*hlo.Shape, error) {
	if s := d.shapes[string(b)]; s != nil {
		return s, nil
	}
	if depth > maxDepth {
		return nil, fmt.Errorf("a shape of tuples %d deep", depth)
	}
	f := d.fields(b)
	s := &hlo.Shape{Dims: f.ints(shapeDimensions)}
	element, dynamic := f.int(shapeElementType), f.ints(shapeIsDynamicDimension)
	f.eachMessage(shapeTupleShapes, func(b []byte) {
		e, err := d.shapeAt(b, depth+1)
		f.fail(err)
		s.Elements = append(s.Elements, e)
	})
	if *f.err != nil {
		return nil, *f.err
	}
	if element == bufferType {
		if len(s.Elements) != 1 {
			return nil, fmt.Errorf("a buffer of %d shapes: expected one", len(s.Elements))
		}
		of := *s.Elements[0]
		of.Buffer = true
		d.shapes[string(b)] = &of
		return &of, d.count(len(b) + 200)
	}
	if s.Type = types[element]; s.Type == "" {
		return nil, fmt.Errorf("element type %d is none of XLA's", element)
	}
	for n, size := range s.Dims {
		// The smallest number stands for a dimension without bound.
		if size == math.MinInt64 {
			s.Dims[n] = -1
		} else if size < 0 {
			return nil, fmt.Errorf("dimension %d has %d elements", n, size)
		}
	}
	for n, on := range dynamic {
		if on != 0 && n < len(s.Dims) && s.Dims[n] >= 0 {
			if s.Dynamic == nil {
				s.Dynamic = make([]bool, len(s.Dims))
			}
			s.Dynamic[n] = true
		}
	}
	if !s.IsArray() && len(s.Dims) > 0 || s.Type != hlo.Tuple && len(s.Elements) > 0 {
		return nil, fmt.Errorf("%s with dimensions or elements that it cannot have", s.Type)
	}
	if s.IsArray() {
		if s.Layout = layoutText(f.message(shapeLayout), depth); *f.err != nil {
			return nil, *f.err
		}
		s.HasLayout = s.Layout != ""
	}
	d.shapes[string(b)] = s
	return s, d.count(len(b) + 200 + len(s.Layout) + 16*(len(s.Dims)+len(s.Elements)))
}

// layoutText is the text between the braces.
func layoutText(f *fields, depth int) string {
	var text strings.Builder
	add := func(name, value string, is bool) {
		if is {
			text.WriteString(name + "(" + value + ")")
		}
	}
	var levels []string
	for _, level := range f.ints(layoutDimLevelTypes) {
		if level < 0 || level > 3 {
			f.fail(errors.New("a dimension of a layout has a level type that is none"))
			return ""
		}
		levels = append(levels, "DCSH"[level:level+1])
	}
	add("D", strings.Join(levels, ","), len(levels) > 0)
	name := "T"
	f.messages(layoutTiles, func(tile *fields) {
		// The smallest number is a dimension that is joined with the next.
		add(name, strings.ReplaceAll(joinNumbers(tile.ints(tileDimensions)), number(math.MinInt64), "*"), true)
		name = "" // of all but the first
	})
	tail, bits := f.int(layoutTailPaddingAlignment), f.int(layoutElementSizeInBits)
	space, prefix := f.int(layoutMemorySpace), f.int(layoutMetadataPrefixBytes)
	index, pointer := f.int(layoutIndexPrimitiveType), f.int(layoutPointerPrimitiveType)
	add("L", number(tail), tail > 1)
	add("#", string(types[index]), index != 0)
	add("*", string(types[pointer]), pointer != 0)
	add("E", number(bits), bits != 0)
	add("S", number(space), space != 0)
	name = "SC"
	f.messages(layoutSplitConfigs, func(split *fields) {
		add(name, fmt.Sprintf("%d:%s", split.int(splitDimension), joinNumbers(split.ints(splitIndices))), true)
		name = ""
	})
	if f.has(layoutPhysicalShape) {
		s, err := f.d.shapeAt(f.bytes(layoutPhysicalShape), depth+1)
		if err != nil {
			f.fail(err)
			return ""
		}
		add("P", s.String(), true)
	}
	add("M", number(prefix), prefix > 0)
	order := joinNumbers(f.ints(layoutMinorToMajor))
	if text.Len() > 0 {
		order += ":" + text.String()
	}
	return order
}

// joinNumbers is 1,2,3.
func joinNumbers(list []int64) string {
	var b []byte
	for n, v := range list {
		if n > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(b)
}
