package ask

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/policy"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// History shows the changes of this node.
func History() *cobra.Command {
	var since string
	var codes []string
	var asJSON, fleet, would bool
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show what changed on this node, and when",
		Long: `Prints the changes of the last 30 days, at most 1,000, the oldest first: each change
of the verdict, of the findings and of the mode, each drain and resume, what could
not be delivered, what a person cleared, and what a sweep of root found. Needs root.

With --would it prints what a policy has held back: the failures that are only
observed, that are outside their hours, or that wait for further strikes.

Exit status: 0, 10 wrong arguments or not root.`,
		Example: `  nhc-gpu history
  nhc-gpu history --since 24h
  nhc-gpu history --since 2026-11-20 --code gpu.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, words []string) error {
			now := time.Now()
			from, err := parseSince(since, now)
			if err != nil {
				return options.Wrong{Err: err}
			}
			if fleet {
				return fleetHistory(words, from, codes, asJSON)
			}
			r, err := openPast("history", words)
			if err != nil {
				return err
			}
			defer r.Close()
			list, err := outputs.History(r.Node, now)
			if err != nil {
				return err
			}
			if would {
				list = onlyHeld(list)
			}
			return printHistory(list, from, codes, asJSON)
		},
	}
	f := cmd.Flags()
	f.StringVar(&since, "since", "", "only changes since then: 24h, 7d, 2026-11-20, '2026-11-20 03:00'")
	f.StringSliceVar(&codes, "code", nil, "only findings whose code begins with: gpu.xid,gpu.ecc")
	f.BoolVar(&would, "would", false, "only failures that a policy has held back")
	f.BoolVar(&fleet, "fleet", false, "of all nodes, from Slurm's accounting (sacctmgr), for every user")
	f.BoolVar(&asJSON, "json", false, "print each change as one object of JSON per line")
	return cmd
}

// onlyHeld keeps the results that a policy has held back, and the events that have some.
func onlyHeld(list []*event.Event) (held []*event.Event) {
	for _, e := range list {
		short := *e
		short.Slurm, short.Results = nil, slices.DeleteFunc(slices.Clone(e.Results), func(r event.Result) bool { return r.Held == "" || r.Held == policy.ByPolicy })
		if len(short.Results) > 0 {
			held = append(held, &short)
		}
	}
	return held
}

// parseSince returns the time that an argument of --since names; the zero time for none.
func parseSince(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, ok := checks.ParseTime(text); ok {
		return now.Add(-d), nil
	}
	for _, layout := range []string{"2006-01-02", "2006-01-02 15:04", "2006-01-02 15:04:05", "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("option --since=%s: want a duration (24h, 7d) or a time (2026-11-20, '2026-11-20 03:00')", text)
}

func printHistory(list []*event.Event, from time.Time, codes []string, asJSON bool) error {
	found := false
	for _, e := range list {
		about := func(r event.Result) bool { return r.Has(codes) }
		if e.Time.Before(from) || len(codes) > 0 && !slices.ContainsFunc(e.Results, about) {
			continue
		}
		if asJSON {
			if err := json.NewEncoder(os.Stdout).Encode(e); err != nil {
				return fmt.Errorf("print a change: %w", err)
			}
			continue
		}
		fmt.Fprintln(console.Screen, historyLine(e))
		found = true
	}
	switch {
	case found || asJSON:
	case from.IsZero():
		fmt.Fprintln(console.Screen, "no change is stored")
	default:
		fmt.Fprintln(console.Screen, "no change since "+from.Local().Format(clock))
	}
	return nil
}

// historyLine returns a change as one line.
func historyLine(e *event.Event) string {
	parts := []string{e.Time.Local().Format(clock), fmt.Sprintf("%-11s %-7s", e.Context, e.Verdict)}
	if e.Job != "" {
		parts = append(parts, "job "+e.Job)
	}
	var about []string
	if s := e.Slurm; s != nil && s.Action != "none" {
		text := s.Action
		switch {
		case s.Held:
			text += " held by guard"
		case !s.Sent:
			text = "would " + text
		}
		about = append(about, strings.TrimSpace(text+" "+s.Reason))
	}
	if s := e.Slurm; s != nil && s.Error != "" {
		about = append(about, "not delivered: "+s.Error)
	}
	if slices.Contains(e.Changed, event.NewOwner) && e.Slurm != nil {
		about = append(about, holder(e.Slurm))
	}
	if slices.Contains(e.Changed, event.Released) {
		about = append(about, "the guard no longer holds the drain")
	}
	if slices.Contains(e.Changed, event.NewMode) {
		about = append(about, "MODE="+e.Mode)
	}
	if e.ByPerson() {
		about = append(about, e.Message)
	}
	findings := e.Findings()
	for i, f := range findings {
		if i == 3 {
			about = append(about, fmt.Sprintf("and %d more", len(findings)-i))
			break
		}
		text := strings.TrimSpace(f.Code + " " + shortMessage(f))
		if f.Held != "" && f.Held != policy.ByPolicy {
			text = "would " + f.Would + ": " + text
		}
		about = append(about, text)
	}
	if len(about) == 0 {
		about = e.Changed
	}
	return strings.Join(parts, "  ") + "  " + strings.Join(about, "; ")
}
