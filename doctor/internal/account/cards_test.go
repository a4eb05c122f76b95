package account

import (
	"testing"

	"gpumem/device/card"
	"gpumem/doctor/internal/statement"
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
		d := float64(got)/statement.Gib - want
		return -0.001 < d && d < 0.001
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			least, most, ok := cardTotals(tt.name)
			if ok != (tt.most > 0) || !near(least, tt.least) || !near(most, tt.most) {
				t.Errorf("got %.3f to %.3f GiB, %v", float64(least)/statement.Gib, float64(most)/statement.Gib, ok)
			}
		})
	}
}

// TestCards checks each row: it is found by its own name, and no total is above
// nvidia-smi's or more than a tenth below it.
func TestCards(t *testing.T) {
	for _, c := range card.All() {
		least, most, ok := cardTotals(c.Name)
		if !ok || least > c.Least() || most < c.SMI<<20 {
			t.Errorf("%s: %d to %d, %v", c.Name, least, most, ok)
		}
		for _, total := range c.Seen {
			if mib := total * 1024; mib > float64(c.SMI)+6 || mib < 0.9*float64(c.SMI) {
				t.Errorf("%s: %.2f GiB of %d MiB", c.Name, total, c.SMI)
			}
		}
		if c.SMI<<20 >= LargestGPU {
			t.Errorf("%s is larger than the largest", c.Name)
		}
		if name, ok := UnifiedTotal(c.SMI << 20); ok {
			t.Errorf("%s has the total of %s", c.Name, name)
		}
	}
}

func TestUnified(t *testing.T) {
	for _, tt := range []struct {
		gib  float64
		name string
	}{{119.18, "GB10"}, {119.70, "GB10"}, {121.69, "GB10"}, {122.8, "Jetson AGX Thor"}, {61.4, "Jetson AGX Orin 64GB"}, {79.2, ""},
		{139.8, ""}, {63.42, ""}, {0, ""}} {
		if name, ok := UnifiedTotal(uint64(tt.gib * statement.Gib)); name != tt.name || ok != (name != "") {
			t.Errorf("%.2f GiB: %q", tt.gib, name)
		}
	}
	for name, want := range map[string]bool{"NVIDIA GB10": true, "Orin (nvgpu)": true, "NVIDIA Thor": true, "NVIDIA Tegra X2": true,
		"NVIDIA GB200": false, "NVIDIA GB100": false, "": false} {
		if unifiedName(name) != want {
			t.Errorf("%q is %v", name, !want)
		}
	}
}
