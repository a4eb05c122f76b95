package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestRemakeKeepsWhatIsSetByHand renews a table from two sources of one family: the first has
// the numbers of today, the second older ones and a name that is gone.
func TestRemakeKeepsWhatIsSetByHand(t *testing.T) {
	pkg, from := t.TempDir(), t.TempDir()
	files := map[string]string{
		filepath.Join(pkg, "sources.txt"): "# head\n" +
			"new.h\tF\tsomewhere\t(?P<name>F_\\w+) = (?P<number>\\w+)(?:; // (?P<text>.*))?\n" +
			"old.h\tF\tsomewhere\t(?P<name>F_\\w+) = (?P<number>\\w+)\n" +
			"gone.h\tF\tsomewhere\t(?P<name>F_\\w+)\n" +
			"hand\tG\tread by people\t-\n",
		filepath.Join(pkg, "table.tsv"): "# head\n" +
			"F\tF_LOST\t7|700\told words\tnone\tdriver\tyes\tyes\tdevice\tnew.h\n" +
			"G\tG_STATE\t\t\tnone\tdriver\tno\tyes\topen\thand\n",
		filepath.Join(from, "new.h"): "F_SUCCESS = 0\nF_LOST = 700; // lost\nF_FULL = 0x0A\n",
		filepath.Join(from, "old.h"): "F_LOST = 7\nF_GONE = 12\n",
	}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := "# head\n" +
		"F\tF_FULL\t0x0A\t\t?\t?\t?\t?\t?\tnew.h\n" +
		"F\tF_GONE\t12\t\t?\t?\t?\t?\t?\told.h\n" +
		"F\tF_LOST\t700|7\tlost|old words\tnone\tdriver\tyes\tyes\tdevice\tnew.h\n" +
		"G\tG_STATE\t\t\tnone\tdriver\tno\tyes\topen\thand\n"
	for range 2 { // the second time changes nothing
		if err := remake(from, pkg); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(pkg, "table.tsv"))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Fatalf("got\n%swant\n%s", got, want)
		}
	}
}
