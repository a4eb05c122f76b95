package card

import (
	"regexp"
	"strings"
)

// driverNames are the driver's names of cards that follow no rule, as nvidia-smi -L prints them. Of a card with
// several forms it is the most common one.
var driverNames = map[string]string{
	"p100 12gb": "Tesla P100-PCIE-12GB", "p100 16gb": "Tesla P100-PCIE-16GB",
	"v100 16gb": "Tesla V100-SXM2-16GB", "v100 32gb": "Tesla V100-SXM2-32GB",
	"a100 40gb": "NVIDIA A100-SXM4-40GB", "a100 64gb": "NVIDIA A100-SXM-64GB", "a100 80gb": "NVIDIA A100-SXM4-80GB",
	"a800 80gb": "NVIDIA A800-SXM4-80GB", "h100 80gb": "NVIDIA H100 80GB HBM3",
	"gv100": "Quadro GV100", "p5000": "Quadro P5000", "p6000": "Quadro P6000",
	"rtx 4000": "Quadro RTX 4000", "rtx 5000": "Quadro RTX 5000", "rtx 6000": "Quadro RTX 6000", "rtx 8000": "Quadro RTX 8000",
}

var (
	ofTesla      = regexp.MustCompile(`^(?:[km]\d|p\d|t4$)`) // before the name NVIDIA stood before it
	ofGeForce    = regexp.MustCompile(`^(?:gtx|rtx) (?:titan|\d{3,4})\b`)
	ofGeneration = regexp.MustCompile(` ada$`)
	inTitle      = strings.NewReplacer("TI", "Ti", "LAPTOP", "Laptop GPU", "ADA", "Ada Generation")
)

// DriverName returns the name that the driver has for the card, such as "NVIDIA A100-SXM4-80GB". Programs go by it.
func (c Card) DriverName() string {
	if name, ok := driverNames[c.Name]; ok {
		return name
	}
	var words []string
	for _, w := range strings.Fields(c.Title()) {
		if w != "TITAN" {
			w = inTitle.Replace(w)
		}
		words = append(words, w)
	}
	title := strings.Join(words, " ")
	switch {
	case ofTesla.MatchString(c.Name):
		return "Tesla " + title
	case ofGeForce.MatchString(c.Name) && !ofGeneration.MatchString(c.Name):
		return "NVIDIA GeForce " + title
	}
	return "NVIDIA " + title
}
