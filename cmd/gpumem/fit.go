package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/record/advise"
	"gpumem/record/fit"
	"gpumem/size"
)

type fitOptions struct {
	call
	cfg          fit.Config
	device, card string // the card is one of them
	beside       uint64
	vary         string
	steps        int
	assume       string
	model        string // a folder, which engine serves
	engine       string
	cards        []fit.SimCard // of several
	quiet        bool
	isFile       bool // the word is a module or a recording, and no program
}

func fitCommand() *cobra.Command {
	var o fitOptions
	cmd := &cobra.Command{
		Use:   "fit [flags] -- COMMAND ARGS...",
		Short: "Find whether a program fits a GPU, without the GPU",
		Args: func(cmd *cobra.Command, words []string) error {
			if cmd.Flags().Changed("model") && o.model == "" {
				return errors.New("--model: want a folder with the config.json of a model")
			}
			if o.model == "" && (len(words) == 0 || words[0] == "") {
				return errors.New("fit needs a COMMAND, a MODULE or a TRACE; gpumem fit --help has examples")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, words []string) error {
			o.isFile = o.model == "" && cmd.ArgsLenAtDash() < 0 && fit.IsFile(words[0])
			if o.isFile { // flags may follow, as in other commands
				if err := cmd.ParseFlags(words[1:]); err != nil {
					return flagError(cmd, err)
				}
				if help, _ := cmd.Flags().GetBool("help"); help {
					return cmd.Help()
				}
				if err := checkFlags(cmd); err != nil {
					return err
				}
				if rest := cmd.Flags().Args(); len(rest) > 0 {
					return fmt.Errorf("%s is a file and no COMMAND: fit takes one file, and got %s, too", words[0], rest[0])
				}
			}
			return runner(&o, runFit)(cmd, words)
		},
	}

	fs, cfg := cmd.Flags(), &o.cfg
	fs.SetInterspersed(false)
	const device = "`DEVICE`, the card: sim:24GiB, sim:24GiB*4 for four of it, or cuda:N, of which only the size is read"
	fs.StringVar(&o.device, "device", "sim:24GiB", device)
	const cardUsage = "`NAME` of the card: T4, L4, A100-40GB, H100, \"RTX 4090\", ..., or its size; of an engine that serves models several, such as L4,A10G"
	fs.StringVar(&o.card, "card", "", cardUsage)
	fs.StringVar(&o.model, "model", "", "serve the model of a `FOLDER`, of which config.json is enough; flags of the engine follow behind --")
	fs.StringVar(&o.engine, "engine", "vllm", "the `ENGINE` that serves it, or the path of its program")
	addSize(fs, &o.beside, "beside", size.Format(advise.DefaultContext), besideUsage)
	const as = "`FRAMEWORK`[@VERSION] to answer for, as in advise (default: that of the program or the recording; of a MODULE jax)"
	fs.StringVar(&cfg.As, "as", "", as)
	const vary = "`NAME=V,V...`: find the largest of these values that fits, of an argument or environment variable of the program; " +
		"from the least memory to the most"
	fs.StringVar(&o.vary, "vary", "", vary)
	fs.IntVar(&o.steps, "steps", 0, "end the program after `N` steps, if its memory has not repeated before")
	fs.StringVar(&o.assume, "assume", "", "`NAME=VALUE,...`, in place of zeros: nonzero=PART of the elements (masks, too), unique=PART, item=INTEGER; for JAX and PyTorch")
	fs.Uint64Var(&cfg.For, "for", 0, "the program is to make `STEPS` steps on the card: one that grows by each may fit for fewer, and then the exit status is 1")
	fs.BoolVar(&cfg.Full, "full", false, "run the program to its end, also when its memory repeats")
	fs.BoolVar(&cfg.Smallest, "smallest", false, "run the program for the smallest card, too, and for smaller ones until it does not fit")
	fs.StringVar(&cfg.Record, "record", "", "keep the recording in a new `FILE`, for replay and advise")
	fs.BoolVar(&o.quiet, "quiet", false, "show nothing that the program writes")
	o.addJSON(cmd)
	return cmd
}

func runFit(ctx context.Context, o *fitOptions) error {
	if err := o.fillCommand(); err != nil {
		return err
	}
	values, err := o.fillConfig()
	if err != nil {
		return err
	}
	if o.engineDefault() {
		fmt.Fprintf(o.errs, "gpumem fit: for a card of 24 GiB; --card names another\n")
	}
	signal.Ignore(syscall.SIGPIPE) // the recording is removed, also where the output has no reader
	line := newProgress(o.errs)
	defer line.clear()
	o.cfg.Env = os.Environ()
	cfg := o.cfg
	cfg.Progress = line.show
	cfg.Again = func(why string) {
		line.clear()
		fmt.Fprintf(o.errs, "gpumem fit: %s\n", why)
	}
	if o.isFile {
		rep, err := fit.File(ctx, o.words[0], cfg)
		line.clear()
		if err != nil {
			return err
		}
		return o.answer(rep, rep.Fits, func(t *text) { writeFitFile(t, rep) })
	}

	if o.vary == "" && len(o.cards) == 0 && fit.Named(cfg.Command) == "" {
		ctx, cfg.Stop = stoppable(ctx, func() {
			fmt.Fprintln(o.errs, "gpumem fit: ending the program, then the answer about what ran; Ctrl-C again gives up")
		})
	} else { // a second signal does not keep the first one from removing what the run has made
		context.AfterFunc(ctx, func() { signal.Notify(make(chan os.Signal, 1), ending...) })
	}
	if !o.quiet {
		cfg.Stdout, cfg.Stderr = o.errs, o.errs // the answer alone is on stdout
	}
	var rep *fit.Report
	switch {
	case o.vary != "":
		rep, err = fit.RunVary(ctx, cfg, values)
	case len(o.cards) > 0:
		rep, err = fit.RunCards(ctx, cfg, o.cards)
	default:
		rep, err = fit.Run(ctx, cfg)
	}
	line.clear()
	if err != nil {
		return err
	}
	err = o.answer(rep, rep.Fits, func(t *text) { writeFit(t, rep) })
	if rep.NotKept != nil && (err == nil || errors.Is(err, errNo)) {
		return rep.NotKept
	}
	return err
}

// stoppable returns a context that outlives the first Ctrl-C, which calls say and closes stop: the program
// ends, and the answer is about what ran. A second one, or another signal, ends the context.
func stoppable(ctx context.Context, say func()) (run context.Context, stop <-chan struct{}) {
	run, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	context.AfterFunc(ctx, func() {
		again := make(chan os.Signal, 1)
		signal.Notify(again, ending...)
		var c caught
		if errors.As(context.Cause(ctx), &c) && c.Signal == syscall.SIGINT {
			say()
			close(stopped)
			<-again
		}
		cancel(context.Cause(ctx))
	})
	return run, stopped
}

// engineDefault reports whether an engine, which takes minutes, is about to run for a card that nobody named.
func (o *fitOptions) engineDefault() bool {
	return !o.isFile && !o.given("card") && !o.given("device") && fit.Named(o.cfg.Command) != ""
}

// fillCommand sets the command.
func (o *fitOptions) fillCommand() (err error) {
	if o.cfg.Command = o.words; o.model != "" {
		o.cfg.Command, err = fit.Serve(o.engine, o.model, o.words)
	} else if o.given("engine") {
		err = errors.New("--engine is for --model")
	}
	return err
}

// fillCards reads cards, of which there may be several.
func (o *fitOptions) fillCards() error {
	names := open.Several(o.card)
	if len(names) < 2 {
		return nil
	}
	if o.vary != "" {
		return errors.New("--vary is for one card")
	}
	for _, name := range names {
		spec, n, err := open.Simulated(name)
		if err != nil {
			return fmt.Errorf("--card: %w", err)
		}
		c := fit.SimCard{Name: name, GPUs: n}
		if c.Sim, c.Context, err = o.simulated(spec); err != nil {
			return err
		}
		o.cards = append(o.cards, c)
	}
	o.card = names[0]
	return nil
}

// simulated returns the card of a specification, and what lies on it beside the pool, for which it has room.
func (o *fitOptions) simulated(spec open.Spec) (card sim.Config, context uint64, err error) {
	card, context, err = simulated(spec, o.beside, o.given("beside"))
	if err == nil && !o.isFile && context > card.Total {
		err = fmt.Errorf("--beside: %s outside the pool is more than the card's %s", size.Format(context), size.Format(card.Total))
	}
	return card, context, err
}

// oneCard reads the card, and sets how many there are.
func (o *fitOptions) oneCard() (spec open.Spec, err error) {
	switch {
	case o.card == "":
		var one string
		if one, o.cfg.GPUs, err = open.Cards(o.device); err == nil {
			spec, err = open.Parse(one)
		}
		if err != nil {
			err = fmt.Errorf("--device: %w", err)
		}
		return spec, err
	case o.given("device"):
		return spec, errors.New("--card and --device are the same: leave one of them out")
	case strings.HasPrefix(o.card, "sim@"):
		return spec, fmt.Errorf("--card: %q is no card; --device takes it", o.card)
	}
	if spec, o.cfg.GPUs, err = open.Simulated(o.card); err != nil {
		err = fmt.Errorf("--card: %w", err)
	}
	return spec, err
}

// fillConfig sets what the words of the flags mean, and returns the values to try.
func (o *fitOptions) fillConfig() (values fit.Vary, err error) {
	cfg := &o.cfg
	if !o.given("beside") && fit.Named(cfg.Command) != "" {
		o.beside = fit.EngineContext
	}
	if err := o.fillCards(); err != nil {
		return values, err
	}
	spec, err := o.oneCard()
	if err != nil {
		return values, err
	}
	if o.vary != "" {
		if values, err = fit.ParseVary(o.vary); err != nil {
			return values, fmt.Errorf("--vary: %w", err)
		}
	}

	if cfg.Sim, cfg.Context, err = o.simulated(spec); err != nil {
		return values, err
	}
	if err := advise.Check(advise.Config{Sim: cfg.Sim, Context: cfg.Context, As: cfg.As}); err != nil {
		return values, err
	}
	if o.given("steps") {
		err = cfg.SetSteps(o.steps)
	}
	if o.given("for") && cfg.For == 0 && err == nil {
		err = errors.New("--for wants 1 or more steps")
	}
	if o.given("assume") && err == nil {
		if cfg.Assume, err = fit.ParseAssume(o.assume); err != nil {
			err = fmt.Errorf("--assume: %w", err)
		}
	}

	if err == nil {
		err = o.checkProgramFlags()
	}
	return values, err
}

// checkProgramFlags refuses what is for programs where there is none, and for those that end by
// themselves.
func (o *fitOptions) checkProgramFlags() error {
	engine := fit.Named(o.cfg.Command)
	for _, flag := range []string{"assume", "for", "full", "quiet", "record", "smallest", "steps", "vary"} {
		switch {
		case o.isFile && o.given(flag):
			return fmt.Errorf("--%s is for a program; %s is a file", flag, o.words[0])
		case engine != "" && slices.Contains([]string{"assume", "for", "full", "steps"}, flag) && o.given(flag):
			return fmt.Errorf("--%s is for programs that make steps; %s is ended when it is ready to serve", flag, engine)
		}
	}
	return nil
}
