package balance

import (
	"cmp"
	"gpumem/doctor/quantity"
	"slices"
	"strings"
	"testing"
)

func TestCardTotals(t *testing.T) {
	tests := []struct {
		name        string
		least, most float64 // GiB, to a hundredth; 0: not known
	}{
		{"Tesla K80", 11.165, 11.173},
		{"Tesla T4", 14.555, 15.000},
		{"NVIDIA T4", 14.555, 15.000},
		{"Tesla V100-SXM2-16GB", 15.745, 16.000},
		{"Tesla V100S-PCIE-32GB", 31.715, 32.000},
		{"Tesla V100-SXM2", 15.745, 32.000},
		{"NVIDIA A100-SXM4-40GB", 39.375, 40.000},
		{"NVIDIA A100 80GB PCIe", 79.135, 80.000},
		{"NVIDIA A100", 39.375, 80.000},
		{"NVIDIA A10G", 21.975, 22.488},
		{"NVIDIA H100 80GB HBM3", 79.095, 79.647},
		{"NVIDIA H100 PCIe", 79.095, 79.647},
		{"NVIDIA H100 NVL", 92.783, 93.584},
		{"NVIDIA GH200 480GB", 94.495, 95.577},
		{"NVIDIA B300 SXM6 AC", 267.695, 268.594},
		{"NVIDIA GeForce RTX 3080", 9.635, 12.000},
		{"NVIDIA GeForce RTX 3080 Laptop GPU", 7.785, 16.000},
		{"NVIDIA GeForce RTX 4060 Ti", 7.625, 15.996},
		{"NVIDIA GeForce RTX 4060 Ti 16GB", 15.595, 15.996},
		{"NVIDIA GeForce RTX 3060 12GB", 11.625, 12.000},
		{"NVIDIA GeForce RTX 2070 with Max-Q Design", 7.785, 8.000},
		{"GeForce GTX 1060 6GB", 5.925, 6.000},
		{"GeForce GTX 1060", 2.945, 6.000},
		{"NVIDIA RTX 6000 Ada Generation", 47.265, 47.988},
		{"Quadro RTX 6000", 23.199, 24.000},
		{"NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", 94.965, 95.593},

		{"NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0, 0},
		{"GRID A100-10C", 0, 0},
		{"NVIDIA GeForce RTX 4080 Mobile", 0, 0},
		{"NVIDIA A100-SXM4-20GB", 0, 0},
		{"NVIDIA GB10", 0, 0},
		{"", 0, 0},
	}
	near := func(got uint64, want float64) bool {
		d := float64(got)/quantity.Gib - want
		return -0.001 < d && d < 0.001
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			least, most, ok := cardTotals(tt.name)
			if ok != (tt.most > 0) || !near(least, tt.least) || !near(most, tt.most) {
				t.Errorf("got %.3f to %.3f GiB, %v", float64(least)/quantity.Gib, float64(most)/quantity.Gib, ok)
			}
		})
	}
}

func TestCardKey(t *testing.T) {
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
		if key, size := cardKey(tt.name); key != tt.key || size != tt.size {
			t.Errorf("%q: %q and %q, want %q and %q", tt.name, key, size, tt.key, tt.size)
		}
	}
}

// TestCardsOf: which cards a name may mean, by their size.
func TestCardsOf(t *testing.T) {
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
		for _, c := range cardsOf(tt.name) {
			got = append(got, c.gib())
		}
		slices.SortFunc(got, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
		if got := strings.Join(got, " "); got != tt.gib {
			t.Errorf("%q: %q, want %q", tt.name, got, tt.gib)
		}
	}
}

func TestCardLeast(t *testing.T) {
	for _, tt := range []struct {
		name string
		card card
		want uint64
	}{
		{"seen", card{smi: 16384, cuda: []float64{15.77, 15.505, 16}}, 31 * quantity.Gib / 2},
		{"small, not seen", card{smi: 8192}, (8192 - 409) * quantity.Mib},
		{"large, not seen", card{smi: 81920}, (81920 - 820) * quantity.Mib},
	} {
		if got := tt.card.least(); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

// TestCards checks each row: it is found by its own name, and no total is above
// nvidia-smi's or more than a tenth below it.
func TestCards(t *testing.T) {
	for _, c := range cards {
		least, most, ok := cardTotals(c.name)
		if !ok || least > c.least() || most < c.smi<<20 {
			t.Errorf("%s: %d to %d, %v", c.name, least, most, ok)
		}
		for _, total := range c.cuda {
			if mib := total * 1024; mib > float64(c.smi)+6 || mib < 0.9*float64(c.smi) {
				t.Errorf("%s: %.2f GiB of %d MiB", c.name, total, c.smi)
			}
		}
		if c.smi<<20 >= largestGPU {
			t.Errorf("%s is larger than the largest", c.name)
		}
		if name, ok := unifiedTotal(c.smi << 20); ok {
			t.Errorf("%s has the total of %s", c.name, name)
		}
	}
}

func TestUnified(t *testing.T) {
	for _, tt := range []struct {
		gib  float64
		name string
	}{{119.18, "GB10"}, {119.70, "GB10"}, {121.69, "GB10"}, {122.8, "Jetson AGX Thor"}, {61.4, "Jetson AGX Orin 64GB"}, {79.2, ""}, {139.8, ""}, {63.42, ""}, {0, ""}} {
		if name, ok := unifiedTotal(uint64(tt.gib * quantity.Gib)); name != tt.name || ok != (name != "") {
			t.Errorf("%.2f GiB: %q", tt.gib, name)
		}
	}
	for name, want := range map[string]bool{"NVIDIA GB10": true, "Orin (nvgpu)": true, "NVIDIA Thor": true, "NVIDIA Tegra X2": true, "NVIDIA GB200": false, "NVIDIA GB100": false, "": false} {
		if unifiedName(name) != want {
			t.Errorf("%q is %v", name, !want)
		}
	}
}
