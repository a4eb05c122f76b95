package cause

// What to do about a cause: settings and steps in the words of the program that failed. A
// framework's setting needs evidence of that framework; where nothing shows one, the steps name
// each framework's with its name.

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// Advice is one setting to make. An empty Value means to unset it.
type Advice struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Why   string `json:"why"`
}

// Remedy is what to do. Check is the command that shows whether the settings took effect; it
// may be empty.
type Remedy struct {
	Settings []Advice
	Steps    []string
	Check    string
}

// steps is a remedy of steps alone; empty ones are left out.
func steps(all ...string) Remedy { return Remedy{}.step(all...) }

func (r Remedy) step(all ...string) Remedy {
	for _, s := range all {
		if s != "" {
			r.Steps = append(r.Steps, s)
		}
	}
	return r
}

func (r Remedy) set(name, value, why string) Remedy {
	r.Settings = append(r.Settings, Advice{name, value, why})
	return r
}

func (r Remedy) check(command string) Remedy {
	r.Check = command
	return r
}

// when is a text where something holds, and else none.
func when(holds bool, text string) string {
	if !holds {
		return ""
	}
	return text
}

// down and up are fractions as people write them, two digits.
func down(f float64) string { return strconv.FormatFloat(math.Floor(f*100+1e-9)/100, 'f', 2, 64) }
func up(f float64) string   { return strconv.FormatFloat(math.Ceil(f*100-1e-9)/100, 'f', 2, 64) }

// number is a fraction that down or up wrote.
func number(value string) float64 {
	f, _ := strconv.ParseFloat(value, 64)
	return f
}

// The program, as far as the log shows it.

// onJAX reports whether it is JAX, or prints what XLA alone does.
func (c *view) onJAX() bool {
	return c.Uses("jax") || c.XLAWords() && !c.OnTensorFlow() && !c.Uses("exla", "torch")
}

// onTorch reports whether it is PyTorch, by what the log shows or by the words of the refusal.
func (c *view) onTorch(r *account.Refusal) bool {
	return c.OnTorch() || r != nil && r.St.Words["torch"]
}

// fraction sets JAX's fraction, with the reason for the value.
func (c *view) fraction(value, why string) Remedy {
	name, whose := c.FractionName()
	if c.sharedCode() {
		return steps("in JAX: " + name + "=" + value + ", " + why)
	}
	return Remedy{}.set(name, value, joined(why, whose)).check(c.jaxCheck(name + "=" + value))
}

// sharedCode reports whether the log has only words that JAX and TensorFlow share.
func (c *view) sharedCode() bool { return !c.Uses("jax", "exla") && !c.XLAAlone() }

// growInTensorFlow is what stands beside JAX's fraction where it may be either.
func (c *view) growInTensorFlow() string {
	return when(c.sharedCode(), "in TensorFlow, whose code has the same words: TF_FORCE_GPU_ALLOW_GROWTH=true")
}

// joined are the reasons that there are.
func joined(why ...string) string {
	var all []string
	for _, w := range why {
		if w != "" {
			all = append(all, w)
		}
	}
	return strings.Join(all, "; ")
}

// jaxCheck is how to see that a setting of JAX took effect.
func (c *view) jaxCheck(set string) string {
	if c.Uses("exla") {
		return ""
	}
	as, device := "", ""
	if v := c.Version("jax"); v != "" {
		as = " --as jax@" + v
	}
	if c.total.Bytes > 0 {
		device = fmt.Sprintf(" --device sim:%dMiB", c.total.Bytes/statement.Mib)
	}
	return strings.TrimSpace(set + " gpumem explain" + as + device)
}

// lessFraction sets JAX's fraction this much below what it is.
func (c *view) lessFraction(by float64, why string) Remedy {
	f, _ := c.Fraction()
	return c.fraction(down(f-by), why).step(c.growInTensorFlow())
}

const (
	letJAXGrow  = "let JAX's pool grow as needed instead: XLA_PYTHON_CLIENT_PREALLOCATE=false"
	displayHere = "a display is on this GPU: gpumem run leaves it room by itself"
)

// screen reports whether a display hangs on the GPU.
func (c *view) screen() bool {
	return c.Display() != nil || c.Library != nil && c.displayHeld() > 0
}

// displayHeld is what the desktop holds.
func (c *view) displayHeld() (sum uint64) {
	for _, o := range c.others {
		if o.IsDesktop() {
			sum += o.Used
		}
	}
	return sum
}

// smaller makes the program smaller, in its own words, and the piece first that was refused.
func (c *view) smaller() Remedy {
	if c.onePiece() {
		return c.advise("piece")
	}
	needs := []string{"batch", "weights", "cache", "look"}
	switch {
	case c.Uses("+saving") && c.Uses("fsdp"):
		needs = []string{"batch"}
	case c.Uses("+loading") && c.Place.Training && c.About("success") == nil: // before the first batch
		needs = []string{"weights", "look"}
	case c.Uses("+loading") && !c.Place.Training:
		needs = []string{"weights", "batch", "cache"}
	case c.Shortfall != nil && c.serves(): // what an engine's share leaves is what it works in
		needs = []string{"beside", "batch", "weights", "cache"}
	}
	return c.advise(needs...)
}

// onePiece reports whether a single request is more than the GPU, or any, has.
func (c *view) onePiece() bool {
	above := func(want, total uint64) bool { return want > account.LargestGPU || total > 0 && want > total }
	switch s, d, r := c.Shortfall, c.Driver, c.bare; {
	case c.Unified():
		return false
	case s != nil:
		return above(s.Want, s.Total)
	case d != nil:
		return above(d.Want, c.total.Bytes)
	case c.Pool != nil:
		return above(c.Pool.Want, c.total.Bytes)
	case r != nil:
		return above(r.Want, c.total.Bytes)
	}
	return false
}

// shorter makes what an engine needs for its cache smaller; the engine may have counted what fits.
func (c *view) shorter(g *account.Engine) Remedy {
	if g.Fits == 0 || g.What == "pool" {
		return c.advise("cache", "weights")
	}
	r := steps(fmt.Sprintf("a length that fits, by the engine's own count: --max-model-len %d", g.Fits))
	if g.Share < account.NearlyAll {
		r = r.step("or a larger share, if the GPU has more: --gpu-memory-utilization")
	}
	return r.step(c.advise("cache", "weights").Steps...)
}

// ifNotEnough is what to do where a setting against holes returns less than is wanted: the engine's share, or a smaller
// program.
func (c *view) ifNotEnough() Remedy {
	r := c.advise("batch")
	if c.serves() {
		r = c.advise("beside", "batch")
	}
	if len(r.Steps) > 0 {
		r.Steps[0] = "if that is not enough, " + r.Steps[0]
	}
	return r
}

// suffices says whether what others hold would be enough, by the numbers of the message, where its first line does not.
func (c *view) suffices() string {
	s := c.Shortfall
	if s == nil || !s.HasFree || s.Want == 0 || s.Free >= s.Want {
		return ""
	}
	others := s.Others
	if others == 0 {
		others = s.Rest // the program's own context is a part of it
	}
	with := account.Say("%v is free, and %v is not this program's pool's, for the %v requested", s.Free, others, s.Want)
	switch {
	case s.Others == 0 && s.Free+others >= s.WantUp && others > 0:
		return "by the numbers that would do: " + with
	case s.Free+others+s.Idle < s.Want && others > 0:
		return "by the numbers that alone would not do: " + with
	}
	return ""
}

// raiseCap raises a limit that the program, or somebody, set for a pool; limit is 0 if unknown.
func (c *view) raiseCap(r *account.Refusal, limit uint64) Remedy {
	if r.St.Words["pa"] && r.St.Words["budget"] || c.Uses("jax") && !c.OnTorch() && !c.Uses("cupy", "rmm", "mps", "onnxruntime") {
		return c.raiseLimit(r.Alloc + r.Want)
	}
	outside := "if none is set, look for one outside: a limiter (HAMi, nvshare), a MIG slice, CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	if c.at("other") {
		outside = "if none is set, look for one outside: the share of the container, or of the GPU's partition"
	}
	if c.at("apple") { // the limit is most of a memory that all programs share
		return c.advise("batch", "weights", "limit")
	}
	if s := c.Shortfall; limit == 0 && s != nil && s.FreeEnough() && c.onTorch(r) { // its message names the limit where the program set one
		return steps("see what the program itself sets: set_per_process_memory_fraction, or an engine's share. PyTorch's message then has " +
			"the limit, as \"... allowed\", and this one has none: see what stands before it first")
	}
	_, set := c.TorchFraction()
	remedy := c.advise("limit", "batch").step(when(limit > 0 && r.Alloc+r.Want > limit,
		"it needs more than "+account.Human(r.Alloc+r.Want)),
		when(!set && limit == 0 && r != c.Over(), outside))
	return remedy.step(when(c.Simulated().Bytes > 0,
		"for a replay: simulate a larger GPU, or another allocator; gpumem replay LOG.csv --smallest says how small it may be"))
}

// endOthers is what to do about other programs.
func (c *view) endOthers() Remedy {
	var gone []string
	for _, o := range c.others {
		if o.ParentGone {
			gone = append(gone, strconv.Itoa(o.PID))
		}
	}
	left := when(gone != nil,
		"the parent of process "+strings.Join(gone, ", ")+" is gone: most likely it is a left-over")
	return steps(left,
		"see who holds it: gpumem ps (or nvidia-smi) shows whose it is, how old, and whether its parent is gone", c.suffices(),
		"end what is left over, wait for it, or use another GPU: CUDA_VISIBLE_DEVICES",
		"to run side by side, give each a share: gpumem run --mem SIZE -- COMMAND")
}

// useWhatIsFree lets an engine take what fits beside the others.
func (c *view) useWhatIsFree(g *account.Engine) Remedy {
	r := Remedy{}
	if room := float64(g.Free) / float64(max(g.Total, 1)); room > .1 && c.Uses("vllm") {
		r = r.set("--gpu-memory-utilization", down(math.Max(room-.01, .05)),
			account.Human(g.Free)+" of "+account.Human(g.Total)+" is free: this is what fits beside the others, if they stay as they are")
	}
	return r.step(c.endOthers().Steps...)
}

// ranksOr is what to do about processes that a message lists: where they have one size they are
// the job's own ranks, most likely, which all took this GPU.
func (c *view) ranksOr(r *account.Refusal) Remedy {
	n, each := r.Ranks()
	if n == 0 {
		return c.endOthers()
	}
	return steps(account.Say(
		"%d of the processes hold %v each: the ranks of one job look so. "+
			"Let each take its own GPU before anything touches CUDA: torch.cuda.set_device(local_rank)",
		n, each),
		"load checkpoints with map_location=\"cpu\" or f\"cuda:{local_rank}\": without it every rank loads onto the GPU that saved them",
		"if they are not of this job, see whose they are: "+strings.SplitN(string(c.processes()), "    # ", 2)[0])
}

// intelBlock is what to do about Intel's limit on one allocation.
var intelBlock = steps("split the tensor below 4 GiB, or update Intel's driver and PyTorch").
	set("UR_L0_USE_RELAXED_ALLOCATION_LIMITS", "1",
		"Intel's runtime refuses a single allocation of 4 GiB and more without it")
