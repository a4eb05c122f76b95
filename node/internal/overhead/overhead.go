// Package overhead knows the GPU memory that a program holds outside of its
// framework's pool: the CUDA context, kernels and library handles, which no
// framework's limit counts. It is estimated by a table before a program's first run
// and measured in every run, see [Store].
package overhead

// GPU describes a GPU as far as the table needs it.
type GPU struct {
	Total     uint64 // bytes, as CUDA reports them
	CCMajor   int    // compute capability, such as 9 of 9.0; 0: unknown
	Context   uint64 // bytes of a CUDA context; 0: by the table, or none where the GPU is simulated
	Simulated bool   // nothing is held outside of the pool but Context
}

// part is one of the things that a program holds outside of its pool.
type part struct {
	what   string
	bytes  uint64
	source string // where the figure is from
}

const mib = 1 << 20

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
	for _, p := range parts(framework, g, gpus) {
		sum += p.bytes
	}
	return sum
}

// parts returns the terms of the estimate.
func parts(framework string, g GPU, gpus int) []part {
	context := part{"CUDA context", g.Context, "given by the caller"}
	switch {
	case g.Simulated && g.Context == 0:
		return nil
	case g.Simulated:
		return []part{context}
	case g.Context == 0:
		context = part{"CUDA context", contextBytes(g), "2 KiB for each thread that the GPU can hold, and 24 MiB: fits totals less free memory of eleven kinds of GPU, 7.0 to 12.0, within 20 %"}
	}
	kernels := part{"kernels", 30 * mib, "loaded lazily since CUDA 11.7"}
	dnn := part{"cuDNN", 500 * mib, "about 520 MiB with the first convolution, kernels included: tensorflow/tensorflow#24496"}
	blas := part{"cuBLAS", 8*mib + mib/8, "workspace of one handle and stream: pytorch/pytorch#95668"}
	if g.CCMajor >= 9 || g.CCMajor == 0 {
		blas = part{"cuBLAS", 32 * mib, "recommended workspace from Hopper on: the documentation of cuBLAS"}
	}
	list := []part{context, kernels, dnn, blas}
	switch framework {
	case "pytorch": // whose cuBLAS workspaces are in its pool
		kernels = part{"kernels", 150 * mib, "287,047,680 bytes with the context after one operation, loaded lazily: pytorch/pytorch#86509"}
		list = []part{context, kernels, dnn}
	case "cupy": // uses cuDNN only where the program asks for it
		list = []part{context, kernels, blas}
	case "cuda": // any other program
		list = []part{context, kernels}
	}
	if gpus > 1 {
		list = append(list, part{"NCCL", 512 * mib, "1.06 GB with the context on each of eight H100 after the first communicator: NVIDIA/nccl#1685"})
	}
	return list
}

// contexts are the largest context of GPUs up to a size, in MiB, by compute
// capability: 2 KiB for each thread of the largest such GPU, and 24 MiB.
var contexts = []struct {
	major int    // from this one on
	gib   uint64 // of memory, at most; 0: any
	mib   uint64
	like  string
}{
	{10, 17, 276, "RTX 5080: 84 multiprocessors of 1536 threads"},
	{10, 33, 534, "RTX 5090: 170 of 1536"},
	{10, 0, 632, "GB200: 152 of 2048"},
	{9, 13, 96, "a slice of an H100: 16 of 2048"},
	{9, 25, 152, "a slice: 32 of 2048"},
	{9, 49, 280, "a slice: 64 of 2048"},
	{9, 0, 552, "H100, H200: 132 of 2048"},
	{8, 9, 168, "RTX 3070 Ti: 48 of 1536"},
	{8, 17, 264, "RTX 4080 SUPER, RTX 3080 Ti: 80 of 1536"},
	{8, 25, 408, "RTX 4090: 128 of 1536"},
	{8, 0, 456, "A100: 108 of 2048"},
	{7, 11, 160, "RTX 2080 Ti: 68 of 1024"},
	{7, 0, 344, "V100, Titan V: 80 of 2048"},
	{1, 0, 248, "P100: 56 of 2048"},
	{0, 0, 632, "unknown: the largest"},
}

// contextBytes estimates the bytes of a CUDA context.
func contextBytes(g GPU) uint64 {
	for _, c := range contexts {
		if g.CCMajor >= c.major && (c.gib == 0 || g.Total <= c.gib<<30) {
			return c.mib * mib
		}
	}
	return 0 // not reached: the last row takes all
}
