package hlo_test

import (
	"testing"

	. "gpumem/xla/internal/hlo"
)

func TestOpName(t *testing.T) {
	for value, want := range map[string]string{
		`{op_type="a" op_name="jit(f)/b" source_line=3}`: "jit(f)/b",
		`{op_name="x['w\"']" }`:                          `x['w\"']`,
		`{op_type="a"}`:                                  "",
		`{op_name="`:                                     "",
	} {
		i := &Instruction{Attributes: []Attribute{{Key: "metadata", Value: value}}}
		if got := i.OpName(); got != want {
			t.Errorf("%s: %q, want %q", value, got, want)
		}
	}
	if got := new(Instruction).OpName(); got != "" {
		t.Errorf("without metadata: %q", got)
	}
}

func TestSources(t *testing.T) {
	m := &Module{Tables: `FileNames
1 "/home/a/train.py"
2 "model.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=6 end_line=7 column=11 end_column=20}
2 {file_name_id=2 function_name_id=1 line=60 end_line=60 column=1 end_column=2}
x {

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=99 parent_frame_id=1}
`}
	s := m.Sources()
	for _, tt := range []struct {
		metadata, file string
		line           int
	}{
		{`{op_name="a" stack_frame_id=1}`, "/home/a/train.py", 6},
		{`{op_name="a" stack_frame_id=2}`, "model.py", 60},
		{`{stack_frame_id=3}`, "", 0},
		{`{stack_frame_id=99999999999999999999}`, "", 0},
		{`{op_name="a" source_file="b.py" source_line=12}`, "b.py", 12},
		{`{source_file="b.py"}`, "b.py", 0},
		{`{op_name="a"}`, "", 0},
	} {
		i := &Instruction{Attributes: []Attribute{{Key: "metadata", Value: tt.metadata}}}
		if file, line := s.Of(i); file != tt.file || line != tt.line {
			t.Errorf("%s: %s:%d, want %s:%d", tt.metadata, file, line, tt.file, tt.line)
		}
	}
}
