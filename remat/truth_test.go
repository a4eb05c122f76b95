package remat

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
)

func TestTruthX(t *testing.T) {
	data, _ := os.ReadFile("/work/scratch/byhand/out.jsonl")
	for line := range strings.Lines(string(data)) {
		var r struct {
			Name, Module string
			Temp         uint64 `json:"temp_bytes"`
			Nothing      uint64 `json:"nothing_saveable"`
			Dots         uint64 `json:"dots_saveable"`
		}
		if json.Unmarshal([]byte(line), &r) != nil {
			continue
		}
		text, _ := os.ReadFile(r.Module)
		m, err := hlo.ParseString(string(text))
		if err != nil {
			t.Fatal(err)
		}
		ls := layers(m)
		if len(ls) == 0 {
			t.Log(r.Name, "no layers")
			continue
		}
		for _, pol := range []struct {
			name  string
			save  SavePolicy
			truth uint64
		}{{"nothing", SaveNothing, r.Nothing}, {"dots", product, r.Dots}} {
			if pol.truth == 0 {
				continue
			}
			s := fmt.Sprintf("%-18s %-8s %s*%d temp %9d truth %9d (%.2f)", r.Name, pol.name, ls[0].Name, len(ls[0].Patterns), r.Temp, pol.truth, float64(pol.truth)/float64(r.Temp))
			c, _, err := checkpointed(m, ls[0], len(ls[0].Patterns), pol.save, cost.Rates{})
			if err != nil {
				t.Error(err)
				continue
			}
			show := func(what string, c *hlo.Module) {
				a, err := memory.AnalyzeModule(c)
				if err != nil {
					t.Error(err)
					return
				}
				as, err := a.Assign()
				if err != nil {
					t.Error(err)
					return
				}
				peak, _, _ := memory.TempPeak(c, memory.Options{})
				s += fmt.Sprintf(" | %s %9d %+.0f%% live %+.0f%%", what, as.Temp, 100*(float64(as.Temp)/float64(pol.truth)-1), 100*(float64(peak)/float64(pol.truth)-1))
			}
			show("asis", c)
			t.Log(s)
		}
	}
}
