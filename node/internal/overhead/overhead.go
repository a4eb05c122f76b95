// Package overhead knows the GPU memory that a program holds outside of its
// framework's pool: the CUDA context, kernels and library handles, which no
// framework's limit counts. It is estimated by a table before a program's first run
// and measured in runs in which everything
// else is counted, see [Store].
package overhead

import (
	"strings"
	"sync"

	"gpumem/size"
)

// GPU describes a GPU as far as the table needs it.
type GPU struct {
	Total     uint64 // bytes, as CUDA reports them
	CCMajor   int    // compute capability, such as 9 of 9.0; 0: unknown
	Context   uint64 // bytes of a CUDA context; 0: by the table, or none where the GPU is simulated
	Simulated bool   // nothing is held outside of the pool but Context
}

// Part is one of the things that a program holds outside of its pool.
type Part struct {
	What   string // "context", or the first word of an entry of overhead.txt, such as "cuDNN"
	Bytes  uint64
	Source string // where the figure is from
}

// Of estimates what a program with one framework ("jax", "tensorflow", "pytorch",
// "cupy"; "cuda" for any other program) holds outside of the pool on each of the gpus GPUs that it uses, in bytes.
// The figures are for an ordinary program, on the large side: a CUDA context, the
// kernels that are loaded, one library handle of each kind. Captured graphs (about
// 25 MiB for each size, vllm-project/vllm#22897) and further communicators come
// on top. A [Store] has better figures once the program has run.
//
// On a simulated GPU it is the context alone, which is 0 unless g.Context is set.
func Of(framework string, g GPU, gpus int) uint64 {
	sum := uint64(0)
	for _, p := range Parts(framework, g, gpus) {
		sum += p.Bytes
	}
	return sum
}

// Parts returns the terms of the estimate that [Of] adds up, the context first.
func Parts(framework string, g GPU, gpus int) []Part {
	context := Part{"context", g.Context, "given by the caller"}
	switch {
	case g.Simulated && g.Context == 0:
		return nil
	case g.Simulated:
		return []Part{context}
	case g.Context == 0:
		const fit = "fits totals less free memory of eleven kinds of GPU, 7.0 to 12.0, within 20 %"
		context.Bytes, context.Source = contextBytes(g), "2 KiB for each thread that the GPU can hold, and 24 MiB: "+fit
	}
	list, seen := []Part{context}, map[string]bool{}
	for _, r := range figures().parts {
		if !seen[r.What] && r.isIn(framework, g, gpus) {
			seen[r.What] = true
			list = append(list, r.Part)
		}
	}
	return list
}

// Context returns the bytes of a CUDA context: of the first one of a process, and of each
// further one.
func Context(g GPU) uint64 {
	if g.Simulated || g.Context > 0 {
		return g.Context
	}
	return contextBytes(g)
}

// Sources says in a line what an estimate of [Of] consists of.
func Sources(framework string, g GPU, gpus int) string {
	var list []string
	for _, p := range Parts(framework, g, gpus) {
		list = append(list, p.What+" "+size.Format(p.Bytes))
	}
	if list == nil {
		return "estimated by the table: nothing on a simulated GPU without context="
	}
	return "estimated by the table: " + strings.Join(list, ", ")
}

// contextBytes estimates the bytes of a CUDA context.
func contextBytes(g GPU) uint64 {
	for _, c := range figures().contexts {
		if g.CCMajor >= c.major && (c.most == 0 || g.Total <= c.most) {
			return c.bytes
		}
	}
	return 0 // not reached: the last row takes all
}

// figures is overhead.txt.
var figures = sync.OnceValue(func() rows {
	r, err := readRows(overheadText)
	if err != nil {
		panic(err) // a test rules it out
	}
	return r
})
