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

// diskWrite writes SIZE bytes to a directory, bypassing the page cache, and reads them back. It
// fails if the file system returns an I/O error or is read-only, if the data read differ from the
// data written, and if writing is slower than MBPS. -s SIZE is 1G by default, -w MBPS a rate in
// MB/s (10^6 bytes) until the data are on the disk. Without MBPS the rate is only compared with
// the node's baseline. -v shows the longest write of 4 MiB.
//
// The file has no name, or loses it before anything is written, so no file remains however the
// test ends. The check does not start if less than a tenth of the file system would stay free.
// Half of -t SECONDS (30) is for writing; the rate of the data written until then counts. File
// systems in memory are skipped. If a file system cannot bypass the page cache, the check writes
// through it, and the algorithm is "page cache", not "direct": such a rate includes the memory's
// speed.
//
//	node* || check_disk_write -w 1500 /scratch
type diskWrite struct {
	active

	Dir  string        `arg:"1" toml:"dir"`  // the directory
	Size checks.Size   `opt:"s" toml:"size"` // bytes to write, a multiple of 4 MiB
	Rate float64       `opt:"w" toml:"rate"` // least rate of writing, MB/s; 0: no limit
	Time time.Duration `opt:"t" toml:"time"` // time limit of the whole check
}

const diskWriteName = "check_disk_write"

func diskWriteDo() map[string]string {
	do := activeDo("disk.write", "See iostat -x 1 while no other process writes, check_nvme and smartctl for the disk, /proc/mdstat for a RAID rebuild, and how full the file system is.", map[string]string{
		"disk.write.io":        "See dmesg for I/O errors of the disk or the server. Test the disk (smartctl -a), replace it if it is faulty, and run fsck on the file system.",
		"disk.write.read-only": "See dmesg: a file system becomes read-only after errors. If it is read-only on purpose remove the line.",
		"disk.write.wrong":     "The data read differ from the data written: the disk, its controller, its cable or the node's memory corrupts data. Drain the node and see check_hw_mcelog, check_pcie_aer and smartctl.",
		"disk.write.full":      "Free space on the file system: see df, df -i and quotas. Nothing was measured.",
		"disk.write.directory": "The directory does not exist: correct the line, or see check_fs_mount for the file system that should be mounted there.",
		"disk.write.memory":    "The file system is in memory, so the test says nothing about a disk. Name a directory on a disk.",
		"disk.write.error":     "The message has the error of the kernel. Repeat it by hand as root: dd if=/dev/zero of=DIR/x bs=4M count=1 oflag=direct.",
	})
	delete(do, "disk.write.peers") // it has no peers
	return do
}

func init() {
	checks.Register(checks.Info{
		Name:    diskWriteName,
		Usage:   "[-s SIZE] [-w MBPS] [-t SECONDS] [--max-age AGE] DIR",
		Summary: "a file system stores data fast and returns them unchanged",
		Lane:    checks.Local,
		Active:  true,
		New:     func() checks.Check { return &diskWrite{Size: 1 << 30, Time: 30 * time.Second} },
		Do:      diskWriteDo,
	})
}

// Bound returns the time limit.
func (c *diskWrite) Bound() time.Duration { return c.Time }

func (c *diskWrite) Validate() error {
	switch {
	case c.Dir == "":
		return &checks.UsageError{Kind: checks.MissingWord, Want: "a directory"}
	case !strings.HasPrefix(c.Dir, "/"):
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Dir, Want: "a directory that begins with /"}
	case c.Size <= 0 || c.Size > 1<<40:
		return &checks.UsageError{Kind: checks.BadValue, Word: c.Size.String(), Want: "a size of up to 1T"}
	}
	return validateTime(c.Time)
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
		c.reportFault(r, d, e)
	case err != nil && r.ctx.Err() == nil: // otherwise the frame reports the stop
		r.failures = true
		r.report(d, checks.Finding{Code: "disk.write.error", Severity: checks.Unknown, Got: err.Error()}, "not measured")
	case err == nil && rates.Memory:
		r.report(d, checks.Finding{Code: "disk.write.memory", Severity: checks.Skip}, "not measured: its file system is in memory")
	case err == nil:
		c.measure(r, d, rates)
	}
	return r.done()
}

// reportFault reports an error of the file system. A full file system or a missing directory is not a
// fault of the disk.
func (c *diskWrite) reportFault(r *activeRun, d checks.Device, e *disk.Error) {
	of, text := checks.Finding{Code: "disk.write.error", Severity: checks.Unknown, Got: e.Error()}, "not measured"
	switch e.Kind {
	case disk.DiskIO:
		of.Code, of.Severity, of.Remedy, text = "disk.write.io", checks.Fail, checks.ReseatOrRMA, "I/O error"
	case disk.DiskWrong:
		of.Code, of.Severity, of.Remedy, text = "disk.write.wrong", checks.Fail, checks.ReseatOrRMA, "data read differ from data written"
	case disk.DiskReadOnly:
		of.Code, of.Severity, text = "disk.write.read-only", checks.Fail, "file system is read-only"
	case disk.DiskFull:
		of.Code, of.Severity, text = "disk.write.full", checks.Warn, "not measured: too little free space"
	case disk.DiskNoDir:
		of.Code, of.Remedy = "disk.write.directory", checks.FixConfig
	}
	r.failures = r.failures || of.Severity != checks.Fail
	r.report(d, of, "%s", text)
}

// measure records the rates. Reading through a cache says nothing about the disk, so it is not
// recorded.
func (c *diskWrite) measure(r *activeRun, d checks.Device, rates disk.Rates) {
	m := measure{Test: "disk_write", Algorithm: "direct", Size: disk.Size(int64(c.Size)), Device: d, What: "write", Value: rates.Write, Unit: "MB/s", Least: c.Rate}
	if !rates.Direct {
		m.Algorithm, m.What = "page cache", "write through the page cache"
	}
	r.record(m)
	if rates.Direct {
		m.Algorithm, m.What, m.Value, m.Least = "direct read", "read back", rates.Read, 0
		r.record(m)
	}
	text := fmt.Sprintf("%d MiB written, the longest 4 MiB in %s", rates.Written>>20, rates.Longest.Round(10*time.Microsecond))
	if rates.Written < m.Size {
		text += fmt.Sprintf("; time limit reached before %d MiB", m.Size>>20)
	}
	r.report(d, checks.Finding{Code: "disk.write.rates", Severity: checks.OK}, "%s", text)
}
