package doctor

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/internal/test/doctortest"
	"gpumem/node/machine"
)

// TestJSON: every field of the contract is there, whatever the verdict,
// and nothing is null.
func TestJSON(t *testing.T) {
	for name, d := range diagnoses(t) {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := WriteJSON(&b, []Answer{{Log: "train.log", Diagnosis: d}}); err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(b.String(), "{\n  \"verdict\": ") || strings.Contains(b.String(), `\u003`) {
				t.Errorf("%s", b.String())
			}
			var top map[string]any
			if err := json.Unmarshal(b.Bytes(), &top); err != nil {
				t.Fatal(err)
			}
			noNull(t, name, top)
			wantKeys(t, top, "verdict", "causes", "missing", "decide", "certain", "log")
			for _, c := range top["causes"].([]any) {
				c := c.(map[string]any)
				wantKeys(t, c, "id", "title", "evidence", "settings", "steps")
				for _, e := range c["evidence"].([]any) {
					wantKeys(t, e.(map[string]any), "line", "text", "reading")
				}
				for _, s := range c["settings"].([]any) {
					wantKeys(t, s.(map[string]any), "name", "value", "why")
				}
			}
			if _, there := top["dump"]; there != (d.Dump != nil) {
				t.Errorf("dump: %v", top["dump"])
			}
			if d.Dump == nil {
				return
			}
			pool := top["dump"].(map[string]any)
			wantKeys(t, pool, "allocator", "request", "limit_bytes", "pool_bytes", "in_use_bytes", "free_bytes", "largest_free_bytes",
				"fragmentation", "chunks", "complete", "notes", "rows", "line", "dumps")
			wantKeys(t, pool["request"].(map[string]any), "bytes", "rounded", "op")
			got, err := json.Marshal(pool["rows"])
			if err != nil {
				t.Fatal(err)
			}
			if want := `[{"bytes":2048,"count":1,"size":2048},{"bytes":1024,"count":1,"size":1024}]`; string(got) != want {
				t.Errorf("rows %s, want %s", got, want)
			}
			if pool["chunks"] != 4.0 || pool["in_use_bytes"] != 3072.0 || pool["free_bytes"] != 5120.0 || pool["largest_free_bytes"] != 4096.0 ||
				pool["complete"] != true {
				t.Errorf("%v", pool)
			}
		})
	}
	var b bytes.Buffer
	d := &Diagnosis{Verdict: VerdictUnknown}
	if err := WriteJSON(&b, []Answer{{Log: "a", Diagnosis: d}, {Log: "b", Diagnosis: d}}); err != nil {
		t.Fatal(err)
	}
	var list []struct{ Log, Verdict string }
	if err := json.Unmarshal(b.Bytes(), &list); err != nil || len(list) != 2 || list[1].Log != "b" || list[1].Verdict != "unknown" {
		t.Errorf("%v, %v", list, err)
	}
}

func wantKeys(t *testing.T, object map[string]any, keys ...string) {
	t.Helper()
	for _, k := range keys {
		if _, ok := object[k]; !ok {
			t.Errorf("no %s in %v", k, object)
		}
	}
}

func noNull(t *testing.T, at string, v any) {
	t.Helper()
	switch v := v.(type) {
	case nil:
		t.Errorf("%s is null", at)
	case map[string]any:
		for k, e := range v {
			noNull(t, at+"."+k, e)
		}
	case []any:
		for i, e := range v {
			noNull(t, fmt.Sprint(at, ".", i), e)
		}
	}
}

// TestScreen: the answer to every kind of failure that there is a log of
// fits on a screen, with what a dump shows. So do those to logs of third
// parties, where there are some beside the checkout.
func TestScreen(t *testing.T) {
	logs := doctortest.Base()
	files, err := filepath.Glob("../../../shared/data/oomlogs/*.log")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		log, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		state, _ := os.ReadFile(strings.TrimSuffix(file, ".log") + ".state.json")
		logs = append(logs, doctortest.Case{Name: file, Log: string(log), State: string(state)})
	}
	for _, c := range logs {
		for _, state := range []string{"", c.State} {
			var known *machine.Snapshot
			if state != "" {
				var err error
				if known, err = machine.Read(strings.NewReader(state)); err != nil {
					t.Fatal(err)
				}
			}
			d, err := Diagnose(strings.NewReader(c.Log), known)
			if err != nil {
				t.Fatal(err)
			}
			for _, width := range []int{80, 100} {
				if text := (Answer{Log: "train.log", Diagnosis: d}).onScreen(width); strings.Count(text, "\n") > screenLines {
					t.Errorf("%s: more than %d lines\n%s", c.Name, screenLines, text)
				}
			}
		}
	}
}

func TestOpenLog(t *testing.T) {
	dir := t.TempDir()
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(bytes.Repeat([]byte("text of some length, not always the same\n"), 5000)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(zipped.Bytes())
	damaged[len(damaged)/2] ^= 0xff
	for _, tc := range []struct {
		name    string
		content []byte
		want    string // the error's words
		bytes   int64
		text    bool
	}{
		{"plain", []byte("text\n"), "", 5, true},
		{"empty", nil, "", 0, false},
		{"one byte", []byte("x"), "", 1, true},
		{"rubbish", []byte("a\x00b"), "", 3, true},
		{"zeros", []byte("\x00\x00"), "", 2, false},
		{"gzip", zipped.Bytes(), "", 41 * 5000, true},
		{"cut", zipped.Bytes()[:zipped.Len()-20], "the gzip data is cut short", 0, false},
		{"head", zipped.Bytes()[:5], "the gzip data is cut short", 0, false},
		{"damaged", damaged, "the gzip data is damaged", 0, false},
		{"no gzip", []byte{0x1f, 0x8b, 'x', 'y', 0, 0, 0, 0, 0, 0, 0}, "the gzip data is damaged", 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(dir, tc.name)
			if err := os.WriteFile(path, tc.content, 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := openLog(t.Context(), path, "a log", func(int64, int64) {})
			if err == nil {
				defer l.Close()
				_, err = io.Copy(io.Discard, struct{ io.Reader }{l})
				if fmt.Sprint(err) != fmt.Sprint(l.failed) {
					t.Errorf("%v, and failed %v", err, l.failed)
				}
			}
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want == "":
				if l.size != tc.bytes || l.text != tc.text {
					t.Errorf("%d bytes, text %v", l.size, l.text)
				}
			case err == nil || !strings.HasPrefix(err.Error(), path+": ") || !strings.Contains(err.Error(), tc.want):
				t.Errorf("%v, want %s", err, tc.want)
			}
		})
	}

	// An interrupt ends a file in its middle.
	ctx, cancel := context.WithCancel(t.Context())
	l, err := openLog(ctx, filepath.Join(dir, "gzip"), "a log", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cancel()
	if _, err := l.Read(make([]byte, 10)); !errors.Is(err, context.Canceled) || !errors.Is(l.failed, context.Canceled) {
		t.Error(err)
	}
}

// TestBarsOfProgressAreText: bars draw over themselves for more than maxUnbroken bytes, and end
// no line.
func TestBarsOfProgressAreText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "train.log")
	bar := strings.Repeat("\r 42%|####      | 420/1000 [03:12<01:10, 1.71it/s]", 1+(maxUnbroken+1<<20)/50)
	if err := os.WriteFile(path, []byte(bar+"\n"+refused), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := Read(t.Context(), path, nil, nil, nil)
	if err != nil || len(a.Causes) == 0 {
		t.Errorf("%v, %v", a.Diagnosis, err)
	}
}
