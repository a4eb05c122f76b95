package open_test

import (
	"path/filepath"
	"strings"
	"testing"

	"gpumem/device/open"
)

func parse(t *testing.T, words string) open.Spec {
	t.Helper()
	spec, err := open.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// TestShared makes a file with two devices, and uses and lists them.
func TestShared(t *testing.T) {
	file := filepath.Join(t.TempDir(), "gpu")
	words := "sim@" + file
	if _, err := parse(t, words).Device(); err == nil || !strings.Contains(err.Error(), "make it: gpumem devices --device "+words) {
		t.Fatalf("no file: %v", err)
	}
	create := parse(t, words+",total=24GiB/1GiB,used=512MiB,create")
	list, err := create.Status()
	if err != nil || len(list) != 2 || list[0].Words != words || list[1].Words != words+",device=1" {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := create.Make(); err == nil {
		t.Error("the file was made a second time")
	}
	second := parse(t, words+",device=1")
	if info, err := second.Info(); info.Total != 1<<30 || err != nil {
		t.Errorf("total %d, %v", info.Total, err)
	}
	a, err := second.Device()
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if _, err := a.Alloc(256 << 20); err != nil {
		t.Fatal(err)
	}
	b, err := second.WithTotal(1 << 30)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if free, _, err := b.MemInfo(); free != 256<<20 || err != nil {
		t.Errorf("the other user sees %d free, %v", free, err)
	}
	if _, err := second.WithTotal(2 << 30); err == nil || !strings.Contains(err.Error(), "sim:SIZE can be of any size") {
		t.Errorf("another total: %v", err)
	}
	list, err = second.Status()
	if err != nil || len(list) != 1 || list[0].Free != 256<<20 || len(list[0].Processes) != 1 || list[0].Processes[0].Used != 256<<20 {
		t.Errorf("%+v, %v", list, err)
	}
	for _, words := range []string{words + ",device=2", words + "x"} {
		if _, err := parse(t, words).Status(); err == nil {
			t.Errorf("status of %s and no error", words)
		}
		if _, err := parse(t, words).Device(); err == nil {
			t.Errorf("opened %s and no error", words)
		}
		if _, err := parse(t, words).Info(); err == nil {
			t.Errorf("info of %s and no error", words)
		}
	}
	all, _, err := open.All(func(string) (string, bool) { return words, true })
	if err != nil || len(all) < 2 || all[len(all)-1].Words != words+",device=1" {
		t.Errorf("all: %+v, %v", all, err)
	}
	if _, _, err := open.All(func(string) (string, bool) { return "nonsense", true }); err == nil || !strings.HasPrefix(err.Error(), open.EnvVar) {
		t.Errorf("all with a bad environment: %v", err)
	}
	// A fault is the program's own.
	c, err := parse(t, words+",fail=1").Device()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Alloc(1); err == nil {
		t.Error("the first call was to fail")
	}
	if _, err := c.Alloc(1); err != nil {
		t.Error(err)
	}
}
