package smi

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestSamplesReadAsWritten reads what the tools print, a file for each form, with what it
// says below. The texts follow public ones of the release in the file's name; GPUs,
// processes and numbers are changed.
func TestSamplesReadAsWritten(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) < 67 {
		t.Fatalf("%d samples, %v; want 67 at least", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, want := sampleOf(t, file)
			got, err := Read(strings.NewReader(text))
			if err != nil {
				t.Fatal(err)
			}
			if got := describe(got); got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}

// sampleOf splits a file into its text and what it says.
func sampleOf(t testing.TB, file string) (text, want string) {
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text, want, ok := strings.Cut(string(data), "---- readings\n")
	if !ok {
		t.Fatalf("%s has no readings", file)
	}
	return text, want
}

// describe writes readings as the samples have them: the line in front, unknown values left out.
func describe(readings []Reading) string {
	var b strings.Builder
	for _, r := range readings {
		fmt.Fprintf(&b, "@%d %s%s%s", r.Line, r.Tool, text(" driver=", r.Driver), text(" cuda=", r.CUDA))
		if !r.Time.IsZero() {
			b.WriteString(" time=" + r.Time.Format(time.RFC3339Nano))
		}
		b.WriteByte('\n')
		for _, g := range r.GPUs {
			fmt.Fprintf(&b, " @%d gpu %d \"%s\"%s%s%s%s%s", g.Line, g.Index, g.Name, text(" uuid=", g.UUID), text(" bus=", g.Bus),
				bytes(" used=", g.Used, g.HasUsed), bytes(" free=", g.Free, g.HasFree), bytes(" reserved=", g.Reserved, g.HasReserved))
			b.WriteString(bytes(" total=", g.Total, g.Total > 0) + flag(" display", g.Display) + text(" mode=", g.ComputeMode) + text(" mig=", g.MIG))
			b.WriteString(flag(" told", g.ProcessesTold) + "\n")
			for _, i := range g.Instances {
				fmt.Fprintf(&b, "  @%d instance %d%s%s", i.Line, i.Index, text(" ", i.Name), text(" uuid=", i.UUID))
				if i.GI >= 0 {
					fmt.Fprintf(&b, " gi=%d ci=%d", i.GI, i.CI)
				}
				b.WriteString(bytes(" used=", i.Used, i.HasUsed) + bytes(" total=", i.Total, i.Total > 0) + "\n")
			}
			for _, p := range g.Processes {
				fmt.Fprintf(&b, "  @%d process %d%s \"%s\"%s\n", p.Line, p.PID, text(" ", p.Type), p.Name, bytes(" used=", p.Used, p.HasUsed))
			}
		}
	}
	return b.String()
}

func text(label, value string) string {
	if value == "" {
		return ""
	}
	return label + value
}

func flag(label string, set bool) string {
	if set {
		return label
	}
	return ""
}

func bytes(label string, n uint64, known bool) string {
	switch {
	case !known:
		return ""
	case n%(1<<20) == 0:
		return fmt.Sprintf("%s%dMiB", label, n>>20)
	}
	return fmt.Sprintf("%s%d", label, n)
}
