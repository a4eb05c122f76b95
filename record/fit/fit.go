// Package fit finds whether a program fits a GPU without one: it runs the program
// unchanged on the simulated GPU, with its real compiler, records every allocation, and
// replays the recording under the framework's settings.
//
// # One program
//
// "python train.py" under JAX, for a card of 24 GiB. It is started with the simulated
// driver in the place of libcuda.so.1, and the pool library before it, which serves every
// request and records it. JAX compiles for a GPU of 24 GiB; its kernels do nothing. When
// memory repeats, the start-up file (start.py) ends the program. The recording goes to
// package advise: what fits 24 GiB, and which card would do.
//
// PyTorch's own allocator runs there, too, and its own recorder notes the requests, with
// the lines of the program (torch.py).
//
// In that run JAX is never refused memory: the simulated GPU has 1 TiB, and only the compiler
// receives the card's size. So what JAX needs is known where it does not fit, too. PyTorch finds
// the card's size wherever it asks for it, and is served beyond, too, but for requests whose
// refusal the program would catch (beyond.py). Other programs may be refused memory on the card.
// They are run a second time, in which all is granted.
//
// # What differs from a real GPU
//
// See [Report.Differences]. No private interface of NVIDIA's libraries is imitated: a
// program that needs one fails, with its own error.
package fit

import (
	"cmp"
	"context"
	"debug/elf"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gpumem/device/open"
	"gpumem/device/sim"
	"gpumem/node/library"
	"gpumem/node/simulate"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/record/advise"
	"gpumem/record/internal/engine"
	"gpumem/record/internal/torch"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
)

// The start-up file, with its parts.
//
//go:embed *.py
var startUp embed.FS

// writeStart writes the start-up file into a new folder. Its parts have names that no
// module of a program has.
func writeStart(folder string) error {
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	files, err := startUp.ReadDir(".")
	if err != nil {
		return err
	}
	for _, f := range files {
		to := "gpumem_fit_" + f.Name()
		if f.Name() == "start.py" {
			to = "sitecustomize.py" // which Python imports
		}
		text, err := startUp.ReadFile(f.Name())
		if err == nil {
			err = os.WriteFile(filepath.Join(folder, to), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	name, text := simulate.Module()
	return os.WriteFile(filepath.Join(folder, name), text, 0o600)
}

// largest is the largest GPU that a program is tried on, in bytes: more than any card.
const largest = 1 << 40

// Config describes the program and the card.
type Config struct {
	Command []string   // the program and its arguments
	Env     []string   // its environment, NAME=value
	Sim     sim.Config // the card, see advise.Config
	GPUs    int        // how many of the card the machine has; 0 means 1
	Context uint64     // bytes that the program takes beside its pool
	As      string     // the framework to answer for, see advise.Config; "" means that of the program
	Full    bool       // the program runs to its end, also when memory repeats
	// Steps is after how many steps the program is ended, at least 2; 0: it is not. A step is,
	// under JAX, a run of the compiled function that takes the most memory of those that ran,
	// in TensorFlow one of the tf.function that ran most, and in PyTorch one of an optimizer. In
	// others there are none.
	Steps  int
	Assume Assume // in place of zeros; for JAX and PyTorch
	// For is how many steps the program is to make on the card; 0: those of the run. One that grows
	// may fit for fewer.
	For uint64
	// Stop, when it is closed, ends the program; the answer is about what ran. nil: it is not ended so.
	Stop <-chan struct{}
	// Smallest has the program compiled for and run on the smallest card that the first
	// run shows, and on smaller ones until it does not fit: a compiler takes less memory
	// where there is less.
	Smallest bool
	Record   string // a file for the recording, which must not exist; "" for none
	// Stdout and Stderr are the program's, written to by two goroutines; nil discards.
	Stdout, Stderr io.Writer

	options map[string]string // of an engine, in place of the program's
	ofCard  []string          // those of them that the engine chose for the card, which nobody gave it

	// Progress, if set, is called with what is being done.
	Progress func(doing string, part float64)
	// Again, if set, is called with why the program is about to be started another time.
	Again func(why string)
}

// stopped reports whether Stop is closed.
func (cfg *Config) stopped() bool {
	select {
	case <-cfg.Stop:
		return true
	default:
		return false
	}
}

// errStopped is the error of a run that Config.Stop ended before there was anything to answer.
var errStopped = fmt.Errorf("stopped before it took GPU memory: %w", context.Canceled)

// SetSteps sets Steps.
func (cfg *Config) SetSteps(n int) error {
	if n < 2 || cfg.Full {
		return errors.New("--steps wants 2 or more, and no --full, which runs the program to its end")
	}
	cfg.Steps = n
	return nil
}

// Compiled is a compiled function and the bytes that it takes while it runs. Its results
// may lie in the memory of arguments: Alias.
type Compiled struct {
	Name     string `json:"name"`
	Argument uint64 `json:"argument_bytes"`
	Output   uint64 `json:"output_bytes"`
	Alias    uint64 `json:"alias_bytes"`
	Temp     uint64 `json:"temp_bytes"`
	Code     uint64 `json:"code_bytes"`

	path string // of its module; "" if there is none
}

// Total is what the function takes while it runs, its arguments included.
func (c Compiled) Total() uint64 {
	return c.Argument + c.Output - min(c.Alias, c.Output) + c.Temp + c.Code
}

// program is what the run found beside its allocations.
type program struct {
	Framework string `json:"framework"` // "jax", "tensorflow" or "pytorch"; "" if it is not known
	Version   string `json:"version"`
	// Repeats reports that the program was ended because its memory repeated.
	Repeats bool `json:"repeats"`
	// Stepped reports that it was ended after Config.Steps steps.
	Stepped bool `json:"stepped"`
	// Interrupted reports that it was ended by Config.Stop.
	Interrupted bool `json:"interrupted,omitempty"`
	// Steps is how many steps ran, see Config; 0 if it is not known, as under JAX without Config.Steps.
	Steps uint64 `json:"steps,omitempty"`
	// Own are the memory settings of the framework that the environment or the program
	// has, NAME=value, or NAME(arguments) of a function that it calls. The answer is
	// without them.
	Own []string `json:"own,omitempty"`
	// Compiled are the functions that were alive at the end, the largest first.
	Compiled []Compiled `json:"compiled"`
	// Lines are the lines of a PyTorch program whose memory is live at the peak, the
	// largest first.
	Lines []Place `json:"lines,omitempty"`
	// Shares is what each process has of each GPU, if there are several.
	Shares []Share `json:"processes,omitempty"`
	// Notes are what the libraries of the simulated GPU say about their figures, a sentence each.
	Notes []string `json:"notes,omitempty"`
	// RanOn is the size of the simulated GPU on which the program was served, in bytes: that of the
	// card if it had one run, in which JAX and PyTorch are served beyond it.
	RanOn uint64 `json:"ran_on_bytes"`
	// Caught is how often PyTorch was refused memory as on the card, since the program catches the
	// error: at CaughtAt, "train.py:12". It is 0 where it was run again and was refused nothing.
	Caught   uint64   `json:"caught,omitempty"`
	CaughtAt []string `json:"caught_at,omitempty"`
	// TooLarge reports that it was refused memory on the largest simulated GPU, too, whose
	// size is RanOn. Then nothing fits, and nothing else is known.
	TooLarge bool `json:"too_large,omitempty"`

	peak    uint64     // by PyTorch's allocator; 0 if it is not known
	forCPU  bool       // its framework is built without CUDA
	ended   bool       // it came to its own end
	name    string     // of the process, see start.py
	end     uint64     // when, in nanoseconds since 1970
	sizes   []SizeCall // see Doubt
	watched bool       // sizes has all calls of a process
	// beyond reports of one process that PyTorch's requests beyond the card were granted, but for those that were caught.
	beyond  bool
	buckets uint64 // bytes of the gradients' buckets of DistributedDataParallel, of the process with the most
}

// tried is a run of the program for a card, see Config.Smallest.
type tried struct {
	Card uint64 `json:"card_bytes"` // nominal
	outcome
}

// outcome is a run in short.
type outcome struct {
	Fits bool     `json:"fits"`
	Set  []string `json:"set"`        // see Summary.Settings, NAME=VALUE
	Peak uint64   `json:"peak_bytes"` // live at the peak of the GPU with the most; 0 if it was refused memory before
}

func (s *Summary) outcome() outcome { return outcome{s.Fits, lineOf(s.Settings), s.PeakBytes} }

// Report is the answer. Its JSON is that of gpumem advise, with the program.
type Report struct {
	*advise.Report
	Summary
	// AsItIs is FitsAsItIs, for the steps that it is to make.
	AsItIs  bool      `json:"fits_as_it_is"`
	Program program   `json:"program"`
	Peaks   []Peak    `json:"peaks"`               // of each GPU
	Breaks  *Breaks   `json:"breaks_at,omitempty"` // for JAX; nil if the program fits as it is
	Tried   []tried   `json:"tried,omitempty"`     // with Config.Smallest, the largest first
	Varied  *Varied   `json:"vary,omitempty"`      // of RunVary
	Engine  *Engine   `json:"engine,omitempty"`    // of an engine that serves models; of the rest only Summary and Trace are filled
	Ran     []RanCard `json:"cards,omitempty"`     // of RunCards
	NotKept error     `json:"-"`                   // why there is no file Config.Record

	chosen map[string]string // see engineRefused
	ofCard []string          // those of them that nobody gave
	onAny  bool              // a larger card is refused to the engine for the same reason
}

// Differences are the ways in which the run differed from one on a card, a sentence each.
func (r *Report) Differences() []string {
	if r.Engine != nil {
		return engineDifferences(r.Engine)
	}
	list := []string{
		"Kernels did nothing, so results mean nothing: a loop that ends by a value of the GPU may end at once, or never.",
		"No kernel was chosen by a measurement, so workspaces of libraries may differ.",
	}
	if len(r.Peaks) > 1 {
		list = append(list, "Nothing was sent between the GPUs: what NCCL takes of them is not counted (.2 to 1.4 GiB in start-up logs of vLLM on several cards), and belongs into --beside.")
	}
	if !r.Program.watched && r.Program.Framework != "" {
		list = append(list, sizesDiffer)
	}
	list = append(list, r.Program.Notes...)
	switch r.Program.Framework {
	case "pytorch":
		list = append(list, torchDiffers)
	case "tensorflow":
		list = append(list, "Threads of TensorFlow take memory in another order in each run, so its peak varies: leave some room.")
	}
	return list
}

// FailedError is the error of a program that failed for another reason than memory.
type FailedError struct {
	Err   error  // how it ended
	Last  string // its exception, or the last line that it wrote to standard error
	Sizes string // a Doubt that may be the reason; "" if there is none
}

func (e *FailedError) Error() string {
	text := fmt.Sprintf("the program failed on the simulated GPU, and not for lack of memory (%v)", e.Err)
	if e.Last != "" {
		text += ": " + e.Last
	}
	if e.Sizes != "" {
		text += ". " + e.Sizes
	}
	return text
}

func (e *FailedError) Unwrap() error { return e.Err }

// ErrNoGPU is the error of a program that took no GPU memory.
var ErrNoGPU = errors.New("the program took no GPU memory")

// The errors of a run whose recording is no answer.
var (
	errNotReady   = errors.New("the engine did not become ready")
	errNoStart    = errors.New("the program's Python has read no start-up file, so JAX and PyTorch were not prepared: run it without -I, -E and -S, and add to PYTHONPATH instead of replacing it")
	errNotAssumed = errors.New("--assume is for programs of JAX and of PyTorch from 2.5 on: the sizes of this one are as they were")
	errNotWhole   = errors.New("the recording is not whole: the disk of TMPDIR is full")
)

// Run answers. Errors: of the configuration, that the libraries are missing, ErrNoGPU, a
// *FailedError, or those of advise.Run.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	front, driver, err := cfg.check()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "gpumem-fit-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if dir, err = filepath.Abs(dir); err != nil { // the program may change its folder
		return nil, err
	}
	if strings.ContainsAny(dir, ",:") { // which end a word in lists of folders and of a device
		return nil, fmt.Errorf("folder %s: its name has a comma or colon; set TMPDIR to one without", dir)
	}
	defer guard(dir)()
	r := runs{ctx, dir, front, driver}
	report, err := r.served(cfg)
	if err != nil || !cfg.Smallest || report.SmallestCard == nil {
		return report, err
	}
	cfg.Record = ""
	for card := *report.SmallestCard; card != 0 && !cfg.stopped(); card = advise.Smaller(card) {
		cfg.Sim.Total, cfg.Sim.Used, cfg.Sim.Display = advise.Usable(card), 0, 0
		smaller, refused, err := r.once(cfg, cfg.Sim.Total, false)
		if err != nil {
			return nil, err
		}
		t := tried{card, outcome{Set: []string{}}}
		if refused == "" {
			t.outcome = smaller.outcome()
		}
		if report.Tried = append(report.Tried, t); !t.Fits {
			break
		}
	}
	return report, nil
}

// runs runs a program.
type runs struct {
	ctx                context.Context
	dir, front, driver string // for files, of the pool library, of the simulated driver
}

// served runs the program until it is served: a second time beyond the card if it was refused
// memory. An engine, which takes what the card has, is run on larger ones.
func (r *runs) served(cfg Config) (*Report, error) {
	report, refused, err := r.once(cfg, cfg.Sim.Total, false)
	switch {
	case err == nil && refused != "" && cfg.stopped():
		return nil, errStopped
	case err == nil && report != nil && refused != "":
		return r.larger(cfg, report, refused)
	}
	if err == nil && report == nil {
		cfg.again(refused + "; running it again on a simulated GPU of 1 TiB that shows the card's size, to learn what it needs")
		report, _, err = r.once(cfg, cfg.Sim.Total, true)
	}
	return report, err
}

// larger runs an engine that was refused memory on a card of twice the size, where it chooses most as on
// this one, and else on the largest.
func (r *runs) larger(cfg Config, first *Report, refused string) (*Report, error) {
	if first.onAny {
		return first, nil
	}
	report, err := first, error(nil)
	cfg.ofCard = first.ofCard
	cfg.options = chosen(first.chosen, cfg.options)
	for _, on := range []uint64{min(2*cfg.Sim.Total, largest), largest} {
		if on <= report.Engine.RefusedOn {
			continue
		}
		cfg.again(fmt.Sprintf("%s; starting the engine again on a simulated GPU of %s to learn what it needs", refused, size.Format(on)))
		if report, refused, err = r.once(cfg, on, false); err != nil {
			return nil, err
		}
		if refused != "" && cfg.stopped() {
			return nil, errStopped
		}
		if report == nil { // it was refused memory, and did not say why
			report = engineRefused(cfg, first.Program, refused, nil, on)
		}
		if report.Engine == nil || refused == "" {
			break
		}
	}
	if report.Engine != nil {
		report.Engine.Reason = first.Engine.Reason
	}
	return report, nil
}

func (cfg *Config) again(why string) {
	if cfg.Again != nil {
		cfg.Again(why)
	}
}

// check finds what is wrong before the run, which may take long, and returns the folders of
// the pool library and of the simulated driver.
func (cfg *Config) check() (front, driver string, err error) {
	path, err := exec.LookPath(cfg.Command[0])
	if err != nil {
		return "", "", noProgram(cfg.Command[0], err)
	}
	if cfg.Sim.Total > largest {
		return "", "", fmt.Errorf("a card of %s: a program is tried on at most %s", size.Format(cfg.Sim.Total), size.Format(largest))
	}
	if err := cfg.checkVisible(); err != nil {
		return "", "", err
	}
	if front, driver, err = folders(cfg.Env); err != nil {
		return "", "", err
	}
	if err := errors.Join(library.Check(path), checkDriver(driver)); err != nil {
		return "", "", err
	}
	if cfg.Record == "" {
		return front, driver, nil
	}
	f, err := os.OpenFile(cfg.Record, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		err = errors.Join(f.Close(), os.Remove(cfg.Record))
	}
	return front, driver, err
}

// checkVisible refuses an environment that hides the simulated GPUs, as one for a machine with other
// GPUs may. Their UUIDs are new in each run, so nobody knows them.
func (cfg *Config) checkVisible() error {
	n := max(cfg.GPUs, 1)
	value, ok := policy.Environ(cfg.Env).Lookup(open.VisibleVar)
	if !ok || len(open.Visible(value, make([]string, n))) > 0 {
		return nil
	}
	return fmt.Errorf("%s=%s hides the simulated GPUs, of which there are %d: unset it, or name them from 0 on", open.VisibleVar, value, n)
}

// checkDriver refuses a simulated driver that was built before the start-up file that is to call it.
func checkDriver(folder string) error {
	path := filepath.Join(folder, "libcuda.so.1")
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("simulated driver %s: %w", path, err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err == nil && !slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == "gpumemSimBeyond" }) {
		err = errors.New("it is of an older release than this gpumem: set GPUMEM_LIB to libraries of the same one")
	}
	if err != nil {
		return fmt.Errorf("simulated driver %s: %w", path, err)
	}
	return nil
}

// noProgram returns the error of a word that names no program, with what was meant.
func noProgram(word string, err error) error {
	switch {
	case exists(filepath.Join(word, modelConfig)):
		return ofModel(word, word)
	case !exists(word):
		return fmt.Errorf("%s: no such file, and no such program on PATH (%w)", word, err)
	case strings.HasSuffix(word, ".py"):
		return pythonProgram(word)
	}
	return err
}

// modelConfig is the file of a model's folder that says what it is.
const modelConfig = "config.json"

// ofModel returns the error of a word that names a model and no program.
func ofModel(word, folder string) error {
	return fmt.Errorf("%s is of a model: gpumem fit --model %s starts an engine that serves it", word, folder)
}

// pythonProgram returns the error of a Python program that is named without its Python.
func pythonProgram(path string) error {
	return fmt.Errorf("%s is a Python program: gpumem fit -- python %s", path, path)
}

// folders returns the folders of the pool library and of the simulated driver.
func folders(env []string) (front, driver string, err error) {
	if driver, err = simulate.Folder(policy.Environ(env).Get); err != nil {
		return "", "", err
	}
	return filepath.Dir(driver), driver, nil
}

// once runs the program on a GPU of a size, of which it is granted more than there is if beyond is
// set. refused is how it was refused memory, if it was and is to be run again.
func (rs *runs) once(cfg Config, on uint64, beyond bool) (report *Report, refused string, err error) {
	if cfg.Progress != nil {
		cfg.Progress("running the program on a simulated GPU of "+size.Format(on), 0)
	}
	r, err := rs.start(cfg, on, beyond)
	if err != nil {
		return nil, "", err
	}
	defer r.close()
	p, err := r.program()
	if err != nil {
		return nil, "", r.failure(err)
	}
	unread := r.read(rs.ctx)
	notes, unreadNotes := r.engineNotes(on)
	if a := engine.New(notes); a != nil && unread == nil {
		if unreadNotes != nil {
			a.Doubts = append(a.Doubts, unreadNotes.Error())
		}
		p.RanOn = on
		return answerEngine(cfg, p, r, a), "", nil
	}

	p.Interrupted = r.stopped
	if p.RanOn = on; beyond {
		p.RanOn = largest
	}
	why, ofMemory := engine.Refused(notes)
	refused = r.refusal(p, ofMemory)
	err = r.wrong(cfg, &p, refused, notes, cmp.Or(unreadNotes, unread))
	switch {
	case err != nil:
		return nil, "", err
	case refused == "":
		report, err = rs.answer(cfg, p, r)
		return report, "", err
	case why != "":
		return engineRefused(cfg, p, why, notes, on), refused, nil
	case !beyond && !r.servedBeyond():
		return nil, refused, nil
	}
	return tooLarge(cfg, p, r.largestTrace()), "", nil
}

// wrong returns why a run is no answer, nor one that was refused memory: the program failed, an engine was not ready, or what
// was recorded cannot be read. nil if it is one.
func (r *ran) wrong(cfg Config, p *program, refused string, notes []*engine.Note, unread error) error {
	why, ofMemory := engine.Refused(notes)
	switch {
	case r.stopped && len(notes) > 0:
		return errStopped // before it was ready
	case why != "" && !ofMemory:
		return &FailedError{Err: errNotReady, Last: why}
	case why != "":
		return nil
	case exists(r.found + ".python"):
		return errNoStart
	case refused != "":
		return nil
	case r.failed != nil:
		if Named(cfg.Command) != "" {
			r.failed.Last = engine.WithWay(r.failed.Last)
		}
		r.failed.Sizes = sizesText(p, cfg.Assume)
		return r.failed
	}
	return unread
}

// refusal returns how a run ended for lack of memory, as text for people; "" if it did not. A
// refusal that the program has caught is none if it came to a good end.
func (r *ran) refusal(p program, short bool) string {
	switch {
	case r.failed != nil && p.Caught > 0:
		return fmt.Sprintf("the program caught that it was refused memory (%s), and failed all the same", strings.Join(p.CaughtAt, ", "))
	case r.refused() || r.failed.ofMemory() || short:
		return "the program was refused memory on the card"
	}
	return ""
}

// servedBeyond reports whether each process that was refused memory was granted what the simulated GPU of 1 TiB
// had. Where no recording shows which one was, any may have been.
func (r *ran) servedBeyond() bool {
	refused := slices.DeleteFunc(slices.Clone(r.processes), func(p *process) bool { return !p.wasRefused() })
	if len(refused) == 0 {
		refused = r.processes
	}
	return len(refused) > 0 && !slices.ContainsFunc(refused, func(p *process) bool { return !p.beyond })
}

// servedBeyond reports whether what ran in a process was refused nothing that the simulated GPU of 1 TiB had.
func (p *program) servedBeyond() bool { return p.Framework == "jax" || p.beyond && p.Caught == 0 }

// answer is the report about a run that was served.
func (rs *runs) answer(cfg Config, p program, r *ran) (*Report, error) {
	switch {
	case r.lost:
		return nil, errNotWhole
	case len(r.processes) == 0 && r.stopped:
		return nil, errStopped
	case len(r.processes) == 0:
		return nil, noGPU(p)
	case cfg.As == "" && r.mixed() != nil:
		return nil, r.mixed()
	case len(cfg.Assume) > 0 && !p.watched:
		return nil, errNotAssumed
	}
	t, err := r.join(rs.ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer t.Close()
	return answer(rs.ctx, cfg, p, t, r)
}

// start runs the program on a GPU of a size, in a new folder, see once.
func (rs *runs) start(cfg Config, on uint64, beyond bool) (*ran, error) {
	folder, err := os.MkdirTemp(rs.dir, "run")
	if err != nil {
		return nil, err
	}
	startup := filepath.Join(folder, "start")
	if err := writeStart(startup); err != nil {
		return nil, err
	}
	r := &ran{folder: folder, found: filepath.Join(folder, "found"), gone: map[int]uint64{}}
	gpus, err := r.cards(cfg, "gpus", on)
	if err != nil {
		return nil, err
	}
	unlimited, err := r.cards(cfg, "unlimited", largest)
	if err != nil {
		return nil, err
	}
	own := [][2]string{
		{"GPUMEM_SIM_NOTES", r.file("notes")}, {"GPUMEM_RECORD", r.file("record")}, {"GPUMEM_RECORD_WHOLE", r.file("whole")}, {"GPUMEM_FIT", r.found}, {"GPUMEM_DEVICE", gpus},
		{"GPUMEM_BEYOND", fmt.Sprint(largest)}, {"GPUMEM_FIT_DEVICE", unlimited}, {"GPUMEM_FIT_TOTAL", fmt.Sprint(compilerTotal(on))}, {"GPUMEM_FIT_ENGINE", cfg.engineOptions()},
		{"GPUMEM_FIT_OF_CARD", strings.Join(cfg.ofCard, ",")},
	}
	if beyond {
		own = append(own, [2]string{"GPUMEM_SIM_BEYOND", "1"}, [2]string{"GPUMEM_FIT_BEYOND", "1"})
	}
	env, err := environment(cfg, rs.front, rs.driver, startup, own)
	if err != nil {
		return nil, err
	}
	if r.failed, err = execute(rs.ctx, cfg, env, r); err != nil {
		return nil, err
	}
	return r, r.failure(r.find())
}

// failure returns the error about a run whose files cannot be read: that of the program goes first.
func (r *ran) failure(err error) error {
	if err != nil && r.failed != nil && !r.failed.ofMemory() {
		return r.failed
	}
	return err
}

// answer is the report about a program that was served, by the recording of its processes.
func answer(ctx context.Context, cfg Config, p program, t *trace.Trace, r *ran) (*Report, error) {
	var err error
	if p.Shares, err = shares(ctx, t); err != nil {
		return nil, err
	}
	if t.Format == torch.Format.Name {
		if p.Lines, err = lines(ctx, t, ""); err != nil {
			return nil, err
		}
	}
	advice, err := advise.Run(ctx, t, advise.Config{Sim: cfg.Sim, Context: cfg.Context, As: cmp.Or(cfg.As, p.as()), Members: r.members, Steps: p.Steps, Progress: cfg.Progress})
	if err != nil {
		return nil, err
	}
	advice.Trace.Source = strings.Join(cfg.Command, " ")
	report := &Report{Report: advice, Program: p}
	if cfg.Record != "" {
		report.NotKept = r.keep(cfg.Record)
	}
	if err := report.explain(ctx, t); err != nil {
		return nil, err
	}
	report.Summary = report.summarize()
	report.Doubts = append(doubts(&report.Program, cfg.Assume, cfg.Steps), report.growth(cfg.For)...)
	report.AsItIs = report.Fits && report.FitsAsItIs
	return report, nil
}

// bareReport is an answer without a replay: about an engine, or a program of which no more is known than that it was
// refused memory, and what it had by then if t is not nil.
func bareReport(cfg Config, p program, t *trace.Trace) *Report {
	r := &Report{
		Report: &advise.Report{
			DeviceBytes: cfg.Sim.Total, UsedBytes: cfg.Sim.Used + cfg.Sim.Display, ContextBytes: cfg.Context, Candidates: []*advise.Candidate{},
		},
		Summary: Summary{Outside: cfg.Context, Contents: []item{}, Settings: []pair{}, Doubts: []Doubt{}},
		Program: p, Peaks: []Peak{},
	}
	if t != nil {
		r.Trace, r.PeakBytes = replay.Describe(t), t.PeakLive
	}
	r.Trace.Source = strings.Join(cfg.Command, " ")
	r.Differs = r.Differences()
	return r
}

// tooLarge is the answer about a program that is refused memory on the largest GPU: it may
// need more, or take all that it can get. What it had by then is known, if t is not nil.
func tooLarge(cfg Config, p program, t *trace.Trace) *Report {
	p.RanOn, p.TooLarge = largest, true
	r := bareReport(cfg, p, t)
	if cfg.Record != "" {
		r.NotKept = notServed(cfg.Record)
	}
	return r
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// keep copies a recording to a new file.
func keep(record, to string) error {
	from, err := os.Open(record)
	if err != nil {
		return err
	}
	defer from.Close()
	file, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		err = errors.Join(fmt.Errorf("%s: the recording is not kept: %w", to, err), os.Remove(to))
	}
	return err
}

// readProgram reads what the start-up file of a process wrote, which it does of a framework that it knows. There is no
// file of other processes.
func readProgram(path string) (program, error) {
	var f struct {
		Framework, Version, Reason string
		Name                       string
		Own                        map[string]*string // no value: a function that it calls
		Peak                       uint64             `json:"peak_bytes"`
		Time, Steps                uint64
		Sizes                      []SizeCall
		Beyond                     bool
		Caught                     uint64
		CaughtAt                   []string `json:"caught_at"`
		Buckets                    uint64
		Programs                   []struct {
			Compiled
			Module string
		}
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return program{Compiled: []Compiled{}}, nil
	}
	if err == nil {
		if err = json.Unmarshal(text, &f); err != nil {
			err = fmt.Errorf("what a process has noted in %s: it is not whole: %w", filepath.Base(path), err)
		}
	}
	p := program{
		Framework: f.Framework, Version: f.Version, Repeats: f.Reason == "repeats", Stepped: f.Reason == "steps", Compiled: []Compiled{},
		peak: f.Peak, ended: f.Reason == "end", forCPU: f.Reason == "no cuda", Steps: f.Steps, sizes: f.Sizes, watched: f.Sizes != nil,
		beyond: f.Beyond, Caught: f.Caught, CaughtAt: f.CaughtAt, buckets: f.Buckets,
	}
	p.name = f.Name
	if p.ended || f.Reason == "failed" {
		p.end = f.Time
	}
	for _, c := range f.Programs {
		c.path = c.Module
		p.Compiled = append(p.Compiled, c.Compiled)
	}
	for name, value := range f.Own {
		if value != nil {
			name += "=" + *value
		}
		p.Own = append(p.Own, name)
	}
	p.sort()
	return p, err
}

// sort puts what was found in order, each once.
func (p *program) sort() {
	slices.SortStableFunc(p.Compiled, func(a, b Compiled) int {
		return cmp.Or(cmp.Compare(b.Total(), a.Total()), strings.Compare(a.Name, b.Name))
	})
	p.Compiled = slices.CompactFunc(p.Compiled, func(a, b Compiled) bool { a.path, b.path = "", ""; return a == b })
	slices.Sort(p.Own)
	p.Own = slices.Compact(p.Own)
	slices.Sort(p.CaughtAt)
	p.CaughtAt = slices.Compact(p.CaughtAt)
}

// add adds what another process found.
func (p *program) add(other program) {
	if p.Framework == "" {
		p.Framework, p.Version, p.forCPU = other.Framework, other.Version, other.forCPU
	}
	p.Repeats = p.Repeats || other.Repeats
	p.Stepped = p.Stepped || other.Stepped
	p.Own, p.Compiled = append(p.Own, other.Own...), append(p.Compiled, other.Compiled...)
	p.peak += other.peak
	p.Steps = max(p.Steps, other.Steps)
	p.sizes, p.watched = addCalls(p.sizes, other.sizes), p.watched || other.watched
	p.buckets = max(p.buckets, other.buckets)
	p.Caught, p.CaughtAt = p.Caught+other.Caught, append(p.CaughtAt, other.CaughtAt...)
	p.sort()
}

// environment is the program's, with the simulated GPU, the recorder, and what is run's own.
func environment(cfg Config, front, driver, startup string, run [][2]string) ([]string, error) {
	p, err := frameworks.Parse("elastic")
	if err != nil {
		return nil, err
	}
	pool, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	env := slices.DeleteFunc(slices.Clone(cfg.Env), func(line string) bool {
		name, _, _ := strings.Cut(line, "=")
		return strings.HasPrefix(name, "GPUMEM_")
	})
	full := "0"
	if cfg.Full {
		full = "1"
	}
	// The start-up file takes the program's own memory settings out, and reports them.
	own := []simulate.Setting{
		simulate.Before(library.EnvSearch, front, "the pool library comes before the simulated driver"),
		simulate.Before("PYTHONPATH", startup, "Python's start-up file for a run of fit"),
		simulate.Keep("TF_CPP_MIN_LOG_LEVEL", "3", "the pool's report is of no use where the program is run again on a larger card"),
	}
	run = append([][2]string{
		{"GPUMEM_POOL", "elastic"}, {"GPUMEM_POLICY", string(pool)}, {"GPUMEM_REPORT", "0"},
		{"GPUMEM_FIT_FULL", full}, {"GPUMEM_FIT_STEPS", strconv.Itoa(cfg.Steps)}, {"GPUMEM_FIT_ASSUME", cfg.Assume.text()},
	}, run...)
	for _, v := range run {
		own = append(own, simulate.Replace(v[0], v[1], "of a run of fit"))
	}
	return simulate.Apply(env, append(simulate.Settings(driver), own...)), nil
}

// compilerTotal returns the total of a device with which XLA compiles as for JAX's defaults on
// one of on bytes. XLA's limit is that of the pool, three quarters of the device. The
// allocator of the run reports no limit, and then XLA takes 80 % of the device's total.
func compilerTotal(on uint64) uint64 { return (on/4*3*100 + 79) / 80 }
