package lbnl

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
)

// fileStat compares the attributes of files, as stat(1) shows them, with the given values. It
// checks only attributes that have a value, and does not follow symbolic links. Modes and numbers
// are decimal unless they begin with 0 (octal) or 0x. UIDs and GIDs are compared as text. Ages are
// in whole seconds.
//
//	node* || check_file_stat -m 01777 -u 0 -g 0 /tmp /var/tmp
//	node* || check_file_stat -n 7200 /var/spool/slurmd/heartbeat
type fileStat struct {
	Device     string   `opt:"d" toml:"device"`      // device number of the file system; -D is the same
	GID        string   `opt:"g" toml:"gid"`         // the GID of the file
	Group      string   `opt:"G" toml:"group"`       // the name of the group; UNKNOWN if the GID has no name
	Mode       string   `opt:"m" toml:"mode"`        // the exact permission bits
	ModeHas    string   `opt:"M" toml:"mode_has"`    // permission bits that must be set
	CtimeNewer string   `opt:"N" toml:"ctime_newer"` // the inode was changed less than this number of seconds ago
	CtimeOlder string   `opt:"O" toml:"ctime_older"` // the inode was changed more than this number of seconds ago
	MtimeNewer string   `opt:"n" toml:"mtime_newer"` // the content was changed less than this number of seconds ago
	MtimeOlder string   `opt:"o" toml:"mtime_older"` // the content was changed more than this number of seconds ago
	Major      string   `opt:"t" toml:"major"`       // the major number of a device file
	Minor      string   `opt:"T" toml:"minor"`       // the minor number of a device file
	UID        string   `opt:"u" toml:"uid"`         // the UID of the file
	User       string   `opt:"U" toml:"user"`        // the name of the owner; UNKNOWN if the UID has no name
	Files      []string `arg:"*" toml:"files"`       // the files
}

func init() {
	const owner = "Compare ls -ln with a healthy node, correct the owner (chown), and find the program that created the file. UNKNOWN means that the name service does not know the account."
	const age = "Check the program that writes the file, and the clock of the node (date): a time in the future means that a clock is wrong."
	checks.Register(checks.Info{
		Name: "check_file_stat",
		Usage: "[-m MODE] [-M BITS] [-u UID] [-g GID] [-U USER] [-G GROUP] [-n SECONDS] [-o SECONDS] [-N SECONDS] [-O SECONDS] " +
			"[-t MAJOR] [-T MINOR] [-d DEVICE] FILE ...",
		Summary:  "files have the right owner, mode and age",
		Lane:     checks.Local,
		New:      func() checks.Check { return &fileStat{} },
		BadUsage: checks.UsageOf("check_file_stat"),
		Do: func() map[string]string {
			return map[string]string{
				"file.stat.missing": "Check that the file system is mounted and readable, and find the program that removed the file (the field got of --json names the error).",
				"file.stat.device":  "Run findmnt -T FILE: the file is on another file system, or the right one is not mounted.",
				"file.stat.node":    "Check ls -l: the device file belongs to another device. Have udev create it again (udevadm trigger).",
				"file.stat.owner":   owner,
				"file.stat.group":   owner,
				"file.stat.mode":    "Compare ls -l with a healthy node, correct the mode (chmod), and find the program that created the file.",
				"file.stat.age":     age,
			}
		},
	})
}

// statOptions are the options of LBNL NHC's check.
const statOptions = "D:G:M:N:O:T:U:d:g:m:n:o:t:u:"

// Bind treats -D as -d; if both are given, the last one counts.
func (c *fileStat) Bind(args []string) error {
	var words []string
	files, err := checks.Getopts(statOptions, args, func(option byte, word string) {
		if option == 'D' {
			option = 'd'
		}
		words = append(words, "-"+string(option), word)
	})
	if err != nil {
		return err
	}
	return checks.BindTags(c, append(append(words, "--"), files...))
}

// unnamed is the name that stat(1) prints for an unknown UID or GID.
const unnamed = "UNKNOWN"

func (c *fileStat) Run(_ context.Context, env *checks.Env) []checks.Finding {
	j := statJudge{fileStat: c, env: env, now: time.Now().Unix()}
	if f := j.parseNumbers(); f != nil {
		return []checks.Finding{*f}
	}
	for _, file := range c.Files {
		j.file = file
		if f := j.judge(); f != nil {
			f.Device = checks.Device{Kind: "file", Name: file}
			f.Message = "check_file_stat:  " + f.Message
			return []checks.Finding{*f}
		}
	}
	return nil
}

// statJudge checks one file after the other.
type statJudge struct {
	*fileStat
	env  *checks.Env
	now  int64 // seconds since 1970
	file string
	stat probe.FileStat

	device, major, minor                           int64
	mode, modeHas                                  int64
	ctimeNewer, ctimeOlder, mtimeNewer, mtimeOlder int64
}

// parseNumbers reads the options that are numbers and reports the first invalid one.
func (j *statJudge) parseNumbers() *checks.Finding {
	for _, n := range []struct {
		what, word string
		to         *int64
	}{
		{"device number", j.Device, &j.device},
		{"major number", j.Major, &j.major},
		{"minor number", j.Minor, &j.minor},
		{"mode", j.Mode, &j.mode},
		{"mode", j.ModeHas, &j.modeHas},
		{"ctime", j.CtimeNewer, &j.ctimeNewer},
		{"ctime", j.CtimeOlder, &j.ctimeOlder},
		{"mtime", j.MtimeNewer, &j.mtimeNewer},
		{"mtime", j.MtimeOlder, &j.mtimeOlder},
	} {
		v, ok := checks.ParseInteger(n.word)
		if !ok {
			f := checks.WrongValue("check_file_stat", n.what, n.word, "a whole number")
			return &f
		}
		*n.to = v
	}
	return nil
}

// judge runs the tests of LBNL NHC in the same order. It looks up a name only when its test is
// due, because the name service can hang.
func (j *statJudge) judge() *checks.Finding {
	var err error
	j.env.At("stat %s", j.file)
	if j.stat, err = probe.StatFile(j.env.Host, j.env.Abs(j.file)); err != nil {
		return &checks.Finding{
			Code:     "file.stat.missing",
			Severity: checks.Fail,
			Message:  fmt.Sprintf("stat(%s) returned 1:  ", j.file), // LBNL NHC drops the error message of stat
			Want:     "a file",
			Got:      err.Error(),
		}
	}
	s := j.stat
	f := cmp.Or(
		j.requireNewer("ctime", j.CtimeNewer, s.Ctime, j.ctimeNewer),
		j.requireOlder("ctime", j.CtimeOlder, s.Ctime, j.ctimeOlder),
		j.compareNumber("device", "device number is 0x%x; should be %s", j.Device, s.Device, j.device),
		j.compareText("group", "GID", j.GID, strconv.FormatUint(uint64(s.GID), 10)),
		j.compareText("owner", "UID", j.UID, strconv.FormatUint(uint64(s.UID), 10)),
	)
	if f == nil && j.Group != "" {
		j.env.At("look up gid %d", s.GID)
		f = j.compareText("group", "groupname", j.Group, cmp.Or(probe.GroupName(j.env.Host, s.GID), unnamed))
	}
	f = cmp.Or(f,
		j.compareNumber("node", "has device major number 0x%x; should be %s", j.Major, uint64(s.Major), j.major),
		j.compareNumber("node", "has device minor number 0x%x; should be %s", j.Minor, uint64(s.Minor), j.minor),
		j.compareMode(),
		j.requireNewer("mtime", j.MtimeNewer, s.Mtime, j.mtimeNewer),
		j.requireOlder("mtime", j.MtimeOlder, s.Mtime, j.mtimeOlder),
	)
	if f == nil && j.User != "" {
		j.env.At("look up uid %d", s.UID)
		f = j.compareText("owner", "username", j.User, cmp.Or(probe.UserName(j.env.Host, s.UID), unnamed))
	}
	return f
}

// finding returns a finding about the file; the message begins with the name in quotes.
func (j *statJudge) finding(code, text, want, got string) *checks.Finding {
	return &checks.Finding{
		Code:     "file.stat." + code,
		Severity: checks.Fail,
		Message:  fmt.Sprintf("File \"%s\" %s", j.file, text),
		Want:     want,
		Got:      got,
	}
}

func (j *statJudge) requireNewer(what, word string, changed time.Time, age int64) *checks.Finding {
	if word == "" || changed.Unix() >= j.now-age {
		return nil
	}
	return j.finding("age", what+" is not newer than "+word+"s", "newer than "+word+"s", date(changed))
}

func (j *statJudge) requireOlder(what, word string, changed time.Time, age int64) *checks.Finding {
	if word == "" || changed.Unix() < j.now-age {
		return nil
	}
	return j.finding("age", what+" is not older than "+word+"s", "older than "+word+"s", date(changed))
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// compareNumber compares numbers. The arguments of format are the number of the file and word.
func (j *statJudge) compareNumber(code, format, word string, got uint64, want int64) *checks.Finding {
	if word == "" || got == uint64(want) {
		return nil
	}
	return j.finding(code, fmt.Sprintf(format, got, word), word, fmt.Sprintf("0x%x", got))
}

// compareText compares owners and groups as text.
func (j *statJudge) compareText(code, what, want, got string) *checks.Finding {
	if want == "" || want == got {
		return nil
	}
	return j.finding(code, fmt.Sprintf("%s is \"%s\"; should be \"%s\"", what, got, want), want, got)
}

func (j *statJudge) compareMode() *checks.Finding {
	bits := int64(j.stat.Mode)
	text := "0" + strconv.FormatInt(bits, 8)
	switch {
	case j.Mode != "" && bits != j.mode:
		return j.finding("mode", fmt.Sprintf("has permissions %s; should be %s", text, j.Mode), j.Mode, text)
	case j.ModeHas != "" && bits&j.modeHas != j.modeHas:
		return j.finding("mode", fmt.Sprintf("has permissions %s; should be at least %s", text, j.ModeHas), j.ModeHas, text)
	}
	return nil
}
