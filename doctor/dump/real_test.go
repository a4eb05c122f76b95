package dump_test

// This file is for logs of users, which are not part of the project. They are
// read where they lie beside the checkout.

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gpumem/doctor/dump"
)

func TestUsersLogs(t *testing.T) {
	files, _ := filepath.Glob("../../../shared/data/oomlogs/*.log")
	if len(files) == 0 {
		t.Skip("no logs in ../shared/data/oomlogs beside the checkout: SKIPPED")
	}
	found := 0
	for _, file := range files {
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
		for _, l := range d.Summary(80) {
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
