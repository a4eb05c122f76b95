package statement

import (
	"io"
	"strings"
	"testing"
)

const torchLine = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.60 GiB. GPU 0 has a total capacity of 14.74 GiB of which 2.44 GiB is free. Process 21197 has 366.00 MiB memory in use. Of the allocated memory 7.85 GiB is allocated by PyTorch, and 86.90 MiB is reserved by PyTorch but unallocated."

func rawLines(text string) (list []rawLine) {
	for i, l := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		list = append(list, rawLine{i + 1, l})
	}
	return list
}

func wrapped(text string, width int, before string) string {
	var b strings.Builder
	for len(text) > width {
		b.WriteString(before + text[:width] + "\n")
		text = text[width:]
	}
	return b.String() + before + text + "\n"
}

// TestLinesOfTheirOwn: rows of a table, lines of a counter and marks are no rest of the line before,
// though they are as long as it.
func TestLinesOfTheirOwn(t *testing.T) {
	for name, text := range map[string]string{
		"counter": "Memory usage (cuda): cur 1.9GB peak 15.1GB\nMemory usage (cuda): cur 2.0GB peak 15.1GB\nMemory usage (cuda): cur 2.1GB peak 15.1GB\n",
		"label":   "err:   Heap 0: 326 MB allocated, 8001 MB budget, 8192 MB total\nerr:   Heap 1: 472 MB allocated, 9030 MB budget, 9030 MB total\nerr:   Heap 2: 172 MB allocated, 1030 MB budget, 1030 MB total\n",
		"table":   "| 22%   40C    P8    16W / 250W |    100MiB / 12205MiB |      1%      Default |\n| 23%   41C    P8    17W / 250W |    101MiB / 12205MiB |      1%      Default |\n",
		"mark":    "F0412 10:11:12.123456 77 net.cpp:9] Check failed: error == 0 out of memory\n*** Check failure stack trace: ***\nAborted (core dumped) in the end of it\n",
	} {
		if got := passages(rawLines(text)); len(got) != strings.Count(text, "\n") {
			t.Errorf("%s: %d texts: %+v", name, len(got), got)
		}
	}
}

// TestWrappedLinesAreJoined: at every width of a page, with and without a prefix.
func TestWrappedLinesAreJoined(t *testing.T) {
	for _, before := range []string{"", "> ", "[rank0]: ", "2026-03-05T10:11:12.345678Z stderr F "} {
		for width := 60; width <= 200; width++ {
			if torchLine[width-1] == '.' || torchLine[width-2:width] == ". " {
				continue // behind a sentence nothing tells a break from an end
			}
			got := passages(rawLines(wrapped(torchLine, width, before)))
			if len(got) != 1 || got[0].Text != torchLine {
				t.Fatalf("%q, %d: %+v", before, width, got)
			}
		}
	}
}

// TestLinesOfALogAreNotJoined: lines that begin as loggers begin them stay apart.
func TestLinesOfALogAreNotJoined(t *testing.T) {
	text := strings.Repeat("2000-01-01 00:00:00.000000: E cuda_driver.cc:924] failed to allocate 2.44G (2617515264 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY\n", 4)
	if got := passages(rawLines(text)); len(got) != 4 {
		t.Errorf("%d passages: %+v", len(got), got)
	}
}

// TestUnescaped: what chats, pages and collectors make of a line.
func TestUnescaped(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{`CUDA\_ERROR\_OUT\_OF\_MEMORY`, "CUDA_ERROR_OUT_OF_MEMORY"},
		{"a &lt;b&gt; &amp; c", "a <b> & c"},
		{"\x1b[1;31mred\x1b[0m text", "red text"},
		{"a\u00a0b", "a b"},
		{"`code`", "code"},
		{`{"log":"out of memory\n","stream":"stderr"}`, "out of memory|{,\"stream\":\"stderr\"}"},
		{`{"log":"cut \"of`, `cut "of|`},
		{`b'one\ntwo'`, "b'one|two'"},
		{"\xff\xfe bytes", "? bytes"},
	} {
		texts, beside := unescaped(tt.text, 0)
		got := strings.Join(append(texts, beside...), "|")
		if !strings.HasSuffix(got, tt.want) && !strings.Contains(got, strings.TrimSuffix(tt.want, "|")) {
			t.Errorf("%q: %q, want %q", tt.text, got, tt.want)
		}
	}
}

// TestDecoded: UTF-8 and UTF-16, with half a letter at the end.
func TestDecoded(t *testing.T) {
	for name, tt := range map[string]struct{ in, want string }{
		"plain":         {"abc", "abc"},
		"empty":         {"", ""},
		"a mark alone":  {"\xef\xbb\xbf", ""},
		"UTF-8":         {"\xef\xbb\xbfabc", "abc"},
		"little endian": {"\xff\xfea\x00b\x00", "ab"},
		"big endian":    {"\xfe\xff\x00a\x00b", "ab"},
		"a pair":        {"\xff\xfe\x3d\xd8\x00\xde", "\U0001f600"},
		"half a pair":   {"\xff\xfe\x3d\xd8", "\ufffd"},
		"an odd byte":   {"\xff\xfea\x00b", "a"},
	} {
		got, err := io.ReadAll(Decoded(strings.NewReader(tt.in)))
		if err != nil || string(got) != tt.want {
			t.Errorf("%s: %q, %v, want %q", name, got, err, tt.want)
		}
	}
}
