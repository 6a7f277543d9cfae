package lbnl

import (
	"context"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// allInodes makes check_fs_inodes of every file system of a type: the number of
// inodes lies between a minimum and a maximum, of which either may be left out.
// Each mount point is judged once, by what is mounted there last.
//
//	node* || check_all_fs_inodes xfs 1M
type allInodes struct {
	Type    string   `arg:"1" toml:"type"` // as in /proc/mounts: ext4, xfs
	Min     string   `arg:"2" toml:"min"`  // fewest inodes, a count
	Max     string   `arg:"3" toml:"max"`  // most inodes, a count
	Surplus []string `arg:"*"`             // LBNL NHC does not look at more
}

// allLimit makes check_fs_used, check_fs_iused or check_fs_ifree of every file
// system of a type. Each mount point is judged once, by what is mounted there
// last. LBNL NHC judges those only that an earlier check of file systems has
// made it look at.
//
//	node* || check_all_fs_used ext4 98%
//	node* || check_all_fs_ifree ext4 1000
type allLimit struct {
	Type    string   `arg:"1" toml:"type"`  // as in /proc/mounts: ext4, xfs
	Limit   string   `arg:"2" toml:"limit"` // a size, a number of inodes or N%
	Surplus []string `arg:"*"`              // LBNL NHC does not look at more

	one string // the check that is made of each
}

func init() {
	checks.Register(checks.Info{
		Name:    "check_all_fs_inodes",
		Usage:   "TYPE [MIN [MAX]]",
		Summary: "the number of inodes of every file system of a type lies between a minimum and a maximum",
		Lane:    checks.Local,
		New:     func() checks.Check { return &allInodes{} },
	})
	for _, c := range []struct{ name, usage, summary, one string }{
		{"check_all_fs_used", "TYPE MAX", "no file system of a type is too full", "check_fs_used"},
		{"check_all_fs_iused", "TYPE MAX", "no file system of a type has too many files", "check_fs_iused"},
		{"check_all_fs_ifree", "TYPE MIN", "every file system of a type has inodes left", "check_fs_ifree"},
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

func (c *allInodes) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	return eachOfType(ctx, env, c.Type, "check_fs_inodes", c.Min, c.Max)
}

func (c *allLimit) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	return eachOfType(ctx, env, c.Type, c.one, c.Limit)
}

// eachOfType makes a check of each file system of a type, in the order of the
// mount table. What is wrong with its limits is said once.
func eachOfType(ctx context.Context, env *checks.Env, fsType, check string, limits ...string) []checks.Finding {
	info, _ := checks.Lookup(check)
	judge := func(point string) []checks.Finding {
		c := info.New()
		if err := checks.BindTags(c, append([]string{point}, limits...)); err != nil {
			return checks.Unreadable(err)
		}
		return c.Run(ctx, env)
	}
	findings := judge("") // nothing is mounted there
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
		if m := &mounts[i]; m.Type == fsType && mountOn(mounts, m.Point) == m {
			findings = append(findings, judge(m.Point)...)
		}
	}
	return findings
}
