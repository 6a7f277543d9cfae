package probe

import (
	"bytes"
	"io/fs"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Mount is one line of /proc/mounts. Where it is mounted is decoded (\040 is a
// blank); the other fields are as LBNL NHC has them, each escape without its
// backslash (nfs1:/my040share), for sites have match strings for that.
type Mount struct {
	Source  string // field 1: nfs1:/export/home, /dev/sda1, tmpfs
	Point   string // field 2: where it is mounted
	Type    string // field 3: nfs4, ext4
	Options string // field 4: rw,nosuid,size=10240k
}

// Mounts is the mount table of /proc/mounts in its order, oldest mount first.
func Mounts(h *Host) ([]Mount, error) { return mountTable(h, "mounts") }

// MountsOf is the same for those who count space or inodes. In a run of LBNL
// NHC they and the checks of mounts look for themselves, each when it first
// needs to, and a line between them may mount something.
func MountsOf(h *Host, what Amount) ([]Mount, error) { return mountTable(h, "mounts "+string(what)) }

func mountTable(h *Host, key string) ([]Mount, error) {
	return Once(h, key, func() ([]Mount, error) {
		data, err := h.ReadFile("/proc/mounts")
		if err != nil {
			return nil, err
		}
		return parseMounts(data), nil
	})
}

// ForgetMounts makes the next [Mounts] read the table again.
func ForgetMounts(h *Host) { h.forget("mounts") }

// parseMounts reads lines of four or more fields; a field that is missing is empty.
func parseMounts(data []byte) []Mount {
	var mounts []Mount
	for line := range bytes.Lines(data) {
		f := bytes.FieldsFunc(line, isBlank)
		if len(f) < 2 {
			continue
		}
		m := Mount{Source: withoutBackslashes(f[0]), Point: unescape(f[1])}
		if len(f) > 2 {
			m.Type = withoutBackslashes(f[2])
		}
		if len(f) > 3 {
			m.Options = withoutBackslashes(f[3])
		}
		mounts = append(mounts, m)
	}
	return mounts
}

// isBlank knows what separates fields: the kernel writes these, and no others,
// as escapes within one. A carriage return or a no-break space is part of a name.
func isBlank(r rune) bool { return r == ' ' || r == '\t' || r == '\n' }

// withoutBackslashes is what the shell's read makes of a field.
func withoutBackslashes(s []byte) string { return strings.ReplaceAll(string(s), `\`, "") }

// unescape decodes the octal escapes with which the kernel writes blanks,
// tabs, newlines and backslashes. A backslash before anything else stands for itself.
func unescape(s []byte) string {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s)
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] <= '3' && octal(s[i+1]) && octal(s[i+2]) && octal(s[i+3]) {
			b.WriteByte((s[i+1]-'0')<<6 | (s[i+2]-'0')<<3 | (s[i+3] - '0'))
			i += 3
			continue
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func octal(c byte) bool { return '0' <= c && c <= '7' }

// Amount is what of a file system is counted.
type Amount string

// What df counts.
const (
	Space  Amount = "space"  // in kB, each rounded up
	Inodes Amount = "inodes" // a number of them
)

// Amounts is one line of df. An amount that the file system does not know,
// for which df prints "-", is 0.
type Amounts struct {
	Total   int64
	Used    int64
	Free    int64 // what users may still have; less than 0 if they have eaten into the reserve
	Percent int   // Used of Used + Free, rounded up: df's Use%
}

// FSUsage asks the file system that is mounted on a path how full it is. It is
// remembered, space and inodes each for itself as in a run of LBNL NHC. No other
// file system is asked, but this one may never answer.
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
		return recordedStatfs(h, point)
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

// recordedStatfs answers for a node that is a tree of files: its file /statfs
// holds lines of a mount point, escaped as in /proc/mounts, f_frsize,
// f_blocks, f_bfree, f_bavail, f_files and f_ffree.
func recordedStatfs(h *Host, point string) (fsNumbers, error) {
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

// usage counts as df of GNU coreutils does: used is what root does not find
// free, and the percentage is of what users can have.
func (n fsNumbers) usage(what Amount) Amounts {
	if what == Inodes {
		return share{total: n.files, free: n.ffree, avail: n.ffree}.amounts(1, 1)
	}
	return share{total: n.blocks, free: n.bfree, avail: n.bavail, negative: n.bavail>>63 == 1}.amounts(n.unit, 1024)
}

// share is one kind of thing that a file system has a number of.
type share struct {
	total    uint64
	free     uint64 // for root
	avail    uint64 // for users
	negative bool   // avail is below 0
}

// known says whether a field of statfs is a number: all ones, and one less,
// mean that there is none.
func known(n uint64) bool { return n < math.MaxUint64-1 }

// amounts turns units of in bytes into units of out bytes.
func (s share) amounts(in, out uint64) Amounts {
	var a Amounts
	scale := func(n uint64, negative bool) int64 {
		if negative {
			return -scaled(-n, in, out)
		}
		return scaled(n, in, out)
	}
	if known(s.total) {
		a.Total = scale(s.total, false)
	}
	if known(s.avail) {
		a.Free = scale(s.avail, s.negative)
	}
	if known(s.total) && known(s.free) {
		a.Used = scale(s.total-s.free, s.total < s.free)
		if known(s.avail) {
			a.Percent = s.percent()
		}
	}
	return a
}

// scaled is n*in/out, rounded up, and no more than an int64 can hold.
func scaled(n, in, out uint64) int64 {
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

// percent is df's Use%. Where whole numbers do not do, df uses floating point.
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

// clamp keeps a percentage in an int; df prints "-" for one below 0.
func clamp(p float64) int {
	return int(min(max(p, 0), math.MaxInt32))
}
