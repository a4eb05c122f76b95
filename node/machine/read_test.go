package machine

import (
	"io"
	"strings"
	"testing"
)

func TestRead(t *testing.T) {
	tests := []struct{ name, text, want string }{ // want: part of the error; empty: none
		{"empty object", "{}", ""},
		{"unknown fields", `{"host": {"name": "a"}, "devices": [{"index": 1, "uuid": "GPU-1"}]}`, ""},
		{"empty", "", "JSON"},
		{"no JSON", "GPU 0: Tesla T4", "line 1"},
		{"cut", "{\n\"devices\": [", "line 2"},
		{"wrong type", "{\n\"devices\": [{\"index\":\n\"zero\"}]}", "line 3: devices.index is a string"},
		{"wrong type of all", "[]", "the file is a array"},
		{"negative size", `{"devices": [{"total_bytes": -1}]}`, "total_bytes"},
		{"negative index", `{"devices": [{"index": -1}]}`, "devices[0]: index -1 is below zero"},
		{"negative fraction", `{"process": {"per_process_memory_fraction": -0.5}}`, "below zero"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Read(strings.NewReader(tt.text))
			switch {
			case tt.want == "" && (err != nil || s == nil):
				t.Error(err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("%v; want %q", err, tt.want)
			}
		})
	}
	if _, err := Read(io.LimitReader(blanks{}, maxState+2)); err == nil || !strings.Contains(err.Error(), "64 MiB") {
		t.Errorf("a state of 64 MiB and more: %v", err)
	}
}

// blanks are blanks without end.
type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
