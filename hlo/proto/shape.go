package proto

// Shapes and layouts (ShapeProto and LayoutProto of xla/xla_data.proto).

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpumem/hlo"
)

// types are the values of PrimitiveType.
var types = map[int64]hlo.Type{
	1: "pred", 30: "s1", 26: "s2", 21: "s4", 2: "s8", 3: "s16", 4: "s32", 5: "s64",
	31: "u1", 27: "u2", 22: "u4", 6: "u8", 7: "u16", 8: "u32", 9: "u64",
	10: "f16", 11: "f32", 16: "bf16", 12: "f64",
	19: "f8e5m2", 28: "f8e4m3", 20: "f8e4m3fn", 23: "f8e4m3b11fnuz", 29: "f8e3m4", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz",
	32: "f4e2m1fn", 33: "f8e8m0fnu", 15: "c64", 18: "c128",
	13: hlo.Tuple, 14: hlo.Opaque, 17: hlo.Token,
}

const bufferType = 34

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
	s := &hlo.Shape{}
	var element int64
	var dynamic []int64
	var layout []byte
	err := walk(b, func(x field) (err error) {
		switch x.n {
		case 2:
			err = x.int(&element)
		case 3:
			err = x.ints(&s.Dims)
		case 4:
			var e *hlo.Shape
			if e, err = d.shapeAt(x.bytes, depth+1); err == nil {
				s.Elements = append(s.Elements, e)
			}
		case 5:
			err = x.message(&layout)
		case 6:
			err = x.ints(&dynamic)
		}
		return err
	})
	if err != nil {
		return nil, err
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
	if layout != nil && s.IsArray() {
		if s.Layout, err = d.layout(layout, depth); err != nil {
			return nil, err
		}
		s.HasLayout = s.Layout != ""
	}
	d.shapes[string(b)] = s
	return s, d.count(len(b) + 200 + len(s.Layout) + 16*(len(s.Dims)+len(s.Elements)))
}

// layout is the text between the braces.
func (d *decoder) layout(b []byte, depth int) (string, error) {
	var order, levels []int64
	var tail, bits, space, prefix, index, pointer int64
	var tiles, splits strings.Builder
	var physical []byte
	err := walk(b, func(x field) (err error) {
		switch x.n {
		case 1:
			err = x.ints(&order)
		case 6:
			var tile []int64
			if err = walk(x.bytes, func(x field) error {
				if x.n == 1 {
					return x.ints(&tile)
				}
				return nil
			}); err == nil {
				tiles.WriteByte('(')
				for n, size := range tile {
					if n > 0 {
						tiles.WriteByte(',')
					}
					if size == math.MinInt64 {
						tiles.WriteByte('*') // a dimension that is joined with the next
					} else {
						tiles.WriteString(strconv.FormatInt(size, 10))
					}
				}
				tiles.WriteByte(')')
			}
		case 7:
			err = x.int(&bits)
		case 8:
			err = x.int(&space)
		case 9:
			err = x.ints(&levels)
		case 10:
			err = x.message(&physical)
		case 11:
			err = x.int(&index)
		case 12:
			err = x.int(&pointer)
		case 15:
			err = x.int(&prefix)
		case 16:
			err = x.int(&tail)
		case 17:
			var dimension int64
			var at []int64
			if err = walk(x.bytes, func(x field) error {
				switch x.n {
				case 1:
					return x.int(&dimension)
				case 2:
					return x.ints(&at)
				}
				return nil
			}); err == nil {
				fmt.Fprintf(&splits, "(%d:%s)", dimension, join(at))
			}
		}
		return err
	})
	if err != nil {
		return "", err
	}
	var parts strings.Builder
	if len(levels) > 0 {
		parts.WriteString("D(")
		for n, level := range levels {
			if level < 0 || level > 3 {
				return "", errors.New("a dimension of a layout has a level type that is none")
			}
			if n > 0 {
				parts.WriteByte(',')
			}
			parts.WriteByte("DCSH"[level])
		}
		parts.WriteByte(')')
	}
	if tiles.Len() > 0 {
		parts.WriteString("T" + tiles.String())
	}
	add := func(name string, value int64, is bool) {
		if is {
			parts.WriteString(name + "(" + strconv.FormatInt(value, 10) + ")")
		}
	}
	add("L", tail, tail > 1)
	if index != 0 {
		parts.WriteString("#(" + string(types[index]) + ")")
	}
	if pointer != 0 {
		parts.WriteString("*(" + string(types[pointer]) + ")")
	}
	add("E", bits, bits != 0)
	add("S", space, space != 0)
	if splits.Len() > 0 {
		parts.WriteString("SC" + splits.String())
	}
	if physical != nil {
		s, err := d.shapeAt(physical, depth+1)
		if err != nil {
			return "", err
		}
		parts.WriteString("P(" + s.String() + ")")
	}
	add("M", prefix, prefix > 0)
	text := join(order)
	if parts.Len() > 0 {
		text += ":" + parts.String()
	}
	return text, nil
}

// join is 1,2,3.
func join(list []int64) string {
	var b []byte
	for n, v := range list {
		if n > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, v, 10)
	}
	return string(b)
}
