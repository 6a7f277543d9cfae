package lbnl

import (
	"cmp"
	"context"
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// fsSize checks that the size of a file system is between a minimum and a maximum: in kB (units k
// M G T P E, base 1024), or with check_fs_inodes its number of inodes (base 1000). Both limits are
// optional. The last file system that was mounted on FS counts. If no file system is mounted there
// the check passes; add check_fs_mount to detect that. For a pseudo file system it warns in syslog.
//
//	node* || check_fs_size /scratch 3.2T 3.5T
//	node* || check_fs_inodes /scratch 100M
type fsSize struct {
	FS      string   `arg:"1" toml:"fs"`  // the mount point
	Min     string   `arg:"2" toml:"min"` // the smallest size or number of inodes that passes
	Max     string   `arg:"3" toml:"max"` // the largest size or number of inodes that passes
	Surplus []string `arg:"*"`            // LBNL NHC ignores further arguments

	fsKind
}

// fsFree checks that a file system has enough free space for users: a size (base 1024), with
// check_fs_ifree a number of inodes (base 1000), or N% for either. The percentage is 100 minus
// df's Use%. As with check_fs_size the last mount counts, and the check passes if FS is not
// mounted.
//
//	node* || check_fs_free /tmp 10%
//	node* || check_fs_ifree /tmp 100k
type fsFree struct {
	FS      string   `arg:"1" toml:"fs"`  // the mount point
	Min     string   `arg:"2" toml:"min"` // the smallest free amount that passes
	Surplus []string `arg:"*"`            // LBNL NHC ignores further arguments

	fsKind
}

// fsUsed checks that the used space of a file system is below a limit: a size (base 1024), with
// check_fs_iused a number of inodes (base 1000), or N% for either, as df's Use%. It fails if the
// limit is reached. As with check_fs_size the last mount counts, and the check passes if FS is not
// mounted.
//
//	node* || check_fs_used / 95%
//	node* || check_fs_iused / 90%
type fsUsed struct {
	FS      string   `arg:"1" toml:"fs"`  // the mount point
	Max     string   `arg:"2" toml:"max"` // the used amount at which the check fails
	Surplus []string `arg:"*"`            // LBNL NHC ignores further arguments

	fsKind
}

// fsKind has the name of a check, and whether it counts inodes or space.
type fsKind struct {
	check  string
	inodes bool
}

func init() {
	const shrunk = "Compare findmnt and lsblk with a healthy node: another file system is mounted there, or one of its devices is missing."
	const grown = "Compare findmnt with a healthy node: another file system is mounted there, or it was enlarged. If the size is intended, correct the line in nhc.conf."
	const room = "Find the largest directories (du -xh --max-depth=1). Deleted files that processes keep open also use space: list them with lsof +L1."
	const inodes = "Find the directories with the most files (du -x --inodes --max-depth=1)."
	const pseudo = "Correct the line in nhc.conf: it tests nothing, because the file system that is mounted there has no size. The node is healthy."

	size := func(k fsKind) checks.Check { return &fsSize{fsKind: k} }
	free := func(k fsKind) checks.Check { return &fsFree{fsKind: k} }
	used := func(k fsKind) checks.Check { return &fsUsed{fsKind: k} }
	for _, c := range []struct {
		name, usage, summary string
		inodes               bool
		make                 func(fsKind) checks.Check
		do                   map[string]string
	}{
		{"check_fs_size", "FS [MIN [MAX]]", "the size of a file system is between a minimum and a maximum", false, size,
			map[string]string{"fs.size.small": shrunk, "fs.size.large": grown}},
		{"check_fs_inodes", "FS [MIN [MAX]]", "the number of inodes of a file system is between a minimum and a maximum", true, size,
			map[string]string{"fs.inodes.small": shrunk, "fs.inodes.large": grown}},
		{"check_fs_free", "FS MIN", "a file system has enough free space", false, free, map[string]string{"fs.free": room}},
		{"check_fs_ifree", "FS MIN", "a file system has enough free inodes", true, free, map[string]string{"fs.ifree": inodes}},
		{"check_fs_used", "FS MAX", "a file system is not too full", false, used, map[string]string{"fs.used": room}},
		{"check_fs_iused", "FS MAX", "a file system does not have too many files", true, used, map[string]string{"fs.iused": inodes}},
	} {
		c.do["fs.pseudo"] = pseudo
		kind := fsKind{check: c.name, inodes: c.inodes}
		checks.Register(checks.Info{
			Name:    c.name,
			Usage:   c.usage,
			Summary: c.summary,
			Lane:    checks.Local,
			New:     func() checks.Check { return c.make(kind) },
			Do:      func() map[string]string { return c.do },
		})
	}
}

// Contradiction implements [checks.Contradicting].
func (c *fsSize) Contradiction() (word, why string) { return exclude(c.Min, c.Max) }

func (c *fsSize) Run(_ context.Context, env *checks.Env) []checks.Finding {
	least, bad := c.limit("minimum", c.Min, false)
	most, bad2 := c.limit("maximum", c.Max, false)
	if f := cmp.Or(bad, bad2); f != nil {
		return []checks.Finding{*f}
	}
	a, findings := c.measure(env, c.FS)
	if a == nil {
		return findings
	}
	code, thing, got := "fs.size.", "size", checks.UnparseSize(kB(a.Total))
	if c.inodes {
		code, thing, got = "fs.inodes.", "inodes", strconv.FormatInt(a.Total, 10)
	}
	env.Fact("%s: %s", c.FS, got)
	switch {
	case least.n != nil && kB(a.Total).Cmp(least.n) < 0:
		return c.fail(code+"small", c.FS, fmt.Sprintf("%s %s less than minimum of %s", thing, got, least.text), "at least "+least.text, got)
	case most.n != nil && kB(a.Total).Cmp(most.n) > 0:
		return c.fail(code+"large", c.FS, fmt.Sprintf("%s %s exceeds maximum of %s", thing, got, most.text), "at most "+most.text, got)
	}
	return nil
}

func (c *fsFree) Run(_ context.Context, env *checks.Env) []checks.Finding {
	least, bad := c.limit("minimum", c.Min, true)
	if bad != nil {
		return []checks.Finding{*bad}
	}
	a, findings := c.measure(env, c.FS)
	if a == nil || least.n == nil {
		return findings
	}
	percent := 100 - int64(a.Percent)
	env.Fact("%s: %d%% free", c.FS, percent)
	var text string
	switch got := c.amount(a.Free); {
	case least.percent && kB(percent).Cmp(least.n) >= 0, !least.percent && kB(a.Free).Cmp(least.n) >= 0:
		return nil
	case least.percent && c.inodes:
		text = fmt.Sprintf("has only %d%% of inodes free (%s)", percent, got)
	case least.percent:
		text = fmt.Sprintf("has only %d%% free (%s)", percent, got)
	case c.inodes:
		text = fmt.Sprintf("has only %s inodes free", got)
	default:
		text = fmt.Sprintf("has only %s free", got)
	}
	return c.fail(c.code("free"), c.FS, text+", minimum is "+least.text, "at least "+least.text, least.measured(percent, c.amount(a.Free)))
}

func (c *fsUsed) Run(_ context.Context, env *checks.Env) []checks.Finding {
	most, bad := c.limit("threshold", c.Max, true)
	if bad != nil {
		return []checks.Finding{*bad}
	}
	a, findings := c.measure(env, c.FS)
	if a == nil || most.n == nil {
		return findings
	}
	percent := int64(a.Percent)
	env.Fact("%s: %d%% used", c.FS, percent)
	var text string
	switch got := c.amount(a.Used); {
	case most.percent && kB(percent).Cmp(most.n) < 0, !most.percent && kB(a.Used).Cmp(most.n) < 0:
		return nil
	case most.percent && c.inodes:
		text = fmt.Sprintf("has %d%% of inodes used (%s)", percent, got)
	case most.percent:
		text = fmt.Sprintf("is %d%% full (%s)", percent, got)
	case c.inodes:
		text = fmt.Sprintf("has %s inodes used", got)
	default:
		text = fmt.Sprintf("has %s used", got)
	}
	return c.fail(c.code("used"), c.FS, text+", threshold is "+most.text, "less than "+most.text, most.measured(percent, c.amount(a.Used)))
}

// fsLimit is a parsed limit.
type fsLimit struct {
	n       *big.Rat // nil: no limit
	percent bool
	text    string // the limit as the messages print it
}

// measured returns percent if the limit is a percentage, otherwise amount.
func (l fsLimit) measured(percent int64, amount string) string {
	if l.percent {
		return strconv.FormatInt(percent, 10) + "%"
	}
	return amount
}

// limit parses a limit, and returns a finding if it is invalid.
func (k fsKind) limit(what, word string, percent bool) (l fsLimit, bad *checks.Finding) {
	if word == "" {
		return l, nil
	}
	var ok bool
	want := wantSize
	if digits, found := strings.CutSuffix(word, "%"); found && percent {
		l.percent, l.text = true, word
		l.n, ok = checks.ParseNumber(digits)
	} else if k.inodes {
		var c checks.Count
		if c, ok = checks.ParseCount(word); ok {
			l.n, l.text = c.N, c.LimitText()
		}
	} else {
		var s checks.SizeKB
		if s, ok = checks.ParseSize(word); ok {
			l.n, l.text = s.KB, s.LimitText()
		}
	}
	if ok {
		return l, nil
	}
	if k.inodes {
		want = "a number such as 500000 or 1.5M"
	}
	if percent {
		want += ", or a percentage"
	}
	f := checks.WrongValue(k.check, what, word, want)
	return l, &f
}

// measure returns the amounts of the file system that is mounted on a path. The amounts are nil if
// there is nothing to check: no mount, no size, or no answer.
func (k fsKind) measure(env *checks.Env, point string) (*probe.Amounts, []checks.Finding) {
	mounts, err := k.mounts(env)
	if err != nil {
		return nil, checks.Unreadable(err)
	}
	if lastMount(mounts, point) == nil {
		return nil, nil
	}
	env.At("statfs %s", point)
	a, err := probe.FSUsage(env.Host, point, k.counts())
	if err != nil {
		return nil, checks.Unreadable(err)
	}
	if a.Total == 0 {
		return nil, []checks.Finding{{
			Code:     "fs.pseudo",
			Severity: checks.Warn,
			Device:   checks.Device{Kind: "mount", Name: point},
			Message:  fmt.Sprintf("WARNING:  Possible bogus check:  %s on pseudofilesystem %s", k.check, point),
			Remedy:   checks.FixConfig,
			Syslog:   true,
		}}
	}
	return &a, nil
}

// mounts returns the mount table as the first check of this kind has read it.
func (k fsKind) mounts(env *checks.Env) ([]probe.Mount, error) {
	env.At("read /proc/mounts")
	return probe.MountsOf(env.Host, k.counts())
}

func (k fsKind) counts() probe.Amount {
	if k.inodes {
		return probe.Inodes
	}
	return probe.Space
}

func (k fsKind) code(what string) string {
	if k.inodes {
		return "fs.i" + what
	}
	return "fs." + what
}

// amount formats a size in LBNL NHC's units, and a number of inodes as a plain number.
func (k fsKind) amount(n int64) string {
	if k.inodes {
		return strconv.FormatInt(n, 10)
	}
	return checks.UnparseSize(kB(n))
}

func kB(n int64) *big.Rat { return new(big.Rat).SetInt64(n) }

func (k fsKind) fail(code, point, text, want, got string) []checks.Finding {
	return []checks.Finding{{
		Code:     code,
		Severity: checks.Fail,
		Device:   checks.Device{Kind: "mount", Name: point},
		Message:  fmt.Sprintf("%s:  %s %s", k.check, point, text),
		Want:     want,
		Got:      got,
	}}
}
