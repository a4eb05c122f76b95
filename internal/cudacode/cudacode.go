// Package cudacode names the result codes of NVIDIA's driver and of NVML, says what each
// means, and what to do about it: the tables cuda.txt and nvml.txt.
package cudacode

import (
	_ "embed" // the tables
	"fmt"
	"strconv"
	"strings"

	"gpumem/internal/table"
)

// Code is one result.
type Code struct {
	Number int32
	Name   string // such as "CUDA_ERROR_OUT_OF_MEMORY"
	Text   string // the library's own
	Advice string // what to do about it; "" where that depends on the call
	Is     string // the error of package device that it stands for, "lost" for device.ErrLost; "" for none
	Fatal  bool   // every later call of the process fails as well
}

var (
	//go:embed cuda.txt
	cudaText string
	//go:embed nvml.txt
	nvmlText string
)

// CUDA returns the driver's, CUDA_SUCCESS among them.
func CUDA() []Code { return known("cuda.txt", cudaText) }

// NVML returns NVML's.
func NVML() []Code { return known("nvml.txt", nvmlText) }

// known reads a table that is part of the program.
func known(file, text string) []Code {
	list, err := read(file, text)
	if err != nil {
		panic(err) // a test rules it out
	}
	return list
}

// read reads the format of the tables. The error names the line.
func read(file, text string) (list []Code, err error) {
	entries, err := table.Read(file, text, "text", "advice", "is", "fatal")
	for _, e := range entries {
		number, name, _ := strings.Cut(e.Name, " ")
		n, err := strconv.ParseInt(number, 10, 32)
		if fatal := e.Fields["fatal"]; err != nil || name == "" || fatal != "" && fatal != "yes" {
			return nil, fmt.Errorf("%s:%d: %q: want NUMBER NAME, and fatal, if there, yes", file, e.Line, e.Name)
		}
		list = append(list, Code{int32(n), name, e.Fields["text"], e.Fields["advice"], e.Fields["is"], e.Fields["fatal"] != ""})
	}
	return list, err
}
