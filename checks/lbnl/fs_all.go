package lbnl

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// allInodes runs check_fs_inodes on every file system of a type. The number of inodes must be
// between a minimum and a maximum; both are optional, and an empty argument sets no limit. Each
// mount point is checked once; the last file system that was mounted there counts.
//
//	node* || check_all_fs_inodes xfs 1M
type allInodes struct {
	Type    string   `arg:"1" toml:"type"` // the type as in /proc/mounts: ext4, xfs
	Min     string   `arg:"2" toml:"min"`  // the smallest number of inodes that passes
	Max     string   `arg:"3" toml:"max"`  // the largest number of inodes that passes
	Surplus []string `arg:"*"`             // LBNL NHC ignores further arguments
}

// allLimit runs check_fs_used, check_fs_iused or check_fs_ifree on every file system of a type, with
// the same limit: a size (base 1024), a number of inodes (base 1000), or N%. Each mount point is
// checked once; the last file system that was mounted there counts. LBNL NHC checks only the file
// systems that it has read for an earlier check.
//
//	node* || check_all_fs_used ext4 98%
//	node* || check_all_fs_ifree ext4 1000
type allLimit struct {
	Type    string   `arg:"1" toml:"type"`  // the type as in /proc/mounts: ext4, xfs
	Limit   string   `arg:"2" toml:"limit"` // a size, a number of inodes, or a percentage
	Surplus []string `arg:"*"`              // LBNL NHC ignores further arguments

	one string // name of the check to run on each file system
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_all_fs_inodes",
		Usage:   "TYPE [MIN [MAX]]",
		Summary: "the number of inodes of every file system of a type is between a minimum and a maximum",
		Lane:    checks.Local,
		New:     func() checks.Check { return &allInodes{} },
	})
	for _, c := range []struct{ name, usage, summary, one string }{
		{"check_all_fs_used", "TYPE MAX", "no file system of a type is too full", "check_fs_used"},
		{"check_all_fs_iused", "TYPE MAX", "no file system of a type has too many files", "check_fs_iused"},
		{"check_all_fs_ifree", "TYPE MIN", "every file system of a type has enough free inodes", "check_fs_ifree"},
	} {
		checks.Register(checks.Info{
			Name:    c.name,
			Usage:   c.usage,
			Summary: c.summary,
			Lane:    checks.Local,
			New:     func() checks.Check { return &allLimit{one: c.one} },
		})
	}
}

// Contradiction implements [checks.Contradicting].
func (c *allInodes) Contradiction() (word, why string) { return exclude(c.Min, c.Max) }

func (c *allInodes) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	return checkType(ctx, env, c.Type, "check_fs_inodes", c.Min, c.Max)
}

func (c *allLimit) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	return checkType(ctx, env, c.Type, c.one, c.Limit)
}

// checkType runs a check on each file system of a type, in the order of the mount table. It
// reports an invalid limit only once.
func checkType(ctx context.Context, env *checks.Env, fsType, check string, limits ...string) []checks.Finding {
	info, _ := checks.Lookup(check)
	judge := func(point string) []checks.Finding {
		c := info.New()
		if err := checks.BindTags(c, append([]string{point}, limits...)); err != nil {
			return checks.Unreadable(err)
		}
		return c.Run(ctx, env)
	}
	findings := judge("") // no file system is mounted on an empty path: this checks only the limits
	if len(findings) > 0 {
		return findings
	}
	mounts, err := info.New().(interface {
		mounts(env *checks.Env) ([]probe.Mount, error)
	}).mounts(env)
	if err != nil {
		return checks.Unreadable(err)
	}
	for i := range mounts {
		if m := &mounts[i]; m.Type == fsType && lastMount(mounts, m.Point) == m {
			findings = append(findings, judge(m.Point)...)
		}
	}
	return findings
}
