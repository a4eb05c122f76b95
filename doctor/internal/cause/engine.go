package cause

// What an engine's own check, or its plan, leaves: vLLM, SGLang and TensorRT-LLM on one side, whose
// cache takes what weights leave of a share; llama.cpp and Ollama on the other, which count the
// layers that fit. As in message.go each case has the causes that it means.

import (
	"cmp"
	"fmt"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// fromEngine explains an engine's check.
func (c *view) fromEngine() found {
	g, total := c.Engine, c.total.Bytes
	switch {
	case g == nil:
		return nil
	case g.AtStart:
		return c.engineAtStart(g)
	case g.What == "requests":
		return found{sure(752, "the engine's own pool of requests", c.advise("requests"),
			g.St.Quoted("the places for requests are used up: a limit of the engine, and not the GPU's memory")).
			of("pool_limit")}
	case g.HadRoom():
		x := sure(756, "the engine's cache had room", steps(
			"update the engine: it had the tokens and did not give them, which no setting of memory changes. If the newest release fails so, "+
				"its makers want these numbers"),
			g.St.Quoted(fmt.Sprintf("%d tokens were wanted, and the engine's cache had %d: it was not full", g.Asked, g.Fits)))
		x.Verdict = "not_memory"
		return found{x.of("not_memory")}
	case !g.CacheShort():
		return c.enginePart(g)
	case c.Uses("sglang") && g.LoadedFree():
		return found{sure(755, "the engine's share", c.raiseShare(),
			quote(g.Loaded, "%v is loaded, and %v of the GPU is free", g.LoadUsed, g.LoadFree),
			g.St.Quoted("the engine's own share is the limit")).of("pool_limit")}
	case g.ShareRaises(total):
		return found{sure(753, "the engine's share", c.raiseShare(),
			quote(g.St, "%v more is needed; the engine may use %v of %v, and the GPU has more", g.More, g.Share, total)).
			and(c.totalLine()...).of("pool_limit")}
	case g.LacksMore(total):
		return found{sure(751, "no share has room for the cache", c.shorter(g),
			quote(g.St, "%v more is needed than the engine's %v of %v leaves, and the whole GPU has not that much",
				g.More, g.Share, total)).
			and(c.totalLine()...).of("program_too_big")}
	case g.CountsOthers():
		return found{sure(745, "an engine counts what was there before it", waitForOthers,
			with(g.Before, "%v of %v was in use before this engine had loaded anything, and it counts that as its own",
				g.Before.Bytes, g.BeforeOf),
			g.St.Quoted("so nothing of its share is left for the cache")).of("startup_race")}
	case g.HeavyWeights(total):
		weights := with(g.Weights, "the weights alone take %v of %v", g.Weights.Bytes, total)
		if g.Weights.Bytes == 0 {
			weights = quote(g.Loaded, "the weights alone take %v, and %v was left", g.LoadUsed, g.LoadFree)
		}
		return found{sure(740, "no room for the cache", c.advise("weights", "cache"),
			g.St.Quoted(cmp.Or(g.CacheText(), "nothing is left for the cache")), weights).of("program_too_big")}
	case g.Fits > 0 && g.What != "pool" && g.Share >= account.NearlyAll:
		return found{sure(740, "no room for the cache", c.shorter(g), g.St.Quoted(g.CacheText())).of("program_too_big")}
	case g.Fits > 0 && g.What != "pool":
		return found{sure(734, "the engine's cache", c.shorter(g), g.St.Quoted(g.CacheText())).of("pool_limit")}
	}
	return c.cacheOrShare(g)
}

// cacheOrShare is for a cache that has no room, where no number says whether the engine may have more.
func (c *view) cacheOrShare(g *account.Engine) found {
	noRoom := cmp.Or(g.CacheText(), "the model and what was there before it left no room for the cache")
	all := found{fits(732, "no room for the cache", c.shorter(g), c.processes(), g.St.Quoted(noRoom)).
		needs(needTotal, NeedProcesses).of("program_too_big")}
	if max(g.Share, g.Static) >= account.NearlyAll {
		return all
	}
	rank, larger := 730, "a larger "+c.EngineShare()+" gives the cache more, if the GPU has it"
	if g.StaticSmall() {
		rank, larger = 735, fmt.Sprintf("the engine may use %v of the GPU, and wants more", g.Static)
	}
	return append(all, fits(rank, "the engine's share", c.raiseShare(), c.processes(), g.St.Quoted(larger)).
		needs(needTotal, NeedProcesses).of("pool_limit"))
}

// engineAtStart is for a check before the engine took any memory.
func (c *view) engineAtStart(g *account.Engine) found {
	starting := fits(759, "a neighbour at its start or end", waitForOthers, waitAndSee,
		g.St.Quoted("whoever holds the rest may be starting, or ending")).beside().of("startup_race")
	if g.MayBeOwn() {
		return found{starting, fits(760, "an engine's check at its start", c.useWhatIsFree(g), c.processes(),
			quote(g.St, "%v of %v was in use before the engine took any, its own context included; %v was lacking",
				g.Used, g.Total, g.Lacking)).of("device_occupied")}
	}
	wants := "more than is free"
	if g.Want > 0 {
		wants = account.Human(g.Want)
	}
	x := sure(760, "an engine's check at its start", c.useWhatIsFree(g),
		quote(g.St, "%v of %v was in use before this engine took any, and it wants %s", g.Used, g.Total, wants)).of("device_occupied")
	x.Decide = c.processes()
	return found{starting, x}
}

// enginePart is for a part of an engine that is none of its cache.
func (c *view) enginePart(g *account.Engine) found {
	s := g.Stages
	switch {
	case c.Shortfall != nil: // whose numbers say more
		return nil
	case s == nil || s.Total.Bytes == 0:
		all := found{
			fits(733, "a part of an engine", c.partSmaller(g), c.processes(), g.St.Quoted(partText(g))).
				needs(needTotal, NeedProcesses).of("program_too_big"),
			fits(731, "a part of an engine", c.endOthers(), c.processes(), g.St.Quoted("the engine lacks what others hold")).
				needs(NeedProcesses).of("device_occupied"),
		}
		if g.What == "warmup" {
			all = append(all, fits(732, "a trial after the cache", c.advise("beside", "graphs"), c.processes(),
				g.St.Quoted("the cache and the graphs had taken their part when it was tried")).
				needs(needTotal, NeedProcesses).of("cuda_graph_headroom"))
		}
		return all
	case s.StartOccupied():
		return found{sure(742, "most of the GPU was taken before", c.endOthers(),
			g.St.Quoted("the "+s.Component+" could not be made"),
			with(s.Total, "%v of %v was free before the engine made its first part", s.Start, s.Total.Bytes)).of("device_occupied")}
	case s.OneFills():
		return found{sure(741, "an engine's parts", c.partSmaller(g),
			g.St.Quoted("what could not be made is the "+s.Component),
			with(s.Total, "%v of %v was free at the start", s.Start, s.Total.Bytes),
			with(s.Left, "%v was left for the %s; the %s took %v", s.Left.Bytes, s.Component, s.Largest, s.LargestTook)).
			of("program_too_big")}
	}
	return found{fits(733, "an engine's parts", c.partSmaller(g), c.processes(),
		g.St.Quoted("what could not be made is the "+s.Component),
		with(s.Left, "%v was left for it", s.Left.Bytes)).needs(NeedProcesses).of("program_too_big")}
}

// partText is what an engine lacked room for.
func partText(g *account.Engine) string {
	switch g.What {
	case "warmup":
		return fmt.Sprintf("a trial with %d requests did not fit beside weights and cache", g.Asked)
	case "executor":
		return "what the engine makes at its start did not fit"
	case "prefill":
		return fmt.Sprintf("a trial with %d tokens, the setting, did not fit beside the weights", g.Asked)
	case "layout":
		if g.Asked > 0 {
			return fmt.Sprintf("num_gpu asks for %d layers on the GPU, and the plan found no room for them", g.Asked)
		}
		return "the plan found no room for the layers that are asked for"
	}
	return "a part of the engine was refused"
}

// partSmaller makes a part of an engine smaller.
func (c *view) partSmaller(g *account.Engine) Remedy {
	s := g.Stages
	switch {
	case g.What == "layout", s != nil && s.ModelFills():
		return c.advise("weights", "cache", "beside")
	case s != nil && strings.Contains(strings.ToLower(s.Component), "cache"):
		return c.advise("cache", "weights", "beside")
	}
	return c.advise("batch", "beside", "weights")
}

// raiseShare gives an engine a larger part.
func (c *view) raiseShare() Remedy { return c.advise("limit", "weights", "cache") }

// fromPlan explains a refusal of llama.cpp's or Ollama's, which planned before what fits.
func (c *view) fromPlan() found {
	p := c.Plan
	if p == nil {
		return nil
	}
	refused := quote(p.St, "one buffer of %v was refused", p.Want)
	switch {
	case p.BufferTooBig():
		return found{sure(720, "a buffer above the GPU", c.fewerLayers(p), refused, p.GPU.From).of("program_too_big")}
	case p.TooBig():
		return found{sure(722, "the model's parts above the GPU", c.fewerLayers(p), p.FreeFrom, p.St.Quoted(p.LoadedText())).
			of("program_too_big")}
	case p.Occupied():
		return found{sure(721, "most of the GPU was taken before", c.endOthers(), p.FreeFrom,
			quote(p.St, "%s would fit into %v", p.Together(), p.GPU.Bytes), p.GPU.From).of("device_occupied")}
	case p.SaidToFit():
		from := p.From
		from.Reading = account.Say("%v was estimated, and %v was free", p.Planned, p.Available)
		return found{sure(715, "the estimate said that it fits", c.fewerLayers(p), from,
			quote(p.St, "and %v more was refused", p.Want)).of("estimator_underestimates")}
	case p.RunnerStarted():
		return found{sure(714, "the estimate of a runner", c.fewerLayers(p),
			quote(p.St, "the buffer for the computation, %v, which comes after the weights, was refused", p.Want),
			p.Runner.Quoted("the runner was started because its estimate said that this fits")).of("estimator_underestimates")}
	case c.told && account.HoldsMuch(c.held, p.GPU.Bytes):
		return found{sure(714, "others on the machine", c.endOthers(), c.othersLines()...).and(refused).of("device_occupied")}
	case p.OneBuffer():
		return found{sure(713, "the weights in one buffer", c.fewerLayers(p),
			quote(p.St, "one buffer of %v, the layers that are to go to this GPU, was refused", p.Want)).of("program_too_big")}
	}
	beside := []statement.Evidence{refused}
	if p.StartFree > 0 {
		beside = append(beside, p.FreeFrom)
	}
	rank := 711
	if p.Large() {
		rank = 713 // few cards have room for it
	}
	all := found{
		fits(rank, "a buffer of llama.cpp", c.fewerLayers(p), c.processes(), beside...).
			needs(needTotal, NeedProcesses).of("program_too_big"),
		fits(710, "a buffer of llama.cpp", c.endOthers(), c.processes(), beside...).
			needs(NeedProcesses).of("device_occupied"),
	}
	if c.Uses("ollama") {
		all = append(all, fits(712, "a buffer of llama.cpp", c.fewerLayers(p), c.processes(), beside...).
			needs(NeedProcesses, needTotal).of("estimator_underestimates"))
	}
	return all
}

// fewerLayers lets less go to the GPU. A buffer for the computation does not become smaller with
// fewer layers there.
func (c *view) fewerLayers(p *account.Plan) Remedy {
	switch {
	case p.Cache:
		return c.advise("cache", "weights", "beside")
	case p.Compute:
		return c.advise("batch", "cache", "beside")
	case p.Refusal != nil && (p.OneBuffer() || p.BufferTooBig()):
		return c.advise("weights") // a smaller cache makes no room for it
	}
	return c.advise("weights", "cache", "beside")
}
