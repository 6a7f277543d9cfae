package ask

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/syslog"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/event"
	"github.com/nhc-gpu/nhc-gpu/checks/plan"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/checks/session/outputs"
	"github.com/nhc-gpu/nhc-gpu/checks/session/sink"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/health"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"
)

// silenceOptions are the options of silence and accept.
type silenceOptions struct {
	command     string // silence or accept
	until       string
	by, why     string
	line        string
	end, asJSON bool
}

// Silence makes a known fault of this node a warning.
func Silence() *cobra.Command {
	o := &silenceOptions{command: "silence"}
	cmd := &cobra.Command{
		Use:   "silence [CODE [DEVICE] --until DATE --by NAME --why TEXT | CODE [DEVICE] --end]",
		Short: "Accept a known fault of this node until a date",
		Long: `Makes a known fault a warning until a date: it drains no node and refuses no job, in
health checks, prologs and epilogs, and every output shows it as silenced. A node
that was drained for it alone is resumed by the next health check. It covers one
code and one device, or one line of nhc.conf for a finding without a device. It ends
at the date, with --end, or when the device is replaced: when its serial
number, UUID or PCI address changes. Without CODE it lists the silenced faults.
  CODE     a finding code: gpu.nvlink.down. It is at the end of a drain reason
  DEVICE   as in the message, a PCI address, a UUID or a serial number. Omit it if
           the last run reported the code for one device only
  DATE     2026-12-01 (ends at 0:00, local time), 2026-12-01T12:00:00Z or +30d
A line of bash has no code: change the line in nhc.conf. Needs root.

Exit status: 0, 10 wrong arguments or not root.`,
		Example: `  nhc-gpu silence gpu.remap.pending gpu3 --until 2026-12-01 --by alice --why 'RMA 4711'
  nhc-gpu silence
  nhc-gpu silence gpu.remap.pending gpu3 --end`,
	}
	cmd.Flags().StringVar(&o.until, "until", "", "2026-12-01, 2026-12-01T12:00:00Z or +30d")
	return o.complete(cmd)
}

// Accept makes the present state of this node its expected state.
func Accept() *cobra.Command {
	o := &silenceOptions{command: "accept"}
	return o.complete(&cobra.Command{
		Use:   "accept CODE [DEVICE] --by NAME --why TEXT | accept CODE [DEVICE] --end",
		Short: "Accept the present state until the hardware changes",
		Long: `Makes what the last run reported the expected state of this node: seven of eight
GPUs, a port without a cable. It is a silence without a date (nhc-gpu silence): a
warning in every output, which drains no node and refuses no job. It ends when the
device is replaced, when the number of devices or another number in the finding
changes, when a health check no longer finds it, or with --end. nhc-gpu silence lists
it, too. For a change of the whole fleet correct nhc.conf instead. Needs root.

Exit status: 0, 10 wrong arguments, no run reported it, or not root.`,
		Example: `  nhc-gpu accept gpu.count --by alice --why 'gpu5 sold, ticket 4711'
  nhc-gpu accept ib.ports.polling mlx5_4:1 --by alice --why 'no cable in this rack'`,
	})
}

// complete adds what both commands have.
func (o *silenceOptions) complete(cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(_ *cobra.Command, words []string) error { return o.run(words) }
	cmd.ValidArgsFunction = func(_ *cobra.Command, words []string, _ string) ([]string, cobra.ShellCompDirective) {
		return firstOf(words, checks.Codes())
	}
	f := cmd.Flags()
	f.StringVar(&o.by, "by", "", "who answers for it")
	f.StringVar(&o.why, "why", "", "the reason: a ticket")
	f.StringVar(&o.line, "line", "", "the line of nhc.conf, if several report the code")
	f.BoolVar(&o.end, "end", false, "end it now")
	f.BoolVar(&o.asJSON, "json", false, "print the silenced faults as JSON, one per line")
	return cmd
}

// The longest texts of a person, in characters.
const (
	maxBy  = 64
	maxWhy = 200
)

// wrong returns what the command line lacks.
func (o *silenceOptions) wrong(words []string) error {
	printed := func(option, text string, most int) error {
		switch {
		case strings.TrimSpace(text) == "":
			return fmt.Errorf("%s requires --%s: others must see who accepted the fault, and why", o.command, option)
		case len([]rune(text)) > most || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
			return fmt.Errorf("--%s: want at most %d printable characters", option, most)
		}
		return nil
	}
	switch {
	case len(words) > 2:
		return fmt.Errorf("surplus argument %q: want CODE and DEVICE", words[2])
	case len(words) == 0 && (o.command == "accept" || o.end || o.until+o.by+o.why+o.line != ""):
		return errors.New("missing argument: want the CODE of a finding; nhc-gpu status shows it")
	case len(words) == 0:
		return nil
	case o.end && o.until+o.why+o.line != "":
		return errors.New("--end takes only CODE and DEVICE")
	case o.end:
		return nil
	case o.command == "silence" && o.until == "":
		return errors.New("silence requires --until DATE; nhc-gpu accept has no date")
	}
	return cmp.Or(printed("by", o.by, maxBy), printed("why", o.why, maxWhy))
}

func (o *silenceOptions) run(words []string) error {
	r, words, err := xidRun(words)
	if err != nil {
		return err
	}
	defer r.Close()
	now := time.Now()
	var until time.Time
	if err := o.wrong(words); err != nil {
		return options.Wrong{Err: err}
	}
	if o.until != "" {
		if until, err = session.ParseUntil(o.until, now); err != nil {
			return options.Wrong{Err: fmt.Errorf("--until %s: %w", o.until, err)}
		}
	}
	switch {
	case r.Bad != nil:
		return r.Bad
	case r.Set.Past == "":
		return errors.New(o.command + ": only root can read and write what a node accepts")
	}
	r.Pool.SetVars(r.Set.WorkerVars())
	device := ""
	if len(words) == 2 {
		device = words[1]
	}
	switch {
	case len(words) == 0:
		list, err := r.Silences()
		if err != nil {
			return err
		}
		return printSilences(list, now, o.asJSON)
	case o.end:
		return endSilences(r, words[0], device)
	}
	return o.add(r, words[0], device, checks.Silenced{Until: until, By: strings.TrimSpace(o.by), Why: strings.TrimSpace(o.why), Since: now.UTC().Truncate(time.Second)})
}

// ownFamilies are the beginnings of codes that say that a run could not check the node.
var ownFamilies = []string{"config.", "probe.", "run.", "scripts.", "shell.", "unknown."}

// add records a silence.
func (o *silenceOptions) add(r *health.Run, code, device string, by checks.Silenced) error {
	if slices.ContainsFunc(ownFamilies, func(p string) bool { return strings.HasPrefix(code, p) }) {
		return fmt.Errorf("%s %s: the check had no result, so this is no known fault: %s", o.command, code, checks.WhatToDo(code))
	}
	events, err := outputs.Last(r.Node)
	if err != nil {
		return err
	}
	past, err := outputs.History(r.Node, by.Since)
	if err != nil {
		return err
	}
	slices.Reverse(past)
	present, err := r.Parts()
	if err != nil {
		r.Warn(fmt.Errorf("%w: a change of the hardware is not recognized", err))
	}
	f, line, err := lastFinding(append(events, past...), code, device, o.line)
	if errors.Is(err, errNotReported) && o.command == "silence" {
		f, err = futureFinding(present, code, device)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.command, strings.TrimSpace(code+" "+device), err)
	}
	s := session.NewSilence(f, line, present, by)
	if s.Device == (checks.Device{}) && s.Devices == nil && s.Line == "" { // privacy = true
		if s.Line = o.line; s.Line == "" {
			return errors.New(o.command + " " + code + ": the finding has no device: add --line with the line of nhc.conf")
		}
		if !planned(r.Plan, s.Line) {
			r.Warn(fmt.Errorf("%s has no such line: %s", r.Set.Get("CONFFILE"), s.Line))
		}
	}
	if err := r.ChangeSilences(func(list []checks.Silence) ([]checks.Silence, error) { return session.AddSilence(list, s) }); err != nil {
		return err
	}
	note(r, o.command, silenceText(&s))
	fmt.Fprintln(console.Screen, silenceText(&s))
	return nil
}

// planned reports whether a line is in a plan, or the plan is not known.
func planned(p *plan.Plan, line string) bool {
	return p == nil || slices.ContainsFunc(p.Steps, func(s plan.Step) bool { return s.Text == line }) ||
		slices.ContainsFunc(p.Skipped, func(s plan.Skipped) bool { return s.Text == line })
}

// note writes the action of a person to the history and to syslog.
func note(r *health.Run, command, what string) {
	who := whoAsks()
	outputs.Note(r.Node, event.Silenced, what+" ("+who+")")
	_ = sink.SyslogAs(syslog.LOG_NOTICE, "nhc", []string{fmt.Sprintf("nhc-gpu %s: by %s: %s", command, who, what)})
}

var errNotReported = errors.New("no run of the last 30 days reported it")

// lastFinding returns the failure that the newest of the events with this code has, and its line.
func lastFinding(events []*event.Event, code, device, line string) (f checks.Finding, of string, err error) {
	seen := map[string]bool{}
	for _, e := range events {
		var found []event.Result
		for _, r := range e.Results {
			if r.Severity != checks.Fail && r.Silenced == nil || r.Code == "" {
				continue
			}
			seen[r.Code] = true
			if r.Code == code && (device == "" || session.Names(r.Device, device)) && (line == "" || r.Line == "" || r.Line == line) { // privacy: no line
				found = append(found, r)
			}
		}
		if len(found) == 0 {
			continue
		}
		var others []string
		for _, r := range found {
			if name := cmp.Or(r.Device.String(), "--line '"+r.Line+"'"); !slices.Contains(others, name) {
				others = append(others, name)
			}
		}
		if len(others) > 1 {
			return f, "", fmt.Errorf("it was reported for %s: name one", strings.Join(others, ", "))
		}
		r := found[0]
		return checks.Finding{Code: r.Code, Severity: checks.Fail, Device: r.Device, Got: r.Got}, r.Line, nil
	}
	known := checks.Codes()
	for code := range seen {
		known = append(known, code)
	}
	if !slices.Contains(known, code) && checks.WhatToDo(code) == "" {
		return f, "", fmt.Errorf("there is no such code%s", spell.DidYouMean(code, known))
	}
	return f, "", errNotReported
}

// futureFinding returns a failure that no run has reported yet, of a device that the node has.
func futureFinding(present []checks.Device, code, device string) (f checks.Finding, err error) {
	at := slices.IndexFunc(present, func(d checks.Device) bool { return device != "" && session.Names(d, device) })
	switch {
	case device == "":
		return f, fmt.Errorf("%w: name the DEVICE", errNotReported)
	case at < 0:
		var names []string
		for _, d := range present {
			names = append(names, cmp.Or(d.Name, d.PCI))
		}
		return f, fmt.Errorf("%w, and the node has no %s%s", errNotReported, device, cmp.Or(spell.DidYouMean(device, names), ": want one of "+cmp.Or(strings.Join(names, ", "), "no device")))
	}
	return checks.Finding{Code: code, Severity: checks.Fail, Device: present[at]}, nil
}

func endSilences(r *health.Run, code, device string) error {
	var ended []checks.Silence
	err := r.ChangeSilences(func(list []checks.Silence) (stay []checks.Silence, err error) {
		if stay, ended = session.EndSilences(list, code, device); len(ended) == 0 {
			err = fmt.Errorf("%s is not silenced on this node; nhc-gpu silence lists the silenced faults", strings.TrimSpace(code+" "+device))
		}
		return stay, err
	})
	if err != nil {
		return err
	}
	for i := range ended {
		note(r, "silence --end", "ended: "+silenceText(&ended[i]))
		fmt.Fprintln(console.Screen, "ended:", silenceText(&ended[i]))
	}
	return nil
}

func printSilences(list []checks.Silence, now time.Time, asJSON bool) error {
	for i := range list {
		switch {
		case asJSON:
			if err := json.NewEncoder(os.Stdout).Encode(list[i]); err != nil {
				return fmt.Errorf("print a silenced fault: %w", err)
			}
		case list[i].Ended(now):
			fmt.Fprintln(console.Screen, "ended:", silenceText(&list[i]))
		default:
			fmt.Fprintln(console.Screen, silenceText(&list[i]))
		}
	}
	if len(list) == 0 && !asJSON {
		fmt.Fprintln(console.Screen, "no fault is silenced on this node")
	}
	return nil
}

// silenceText describes a silence in one line.
func silenceText(s *checks.Silence) string {
	of := cmp.Or(s.Device.String(), s.Line, checks.Before("got ", s.Got, ""))
	return strings.TrimSpace(s.Code+" "+of) + " " + s.String() + " (" + s.Since.Local().Format("2006-01-02") + ")"
}
