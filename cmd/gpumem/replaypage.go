// The page and the drawing of gpumem replay.

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gpumem/device/open"
	"gpumem/internal/report"
	"gpumem/record/advise"
	"gpumem/record/leaks"
	"gpumem/record/replay"
	"gpumem/record/timeline"
	"gpumem/record/trace"
	"gpumem/size"
)

// answerEvents is the most events of a recording whose page has the answers of other
// commands: some 30 replays of it take a second or two.
const answerEvents = 200_000

// replayDrawn replays the recording, and writes its page and drawing if they have a path.
func (o *replayOptions) replayDrawn(ctx context.Context, t *trace.Trace, cfg replay.Config) (*replay.Report, error) {
	if o.page+o.drawing == "" {
		rep, err := replay.Run(ctx, t, cfg)
		if err != nil {
			return nil, err
		}
		return rep, rep.Trace.AddPeaks(ctx, t, o.pool)
	}
	rep, p, err := timeline.Run(ctx, t, cfg)
	if err == nil {
		err = rep.Trace.AddPeaks(ctx, t, o.pool)
	}
	switch {
	case err != nil:
		return nil, err
	case p == nil:
		return nil, errors.New("--report, --svg: nothing happens in this pool of the recording; name another by --pool")
	case o.drawing != "" && len(p.Pools) > 1:
		return nil, errors.New("--svg draws one pool, and the recording has several; name one by --pool")
	case o.page != "" && t.Events <= answerEvents:
		if err := o.addAnswers(ctx, t, p); err != nil {
			return nil, err
		}
	}
	return rep, writeFiles(ctx,
		namedFile{"--report", o.page, func(w io.Writer) error { return report.WritePage(w, p) }},
		namedFile{"--svg", o.drawing, func(w io.Writer) error { return report.WriteSVG(w, p) }})
}

// addAnswers adds what gpumem advise, for the same device, and gpumem leaks say of the
// recording. There is no advice for a device that cannot be simulated.
func (o *replayOptions) addAnswers(ctx context.Context, t *trace.Trace, p *report.Page) error {
	spec, _, err := open.Choose(o.device, os.LookupEnv, true)
	if err != nil {
		return err
	}
	if spec.CanResize() {
		cfg := advise.Config{Sim: spec.Sim, Context: max(spec.Sim.Context, advise.DefaultContext), Pool: o.pool}
		rep, err := advise.Run(ctx, t, cfg)
		switch {
		case errors.Is(err, advise.ErrNoGPU):
			why := "There is no advice: " + advise.ErrNoGPU.Error() + "."
			p.Answers = append(p.Answers, report.Answer{Question: "What to set", Text: why})
		case err != nil:
			return err
		default:
			addAdvice(p, rep)
		}
	}

	found, err := leaks.Find(ctx, t, leaks.Config{Pool: o.pool, KeepPaths: o.paths})
	if err != nil {
		return err
	}
	grew := leaksOnPage(&leaks.Answer{Trace: replay.Describe(t), Report: found})
	p.Sections = append(p.Sections, grew)
	p.Answers = append(p.Answers, report.Answer{Question: "What grew", Text: grew.Sentences[0]})
	return nil
}

func addAdvice(p *report.Page, rep *advise.Report) {
	outside := fmt.Sprintf("With %s outside the pool, as for a CUDA context and libraries, ", size.Format(rep.ContextBytes))
	verdict := outside + lowerFirst(adviceVerdict(rep, ""))
	if rep.FitsAsItIs {
		verdict = "Nothing: " + lowerFirst(outside) + "it fits as it is."
	} else if rep.Trace.Refused == 0 && slices.ContainsFunc(p.Pools[0].Layers, func(l *report.Layer) bool { return l.First == nil }) {
		p.Summary = append(p.Summary, "The replay has nothing outside the pool: no context, no libraries.")
	}
	if c := rep.Advice; c != nil && len(c.Set) > 0 {
		verdict += " " + strings.Join(c.Set, " ")
	}

	if headline := adviceHeadline(rep); headline != "" {
		p.Headline = headline
	}
	smallest := strings.Join(pageLines(func(t *text) { writeSmallest(t, rep) }), " ")
	p.Sections = append(p.Sections, adviceOnPage(rep))
	p.Answers = append(p.Answers, report.Answer{Question: "What to set", Text: verdict},
		report.Answer{Question: "Smallest card", Text: smallest})
}

// adviceHeadline returns what a page is to begin with where the replay, which has nothing outside
// the pool and ends with the recording, would say that the program fits; "" if that is right.
func adviceHeadline(rep *advise.Report) string {
	name, device := filepath.Base(rep.Trace.Source), size.Format(rep.DeviceBytes)
	grows := name + " grows"
	if g := rep.Grows; g != nil && g.BytesPerStep > 0 {
		grows += fmt.Sprintf(" by %s in each step", size.Format(g.BytesPerStep))
	}
	switch g := rep.Grows; {
	case g != nil && g.FitsSteps != nil:
		return fmt.Sprintf("%s: it fits %s for about %s steps", grows, device, report.Count(report.Round(*g.FitsSteps)))
	case g != nil && rep.Advice != nil:
		return fmt.Sprintf("%s: for how many steps it fits %s is unknown", grows, device)
	case rep.FitsAsItIs || rep.Trace.Refused > 0 || rep.Title() == "":
		return ""
	case rep.Advice == nil:
		return fmt.Sprintf("%s does not fit %s, with %s outside the pool", name, device, size.Format(rep.ContextBytes))
	case len(rep.Advice.Set) > 0:
		return fmt.Sprintf("%s does not fit %s as it is, and fits with %s", name, device, strings.Join(rep.Advice.Set, " "))
	}
	return fmt.Sprintf("%s does not fit %s as it is", name, device)
}

// lowerFirst begins a sentence small, to stand behind a colon.
func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }
