package probe

import (
	"bytes"
	"errors"
	"io/fs"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Mount is one line of /proc/mounts. The mount point is decoded (\040 is a blank). The other fields
// are as in LBNL NHC, with each escape's backslash removed (nfs1:/my040share), because sites have
// match strings for that.
type Mount struct {
	Source  string // field 1: nfs1:/export/home, /dev/sda1, tmpfs
	Point   string // field 2, the mount point
	Type    string // field 3: nfs4, ext4
	Options string // field 4: rw,nosuid,size=10240k
}

// Mounts returns the mount table of /proc/mounts in its order, oldest mount first.
func Mounts(h *Host) ([]Mount, error) { return readMountTable(h, "mounts") }

// MountsOf is the same for checks that count space or inodes. As in LBNL NHC, they and the checks
// of mounts each read the table when they first need it, and a line between them may mount
// something.
func MountsOf(h *Host, what Amount) ([]Mount, error) {
	return readMountTable(h, "mounts "+string(what))
}

func readMountTable(h *Host, key string) ([]Mount, error) {
	return Once(h, key, func() ([]Mount, error) {
		data, err := h.ReadFile("/proc/mounts")
		if err != nil {
			return nil, err
		}
		return parseMounts(data), nil
	})
}

// Fstab returns the entries of /etc/fstab (fstab(5)), none if it cannot be read.
func Fstab(h *Host) []Mount {
	data, err := h.ReadFile("/etc/fstab")
	if err != nil {
		return nil
	}
	return slices.DeleteFunc(parseMounts(data), func(m Mount) bool { return strings.HasPrefix(m.Source, "#") })
}

// ForgetMounts makes the next [Mounts] read the table again.
func ForgetMounts(h *Host) { Uncache(h, "mounts") }

// Ext4Stopped returns the last error of the ext4 file system mounted on point, if the file system stops
// writes at an error; the zero time for any other, and for none. Since d3476f3dad4a (Linux 6.12, backported to
// 5.15, 6.1 and 6.6) such a file system refuses all writes, and /proc/mounts goes on to show rw.
func Ext4Stopped(h *Host, point string) (time.Time, error) {
	dev, err := ext4Device(h, point)
	if err != nil || dev == "" {
		return time.Time{}, err
	}
	// /proc/mounts omits errors= if it is the default in the superblock.
	options, err := h.ReadFile("/proc/fs/ext4/" + dev + "/options")
	if err != nil || !slices.Contains(strings.Fields(string(options)), "errors=remount-ro") {
		return time.Time{}, unlessMissing(err) // missing in a container
	}
	path := "/sys/fs/ext4/" + dev + "/last_error_time"
	text, err := h.ReadValue(path)
	if err != nil {
		return time.Time{}, unlessMissing(err)
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil:
		return time.Time{}, &fs.PathError{Op: "parse", Path: path, Err: fs.ErrInvalid}
	case seconds <= 0:
		return time.Time{}, nil
	}
	return time.Unix(seconds, 0), nil
}

func unlessMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// ext4Device returns the kernel's name of the device mounted on point, "" if it is unknown. The source in
// /proc/mounts can be a link.
func ext4Device(h *Host, point string) (string, error) {
	data, err := h.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", unlessMissing(err)
	}
	number := ""
	for line := range bytes.Lines(data) {
		if f := bytes.Fields(line); len(f) > 4 && unescape(f[4]) == point { // proc(5): the uppermost mount is the last
			number = string(f[2])
		}
	}
	uevent, err := h.ReadFile("/sys/dev/block/" + number + "/uevent")
	if number == "" || err != nil {
		return "", unlessMissing(err)
	}
	for line := range strings.Lines(string(uevent)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			return strings.ReplaceAll(name, "/", "!"), nil // as in sysfs: cciss!c0d0
		}
	}
	return "", nil
}

// parseMounts parses lines of four or more fields; a missing field is empty.
func parseMounts(data []byte) []Mount {
	var mounts []Mount
	for line := range bytes.Lines(data) {
		f := bytes.FieldsFunc(line, isBlank)
		if len(f) < 2 {
			continue
		}
		m := Mount{Source: removeBackslashes(f[0]), Point: unescape(f[1])}
		if len(f) > 2 {
			m.Type = removeBackslashes(f[2])
		}
		if len(f) > 3 {
			m.Options = removeBackslashes(f[3])
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// isBlank reports whether a character separates fields: the kernel escapes only these within a
// field. A carriage return or a no-break space is part of a name.
func isBlank(r rune) bool { return r == ' ' || r == '\t' || r == '\n' }

// removeBackslashes removes the backslashes of a field, as the shell's read does.
func removeBackslashes(s []byte) string { return strings.ReplaceAll(string(s), `\`, "") }

// unescape decodes the kernel's octal escapes of blanks, tabs, newlines and backslashes. A
// backslash before anything else stays.
func unescape(s []byte) string {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s)
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] <= '3' && isOctal(s[i+1]) && isOctal(s[i+2]) && isOctal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func isOctal(c byte) bool { return '0' <= c && c <= '7' }

// Amount is a countable resource of a file system.
type Amount string

// These are the resources that df counts.
const (
	Space  Amount = "space"  // in kB, each rounded up
	Inodes Amount = "inodes" // a number of them
)

// Amounts is one line of df. An unknown amount, which df shows as "-", is 0.
type Amounts struct {
	Total   int64
	Used    int64
	Free    int64 // available to users; negative if they use the reserve
	Percent int   // Used of Used + Free, rounded up: df's Use%
}

// FSUsage returns how full the file system at a mount point is. It caches the result, separately
// for space and inodes as LBNL NHC does. It queries no other file system, but this one may never
// answer.
func FSUsage(h *Host, point string, what Amount) (Amounts, error) {
	return Once(h, "statfs "+string(what)+" "+point, func() (Amounts, error) {
		st, err := statfs(h, point)
		if err != nil {
			return Amounts{}, &fs.PathError{Op: "statfs", Path: point, Err: err}
		}
		return st.usage(what), nil
	})
}

// fsNumbers are the fields of statfs(2) that df uses.
type fsNumbers struct {
	unit   uint64 // of the blocks, in bytes
	blocks uint64
	bfree  uint64 // for root
	bavail uint64 // for users; the highest bit is a sign
	files  uint64
	ffree  uint64
}

func statfs(h *Host, point string) (fsNumbers, error) {
	if h.Recorded() {
		return readRecordedStatfs(h, point)
	}
	var st unix.Statfs_t
	if _, err := Retry(func() (int, error) { return 0, unix.Statfs(point, &st) }); err != nil {
		return fsNumbers{}, err
	}
	unit := st.Frsize
	if unit == 0 {
		unit = st.Bsize
	}
	return fsNumbers{uint64(unit), st.Blocks, st.Bfree, st.Bavail, st.Files, st.Ffree}, nil
}

// readRecordedStatfs returns the numbers of a node that is a tree of files. Each line of its file
// /statfs has a mount point, escaped as in /proc/mounts, f_frsize, f_blocks, f_bfree, f_bavail,
// f_files and f_ffree.
func readRecordedStatfs(h *Host, point string) (fsNumbers, error) {
	data, err := readAll(h.Path("/statfs"))
	if err != nil {
		return fsNumbers{}, err
	}
	n, ok := parseStatfs(data)[point]
	if !ok {
		return fsNumbers{}, unix.ENOENT
	}
	return n, nil
}

func parseStatfs(data []byte) map[string]fsNumbers {
	all := map[string]fsNumbers{}
	for line := range bytes.Lines(data) {
		f := bytes.Fields(line)
		if len(f) != 7 {
			continue
		}
		var n fsNumbers
		for i, p := range []*uint64{&n.unit, &n.blocks, &n.bfree, &n.bavail, &n.files, &n.ffree} {
			v, err := strconv.ParseUint(string(f[i+1]), 0, 64)
			if err != nil {
				continue
			}
			*p = v
		}
		all[unescape(f[0])] = n
	}
	return all
}

// usage counts as df of GNU coreutils does: used is everything that is not free for root, and the
// percentage refers to the space for users.
func (n fsNumbers) usage(what Amount) Amounts {
	if what == Inodes {
		return share{total: n.files, free: n.ffree, avail: n.ffree}.amounts(1, 1)
	}
	return share{total: n.blocks, free: n.bfree, avail: n.bavail, negative: n.bavail>>63 == 1}.amounts(n.unit, 1024)
}

// share is one resource of a file system.
type share struct {
	total    uint64
	free     uint64 // for root
	avail    uint64 // for users
	negative bool   // avail is below 0
}

// isKnown reports whether a field of statfs is a number: all ones, and one less, mean unknown.
func isKnown(n uint64) bool { return n < math.MaxUint64-1 }

// amounts converts units of in bytes to units of out bytes.
func (s share) amounts(in, out uint64) Amounts {
	var a Amounts
	scale := func(n uint64, negative bool) int64 {
		if negative {
			return -scale(-n, in, out)
		}
		return scale(n, in, out)
	}
	if isKnown(s.total) {
		a.Total = scale(s.total, false)
	}
	if isKnown(s.avail) {
		a.Free = scale(s.avail, s.negative)
	}
	if isKnown(s.total) && isKnown(s.free) {
		a.Used = scale(s.total-s.free, s.total < s.free)
		if isKnown(s.avail) {
			a.Percent = s.percent()
		}
	}
	return a
}

// scale returns n*in/out, rounded up, at most the largest int64.
func scale(n, in, out uint64) int64 {
	hi, lo := bits.Mul64(n, in)
	if hi >= out {
		return math.MaxInt64
	}
	q, r := bits.Div64(hi, lo, out)
	if r != 0 {
		q++
	}
	if q > math.MaxInt64 || q == 0 && r != 0 {
		return math.MaxInt64
	}
	return int64(q)
}

// percent returns df's Use%. Like df it uses floating point for numbers that overflow.
func (s share) percent() int {
	used, negative := s.total-s.free, s.total < s.free
	all := used + s.avail
	if !negative && used <= math.MaxUint64/100 && all != 0 && (all < used) == s.negative {
		p := used * 100 / all
		if used*100%all != 0 {
			p++
		}
		return clamp(float64(p))
	}
	u, a := float64(used), float64(s.avail)
	if negative {
		u = -float64(-used)
	}
	if s.negative {
		a = -float64(-s.avail)
	}
	if u+a == 0 {
		return 0
	}
	return clamp(math.Ceil(u * 100 / (u + a)))
}

// clamp keeps a percentage in an int; df prints "-" for a negative one.
func clamp(p float64) int {
	return int(min(max(p, 0), math.MaxInt32))
}
