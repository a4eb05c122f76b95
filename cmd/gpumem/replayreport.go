package main

// replay --report and --svg: where they write. What they show is in packages
// replay and report.

import (
	"context"
	"errors"
	"fmt"
	"io"

	"gpumem/replay"
	"gpumem/replay/timeline"
	"gpumem/report"
	"gpumem/trace"
)

// checkPictures says whether the files may be written, before a long recording
// is read. save is that of --save.
func checkPictures(recording, save, page, drawing string) error {
	for _, f := range []struct{ flag, path string }{{"--report", page}, {"--svg", drawing}, {"--save", save}} {
		if err := checkMakable(f.flag, f.path); err != nil {
			return err
		}
	}
	for _, f := range []struct{ flag, path string }{{"--report", page}, {"--svg", drawing}} {
		if f.path != "" && sameFile(recording, f.path) {
			return fmt.Errorf("%s %s: this is the recording itself; name another file", f.flag, f.path)
		}
	}
	for _, f := range []struct{ flag, path, other, otherPath string }{{"--svg", drawing, "--report", page}, {"--report", page, "--save", save}, {"--svg", drawing, "--save", save}} {
		if f.path != "" && (f.path == f.otherPath || sameFile(f.path, f.otherPath)) {
			return fmt.Errorf("%s %s: %s has the same file; name another", f.flag, f.path, f.other)
		}
	}
	return nil
}

// runReplay replays the recording, and writes its page and drawing where they have a
// path.
func runReplay(ctx context.Context, t *trace.Trace, cfg replay.Config, page, drawing string) (*replay.Report, error) {
	if page+drawing == "" {
		return replay.Run(ctx, t, cfg)
	}
	rep, p, err := timeline.Run(ctx, t, cfg)
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, errors.New("--report, --svg: nothing happens in this pool of the recording; name another by --pool")
	}
	if drawing != "" && len(p.Pools) > 1 {
		return nil, errors.New("--svg draws one pool, and the recording has several; name one by --pool")
	}
	for _, f := range []struct {
		flag, path string
		write      func(io.Writer, *report.Page) error
	}{{"--report", page, report.WritePage}, {"--svg", drawing, report.WriteSVG}} {
		if f.path == "" {
			continue
		}
		if err := writeWhole(ctx, f.path, func(w io.Writer) error { return f.write(w, p) }); err != nil {
			return nil, fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	return rep, nil
}
