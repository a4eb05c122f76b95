package card

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestKey(t *testing.T) {
	for _, tt := range []struct{ name, key, size string }{
		{"", "", ""},
		{"NVIDIA GeForce RTX 4090", "rtx 4090", ""},
		{"GeForce RTX 4060 Ti 16GB", "rtx 4060 ti", "16"},
		{"NVIDIA A100-SXM4-80GB", "a100", "80"},
		{"NVIDIA A100 80GB PCIe", "a100", "80"},
		{"Tesla V100S-PCIE-32GB", "v100", "32"},
		{"NVIDIA RTX 2000 Ada Generation", "rtx 2000 ada", ""},
		{"NVIDIA GeForce RTX 2070 with Max-Q Design", "rtx 2070", ""},
		{"a100 64gb", "a100", "64"},
		{"NVIDIA", "", ""},
	} {
		if k, size := key(tt.name); k != tt.key || size != tt.size {
			t.Errorf("%q: %q and %q, want %q and %q", tt.name, k, size, tt.key, tt.size)
		}
	}
}

// TestNamed: which cards a name may mean, by their size.
func TestNamed(t *testing.T) {
	for _, tt := range []struct{ name, gib string }{
		{"NVIDIA A10", "22"}, // of 24, less ECC
		{"NVIDIA A100-SXM4-40GB", "40"},
		{"NVIDIA A100-SXM4-80GB", "80"},
		{"Tesla V100-SXM2", "16 32"},
		{"NVIDIA GeForce RTX 4060 Ti", "8 16"},
		{"NVIDIA GeForce RTX 4060 Ti 16GB", "16"},
		{"NVIDIA A100-SXM4-20GB", ""},
		{"NVIDIA", ""},
		{"", ""},
	} {
		var got []string
		for _, c := range Named(tt.name) {
			got = append(got, c.gib())
		}
		slices.SortFunc(got, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
		if got := strings.Join(got, " "); got != tt.gib {
			t.Errorf("%q: %q, want %q", tt.name, got, tt.gib)
		}
	}
}

func TestLeast(t *testing.T) {
	for _, tt := range []struct {
		name string
		card Card
		want uint64
	}{
		{"seen", Card{SMI: 16384, Seen: []float64{15.77, 15.505, 16}}, 31 << 29},
		{"small, not seen", Card{SMI: 8192}, (8192 - 409) << 20},
		{"large, not seen", Card{SMI: 81920}, (81920 - 820) << 20},
	} {
		if got := tt.card.Least(); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestSmallest: the card takes the bytes, and none that is smaller does.
func TestSmallest(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes uint64
		want  string // "" where none has as much
	}{
		{"a little", 1, "gtx 1650"},
		{"more than a T4", 15_640_000_000, "rtx 2000 ada"},
		{"all of an H200", 139 << 30, "h200"},
		{"more than any", 300 << 30, ""},
	} {
		c, ok := Smallest(tt.bytes)
		if c.Name != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: %q, %v, want %q", tt.name, c.Name, ok, tt.want)
		}
	}
	for bytes := uint64(1); bytes < 270<<30; bytes += 1 << 30 {
		got, ok := Smallest(bytes)
		if !ok || got.Least() < bytes || got.CCMajor < 7 {
			t.Fatalf("%d bytes: %+v, %v", bytes, got, ok)
		}
		for _, c := range All() {
			if c.CCMajor >= 7 && c.Least() >= bytes && c.Least() < got.Least() {
				t.Errorf("%d bytes: %s, and %s is smaller", bytes, got.Name, c.Name)
			}
		}
	}
}

func TestFind(t *testing.T) {
	for _, tt := range []struct{ name, want, wrong string }{
		{name: "T4", want: "t4"},
		{name: "t4 16gb", want: "t4"},
		{name: "L4", want: "l4"},
		{name: "A10G", want: "a10g"},
		{name: "V100-16GB", want: "v100 16gb"},
		{name: "A100-40GB", want: "a100 40gb"},
		{name: "A100-80GB", want: "a100 80gb"},
		{name: "NVIDIA A100-SXM4-80GB", want: "a100 80gb"},
		{name: "H100-80GB", want: "h100 80gb"},
		{name: "H100", want: "h100 80gb"},
		{name: "h100 nvl", want: "h100 nvl"},
		{name: "H200", want: "h200"},
		{name: "B200", want: "b200"},
		{name: "RTX 4090", want: "rtx 4090"},
		{name: "rtx4090", want: "rtx 4090"},
		{name: "RTX-4060-Ti-16GB", want: "rtx 4060 ti"},
		{name: "A6000", want: "rtx a6000"},
		{name: "4090", want: "rtx 4090"},
		{name: "1080-ti", want: "gtx 1080 ti"},
		{name: "6000 Ada", want: "rtx 6000 ada"},
		{name: "3080", wrong: `"RTX 3080" is several cards: RTX 3080-10GB, RTX 3080-12GB`},
		{name: "A100", wrong: `"A100" is several cards: A100-40GB, A100-64GB, A100-80GB`},
		{name: "A100-90GB", wrong: `there is no "A100-90GB"; there are A100-40GB, A100-64GB, A100-80GB`},
		{name: "RTX 4099", wrong: `no card is known by the name "RTX 4099"; did you mean RTX 4090?`},
		{name: "H10O", wrong: `no card is known by the name "H10O"; did you mean H100?`},
		{name: "Radeon", wrong: `no card is known by the name "Radeon"; known are T4, L4, A100-80GB, H100, RTX 4090 and others`},
		{name: "", wrong: `no card is known by the name ""; known are T4, L4, A100-80GB, H100, RTX 4090 and others`},
	} {
		c, err := Find(tt.name)
		if c.Name != tt.want || fmt.Sprint(err) != cmp.Or(tt.wrong, "<nil>") {
			t.Errorf("%q: %q, %v", tt.name, c.Name, err)
		}
	}
}

// TestCards: each row has a capability and a size, and is found by what it is shown as.
func TestCards(t *testing.T) {
	for _, c := range All() {
		if c.CCMajor < 3 || c.CCMajor > 12 || c.SMI < 4096-1024 || c.Least() == 0 {
			t.Errorf("%+v", c)
		}
		k, _ := key(c.Name)
		if got, err := Find(k + "-" + c.gib() + "GB"); err != nil || got.SMI != c.SMI {
			t.Errorf("%s: %+v, %v", c.Name, got, err)
		}
	}
}
