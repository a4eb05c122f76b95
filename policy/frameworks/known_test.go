package frameworks_test

import (
	"testing"

	"gpumem/policy/frameworks"
)

// TestReleaseNote: what is newer than all that is known and what stands for
// several releases is said; what is known is not.
func TestReleaseNote(t *testing.T) {
	for text, want := range map[string]string{
		"jax":              "",
		"jax@0.4.0":        "",
		"jax@0.12.0.1":     "",
		"jax@0.4":          "JAX 0.4 is read as 0.4.0; later releases of 0.4 differ, from 0.4.1 on",
		"jax@9.9.9":        "JAX 9.9.9 is not known; it is read as 0.12.0.1, the newest known release",
		"tensorflow@99.1":  "TensorFlow 99.1 is not known; it is read as 2.21.0, the newest known release",
		"tensorflow@2.15":  "",
		"gpumem":           "",
		"jax@0.11.1.dev20": "",
	} {
		f, err := frameworks.ParseRelease(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.Note(); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
