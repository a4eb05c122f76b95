package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// recordings are all that the repository's tests have, by their paths from here.
func recordings(t *testing.T) (paths []string) {
	t.Helper()
	patterns := []string{
		"../../record/trace/testdata/*", "../../record/internal/torch/testdata/*.pickle.gz", "../../record/leaks/testdata/*.gpumem",
	}
	if !testing.Short() {
		patterns = append(patterns, "../../examples/*.txt.gz")
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(found), err)
		}
		paths = append(paths, found...)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return slices.Contains([]string{".py", ".md"}, filepath.Ext(path)) })
}

// ownNumber is the own time in JSON, as ownTime is in the text.
var ownNumber = regexp.MustCompile(`"seconds": [0-9.e+-]+`)

// What a recording holds survives --save: every answer is the same on the saved file, and on
// what is saved of that.
func TestSavedRecordingHasTheSameAnswers(t *testing.T) {
	for _, path := range recordings(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			// The recording has the same name each time, which the answers have.
			original, once, twice := t.TempDir(), t.TempDir(), t.TempDir()
			if err := os.WriteFile(filepath.Join(original, "rec"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			want := answersOn(t, original, filepath.Join(once, "rec"))
			got := answersOn(t, once, filepath.Join(twice, "rec"))
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("saved:\n%s", d)
			}
			first, _ := os.ReadFile(filepath.Join(once, "rec"))
			second, _ := os.ReadFile(filepath.Join(twice, "rec"))
			if !bytes.Equal(first, second) {
				t.Error("what is saved of the saved recording is another file")
			}
		})
	}
}

// answersOn returns what the commands say of the recording in a folder, which is saved.
func answersOn(t *testing.T, folder, save string) map[string][]string {
	t.Helper()
	t.Chdir(folder)
	answers := map[string][]string{}
	for _, words := range []string{
		"replay rec --device sim:80GiB --json --save " + save,
		"replay rec --device sim:80GiB --policy elastic --policy pytorch --at 3 --paths",
		"advise rec --device sim:80GiB --json",
		"advise rec --device sim:80GiB",
		"leaks rec --json",
		"leaks rec --live --paths",
	} {
		var out, errs bytes.Buffer
		code := run(t.Context(), strings.Fields(words), &out, &errs)
		if code == 2 && !strings.HasPrefix(errs.String(), "gpumem: ") {
			t.Errorf("%s: %s", words, errs.String())
		}
		name, _, _ := strings.Cut(words, " --save")
		text := ownTime.ReplaceAllString(ownNumber.ReplaceAllString(out.String()+errs.String(), "own"), "own")
		text = blanks.ReplaceAllString(text, " ")
		answers[name] = strings.Split(text, "\n")
	}
	return answers
}
