package proc

import (
	"os"
	"testing"

	"gpumem/internal/procstat"
)

func TestReadStat(t *testing.T) {
	self, ok := ReadStat(os.Getpid())
	if !ok || self.Parent != os.Getppid() || self.Start == 0 || self.Stopped() || self.Ended() {
		t.Errorf("%+v, %t", self, ok)
	}
	if age := self.Age(Uptime()); age < 0 {
		t.Errorf("this process started in %v", -age)
	}
	if again := procstat.Self(); again.Name != self.Name || again.Start != self.Start {
		t.Errorf("self: %+v, want %+v", again, self)
	}
	if s, ok := ReadStat(-1); ok {
		t.Errorf("no process is %+v", s)
	}
	s, ok := procstat.Parse("7 (a) b) (c)) S 3 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0\n")
	if !ok || s != (Stat{Name: "a) b) (c)", State: 'S', Parent: 3, Group: 4, Session: 5, Threads: 1, Start: 99}) {
		t.Errorf("%+v, %t", s, ok)
	}
	for _, text := range []string{"", "7", "7 (a) S", "7 (a) S x 4 5 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99 0"} {
		if s, ok := procstat.Parse(text); ok {
			t.Errorf("%q is %+v", text, s)
		}
	}
}
