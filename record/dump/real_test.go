package dump_test

// Logs of users, which are not part of the project. They are
// read where they lie beside the checkout.

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gpumem/record/dump"
	"gpumem/record/internal/test/tracetest"
)

// usersLogs are their files; without any the test is skipped.
func usersLogs(t *testing.T) []string { return tracetest.Others(t, "oomlogs", "*.log") }

// TestUsersPrograms: where a log has the words of a compiler's report, it is
// read, and its total is no less than its parts.
func TestUsersPrograms(t *testing.T) {
	found := 0
	for _, file := range usersLogs(t) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, p, err := dump.ReadLog(bytes.NewReader(text))
		stats, remat := bytes.Contains(text, []byte("BufferAssignment stats:")), bytes.Contains(text, []byte("Can't reduce memory use below"))
		if !stats && !remat {
			if p != nil || err != nil {
				t.Errorf("%s: %+v, %v", file, p, err)
			}
			continue
		}
		if p == nil || err != nil {
			t.Errorf("%s: %+v, %v", file, p, err)
			continue
		}
		found++
		if stats && (p.Line == 0 || p.Complete && p.Total == 0 || p.Total != 0 && p.Total < max(p.Parameter, p.Temp, p.LiveOut)) {
			t.Errorf("%s: %+v", file, p)
		}
		if remat && (len(p.Remats) == 0 || p.Remats[0].Was == 0) {
			t.Errorf("%s: %+v", file, p.Remats)
		}
	}
	if found == 0 {
		t.Error("no compiler's report in any log")
	}
}

func TestUsersLogs(t *testing.T) {
	found := 0
	for _, file := range usersLogs(t) {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		d, err := dump.Read(f)
		f.Close()
		if errors.Is(err, dump.ErrNone) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		found++
		t.Log(filepath.Base(file))
		for _, l := range d.Summary(80, 40) {
			t.Log(l)
		}
		if d.InUse == 0 {
			t.Errorf("%s: nothing in use", file)
		}
	}
	if found == 0 {
		t.Error("no dump in any log")
	}
}
