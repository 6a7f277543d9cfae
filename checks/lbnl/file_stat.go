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

// fileStat checks what stat(1) says of files; a symbolic link is not followed.
// What is not given is not tested. Modes and numbers are decimal unless they
// begin with 0 (octal) or 0x; uids and gids are compared as they are written.
// Ages are in whole seconds.
//
//	node* || check_file_stat -m 01777 -u 0 -g 0 /tmp /var/tmp
//	node* || check_file_stat -n 7200 /var/spool/slurmd/heartbeat
type fileStat struct {
	Device     string   `opt:"d" toml:"device"`      // number of the file system's device; -D is the same
	GID        string   `opt:"g" toml:"gid"`         // the group's number
	Group      string   `opt:"G" toml:"group"`       // the group's name, UNKNOWN if it has none
	Mode       string   `opt:"m" toml:"mode"`        // the permission bits, exactly
	ModeHas    string   `opt:"M" toml:"mode_has"`    // permission bits that must be set
	CtimeNewer string   `opt:"N" toml:"ctime_newer"` // the inode changed within so many seconds
	CtimeOlder string   `opt:"O" toml:"ctime_older"` // the inode did not
	MtimeNewer string   `opt:"n" toml:"mtime_newer"` // the content changed within so many seconds
	MtimeOlder string   `opt:"o" toml:"mtime_older"` // the content did not
	Major      string   `opt:"t" toml:"major"`       // of a device file
	Minor      string   `opt:"T" toml:"minor"`       // of a device file
	UID        string   `opt:"u" toml:"uid"`         // the owner's number
	User       string   `opt:"U" toml:"user"`        // the owner's name, UNKNOWN if it has none
	Files      []string `arg:"*" toml:"files"`       // the files
}

func init() {
	const who = "Compare ls -ln with a healthy node: chown it, and find what created it. UNKNOWN is an account that the name service does not know."
	const age = "See what should have written the file, and compare the clock with date: a file from the future is a wrong clock."
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
				"file.stat.missing": "Got says why. Find out what removed the file, or whether its file system is mounted and answers.",
				"file.stat.device":  "The file lies on another file system: see findmnt -T FILE for what is mounted there, or is not.",
				"file.stat.node":    "The device file is another device's: see ls -l, and have udev make it again (udevadm trigger).",
				"file.stat.owner":   who,
				"file.stat.group":   who,
				"file.stat.mode":    "Compare ls -l with a healthy node: chmod it, and find what created it.",
				"file.stat.age":     age,
			}
		},
	})
}

// statOptions are those of LBNL NHC.
const statOptions = "D:G:M:N:O:T:U:d:g:m:n:o:t:u:"

// Bind knows that -D is -d: of both the last one counts.
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

// unnamed is the name of owners without a name.
const unnamed = "UNKNOWN"

func (c *fileStat) Run(_ context.Context, env *checks.Env) []checks.Finding {
	j := statJudge{fileStat: c, env: env, now: time.Now().Unix()}
	if f := j.numbers(); f != nil {
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

// statJudge judges one file after the other.
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

// numbers reads the parameters that are numbers and says what is wrong with them.
func (j *statJudge) numbers() *checks.Finding {
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

// judge makes LBNL NHC's tests in its order. A name is looked up when its turn
// comes: the name service may not answer.
func (j *statJudge) judge() *checks.Finding {
	var err error
	j.env.At("stat %s", j.file)
	if j.stat, err = probe.StatFile(j.env.Host, j.env.Abs(j.file)); err != nil {
		return &checks.Finding{
			Code:     "file.stat.missing",
			Severity: checks.Fail,
			Message:  fmt.Sprintf("stat(%s) returned 1:  ", j.file), // LBNL NHC loses stat's own text
			Want:     "a file",
			Got:      err.Error(),
		}
	}
	s := j.stat
	f := cmp.Or(
		j.newer("ctime", j.CtimeNewer, s.Ctime, j.ctimeNewer),
		j.older("ctime", j.CtimeOlder, s.Ctime, j.ctimeOlder),
		j.number("device", "device number is 0x%x; should be %s", j.Device, s.Device, j.device),
		j.same("group", "GID", j.GID, strconv.FormatUint(uint64(s.GID), 10)),
		j.same("owner", "UID", j.UID, strconv.FormatUint(uint64(s.UID), 10)),
	)
	if f == nil && j.Group != "" {
		j.env.At("look up gid %d", s.GID)
		f = j.same("group", "groupname", j.Group, cmp.Or(probe.GroupName(j.env.Host, s.GID), unnamed))
	}
	f = cmp.Or(f,
		j.number("node", "has device major number 0x%x; should be %s", j.Major, uint64(s.Major), j.major),
		j.number("node", "has device minor number 0x%x; should be %s", j.Minor, uint64(s.Minor), j.minor),
		j.modes(),
		j.newer("mtime", j.MtimeNewer, s.Mtime, j.mtimeNewer),
		j.older("mtime", j.MtimeOlder, s.Mtime, j.mtimeOlder),
	)
	if f == nil && j.User != "" {
		j.env.At("look up uid %d", s.UID)
		f = j.same("owner", "username", j.User, cmp.Or(probe.UserName(j.env.Host, s.UID), unnamed))
	}
	return f
}

// wrong is what is said of the file, which bears its name in quotes.
func (j *statJudge) wrong(code, text, want, got string) *checks.Finding {
	return &checks.Finding{
		Code:     "file.stat." + code,
		Severity: checks.Fail,
		Message:  fmt.Sprintf("File \"%s\" %s", j.file, text),
		Want:     want,
		Got:      got,
	}
}

func (j *statJudge) newer(what, word string, changed time.Time, age int64) *checks.Finding {
	if word == "" || changed.Unix() >= j.now-age {
		return nil
	}
	return j.wrong("age", what+" is not newer than "+word+"s", "newer than "+word+"s", date(changed))
}

func (j *statJudge) older(what, word string, changed time.Time, age int64) *checks.Finding {
	if word == "" || changed.Unix() < j.now-age {
		return nil
	}
	return j.wrong("age", what+" is not older than "+word+"s", "older than "+word+"s", date(changed))
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// number compares numbers; format takes the one of the file and the word.
func (j *statJudge) number(code, format, word string, got uint64, want int64) *checks.Finding {
	if word == "" || got == uint64(want) {
		return nil
	}
	return j.wrong(code, fmt.Sprintf(format, got, word), word, fmt.Sprintf("0x%x", got))
}

// same compares owners as text.
func (j *statJudge) same(code, what, want, got string) *checks.Finding {
	if want == "" || want == got {
		return nil
	}
	return j.wrong(code, fmt.Sprintf("%s is \"%s\"; should be \"%s\"", what, got, want), want, got)
}

func (j *statJudge) modes() *checks.Finding {
	bits := int64(j.stat.Mode)
	text := "0" + strconv.FormatInt(bits, 8)
	switch {
	case j.Mode != "" && bits != j.mode:
		return j.wrong("mode", fmt.Sprintf("has permissions %s; should be %s", text, j.Mode), j.Mode, text)
	case j.ModeHas != "" && bits&j.modeHas != j.modeHas:
		return j.wrong("mode", fmt.Sprintf("has permissions %s; should be at least %s", text, j.ModeHas), j.ModeHas, text)
	}
	return nil
}
