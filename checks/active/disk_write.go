package active

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe/disk"
)

// diskWrite writes SIZE bytes (1G) into a directory, past the page cache, and reads them
// back: it fails if the file system refuses that with an I/O error or is read-only, and
// if what is read is not what was written. MBPS is what the writing has to reach, in
// MB/s (10^6), until it is on the disk; without it only what this node has shown before
// counts. The longest that one write of 4 MiB took is told with -v.
//
// The file has no name, or loses it before anything is written, so that nothing is left
// however the test ends. It is not begun where less than a tenth of the file system would
// stay free. Half of -t may go by with writing; what was written by then has to do. A file
// system in memory is left alone, and one that cannot be written past the page cache is
// measured with it, which is another algorithm ("page cache", not "direct"): such a number
// is that of memory, too.
//
//   - || check_disk_write -w 1500 /scratch
type diskWrite struct {
	active

	Dir  string        `arg:"1" toml:"dir"`  // the directory
	Size checks.Size   `opt:"s" toml:"size"` // that is written, bytes; whole 4 MiB
	Rate float64       `opt:"w" toml:"rate"` // what the writing has to reach, MB/s; 0: nothing
	Time time.Duration `opt:"t" toml:"time"` // that all of it may take
}

const diskWriteName = "check_disk_write"

func diskWriteDo() map[string]string {
	do := activeDo("disk.write", "See iostat -x 1 while nobody else writes, check_nvme and smartctl for the disk, /proc/mdstat for a RAID that rebuilds, and how full the file system is.", map[string]string{
		"disk.write.io":        "See dmesg for the disk or the server: I/O errors. smartctl -a, and replace the disk; a file system with such errors wants fsck.",
		"disk.write.read-only": "See dmesg: a file system becomes read-only after errors. If it is meant to be so take the line out.",
		"disk.write.wrong":     "What was read is not what was written: the disk, its controller, its cable or the node's memory corrupts data. Take the node out, and see check_hw_mcelog, check_pcie_aer and smartctl.",
		"disk.write.full":      "Free some of it: see df, df -i and quotas. Nothing was measured.",
		"disk.write.directory": "The directory is not there: correct the line, or see check_fs_mount for what should be mounted there.",
		"disk.write.memory":    "Nothing: such a file system tells of no disk. Name a directory on one.",
		"disk.write.error":     "The kernel refused it; the message says how. Try it by hand, as root: dd if=/dev/zero of=DIR/x bs=4M count=1 oflag=direct.",
	})
	delete(do, "disk.write.peers") // it has none
	return do
}

func init() {
	checks.Register(checks.Info{
		Name:    diskWriteName,
		Usage:   "[-s SIZE] [-w MBPS] [-t SECONDS] [--max-age AGE] DIR",
		Summary: "a file system takes data, and gives it back",
		Lane:    checks.Local,
		Active:  true,
		New:     func() checks.Check { return &diskWrite{Size: 1 << 30, Time: 30 * time.Second} },
		Do:      diskWriteDo,
	})
}

// Bound is the most that it takes.
func (c *diskWrite) Bound() time.Duration { return c.Time }

// Validate refuses words that mean no directory, or no size.
func (c *diskWrite) Validate() error {
	switch {
	case c.Dir == "":
		return &checks.UsageError{Kind: checks.MissingWord, Want: "a directory"}
	case !strings.HasPrefix(c.Dir, "/"):
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Dir, Want: "a directory that begins with /"}
	case c.Size <= 0 || c.Size > 1<<40:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Size.String(), Want: "a size of up to 1T"}
	}
	return usableTime(c.Time)
}

// Bind is BindTags, with a directory.
func (c *diskWrite) Bind(args []string) error {
	if err := checks.BindTags(c, args); err != nil {
		return err
	}
	return c.Validate()
}

func (c *diskWrite) Run(ctx context.Context, env *checks.Env) []checks.Finding {
	r, findings := c.begin(ctx, env, activeTest{Check: diskWriteName, Code: "disk.write", Bound: c.Bound(), Of: c})
	if r == nil {
		return findings
	}
	d := checks.Device{Kind: "directory", Name: c.Dir}
	rates, err := disk.Write(r.ctx, env.Host, c.Dir, int64(c.Size), time.Now().Add(c.Time/2), env.Doing)
	switch e, ok := errors.AsType[*disk.Error](err); {
	case ok:
		c.fault(r, d, e)
	case err != nil && r.ctx.Err() == nil: // else it was stopped, which the frame says
		r.failures = true
		r.report(d, checks.Finding{Code: "disk.write.error", Severity: checks.Unknown, Got: err.Error()}, "not measured")
	case err == nil && rates.Memory:
		r.report(d, checks.Finding{Code: "disk.write.memory", Severity: checks.Skip}, "not measured: its file system is in memory")
	case err == nil:
		c.measure(r, d, rates)
	}
	return r.done()
}

// fault tells what the file system refused. That there is no room, or no directory, is
// no fault of the disk.
func (c *diskWrite) fault(r *activeRun, d checks.Device, e *disk.Error) {
	of, text := checks.Finding{Code: "disk.write.error", Severity: checks.Unknown, Got: e.Error()}, "not measured"
	switch e.Kind {
	case disk.DiskIO:
		of.Code, of.Severity, of.Remedy, text = "disk.write.io", checks.Fail, checks.ReseatOrRMA, "I/O error"
	case disk.DiskWrong:
		of.Code, of.Severity, of.Remedy, text = "disk.write.wrong", checks.Fail, checks.ReseatOrRMA, "it does not give back what was written"
	case disk.DiskReadOnly:
		of.Code, of.Severity, text = "disk.write.read-only", checks.Fail, "it is read-only"
	case disk.DiskFull:
		of.Code, of.Severity, text = "disk.write.full", checks.Warn, "not measured: too little is free"
	case disk.DiskNoDir:
		of.Code, of.Remedy = "disk.write.directory", checks.FixConfig
	}
	r.failures = r.failures || of.Severity != checks.Fail
	r.report(d, of, "%s", text)
}

// measure hands the rates on. What a cache gives back in the reading says nothing.
func (c *diskWrite) measure(r *activeRun, d checks.Device, rates disk.Rates) {
	m := measure{Test: "disk_write", Algorithm: "direct", Size: disk.Size(int64(c.Size)), Device: d, What: "write", Value: rates.Write, Unit: "MB/s", Least: c.Rate}
	if !rates.Direct {
		m.Algorithm, m.What = "page cache", "write through the page cache"
	}
	r.measured(m)
	if rates.Direct {
		m.Algorithm, m.What, m.Value, m.Least = "direct read", "read back", rates.Read, 0
		r.measured(m)
	}
	text := fmt.Sprintf("%d MiB written, the longest 4 MiB in %s", rates.Written>>20, rates.Longest.Round(10*time.Microsecond))
	if rates.Written < m.Size {
		text += fmt.Sprintf("; the time was up before %d MiB", m.Size>>20)
	}
	r.report(d, checks.Finding{Code: "disk.write.rates", Severity: checks.OK}, "%s", text)
}
