// Package vocabulary knows the names of errors that programs for GPUs print: what each is
// about, who says it, and whether later errors follow from it. The table is table.tsv, whose
// head explains its columns; sources.txt has the public headers that it is from, and the
// command remake renews it from them.
//
// Find looks a line up. It is one pass:
//
//  1. The line is cut into words, and each is looked up in one map, whatever its case.
//  2. A word may be a name, the first word of a text, or a word that tells a family: "errno",
//     "CUresult", a call such as clCreateBuffer.
//  3. A number counts only where its family is told right before it, as in "CUDA error 2".
//  4. At the end of the line the ambiguous are judged by the families that it tells: "out of
//     memory" is CUDA's or HIP's if it tells one of them, and of nobody in particular, the
//     family "common", if it tells none.
package vocabulary

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

// Family is whose name it is, such as CUresult.
type Family string

// Resource is what is short or used up.
type Resource string

// The resources. Memory is of the device or of the host: the row does not say.
const (
	NoResource   Resource = "none"
	Memory       Resource = "memory"
	DeviceMemory Resource = "device memory"
	HostMemory   Resource = "host memory"
	Pinned       Resource = "pinned"
	AddressSpace Resource = "address space"
	Handles      Resource = "handles"
	Sessions     Resource = "sessions"
	Disk         Resource = "disk"
	Files        Resource = "files"
	Processes    Resource = "processes"
	Count        Resource = "count"
)

// Layer is who says so.
type Layer string

// The layers. A limiter, such as HAMi, has no names: its words have numbers in them.
const (
	UnknownLayer Layer = "unknown" // words that programs of all layers write
	Driver       Layer = "driver"
	Runtime      Layer = "runtime"
	Library      Layer = "library"
	Framework    Layer = "framework"
	Engine       Layer = "engine"
	Scheduler    Layer = "scheduler"
	Kernel       Layer = "kernel"
	Limiter      Layer = "limiter"
)

// Kind is what a row is about.
type Kind string

// The kinds. AboutMemory is memory for sure and Open may be: another line decides, and
// the row's resource is what it is then. All others are not memory.
const (
	AboutMemory     Kind = "memory"
	Open            Kind = "open"
	AboutBusy       Kind = "busy"       // someone else has the device, or the node
	AboutLimit      Kind = "limit"      // a count other than memory is used up: see the resource
	AboutCode       Kind = "code"       // kernels for another card, PTX, a broken image
	AboutDriver     Kind = "driver"     // too old, or not the one that fits
	AboutDevice     Kind = "device"     // none, lost, a wrong ordinal, ECC
	AboutAddress    Kind = "address"    // an illegal or misaligned access
	AboutAssert     Kind = "assert"     // an assertion in a kernel
	AboutTimeout    Kind = "timeout"    //
	AboutLaunch     Kind = "launch"     // the shape or the registers of a launch
	AboutArgument   Kind = "argument"   // a wrong call
	AboutLibrary    Kind = "library"    // missing, or of the wrong version
	AboutDisk       Kind = "disk"       //
	AboutNetwork    Kind = "network"    //
	AboutKilled     Kind = "killed"     // from outside, whatever for
	AboutPermission Kind = "permission" //
	AboutOther      Kind = "other"      //
)

// Row is a name and what it means.
type Row struct {
	Family   Family
	Name     string
	Numbers  []int64  // the value of today, then older ones
	Texts    []string // what strerror returns for it
	Resource Resource
	Layer    Layer
	Sticky   bool // every later call of the context fails too
	Fatal    bool // not a warning, an event or a call that may be tried again
	Kind     Kind
	Source   string // an id of sources.txt
}

//go:embed table.tsv
var table string

// Rows returns the table. It is read at the first call and must not be changed.
var Rows = sync.OnceValue(func() []Row {
	rows, err := parse(table)
	if err != nil {
		panic(err) // the table is part of the program
	}
	return rows
})

const columns = 10

// parse reads a table.
func parse(text string) ([]Row, error) {
	rows := make([]Row, 0, strings.Count(text, "\n"))
	at := 0
	for line := range strings.Lines(text) {
		at++
		if strings.HasPrefix(line, "#") {
			continue
		}
		if n := strings.Count(line, "\t"); n != columns-1 {
			return nil, fmt.Errorf("vocabulary: line %d: %d columns, expected %d", at, n+1, columns)
		}
		var f [columns]string
		rest := strings.TrimSuffix(line, "\n")
		for i := range f {
			f[i], rest, _ = strings.Cut(rest, "\t")
		}
		r := Row{Family: Family(f[0]), Name: f[1], Resource: Resource(f[4]), Layer: Layer(f[5]), Kind: Kind(f[8]), Source: f[9],
			Sticky: f[6] == "yes", Fatal: f[7] == "yes"}
		if f[2] != "" {
			for number := range strings.SplitSeq(f[2], "|") {
				n, err := strconv.ParseInt(number, 0, 64)
				if err != nil {
					return nil, fmt.Errorf("vocabulary: line %d: %w", at, err)
				}
				r.Numbers = append(r.Numbers, n)
			}
		}
		if f[3] != "" {
			r.Texts = strings.Split(f[3], "|")
		}
		rows = append(rows, r)
	}
	return rows, nil
}
