package lbnl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// dmiDataMatch looks for a line in the DMI tables that dmidecode prints. It puts the names of the
// table and of the sections in front of each line, and compares the whole with a match string:
// "Memory Device: Size: 32 GB". With -!, -n or ! the line must not be there.
//
//	node* || check_dmi_data_match -t 'Memory Device' '*Speed: 3200 MT/s'
//	node* || check_dmi_data_match -! -t 17 '*Size: No Module Installed'
type dmiDataMatch struct {
	Match   []string `arg:"*" toml:"match"`   // the match string; several arguments are joined with blanks
	Type    string   `opt:"t" toml:"type"`    // only tables of this type, a number or a name
	Handles string   `opt:"h" toml:"handles"` // only the tables with these handles, separated by blanks: 0x1100 0x1101
	Absent  bool     `opt:"!" toml:"absent"`  // the line must not be there
	Without bool     `opt:"n"`                // the same as -!
}

// dmiRawDataMatch looks for a line in the output of dmidecode. It compares each whole line,
// including leading blanks, with a match string. With ! before the match string the line must
// not be there.
//
//	node* || check_dmi_raw_data_match '*Product Name: PowerEdge XE9680'
type dmiRawDataMatch struct {
	Match  []string `arg:"*" toml:"match"` // the match string; several arguments are joined with blanks
	Absent bool     `toml:"absent"`        // the line must not be there
}

func init() {
	const data, raw = "check_dmi_data_match", "check_dmi_raw_data_match"
	checks.Register(checks.Info{
		Name:     data,
		Usage:    "[-!|-n] [-h HANDLES] [-t TYPE] [!] MATCH",
		Summary:  "the tables of dmidecode contain a given line, or do not contain it",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &dmiDataMatch{} },
		BadUsage: checks.UsageOf(data),
		Do:       dmiAdvice,
	})
	checks.Register(checks.Info{
		Name:     raw,
		Usage:    "[!] MATCH",
		Summary:  "the output of dmidecode contains a given line, or does not contain it",
		Lane:     checks.Cmd,
		New:      func() checks.Check { return &dmiRawDataMatch{} },
		BadUsage: checks.UsageOf(raw),
		Do:       dmiAdvice,
	})
}

func dmiAdvice() map[string]string {
	return map[string]string{
		"dmi.missing": "Compare the output of dmidecode with that of a healthy node: hardware is missing or of another model, or the firmware version or a BIOS setting differs.",
		"dmi.found":   "Run dmidecode and look for the line: the node has hardware or firmware that nhc.conf does not allow.",
		"dmi.handles": "Run dmidecode as root: it is not installed, it prints nothing, or it has no table of this type.",
		"dmi.absent":  "Install dmidecode: without it the check finds no line, and passes.",
	}
}

// Bind accepts the options, and the argument ! before the match string.
func (c *dmiDataMatch) Bind(args []string) error {
	if err := checks.BindTags(c, args); err != nil {
		return err
	}
	c.Absent = c.Absent || c.Without
	c.Without = false
	if len(c.Match) > 0 && c.Match[0] == "!" {
		c.Absent, c.Match = true, c.Match[1:]
	}
	return nil
}

// Bind accepts no options: all arguments belong to the match string.
func (c *dmiRawDataMatch) Bind(args []string) error {
	if len(args) > 0 && args[0] == "!" {
		c.Absent, args = true, args[1:]
	}
	c.Match = args
	return nil
}

func (c *dmiDataMatch) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	const name = "check_dmi_data_match"
	var wanted []int64
	for word := range strings.FieldsSeq(c.Handles) {
		n, ok := checks.ParseInteger(word)
		if !ok {
			return []checks.Finding{checks.WrongValue(name, "handle", word, "a number such as 0x1100")}
		}
		wanted = append(wanted, n)
	}
	env.At("run dmidecode")
	dmi, err := probe.ReadDMI(ctx, env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	var lines []string
	if len(wanted) > 0 {
		for _, n := range wanted {
			lines = append(lines, c.linesOf(dmi, func(r probe.DMIRecord) bool { return n >= 0 && r.Handle == uint64(n) })...)
		}
	} else {
		if !slices.ContainsFunc(dmi.Records, c.ofType) {
			return []checks.Finding{c.noHandles(name, dmi)}
		}
		lines = c.linesOf(dmi, func(probe.DMIRecord) bool { return true })
	}
	return matchDMI(env, name, dmi, lines, strings.Join(c.Match, " "), c.Absent)
}

func (c *dmiDataMatch) ofType(r probe.DMIRecord) bool {
	return c.Type == "" || c.Type == r.Type || c.Type == r.Name
}

// linesOf returns the lines of the tables that are wanted and have the right type.
func (c *dmiDataMatch) linesOf(dmi probe.DMI, wanted func(probe.DMIRecord) bool) (lines []string) {
	for _, r := range dmi.Records {
		if wanted(r) && c.ofType(r) {
			lines = append(lines, r.Data...)
		}
	}
	return lines
}

func (c *dmiDataMatch) noHandles(name string, dmi probe.DMI) checks.Finding {
	f := checks.Finding{
		Code:     "dmi.handles",
		Severity: checks.Fail,
		Message:  name + ":  No valid DMI handles found",
		Want:     "a table" + checks.Before(" of type ", c.Type, ""),
		Got:      fmt.Sprintf("%d tables of other types", len(dmi.Records)),
	}
	if dmi.Missing != nil {
		f.Got = dmi.Missing.Error()
	}
	return f
}

func (c *dmiRawDataMatch) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	env.At("run dmidecode")
	dmi, err := probe.ReadDMI(ctx, env.Host)
	if err != nil {
		return checks.Unreadable(err)
	}
	return matchDMI(env, "check_dmi_raw_data_match", dmi, dmi.Lines, strings.Join(c.Match, " "), c.Absent)
}

// matchDMI compares lines with a match string until one of them matches.
func matchDMI(env *checks.Env, name string, dmi probe.DMI, lines []string, expr string, absent bool) (findings []checks.Finding) {
	match := env.Matcher(&findings)
	i := slices.IndexFunc(lines, func(line string) bool { return match(line, expr) })
	switch {
	case i >= 0 && absent:
		return append(findings, checks.Finding{
			Code:     "dmi.found",
			Severity: checks.Fail,
			Message:  fmt.Sprintf("%s:  Match found for %s:  %s", name, expr, lines[i]),
			Want:     "no line that matches " + expr,
			Got:      lines[i],
		})
	case i < 0 && !absent:
		f := checks.Finding{Code: "dmi.missing", Severity: checks.Fail, Message: name + ":  No match found for " + expr, Want: "a line that matches " + expr}
		if dmi.Missing != nil {
			f.Got = dmi.Missing.Error()
		}
		return append(findings, f)
	case i < 0 && dmi.Missing != nil: // LBNL NHC passes without a message
		return append(findings, checks.Finding{Code: "dmi.absent", Severity: checks.Skip, Message: name + ":  " + dmi.Missing.Error()})
	}
	return findings
}
