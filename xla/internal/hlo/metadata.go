package hlo

// The source of an instruction: its metadata, and the module's tables of
// stack frames.

import (
	"regexp"
	"strconv"
	"strings"
)

// HasOpNames reports whether an instruction of the module says which operation of the program
// it is of. Compiled modules do; the text of a JAX program that is lowered and not compiled
// does not.
func (m *Module) HasOpNames() bool {
	for i := range m.All() {
		if i.OpName() != "" {
			return true
		}
	}
	return false
}

// OpName is the op_name in an instruction's metadata, empty if there is none: the
// path of the operation through the program, such as "jit(step)/jvp(mlp)/dot_general".
func (i *Instruction) OpName() string {
	value, ok := i.Attribute("metadata")
	if !ok {
		return ""
	}
	_, rest, ok := strings.Cut(value, `op_name="`)
	if !ok {
		return ""
	}
	for n := 0; n < len(rest); n++ {
		switch rest[n] {
		case '\\':
			n++
		case '"':
			return rest[:n]
		}
	}
	return ""
}

// Sources are the tables of a module's stack frames, read.
type Sources struct {
	files     map[int]string
	locations map[int][2]int // file and line
	frames    map[int]int    // location
}

var (
	tableRow  = regexp.MustCompile(`^(\d+) "(.*)"$`)
	placeRow  = regexp.MustCompile(`^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)`)
	frameRow  = regexp.MustCompile(`^(\d+) \{file_location_id=(\d+)`)
	fileWords = regexp.MustCompile(`source_file="([^"]*)"`)
	lineWords = regexp.MustCompile(`source_line=(\d+)`)
	stackWord = regexp.MustCompile(`stack_frame_id=(\d+)`)
)

// Sources reads the module's tables. Damaged lines are left out.
func (m *Module) Sources() *Sources {
	s := &Sources{files: map[int]string{}, locations: map[int][2]int{}, frames: map[int]int{}}
	table := ""
	for line := range strings.Lines(m.Tables) {
		line = strings.TrimSpace(line)
		switch line {
		case "FileNames", "FunctionNames", "FileLocations", "StackFrames":
			table = line
			continue
		}
		switch table {
		case "FileNames":
			if f := tableRow.FindStringSubmatch(line); f != nil {
				s.files[number(f[1])] = f[2]
			}
		case "FileLocations":
			if f := placeRow.FindStringSubmatch(line); f != nil {
				s.locations[number(f[1])] = [2]int{number(f[2]), number(f[3])}
			}
		case "StackFrames":
			if f := frameRow.FindStringSubmatch(line); f != nil {
				s.frames[number(f[1])] = number(f[2])
			}
		}
	}
	return s
}

// number is a decimal number, and 0 for one that is too large.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0
	}
	return n
}

// Of is the file and the line, from 1, that an instruction comes from: by its own metadata
// (up to 2025) or by its innermost stack frame. file is empty if it is unknown.
func (s *Sources) Of(i *Instruction) (file string, line int) {
	value, _ := i.Attribute("metadata")
	if f := fileWords.FindStringSubmatch(value); f != nil {
		if l := lineWords.FindStringSubmatch(value); l != nil {
			line = number(l[1])
		}
		return f[1], line
	}
	if f := stackWord.FindStringSubmatch(value); f != nil {
		place := s.locations[s.frames[number(f[1])]]
		return s.files[place[0]], place[1]
	}
	return "", 0
}

// Place is FILE:LINE of an instruction, as far as it is known.
func (s *Sources) Place(i *Instruction) string {
	file, line := s.Of(i)
	if line == 0 {
		return file
	}
	return file + ":" + strconv.Itoa(line)
}
