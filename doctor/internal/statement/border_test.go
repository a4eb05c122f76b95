package statement

import (
	"strings"
	"testing"
)

// readOne is the last statement of a text.
func readOne(t *testing.T, text string) (last *Statement) {
	t.Helper()
	if _, err := Read(strings.NewReader(text+"\n"), func(st *Statement) { last = st }); err != nil {
		t.Fatal(err)
	}
	if last == nil {
		t.Fatalf("%q is not read", text)
	}
	return last
}

// TestATryIsMildUnlessAnError: a program that tries again goes on, but for a line that it calls an
// error itself: then the try is told, and its end is not.
func TestATryIsMildUnlessAnError(t *testing.T) {
	for line, mild := range map[string]bool{
		"cudaMalloc failed: out of memory, retrying":                                                  true,
		"W0305 10:11:12.000000    4242 allocator.cc:12] cudaMalloc failed: out of memory; will retry": true,
		"E0305 10:11:12.000000    4242 allocator.cc:12] cudaMalloc failed: out of memory; will retry": false,
		"F0305 10:11:12.000000    4242 allocator.cc:12] cudaMalloc failed: out of memory; will retry": false,
		"ERROR: cudaMalloc failed: out of memory, retrying":                                           false,
	} {
		if st := readOne(t, line); st.Mild != mild || !st.Again || !st.Refused {
			t.Errorf("%q: mild %v, again %v, refused %v", line, st.Mild, st.Again, st.Refused)
		}
	}
}

// TestADeniedErrorIsNone: a name of the vocabulary that the clause denies is no failure.
func TestADeniedErrorIsNone(t *testing.T) {
	for line, fails := range map[string]bool{
		"hipErrorIllegalAddress in kernel f":                         true,
		"hipErrorIllegalAddress did not occur":                       false,
		"the run ended without a hipErrorIllegalAddress":             false,
		"no, hipErrorIllegalAddress in kernel f once more":           true,
		"cudaHostRegister gave cudaErrorHostMemoryAlreadyRegistered": false, // the caller has what it wants
		"cudaHostRegister gave cudaErrorInvalidValue":                true,
	} {
		if st := readOne(t, line+" on the gpu device"); (st.Topic("other") != nil) != fails {
			t.Errorf("%q: a failure %v, want %v", line, !fails, fails)
		}
	}
}

// TestLongCodesOfATerminalGo: a colour of 24 bits takes 19 bytes, and a link more.
func TestLongCodesOfATerminalGo(t *testing.T) {
	const want = "CUDA out of memory. Tried to allocate 2.00 GiB"
	for name, text := range map[string]string{
		"24 bits": "CUDA out of \x1b[38;2;255;100;50mmemory\x1b[0m. Tried to allocate 2.00 GiB",
		"both":    "CUDA out of \x1b[1;4;38;2;255;100;50;48;2;10;20;30mmemory\x1b[0m. Tried to allocate 2.00 GiB",
		"title":   "\x1b]0;user@node1: python train.py\aCUDA out of memory. Tried to allocate 2.00 GiB",
	} {
		if st := readOne(t, text); st.Text != want || !st.Refused {
			t.Errorf("%s: %q", name, st.Text)
		}
	}
}

// TestPrefixesOfFourLoggers: a container's, a launcher's, a rank's and the program's own, each
// before the next, in one line among others that have none.
func TestPrefixesOfFourLoggers(t *testing.T) {
	for line, from := range map[string]string{
		"2026-03-05T10:11:12.345678Z stderr F trainer-1  | [rank3]: E0305 10:11:12.000000    4242 allocator.cc:12] cudaMalloc failed: out of memory":                   "trainer-1",
		"2026-03-05T10:11:12.345678Z stderr F Mar 05 10:11:12 node1 python[4242]: 2026-03-05 10:11:12,345 - train - ERROR - [rank3]: cudaMalloc failed: out of memory": "rank3",
	} {
		var st *Statement
		text := "loading weights of the model\nloading weights of the model\n" + line + "\nsaving what there is\nsaving what there is\n"
		if _, err := Read(strings.NewReader(text), func(s *Statement) {
			if s.Refused {
				st = s
			}
		}); err != nil {
			t.Fatal(err)
		}
		if st == nil || !strings.HasPrefix(st.Text, "cudaMalloc failed: out of memory") || st.Level != "E" || st.From != from {
			t.Errorf("%q: %+v", line, st)
		}
	}
}
