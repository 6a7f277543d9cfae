package lint

import (
	"math/big"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/conf/match"
)

// form is what an argument may be.
type form struct {
	want string
	ok   func(string) bool
	fix  func(string) string // of a word that is not; may be nil
	now  string              // what becomes of such a word; "": the line is not evaluated
	soft bool                // such a word can be meant
	odd  func(string) (text, now, fix string)

	share bool // a percentage that is none from 1% to 100% is compared all the same
}

// The forms of arguments that a check reads only when it runs.
var (
	aSize  = form{want: "a size: 64G, 1.5TB, 1048576 (kB)", ok: isSize, fix: fixSize, odd: fewKB}
	aFudge = form{want: "a size or a percentage: 3%, 1G", ok: func(w string) bool { return isSize(w) || isPercent(w) }, fix: fixSize}
	aPart  = form{want: "a size, or a percentage from 1% to 100%: 90%, 1G", ok: func(w string) bool { return isSize(w) || isPart(w) }, fix: fixSize, share: true, odd: func(w string) (text, now, fix string) {
		if text, now, fix = barePart(w); text == "" {
			text, now, fix = fewKB(w)
		}
		return text, now, fix
	}}
	aCount   = form{want: "a number: 500000, 1.5M", ok: isCount}
	aShare   = form{want: "a number, or a percentage from 1% to 100%: 500000, 90%", ok: func(w string) bool { return isCount(w) || isPart(w) }, share: true, odd: barePart}
	anInt    = form{want: "a whole number", ok: isInt, fix: fixNumber}
	aRate    = form{want: "a rate in Gb/s: 400", ok: isInt, now: "no port has such a rate, so the check fails on every node"}
	anID     = failing(anInt) // compared as it is
	aNumber  = form{want: "a number", ok: isNumber, fix: fixNumber}
	aCPU     = form{want: "a percentage: 95%", ok: func(w string) bool { return isNumber(strings.TrimSuffix(w, "%")) }}
	aCPUTime = form{want: "seconds, or minutes and seconds: 90, 12m34s", ok: func(w string) bool { return strings.Trim(w, "0123456789MmSs") == "" }}
	aMode    = form{want: "octal permission bits: 0755", ok: func(w string) bool { return strings.Trim(w, "01234567") == "" }, now: failsEverywhere}
	aPath    = form{want: "an absolute path", ok: isAbsolute, now: "it is looked up in the directory of the run", soft: true}
	aFS      = form{want: "a mount point", ok: func(w string) bool { return isAbsolute(w) || strings.ContainsAny(w, "*?[{") }, now: "no file system is mounted there, and nothing is checked", soft: true, odd: escapedBlank}
	aMount   = form{want: aFS.want, ok: aFS.ok, now: "no file system is mounted there, and the check fails on every node", soft: true, odd: escapedBlank}
	aPort    = form{want: "DEVICE:PORT: mlx5_0:1", ok: isPort, now: "no port has this name, so the check fails on every node"}
	// The lists of processes that are skipped.
	theIDs   = form{want: "a number, or numbers with commas", ok: func(w string) bool { return strings.Trim(w, "0123456789 ,;:|") == "" }, now: "it skips no process"}
	theUsers = form{want: "a user name, or names with commas", ok: func(w string) bool { return !strings.ContainsAny(w, `*?[](){}^/`) }, now: "it skips no process"}
	anAction = form{want: "log, syslog, die, kill or ignore", ok: func(w string) bool { return slices.Contains(psActions, w) }, now: "it is ignored"}
	aMatch   = form{want: "a match string", ok: func(w string) bool { return match.Valid(w) == nil }, now: "it matches nothing", odd: halfRegex}
	aSource  = form{want: aMatch.want, ok: aMatch.ok, now: aMatch.now} // /dev/sda1 is a pattern
)

// failing returns the form of an argument whose check fails with any other word.
func failing(f form) form {
	f.now = failsEverywhere
	return f
}

var psActions = []string{"log", "syslog", "die", "kill", "ignore"}

func isAbsolute(w string) bool { return strings.HasPrefix(w, "/") }

func isPort(w string) bool {
	_, port, ok := strings.Cut(w, ":")
	return ok && isInt(port)
}

func isInt(w string) bool    { _, ok := checks.ParseInteger(w); return ok && w != "" }
func isNumber(w string) bool { _, ok := checks.ParseNumber(w); return ok }
func isSize(w string) bool   { _, ok := checks.ParseSize(w); return ok && w != "" }
func isCount(w string) bool  { _, ok := checks.ParseCount(w); return ok && w != "" }

// isPart reports whether a word is a percentage that a part of a whole can be.
func isPart(w string) bool {
	n, ok := checks.ParseNumber(strings.TrimSuffix(w, "%"))
	return ok && isPercent(w) && n.Cmp(big.NewRat(1, 1)) >= 0 && n.Cmp(big.NewRat(100, 1)) <= 0
}

func isPercent(w string) bool { n, ok := strings.CutSuffix(w, "%"); return ok && isNumber(n) }

// isBelowOne reports whether a percentage is less than 1%.
func isBelowOne(w string) bool {
	n, ok := checks.ParseNumber(strings.TrimSuffix(w, "%"))
	return ok && n.Cmp(big.NewRat(1, 1)) < 0
}

// fewKB reports a number without a unit that is too small for kB.
func fewKB(w string) (text, now, fix string) {
	if n, err := strconv.Atoi(w); err != nil || n <= 0 || n >= 1024 {
		return "", "", ""
	}
	return w + " has no unit", "it is " + w + " kB", w + "G"
}

// barePart reports a number without a unit that is probably a percentage.
func barePart(w string) (text, now, fix string) {
	if n, err := strconv.Atoi(w); err != nil || n <= 0 || n > 100 {
		return "", "", ""
	}
	return w + " has no unit", "it is no percentage, but " + w + " kB or inodes", w + "%"
}

var blankOfMounts = checks.Lazily(`\\040|[A-Za-z]040[A-Za-z]`)

// escapedBlank reports a mount point as LBNL NHC and its genconf write one with a blank, as it arrives: 040, the
// rest of \040 of /proc/mounts. A name like /scratch040 is none.
func escapedBlank(w string) (text, now, fix string) {
	if !blankOfMounts().MatchString(w) {
		return "", "", ""
	}
	fix = strings.NewReplacer(`\040`, " ", "040", " ").Replace(w)
	return w + " has 040 for a blank", "a mount point with a blank is not found by it", fix
}

var (
	openRegex   = checks.Lazily(`^/(\^.*|[^/]*)[^/]$`)
	flaggedEnd  = checks.Lazily(`^(/[^/]+/)[gimsx]$`)
	closedRegex = checks.Lazily(`^\^[^/]*/$`)
)

// halfRegex reports a regular expression that lacks one of its slashes, and so is a pattern.
func halfRegex(w string) (text, now, fix string) {
	bare := strings.TrimPrefix(w, "!")
	not := w[:len(w)-len(bare)]
	switch m := flaggedEnd().FindStringSubmatch(bare); {
	case m != nil:
		text, fix = "a letter follows the regular expression", not+m[1]
	case openRegex().MatchString(bare):
		text, fix = "the regular expression has no / at its end", w+"/"
	case closedRegex().MatchString(bare):
		text, fix = "the regular expression has no / at its beginning", not+"/"+bare
	}
	return text, "it is a pattern for a whole line, and / is a part of it", fix
}

var (
	looseSize   = checks.Lazily(`(?i)^([0-9]+)[.,]?([0-9]*) *([kmgtpe]?)i?b?(yte)?s?$`)
	looseNumber = checks.Lazily(`^[-+]?[0-9]+`)
)

// fixSize reads 2TiBs, 64gibs and 1,5T as a person does.
func fixSize(w string) string {
	m := looseSize().FindStringSubmatch(w)
	switch {
	case m == nil:
		return ""
	case m[2] != "":
		return m[1] + "." + m[2] + strings.ToUpper(m[3])
	}
	return m[1] + strings.ToUpper(m[3])
}

func fixNumber(w string) string {
	number := looseNumber().FindString(w)
	digits := strings.TrimLeft(number, "0+")
	if digits == w || strings.ContainsAny(w[len(number):], "*/+-") {
		return ""
	}
	return digits
}

// argForms returns the forms of the arguments of LBNL NHC's checks, by field. A run that is no lint makes no
// such table.
var argForms = sync.OnceValue(func() map[string]map[string]form {
	return map[string]map[string]form{
		"check_hw_cpuinfo":          {"Sockets": anInt, "Cores": anInt, "Threads": anInt},
		"check_hw_physmem":          {"Min": aSize, "Max": aSize, "Fudge": aFudge},
		"check_hw_mem":              {"Min": aSize, "Max": aSize, "Fudge": aFudge},
		"check_hw_swap":             {"Min": aSize, "Max": aSize, "Fudge": aFudge},
		"check_hw_physmem_free":     {"Min": aSize},
		"check_hw_mem_free":         {"Min": aSize},
		"check_hw_swap_free":        {"Min": aSize},
		"check_hw_ib":               {"Rate": aRate, "Port": aPort},
		"check_fs_size":             {"FS": aFS, "Min": aSize, "Max": aSize},
		"check_fs_inodes":           {"FS": aFS, "Min": aCount, "Max": aCount},
		"check_fs_free":             {"FS": aFS, "Min": aPart},
		"check_fs_ifree":            {"FS": aFS, "Min": aShare},
		"check_fs_used":             {"FS": aFS, "Max": aPart},
		"check_fs_iused":            {"FS": aFS, "Max": aShare},
		"check_all_fs_inodes":       {"Min": aCount, "Max": aCount},
		"check_all_fs_ifree":        {"Limit": aShare},
		"check_all_fs_used":         {"Limit": aPart},
		"check_all_fs_iused":        {"Limit": aShare},
		"check_fs_mount":            {"FS": aMount, "Automount": aMount, "Source": aSource, "Type": aMatch, "Options": aMatch},
		"check_fs_mount_rw":         {"FS": aMount, "Automount": aMount, "Source": aSource, "Type": aMatch, "Options": aMatch},
		"check_fs_mount_ro":         {"FS": aMount, "Automount": aMount, "Source": aSource, "Type": aMatch, "Options": aMatch},
		"check_file_test":           {"Files": aPath},
		"check_file_contents":       {"File": aPath, "Match": aMatch},
		"check_file_stat":           {"Files": aPath, "Mode": aMode, "ModeHas": aMode, "UID": anID, "GID": anID, "MtimeNewer": anInt, "MtimeOlder": anInt, "CtimeNewer": anInt, "CtimeOlder": anInt},
		"check_ps_loadavg":          {"One": aNumber, "Five": aNumber, "Fifteen": aNumber},
		"check_ps_cpu":              {"Limit": aCPU, "Match": aMatch, "Owner": aMatch},
		"check_ps_mem":              {"Limit": aSize, "Match": aMatch, "Owner": aMatch},
		"check_ps_physmem":          {"Limit": aPart, "Match": aMatch, "Owner": aMatch},
		"check_ps_time":             {"Limit": aCPUTime, "Match": aMatch, "Owner": aMatch},
		"check_ps_kswapd":           {"Threshold": aNumber, "Discrepancy": aNumber, "Actions": anAction},
		"check_ps_service":          {"Match": aMatch, "Owner": aMatch},
		"check_ps_unauth_users":     {"IgnoreUIDs": theIDs, "IgnorePIDs": theIDs, "IgnoreUsers": theUsers, "Actions": anAction},
		"check_cmd_output":          {"Status": anInt, "Limit": anInt, "Match": aMatch},
		"check_cmd_status":          {"Status": anInt, "Limit": anInt},
		"check_cmd_dmesg":           {"Status": anInt, "Limit": anInt, "Match": aMatch},
		"check_net_ping":            {"Count": failing(anInt), "Deadline": failing(aNumber), "Timeout": failing(aNumber), "Interval": failing(aNumber), "Size": failing(anInt), "TTL": failing(anInt)},
		"check_net_socket":          {"Protocol": aMatch, "Local": aMatch, "Remote": aMatch, "State": aMatch, "User": aMatch, "Daemon": aMatch},
		"check_ps_userproc_lineage": {"IgnoreUIDs": theIDs, "IgnorePIDs": theIDs, "IgnoreUsers": theUsers, "Actions": anAction},
	}
})
