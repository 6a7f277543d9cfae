// Package selftest shows that checks detect faults, on simulated nodes.
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
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// Command returns the command; it sets the exit status. installed prints what the configuration of
// the node does about faults.
func Command(version string, exit *int, installed func(faults []session.KnownFault, words []string, asJSON, all bool) (int, error)) *cobra.Command {
	var asJSON, verbose, ofSite bool
	var file string
	cmd := &cobra.Command{
		Use:   "selftest [CHECK...]",
		Short: "Show that GPU and fabric checks detect one faulty device",
		Long: `Runs the checks of GPUs, ports and disks on simulated nodes: healthy ones, and for
each fault that a check detects a node with one faulty device out of eight. Prints
one line per check, and each scenario with a wrong or missing finding; -v prints
all scenarios. Needs no root and no GPU; neither reads nor changes this machine.

With --installed it then reads the configuration of this node, and lists the faults
that it would not act on, with the line or policy that decides; -v lists all. It
judges lines and policies, not the arguments of lines.

Exit status: 0 if each check reported exactly the expected findings, 1 if one did not,
2 with --installed if the configuration does not act on a fault, 3 if it cannot be
used, 10 if the scenarios could not be tried.`,
		Example: `  nhc-gpu selftest
  nhc-gpu selftest --installed
  nhc-gpu selftest -v check_gpu_ecc
  nhc-gpu selftest --file ours.toml`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			list, _ := selftest.All()
			return namesIn(list), cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, names []string) error {
			words := slices.DeleteFunc(slices.Clone(names), func(w string) bool { return !strings.Contains(w, "=") })
			if ofSite {
				names = slices.DeleteFunc(slices.Clone(names), func(w string) bool { return strings.Contains(w, "=") })
			}
			list, err := selftestsOf(names, file)
			if err != nil {
				return fmt.Errorf("selftest: %w", err)
			}
			bench, err := selftest.NewBench(nodesOf(list)...)
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
			bad := slices.ContainsFunc(attempts, func(t attempt) bool { return !t.OK })
			if ofSite && !bad {
				*exit, err = installed(faultsIn(attempts), words, asJSON, verbose)
				return err
			}
			if err := report(version, attempts, asJSON, verbose); err != nil {
				return fmt.Errorf("selftest: %w", err)
			}
			if bad {
				*exit = 1
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one object of JSON")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print each scenario")
	cmd.Flags().BoolVar(&ofSite, "installed", false, "list the faults that this configuration does not act on")
	cmd.Flags().StringVar(&file, "file", "", "try the scenarios of this file (/usr/share/doc/nhc-gpu/docs/reference/selftest.md)")
	return cmd
}

// selftestsOf returns the scenarios of some checks, or of all.
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
	have := namesIn(list)
	for _, name := range names {
		if !slices.Contains(have, name) {
			return nil, options.Wrong{Err: fmt.Errorf("there is no scenario of %q%s; the completion, or nhc-gpu selftest, lists the checks that have some", name, spell.DidYouMean(name, have))}
		}
	}
	return slices.DeleteFunc(list, func(s selftest.Scenario) bool { return !slices.Contains(names, s.Check) }), nil
}

// nodesOf returns the healthy nodes of scenarios.
func nodesOf(list []selftest.Scenario) (nodes []string) {
	for i := range list {
		nodes = append(nodes, list[i].Node)
	}
	return slices.Compact(slices.Sorted(slices.Values(nodes)))
}

// namesIn returns the checks of scenarios, sorted.
func namesIn(list []selftest.Scenario) (names []string) {
	for i := range list {
		names = append(names, list[i].Check)
	}
	return slices.Compact(slices.Sorted(slices.Values(names)))
}

// attempt is one scenario and its result.
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

// faultsIn returns the faults that the checks have reported.
func faultsIn(attempts []attempt) (faults []session.KnownFault) {
	for i := range attempts {
		for _, f := range attempts[i].Findings {
			faults = append(faults, session.KnownFault{Code: f.Code, Check: attempts[i].Check, Severity: f.Severity})
		}
	}
	return faults
}

func report(version string, attempts []attempt, asJSON, verbose bool) error {
	wrong := 0
	for i := range attempts {
		if !attempts[i].OK {
			wrong++
		}
	}
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetEscapeHTML(false)
		return e.Encode(map[string]any{"version": version, "ok": wrong == 0, "wrong": wrong, "scenarios": attempts})
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	count := 0
	for rest := attempts; len(rest) > 0; count++ {
		n := slices.IndexFunc(rest, func(t attempt) bool { return t.Check != rest[0].Check })
		if n < 0 {
			n = len(rest)
		}
		writeCheck(w, rest[:n], verbose)
		rest = rest[n:]
	}
	if err := w.Flush(); err != nil {
		return err
	}
	result := "each check reported the expected findings, and named the right device"
	if wrong > 0 {
		result = fmt.Sprintf("%d WRONG: do not trust these checks, and report it (/usr/share/doc/nhc-gpu/docs/reference/selftest.md)", wrong)
	}
	fmt.Fprintf(&b, "\nnhc-gpu %s: %s of %s: %s\n", version, console.Counted(len(attempts), "scenario"), console.Counted(count, "check"), result)
	_, err := fmt.Fprint(console.Screen, b.String())
	return err
}

// writeCheck writes the scenarios of a check: one line, and those that went wrong; or all.
func writeCheck(w io.Writer, list []attempt, verbose bool) {
	wrong := 0
	for i := range list {
		if !list[i].OK {
			wrong++
		}
	}
	if !verbose && wrong == 0 {
		fmt.Fprintf(w, "ok\t%s\t%s\n", list[0].Check, console.Counted(len(list), "scenario"))
	}
	if !verbose && wrong > 0 {
		fmt.Fprintf(w, "WRONG\t%s\t%d of %s\n", list[0].Check, wrong, console.Counted(len(list), "scenario"))
	}
	for i := range list {
		t := &list[i]
		switch {
		case !t.OK:
			fmt.Fprintf(w, "WRONG\t%s\t%s\t%s\n", t.Check, t.Scenario, strings.Join(t.Wrong, "\n\t\t\t"))
		case verbose:
			fmt.Fprintf(w, "ok\t%s\t%s\t%s\n", t.Check, t.Scenario, said(t))
		}
	}
}

// said returns the result of a check, on one line.
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
