package cause

// What several causes ask of a case.

import (
	"fmt"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// framed reports whether a library's framework preallocates, as far as is known.
func (c *view) framed(l *account.Library) bool {
	return !l.Torch && !l.Bare && (c.Uses("jax", "tensorflow", "exla") || c.XLAWords() || l.Conv || c.frameworkless(l))
}

// frameworkless reports whether nothing tells the framework, and the library's words are those of
// XLA's and TensorFlow's logs: a handle that could not be created.
func (c *view) frameworkless(l *account.Library) bool {
	return l.From != nil || c.State() != nil || l.Memory && l.Early
}

// framedProgram reports whether the program's framework preallocates, as far as is known.
func (c *view) framedProgram() bool { return !c.OnTorch() && !c.PreallocatesNothing() }

// libraryOpen is a library's failure that memory may explain, and of which nobody tried a
// smaller pool in vain.
func (c *view) libraryOpen() *account.Library {
	if l := c.Library; l != nil && !l.Plenty() && !l.Tried {
		return l
	}
	return nil
}

// pooled is the report of a pool of XLA or TensorFlow that refused a request.
type pooled struct{ *account.Pool }

// poolAccount is the account of such a pool, nil where a message has its own, or the pool gave
// regions back.
func (c *view) poolAccount() *pooled {
	p := c.Pool
	if p == nil || p.Want == 0 || c.Shortfall != nil && p.Limit.Bytes == 0 || c.fatal && c.collected() != nil {
		return nil
	}
	return &pooled{p}
}

// room is what the pool may use: what it took, else its limit.
func (p *pooled) room() account.Sized {
	if p.Size.Bytes > 0 {
		return p.Size
	}
	return p.Limit
}

// aboveAny reports whether the request is more than any GPU has.
func (p *pooled) aboveAny(c *view) bool {
	most := uint64(account.LargestGPU)
	if p.Refused != nil {
		most = account.LargestThen(p.Refused)
	}
	return !c.Unified() && p.Want > most
}

// above reports whether the request is more than this GPU can give, or any.
func (p *pooled) above(c *view) bool {
	return p.aboveAny(c) || !c.Unified() && account.OneAboveGPU(p.Want, c.total.Bytes)
}

// stopped reports whether the pool wanted to grow below its limit, and got no more: what it has free is
// less than the request, or in pieces whose sizes are not told.
func (p *pooled) stopped() bool {
	if p.InUse.Bytes == 0 || p.Size.Bytes == 0 || p.Limit.Bytes < p.Size.Bytes+p.Want {
		return false
	}
	return p.Largest.Bytes == 0 || account.Less(p.Size.Bytes, p.InUse.Bytes) < p.Want
}

// bareRefusal is the last refusal of the GPU's memory, where nothing else of it is known.
func (c *view) bareRefusal() *account.Refusal {
	if c.Library != nil {
		return nil
	}
	return c.Last(func(r *account.Refusal) bool {
		return !r.Mild && r.Layer != statement.LayerHost && r.Layer != statement.LayerContext
	})
}

// bareKnown reports whether something else is known: a ladder of requests, a warning before it,
// what is free, a copy.
func (c *view) bareKnown() bool {
	r := c.bare
	_, _, n := c.Ladder()
	return n > 2 || c.Warned() || r.HasFree || c.StatementWith("dst", "tensor") != nil || r.St.Words["unified"] || c.jaxlibCall()
}

// jaxlibCall reports whether a call of jaxlib's own kernels was refused.
func (c *view) jaxlibCall() bool {
	r := c.bare
	return c.Uses("jax") && strings.Contains(r.St.Text, "jaxlib/") && r.Want == 0
}

// bareXLA reports whether it is XLA's own sentence, which tells of nothing but the request, and
// nothing is known that would tell more.
func (c *view) bareXLA() bool {
	known := !c.Grows() && c.State() != nil && c.total.Bytes > 0
	return c.bareXLAWords() && !c.bareKnown() && !known
}

// bareXLAWords reports whether it is XLA's own sentence.
func (c *view) bareXLAWords() bool {
	r := c.bare
	pool := r.Layer == statement.LayerPool && r.Want > 0 && !c.TorchLike(r)
	if pool {
		return c.Uses("jax") || r.St.Words["exhausted"]
	}
	driver := r.Layer == statement.LayerDriver && r.Want == 0
	return c.Uses("jax") && driver && !strings.Contains(r.St.Text, "jaxlib/")
}

// bareLlama reports whether it is of llama.cpp, without a size.
func (c *view) bareLlama() bool {
	return c.bare != nil && c.Uses("llama.cpp") && c.bare.Want == 0 && !c.bareKnown()
}

// bareProgram reports whether it is known to be of a GPU.
func (c *view) bareProgram() bool {
	known := c.Uses("cupy", "rmm", "torch", "vllm", "sglang", "xgboost", "numba", "julia", "onnxruntime", "paddle",
		"mxnet", "tensorrt", "hip", "xpu", "mps", "comfyui", "llama.cpp",
		"tgi", "ctranslate2", "caffe", "opencl", "vulkan", "directx", "nvenc", "blender", "unreal", "npu",
		"webgl", "opengl", "unity", "renderer", "md", "hashcat", "darktable", "ffmpeg", "whisper", "tt")
	return known || c.bare != nil && namesGPU(c.bare)
}

// namesGPU reports whether a refusal's own words are about a GPU.
func namesGPU(r *account.Refusal) bool {
	return r.Layer == statement.LayerDriver || r.Want > 0 || r.St.DeviceCode() || r.St.HasAny("gpu", "cuda", "vram", "video", "graphics")
}

// limiterAtWork is a refusal without numbers, where HAMi stands between program and driver.
func (c *view) limiterAtWork() *statement.Statement {
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild })
	if !c.fatal || r == nil || r.Want > 0 || r.Total > 0 || c.About("limiter") == nil || c.About("hami") != nil {
		return nil
	}
	return r.St
}

// inUse is a figure of the state with what it shows.
func inUse(used uint64, format string, args ...any) statement.Evidence {
	return statement.Evidence{Text: fmt.Sprintf("devices.used_bytes: %d", used), Reading: account.Say(format, args...)}
}

// serves reports whether the program is an engine that serves models.
func (c *view) serves() bool { return c.Uses("vllm", "sglang", "tgi", "trtllm") }

// poolSizeRefused reports whether the driver refused what a pool takes at its start, and nothing
// tells who has it.
func (c *view) poolSizeRefused() bool {
	d := c.Driver
	if d == nil || d.Past || d.Collected || !c.driverUnexplained() {
		return false
	}
	return d.Whole || d.Steps > 2 && d.GotLess
}

// driverUnexplained reports whether nothing tells who has what the driver refused.
func (c *view) driverUnexplained() bool {
	return !c.told && !c.Driver.Later && !c.Driver.St.Words["unified"]
}

// driverAbove reports whether the driver was asked for more than any GPU has, or this one.
func (c *view) driverAbove() bool {
	d := c.Driver
	if d == nil || d.Collected || c.Unified() && !d.Past {
		return false
	}
	return d.Want > account.LargestThen(d.Refusal) || d.Past && c.total.Bytes > 0 && d.Want > c.total.Bytes
}

// regionRefused reports whether a pool that had some memory was refused more by the driver, below a
// size that tells something, and nothing else is known.
func (c *view) regionRefused() bool {
	d := c.Driver
	more := !d.Past && !d.Whole && d.Steps <= 2
	return more && c.driverUnexplained() && c.Warned()
}

// freeCard is the line that shows an empty GPU, if there is one.
func (c *view) freeCard() []statement.Evidence {
	if free := c.FreeCard(); free.Bytes > 0 {
		return []statement.Evidence{free.From}
	}
	return nil
}

// rematHolds reports whether the pass that recomputes has the word.
func (c *view) rematHolds() bool { return c.Compiled.Remat != nil }

// smallPast reports whether the driver refused a small request past every pool, and nothing tells
// who has the rest.
func (c *view) smallPast() bool {
	d := c.Driver
	if d == nil || c.told || c.driverAbove() {
		return false
	}
	return d.Past && !d.Whole && d.Want <= statement.Gib
}

// poolFull reports whether what is in use and the request pass the pool's limit.
func (c *view) poolFull(p *pooled) bool {
	return p.InUse.Bytes > 0 && p.Limit.Bytes > 0 && p.InUse.Bytes+p.Want > p.Limit.Bytes
}

// poolAboveGPU reports whether they pass the GPU's memory, whatever the limit.
func (c *view) poolAboveGPU(p *pooled) bool {
	total := c.total.Bytes
	return !c.Unified() && account.AboveGPU(p.InUse.Bytes+p.Want, total)
}

// noContext is the refusal of a context, if its total is a size.
func (c *view) noContext() *account.Refusal {
	if r := c.ContextRefused(); r != nil && (r.Strange() == 0 || c.SMIFull().Bytes > 0 || c.neighbours() != nil) {
		return r
	}
	return nil
}

// contextFull reports whether something shows that the GPU was full.
func (c *view) contextFull() bool {
	used, total := c.GPUUsed()
	return c.SMIFull().Bytes > 0 || c.neighbours() != nil || account.Taken(used, total)
}

// neighbours are the lines of processes on the GPUs whose contexts were refused.
func (c *view) neighbours() []statement.Evidence { return c.ContextNeighbours() }

// rematTooBig reports whether one buffer is above the limit that the pass aims at, or the pass
// finds nothing to save: there is nothing to recompute then.
func (c *view) rematTooBig() bool {
	m, p := c.Compiled.Remat, c.Pool
	if m == nil || p == nil || p.Refused == nil || p.Want == 0 {
		return false
	}
	savesNothing := m.From > 0 && m.Saved() <= m.From/100
	return p.Want > m.Limit || savesNothing
}
