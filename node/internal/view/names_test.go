package view_test

import (
	"strings"
	"testing"
	"time"

	"gpumem/node/internal/view"
	"gpumem/node/machine"
)

func TestWhere(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	for _, tt := range []struct {
		lease *machine.Lease
		want  string
	}{
		{nil, ""},
		{&machine.Lease{}, ""},
		{&machine.Lease{Containers: []machine.Container{{ID: id, Namespace: "n", Pod: "p", Name: "c"}}}, "n/p/c"},
		{&machine.Lease{Containers: []machine.Container{{ID: id}}, MoreContainers: 2}, "0123456789ab and 2 more"},
		{&machine.Lease{Containers: []machine.Container{{Pod: "p"}, {Pod: "q"}}}, "/p/ and 1 more"},
	} {
		if got := view.Where(tt.lease); got != tt.want {
			t.Errorf("%+v: %q, want %q", tt.lease, got, tt.want)
		}
	}
}

func TestNames(t *testing.T) {
	started := new(time.Time)
	for _, tt := range []struct {
		name          string
		program       machine.Program
		command, word string
	}{
		{"a script", machine.Program{Command: []string{"/usr/bin/python3", "-u", "/home/ann/train.py", "--x"}}, "python3 -u /home/ann/train.py --x", "train.py"},
		{"a module", machine.Program{Command: []string{"python3.12", "-m", "torch.distributed.run"}}, "python3.12 -m torch.distributed.run", "torch.distributed.run"},
		{"a module that is missing", machine.Program{Command: []string{"python", "-m"}}, "python -m", "python"},
		{"code", machine.Program{Command: []string{"python", "-c", "import x"}}, "python -c import x", "python"},
		{"the interpreter alone", machine.Program{Command: []string{"python"}}, "python", "python"},
		{"a title that the process has set", machine.Program{Command: []string{"ray::f(/a)"}}, "a)", "a)"},
		{"a title with blanks", machine.Program{Command: []string{"vllm worker /x"}}, "vllm worker /x", "vllm"},
		{"a folder", machine.Program{Command: []string{"/opt/"}}, "/opt/", "/opt/"},
		{"no command", machine.Program{Name: "Xorg", Started: started}, "[Xorg]", "Xorg"},
		{"an unknown process", machine.Program{Name: "Xorg"}, "unknown", "Xorg"},
		{"a lease of containers", machine.Program{Lease: &machine.Lease{Containers: []machine.Container{{Namespace: "n", Pod: "p", Name: "c"}}}, Name: "n/p/c"}, "no program yet", "n/p/c"},
		{"nothing", machine.Program{}, "unknown", "unknown"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if c, w := view.CommandLine(&tt.program), view.Title(&tt.program); c != tt.command || w != tt.word {
				t.Errorf("%q, %q, want %q, %q", c, w, tt.command, tt.word)
			}
		})
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 0: "0s", 59*time.Second + 999*time.Millisecond: "59s", time.Minute: "1m", time.Hour - 1: "59m",
		time.Hour: "1h00m", 24*time.Hour - 1: "23h59m", 24 * time.Hour: "1d00h", 1000 * time.Hour: "41d16h",
	} {
		if got := view.Age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}
