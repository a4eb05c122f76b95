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
		{"wrong type of all", "[]", "line 1: the file is an array, want an object; a state file is JSON"},
		{"too large a number", `{"devices": [{"total_bytes": 1e40}]}`, "devices.total_bytes is 1e40, want a whole number"},
		{"wrong type within", `{"process": {"backend_recreated": "yes"}}`, "process.backend_recreated is a string, want true or false"},
		{"null", "null", "none of the fields of a state is in it"},
		{"misspelt", `{"devcies": []}`, "none of the fields of a state is in it (devices,"},
		{"as much as there is", `{"devices": [{"total_bytes": 10, "used_bytes": 10, "free_bytes": 10}]}`, ""},
		{"a total that is unknown", `{"devices": [{"used_bytes": 10}]}`, ""},
		{"more in use than there is", `{"devices": [{"total_bytes": 10, "used_bytes": 11}]}`, "devices[0]: used_bytes 11 B is above total_bytes, 10 B"},
		{"more free than there is", `{"devices": [{"total_bytes": 10, "free_bytes": 11}]}`, "devices[0]: free_bytes 11 B is above total_bytes"},
		{"more in a process than there is", `{"devices": [{"total_bytes": 10, "processes": [{"pid": 1}, {"used_bytes": 11}]}]}`, "processes[1].used_bytes 11 B is above"},
		{"a device twice", `{"devices": [{"index": 1}, {"index": 1}]}`, "devices[1]: index 1 is another device's already"},
		{"one of each kind", `{"devices": [{"index": 0}, {"index": 0, "simulated": true}]}`, ""},
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
