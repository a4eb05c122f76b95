package remattest

// A second, slow opinion on what a module takes, that shares no code with the
// first: it reads the text of a module and asks, at each instruction, for
// each buffer there is, whether somebody still reads it.

import (
	"fmt"
	"strconv"
	"strings"

	"gpumem/xla/internal/hlo"
)

// A replay measures one module.
type replay struct {
	size func(*hlo.Shape) int64
	memo map[*hlo.Computation]int64
}

// A cell is a piece of memory: what an instruction made, at a path such as ".0.1".
type cell struct {
	maker *hlo.Instruction
	path  string
}

// ReplayPeak returns the peak of a module's entry with its result, in bytes.
func ReplayPeak(text string, size func(*hlo.Shape) int64) (int64, error) {
	m, err := hlo.ParseString(text)
	if err != nil {
		return 0, err
	}
	r := &replay{size: size, memo: map[*hlo.Computation]int64{}}
	sum := int64(0)
	for _, path := range paths(m.Entry.Root.Shape, "") {
		sum += size(shapeAt(m.Entry.Root.Shape, path))
	}
	return sum + r.peak(m.Entry), nil
}

func paths(s *hlo.Shape, at string) []string {
	all := []string{at}
	for k, e := range s.Elements {
		all = append(all, paths(e, at+"."+strconv.Itoa(k))...)
	}
	return all
}

func shapeAt(s *hlo.Shape, path string) *hlo.Shape {
	for _, step := range strings.Split(path, ".")[1:] {
		k, _ := strconv.Atoi(step)
		s = s.Elements[k]
	}
	return s
}

// origin follows a path of an instruction's result to the memory that it is.
func origin(i *hlo.Instruction, path string) cell {
	first, rest, _ := strings.Cut(strings.TrimPrefix(path, "."), ".")
	if rest != "" {
		rest = "." + rest
	}
	switch i.Opcode {
	case "get-tuple-element":
		index, _ := i.Attribute("index")
		return origin(i.Operands[0], "."+index+path)
	case "tuple":
		if path != "" {
			k, _ := strconv.Atoi(first)
			return origin(i.Operands[k], rest)
		}
	case "bitcast", "opt-barrier", "domain", "add-dependency", "while":
		return origin(i.Operands[0], path)
	case "copy":
		if path != "" {
			return origin(i.Operands[0], path)
		}
	case "copy-start":
		if path == ".1" {
			return origin(i.Operands[0], "")
		}
	case "copy-done":
		return origin(i.Operands[0], ".0")
	case "call-start", "async-start":
		if strings.HasPrefix(path, ".0.") {
			k, rest, _ := strings.Cut(strings.TrimPrefix(path, ".0."), ".")
			n, _ := strconv.Atoi(k)
			if rest != "" {
				rest = "." + rest
			}
			return origin(i.Operands[n], rest)
		}
	case "call-done", "async-done":
		return origin(i.Operands[0], ".1"+path)
	}
	return cell{i, path}
}

// reads reports whether an instruction reads a cell through operand n.
func reads(u *hlo.Instruction, n int, c cell) bool {
	o := u.Operands[n]
	for _, path := range paths(o.Shape, "") {
		if origin(o, path) != c || u.Opcode == "get-tuple-element" && path != "" {
			continue
		}
		if kind, _ := u.Attribute("kind"); u.Opcode == "fusion" && kind == "kLoop" && !readsInside(u.Call("calls"), n, path) {
			continue
		}
		return true
	}
	return false
}

// readsInside reports whether a fused computation reads or returns a path of a parameter.
func readsInside(c *hlo.Computation, parameter int, path string) bool {
	in := cell{c.Parameters()[parameter], path}
	for _, p := range paths(c.Root.Shape, "") {
		if origin(c.Root, p) == in {
			return true
		}
	}
	for _, i := range c.Instructions {
		for n := range i.Operands {
			if reads(i, n, in) {
				return true
			}
		}
	}
	return false
}

// peak is that of one computation with what it calls.
func (r *replay) peak(c *hlo.Computation) int64 {
	if done, ok := r.memo[c]; ok {
		return done
	}
	returned := map[cell]bool{}
	for _, path := range paths(c.Root.Shape, "") {
		returned[origin(c.Root, path)] = true
	}
	from, to := map[cell]int{}, map[cell]int{}
	for at, i := range c.Instructions {
		for _, path := range paths(i.Shape, "") {
			if x := (cell{i, path}); origin(i, path) == x {
				from[x], to[x] = at, at
			}
		}
	}
	for at, i := range c.Instructions {
		for n := range i.Operands {
			for x := range from {
				if to[x] < at && reads(i, n, x) {
					to[x] = at
				}
			}
		}
	}
	best := int64(0)
	for at, i := range c.Instructions {
		sum := int64(0)
		for x := range from {
			if from[x] <= at && at <= to[x] && x.maker.Opcode != "parameter" && !returned[x] {
				sum += r.size(shapeAt(x.maker.Shape, x.path))
			}
		}
		switch i.Opcode {
		case "call", "while", "conditional", "call-start", "async-start":
			for _, callee := range i.Called() {
				sum += r.peak(callee)
			}
		}
		best = max(best, sum)
	}
	r.memo[c] = best
	return best
}

// Bytes is a size for the tests: pointers of 8 bytes.
func Bytes(s *hlo.Shape) int64 {
	n, err := s.Bytes()
	if err != nil {
		panic(fmt.Sprint("a test has a shape without size: ", err))
	}
	return int64(n)
}

// DeviceBytes is Bytes without what lies on the host.
func DeviceBytes(s *hlo.Shape) int64 {
	if s.Space() == hlo.HostSpace {
		return 0
	}
	return Bytes(s)
}
