package hlo

// Readers of the attributes that say what an operation does: lists of numbers,
// windows, paddings, slices, labels of dimensions.

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// An AttributeError is an attribute that does not read as what it has to be.
type AttributeError struct {
	Instruction *Instruction
	Key         string
	Want        string // what was expected, "numbers in braces"
}

func (e *AttributeError) Error() string {
	value, _ := e.Instruction.Attribute(e.Key)
	if len(value) > 60 {
		value = value[:60] + "..."
	}
	return fmt.Sprintf("%s: attribute %s=%s: expected %s", Where(e.Instruction), e.Key, value, e.Want)
}

// Where names an instruction for messages: "line 12: add.3 in main". The line is
// left out if the instruction was not read from text.
func Where(i *Instruction) string {
	s := i.Name
	if i.Parent != nil {
		s += " in " + i.Parent.Name
	}
	if i.Line > 0 {
		s = "line " + strconv.Itoa(i.Line) + ": " + s
	}
	return s
}

// Ints is the value of an attribute that is a list of numbers such as {0,2,1}, or a single
// number. It is nil if the attribute is missing.
func (i *Instruction) Ints(key string) ([]int64, error) {
	text, ok := i.Attribute(key)
	if !ok {
		return nil, nil
	}
	text, braces := inBraces(text)
	if text == "" && braces {
		return []int64{}, nil
	}
	list := make([]int64, 0, 1+strings.Count(text, ","))
	for field := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(field), 10, 64)
		if err != nil {
			return nil, &AttributeError{i, key, "a number, or numbers in braces"}
		}
		list = append(list, n)
	}
	return list, nil
}

// Int is the value of an attribute that is one number, or absent if it is missing.
func (i *Instruction) Int(key string, absent int64) (int64, error) {
	list, err := i.Ints(key)
	switch {
	case err != nil:
		return 0, err
	case list == nil:
		return absent, nil
	case len(list) != 1:
		return 0, &AttributeError{i, key, "one number"}
	}
	return list[0], nil
}

// OutputAliases is the attribute output_to_operand_aliasing={{0}: (1, {}), {1}: (0, {2})}:
// results in the memory of operands, whose numbers are in Parameter. It is nil if the
// attribute is missing.
func (i *Instruction) OutputAliases() (list []Alias, err error) {
	const key = "output_to_operand_aliasing"
	text, ok := i.Attribute(key)
	if !ok {
		return nil, nil
	}
	l := lexer{text: text}
	func() {
		defer catch(&err)
		l.aliases(func(_ int, a Alias) { list = append(list, a) })
	}()
	if err != nil || l.at < len(text) {
		return nil, &AttributeError{i, key, "{{output}: (operand, {index}), ...}"}
	}
	return list, nil
}

// TupleIndex returns which element a get-tuple-element gets, its attribute index.
func (i *Instruction) TupleIndex() (int, error) {
	n, err := i.Int("index", -1)
	if err != nil || n < 0 || n > math.MaxInt32 {
		return 0, &AttributeError{i, "index", "the number of an element"}
	}
	return int(n), nil
}

// inBraces is what stands between the braces, and whether there were any.
func inBraces(text string) (string, bool) {
	text = strings.TrimSpace(text)
	if len(text) < 2 || text[0] != '{' || text[len(text)-1] != '}' {
		return text, false
	}
	return strings.TrimSpace(text[1 : len(text)-1]), true
}

// A WindowDim is one dimension of a window that moves over an array.
type WindowDim struct {
	Size, Stride int64
	Low, High    int64 // padding, also negative
	BaseDilation int64 // lhs_dilate: elements of the array stand this far apart
	Dilation     int64 // rhs_dilate: those of the window do
	Reversed     bool
}

// Out is the number of places of the window over a dimension of n elements, and whether the
// window is valid and the number fits into 64 bits.
func (w WindowDim) Out(n int64) (int64, bool) {
	if n < 0 || w.Size < 1 || w.Stride < 1 || w.BaseDilation < 1 || w.Dilation < 1 {
		return 0, false
	}
	base, ok := spread(n, w.BaseDilation)
	window, ok2 := spread(w.Size, w.Dilation)
	if !ok || !ok2 || !small(w.Low) || !small(w.High) {
		return 0, false
	}
	base += w.Low + w.High
	if base < window {
		return 0, true
	}
	return (base-window)/w.Stride + 1, true
}

// spread is the length of n things that stand d apart: 0 for none.
func spread(n, d int64) (int64, bool) {
	if n == 0 {
		return 0, true
	}
	high, low := bits.Mul64(uint64(n-1), uint64(d))
	return int64(low) + 1, high == 0 && low < 1<<60
}

func small(n int64) bool { return n > -1<<60 && n < 1<<60 }

// Window is the attribute window={size=3x3 stride=2x2 pad=0_1x0_1 lhs_dilate=..
// rhs_dilate=.. rhs_reversal=..}. It is nil if the attribute is missing.
func (i *Instruction) Window() ([]WindowDim, error) {
	text, ok := i.Attribute("window")
	if !ok {
		return nil, nil
	}
	fail := &AttributeError{i, "window", "{size=AxB stride=AxB pad=L_HxL_H ...}"}
	text, ok = inBraces(text)
	if !ok {
		return nil, fail
	}
	parts := map[string][]string{}
	for _, field := range strings.Fields(text) {
		key, value, ok := strings.Cut(field, "=")
		if !ok {
			return nil, fail
		}
		parts[key] = strings.Split(value, "x")
	}
	rank := 0
	for _, p := range parts {
		rank = max(rank, len(p))
	}
	window := slices.Repeat([]WindowDim{{Size: 1, Stride: 1, BaseDilation: 1, Dilation: 1}}, rank)
	for key, p := range parts {
		if len(p) != rank {
			return nil, fail
		}
		for d, s := range p {
			if !window[d].setPart(key, s) {
				return nil, fail
			}
		}
	}
	return window, nil
}

// setPart sets what a part of a window's text says, and reports whether it reads.
func (w *WindowDim) setPart(key, text string) bool {
	switch key {
	case "rhs_reversal":
		w.Reversed = text == "1"
		return true
	case "pad":
		n, ok := twoOrThree(text, "_")
		w.Low, w.High = n[0], n[1]
		return ok && strings.Count(text, "_") == 1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	switch key {
	case "size":
		w.Size = n
	case "stride":
		w.Stride = n
	case "lhs_dilate":
		w.BaseDilation = n
	case "rhs_dilate":
		w.Dilation = n
	default:
		return false
	}
	return err == nil
}

// A PadDim is what a pad adds to a dimension: elements in front and behind
// (negative: takes away) and between any two.
type PadDim struct{ Low, High, Interior int64 }

// Out is the padded size of a dimension of n elements, and whether it is valid: not
// negative and within 64 bits.
func (p PadDim) Out(n int64) (int64, bool) {
	if n < 0 || p.Interior < 0 || p.Interior == math.MaxInt64 || !small(p.Low) || !small(p.High) {
		return 0, false
	}
	out, ok := spread(n, p.Interior+1)
	out += p.Low + p.High
	return out, ok && out >= 0
}

// Padding is the attribute padding=0_1x0_0_2. It is nil if the attribute is missing, and
// empty for an array without dimensions.
func (i *Instruction) Padding() ([]PadDim, error) {
	text, ok := i.Attribute("padding")
	if !ok {
		return nil, nil
	}
	list := []PadDim{}
	if text = strings.TrimSpace(text); text == "" {
		return list, nil
	}
	for _, field := range strings.Split(text, "x") {
		n, ok := twoOrThree(field, "_")
		if !ok {
			return nil, &AttributeError{i, "padding", "L_H or L_H_I for each dimension, with x between"}
		}
		list = append(list, PadDim{n[0], n[1], n[2]})
	}
	return list, nil
}

// twoOrThree reads two or three numbers with a separator between them.
func twoOrThree(text, separator string) (n [3]int64, ok bool) {
	parts := strings.Split(text, separator)
	for k, s := range parts {
		var err error
		if k == len(n) {
			return n, false
		}
		if n[k], err = strconv.ParseInt(strings.TrimSpace(s), 10, 64); err != nil {
			return n, false
		}
	}
	return n, len(parts) > 1
}

// A SliceDim is what a slice takes of a dimension: [Start, Limit) in steps.
type SliceDim struct{ Start, Limit, Stride int64 }

// Out is the number of elements that the slice takes.
func (s SliceDim) Out() int64 {
	if s.Limit <= s.Start || s.Stride < 1 {
		return 0
	}
	return (s.Limit-s.Start-1)/s.Stride + 1
}

// Slices is the attribute slice={[0:8], [2:8:2]}. It is nil if the attribute is missing.
func (i *Instruction) Slices() ([]SliceDim, error) {
	text, ok := i.Attribute("slice")
	if !ok {
		return nil, nil
	}
	fail := &AttributeError{i, "slice", "{[start:limit:stride], ...}"}
	text, ok = inBraces(text)
	if !ok {
		return nil, fail
	}
	list := []SliceDim{}
	if text == "" {
		return list, nil
	}
	for _, field := range strings.Split(text, ",") {
		field, open := strings.CutPrefix(strings.TrimSpace(field), "[")
		field, closed := strings.CutSuffix(field, "]")
		n, ok := twoOrThree(field, ":")
		if !open || !closed || !ok {
			return nil, fail
		}
		if strings.Count(field, ":") == 1 {
			n[2] = 1
		}
		list = append(list, SliceDim{n[0], n[1], n[2]})
	}
	return list, nil
}

// DimLabels says what the dimensions of a convolution are, from
// dim_labels=b01f_01io->b01f: a letter or digit for each one of the input (b
// batch, f feature, 0.. spatial), the kernel (i and o features, 0.. spatial)
// and the output. ok is false where the attribute is missing.
func (i *Instruction) DimLabels() (input, kernel, output string, ok bool, err error) {
	text, ok := i.Attribute("dim_labels")
	if !ok {
		return "", "", "", false, nil
	}
	left, output, arrow := strings.Cut(strings.TrimSpace(text), "->")
	input, kernel, bar := strings.Cut(left, "_")
	sameRank := len(input) == len(kernel) && len(input) == len(output)
	if !arrow || !bar || !sameRank || !areLabels(input, "bf") || !areLabels(kernel, "io") || !areLabels(output, "bf") {
		return "", "", "", false, &AttributeError{i, "dim_labels", "labels such as b01f_01io->b01f"}
	}
	return input, kernel, output, true, nil
}

// areLabels reports whether s has both letters and the digits from 0, each once. A ?
// is a dimension of no meaning.
func areLabels(s, letters string) bool {
	spatial := 0
	for _, c := range s {
		if c >= '0' && c <= '9' {
			spatial++
		} else if c != '?' && !strings.ContainsRune(letters, c) {
			return false
		}
	}
	for d := range spatial {
		if d > 9 || strings.Count(s, string(rune('0'+d))) != 1 {
			return false
		}
	}
	return strings.Count(s, letters[:1]) == 1 && strings.Count(s, letters[1:]) == 1
}

// TripCount is the number of times that a while runs its body, and whether the compiler
// found it out and wrote "known_trip_count":{"n":"5"} into backend_config.
func (i *Instruction) TripCount() (uint64, bool) {
	config, _ := i.Attribute("backend_config")
	at := strings.Index(config, "known_trip_count")
	if i.Opcode != While || at < 0 {
		return 0, false
	}
	// The value may be a quoted string with \" in it; older texts have a bare
	// number. So what counts are the digits behind "n" and its colon.
	rest := config[at+len("known_trip_count"):]
	end := strings.IndexByte(rest, '}')
	n := strings.IndexByte(rest, 'n')
	if end < 0 || n < 0 || n > end {
		return 0, false
	}
	digits := strings.Trim(rest[n+1:end], `": \`)
	count, err := strconv.ParseUint(digits, 10, 63)
	return count, err == nil
}
