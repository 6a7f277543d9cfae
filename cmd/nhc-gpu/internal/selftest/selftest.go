// Package selftest shows that checks detect faults, on nodes that are made up.
package selftest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/run"
	"github.com/nhc-gpu/nhc-gpu/checks/run/wire"
	"github.com/nhc-gpu/nhc-gpu/checks/selftest"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// Command returns the command; it sets the exit status.
func Command(version string, exit *int) *cobra.Command {
	var asJSON bool
	var file string
	cmd := &cobra.Command{
		Use:   "selftest [CHECK...]",
		Short: "Prove that each check of GPUs and the fabric can fail",
		Long: `Has the checks of GPUs judge nodes that are made up: healthy ones, and for each
way in which a check can fail one where a single GPU of eight is ill. A line for
each says what is broken and what the check said. It needs no root and no GPU,
looks at nothing of this machine, and changes nothing on it. Exit status is 0
if every check said what it should, no more and no less, 1 if one did not, 10 if
that could not be tried.`,
		Example: `  nhc-gpu selftest
  nhc-gpu selftest check_gpu_ecc
  nhc-gpu selftest --file ours.toml`,
		RunE: func(cmd *cobra.Command, names []string) error {
			list, err := selftestsOf(names, file)
			if err != nil {
				return fmt.Errorf("selftest: %w", err)
			}
			bench, err := selftest.NewBench()
			if err != nil {
				return fmt.Errorf("selftest: %w", err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			attempts, err := tryAll(ctx, bench, list)
			if err := errors.Join(err, bench.Close()); err != nil {
				return fmt.Errorf("selftest: %w", err)
			}
			if ctx.Err() != nil {
				return errors.New("selftest: interrupted")
			}
			if err := printAttempts(os.Stdout, version, attempts, asJSON); err != nil {
				return fmt.Errorf("selftest: %w", err)
			}
			if slices.ContainsFunc(attempts, func(t attempt) bool { return !t.OK }) {
				*exit = 1
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object of JSON")
	cmd.Flags().StringVar(&file, "file", "", "try the scenarios of this file (docs/reference/selftest.md) in place of the built-in ones")
	return cmd
}

// selftestsOf are the scenarios of some checks, or of all.
func selftestsOf(names []string, file string) ([]selftest.Scenario, error) {
	list, err := selftest.All()
	if file != "" {
		pool := run.NewPool(run.Options{Root: "/"})
		defer pool.Close()
		f, unread := pool.Call(context.Background(), checks.Local, &wire.Request{Op: wire.OpRead, Path: file, Line: "read " + file}, session.Reading).File("read " + file)
		switch {
		case unread != nil:
			return nil, unread
		case f.Missing:
			return nil, fmt.Errorf("read %s: no such file", file)
		}
		if list, err = selftest.Parse(string(f.Data)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	if err != nil || len(names) == 0 {
		return list, err
	}
	var have []string
	for i := range list {
		have = append(have, list[i].Check)
	}
	have = slices.Compact(slices.Sorted(slices.Values(have)))
	for _, name := range names {
		if !slices.Contains(have, name) {
			return nil, fmt.Errorf("no scenario is of %q, there are some of %s", name, strings.Join(have, ", "))
		}
	}
	return slices.DeleteFunc(list, func(s selftest.Scenario) bool { return !slices.Contains(names, s.Check) }), nil
}

// attempt is one scenario and what came of it.
type attempt struct {
	Check    string           `json:"check"`
	Scenario string           `json:"scenario"`
	Words    []string         `json:"words,omitempty"`
	OK       bool             `json:"ok"`
	Wrong    []string         `json:"wrong,omitempty"`
	Findings []checks.Finding `json:"findings,omitempty"`
}

func tryAll(ctx context.Context, bench *selftest.Bench, list []selftest.Scenario) ([]attempt, error) {
	attempts := make([]attempt, 0, len(list))
	for i := range list {
		if ctx.Err() != nil {
			break
		}
		s := &list[i]
		found, wrong, err := bench.Try(ctx, s)
		if err != nil {
			return nil, err
		}
		attempts = append(attempts, attempt{Check: s.Check, Scenario: s.Name, Words: s.Words, OK: len(wrong) == 0, Wrong: wrong, Findings: found})
	}
	return attempts, nil
}

func printAttempts(out io.Writer, version string, attempts []attempt, asJSON bool) error {
	names, wrong := map[string]bool{}, 0
	for i := range attempts {
		if names[attempts[i].Check] = true; !attempts[i].OK {
			wrong++
		}
	}
	if asJSON {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		return e.Encode(map[string]any{"version": version, "ok": wrong == 0, "wrong": wrong, "scenarios": attempts})
	}
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	for i := range attempts {
		t := &attempts[i]
		if t.OK {
			fmt.Fprintf(w, "ok\t%s\t%s\t%s\n", t.Check, t.Scenario, said(t))
			continue
		}
		fmt.Fprintf(w, "WRONG\t%s\t%s\t%s\n", t.Check, t.Scenario, strings.Join(t.Wrong, "\n\t\t\t"))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	verdict := "each check said what it should, and named the right GPU"
	if wrong > 0 {
		verdict = fmt.Sprintf("%d WRONG: do not trust these checks, and report it (docs/reference/selftest.md)", wrong)
	}
	_, err := fmt.Fprintf(out, "\nnhc-gpu %s: %s of %s: %s\n", version, console.Counted(len(attempts), "scenario"), console.Counted(len(names), "check"), verdict)
	return err
}

// said is what a check said, on one line.
func said(t *attempt) string {
	if len(t.Findings) == 0 {
		return "passes"
	}
	f := t.Findings[0]
	text := f.Severity.String() + ": " + strings.TrimPrefix(f.Message, t.Check+":  ")
	if n := len(t.Findings) - 1; n > 0 {
		text += fmt.Sprintf(" (and %d more)", n)
	}
	return text
}
