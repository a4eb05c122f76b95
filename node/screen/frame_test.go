package screen_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"gpumem/internal/test/machinetest"
	"gpumem/node/internal/history"
	"gpumem/node/internal/view"
	"gpumem/node/machine"
	"gpumem/node/screen"
)

var update = flag.Bool("update", false, "write the frames in testdata anew")

// shared returns a snapshot of a GPU of 24 GiB at a second: one program in a
// lease, one that grows, one that takes memory and frees it again in each second, two
// under another lease, a name in wide characters, and memory without a program.
func shared(second int) *machine.Snapshot {
	now := machinetest.Now.Add(time.Duration(second) * time.Second)
	gone := false
	one, two := &machine.Lease{Bytes: 6 << 30}, &machine.Lease{Bytes: 3 << 30, Holder: 104}
	d := machine.Device{Spec: "cuda:0", Name: "NVIDIA RTX 4090", Total: 24 << 30, Leased: 9 << 30, Waiting: []machine.Waiting{}}
	used := uint64(600 << 20) // without a program
	add := func(pid int, mib int, l *machine.Lease, user string, command ...string) {
		bytes := uint64(mib) << 20
		used += bytes
		started := machinetest.Now.Add(time.Duration(pid-400) * time.Second)
		d.Programs = append(d.Programs, machine.Program{PID: pid, Start: uint64(pid), Name: "python3", Kind: "compute", Used: &bytes, Lease: l, Frameworks: []string{},
			ParentGone: &gone, User: user, Command: command, Started: &started})
		if l != nil {
			l.Programs++
			l.InUse += bytes
		}
	}
	add(101, 5120, one, "ann", "/usr/bin/python3", "train.py", "--config", "base.yaml")
	add(102, 1024+4*second, nil, "bob", "python3", "-m", "leaky.worker")
	add(103, 2048+1500*(second%2), nil, "ann", "./trainer")
	add(104, 900, two, "ann", "torchrun", "x.py")
	add(105, 700, two, "ann", "torchrun", "x.py")
	add(106, 300, nil, "chen", "python3", "训练模型.py")
	free := d.Total - used
	d.Used, d.Free = &used, &free
	view.SortPrograms(&d)
	return &machine.Snapshot{Time: now, Devices: []machine.Device{d}}
}

// after returns the last of the snapshots of some seconds, and their history.
func after(seconds int, snapshot func(second int) *machine.Snapshot) (*machine.Snapshot, *history.History) {
	h := history.New(history.Keep)
	var s *machine.Snapshot
	for n := range seconds {
		s = snapshot(n)
		h.See(s, nil)
	}
	return s, h
}

func viewOf(width, height int, change func(*screen.View)) screen.View {
	v := screen.View{Width: width, Height: height, Every: time.Second, By: history.ByMemory}
	if change != nil {
		change(&v)
	}
	return v
}

// TestFrames compares screens with the files in testdata, where they can be looked at.
func TestFrames(t *testing.T) {
	mixed := func(int) *machine.Snapshot { return machinetest.Example() }
	none := func(int) *machine.Snapshot {
		return &machine.Snapshot{Time: machinetest.Now, Notes: []string{"no usable NVIDIA driver: libcuda.so.1: cannot open shared object file"}}
	}
	ended := func(second int) *machine.Snapshot {
		s := shared(second)
		if second > 200 {
			d := &s.Devices[0]
			*d.Used -= d.Programs[0].Holds()
			d.Programs = d.Programs[1:]
		}
		return s
	}
	for _, tt := range []struct {
		name     string
		seconds  int
		snapshot func(int) *machine.Snapshot
		view     screen.View
	}{
		{"80x24", 300, shared, viewOf(80, 24, nil)},
		{"40x12", 300, shared, viewOf(40, 12, nil)},
		{"20x6", 300, shared, viewOf(20, 6, nil)},
		{"200x60", 300, shared, viewOf(200, 60, nil)},
		{"colours-100x24", 300, shared, viewOf(100, 24, func(v *screen.View) { v.Colours = screen.Colours256 })},
		{"colours16-100x24", 300, shared, viewOf(100, 24, func(v *screen.View) { v.Colours = screen.Colours16 })},
		{"ascii-80x24", 300, shared, viewOf(80, 24, func(v *screen.View) { v.ASCII = true })},
		{"first-look-80x24", 1, shared, viewOf(80, 24, nil)},
		{"a-program-ended-80x24", 400, ended, viewOf(80, 24, nil)},
		{"by-growth-80x24", 300, shared, viewOf(80, 24, func(v *screen.View) { v.By = history.ByGrowth })},
		{"filter-80x24", 300, shared, viewOf(80, 24, func(v *screen.View) { v.Filter = "ANN" })},
		{"typing-80x24", 300, shared, viewOf(80, 24, func(v *screen.View) { v.Filter, v.Typing = "nothing", true })},
		{"help-80x24", 300, shared, viewOf(80, 24, func(v *screen.View) { v.Help = true })},
		{"help-40x40", 300, shared, viewOf(40, 40, func(v *screen.View) { v.Help = true })},
		{"several-devices-100x40", 1, mixed, viewOf(100, 40, nil)},
		{"scrolled-60x12", 1, mixed, viewOf(60, 12, func(v *screen.View) { v.Down = 5 })},
		{"failed-60x9", 300, shared, viewOf(60, 9, func(v *screen.View) { v.Err = errors.New("the file\nis gone") })},
		{"no-driver-60x9", 1, none, viewOf(60, 9, nil)},
		{"turns-60x24", 1, byTurns, viewOf(60, 24, nil)},
		{"turns-140x24", 1, byTurns, viewOf(140, 24, nil)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, h := after(tt.seconds, tt.snapshot)
			got := screen.Frame(s, h, tt.view)
			if plain := ansi.Strip(got); tt.view.Colours != screen.NoColours {
				same := tt.view
				same.Colours = screen.NoColours
				want := screen.Frame(s, h, same)
				if diff := cmp.Diff(strings.ReplaceAll(strings.Split(want, "\n")[2], "=", " "), strings.TrimRight(strings.Split(plain, "\n")[2], " ")); diff != "" {
					t.Errorf("without its colours the bar has another text: %s", diff)
				}
				got = strings.NewReplacer("\x1b[m", "}", "\x1b[", "{").Replace(got) // readable
			}
			got += "\n"
			file := filepath.Join("testdata", tt.name+".txt")
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDocument: the screen in docs/live.md is the one that is drawn.
func TestDocument(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "live.md"))
	if err != nil {
		t.Fatal(err)
	}
	s, h := after(300, shared)
	lines := strings.Split(screen.Frame(s, h, viewOf(80, 24, nil)), "\n")
	if want := strings.Join(lines[:16], "\n") + "\n...\n" + lines[23] + "\n"; !strings.Contains(string(page), want) {
		t.Errorf("docs/live.md lacks\n%s", want)
	}
}

// TestFrameFits: whatever the size, the names and the figures, there is no line too many
// and none that is too wide, and the bar is as wide as the screen.
func TestFrameFits(t *testing.T) {
	words := []string{"", "a", "python3", "训练模型.py", "e\u0301", "👩‍💻", "x\x1b[31m\ny", strings.Repeat("long", 50), "\u202e\u200b", "\xff"}
	rapid.Check(t, func(t *rapid.T) {
		h := history.New(rapid.IntRange(1, 50).Draw(t, "keep"))
		var s *machine.Snapshot
		for n := range rapid.IntRange(1, 5).Draw(t, "looks") {
			s = &machine.Snapshot{Time: machinetest.Now.Add(time.Duration(n*rapid.IntRange(1, 100).Draw(t, "seconds")) * time.Second)}
			for k := range rapid.IntRange(0, 3).Draw(t, "devices") {
				d := machine.Device{Spec: fmt.Sprintf("cuda:%d", k), Name: rapid.SampledFrom(words).Draw(t, "name"), Total: rapid.Uint64().Draw(t, "total")}
				if rapid.Bool().Draw(t, "known") {
					used := rapid.Uint64Max(d.Total).Draw(t, "used")
					free := d.Total - used
					d.Used, d.Free = &used, &free
				}
				l := &machine.Lease{Bytes: rapid.Uint64Max(1<<40).Draw(t, "lease")}
				for range rapid.IntRange(0, 70).Draw(t, "programs") {
					p := machine.Program{PID: rapid.IntRange(0, 99).Draw(t, "pid"), User: rapid.SampledFrom(words).Draw(t, "user"), Kind: "compute",
						Command: []string{rapid.SampledFrom(words).Draw(t, "first"), rapid.SampledFrom(words).Draw(t, "second")}}
					if rapid.Bool().Draw(t, "told") {
						holds := rapid.Uint64Max(1<<40).Draw(t, "holds")
						p.Used = &holds
					}
					if rapid.Bool().Draw(t, "leased") {
						p.Lease = l
					}
					d.Programs = append(d.Programs, p)
				}
				s.Devices = append(s.Devices, d)
			}
			h.See(s, nil)
		}
		v := screen.View{
			Width: rapid.IntRange(1, 220).Draw(t, "width"), Height: rapid.IntRange(1, 70).Draw(t, "height"),
			Colours: screen.Palette(rapid.IntRange(0, 2).Draw(t, "colours")), ASCII: rapid.Bool().Draw(t, "ASCII"),
			Every:  time.Duration(rapid.Int64Range(1, int64(24*time.Hour)).Draw(t, "every")),
			By:     rapid.SampledFrom([]history.By{history.ByMemory, history.ByPID, history.ByAge, history.ByGrowth, history.ByName}).Draw(t, "by"),
			Typing: rapid.Bool().Draw(t, "typing"), Help: rapid.Bool().Draw(t, "help"), Filter: rapid.SampledFrom(words).Draw(t, "filter"),
			Down: rapid.IntRange(-1, 100).Draw(t, "down"),
		}
		frame := screen.Frame(s, h, v)
		lines := strings.Split(ansi.Strip(frame), "\n")
		if len(lines) > v.Height || v.Height >= 2 && len(lines) != v.Height {
			t.Fatalf("%d lines on a screen of %d", len(lines), v.Height)
		}
		for _, l := range lines {
			if n := ansi.StringWidth(l); n > v.Width {
				t.Fatalf("%d cells on a screen of %d: %q", n, v.Width, l)
			}
			if strings.ContainsAny(l, "\x1b\r\t\u202e") {
				t.Fatalf("a control character: %q", l)
			}
		}
		if again := screen.Frame(s, h, v); again != frame {
			t.Fatalf("the same is drawn otherwise:\n%s\n%s", frame, again)
		}
	})
}

// TestBarIsAsWideAsTheScreen: and each program has a cell if there are enough.
func TestBarIsAsWideAsTheScreen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.SliceOf(rapid.Uint64Max(1<<40)).Draw(t, "bytes")
		room := rapid.IntRange(1, 100).Draw(t, "room")
		var total uint64
		parts := 0
		for _, b := range bytes {
			total += b
			if b > 0 {
				parts++
			}
		}
		sum := 0
		for i, n := range screen.Cells(bytes, total, room) {
			if n < 0 || bytes[i] == 0 && n > 0 || bytes[i] > 0 && n == 0 && parts <= room {
				t.Fatalf("%d cells for %d of %d", n, bytes[i], total)
			}
			sum += n
		}
		if want := min(parts, 1) * room; sum != want {
			t.Fatalf("%d cells of %d", sum, want)
		}
	})
}

// TestNothingMovesWithoutCause: a program that frees and takes memory in each second
// changes figures, but no row's and no column's place.
func TestNothingMovesWithoutCause(t *testing.T) {
	h := history.New(history.Keep)
	places := func(frame string) (list []string) {
		for _, l := range strings.Split(frame, "\n") {
			for _, word := range []string{"train.py --", "trainer", "torchrun x.py", "训练模型.py"} {
				if at := strings.Index(l, word); at >= 0 && !strings.HasPrefix(l, "A train") {
					list = append(list, fmt.Sprintf("%s at %d", word, ansi.StringWidth(l[:at])))
					break
				}
			}
		}
		return list
	}
	var want []string
	for second := range 100 {
		s := shared(second)
		h.See(s, nil)
		got := places(screen.Frame(s, h, viewOf(120, 30, nil)))
		// Alone, the one whose figure changes its length.
		got = append(got, places(screen.Frame(s, h, viewOf(120, 30, func(v *screen.View) { v.Filter = "103" })))...)
		if second == 1 { // from then on it is known that the trainer has its peaks
			want = got
		}
		if diff := cmp.Diff(want, got); diff != "" && second > 1 {
			t.Fatalf("second %d: %s", second, diff)
		}
	}
	if len(want) != 6 {
		t.Fatalf("%q", want)
	}
}

func TestUTF8Locale(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  map[string]string
		want bool
	}{
		{"none", nil, true},
		{"by LANG", map[string]string{"LANG": "en_US.UTF-8"}, true},
		{"as utf8", map[string]string{"LC_CTYPE": "C.utf8", "LANG": "C"}, true},
		{"C over UTF-8", map[string]string{"LC_ALL": "C", "LANG": "en_US.UTF-8"}, false},
		{"Latin 1", map[string]string{"LANG": "de_DE.ISO-8859-1"}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := screen.UTF8Locale(func(name string) string { return tt.env[name] }); got != tt.want {
				t.Error(got)
			}
		})
	}
}

func ExampleFrame() {
	s, h := after(60, shared)
	frame := screen.Frame(s, h, screen.View{Width: 60, Height: 8, Every: time.Second, By: history.ByMemory})
	fmt.Println(strings.Split(frame, "\n")[2])
	// Output: A train.py ==╱╱B==C traine D=E=╱╱╱F▒· 9.43 GiB ·············
}
