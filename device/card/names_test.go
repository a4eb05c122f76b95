package card_test

import (
	"testing"

	"gpumem/device/card"
)

// TestDriverName: as nvidia-smi -L prints it.
func TestDriverName(t *testing.T) {
	for name, want := range map[string]string{
		"T4": "Tesla T4", "K80": "Tesla K80", "P100-16GB": "Tesla P100-PCIE-16GB", "V100-32GB": "Tesla V100-SXM2-32GB",
		"A100-80GB": "NVIDIA A100-SXM4-80GB", "H100": "NVIDIA H100 80GB HBM3", "H100 NVL": "NVIDIA H100 NVL", "L4": "NVIDIA L4", "A10G": "NVIDIA A10G",
		"H200": "NVIDIA H200", "B200": "NVIDIA B200", "GTX 1080 Ti": "NVIDIA GeForce GTX 1080 Ti", "RTX 4090": "NVIDIA GeForce RTX 4090",
		"RTX 4070 Ti SUPER": "NVIDIA GeForce RTX 4070 Ti SUPER", "RTX 3080 Laptop 16GB": "NVIDIA GeForce RTX 3080 Laptop GPU",
		"TITAN RTX": "NVIDIA TITAN RTX", "RTX A6000": "NVIDIA RTX A6000", "RTX 6000 Ada": "NVIDIA RTX 6000 Ada Generation", "Quadro RTX 8000": "Quadro RTX 8000",
	} {
		c, err := card.Find(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := c.DriverName(); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestDriverNameMeansTheCard: each is read as the card that it is of, where logs have it.
func TestDriverNameMeansTheCard(t *testing.T) {
	for _, c := range card.All() {
		means := false
		for _, other := range card.Named(c.DriverName()) {
			means = means || other.Name == c.Name
		}
		if !means {
			t.Errorf("%s: %s means %v", c.Name, c.DriverName(), card.Named(c.DriverName()))
		}
	}
}
